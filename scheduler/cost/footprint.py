"""The memory footprint of a task on the NumPy engine, predicted before anything runs.

It consists of one arena for intermediate values, for the whole task; results that leave the task, from when they are
made; arrays that kernels allocate themselves, until their last use; and scratch memory that threads keep. Constants and
inputs exist already.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import NamedTuple

from distgrad.registry import Kind, kind_of
from distgrad.scheduler.cost.convolutions import Tiles, cut, is_native, parts, shapes
from distgrad.scheduler.cost.cutting import PIECE_FLOPS, cut_group, reduces_rows
from distgrad.scheduler.cost.layout import Layout
from distgrad.scheduler.cost.memory import NEVER, Liveness, value_bytes
from distgrad.scheduler.execution import NATIVE, Execution
from distgrad.scheduler.overwriting import overwriting, updates
from distgrad.scheduler.program import CALL, FUSED, Inner, Step
from distgrad.types import Spec

#: Maximum bytes of the packing buffer of one BLAS thread.
PACKED_BYTES = 640 << 10
#: Bytes per compiled step: code, views, bookkeeping.
STEP_BYTES = 7 << 8


def is_placed(op_type: str) -> bool:
    """Whether results of this op type are computed into the arena. Others, such as those of user-defined ops, are
    separate arrays."""
    if op_type in (FUSED, "MatMul") or updates(op_type):
        return True
    return kind_of(op_type) in (Kind.ELEMENTWISE, Kind.LAYOUT, Kind.CONVOLUTION)


class Footprint(NamedTuple):
    """Bytes of the arena, of all other arrays at their peak, of scratch memory, and of the compiled steps."""

    arena: int
    arrays: int
    scratch: int
    code: int

    @property
    def total(self) -> int:
        return sum(self)


def footprint(
    steps: Sequence[Step],
    types: Sequence[Spec],
    nbytes: Sequence[int],
    gives: Sequence[int],
    cpus: int = 1,
    execution: Execution = NATIVE,
    stays: Sequence[int] = (),
) -> Footprint:
    """The footprint of a task with these steps and results `gives`; `nbytes` has the bytes of every value. Results in
    `stays` are in its arena until the end of the run."""
    if not execution.fuses:
        steps = [inner for step in steps for inner in step.body or (step,)]
    found = (
        _in_arena(steps, types, nbytes, gives, cpus, stays)
        if execution.has_arena
        else _live(steps, types, nbytes, gives, cpus)
    )
    calls = [step for step in steps if step.type == CALL]
    return _with_calls(found, calls, nbytes, cpus, execution) if calls else found


def _live(
    steps: Sequence[Step], types: Sequence[Spec], nbytes: Sequence[int], gives: Sequence[int], cpus: int
) -> Footprint:
    """Without an arena: the values that are live at the same time."""
    peak, _, _ = Liveness(steps, nbytes, types, gives).run()
    return Footprint(0, peak, 0, _code_bytes(steps))


def _in_arena(
    steps: Sequence[Step],
    types: Sequence[Spec],
    nbytes: Sequence[int],
    gives: Sequence[int],
    cpus: int,
    stays: Sequence[int],
) -> Footprint:
    liveness = Liveness(steps, nbytes, types, gives, overwriting(steps, nbytes, gives))
    leaves = {liveness.buffer.get(v) for v in set(gives) - set(stays)}
    arena, arrays = _Lives(liveness, {v for v in stays if v not in leaves}).run()
    return Footprint(arena, arrays, _Scratch(types, cpus).of(steps), _code_bytes(steps))


def _code_bytes(steps: Sequence[Step]) -> int:
    return STEP_BYTES * sum([step.type != "Const" for step in steps])


def _with_calls(
    found: Footprint, calls: Sequence[Step], nbytes: Sequence[int], cpus: int, execution: Execution
) -> Footprint:
    """Add the footprint of outlined bodies. They run one after another and share memory."""
    inside = [_inside(step.attrs["inner"], cpus, execution) for step in calls]
    results = [sum([nbytes[v] for v in step.outputs]) for step in calls]
    return Footprint(
        found.arena + max([each.arena for each in inside]),
        found.arrays + max([each.arrays - made for each, made in zip(inside, results, strict=True)]),
        max(found.scratch, *[each.scratch for each in inside]),
        found.code + sum([each.code for each in inside]),
    )


@lru_cache(maxsize=64)
def _inside(inner: Inner, cpus: int, execution: Execution) -> Footprint:
    program = inner.program
    return footprint(program.steps, program.types, value_bytes(program.types), program.fetches, cpus, execution)


class _Lives:
    """Replays the steps, lays values out in the arena as the engine does, and counts the bytes of other arrays."""

    def __init__(self, liveness: Liveness, stays: Collection[int] = ()):
        self.liveness, self._stays = liveness, stays
        self._layout = Layout()
        self._placed: dict[int, int] = {}  # offsets by value in the arena
        self._own: dict[int, int] = {}  # bytes of separate arrays that stay in the task

    def run(self) -> tuple[int, int]:
        """The bytes of the arena, and the peak bytes of all other arrays."""
        liveness, own = self.liveness, self._own
        buffer, last, nbytes = liveness.buffer, liveness.last, liveness.nbytes
        arrays = most_arrays = 0
        places = {op_type: is_placed(op_type) for op_type in {step.type for step in liveness.steps}}
        ends = liveness.ends()
        for k, step in enumerate(liveness.steps):
            for v in step.outputs:
                if buffer.get(v) != v:
                    continue
                if last[v] == NEVER and v not in self._stays:
                    arrays += nbytes[v]
                elif places[step.type]:
                    self._place(k, step, v)
                else:
                    arrays += nbytes[v]
                    own[v] = nbytes[v]
            if arrays > most_arrays:
                most_arrays = arrays
            for b in ends.get(k, ()):
                if b in self._placed:
                    self._layout.give(self._placed.pop(b), nbytes[b])
                elif b in own:
                    arrays -= own.pop(b)
        return self._layout.size, most_arrays

    def _place(self, k: int, step: Step, v: int) -> None:
        """In the place of an input that the result overwrites because its last use is here, or in one of its own."""
        liveness, placed = self.liveness, self._placed
        for u in step.inputs:
            if u not in placed or liveness.last[u] != k or liveness.types[u] != liveness.types[v]:
                continue
            if u in overwritable(step, v, liveness.types):
                placed[v] = placed.pop(u)
                return
        placed[v] = self._layout.take(liveness.nbytes[v])


def overwritable(step: Step, v: int, types: Sequence[Spec]) -> Sequence[int]:
    """The inputs that a result can overwrite. A group reads an element before it writes one, but what it makes of
    whole rows is made by later loops over the row, which may read again."""
    if not step.body:
        return step.inputs if kind_of(step.type) is Kind.ELEMENTWISE else ()
    if len(types[v].shape) < len(step.attrs["space"]):
        return ()
    loop: dict[int, int] = {}
    for inner in step.body:
        before = max([loop.get(u, 0) for u in inner.inputs], default=0)
        loop[inner.outputs[0]] = before + (kind_of(inner.type) is not Kind.ELEMENTWISE)
    last = {u: loop[inner.outputs[0]] for inner in step.body for u in inner.inputs}
    return [u for u in step.inputs if last[u] <= loop[v]]


# -- scratch memory ----------------------------------------------------------------------------------------------


class _Scratch:
    """The scratch memory that threads keep: for each kind of buffer, the maximum over all steps."""

    def __init__(self, types: Sequence[Spec], cpus: int):
        self._types = types
        self._cpus = cpus
        self._most: dict[str, int] = {}
        self._products: set[tuple[Spec, Spec]] = set()  # already counted

    def of(self, steps: Sequence[Step]) -> int:
        """The bytes of all threads together."""
        kinds = {op_type: kind_of(op_type) for op_type in {step.type for step in steps}}
        for step in steps:
            if step.body:
                self._group(step)
            elif kinds[step.type] is Kind.CONVOLUTION:
                self._convolution(step)
            elif step.type == "MatMul":
                self._packed(step)
        return sum(self._most.values())

    def _keep(self, kind: str, nbytes: int, threads: int) -> None:
        self._most[kind] = max(self._most.get(kind, 0), nbytes * threads)

    def _group(self, step: Step) -> None:
        """Each block makes a part of the reductions over rows."""
        made = [self._types[inner.outputs[0]] for inner in step.body if reduces_rows(inner)]
        self._keep("parts", cut_group(step).blocks * sum(value_bytes(made)), 1)

    def _convolution(self, step: Step) -> None:
        ins, outs = [self._types[v] for v in step.inputs], [self._types[v] for v in step.outputs]
        if not is_native(step.attrs["groups"], [*ins, *outs]):
            return
        pieces = cut(step.type, shapes(step.type, ins, outs, step.attrs))
        size, blocks = outs[0].dtype.itemsize, sum([piece.blocks for piece in pieces])
        self._keep("windows", size * max([piece.scratch for piece in pieces]), min(self._cpus, blocks))
        if step.type == "Conv2DBackpropFilter":
            self._keep("sums", size * pieces[0].sum_size, parts(blocks, self._cpus))
        elif isinstance(pieces[0], Tiles):
            self._keep("kernel", size * pieces[0].sum_size, 1)
        if step.type == "Conv2DBackpropInput":
            self._keep("taps", math.prod(ins[0].shape) * size, 1)

    def _packed(self, step: Step) -> None:
        a, b = (self._types[v] for v in step.inputs)
        if (a, b) in self._products:
            return
        self._products.add((a, b))
        out = self._types[step.outputs[0]]
        nbytes = (math.prod(a.shape[-2:]) + math.prod(b.shape[-2:])) * out.dtype.itemsize
        depth = math.prod(a.shape[-2:]) // max(out.shape[-2], 1)
        cut = math.prod(out.shape) * depth >= PIECE_FLOPS
        self._keep("packed", min(nbytes, PACKED_BYTES), self._cpus if cut else 1)
