"""Sums of arrays and a few small slices: the slices are added to one of the arrays, by updates.

What reads parts of an array that is assigned to again and again has such a sum as its gradient, one for each version of
the array. An array as large as the whole for each of them would cost as much as all versions together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

from distgrad.scheduler.program import Step
from distgrad.types import Shape, Spec, size_of

#: Maximum slices of a sum that become one update each.
FEW = 32
#: Maximum share of the elements of the array that they have in all.
SMALL_SHARE = 0.5


def added_parts(step: Step, parts: Mapping[int, Step], types: list[Spec]) -> list[Step] | None:
    """The steps that make a sum by adding its `parts` (slices, by value) to its other terms, in the order of the terms;
    None if there are no others, or that would not pay. Adds the types of new values."""
    first = next((k for k, v in enumerate(step.inputs) if v not in parts), None)
    if first is None or step.after or _rounded_once(step, types) or not _pays(step, parts, types):
        return None
    shape = types[step.outputs[0]].shape
    if not _disjoint([parts[v].attrs["index"] for v in step.inputs[:first]], shape):
        return None
    made: list[Step] = []
    total, *others = (step.inputs[first], *step.inputs[:first], *step.inputs[first + 1 :])
    for k, v in enumerate(others):
        out = step.outputs[0]
        if k < len(others) - 1:
            out = len(types)
            types.append(types[step.outputs[0]])
        made.append(_added(step, total, v, out, parts))
        total = out
    return made


def _added(step: Step, total: int, v: int, out: int, parts: Mapping[int, Step]) -> Step:
    if v not in parts:
        return Step("AddN", (total, v), (out,), {}, (), step.source, step.name, step.device)
    attrs = {"index": parts[v].attrs["index"], "mode": "add"}
    return Step("Update", (total, parts[v].inputs[0]), (out,), attrs, (), step.source, step.name, step.device)


def _pays(step: Step, parts: Mapping[int, Step], types: Sequence[Spec]) -> bool:
    values = [parts[v].inputs[0] for v in step.inputs if v in parts]
    elements = sum([size_of(types[v].shape) for v in values])
    return len(values) <= FEW and elements <= SMALL_SHARE * size_of(types[step.outputs[0]].shape)


def _rounded_once(step: Step, types: Sequence[Spec]) -> bool:
    """Whether kernels add several terms in float32 and round once: steps of two terms would round after each."""
    return len(step.inputs) > 2 and types[step.outputs[0]].dtype.itemsize <= 2


def _disjoint(indexes: Sequence[Any], shape: Shape) -> bool:
    """Whether no two of these slices share an element, so that it does not matter when each is added."""
    return all(_apart(a, b, shape) for a, b in combinations(indexes, 2))


def _apart(a: Any, b: Any, shape: Shape) -> bool:
    places = ([entry for entry in index if entry is not None] for index in (a, b))
    return any(_range(p).isdisjoint(_range(q)) for p, q in zip(*places, strict=False) if _few(p) and _few(q))


def _few(entry: Any) -> bool:
    return isinstance(entry, int) or entry[1] <= FEW


def _range(entry: Any) -> set[int]:
    start, count, step = entry if isinstance(entry, tuple) else (entry, 1, 1)
    return set(range(start, start + count * step, step))
