"""What native code can compute of single elements: a rule per op type.

A new elementwise op runs natively with one line here: a formula of its inputs. Ops without a rule run as NumPy calls.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce as folded
from typing import Any

import numpy as np

from distgrad.types import DType
from distgrad.workers.kernels.nn import GELU_CUBIC, GELU_LINEAR, NORMAL_PEAK, SQRT_HALF
from distgrad.workers.native.functions import FUNCTIONS
from distgrad.workers.native.values import BOOL, Value, select


class Unsupported(Exception):
    """Native code has no rule for this."""


FLOATS = frozenset("fd")
NUMBERS = FLOATS | frozenset("bhilqBHILQ")
ALL = NUMBERS | {"?"}
LOG2_E = 1 / math.log(2)


@dataclass(frozen=True, slots=True)
class Rule:
    """How an op is computed: a formula of its inputs and attributes, and for which dtypes it stands."""

    build: Callable[..., Value]
    #: Characters of the dtypes of the inputs.
    dtypes: frozenset[str] = FLOATS
    #: Whether inputs may have different dtypes.
    mixed: bool = False
    #: Whether it takes as long as a mathematical function.
    slow: bool = False

    def takes(self, inputs: Sequence[DType], made: DType) -> bool:
        if made.char not in ALL or any(d.char not in self.dtypes for d in inputs):
            return False
        return self.mixed or len(set(inputs)) <= 1


RULES: dict[str, Rule] = {}


def _rule(type: str, build: Callable[..., Value], dtypes: frozenset[str] = FLOATS, mixed: bool = False) -> None:
    RULES[type] = Rule(build, dtypes, mixed)


# -- arithmetic ------------------------------------------------------------------------------------------------------

_rule("Add", lambda x, y: x + y, NUMBERS)
_rule("Sub", lambda x, y: x - y, NUMBERS)
_rule("Mul", lambda x, y: x * y, NUMBERS)
_rule("Div", lambda x, y: x / y)
_rule("Neg", lambda x: -x, NUMBERS)
_rule("Square", lambda x: x * x, NUMBERS)
_rule("Reciprocal", lambda x: 1 / x)
_rule("Sqrt", lambda x: x.sqrt())
_rule("Rsqrt", lambda x: 1 / x.sqrt())
_rule("Abs", abs, NUMBERS)
_rule("Floor", lambda x: x.floor())
_rule("Ceil", lambda x: x.ceil())
_rule("Trunc", lambda x: x.trunc())
_rule("Rint", lambda x: x.rint())
_rule("AddN", lambda *xs: folded(lambda x, y: x + y, xs), NUMBERS)


def maximum(x: Value, y: Value) -> Value:
    """NaN where one of them is; the first of two that are equal."""
    bigger = y > x
    return select(bigger | y.is_nan() if y.is_float else bigger, y, x)


def minimum(x: Value, y: Value) -> Value:
    smaller = y < x
    return select(smaller | y.is_nan() if y.is_float else smaller, y, x)


_rule("Maximum", maximum, NUMBERS)
_rule("Minimum", minimum, NUMBERS)
_rule("Fmax", lambda x, y: select((y > x) | x.is_nan() if y.is_float else y > x, y, x), NUMBERS)
_rule("Fmin", lambda x, y: select((y < x) | x.is_nan() if y.is_float else y < x, y, x), NUMBERS)
_rule("Sign", lambda x: select(x > 0, 1, select(x < 0, x.like(-1), select(x == 0, 0, x) if x.is_float else x.like(0))))

# -- comparing and choosing ------------------------------------------------------------------------------------------

_rule("Equal", lambda x, y: x == y, ALL)
_rule("NotEqual", lambda x, y: x != y, ALL)
_rule("Less", lambda x, y: x < y, NUMBERS)
_rule("LessEqual", lambda x, y: x <= y, NUMBERS)
_rule("Greater", lambda x, y: x > y, NUMBERS)
_rule("GreaterEqual", lambda x, y: x >= y, NUMBERS)
_rule("LogicalAnd", lambda x, y: x & y, frozenset("?"))
_rule("LogicalOr", lambda x, y: x | y, frozenset("?"))
_rule("LogicalXor", lambda x, y: x ^ y, frozenset("?"))
_rule("LogicalNot", lambda x: ~x, frozenset("?"))
_rule("IsNan", lambda x: x.is_nan())
_rule("IsInf", lambda x: abs(x) == np.inf)
_rule("IsFinite", lambda x: abs(x) < np.inf)


class _Select(Rule):
    def takes(self, inputs: Sequence[DType], made: DType) -> bool:
        return inputs[0] == BOOL and inputs[1] == inputs[2] == made and made.char in ALL


RULES["Select"] = _Select(select, ALL)


# -- copies ----------------------------------------------------------------------------------------------------------


def _same(x: Value, **_: Any) -> Value:
    return x


_rule("Identity", _same, ALL)
_rule("StopGradient", _same, ALL)
_rule("PreventGradient", _same, ALL)
_rule("BroadcastTo", _same, ALL)


class _Cast(Rule):
    def takes(self, inputs: Sequence[DType], made: DType) -> bool:
        """Not of floats to integers: what becomes of those that do not fit is the CPU's choice."""
        both = inputs[0].char in ALL and made.char in ALL
        return both and not (inputs[0].kind == "f" and made.kind in "iu")


