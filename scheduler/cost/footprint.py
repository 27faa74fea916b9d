"""The memory footprint of a task on the NumPy engine, predicted before anything runs.

It consists of one arena for intermediate values, for the whole task; results that leave the task, from when they are
made; arrays that kernels allocate themselves, until their last use; and scratch memory that threads keep. Constants and
inputs exist already.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from distgrad.registry import OPS, Kind, kind_of
from distgrad.scheduler.cost.cutting import PIECE_FLOPS, convolution, cut_group
from distgrad.scheduler.cost.memory import NEVER, Liveness, value_bytes
from distgrad.scheduler.execution import BLOCKED, Execution
from distgrad.scheduler.joined import joined
from distgrad.scheduler.passes.fuse import rows_of
from distgrad.scheduler.program import CALL, FUSED, Inner, Step
from distgrad.types import Spec

#: Op types that are computed into the arena, in addition to whole kinds of ops.
_PLACED = frozenset({
    FUSED, "Concat", "Fill", "LogSumExp", "MatMul", "Pad", "Reshape", "SoftmaxCrossEntropyWithLogits", "Stack",
    "StridedSliceGrad",
})  # fmt: skip
#: Scratch buffers of kernels, one letter each, of the size of the result or of a block of it. Buffers with the same
#: letter share memory.
WORKS_IN = {
    "AddN": "a", "Elu": "am", "Gelu": "a", "GeluGrad": "abcd", "LayerNormGrad": "a", "LayerNormScale": "a",
    "LeakyRelu": "a", "LeakyReluGrad": "acm", "Log1p": "l", "LogSoftmax": "a", "LogSumExp": "a", "ReluGrad": "m",
    "Select": "c", "Sigmoid": "ab", "SoftmaxCrossEntropyWithLogits": "abm", "SoftmaxGrad": "a", "Softplus": "al",
    "SparseSoftmaxCrossEntropyWithLogits": "a",
}  # fmt: skip
#: Maximum bytes of a scratch buffer that a thread keeps; larger ones are freed after use.
KEPT_BYTES = 4 << 20
#: Maximum bytes of the packing buffer of one BLAS thread.
PACKED_BYTES = 640 << 10
#: Bytes per compiled step: code, views, bookkeeping.
STEP_BYTES = 7 << 8


def is_placed(op_type: str) -> bool:
    """Whether results of this op type are computed into the arena. Others, such as those of user-defined ops, are
    separate arrays."""
    definition = OPS.get(op_type)
    if definition is None or definition.kind is None:
        return op_type in _PLACED
    of_kind = definition.kind in (Kind.ELEMENTWISE, Kind.ROWWISE) or definition.combine is not None
    return of_kind or op_type in _PLACED


def is_in_place(step: Step, types: Sequence[Spec]) -> bool:
    """Whether a step may overwrite an input that has the type of its result."""
    kind = kind_of(step.type)
    if kind is Kind.ROWWISE:
        return types[step.outputs[0]].shape == rows_of(step, types)
    return kind is Kind.ELEMENTWISE or step.type == "MinusAbs"


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
    execution: Execution = BLOCKED,
) -> Footprint:
    """The footprint of a task with these steps and results `gives`; `nbytes` has the bytes of every value."""
    found = _in_arena(steps, types, nbytes, gives, cpus) if execution.has_arena else _live(steps, types, nbytes, gives)
    calls = [step for step in steps if step.type == CALL]
    return _with_calls(found, calls, nbytes, cpus, execution) if calls else found


def _live(steps: Sequence[Step], types: Sequence[Spec], nbytes: Sequence[int], gives: Sequence[int]) -> Footprint:
    """Without an arena: the values that are live at the same time, when groups run step by step."""
    flat = [inner for step in steps for inner in step.body or (step,)]
    peak, _, _ = Liveness(flat, nbytes, types, gives).run()
    return Footprint(0, peak, 0, STEP_BYTES * sum([step.type != "Const" for step in flat]))


def _in_arena(
    steps: Sequence[Step], types: Sequence[Spec], nbytes: Sequence[int], gives: Sequence[int], cpus: int
) -> Footprint:
    bodies = [joined(step, types) if step.body else () for step in steps]
    arena, arrays = _Lives(Liveness(steps, nbytes, types, gives), bodies).run()
    compiled = sum([step.type != "Const" for step in steps])
    return Footprint(arena, arrays, _Scratch(types, cpus).of(steps, bodies), STEP_BYTES * compiled)


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
    """Replays the steps and counts the bytes in the arena and in other arrays; `bodies` are those of groups, joined."""

    def __init__(self, liveness: Liveness, bodies: Sequence[Sequence[Step]]):
        self.liveness, self._bodies = liveness, bodies
        self._placed: dict[int, int] = {}  # bytes by value in the arena
        self._own: dict[int, int] = {}  # and in separate arrays that stay in the task

    def run(self) -> tuple[int, int]:
        """The peak bytes of the arena, and of all other arrays."""
        liveness, placed, own = self.liveness, self._placed, self._own
        buffer, last, nbytes = liveness.buffer, liveness.last, liveness.nbytes
        arena = arrays = most_arena = most_arrays = 0
        for k, step in enumerate(liveness.steps):
            made = [v for v in step.outputs if buffer.get(v) == v]
            for v in made:
                if last[v] == NEVER:
                    arrays += nbytes[v]
                elif is_placed(step.type):
                    arena += nbytes[v] - self._overwritten_bytes(k, step, v)
                    placed[v] = nbytes[v]
                else:
                    arrays += nbytes[v]
                    own[v] = nbytes[v]
            most_arena, most_arrays = max(most_arena, arena), max(most_arrays, arrays)
            for v in (*step.inputs, *made):
                b = buffer.get(v, -1)
                if last.get(b) == k:
                    arena -= placed.pop(b, 0)
                    arrays -= own.pop(b, 0)
        return most_arena, most_arrays

    def _overwritten_bytes(self, k: int, step: Step, v: int) -> int:
        """The bytes of an input that the result overwrites because its last use is here."""
        liveness = self.liveness
        for u in _overwritable(step, self._bodies[k], v, liveness.types):
            b = liveness.buffer.get(u, -1)
            if b == u and b in self._placed and liveness.last[b] == k and liveness.types[u] == liveness.types[v]:
                return self._placed.pop(b)
        return 0


def _overwritable(step: Step, body: Sequence[Step], v: int, types: Sequence[Spec]) -> Sequence[int]:
    """The inputs that a result can overwrite. In a group, all of their readers must come before."""
    if not body:
        return step.inputs if is_in_place(step, types) else ()
    if len(types[v].shape) < len(step.attrs["space"]):
        return ()
    at = next(i for i, inner in enumerate(body) if v in inner.outputs)
    last = {u: i for i, inner in enumerate(body) for u in inner.inputs}
    meanwhile = is_in_place(body[at], types)
    return [u for u in step.inputs if last[u] < at or (last[u] == at and meanwhile)]


# -- scratch memory ----------------------------------------------------------------------------------------------


class _Scratch:
    """The scratch memory that threads keep: for each kind of buffer, the maximum over all steps."""

    def __init__(self, types: Sequence[Spec], cpus: int):
        self._types = types
        self._cpus = cpus
        self._most: dict[str, int] = {}
        self._products: set[tuple[Spec, Spec]] = set()  # already counted

    def of(self, steps: Sequence[Step], bodies: Sequence[Sequence[Step]]) -> int:
        """The bytes of all threads together."""
        for step, body in zip(steps, bodies, strict=True):
            if body:
                self._group(step, body)
            elif kind_of(step.type) is Kind.CONVOLUTION:
                self._convolution(step)
            elif step.type in WORKS_IN:
                self._kernel(step, math.prod(self._types[step.outputs[0]].shape), 1)
            elif step.type == "MatMul":
                self._packed(step)
        return sum(self._most.values())

    def _keep(self, kind: str, nbytes: int, threads: int) -> None:
        self._most[kind] = max(self._most.get(kind, 0), nbytes * threads)

    def _group(self, step: Step, body: Sequence[Step]) -> None:
        cut = cut_group(step)
        threads = min(self._cpus, cut.blocks) if cut.shared else 1
        self._keep("blocks", scratch(step, body, self._types), threads)
        elements = cut.rows * math.prod(step.attrs["space"][step.attrs["split"] :])
        for inner in step.body:
            self._kernel(inner, elements, threads)

    def _kernel(self, step: Step, elements: int, threads: int) -> None:
        if step.type == "AddN" and len(step.inputs) == 2:
            return  # an addition
        nbytes = elements * self._types[step.outputs[0]].dtype.itemsize
        for piece in WORKS_IN.get(step.type, "") if nbytes <= KEPT_BYTES else "":
            self._keep(piece, nbytes, threads)

    def _convolution(self, step: Step) -> None:
        types = self._types
        made = convolution(step.type, [types[v] for v in step.inputs], [types[v] for v in step.outputs], step.attrs)
        threads = min(self._cpus, made.blocks)
        self._keep("windows", made.nbytes // made.blocks, threads)
        self._keep("sums", made.sum_bytes * (made.lanes + threads), 1)
        self._keep("packed", min(made.nbytes // made.blocks, PACKED_BYTES), threads)

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


def scratch(step: Step, body: Sequence[Step], types: Sequence[Spec]) -> int:
    """The scratch bytes of one thread for the values inside a group with this body. Values of the same type that are
    not live at the same time share a buffer."""
    cut, split = cut_group(step), step.attrs["split"]
    outside = {*step.inputs, *step.outputs}
    last = {v: k for k, inner in enumerate(body) for v in inner.inputs}
    free: dict[Spec, int] = {}
    total = 0
    for k, inner in enumerate(body):
        dying = [v for v in dict.fromkeys(inner.inputs) if v not in outside and last[v] == k]
        at_once = is_in_place(inner, types)
        if at_once:
            _release(dying, types, split, free)
        for v in inner.outputs:
            if v in outside:
                continue
            row = Spec(types[v].shape[split:], types[v].dtype)
            if free.get(row):
                free[row] -= 1
            else:
                total += cut.rows * math.prod(row.shape) * row.dtype.itemsize
        if not at_once:
            _release(dying, types, split, free)
    return total


def _release(values: Sequence[int], types: Sequence[Spec], split: int, free: dict[Spec, int]) -> None:
    for v in values:
        row = Spec(types[v].shape[split:], types[v].dtype)
        free[row] = free.get(row, 0) + 1
