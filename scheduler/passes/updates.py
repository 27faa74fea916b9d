"""Groups the steps that compute new values of variables from old ones: one Fused step sweeps over all that they touch.

The step of Adam that moves a parameter and both of its moments is such a group. What is in one is read by nothing
else, so it can run after everything else: the local engine then writes new values over old ones (`updates.py` of the
scheduler). `fuse` alone would separate 0.9 * m, which depends on nothing that the call computes, from the rest.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from distgrad.registry import OPS, Kind, kind_of
from distgrad.scheduler.passes.fuse import LONG_ROW, CanFuse, always, as_one, role
from distgrad.scheduler.program import Program, Step
from distgrad.types import Shape, Spec

#: Maximum steps per group, as many as compile quickly.
MOST = 64

#: By step: the shape that it runs over, and its device.
Spaces = dict[int, tuple[Shape, str | None]]


def updates(program: Program, can_fuse: CanFuse = always) -> Program:
    """Make each group of updates one Fused step. `can_fuse` says whether the workers have a rule for a step.

    >>> import numpy as np, distgrad as dg
    >>> from distgrad.scheduler.program import lower
    >>> m, p = dg.Variable(np.zeros((64, 64))), dg.Variable(np.ones((64, 64)))
    >>> with dg.Graph() as graph:
    ...     g = dg.placeholder((64, 64))
    ...     moved = m.assign(0.9 * m + 0.1 * g).op, p.assign_sub(0.01 * m).op
    >>> [step.type for step in updates(lower([], [g], moved)).steps]
    ['Const', 'Const', 'Const', 'Fused']
    """
    groups = _groups(program, can_fuse) if program.writes else []
    return replace(program, steps=as_one(program, groups)) if groups else program


def _groups(program: Program, can_fuse: CanFuse) -> list[list[int]]:
    """The steps of each group, ascending. Steps that share no more than numbers are in different ones."""
    steps, types, writes = program.steps, program.types, dict(program.writes)
    inside = _last_steps(program, can_fuse)
    maker = {steps[i].outputs[0]: i for i in inside}
    old = {v: maker.get(writes[key]) for key, v in program.reads if key in writes}
    together = _Together(inside)
    shared: dict[Any, int] = {}
    for i, (shape, _) in inside.items():
        for v in steps[i].inputs:
            if v in maker:
                together.join(maker[v], i)
            elif types[v].shape == shape:  # the step that makes the new value shares the old one with its readers
                home = old.get(v)
                shared.setdefault((v, inside[i]), i if home is None or inside[home] != inside[i] else home)
    for i in inside:
        for v in steps[i].inputs:
            if (v, inside[i]) in shared:
                together.join(shared[v, inside[i]], i, MOST)
    groups = [group for group in together.groups() if len(group) <= MOST]
    return [group for group in groups if any(v in old for i in group for v in steps[i].inputs)]


def _last_steps(program: Program, can_fuse: CanFuse) -> Spaces:
    """The elementwise steps that are read by nothing but updates over the same shape on the same device, which are
    given with each."""
    steps = program.steps
    waited = {j for step in steps for j in step.after}
    written, fetched = Counter([v for _, v in program.writes]), set(program.fetches)
    readers: dict[int, list[int]] = {}
    for i, step in enumerate(steps):
        for v in step.inputs:
            readers.setdefault(v, []).append(i)
    inside: Spaces = {}
    for i in range(len(steps) - 1, -1, -1):
        if i in waited or not _can_join(steps[i], program.types) or not can_fuse(steps[i], program.types):
            continue
        (v,), read = steps[i].outputs, readers.get(steps[i].outputs[0], [])
        space = program.types[v].shape, steps[i].device
        wanted = v not in fetched and written[v] <= 1 and (read or written[v])
        if wanted and all(inside.get(j) == space for j in read):
            inside[i] = space
    return _without_joints(program, dict(sorted(inside.items())))


def _without_joints(program: Program, inside: Spaces) -> Spaces:
    """The steps without those that make one array of several: all of these would have to live until the end of the
    call."""
    kept: Spaces = {}
    given, written = set(program.given), {v for _, v in program.writes}
    made: set[int] = set()
    for i, space in inside.items():
        step = program.steps[i]
        arrays = {v for v in step.inputs if v not in given and program.types[v].shape == space[0]}
        if len(arrays) < 2 or not arrays.isdisjoint(made) or step.outputs[0] in written:
            kept[i] = space
            made.update(step.outputs)
    return kept


def _can_join(step: Step, types: Sequence[Spec]) -> bool:
    """Whether a step is built-in and elementwise, and can be in a fused group."""
    if kind_of(step.type) is not Kind.ELEMENTWISE or OPS[step.type].kernel is not None:
        return False
    part = role(step, types)
    return part is not None and part.split > 0 and math.prod(part.space[part.split :]) <= LONG_ROW


class _Together:
    """Steps in groups that grow."""

    def __init__(self, steps: Iterable[int]):
        self._group = {i: [i] for i in steps}

    def join(self, a: int, b: int, most: int | None = None) -> None:
        """Make the groups of two steps one, unless it has more than `most` steps."""
        one, other = self._group[a], self._group[b]
        if one is other or (most is not None and len(one) + len(other) > most):
            return
        if len(one) < len(other):
            one, other = other, one
        one += other
        for i in other:
            self._group[i] = one

    def groups(self) -> list[list[int]]:
        return [sorted(group) for group in {id(group): group for group in self._group.values()}.values()]
