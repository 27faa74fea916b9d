"""Fusion: elementwise steps over one shape, with the row-wise steps and reductions among them, become one Fused step.

A fused step is one loop over elements or rows, so that only its inputs and outputs go through memory. Its `space` is
the shape that it iterates over, and `split` is the number of leading axes that threads may divide. The trailing axes
stay whole, so a softmax or the mean of a row can be among the steps.

Steps are fused by stage. Within a space, a step has the stage of its inputs; values that leave the space, or pass
through a step that cannot be fused, get a later stage. A path that leaves a group and returns to it would reach a later
stage on the way, so fusing steps of one space and one stage never creates a cycle.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from distgrad.registry import OPS, Kind, View, kind_of, view_of
from distgrad.scheduler.program import FUSED, Program, Step
from distgrad.types import Shape, Spec

#: Minimum elements of a fused space: smaller arrays stay in the cache anyway.
SMALL = 2048
#: Maximum elements of a row (the trailing axes): several longer ones do not fit the cache.
LONG_ROW = 1 << 16
#: Maximum steps per group: more than this is worth several tasks.
MANY = 256
#: Minimum elements at which even a single step gains from several threads.
LARGE = 1 << 17
#: Number of bits that record the origin of values. With more feeds than bits, some towers are not told apart.
ROOTS = 512
#: Maximum groups remembered per array that they read: programs with more inlined towers are rare.
READERS = 16


class Role(NamedTuple):
    """How a step takes part in a group: its space, its maximum split, and whether other steps may continue from it."""

    space: Shape
    split: int
    goes_on: bool


CanFuse = Callable[[Step, Sequence[Spec]], bool]


def always(step: Step, types: Sequence[Spec]) -> bool:
    return True


def fuse(program: Program, can_fuse: CanFuse = always) -> Program:
    """Fuse steps that can run as one loop. `can_fuse` says whether the workers have a rule for a step. Results differ
    in the order of sums, and as far as a loop has its own mathematical functions.

    >>> import numpy as np
    >>> import distgrad as dg
    >>> from distgrad.scheduler.program import lower
    >>> with dg.Graph():
    ...     x = dg.placeholder((64, 100))
    ...     y = dg.sum(dg.tanh(x) * 2.0)
    >>> [step.type for step in fuse(lower([y], [x])).steps]
    ['Const', 'Fused']
    """
    if all(math.prod(shape) < SMALL for shape in {spec.shape for spec in program.types}):
        return program
    groups = _groups(program, can_fuse)
    return replace(program, steps=_contracted(program, groups)) if groups else program


def role(step: Step, types: Sequence[Spec]) -> Role | None:
    """How this step can take part in a group; None if it cannot."""
    kind = kind_of(step.type)
    find = None if kind is None else _RULES.get(kind)
    if find is None or step.after or len(step.outputs) != 1:
        return None
    made = types[step.outputs[0]]
    if made.dtype.itemsize == 2 and made.dtype.kind in "fV":
        return None  # kernels accumulate 16-bit floats in 32 bits
    return find(step, types)


def _elementwise(step: Step, types: Sequence[Spec]) -> Role | None:
    space = types[step.outputs[0]].shape
    if math.prod(space) < SMALL:
        return None
    split = len(space)
    for v in step.inputs:
        shape = types[v].shape
        if shape != space and shape != ():
            split = min(split, _cut(shape, space))
    return Role(space, split, True)


def _cut(shape: Shape, space: Shape) -> int:
    """The number of leading axes that can be split such that this operand is split along all of them or none."""
    aligned = (1,) * (len(space) - len(shape)) + shape
    whole = next((i for i, n in enumerate(aligned) if n != 1 and space[i] != 1), len(space))
    cut = next((i for i, (n, m) in enumerate(zip(aligned, space, strict=True)) if n != m), len(space))
    return max(whole, cut)


def _rowwise(step: Step, types: Sequence[Spec]) -> Role | None:
    """Over the shape of its rows. A loss has one element per row, so no step over that shape reads it."""
    space = rows_of(step, types)
    axis = step.attrs.get("axis", len(space) - 1)
    axes = sorted(axis) if isinstance(axis, tuple) else [axis]
    if math.prod(space) < SMALL or axes != list(range(len(space) - len(axes), len(space))):
        return None
    return Role(space, axes[0], len(types[step.outputs[0]].shape) == len(space))


def rows_of(step: Step, types: Sequence[Spec]) -> Shape:
    """The shape of a row-wise step: that of its first input with the most axes."""
    return max([types[v].shape for v in step.inputs], key=len)


def _reduction(step: Step, types: Sequence[Spec]) -> Role | None:
    space = types[step.inputs[0]].shape
    axes = step.attrs["axis"]
    if math.prod(space) < SMALL or not axes or OPS[step.type].combine is None:
        return None
    leading = next((i for i in range(len(space)) if i not in axes), len(space))
    if leading:
        return Role(space, leading, False)
    return Role(space, min(axes), bool(step.attrs["keepdims"]))


_RULES: dict[Kind, Callable[[Step, Sequence[Spec]], Role | None]] = {
    Kind.ELEMENTWISE: _elementwise,
    Kind.ROWWISE: _rowwise,
    Kind.REDUCTION: _reduction,
}


class _Group:
    __slots__ = ("into", "members", "reads", "role", "roots")

    def __init__(self, role: Role):
        self.role = role
        self.roots = 0
        self.members: list[int] = []
        self.reads: set[int] = set()  # arrays as large as the space
        self.into: _Group | None = None  # the group that this one was merged into

    def now(self) -> _Group:
        group = self
        while group.into is not None:
            group.into = group.into.into or group.into  # path halving
            group = group.into
        return group

    def take_over(self, other: _Group) -> None:
        self.members += other.members
        self.roots |= other.roots
        self.reads |= other.reads
        other.members, other.reads, other.into = [], set(), self


def _size(group: _Group) -> int:
    return len(group.members)


def _row(space: Shape, split: int) -> int:
    return math.prod(space[split:])


def _groups(program: Program, can_fuse: CanFuse) -> list[_Group]:
    """The groups worth fusing, each with its steps in order."""
    types = program.types
    given = set(program.given)
    stage_of: dict[int, int] = dict.fromkeys(given, -1)
    space_of: dict[int, Any] = {}
    step_stage: list[int] = []
    known = _Known(given, _roots(program))
    for i, step in enumerate(program.steps):
        part = role(step, types)
        if part is not None and not can_fuse(step, types):
            part = None
        stage = _stage(step, stage_of, space_of, step_stage, None if part is None else (part.space, step.device))
        if part is not None:
            if part.split == 0 or _row(part.space, part.split) > LONG_ROW:
                part = None
                stage = _stage(step, stage_of, space_of, step_stage, None)
            else:
                stage = _join(i, step, part, stage, types, known)
        for v in step.outputs:
            stage_of[v] = stage
            if part is not None and part.goes_on:
                space_of[v] = (part.space, step.device)
        step_stage.append(stage)
    return [group for group in known.every if _worth_it(group)]


def _roots(program: Program) -> list[int]:
    """The inputs, and parts of inputs, that each value depends on, as bits. Two values belong to different towers if
    neither depends on everything that the other depends on."""
    roots = [0] * len(program.types)
    count = 0
    for v in program.given:
        roots[v] = 1 << count % ROOTS
        count += 1
    for step in program.steps:
        made = 0
        for v in step.inputs:
            made |= roots[v]
        for v in step.outputs:
            roots[v] = made
        if view_of(step.type) is View.PART:
            for v in step.outputs:
                roots[v] |= 1 << count % ROOTS
                count += 1
    return roots


class _Known:
    """The groups so far, by the values they make and the values they read."""

    def __init__(self, given: Container[int], roots: Sequence[int]):
        self.given, self.roots = given, roots
        self.every: list[_Group] = []
        self._made: dict[Any, _Group] = {}
        self._read: dict[Any, list[_Group]] = {}

    def near(self, key: Any, step: Step) -> list[_Group]:
        """The groups that make an input of a step, and those of its tower that read the same input."""
        found: list[_Group] = []
        mask = self.roots[step.outputs[0]]
        for v in step.inputs:
            if (key, v) in self._made:
                found.append(self._made[key, v].now())
            for reader in self._read.get((key, v), ()):
                group = reader.now()
                if mask & group.roots in (mask, group.roots):
                    found.append(group)
        return list(dict.fromkeys(found))

    def add(self, key: Any, step: Step, group: _Group, full: Sequence[int]) -> None:
        group.roots |= self.roots[step.outputs[0]]
        for v in step.outputs:
            self._made[key, v] = group
        for v in full:
            if v not in self.given:
                readers = self._read.setdefault((key, v), [])
                if group not in readers:
                    readers.append(group)
                    del readers[:-READERS]


def _stage(
    step: Step, stage_of: dict[int, int], space_of: dict[int, Any], step_stage: Sequence[int], space: Any
) -> int:
    """The earliest stage of a step. Inputs of the program, and steps without inputs, come before the first stage."""
    stage = 0 if step.inputs or step.after else -1
    for v in step.inputs:
        at = stage_of[v] if space is not None and space_of.get(v) == space else stage_of[v] + 1
        if at > stage:
            stage = at
    for j in step.after:
        stage = max(stage, step_stage[j] + 1)
    return stage


def _join(i: int, step: Step, part: Role, stage: int, types: Sequence[Spec], known: _Known) -> int:
    """Add a step to the group that makes or shares its inputs; returns the final stage of the step.

    Sharing an input of the program is no reason to fuse, nor is sharing an array with another tower. All groups that
    make an input of the step are merged, including those that make the mean of a row: two groups of one stage that read
    from each other would form a cycle.
    """
    size = math.prod(part.space)
    full = [v for v in step.inputs if math.prod(types[v].shape) == size]
    while True:
        key = stage, part.space, step.device
        near = known.near(key, step)
        if not near or not _apart(step, near):
            break
        stage += 1  # a new group, one stage later
    split = min([part.split, *(g.role.split for g in near)])
    group = max(near, key=_size, default=None) or _Group(part)
    if not near:
        known.every.append(group)
    for other in near:
        if other is not group:  # the smaller into the largest, so no step is moved often
            group.take_over(other)
    group.role = Role(part.space, split, True)
    group.members.append(i)
    group.reads.update(full)
    known.add(key, step, group, full)
    return stage


def _apart(step: Step, near: Sequence[_Group]) -> bool:
    """Whether a step must not be fused with its inputs: the group would be too large, or the step adds results of
    towers without common inputs, which may run on different workers."""
    if sum(map(_size, near)) >= MANY:
        return True
    return step.type == "AddN" and len(near) > 1 and not set.intersection(*[g.reads for g in near])


def _worth_it(group: _Group) -> bool:
    return len(group.members) > 1 or (len(group.members) == 1 and math.prod(group.role.space) >= LARGE)


def as_one(program: Program, groups: Iterable[Sequence[int]]) -> tuple[Step, ...]:
    """The steps, with each of these groups of them as one Fused step: elementwise ones over one shape, without a path
    that leaves a group and returns to it."""
    made = []
    for members in groups:
        parts = [part for i in members if (part := role(program.steps[i], program.types)) is not None]
        group = _Group(min(parts, key=lambda part: part.split))
        group.members += members
        made.append(group)
    return _contracted(program, made)


# -- the program with each group as one step ---------------------------------------------------------------------


def _contracted(program: Program, groups: Iterable[_Group]) -> tuple[Step, ...]:
    steps = program.steps
    node_of = list(range(len(steps)))
    inside: dict[int, _Group] = {}
    for group in groups:
        group.members.sort()
        for i in group.members:
            node_of[i] = group.members[-1]
        inside[group.members[-1]] = group
    order = _sorted(program, node_of)
    place = {node: at for at, node in enumerate(order)}
    outside = _read_outside(program, node_of)
    made = []
    for node in order:
        step = steps[node]
        if node in inside:
            made.append(_fused(program, inside[node], outside))
        elif step.after:
            after = tuple(sorted({place[node_of[j]] for j in step.after}))
            made.append(
                Step(step.type, step.inputs, step.outputs, step.attrs, after, step.source, step.name, step.device)
            )
        else:
            made.append(step)
    return tuple(made)


def _sorted(program: Program, node_of: Sequence[int]) -> list[int]:
    """The nodes in a topological order close to the order of the steps."""
    maker = {v: node_of[i] for i, step in enumerate(program.steps) for v in step.outputs}
    waiting = dict.fromkeys(node_of, 0)
    readers: dict[int, list[int]] = {}
    for i, step in enumerate(program.steps):
        node = node_of[i]
        before = {maker[v] for v in step.inputs if v in maker}
        before.update([node_of[j] for j in step.after])
        before.discard(node)
        for b in before:
            readers.setdefault(b, []).append(node)
            waiting[node] += 1
    ready = [node for node, count in waiting.items() if not count]
    heapq.heapify(ready)
    order = []
    while ready:
        node = heapq.heappop(ready)
        order.append(node)
        for reader in readers.get(node, ()):
            waiting[reader] -= 1
            if not waiting[reader]:
                heapq.heappush(ready, reader)
    if len(order) != len(waiting):
        raise AssertionError("fusing made a cycle")
    return order


def _read_outside(program: Program, node_of: Sequence[int]) -> set[int]:
    """The values that are read by a node other than their maker, or are outputs of the program."""
    maker = {v: node_of[i] for i, step in enumerate(program.steps) for v in step.outputs}
    outside = set(program.wanted)
    for i, step in enumerate(program.steps):
        node = node_of[i]
        outside.update([v for v in step.inputs if maker.get(v) != node])
    return outside


def _fused(program: Program, group: _Group, outside: set[int]) -> Step:
    body = tuple([program.steps[i] for i in group.members])
    made = {v for step in body for v in step.outputs}
    inputs = tuple(dict.fromkeys([v for step in body for v in step.inputs if v not in made]))
    outputs = tuple([v for step in body for v in step.outputs if v in outside])
    return _step(body, inputs, outputs, group.role)


def alone(step: Step, types: Sequence[Spec]) -> Step:
    """A group of one step, which must have a role."""
    part = role(step, types)
    assert part is not None
    return _step((step,), tuple(dict.fromkeys(step.inputs)), step.outputs, part)


def _step(body: tuple[Step, ...], inputs: tuple[int, ...], outputs: tuple[int, ...], role: Role) -> Step:
    last, attrs = body[-1], {"space": role.space, "split": role.split}
    return Step(FUSED, inputs, outputs, attrs, (), last.source, last.name, last.device, body)
