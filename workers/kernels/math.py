"""Kernels of distgrad/ops/math.py and distgrad/ops/arithmetic.py."""

from __future__ import annotations

from typing import Any

import numpy as np

from distgrad.workers.backends import extras
from distgrad.workers.kernels.table import KERNELS, kernel

_ONE = np.array(1, np.float32)

#: Op type -> name of the function in the array namespace.
NAMED = {
    "Add": "add", "Sub": "subtract", "Mul": "multiply", "Div": "divide", "FloorDiv": "floor_divide", "Mod": "remainder",
    "Maximum": "maximum", "Minimum": "minimum", "Atan2": "atan2", "Pow": "pow", "Neg": "negative", "Square": "square",
    "Reciprocal": "reciprocal", "Equal": "equal", "NotEqual": "not_equal", "Less": "less", "LessEqual": "less_equal",
    "Greater": "greater", "GreaterEqual": "greater_equal", "LogicalAnd": "logical_and", "LogicalOr": "logical_or",
    "LogicalXor": "logical_xor", "LogicalNot": "logical_not", "IsNan": "isnan", "IsInf": "isinf",
    "IsFinite": "isfinite", "BitwiseAnd": "bitwise_and", "BitwiseOr": "bitwise_or", "BitwiseXor": "bitwise_xor",
    "Invert": "bitwise_invert", "Exp": "exp", "Exp2": "exp2", "Expm1": "expm1", "Log": "log", "Log2": "log2",
    "Log10": "log10", "LogAddExp": "logaddexp", "Hypot": "hypot", "Sqrt": "sqrt", "Cbrt": "cbrt",
    "Sin": "sin", "Cos": "cos", "Tan": "tan", "Asin": "asin", "Acos": "acos", "Atan": "atan", "Sinh": "sinh",
    "Cosh": "cosh", "Tanh": "tanh", "Asinh": "asinh", "Acosh": "acosh", "Atanh": "atanh", "Floor": "floor",
    "Ceil": "ceil", "Trunc": "trunc", "Rint": "round", "Sign": "sign", "Abs": "abs", "Real": "real", "Imag": "imag",
    "Conj": "conj", "Select": "where", "Fmax": "fmax", "Fmin": "fmin", "LogAddExp2": "logaddexp2", "SignBit": "signbit",
}  # fmt: skip


def _named(name: str) -> Any:
    def run(xp: Any, *inputs: Any) -> Any:
        return (getattr(np, name) if xp is np else extras(xp).function(name))(*inputs)

    return run


for _type, _name in NAMED.items():
    KERNELS[_type] = _named(_name)


@kernel("Cast")
def cast(xp: Any, x: Any, *, dtype: Any) -> Any:
    return extras(xp).cast(x, dtype)


@kernel("Rsqrt")
def rsqrt(xp: Any, x: Any) -> Any:
    return 1 / xp.sqrt(x)


@kernel("Log1p")
def log1p(xp: Any, x: Any) -> Any:
    if xp is not np or x.dtype != np.float32:
        return np.log1p(x) if xp is np else extras(xp).function("log1p")(x)
    return log1p_single(x, np.empty_like(x), np.empty_like(x))


def log1p_single(x: Any, out: Any, rest: Any) -> Any:
    """log1p of float32 into `out`, which may be x; `rest` is scratch. Within 4 units in the last place.

    NumPy's own is computed element by element on processors without AVX-512, its log is not on any. What rounding 1 + x
    loses is added to the logarithm; at -1 and at inf that is NaN, which fmax takes out.
    """
    grown = rest if np.may_share_memory(x, out) else out
    np.add(x, _ONE, grown)
    np.subtract(grown, _ONE, rest)
    np.subtract(x, rest, rest)
    if grown is rest:
        np.add(x, _ONE, out)
    np.divide(rest, out, rest)
    if not np.maximum.reduce(rest, axis=None, initial=-1) < 1:  # as fast as a sum; fmax takes five times as long
        np.fmax(rest, -_ONE, rest)
    np.log(out, out)
    return np.add(out, rest, out)


@kernel("Sigmoid")
def sigmoid(xp: Any, x: Any) -> Any:
    if extras(xp).kind(x.dtype) == "c":
        return 0.5 * xp.tanh(0.5 * x) + 0.5
    z = xp.exp(-xp.abs(x))  # never overflows, and keeps the precision of small results, unlike tanh
    return xp.where(x < 0, z, 1) / (1 + z)


def _special(name: str) -> Any:
    def run(xp: Any, x: Any) -> Any:
        return extras(xp).special(name, x)

    return run


for _type, _name in {"Erf": "erf", "Erfc": "erfc", "Lgamma": "gammaln", "Digamma": "digamma"}.items():
    KERNELS[_type] = _special(_name)


@kernel("Polygamma")
def polygamma(xp: Any, x: Any, *, n: int) -> Any:
    return extras(xp).special("polygamma", x, n)
