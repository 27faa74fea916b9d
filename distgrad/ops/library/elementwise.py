"""Elementwise functions beside those of `math`: extremes that ignore NaN, signs, steps, and kinds of numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from distgrad.graph import Operation, Tensor
from distgrad.ops.arithmetic import (
    abs,
    equal,
    imag,
    isinf,
    isnan,
    logical_or,
    multiply,
    negative,
    not_equal,
    real_only,
    remainder,
    trunc,
    where,
)
from distgrad.ops.builder import as_dtype, binary, common, elementwise, loop_dtype, promote, typed, unary
from distgrad.ops.control import identity
from distgrad.ops.guard import guard_all
from distgrad.ops.math import exp2, power
from distgrad.registry import RegisterGradient, no_gradient
from distgrad.types import BOOL, DType, Shape, Typed, brief

# -- extremes ----------------------------------------------------------------------------------------------------

fmax = binary(
    "Fmax",
    np.fmax,
    "The larger of x and y, or the one that is not NaN; for ties the gradient goes to x.\n\n"
    ">>> fmax(np.nan, 2.0)\narray(2.)",
)
fmin = binary(
    "Fmin",
    np.fmin,
    "The smaller of x and y, or the one that is not NaN; for ties the gradient goes to x.\n\n"
    ">>> fmin(np.nan, 2.0)\narray(2.)",
)
logaddexp2 = binary(
    "LogAddExp2",
    np.logaddexp2,
    "log2(2**x + 2**y) without overflow.\n\n>>> logaddexp2(0.0, 0.0)\narray(1.)",
    real_only(elementwise),
)


@RegisterGradient("Fmax")
def _fmax_grad(op: Operation, g: Tensor) -> Any:
    x, y = op.inputs
    return _choose(logical_or(x >= y, isnan(y)), g)


@RegisterGradient("Fmin")
def _fmin_grad(op: Operation, g: Tensor) -> Any:
    x, y = op.inputs
    return _choose(logical_or(x <= y, isnan(y)), g)


def _choose(first: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    return where(first, g, 0), where(first, 0, g)


@RegisterGradient("LogAddExp2")
def _logaddexp2_grad(op: Operation, g: Tensor) -> Any:
    (x, y), (z,) = op.inputs, op.outputs
    z = where(equal(z, -math.inf), 0, z)  # both are -inf: zero gradients, not NaN
    return g * exp2(x - z), g * exp2(y - z)


# -- signs and steps ---------------------------------------------------------------------------------------------


def _boolean(x: Typed) -> tuple[Shape, DType]:
    return x.shape, BOOL


signbit = unary(
    "SignBit",
    np.signbit,
    "True where the sign bit is set: for negative numbers, and -0.0.\n\n>>> signbit([-0.0, 0.0])\n"
    "array([ True, False])",
    real_only(_boolean),
    rounded=True,
)
no_gradient("SignBit")


def copysign(x1: Any, x2: Any, name: str | None = None) -> Tensor:
    """The absolute value of x1 with the sign of x2.

    >>> copysign(2.0, -0.0)
    array(-2.)
    """
    x1, x2 = promote(np.copysign, x1, x2)
    size = abs(x1)
    return where(signbit(x2), negative(size), size, name=name)


def heaviside(x1: Any, x2: Any, name: str | None = None) -> Tensor:
    """The step function: 0 where x1 is negative, x2 where it is zero, 1 where it is positive.

    >>> heaviside(np.array([-1.0, 0.0, 2.0]), 0.5)
    array([0. , 0.5, 1. ])
    """
    x1, x2 = promote(np.heaviside, x1, x2)
    step = where(isnan(x1), math.nan, as_dtype(x1 > 0, x1.dtype))
    return where(equal(x1, 0), x2, step, name=name)


def fmod(x1: Any, x2: Any, name: str | None = None) -> Tensor:
    """The remainder of a division that rounds towards zero, with the sign of x1.

    >>> fmod(np.array([-7.0, 7.0]), 4.0)
    array([-3.,  3.])
    """
    x1, x2 = promote(np.fmod, x1, x2)
    if x1.dtype.kind == "u":
        return remainder(x1, x2, name=name)
    size = remainder(abs(x1), abs(x2))
    negatives = signbit(x1) if x1.dtype.kind == "f" else x1 < 0
    return where(negatives, negative(size), size, name=name)


def modf(x: Any, name: str | None = None) -> tuple[Tensor, Tensor]:
    """The fractional and the integer part of x, both with the sign of x.

    >>> modf(-1.25)
    (array(-0.25), array(-1.))
    """
    (x,) = promote(np.cbrt, x)
    finite = where(isinf(x), 0, x)
    return copysign(finite - trunc(finite), x, name=name), trunc(x)


def ldexp(x1: Any, x2: Any, name: str | None = None) -> Tensor:
    """x1 * 2**x2, for integers x2.

    >>> ldexp(0.75, 3)
    array(6.)
    """
    x2 = typed(x2)
    if x2.dtype.kind not in "biu":
        raise TypeError(f"ldexp: x2 must be integers, got dtype {x2.dtype}")
    weak: Any = type(x1) if type(x1) in (int, float) else typed(x1).dtype
    x1 = as_dtype(x1, loop_dtype(np.ldexp, weak, x2.dtype))
    return multiply(x1, exp2(as_dtype(x2, x1.dtype)), name=name)


def float_power(x1: Any, x2: Any, name: str | None = None) -> Tensor:
    """x1 to the power x2, in double precision.

    >>> float_power(2, -1)
    array(0.5)
    """
    x1, x2 = promote(np.float_power, x1, x2)
    return power(x1, x2, name=name)


# -- kinds of numbers --------------------------------------------------------------------------------------------


def iscomplex(x: Any, name: str | None = None) -> Tensor:
    """True where the imaginary part is not zero.

    >>> iscomplex(np.array([1 + 1j, 1 + 0j]))
    array([ True, False])
    """
    return not_equal(imag(x), 0, name=name)


def isreal(x: Any, name: str | None = None) -> Tensor:
    """True where the imaginary part is zero.

    >>> isreal(np.array([1 + 1j, 1 + 0j]))
    array([False,  True])
    """
    return equal(imag(x), 0, name=name)


def isposinf(x: Any, name: str | None = None) -> Tensor:
    """True where x is positive infinity.

    >>> isposinf(np.array([-np.inf, np.inf]))
    array([False,  True])
    """
    return equal(_ordered("isposinf", x), math.inf, name=name)


def isneginf(x: Any, name: str | None = None) -> Tensor:
    """True where x is negative infinity.

    >>> isneginf(np.array([-np.inf, np.inf]))
    array([ True, False])
    """
    return equal(_ordered("isneginf", x), -math.inf, name=name)


def _ordered(what: str, x: Any) -> Any:
    x = typed(x)
    if x.dtype.kind == "c":
        raise TypeError(f"{what}: complex numbers have no sign, got {x.dtype}")
    return x


# -- selection ---------------------------------------------------------------------------------------------------


def select(condlist: Sequence[Any], choicelist: Sequence[Any], default: Any = 0, name: str | None = None) -> Tensor:
    """For each element the choice of the first condition that is true, or the default.

    >>> x = np.array([-2.0, 0.5, 3.0])
    >>> select([x < 0, x > 1], [-x, x**2], 1.0)
    array([2., 1., 9.])
    """
    if len(condlist) != len(choicelist) or not len(condlist):
        raise ValueError(
            f"select: there must be one choice per condition, and at least one; "
            f"got {len(condlist)} conditions and {len(choicelist)} choices"
        )
    conditions = [typed(condition) for condition in condlist]
    for condition in conditions:
        if condition.dtype != BOOL:
            raise TypeError(f"select: conditions must be booleans, got dtype {condition.dtype}: compare first")
    *choices, made = common(*choicelist, default)
    for condition, choice in zip(reversed(conditions), reversed(choices), strict=True):
        made = where(condition, choice, made)
    chosen: Tensor = identity(made, name=name) if name is not None else made
    return chosen


def piecewise(x: Any, condlist: Sequence[Any], funclist: Sequence[Any], *args: Any, **kw: Any) -> Tensor:
    """For each element the function, or number, of the last true condition; one function more is for the others.

    Every function is called with all of x: there is no subset of static shape.

    >>> piecewise(np.array([-2.0, 3.0]), [np.array([True, False])], [lambda x: -x, 1.0])
    array([2., 1.])
    """
    x = typed(x)
    conditions = [as_dtype(typed(c), BOOL) for c in (condlist if isinstance(condlist, list | tuple) else [condlist])]
    if len(funclist) - len(conditions) not in (0, 1):
        raise ValueError(
            f"piecewise: {brief(len(conditions))} conditions take as many functions, or one more; got {len(funclist)}"
        )
    values = [f(x, *args, **kw) if callable(f) else f for f in funclist]
    made = values.pop() if len(values) > len(conditions) else 0
    made = _like(made, x)
    for condition, value in zip(conditions, values, strict=True):
        made = where(condition, _like(value, x), made)
    return made


def _like(value: Any, x: Any) -> Any:
    """A value in the dtype of x, as NumPy assigns it."""
    return as_dtype(value if isinstance(value, Tensor) else np.asarray(value), x.dtype)


__all__ = [
    "copysign", "float_power", "fmax", "fmin", "fmod", "heaviside", "iscomplex", "isneginf", "isposinf", "isreal",
    "ldexp", "logaddexp2", "modf", "piecewise", "select", "signbit",
]  # fmt: skip
guard_all(globals(), __all__)
