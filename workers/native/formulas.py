"""The formula of a group: what a fused step computes, as a graph of small operations on elements and rows.

A node has a value for each element of a row (it is `full`), or one for each row. Ops along rows are taken apart into
reductions and elementwise operations, so a softmax or a layer norm needs no code of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from distgrad.registry import Kind, kind_of
from distgrad.scheduler.program import Step
from distgrad.types import DType, Spec
from distgrad.workers.native.rules import FLOATS, NUMBERS, RULES, Unsupported

INDEX = np.dtype(np.int64)


class Node:
    """A value of the formula. `type` is an op type of `RULES`, a reduction over the row, or "Load", "Const", "Iota"."""

    __slots__ = ("args", "attrs", "cost", "dtype", "full", "phase", "type")

    def __init__(self, type: str, args: tuple[Node, ...], attrs: Mapping[str, Any], dtype: DType, full: bool):
        self.type, self.args, self.attrs, self.dtype, self.full = type, args, attrs, dtype, full
        #: The loop over the row that computes it, or, of a value per row, the loop before which it is known.
        self.phase: int = max([x.phase for x in args], default=0) + (type in REDUCTIONS)
        #: Operations to compute it again from what is in memory.
        cost = 1 + sum([x.cost for x in args if x.full]) + (EXPENSIVE if type in _SLOW else 0)
        self.cost: int = min(cost, EXPENSIVE)

    def _with(self, type: str, other: Any, swapped: bool = False) -> Node:
        node = other if isinstance(other, Node) else number(other, self.dtype)
        return apply(type, (node, self) if swapped else (self, node))

    def __add__(self, other: Any) -> Node:
        return self._with("Add", other)

    def __sub__(self, other: Any) -> Node:
        return self._with("Sub", other)

    def __mul__(self, other: Any) -> Node:
        return self._with("Mul", other)

    def __truediv__(self, other: Any) -> Node:
        return self._with("Div", other)

    def __rtruediv__(self, other: Any) -> Node:
        return self._with("Div", other, swapped=True)


#: Reductions over a row, by how two partial results become one.
REDUCTIONS = {"Sum": "Add", "Max": "Maximum", "Min": "Minimum"}
#: Cost of a mathematical function; up to the second figure a value is computed again rather than kept for a later loop.
EXPENSIVE, CHEAP = 100, 8
_SLOW = frozenset(type for type, rule in RULES.items() if rule.slow)


def number(value: Any, dtype: DType) -> Node:
    return Node("Const", (), {"value": np.array(value, dtype)}, dtype, False)


def apply(
    type: str, args: tuple[Node, ...], attrs: Mapping[str, Any] | None = None, dtype: DType | None = None
) -> Node:
    """An elementwise op. Its dtype is that of its first argument if none is given."""
    rule = RULES.get(type)
    made = args[0].dtype if dtype is None else dtype
    if rule is None or not rule.takes([x.dtype for x in args], made):
        raise Unsupported(f"{type} of {', '.join([str(x.dtype) for x in args])}")
    return Node(type, args, attrs or {}, made, any(x.full for x in args))


def reduce(type: str, x: Node) -> Node:
    if not x.full or x.dtype.char not in NUMBERS:
        raise Unsupported(f"{type} of {x.dtype}, or of one value per row")
    return Node(type, (x,), {}, x.dtype, False)


# -- ops along rows --------------------------------------------------------------------------------------------------


def _exp(x: Node) -> Node:
    return apply("Exp", (x,))


def _sum(x: Node) -> Node:
    return reduce("Sum", x)


def _mean(x: Node, n: int) -> Node:
    return _sum(x) / n


def _shifted(x: Node) -> Node:
    return x - reduce("Max", x)


def _softmax(n: int, x: Node, **_: Any) -> Node:
    y = _exp(_shifted(x))
    return y / _sum(y)


def _softmax_grad(n: int, g: Node, y: Node, **_: Any) -> Node:
    return (g - _sum(g * y)) * y


def _log_softmax(n: int, x: Node, **_: Any) -> Node:
    shifted = _shifted(x)
    return shifted - apply("Log", (_sum(_exp(shifted)),))


def _sparse_loss(n: int, logits: Node, labels: Node) -> Node:
    shifted = _shifted(logits)
    there = apply("Select", (_is_label(labels), shifted, number(0, logits.dtype)), dtype=logits.dtype)
    return apply("Log", (_sum(_exp(shifted)),)) - _sum(there)


def _sparse_loss_grad(n: int, g: Node, logits: Node, labels: Node) -> Node:
    y = _exp(_shifted(logits))
    slope = y * (g / _sum(y))
    return apply("Select", (_is_label(labels), slope - g, slope), dtype=logits.dtype)


def _is_label(labels: Node) -> Node:
    iota = Node("Iota", (), {}, INDEX, True)
    return apply("Equal", (iota, apply("Cast", (labels,), {"dtype": INDEX}, INDEX)), dtype=np.dtype(bool))


def _centred(n: int, x: Node, eps: float) -> tuple[Node, Node]:
    """x minus its mean, and 1 / sqrt(var + eps)."""
    centred = x - _mean(x, n)
    return centred, 1 / apply("Sqrt", (_mean(centred * centred, n) + eps,))


def _layer_norm(n: int, x: Node, *, axis: Any, eps: float) -> Node:
    centred, r = _centred(n, x, eps)
    return centred * r


def _layer_norm_scale(n: int, x: Node, *, axis: Any, eps: float) -> Node:
    return _centred(n, x, eps)[1]


def _layer_norm_grad(n: int, g: Node, x: Node, *, axis: Any, eps: float) -> Node:
    centred, r = _centred(n, x, eps)
    y = centred * r
    return (g - (y * _mean(g * y, n) + _mean(g, n))) * r


#: By op type: a function of the length of a row, the inputs and the attributes.
ROWS: dict[str, Callable[..., Node]] = {
    "Softmax": _softmax,
    "SoftmaxGrad": _softmax_grad,
    "LogSoftmax": _log_softmax,
    "SparseSoftmaxCrossEntropyWithLogits": _sparse_loss,
    "SparseSoftmaxCrossEntropyWithLogitsGrad": _sparse_loss_grad,
    "LayerNorm": _layer_norm,
    "LayerNormScale": _layer_norm_scale,
    "LayerNormGrad": _layer_norm_grad,
}


def row_op(type: str, n: int, args: tuple[Node, ...], attrs: Mapping[str, Any]) -> Node:
    """An op along rows of n elements, or a reduction of them."""
    if type == "Mean":
        return _mean(args[0], n)
    if type in REDUCTIONS:
        return reduce(type, args[0])
    rule = ROWS.get(type)
    if rule is None or any(x.dtype.char not in "fd" for x in args if x.full):
        raise Unsupported(type)
    return rule(n, *args, **attrs)


def has_rule(step: Step, types: Sequence[Spec]) -> bool:
    """Whether native code can compute a step as part of a group."""
    kind, (v,) = kind_of(step.type), step.outputs
    dtypes = [types[u].dtype for u in step.inputs]
    if kind is Kind.ELEMENTWISE:
        return bool(dtypes) and step.type in RULES and RULES[step.type].takes(dtypes, types[v].dtype)
    if kind is Kind.REDUCTION:
        known = step.type in REDUCTIONS or step.type == "Mean"
        return known and dtypes == [types[v].dtype] and dtypes[0].char in NUMBERS
    return step.type in ROWS and types[v].dtype.char in FLOATS


def identity(type: str, dtype: DType) -> Any:
    """What a partial result begins with: -0.0 leaves every float as it is, 0.0 would change the sign of a zero."""
    if type == "Sum":
        return -0.0 if dtype.kind == "f" else 0
    if dtype.kind == "f":
        return -math.inf if type == "Max" else math.inf
    bounds = np.iinfo(dtype)
    return bounds.min if type == "Max" else bounds.max
