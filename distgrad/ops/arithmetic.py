"""Elementwise arithmetic: operators, rounding, sign, complex parts, selection. Re-exported by `math`.

Each op is followed by its gradient. For a derivative d the gradient is g * conj(d); conj is free for real dtypes.
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
    elementwise,
    make,
    promote,
    same,
    typed,
    unary,
)
from distgrad.ops.control import identity, zeros_like
from distgrad.ops.guard import guard_all
from distgrad.ops.logic import (
    bitwise_and,
    bitwise_or,
    bitwise_xor,
    equal,
    greater,
    greater_equal,
    invert,
    isfinite,
    isinf,
    isnan,
    less,
    less_equal,
    logical_and,
    logical_not,
    logical_or,
    logical_xor,
    not_equal,
)
from distgrad.registry import Kind, RegisterGradient, View, define, no_gradient
from distgrad.types import BOOL, DType, Shape, Typed, as_int, brief, broadcast_shapes, real_dtype, trainable

Infer = Callable[..., tuple[Shape, DType]]


def real_only(infer: Infer) -> Infer:
    """Wrap a shape rule to reject complex numbers, as NumPy does."""

    def check(x: Typed, *rest: Typed, **attrs: Any) -> tuple[Shape, DType]:
        if x.dtype.kind == "c":
            raise TypeError(
                f"this function is not defined for complex numbers, but got {x.dtype}: "
                f"apply it to real(x), imag(x) or abs(x)"
            )
        return infer(x, *rest, **attrs)

    return check


# -- arithmetic --------------------------------------------------------------------------------------------------

add = binary("Add", np.add, "x + y, elementwise.\n\n>>> add(1.0, 2.0)\narray(3.)", rounded=True)
subtract = binary(
    "Sub", np.subtract, "x - y, elementwise.\n\n>>> subtract(3, 1)\narray(2)", name="subtract", rounded=True
)
multiply = binary(
    "Mul", np.multiply, "x * y, elementwise.\n\n>>> multiply(2.0, 3)\narray(6.)", name="multiply", rounded=True
)
divide = binary(
    "Div", np.true_divide, "x / y, elementwise.\n\n>>> divide(1, 2)\narray(0.5)", name="divide", rounded=True
)
floor_divide = binary(
    "FloorDiv",
    np.floor_divide,
    "The largest integer not above x / y.\n\n>>> floor_divide(-7, 2)\narray(-4)",
    real_only(elementwise),
    name="floor_divide",
)
remainder = binary(
    "Mod",
    np.remainder,
    "The remainder of floor_divide, with the sign of y.\n\n>>> remainder(-7, 2)\narray(1)",
    real_only(elementwise),
    name="remainder",
)
maximum = binary(
    "Maximum",
    np.maximum,
    "The larger of x and y; for ties the gradient goes to x.\n\n>>> maximum(1.0, 2.0)\narray(2.)",
    rounded=True,
)
minimum = binary(
    "Minimum",
    np.minimum,
    "The smaller of x and y; for ties the gradient goes to x.\n\n>>> minimum(1.0, 2.0)\narray(1.)",
    rounded=True,
)
negative = unary("Neg", np.negative, "-x.\n\n>>> negative(1.5)\narray(-1.5)", name="negative", rounded=True)
square = unary("Square", np.square, "x * x.\n\n>>> square(3.0)\narray(9.)", rounded=True)
reciprocal = unary("Reciprocal", np.reciprocal, "1 / x.\n\n>>> reciprocal(4.0)\narray(0.25)", rounded=True)
no_gradient("FloorDiv")


def positive(x: Any, name: str | None = None) -> Any:
    """x itself, like `+x`.

    >>> positive(-1.5)
    array(-1.5)
    """
    return identity(x, name=name)


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
    x, y = op.inputs
    gx = g / conj(y)
    return gx, -gx * conj(x / y)  # not the quotient itself: a derivative with respect to that one must not end here


@RegisterGradient("Mod")
def _mod_grad(op: Operation, g: Tensor) -> Any:
    x, y = op.inputs
    return g, -g * floor_divide(x, y)


@RegisterGradient("Maximum")
def _maximum_grad(op: Operation, g: Tensor) -> Any:
    return _choose(op.inputs[0] >= op.inputs[1], g)


@RegisterGradient("Minimum")
def _minimum_grad(op: Operation, g: Tensor) -> Any:
    return _choose(op.inputs[0] <= op.inputs[1], g)


def _choose(first: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    return where(first, g, 0), where(first, 0, g)


@RegisterGradient("Neg")
def _neg_grad(op: Operation, g: Tensor) -> Any:
    return -g


@RegisterGradient("Square")
def _square_grad(op: Operation, g: Tensor) -> Any:
    return g * (2 * conj(op.inputs[0]))


@RegisterGradient("Reciprocal")
def _reciprocal_grad(op: Operation, g: Tensor) -> Any:
    return -g * square(conj(op.outputs[0]))


# -- closeness ---------------------------------------------------------------------------------------------------


def isclose(
    a: Any, b: Any, rtol: Any = 1e-5, atol: Any = 1e-8, equal_nan: bool = False, name: str | None = None
) -> Tensor:
    """Elementwise |a - b| <= atol + rtol * |b|; equal infinities are close.

    >>> isclose(np.array([1.0, np.inf]), np.array([1.0 + 1e-9, np.inf]))
    array([ True,  True])
    """
    a, b = typed(a), typed(b)
    if b.dtype.kind not in "fc":  # as in NumPy: the smallest integer has no absolute value, booleans have no difference
        b = cast(b, np.result_type(b.dtype, 1.0))
    near = logical_and(abs(subtract(a, b)) <= atol + rtol * abs(b), isfinite(b))
    if equal_nan:
        near = logical_or(near, logical_and(isnan(a), isnan(b)))
    return logical_or(near, equal(a, b), name=name)


# -- rounding and sign -------------------------------------------------------------------------------------------

floor = unary(
    "Floor", np.floor, "The largest integer not above x.\n\n>>> floor(-1.5)\narray(-2.)", real_only(same), rounded=True
)
ceil = unary(
    "Ceil", np.ceil, "The smallest integer not below x.\n\n>>> ceil(-1.5)\narray(-1.)", real_only(same), rounded=True
)
trunc = unary(
    "Trunc",
    np.trunc,
    "The integer part of x: rounded towards zero.\n\n>>> trunc(-1.5)\narray(-1.)",
    real_only(same),
    rounded=True,
)
rint = unary(
    "Rint", np.rint, "The nearest integer, halves to even.\n\n>>> rint([0.5, 1.5])\narray([0., 2.])", rounded=True
)
sign = unary("Sign", np.sign, "-1, 0 or 1; x / |x| for complex numbers.\n\n>>> sign([-2.0, 0.0])\narray([-1.,  0.])")
for _type in ("Floor", "Ceil", "Trunc", "Rint"):
    no_gradient(_type)


def round(a: Any, decimals: int = 0, name: str | None = None) -> Tensor:
    """Round to the given number of decimals, halves to even; integers stay integers.

    >>> round(np.array([0.5, 1.5, 2.6]))
    array([0., 2., 3.])
    >>> round(np.array([14, 16]), -1)
    array([10, 20])
    """
    a, decimals = typed(a), as_int("round", "decimals", decimals)
    if not -300 <= decimals <= 300:
        raise ValueError(f"round: decimals must be between -300 and 300, got {brief(decimals)}")
    if a.dtype.kind in "iu":
        if decimals < -19:
            return zeros_like(a, name=name)  # more digits than any integer has
        if decimals >= 0:
            return identity(a, name=name)  # type: ignore[no-any-return]
        return cast(multiply(rint(divide(a, 10**-decimals)), 10**-decimals), a.dtype, name=name)
    if decimals == 0:
        return rint(a, name=name)
    if decimals < 0:
        return multiply(rint(divide(a, 10.0**-decimals)), 10.0**-decimals, name=name)
    return divide(rint(multiply(a, 10.0**decimals)), 10.0**decimals, name=name)


@RegisterGradient("Sign")
def _sign_grad(op: Operation, g: Tensor) -> Any:
    (x,), (s,) = op.inputs, op.outputs
    if x.dtype.kind != "c":
        return zeros_like(x)
    size = abs(x)  # only the part of g perpendicular to x counts
    zero = equal(size, 0)
    return where(zero, 0, (g - square(s) * conj(g)) / where(zero, 1, 2 * size))


def _real_infer(x: Typed) -> tuple[Shape, DType]:
    return x.shape, real_dtype(x.dtype)


abs = unary(
    "Abs",
    np.absolute,
    "The absolute value; its gradient at 0 is 0.\n\n>>> abs([-2.0, 3.0])\narray([2., 3.])",
    _real_infer,
    rounded=True,
)


@RegisterGradient("Abs")
def _abs_grad(op: Operation, g: Tensor) -> Any:
    (x,) = op.inputs
    return cast(g, x.dtype) * sign(x)


def fabs(x: Any, name: str | None = None) -> Tensor:
    """The absolute value as a floating-point number.

    >>> fabs(np.array([-2]))
    array([2.])
    """
    return abs(*promote(np.fabs, x), name=name)


# -- complex parts -----------------------------------------------------------------------------------------------

_real = define("Real", _real_infer, kind=Kind.ELEMENTWISE, view=View.STRIDED)
_imag = define("Imag", _real_infer, kind=Kind.ELEMENTWISE, view=View.STRIDED)
_conj = define("Conj", same, kind=Kind.ELEMENTWISE, rounded=True)


def real(val: Any, name: str | None = None) -> Tensor:
    """The real part; a real tensor is returned unchanged.

    >>> real(3 + 4j)
    array(3.)
    """
    val = typed(val)
    return make(_real, (val,), NO_ATTRS, name) if val.dtype.kind == "c" else val


def imag(val: Any, name: str | None = None) -> Tensor:
    """The imaginary part; zeros for a real tensor.

    >>> imag(3 + 4j)
    array(4.)
    """
    val = typed(val)
    return make(_imag, (val,), NO_ATTRS, name) if val.dtype.kind == "c" else zeros_like(val, name=name)


def conj(x: Any, name: str | None = None) -> Tensor:
    """The complex conjugate; a real x is returned unchanged, so conj in gradient rules is free for real dtypes.

    >>> conj(3 + 4j)
    array(3.-4.j)
    """
    x = typed(x)
    return make(_conj, (x,), NO_ATTRS, name) if x.dtype.kind == "c" else x


@RegisterGradient("Real")
def _real_grad(op: Operation, g: Tensor) -> Any:
    return cast(g, op.inputs[0].dtype)


@RegisterGradient("Imag")
def _imag_grad(op: Operation, g: Tensor) -> Any:
    return cast(g, op.inputs[0].dtype) * 1j


@RegisterGradient("Conj")
def _conj_grad(op: Operation, g: Tensor) -> Any:
    return conj(g)


# -- selection ---------------------------------------------------------------------------------------------------


def _select_infer(condition: Typed, x: Typed, y: Typed) -> tuple[Shape, DType]:
    return broadcast_shapes(broadcast_shapes(condition.shape, x.shape), y.shape), x.dtype


_select = define("Select", _select_infer, broadcasting=True, kind=Kind.ELEMENTWISE, rounded=True)


def where(condition: Any, x: Any = None, y: Any = None, name: str | None = None) -> Tensor:
    """x where the condition is true, y elsewhere. Both are computed: a NaN in the other one can reach gradients.

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


