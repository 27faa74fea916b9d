"""Sums of many terms: slices are added into one buffer, and large sums become trees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from distgrad.scheduler.passes.part_sums import added_parts
from distgrad.scheduler.passes.rewrite import moved, taken
from distgrad.scheduler.program import Program, Step
from distgrad.types import Shape, Spec, size_of

#: Minimum bytes per term of a sum that is split: adding smaller terms takes no longer than starting a step.
LARGE_SUM = 1 << 16
#: Sums with more terms than this are always split, because no task should read from hundreds of others.
MANY_TERMS = 32


# -- slices ------------------------------------------------------------------------------------------------------------


def slice_sums(program: Program) -> Program:
    """Add slices into one buffer, instead of adding full arrays that are zero outside a slice.

    The gradient of `a[i]` is such an array, and a loop over the rows of `a` makes one per row. Slices that tile the
    whole array are concatenated without adding. A few small slices are added to another term of the sum, so that the
    gradients of a chain of assignments are updates of one array.

    >>> import distgrad as dg
    >>> from distgrad.scheduler.program import lower
    >>> with dg.Graph():
    ...     a = dg.placeholder((3, 2))
    ...     grads = dg.gradients(dg.sin(a[0]) + dg.cos(a[2]), a)
    >>> kinds = [[step.type for step in p.steps] for p in (lower(grads, [a]), slice_sums(lower(grads, [a])))]
    >>> [k.count("StridedSliceGrad") for k in kinds], kinds[1][-1]
    ([2, 0], 'AddSlices')
    """
    steps = program.steps
    parts = {step.outputs[0]: step for step in steps if step.type == "StridedSliceGrad" and not step.after}
    if not parts:
        return program
    _keep_read_once(parts, program)
    sums: dict[int, Step] = {}
    early: dict[int, list[Step]] = {}
    types = list(program.types)
    for i, step in enumerate(steps):
        count = sum([v in parts for v in step.inputs]) if step.type == "AddN" else 0
        if count and (chain := added_parts(step, parts, types)):
            *early[i - 1], sums[i] = chain
        elif count > 1:
            sums[i] = _slice_sum(step, parts, program.types)
    if not sums:
        return program
    gone = {v for i in sums for v in steps[i].inputs if v in parts}
    made = inserted([sums.get(i, step) for i, step in enumerate(steps)], early)
    kept = [i for i, step in enumerate(made) if not (step.outputs and step.outputs[0] in gone)]
    return replace(program, steps=taken(made, kept), types=tuple(types))


def _keep_read_once(parts: dict[int, Step], program: Program) -> None:
    """Keep only the parts that are read once, and are neither outputs nor waited for."""
    read: set[int] = set()
    for step in program.steps:
        for v in step.inputs:
            if v in parts:
                if v in read:
                    del parts[v]
                read.add(v)
        for i in step.after:
            for v in program.steps[i].outputs:
                parts.pop(v, None)
    for v in program.wanted:
        parts.pop(v, None)


def _slice_sum(step: Step, parts: Mapping[int, Step], types: Sequence[Spec]) -> Step:
    inputs = tuple([parts[v].inputs[0] if v in parts else v for v in step.inputs])
    indexes = tuple([parts[v].attrs["index"] if v in parts else None for v in step.inputs])
    shape = types[step.outputs[0]].shape
    tiles = _tiles(indexes, shape)
    if tiles is None:
        attrs = {"indexes": indexes, "shape": shape}
        return Step("AddSlices", inputs, step.outputs, attrs, step.after, step.source, step.name, step.device)
    kind, axis, order = tiles
    inputs = tuple([inputs[i] for i in order])
    return Step(kind, inputs, step.outputs, {"axis": axis}, step.after, step.source, step.name, step.device)


def _tiles(indexes: Sequence[Any], shape: Shape) -> tuple[str, int, list[int]] | None:
    """How the slices tile the whole array along one axis, if they do: then nothing is added, and -0.0 in a slice is
    preserved. Returns Stack (items of the axis) or Concat (ranges of it), the axis, and the order of the terms."""
    if any(index is None or len(index) != len(shape) for index in indexes):
        return None
    cut = [axis for axis, n in enumerate(shape) if any(index[axis] != (0, n, 1) for index in indexes)]
    if len(cut) != 1:
        return None
    (axis,) = cut
    entries = [index[axis] for index in indexes]
    if all(isinstance(e, int) for e in entries):
        kind, ranges = "Stack", [(e, e + 1) for e in entries]
    elif all(isinstance(e, tuple) and e[2] == 1 for e in entries):
        kind, ranges = "Concat", [(e[0], e[0] + e[1]) for e in entries]
    else:
        return None
    order = sorted(range(len(ranges)), key=ranges.__getitem__)
    ends = [0, *(ranges[i][1] for i in order)]
    starts = [*(ranges[i][0] for i in order), shape[axis]]
    return (kind, axis, order) if starts == ends else None


# -- trees -------------------------------------------------------------------------------------------------------------


def trees(program: Program, fan_in: int = 4) -> Program:
    """Split sums of many or large terms into trees of sums of at most `fan_in` terms.

    The shape of a tree depends only on the order of the terms: neighbours are added first, then neighbouring sums. Each
    partial sum is placed right after its last term, so that terms are released early.

    >>> import distgrad as dg
    >>> from distgrad.scheduler.program import lower
    >>> with dg.Graph():
    ...     xs = [dg.placeholder((100, 100)) for _ in range(6)]
    ...     y = dg.add_n(xs)
    >>> [len(step.inputs) for step in trees(lower([y], xs)).steps]
    [4, 2, 2]
    """
    if fan_in < 2:
        raise ValueError(f"trees: a sum has at least 2 terms, but fan_in is {fan_in}")
    types = list(program.types)
    large = {i: step for i, step in enumerate(program.steps) if _is_large(step, types, fan_in)}
    if not large:
        return program
    maker = {v: i for i, step in enumerate(program.steps) for v in step.outputs}
    early: dict[int, list[Step]] = {}
    for i, step in large.items():
        terms = [(v, maker.get(v, -1)) for v in step.inputs]
        while len(terms) > fan_in:
            terms = _level(step, terms, fan_in, types, early)
        large[i] = moved(step, tuple([v for v, _ in terms]), step.after)
    made = inserted([large.get(i, step) for i, step in enumerate(program.steps)], early)
    return replace(program, steps=made, types=tuple(types))


def _is_large(step: Step, types: Sequence[Spec], fan_in: int) -> bool:
    if step.type != "AddN" or len(step.inputs) <= fan_in or step.after:
        return False
    spec = types[step.outputs[0]]
    return len(step.inputs) > MANY_TERMS or size_of(spec.shape) * spec.dtype.itemsize >= LARGE_SUM


def _level(
    step: Step, terms: Sequence[tuple[int, int]], fan_in: int, types: list[Spec], early: dict[int, list[Step]]
) -> list[tuple[int, int]]:
    """One level of a tree: sums of neighbours, each with the index of the step it follows."""
    made: list[tuple[int, int]] = []
    for start in range(0, len(terms), fan_in):
        group = terms[start : start + fan_in]
        if len(group) == 1:
            made += group
            continue
        v, place = len(types), max([place for _, place in group])
        types.append(types[step.outputs[0]])
        inputs = tuple([v for v, _ in group])
        part = Step("AddN", inputs, (v,), step.attrs, (), step.source, step.name, step.device)
        early.setdefault(place, []).append(part)
        made.append((v, place))
    return made


def inserted(steps: Sequence[Step], early: Mapping[int, Sequence[Step]]) -> tuple[Step, ...]:
    """The steps with others inserted, each list after the step at its index."""
    made = list(early.get(-1, ()))
    place = []
    for i, step in enumerate(steps):
        place.append(len(made))
        made.append(moved(step, step.inputs, tuple([place[j] for j in step.after])) if step.after else step)
        made += early.get(i, ())
    return tuple(made)
