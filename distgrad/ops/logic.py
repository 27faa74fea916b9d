"""Comparisons, logical and bitwise functions: elementwise, without gradients."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from distgrad.graph import Tensor
from distgrad.ops.builder import binary, comparison, elementwise, same, typed, unary
from distgrad.ops.guard import guard_all
from distgrad.registry import no_gradient
from distgrad.types import BOOL, DType, Shape, Typed

Infer = Callable[..., tuple[Shape, DType]]


def _comparing(op_type: str, ufunc: np.ufunc, doc: str) -> Callable[..., Tensor]:
    """Define a comparison. Unlike arithmetic it accepts Python ints out of range of the other dtype."""
    build = binary(op_type, ufunc, doc, comparison, name=ufunc.__name__, rounded=True)

    def compare(x: Any, y: Any, name: str | None = None) -> Tensor:
        return build(_comparable(x, y), _comparable(y, x), name=name)

    compare.__name__ = compare.__qualname__ = ufunc.__name__
    compare.__doc__ = doc
    return compare


def _comparable(x: Any, other: Any) -> Any:
    if type(x) is not int or type(other) in (bool, int, float, complex) or typed(other).dtype.kind not in "iu":
        return x
    limits = np.iinfo(typed(other).dtype)
    return x if limits.min <= x <= limits.max else math.copysign(math.inf, x)


equal = _comparing("Equal", np.equal, "x == y, elementwise.\n\n>>> equal([1, 2], 2)\narray([False,  True])")
not_equal = _comparing("NotEqual", np.not_equal, "x != y, elementwise.\n\n>>> not_equal(1, 2)\narray(True)")
less = _comparing("Less", np.less, "x < y, elementwise.\n\n>>> less([1, 2], 2)\narray([ True, False])")
less_equal = _comparing("LessEqual", np.less_equal, "x <= y, elementwise.\n\n>>> less_equal(2, 2)\narray(True)")
greater = _comparing("Greater", np.greater, "x > y, elementwise.\n\n>>> greater([1, 2], 1)\narray([False,  True])")
greater_equal = _comparing(
    "GreaterEqual", np.greater_equal, "x >= y, elementwise.\n\n>>> greater_equal([1, 2], 2)\narray([False,  True])"
)
logical_and = binary(
    "LogicalAnd",
    np.logical_and,
    "Logical AND, elementwise.\n\n>>> logical_and(1, 0)\narray(False)",
    comparison,
    name="logical_and",
    rounded=True,
)
logical_or = binary(
    "LogicalOr",
    np.logical_or,
    "Logical OR, elementwise.\n\n>>> logical_or(1, 0)\narray(True)",
    comparison,
    name="logical_or",
    rounded=True,
)
logical_xor = binary(
    "LogicalXor",
    np.logical_xor,
    "Logical XOR, elementwise.\n\n>>> logical_xor(1, 0)\narray(True)",
    comparison,
    name="logical_xor",
    rounded=True,
)


def _boolean(x: Typed) -> tuple[Shape, DType]:
    return x.shape, BOOL


logical_not = unary(
    "LogicalNot",
    np.logical_not,
    "Logical NOT, elementwise.\n\n>>> logical_not([0])\narray([ True])",
    _boolean,
    name="logical_not",
    rounded=True,
)
isnan = unary("IsNan", np.isnan, "True where x is NaN.\n\n>>> isnan(np.nan)\narray(True)", _boolean, rounded=True)
isinf = unary("IsInf", np.isinf, "True where x is infinite.\n\n>>> isinf(-np.inf)\narray(True)", _boolean, rounded=True)
isfinite = unary(
    "IsFinite",
    np.isfinite,
    "True where x is neither infinite nor NaN.\n\n>>> isfinite(np.inf)\narray(False)",
    _boolean,
    rounded=True,
)


def _integral(infer: Infer) -> Infer:
    def check(x: Typed, *rest: Typed) -> tuple[Shape, DType]:
        if x.dtype.kind not in "biu":
            raise TypeError(f"bitwise functions take integers and booleans, not {x.dtype}: cast or compare first")
        return infer(x, *rest)

    return check


bitwise_and = binary(
    "BitwiseAnd",
    np.bitwise_and,
    "x & y, bitwise.\n\n>>> bitwise_and(6, 3)\narray(2)",
    _integral(elementwise),
    name="bitwise_and",
    rounded=True,
)
bitwise_or = binary(
    "BitwiseOr",
    np.bitwise_or,
    "x | y, bitwise.\n\n>>> bitwise_or(6, 3)\narray(7)",
    _integral(elementwise),
    name="bitwise_or",
    rounded=True,
)
bitwise_xor = binary(
    "BitwiseXor",
    np.bitwise_xor,
    "x ^ y, bitwise.\n\n>>> bitwise_xor(6, 3)\narray(5)",
    _integral(elementwise),
    name="bitwise_xor",
    rounded=True,
)
invert = unary(
    "Invert",
    np.invert,
    "~x, bitwise; logical NOT for booleans.\n\n>>> invert(6)\narray(-7)",
    _integral(same),
    rounded=True,
)

for _type in (
    "Equal", "NotEqual", "Less", "LessEqual", "Greater", "GreaterEqual", "LogicalAnd", "LogicalOr", "LogicalXor",
    "LogicalNot", "IsNan", "IsInf", "IsFinite", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Invert",
):  # fmt: skip
    no_gradient(_type)


__all__ = [
    "bitwise_and", "bitwise_or", "bitwise_xor", "equal", "greater", "greater_equal", "invert", "isfinite", "isinf",
    "isnan", "less", "less_equal", "logical_and", "logical_not", "logical_or", "logical_xor", "not_equal",
]  # fmt: skip
guard_all(globals(), __all__)