def clip(
    a: Any, a_min: Any = None, a_max: Any = None, name: str | None = None, *, min: Any = None, max: Any = None
) -> Tensor:
    """Limit a to [a_min, a_max]; either bound may be None.

    >>> clip(np.array([-2.0, 0.5, 2.0]), 0, 1)
    array([0. , 0.5, 1. ])
    """
    low, high = (a_min if min is None else min), (a_max if max is None else max)
    if low is not None:
        a = maximum(a, low, name=name if high is None else None)
    return typed(a) if high is None else minimum(a, high, name=name)


def nan_to_num(x: Any, nan: Any = 0.0, posinf: Any = None, neginf: Any = None, name: str | None = None) -> Tensor:
    """Replace NaN, inf and -inf: by zero and the largest finite numbers, unless given.

    >>> nan_to_num(np.array([1.0, np.nan, np.inf]), posinf=9.0)
    array([1., 0., 9.])
    """
    x = typed(x)
    if x.dtype.kind == "c":
        parts = [nan_to_num(part, nan, posinf, neginf) for part in (real(x), imag(x))]
        return add(parts[0], parts[1] * 1j, name=name)
    if not trainable(x.dtype):
        return identity(x, name=name)  # type: ignore[no-any-return]
    largest = float(np.nextafter(np.array(math.inf, x.dtype), np.array(0, x.dtype)))  # np.finfo has no bfloat16
    x = where(isnan(x), nan, x)
    x = where(equal(x, math.inf), largest if posinf is None else posinf, x)
    return where(equal(x, -math.inf), -largest if neginf is None else neginf, x, name=name)


# NumPy's aliases
absolute, conjugate, fix, mod, true_divide, bitwise_invert, bitwise_not = (
    abs, conj, trunc, remainder, divide, invert, invert,
)  # fmt: skip

__all__ = [
    "abs", "absolute", "add", "bitwise_and", "bitwise_invert", "bitwise_not", "bitwise_or", "bitwise_xor", "ceil",
    "clip", "conj", "conjugate", "divide", "equal", "fabs", "fix", "floor", "floor_divide", "greater", "greater_equal",
    "imag", "invert", "isclose", "isfinite", "isinf", "isnan", "less", "less_equal", "logical_and", "logical_not",
    "logical_or", "logical_xor", "maximum", "minimum", "mod", "multiply", "nan_to_num", "negative", "not_equal",
    "positive", "real", "reciprocal", "remainder", "rint", "round", "sign", "square", "subtract", "true_divide",
    "trunc", "where",
]  # fmt: skip
guard_all(globals(), __all__)
