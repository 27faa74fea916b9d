"""Elementwise math: powers, exponentials, trigonometry, special functions. Re-exports `arithmetic`.

The gradients of functions of one argument are a table of derivatives d(x, y), with y the output of the op; the gradient
is g * conj(d), which is g * d for real dtypes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from distgrad.graph import Operation, Tensor
from distgrad.ops import arithmetic
from distgrad.ops.arithmetic import *  # noqa: F403
from distgrad.ops.arithmetic import (
    abs,
    conj,
    equal,
    imag,
    logical_and,
    multiply,
    not_equal,
    real,
    real_only,
    reciprocal,
    square,
    where,
)
from distgrad.ops.builder import binary, elementwise, make, promote, same, typed, unary
from distgrad.ops.guard import guard_all
from distgrad.registry import Kind, RegisterGradient, define
from distgrad.types import as_int, trainable

# -- functions of two arguments ----------------------------------------------------------------------------------

_pow = binary("Pow", np.power, "x to the power y.", name="power")
arctan2 = binary(
    "Atan2",
    np.arctan2,
    "The angle of the point (x2, x1) in radians.\n\n>>> arctan2(1.0, 1.0)\narray(0.78539816)",
    real_only(elementwise),
    name="arctan2",
)
hypot = binary(
    "Hypot",
    np.hypot,
    "sqrt(x**2 + y**2) without overflow. The gradient at 0 is 0.\n\n>>> hypot(3.0, 4.0)\narray(5.)",
    real_only(elementwise),
)
logaddexp = binary(
    "LogAddExp",
    np.logaddexp,
    "log(exp(x) + exp(y)) without overflow.\n\n>>> logaddexp(0.0, 0.0)\narray(0.69314718)",
    real_only(elementwise),
)


def power(x: Any, y: Any, name: str | None = None) -> Tensor:
    """x to the power y, elementwise; `x ** 2` is recorded as Square.

    >>> power(np.array([1.0, 3.0]), 2)
    array([1., 9.])
    """
    if type(y) in (int, float) and y == 2 and type(x) not in (bool, int, float, complex):
        x = typed(x)
        if trainable(x.dtype):
            return square(x, name=name)
    return _pow(x, y, name=name)


@RegisterGradient("Pow")
def _pow_grad(op: Operation, g: Tensor) -> Any:
    x, y = op.inputs
    lower = y - 1
    if not _never_zero(y):  # at 0 ** 0 the derivative in x is 0: 0 * 0 ** 1, not 0 * 0 ** -1
        lower = where(logical_and(equal(x, 0), equal(y, 0)), 1, lower)
    has_log = not_equal(x, 0) if x.dtype.kind == "c" else x > 0
    safe = where(has_log, x, 1)  # the derivative in y is 0 for x = 0 and not real for x < 0: zero, not NaN
    return g * conj(y * power(x, lower)), g * conj(op.outputs[0] * log(safe))


def _never_zero(y: Tensor) -> bool:
    return y.op.type == "Const" and bool(np.all(y.op.attrs["value"] != 0))


@RegisterGradient("Atan2")
def _atan2_grad(op: Operation, g: Tensor) -> Any:
    y, x = op.inputs
    scaled = g / (x * x + y * y)
    return x * scaled, -y * scaled


@RegisterGradient("Hypot")
def _hypot_grad(op: Operation, g: Tensor) -> Any:
    (x, y), (r,) = op.inputs, op.outputs
    scaled = g / where(equal(r, 0), 1, r)
    return x * scaled, y * scaled


@RegisterGradient("LogAddExp")
def _logaddexp_grad(op: Operation, g: Tensor) -> Any:
    (x, y), (z,) = op.inputs, op.outputs
    z = where(equal(z, -math.inf), 0, z)  # both are -inf: zero gradients, not NaN
    return g * exp(x - z), g * exp(y - z)


# -- functions of one argument -----------------------------------------------------------------------------------

exp = unary("Exp", np.exp, "e to the power x.\n\n>>> exp(1.0)\narray(2.71828183)")
exp2 = unary("Exp2", np.exp2, "2 to the power x.\n\n>>> exp2(3.0)\narray(8.)")
expm1 = unary("Expm1", np.expm1, "exp(x) - 1, accurate for small x.\n\n>>> expm1(1e-10)\narray(1.e-10)")
log = unary("Log", np.log, "The natural logarithm.\n\n>>> log(10.0)\narray(2.30258509)")
log2 = unary("Log2", np.log2, "The logarithm to base 2.\n\n>>> log2(8.0)\narray(3.)")
log10 = unary("Log10", np.log10, "The logarithm to base 10.\n\n>>> log10(100.0)\narray(2.)")
log1p = unary("Log1p", np.log1p, "log(1 + x), accurate for small x.\n\n>>> log1p(1e-10)\narray(1.e-10)")
sqrt = unary("Sqrt", np.sqrt, "The square root.\n\n>>> sqrt(9.0)\narray(3.)", rounded=True)
rsqrt = unary("Rsqrt", np.sqrt, "1 / sqrt(x).\n\n>>> rsqrt(4.0)\narray(0.5)")
cbrt = unary("Cbrt", np.cbrt, "The real cube root.\n\n>>> cbrt(-8.0)\narray(-2.)", real_only(same))
sin = unary("Sin", np.sin, "The sine of x in radians.\n\n>>> sin(1.0)\narray(0.84147098)")
cos = unary("Cos", np.cos, "The cosine of x in radians.\n\n>>> cos(1.0)\narray(0.54030231)")
tan = unary("Tan", np.tan, "The tangent of x in radians.\n\n>>> tan(1.0)\narray(1.55740772)")
arcsin = unary("Asin", np.arcsin, "The inverse sine.\n\n>>> arcsin(1.0)\narray(1.57079633)", name="arcsin")
arccos = unary("Acos", np.arccos, "The inverse cosine.\n\n>>> arccos(0.0)\narray(1.57079633)", name="arccos")
arctan = unary("Atan", np.arctan, "The inverse tangent.\n\n>>> arctan(1.0)\narray(0.78539816)", name="arctan")
sinh = unary("Sinh", np.sinh, "The hyperbolic sine.\n\n>>> sinh(1.0)\narray(1.17520119)")
cosh = unary("Cosh", np.cosh, "The hyperbolic cosine.\n\n>>> cosh(1.0)\narray(1.54308063)")
tanh = unary("Tanh", np.tanh, "The hyperbolic tangent.\n\n>>> tanh(1.0)\narray(0.76159416)")
arcsinh = unary(
    "Asinh", np.arcsinh, "The inverse hyperbolic sine.\n\n>>> arcsinh(1.0)\narray(0.88137359)", name="arcsinh"
)
arccosh = unary(
    "Acosh", np.arccosh, "The inverse hyperbolic cosine.\n\n>>> arccosh(2.0)\narray(1.3169579)", name="arccosh"
)
arctanh = unary(
    "Atanh", np.arctanh, "The inverse hyperbolic tangent.\n\n>>> arctanh(0.5)\narray(0.54930614)", name="arctanh"
)
sigmoid = unary("Sigmoid", np.exp, "1 / (1 + exp(-x)), without overflow.\n\n>>> sigmoid(1.0)\narray(0.73105858)")
# not in NumPy; the dtype rules of cbrt apply
erf = unary("Erf", np.cbrt, "The error function.\n\n>>> erf(1.0)\narray(0.84270079)", real_only(same))
erfc = unary("Erfc", np.cbrt, "1 - erf(x), accurate for large x.\n\n>>> erfc(1.0)\narray(0.15729921)", real_only(same))
lgamma = unary("Lgamma", np.cbrt, "The logarithm of |gamma(x)|.\n\n>>> lgamma(4.0)\narray(1.79175947)", real_only(same))
digamma = unary(
    "Digamma", np.cbrt, "The derivative of lgamma.\n\n>>> digamma(1.0)\narray(-0.57721566)", real_only(same)
)
_polygamma = define("Polygamma", real_only(same), kind=Kind.ELEMENTWISE)


def polygamma(n: int, x: Any, name: str | None = None) -> Tensor:
    """The n-th derivative of digamma.

    >>> polygamma(1, 1.0)
    array(1.64493407)
    """
    n = as_int("polygamma", "n", n)
    if n < 0:
        raise ValueError(f"polygamma: the order n of the derivative must not be negative, got {n}")
    (x,) = promote(np.cbrt, x)
    return make(_polygamma, (x,), {"n": n}, name)


_DERIVATIVES: dict[str, Callable[[Any, Any], Any]] = {
    "Exp": lambda x, y: y,
    "Exp2": lambda x, y: y * math.log(2),
    "Expm1": lambda x, y: exp(x),
    "Log": lambda x, y: reciprocal(x),
    "Log2": lambda x, y: 1 / (x * math.log(2)),
    "Log10": lambda x, y: 1 / (x * math.log(10)),
    "Log1p": lambda x, y: 1 / (1 + x),
    "Sqrt": lambda x, y: 0.5 / y,
    "Rsqrt": lambda x, y: -0.5 * y / x,
    "Cbrt": lambda x, y: 1 / (3 * square(y)),
    "Sin": lambda x, y: cos(x),
    "Cos": lambda x, y: -sin(x),
    "Tan": lambda x, y: 1 + square(tan(x)),
    "Asin": lambda x, y: rsqrt((1 - x) * (1 + x)),
    "Acos": lambda x, y: -rsqrt((1 - x) * (1 + x)),
    "Atan": lambda x, y: 1 / (1 + square(x)),
    "Sinh": lambda x, y: cosh(x),
    "Cosh": lambda x, y: sinh(x),
    "Tanh": lambda x, y: 1 - square(y),
    "Asinh": lambda x, y: 1 / cosh(y),
    "Acosh": lambda x, y: 1 / sinh(y),
    "Atanh": lambda x, y: 1 / ((1 - x) * (1 + x)),
    "Erf": lambda x, y: (2 / math.sqrt(math.pi)) * exp(-square(x)),
    "Erfc": lambda x, y: (-2 / math.sqrt(math.pi)) * exp(-square(x)),
    "Lgamma": lambda x, y: digamma(x),
    "Digamma": lambda x, y: polygamma(1, x),
    "Sigmoid": lambda x, y: y * (1 - y),
}


def _register_derivative(op_type: str, derivative: Callable[[Any, Any], Any]) -> None:
    @RegisterGradient(op_type)
    def _grad(op: Operation, g: Tensor) -> Any:
        return g * conj(derivative(op.inputs[0], op.outputs[0]))


for _type, _derivative in _DERIVATIVES.items():
    _register_derivative(_type, _derivative)


@RegisterGradient("Polygamma")
def _polygamma_grad(op: Operation, g: Tensor) -> Any:
    return g * polygamma(op.attrs["n"] + 1, op.inputs[0])


# -- composites --------------------------------------------------------------------------------------------------


def deg2rad(x: Any, name: str | None = None) -> Tensor:
    """Convert degrees to radians.

    >>> deg2rad(180.0)
    array(3.14159265)
    """
    return multiply(*promote(np.deg2rad, x), math.pi / 180, name=name)


def rad2deg(x: Any, name: str | None = None) -> Tensor:
    """Convert radians to degrees.

    >>> rad2deg(np.pi)
    array(180.)
    """
    return multiply(*promote(np.rad2deg, x), 180 / math.pi, name=name)


def angle(z: Any, deg: bool = False, name: str | None = None) -> Tensor:
    """The argument of a complex number, in radians unless `deg`.

    >>> angle(np.array([1j, -1.0]), deg=True)
    array([ 90., 180.])
    """
    if not deg:
        return arctan2(imag(z), real(z), name=name)
    return rad2deg(arctan2(imag(z), real(z)), name=name)


def sinc(x: Any, name: str | None = None) -> Tensor:
    """sin(pi x) / (pi x), and 1 at 0.

    >>> sinc(np.array([0.0, 0.5]))
    array([1.        , 0.63661977])
    """
    t = multiply(*promote(np.sin, x), math.pi)
    small = abs(t) < 0.1  # use the series, accurate to the last bit and smooth at 0
    u = square(where(small, t, 0))  # masked: it could overflow elsewhere, and 0 * inf in the gradient is NaN
    series = 1 + u * (u * (u * (u / 362880 - 1 / 5040) + 1 / 120) - 1 / 6)
    t = where(small, 1, t)
    return where(small, series, sin(t) / t, name=name)


# NumPy's aliases
acos, acosh, asin, asinh, atan, atan2, atanh, pow, radians, degrees = (
    arccos, arccosh, arcsin, arcsinh, arctan, arctan2, arctanh, power, deg2rad, rad2deg,
)  # fmt: skip

__all__ = [
    "acos", "acosh", "angle", "arccos", "arccosh", "arcsin", "arcsinh", "arctan", "arctan2", "arctanh", "asin", "asinh",
    "atan", "atan2", "atanh", "cbrt", "cos", "cosh", "deg2rad", "degrees", "digamma", "erf", "erfc", "exp", "exp2",
    "expm1", "hypot", "lgamma", "log", "log10", "log1p", "log2", "logaddexp", "polygamma", "pow", "power", "rad2deg",
    "radians", "rsqrt", "sigmoid", "sin", "sinc", "sinh", "sqrt", "tan", "tanh",
]  # fmt: skip
__all__ += arithmetic.__all__
guard_all(globals(), __all__)
