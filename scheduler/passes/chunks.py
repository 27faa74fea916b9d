"""Chunks: splits large sums along their first axis, and long concatenations into trees, for a cluster of workers.

Several workers then add different rows of one tensor at the same time, and elementwise steps that follow, such as the
update of a parameter, are split too. Every element is computed from the same elements in the same order, so no bit
changes. For programs after fusion.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from distgrad.registry import Kind, kind_of
from distgrad.scheduler.passes.rewrite import moved
from distgrad.scheduler.passes.sums import inserted
from distgrad.scheduler.program import FUSED, Program, Step, check_program
from distgrad.types import Shape, Spec, size_of

#: Minimum bytes of a sum that is split, and of each chunk: smaller ones cost more overhead than they save.
LARGE_CHUNKED = 16 << 20
LEAST_CHUNK = 4 << 20


def joins(program: Program, fan_in: int) -> Program:
    """Split concatenations of many parts into trees, neighbours first. Sparse gradients of many towers need this.

    >>> import distgrad as dg
    >>> from distgrad.scheduler.program import lower
    >>> with dg.Graph():
    ...     xs = [dg.placeholder((2, 3)) for _ in range(6)]
    ...     y = dg.concatenate(xs)
    >>> [len(step.inputs) for step in joins(lower([y], xs), 4).steps]
    [4, 2, 2]
    """
    types = list(program.types)
    steps = list(program.steps)
    maker = {v: i for i, step in enumerate(steps) for v in step.outputs}
    early: dict[int, list[Step]] = {}
    for i, step in enumerate(program.steps):
        if step.type != "Concat" or step.after or len(step.inputs) <= fan_in:
            continue
        parts = [(v, maker.get(v, -1)) for v in step.inputs]
        while len(parts) > fan_in:
            groups = [parts[at : at + fan_in] for at in range(0, len(parts), fan_in)]
            parts = [_concat_node(step, group, types, early) if len(group) > 1 else group[0] for group in groups]
        steps[i] = moved(step, tuple([v for v, _ in parts]), ())
    if not early:
        return program
    return check_program(replace(program, steps=inserted(steps, early), types=tuple(types)))


def _concat_node(
    step: Step, group: Sequence[tuple[int, int]], types: list[Spec], early: dict[int, list[Step]]
) -> tuple[int, int]:
    """Add one node of a tree; returns its value and the index of the step it follows."""
    axis, first = step.attrs["axis"], types[group[0][0]]
    v, place = len(types), max([place for _, place in group])
    rows = sum([types[part].shape[axis] for part, _ in group])
    types.append(Spec((*first.shape[:axis], rows, *first.shape[axis + 1 :]), first.dtype))
    inputs = tuple([part for part, _ in group])
    early.setdefault(place, []).append(replace(step, inputs=inputs, outputs=(v,)))
    return v, place


# -- chunks ------------------------------------------------------------------------------------------------------------


def large_sums(program: Program) -> list[int]:
    """The steps that add large terms and can be split."""
    waited = {j for step in program.steps for j in step.after}
    return [i for i, s in enumerate(program.steps) if i not in waited and adds_up(s) and _space(s, program.types)]


def chunks(program: Program, sums: Collection[int], count: int) -> Program:
    """Split these sums, and the elementwise steps that follow them, into at most `count` chunks of rows."""
    cutter = _Cutter(program, count)
    waited = {j for step in program.steps for j in step.after}
    place: list[int] = []
    for i, step in enumerate(program.steps):
        follows = any(v in cutter.parts for v in step.inputs)
        space = _space(step, program.types) if (i in sums or follows) and i not in waited else ()
        bounds = cutter.bounds(step, space) if space else []
        if bounds:
            cutter.cut(step, space, bounds)
        else:
            cutter.keep(moved(step, step.inputs, tuple([place[j] for j in step.after])) if step.after else step)
        place.append(len(cutter.steps) - 1)
    return cutter.finished()


def adds_up(step: Step) -> bool:
    """Whether a step adds several terms: part of a reduce tree if they come from different towers."""
    if step.type == FUSED:
        inputs = set(step.inputs)
        return any(inner.type == "AddN" and len(inputs.intersection(inner.inputs)) > 1 for inner in step.body)
    return step.type == "AddN" and len(step.inputs) > 1


def _space(step: Step, types: Sequence[Spec]) -> Shape:
    """The shape of a large, purely elementwise step; otherwise ()."""
    inside = step.body if step.type == FUSED else (step,)
    space: Shape = types[step.outputs[0]].shape if step.outputs else ()
    large = space and size_of(space) * types[step.outputs[0]].dtype.itemsize >= LARGE_CHUNKED
    if not large or step.after or any(types[v].shape != space for v in step.outputs):
        return ()
    return space if all(kind_of(s.type) is Kind.ELEMENTWISE and "shape" not in s.attrs for s in inside) else ()


class _Cutter:
    """The steps so far, and the chunks of values that were split."""

    def __init__(self, program: Program, count: int):
        self.program = program
        self.count = count
        self.types = list(program.types)
        self.steps: list[Step] = []
        self.parts: dict[int, list[int]] = {}
        #: Concatenations of split values, added only if a step reads the whole value.
        self._whole: dict[int, Step] = {}

    def bounds(self, step: Step, space: Shape) -> list[tuple[int, int]]:
        """The rows of each chunk; the same as those of its inputs if they are split."""
        for v in step.inputs:
            if v in self.parts and self.types[v].shape == space:
                ends = [0]
                for part in self.parts[v]:
                    ends.append(ends[-1] + self.types[part].shape[0])
                return list(pairwise(ends))
        spec = self.types[step.outputs[0]]
        count = min(self.count, space[0], size_of(space) * spec.dtype.itemsize // LEAST_CHUNK)
        return [(space[0] * c // count, space[0] * (c + 1) // count) for c in range(count)] if count > 1 else []

    def cut(self, step: Step, space: Shape, bounds: Sequence[tuple[int, int]]) -> None:
        for v in step.inputs:
            if self._rows(v, space) and v not in self.parts:
                self.parts[v] = [self._slice(step, v, a, b) for a, b in bounds]
        made = [self._chunk(step, space, c, b - a) for c, (a, b) in enumerate(bounds)]
        for k, v in enumerate(step.outputs):
            self.parts[v] = [outputs[k] for outputs in made]
            inputs = tuple(self.parts[v])
            self._whole[v] = replace(step, type="Concat", inputs=inputs, outputs=(v,), attrs={"axis": 0}, body=())

    def keep(self, step: Step) -> None:
        self._put_together(step.inputs)
        self.steps.append(step)

    def finished(self) -> Program:
        self._put_together(self.program.wanted)
        return check_program(replace(self.program, steps=tuple(self.steps), types=tuple(self.types)))

    def _put_together(self, values: Sequence[int]) -> None:
        self.steps += [self._whole.pop(v) for v in dict.fromkeys(values) if v in self._whole]

    def _rows(self, v: int, space: Shape) -> bool:
        """Whether a value has the rows of the space, and is not broadcast along them."""
        shape = self.types[v].shape
        return len(shape) == len(space) and shape[0] == space[0]

    def _slice(self, step: Step, v: int, a: int, b: int) -> int:
        shape, dtype = self.types[v].shape, self.types[v].dtype
        index = ((a, b - a, 1), *[(0, n, 1) for n in shape[1:]])
        made = self._value(Spec((b - a, *shape[1:]), dtype))
        self.keep(replace(step, type="StridedSlice", inputs=(v,), outputs=(made,), attrs={"index": index}, body=()))
        return made

    def _chunk(self, step: Step, space: Shape, c: int, rows: int) -> list[int]:
        """Add one chunk of a step: values with the rows of the space get the rows of the chunk."""
        ids: dict[int, int] = {v: self.parts[v][c] for v in step.inputs if self._rows(v, space)}

        def here(v: int) -> int:
            return ids.get(v, v)

        def new(v: int) -> int:
            spec = self.types[v]
            ids[v] = self._value(Spec((rows, *spec.shape[1:]), spec.dtype) if self._rows(v, space) else spec)
            return ids[v]

        body = tuple([_renamed(inner, here, new) for inner in step.body])
        attrs = {**step.attrs, "space": (rows, *space[1:])} if body else step.attrs
        made = replace(_renamed(step, here, here if body else new), attrs=attrs, body=body)
        self.keep(made)
        return list(made.outputs)

    def _value(self, spec: Spec) -> int:
        self.types.append(spec)
        return len(self.types) - 1


def _renamed(step: Step, here: Callable[[int], int], new: Callable[[int], int]) -> Step:
    changes: dict[str, Any] = {"inputs": tuple([here(v) for v in step.inputs])}
    return replace(step, **changes, outputs=tuple([new(v) for v in step.outputs]))
