"""Joining: steps of a fused body that one call can compute are one step. Each call is a sweep over a block, and two
threads hand the interpreter's lock to each other after it.

What is joined has the bits that the steps have by themselves, but for sums of products, which are rounded otherwise.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from distgrad.scheduler.program import Step
from distgrad.types import Spec


def joined(step: Step, types: Sequence[Spec]) -> tuple[Step, ...]:
    """The body of a fused step, with fewer steps in it.

    Some mean what no step of a program does: MinusAbs is the negative of Abs, a Sum or Mean of two inputs is that of
    their products, and an AddN subtracts those of its inputs that its attribute `minus` tells.
    """
    readers = Counter([v for inner in step.body for v in set(inner.inputs)])
    body = _Body(types)
    for inner in step.body:
        rule = _RULES.get(inner.type)
        inner = inner if rule is None else rule(body, inner)
        v = inner.outputs[0]
        body.steps[v] = inner
        if readers[v] == 1 and v not in step.outputs:
            body.alone.add(v)
    return tuple(body.steps.values())


class _Body:
    """What is left of a body so far: its steps by what they make, and the values that one step alone reads."""

    def __init__(self, types: Sequence[Spec]):
        self.types = types
        self.steps: dict[int, Step] = {}
        self.alone: set[int] = set()

    def maker(self, v: int, *kinds: str) -> Step | None:
        """The step that makes a value for one reader alone, if it is of one of these types."""
        step = self.steps[v] if v in self.alone else None
        return step if step is not None and step.type in kinds else None

    def is_float(self, v: int) -> bool:
        return self.types[v].dtype.char in "fd"

    def drop(self, v: int) -> None:
        del self.steps[v]


def _minus_abs(body: _Body, step: Step) -> Step:
    (v,) = step.inputs
    inner = body.maker(v, "Abs")
    if inner is None or not body.is_float(v):
        return step
    body.drop(v)
    return replace(step, type="MinusAbs", inputs=inner.inputs)


def _products(body: _Body, step: Step) -> Step:
    """Only where all that the body runs over is summed: then the rows are as long as is good."""
    (v,) = step.inputs
    inner, shape = body.maker(v, "Mul", "Square"), body.types[v].shape
    if inner is None or not body.is_float(v) or len(step.attrs["axis"]) < len(shape):
        return step
    factors = inner.inputs * (3 - len(inner.inputs))
    if any(body.types[u].shape != shape for u in factors):
        return step
    body.drop(v)
    return replace(step, inputs=factors)


def _differences(body: _Body, step: Step) -> Step:
    """The first two of a sum may change places, so a negation can be taken from one of them, but not from both."""
    inputs = list(step.inputs)
    positive = {v: u for v in dict.fromkeys(inputs) if (u := _positive(body, v)) is not None}
    if inputs[0] in positive and len(inputs) > 1 and inputs[1] not in positive:
        inputs[:2] = inputs[1::-1]
    if inputs[0] in positive or not positive:
        return step
    for v in positive:
        _take_negation(body, v)
    minus = tuple([v in positive for v in inputs])
    terms = tuple([positive.get(v, v) for v in inputs])
    if len(terms) == 2:
        return replace(step, type="Sub", inputs=terms)
    return replace(step, inputs=terms, attrs={"minus": minus})


def _positive(body: _Body, v: int) -> int | None:
    """What stands for a value that is negated, or is the product of something that is."""
    inner = body.maker(v, "Neg")
    if inner is not None:
        return inner.inputs[0]
    product = body.maker(v, "Mul")
    return None if product is None or _negated_factor(body, product) is None else v


def _negated_factor(body: _Body, product: Step) -> int | None:
    """Not of a complex product, where the sign of a zero would change."""
    a, b = product.inputs
    if a == b or body.types[product.outputs[0]].dtype.kind == "c":
        return None
    return next((k for k, u in enumerate((a, b)) if body.maker(u, "Neg") is not None), None)


def _take_negation(body: _Body, v: int) -> None:
    step = body.steps[v]
    if step.type == "Neg":
        body.drop(v)
        return
    k = _negated_factor(body, step)
    assert k is not None
    inputs = list(step.inputs)
    inputs[k] = body.steps[step.inputs[k]].inputs[0]
    body.drop(step.inputs[k])
    body.steps[v] = replace(step, inputs=tuple(inputs))


_RULES: dict[str, Callable[[_Body, Step], Step]] = {
    "Neg": _minus_abs,
    "Sum": _products,
    "Mean": _products,
    "AddN": _differences,
}
