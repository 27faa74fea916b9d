"""Common subexpression elimination."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from distgrad.registry import OPS
from distgrad.scheduler.passes.rewrite import live, moved
from distgrad.scheduler.program import Program, Step

#: Arrays in attributes are compared by content up to this many bytes, above it by identity: copies of a body share
#: their attributes, so equal large constants of a model are usually one object.
SMALL = 1024


def merge_equal(program: Program) -> Program:
    """Merge steps that compute the same from the same values (common subexpressions).

    Most of them come from gradients of calls, which copy the forward body. Steps that wait for others are kept:
    `recompute_grad` recomputes on purpose, and marks its steps by waiting.

    >>> import distgrad as dg
    >>> from distgrad.scheduler.program import lower
    >>> with dg.Graph():
    ...     x = dg.placeholder(())
    ...     y = dg.exp(x) + dg.exp(x)
    >>> [len(p.steps) for p in (lower([y], [x]), merge_equal(lower([y], [x])))]
    [3, 2]
    """
    known = _Known()
    alias: dict[int, int] = {}
    negative: dict[int, int] = {}  # value -> the value it is the negative of
    taken = False  # whether a step may be dead
    read = alias.keys()
    place: list[int] = []
    for step in program.steps:
        if alias and (step.after or not read.isdisjoint(step.inputs)):
            step = _moved(step, alias, place)
        if negative and step.type == "Mul" and not (step.after or negative.keys().isdisjoint(step.inputs)):
            of_positive = _of_positive(step, negative, known)
            taken, step = taken or of_positive is not step, of_positive
        if step.type == "Neg" and not step.after and program.types[step.outputs[0]].dtype.kind != "c":
            negative[step.outputs[0]] = step.inputs[0]
        same = known.first(step)
        place.append(same)
        if step is not known.steps[same]:
            alias.update(zip(step.outputs, known.steps[same].outputs, strict=True))
    if not alias and not taken:
        return program
    fetches = tuple([alias.get(v, v) for v in program.fetches])
    writes = tuple([(key, alias.get(v, v)) for key, v in program.writes])
    made = replace(program, fetches=fetches, writes=writes)
    steps = live(known.steps, program, made) if taken else tuple(known.steps)
    return replace(made, steps=steps)


def _of_positive(step: Step, negative: Mapping[int, int], known: _Known) -> Step:
    """-a * b as -(a * b) if a * b exists already, otherwise the step itself."""
    for k, v in enumerate(step.inputs):
        if v in negative:
            a, b = negative[v], step.inputs[1 - k]
            for factors in ((a, b), (b, a)):
                if (product := known.product(factors, step)) is not None:
                    return Step("Neg", (product,), step.outputs, {}, (), step.source, step.name, step.device)
    return step


def _moved(step: Step, alias: Mapping[int, int], place: list[int]) -> Step:
    """The step with its inputs and waits updated to the remaining steps."""
    inputs, after = step.inputs, step.after
    for v in inputs:
        if v in alias:
            inputs = tuple([alias.get(v, v) for v in inputs])
            break
    if after:
        after = tuple(dict.fromkeys([place[i] for i in after]))
    return step if inputs is step.inputs and after == step.after else moved(step, inputs, after)


class _Known:
    """The remaining steps, no two of which are equal."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        #: Most steps differ in what they read. If several do not (-1), their attributes are compared too.
        self._reading: dict[Any, int] = {}
        self._equal: dict[Any, int] = {}

    def first(self, step: Step) -> int:
        """The index of the first equal step; adds this one if there is none."""
        place = len(self.steps)
        if not step.after and step.outputs and (definition := OPS.get(step.type)) and not definition.stateful:
            key = step.type, step.inputs, step.device
            same = self._reading.setdefault(key, place)
            if same != place:
                if same >= 0:
                    self._place(self.steps[same], same)
                    self._reading[key] = -1
                same = self._place(step, place)
            if same != place:
                return same
        self.steps.append(step)
        return place

    def product(self, factors: tuple[int, int], like: Step) -> int | None:
        """The value of the product of these factors, if it exists and waits for nothing."""
        place = self._reading.get(("Mul", factors, like.device))
        if place is not None and place < 0:
            place = self._equal.get(("Mul", factors, like.device))
        return None if place is None else self.steps[place].outputs[0]

    def _place(self, step: Step, place: int) -> int:
        """The index of the first step that is equal to this one including its attributes."""
        attrs = step.attrs
        try:
            return self._equal.setdefault(
                (step.type, step.inputs, step.device, *attrs, *[_plain(value) for value in attrs.values()]), place
            )
        except TypeError:  # an attribute that cannot be compared
            return place


def _plain(value: Any) -> Any:
    """A key of an attribute by value and type: 1, 1.0 and True are equal and hash alike, as do 0.0 and -0.0."""
    kind = type(value)
    if kind is int or kind is bool or kind is str:
        return kind, value
    if kind is tuple or kind is list:
        ints = not value or {type(item) for item in value} == {int}  # shapes and axes, which most attributes are
        return kind, tuple(value) if ints else tuple([_plain(item) for item in value])
    if isinstance(value, np.ndarray):
        return (value.shape, value.dtype, value.tobytes()) if value.nbytes <= SMALL else id(value)
    return kind, repr(value) if isinstance(value, float | complex) else value