RULES["Cast"] = _Cast(lambda x, *, dtype: x.cast(np.dtype(dtype)), ALL, True)
_rule("ZerosLike", lambda x, *, dtype: x.like(0, np.dtype(dtype)), ALL)
_rule("OnesLike", lambda x, *, dtype: x.like(1, np.dtype(dtype)), ALL)

# -- mathematical functions ------------------------------------------------------------------------------------------


class _Function(Rule):
    def takes(self, inputs: Sequence[DType], made: DType) -> bool:
        return len(set(inputs)) == 1 and inputs[0] == made and made.char in self.dtypes


def _function(name: str) -> Callable[..., Value]:
    def build(*args: Value) -> Value:
        function = FUNCTIONS.get(name)
        if function is None or not function.offers(args[0].dtype):
            raise Unsupported(f"{name} of {args[0].dtype}")
        return function.build(*args)

    return build


_NAMES = {
    "Exp": "exp", "Exp2": "exp2", "Expm1": "expm1", "Log": "log", "Log1p": "log1p", "Log2": "log2", "Log10": "log10",
    "Tanh": "tanh", "Sigmoid": "sigmoid", "Softplus": "softplus", "Erf": "erf", "Erfc": "erfc", "Sin": "sin",
    "Cos": "cos", "Tan": "tan", "Asin": "arcsin", "Acos": "arccos", "Atan": "arctan", "Sinh": "sinh", "Cosh": "cosh",
    "Asinh": "arcsinh", "Acosh": "arccosh", "Atanh": "arctanh", "Pow": "power", "Atan2": "arctan2",
}  # fmt: skip


def _offered(*names: str) -> frozenset[str]:
    """The dtypes for which all of these functions meet their bounds."""
    return frozenset([char for char in FLOATS if all(n in FUNCTIONS and FUNCTIONS[n].offers(char) for n in names)])


for _type, _name in _NAMES.items():
    if _offered(_name):
        RULES[_type] = _Function(_function(_name), _offered(_name), slow=True)


def _log_add(exp: str, log1p: Callable[[Value], Value], of_two: float) -> Callable[..., Value]:
    """The larger one and what the smaller one adds; equal ones apart, as the difference of infinities is NaN."""

    def build(x: Value, y: Value) -> Value:
        return select(x == y, x + of_two, maximum(x, y) + log1p(_function(exp)(-abs(x - y))))

    return build


def _log2_1p(x: Value) -> Value:
    return _function("log1p")(x) * LOG2_E


_MORE = _offered("exp", "exp2", "log1p")
RULES["LogAddExp"] = _Function(_log_add("exp", _function("log1p"), math.log(2)), _MORE, slow=True)
RULES["LogAddExp2"] = _Function(_log_add("exp2", _log2_1p, 1.0), _MORE, slow=True)


def _gelu(x: Value, *, approximate: bool) -> Value:
    if approximate:
        return x / (_function("exp")((x * x * -GELU_CUBIC - GELU_LINEAR) * x) + 1)
    return x * 0.5 * _function("erfc")(x * -SQRT_HALF)


def _gelu_grad(g: Value, x: Value, *, approximate: bool) -> Value:
    square = x * x
    if not approximate:
        density = _function("exp")(square * -0.5) * NORMAL_PEAK
        return g * (density * x + _function("erfc")(x * -SQRT_HALF) * 0.5)
    u = _function("exp")((square * -GELU_CUBIC - GELU_LINEAR) * x) + 1
    up = 1 / u
    return g * ((1 - up) * (x / u) * (square * (3 * GELU_CUBIC) + GELU_LINEAR) + up)


RULES["Gelu"] = Rule(_gelu, _offered("exp"), slow=True)
RULES["GeluGrad"] = Rule(_gelu_grad, _offered("exp"), slow=True)
RULES["Elu"] = Rule(lambda x, *, alpha: select(x > 0, x, _function("expm1")(x) * alpha), _offered("expm1"), slow=True)
_rule("Relu", lambda x: maximum(x, x.like(0)), NUMBERS)
_rule("ReluGrad", lambda g, y: select(y > 0, g, 0))
_rule("LeakyRelu", lambda x, *, alpha: select(x > 0, x, x * alpha))
_rule("LeakyReluGrad", lambda g, x, *, alpha: select(x > 0, g, g * alpha))
