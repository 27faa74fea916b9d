"""Python's operators as builders, by the names of their methods."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from distgrad.ops import math, numpy_api
from distgrad.ops.matrix import matmul

Method = Callable[..., Any]

BINARY: dict[str, Method] = {
    "add": math.add, "sub": math.subtract, "mul": math.multiply, "truediv": math.divide, "floordiv": math.floor_divide,
    "mod": math.remainder, "divmod": numpy_api.divmod, "pow": math.power, "matmul": matmul.matmul,
    "and": math.bitwise_and, "or": math.bitwise_or, "xor": math.bitwise_xor,
}  # fmt: skip
COMPARISONS: dict[str, Method] = {
    "lt": math.less, "le": math.less_equal, "gt": math.greater, "ge": math.greater_equal, "eq": math.equal,
    "ne": math.not_equal,
}  # fmt: skip
UNARY: dict[str, Method] = {
    "neg": math.negative, "pos": math.positive, "abs": math.abs, "invert": math.invert, "round": math.round,
}  # fmt: skip
