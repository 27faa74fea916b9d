"""Elementwise math: arithmetic, comparison, exponentials, trigonometry, special functions, choosing.

One stanza per op, one line per gradient. The rules of holomorphic functions are a table of derivatives d(x, y), with y the
op's own output; the gradient is g times the conjugate of d, which for real dtypes is g * d.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from distgrad.graph import NO_ATTRS, Operation, Tensor
from distgrad.ops.builder import (
    as_dtype,
    binary,
    cast,
    common,
    comparison,
    make,
    promote,
    typed,
    unary,
)
from distgrad.registry import RegisterGradient, define, no_gradient
from distgrad.types import BOOL, DType, Shape, Typed, broadcast_shapes, real_dtype, trainable

# -- arithmetic --------------------------------------------------------------------------------------------------

add = binary("Add", np.add, "x + y, elementwise.")
subtract = binary("Sub", np.subtract, "x - y, elementwise.", name="subtract")
multiply = binary("Mul", np.multiply, "x * y, elementwise.", name="multiply")
divide = binary("Div", np.true_divide, "x / y, elementwise.", name="divide")
floor_divide = binary("FloorDiv", np.floor_divide, "The largest integer not above x / y.", name="floor_divide")
remainder = binary("Mod", np.remainder, "The remainder of floor_divide, with the sign of y.", name="remainder")
maximum = binary("Maximum", np.maximum, "The larger of x and y; a tie gives its gradient to x.")
minimum = binary("Minimum", np.minimum, "The smaller of x and y; a tie gives its gradient to x.")
arctan2 = binary("Atan2", np.arctan2, "The angle of the point (y, x), y given first.", name="arctan2")
_pow = binary("Pow", np.power, "x to the power y.", name="power")
negative = unary("Neg", np.negative, "-x.", name="negative")
square = unary("Square", np.square, "x * x.")
reciprocal = unary("Reciprocal", np.reciprocal, "1 / x.")


def power(x: Any, y: Any, name: str | None = None) -> Tensor:
    """x to the power y, elementwise; `x ** 2` is recorded as Square.

    >>> power(np.array([1.0, 3.0]), 2)
    array([1., 9.])
    """
    if type(y) in (int, float) and y == 2 and type(x) is Tensor and trainable(x.dtype):
        return square(x, name=name)
    return _pow(x, y, name=name)


@RegisterGradient("Add")
def _add_grad(op: Operation, g: Tensor) -> Any:
    return g, g


@RegisterGradient("Sub")
def _sub_grad(op: Operation, g: Tensor) -> Any:
    return g, -g


@RegisterGradient("Mul")
def _mul_grad(op: Operation, g: Tensor) -> Any:
    x, y = op.inputs
    return g * conj(y), g * conj(x)


@RegisterGradient("Div")
def _div_grad(op: Operation, g: Tensor) -> Any:
    gx = g / conj(op.inputs[1])
    return gx, -gx * conj(op.outputs[0])


@RegisterGradient("Mod")
def _mod_grad(op: Operation, g: Tensor) -> Any:
    x, y = op.inputs
    return g, -g * floor_divide(x, y)


@RegisterGradient("Pow")
def _pow_grad(op: Operation, g: Tensor) -> Any:
    x, y = op.inputs
    gx = g * conj(y * power(x, y - 1))
    if y.dtype.kind == "c":
        return gx, g * conj(op.outputs[0] * log(x))
    safe = where(x > 0, x, 1)  # 0 ** y is flat in y, and a negative x has no real derivative there: zero, not NaN
    return gx, g * op.outputs[0] * log(safe)


@RegisterGradient("Maximum")
def _maximum_grad(op: Operation, g: Tensor) -> Any:
    return _choose(op.inputs[0] >= op.inputs[1], g)


@RegisterGradient("Minimum")
def _minimum_grad(op: Operation, g: Tensor) -> Any:
    return _choose(op.inputs[0] <= op.inputs[1], g)


def _choose(first: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    return where(first, g, 0), where(first, 0, g)


@RegisterGradient("Atan2")
def _atan2_grad(op: Operation, g: Tensor) -> Any:
    y, x = op.inputs
    scaled = g / (x * x + y * y)
    return x * scaled, -y * scaled


@RegisterGradient("Neg")
def _neg_grad(op: Operation, g: Tensor) -> Any:
    return -g


# -- comparison and logic ----------------------------------------------------------------------------------------

equal = binary("Equal", np.equal, "x == y, elementwise.", comparison)
not_equal = binary("NotEqual", np.not_equal, "x != y, elementwise.", comparison, name="not_equal")
less = binary("Less", np.less, "x < y, elementwise.", comparison)
less_equal = binary("LessEqual", np.less_equal, "x <= y, elementwise.", comparison, name="less_equal")
greater = binary("Greater", np.greater, "x > y, elementwise.", comparison)
greater_equal = binary("GreaterEqual", np.greater_equal, "x >= y, elementwise.", comparison, name="greater_equal")
logical_and = binary("LogicalAnd", np.logical_and, "Both x and y.", comparison, name="logical_and")
logical_or = binary("LogicalOr", np.logical_or, "x or y or both.", comparison, name="logical_or")
logical_xor = binary("LogicalXor", np.logical_xor, "Either x or y.", comparison, name="logical_xor")


def _boolean(x: Typed) -> tuple[Shape, DType]:
    return x.shape, BOOL


logical_not = unary("LogicalNot", np.logical_not, "Not x.", _boolean, name="logical_not")
isnan = unary("IsNan", np.isnan, "Where x is not a number.", _boolean)
isinf = unary("IsInf", np.isinf, "Where x is infinite.", _boolean)
isfinite = unary("IsFinite", np.isfinite, "Where x is neither infinite nor NaN.", _boolean)

for _type in (
    "Equal", "NotEqual", "Less", "LessEqual", "Greater", "GreaterEqual", "LogicalAnd", "LogicalOr", "LogicalXor",
    "LogicalNot", "IsNan", "IsInf", "IsFinite", "FloorDiv",
):  # fmt: skip
    no_gradient(_type)


# -- exponentials, roots, trigonometry, special functions --------------------------------------------------------

exp = unary("Exp", np.exp, "e to the power x.")
exp2 = unary("Exp2", np.exp2, "2 to the power x.")
expm1 = unary("Expm1", np.expm1, "exp(x) - 1, exact for small x.")
log = unary("Log", np.log, "The natural logarithm.")
log2 = unary("Log2", np.log2, "The logarithm to base 2.")
log10 = unary("Log10", np.log10, "The logarithm to base 10.")
log1p = unary("Log1p", np.log1p, "log(1 + x), exact for small x.")
sqrt = unary("Sqrt", np.sqrt, "The square root.")
rsqrt = unary("Rsqrt", np.sqrt, "1 / sqrt(x).")
sin = unary("Sin", np.sin, "The sine of x in radians.")
cos = unary("Cos", np.cos, "The cosine of x in radians.")
tan = unary("Tan", np.tan, "The tangent of x in radians.")
arcsin = unary("Asin", np.arcsin, "The inverse sine.", name="arcsin")
arccos = unary("Acos", np.arccos, "The inverse cosine.", name="arccos")
arctan = unary("Atan", np.arctan, "The inverse tangent.", name="arctan")
sinh = unary("Sinh", np.sinh, "The hyperbolic sine.")
cosh = unary("Cosh", np.cosh, "The hyperbolic cosine.")
tanh = unary("Tanh", np.tanh, "The hyperbolic tangent.")
arcsinh = unary("Asinh", np.arcsinh, "The inverse hyperbolic sine.", name="arcsinh")
arccosh = unary("Acosh", np.arccosh, "The inverse hyperbolic cosine.", name="arccosh")
arctanh = unary("Atanh", np.arctanh, "The inverse hyperbolic tangent.", name="arctanh")
erf = unary("Erf", np.cbrt, "The error function.")
erfc = unary("Erfc", np.cbrt, "1 - erf(x), exact for large x.")
lgamma = unary("Lgamma", np.cbrt, "The logarithm of |gamma(x)|.")
digamma = unary("Digamma", np.cbrt, "The derivative of lgamma.")
sigmoid = unary("Sigmoid", np.exp, "1 / (1 + exp(-x)), without overflow.")

_polygamma = define("Polygamma", lambda x, *, n: (x.shape, x.dtype))


def polygamma(n: int, x: Any, name: str | None = None) -> Tensor:
    """The n-th derivative of digamma."""
    (x,) = promote(np.cbrt, x)
    return make(_polygamma, (x,), {"n": int(n)}, name)


_DERIVATIVES: dict[str, Callable[[Any, Any], Any]] = {
    "Square": lambda x, y: 2 * x,
    "Reciprocal": lambda x, y: -y * y,
    "Exp": lambda x, y: y,
    "Exp2": lambda x, y: y * math.log(2),
    "Expm1": lambda x, y: y + 1,
    "Log": lambda x, y: reciprocal(x),
    "Log2": lambda x, y: 1 / (x * math.log(2)),
    "Log10": lambda x, y: 1 / (x * math.log(10)),
    "Log1p": lambda x, y: 1 / (1 + x),
    "Sqrt": lambda x, y: 0.5 / y,
    "Rsqrt": lambda x, y: -0.5 * y / x,
    "Sin": lambda x, y: cos(x),
    "Cos": lambda x, y: -sin(x),
    "Tan": lambda x, y: 1 + y * y,
    "Asin": lambda x, y: rsqrt(1 - x * x),
    "Acos": lambda x, y: -rsqrt(1 - x * x),
    "Atan": lambda x, y: 1 / (1 + x * x),
    "Sinh": lambda x, y: cosh(x),
    "Cosh": lambda x, y: sinh(x),
    "Tanh": lambda x, y: 1 - y * y,
    "Asinh": lambda x, y: 1 / cosh(y),
    "Acosh": lambda x, y: 1 / sinh(y),
    "Atanh": lambda x, y: 1 / (1 - x * x),
    "Erf": lambda x, y: (2 / math.sqrt(math.pi)) * exp(-x * x),
    "Erfc": lambda x, y: (-2 / math.sqrt(math.pi)) * exp(-x * x),
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


# -- rounding and sign -------------------------------------------------------------------------------------------

floor = unary("Floor", np.floor, "The largest integer not above x.")
ceil = unary("Ceil", np.ceil, "The smallest integer not below x.")
rint = unary("Rint", np.rint, "The nearest integer, halves to even.")
sign = unary("Sign", np.sign, "-1, 0 or 1.")
no_gradient("Floor")
no_gradient("Ceil")
no_gradient("Rint")


def round(x: Any, decimals: int = 0, name: str | None = None) -> Tensor:
    """x rounded to the given number of decimals, halves to even.

    >>> round(np.array([0.5, 1.5, 2.6]))
    array([0., 2., 3.])
    """
    if decimals == 0:
        return rint(x, name=name)
    scale = 10.0**decimals
    return divide(rint(multiply(x, scale)), scale, name=name)


@RegisterGradient("Sign")
def _sign_grad(op: Operation, g: Tensor) -> Any:
    return g * 0


def _abs_infer(x: Typed) -> tuple[Shape, DType]:
    return x.shape, real_dtype(x.dtype)


abs = unary("Abs", np.absolute, "The absolute value; of a complex number its modulus.", _abs_infer)


@RegisterGradient("Abs")
def _abs_grad(op: Operation, g: Tensor) -> Any:
    (x,) = op.inputs
    return cast(g, x.dtype) * sign(x)


# -- complex parts -----------------------------------------------------------------------------------------------

_real = define("Real", _abs_infer)
_imag = define("Imag", _abs_infer)
_conj = define("Conj", lambda x: (x.shape, x.dtype))


def real(x: Any, name: str | None = None) -> Tensor:
    """The real part; a real x as it is."""
    x = typed(x)
    return make(_real, (x,), NO_ATTRS, name) if x.dtype.kind == "c" else x


def imag(x: Any, name: str | None = None) -> Tensor:
    """The imaginary part; zeros for a real x."""
    x = typed(x)
    return make(_imag, (x,), NO_ATTRS, name) if x.dtype.kind == "c" else x * 0


def conj(x: Any, name: str | None = None) -> Tensor:
    """The complex conjugate; a real x as it is, so that rules may say conj and cost nothing for real dtypes."""
    if x.dtype.kind == "c":
        return make(_conj, (x,), NO_ATTRS, name)
    return x  # type: ignore[no-any-return]


@RegisterGradient("Real")
def _real_grad(op: Operation, g: Tensor) -> Any:
    return cast(g, op.inputs[0].dtype)


@RegisterGradient("Imag")
def _imag_grad(op: Operation, g: Tensor) -> Any:
    return cast(g, op.inputs[0].dtype) * 1j


@RegisterGradient("Conj")
def _conj_grad(op: Operation, g: Tensor) -> Any:
    return conj(g)


# -- choosing ----------------------------------------------------------------------------------------------------


def _select_infer(condition: Typed, x: Typed, y: Typed) -> tuple[Shape, DType]:
    return broadcast_shapes(broadcast_shapes(condition.shape, x.shape), y.shape), x.dtype


_select = define("Select", _select_infer, broadcasting=True)


def where(condition: Any, x: Any = None, y: Any = None, name: str | None = None) -> Tensor:
    """x where the condition holds, y elsewhere. Both are computed: guard the inputs of what may be NaN.

    >>> where(np.array([True, False]), 1.0, 2.0)
    array([1., 2.])
    """
    if x is None or y is None:
        raise TypeError("where: give both x and y; where(condition) alone has a shape that depends on data")
    condition = as_dtype(typed(condition), BOOL)
    x, y = common(x, y)
    return make(_select, (condition, x, y), NO_ATTRS, name)


@RegisterGradient("Select")
def _select_grad(op: Operation, g: Tensor) -> Any:
    condition = op.inputs[0]
    return None, where(condition, g, 0), where(condition, 0, g)


def clip(a: Any, a_min: Any = None, a_max: Any = None, name: str | None = None, *, min: Any = None, max: Any = None) -> Tensor:
    """a limited to [a_min, a_max]; either bound may be None.

    >>> clip(np.array([-2.0, 0.5, 2.0]), 0, 1)
    array([0. , 0.5, 1. ])
    """
    low, high = (a_min if min is None else min), (a_max if max is None else max)
    if low is not None:
        a = maximum(a, low, name=name if high is None else None)
    return typed(a) if high is None else minimum(a, high, name=name)  # type: ignore[no-any-return]


def logaddexp(x: Any, y: Any, name: str | None = None) -> Tensor:
    """log(exp(x) + exp(y)) without overflow."""
    x, y = promote(np.logaddexp, x, y)
    top = maximum(x, y)
    return add(top, log1p(exp(-abs(x - y))), name=name)


__all__ = [
    "abs", "add", "arccos", "arccosh", "arcsin", "arcsinh", "arctan", "arctan2", "arctanh", "ceil", "clip", "conj", "cos",
    "cosh", "digamma", "divide", "equal", "erf", "erfc", "exp", "exp2", "expm1", "floor", "floor_divide", "greater",
    "greater_equal", "imag", "isfinite", "isinf", "isnan", "less", "less_equal", "lgamma", "log", "log10", "log1p", "log2",
    "logaddexp", "logical_and", "logical_not", "logical_or", "logical_xor", "maximum", "minimum", "multiply", "negative",
    "not_equal", "polygamma", "power", "real", "reciprocal", "remainder", "rint", "round", "rsqrt", "sigmoid", "sign", "sin",
    "sinh", "sqrt", "square", "subtract", "tan", "tanh", "where",
]  # fmt: skip
