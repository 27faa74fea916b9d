"""A task, compiled for NumPy: a tape of calls over numbered slots, with every array that can be made before made before.

`Tape` walks the steps of a task once. Results that stay inside the task get a place in the arena; views of them are made
when the tape is bound to an arena, and cost nothing when it runs. What leaves the task is made anew in every run. Running
is one loop: `slots[out] = run(*pick(slots))`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import as_strided

from distgrad.registry import OPS, OpDef
from distgrad.scheduler.memory import PAIRED_VIEWS, VIEWS
from distgrad.scheduler.program import FUSED, Step
from distgrad.types import DType, Shape, Spec
from distgrad.workers import reference
from distgrad.workers.arena import ARENAS, Arena, Layout
from distgrad.workers.blocks import Blocks, picker
from distgrad.workers.crew import Crew
from distgrad.workers.kernels import KERNELS
from distgrad.workers.kernels.into import INTO
from distgrad.workers.watch import Watch

Array = np.ndarray[Any, np.dtype[Any]]

#: Arrays of at least this size are let go at their last use; smaller ones when the run ends.
WORTH_DROPPING = 1 << 16


class Call(NamedTuple):
    """slots[out] = run(*pick(slots)); `step` says whose work it is."""

    run: Callable[..., Any]
    pick: Callable[[Any], Any]
    out: int
    step: Step | None


class _Place(NamedTuple):
    """Bytes of the arena, seen as an array."""

    slot: int
    offset: int
    spec: Spec


def compute(
    definition: OpDef, inputs: Sequence[Array], attrs: Mapping[str, Any], specs: Sequence[tuple[Shape, DType]]
) -> list[Array]:
    """One op at once, with the bits that a tape gives."""
    entry = INTO.get(definition.type) if definition.kernel is None else None
    if entry is None or entry.exact:
        return reference.apply(definition, inputs, attrs, specs)
    out: Array = np.empty(*specs[0])
    with np.errstate(all="ignore"):
        entry(out, *inputs, **attrs)
    return [out]


class Tape:
    """The steps of a task, from the arrays of `reads` to those of `gives`.

    Args:
        steps: in an order that respects what they read.
        types: of all values of the program.
        reads: the values that come in; their arrays are never written into.
        gives: the values that go out; their arrays belong to the caller, except for those that came in.
        crew: the threads that share fused steps.
    """

    def __init__(
        self, steps: Sequence[Step], types: Sequence[Spec], reads: Sequence[int], gives: Sequence[int], crew: Crew
    ):
        made = _Compiler(steps, types, reads, gives, crew)
        self.calls = made.calls
        self.nbytes = made.layout.size
        self._places = made.places
        self._views = made.views
        self._fixed = made.fixed
        self._given = [made.slots[v] for v in reads]
        self._leaving = [made.slots[v] for v in gives]
        self._slot_of = made.slots
        self._count = made.count

    def run(self, given: Sequence[Array], watch: Watch | None = None) -> list[Array]:
        arena = ARENAS.take()  # given back after a run that ended well: after another, somebody may still write into it
        slots = self.bound(arena).copy()
        for slot, x in zip(self._given, given, strict=True):
            slots[slot] = x if x.flags.c_contiguous else np.asarray(x, order="C")
        calls = iter(self.calls)
        try:
            if watch is None:
                for run, pick, out, _ in calls:
                    slots[out] = run(*pick(slots))
            else:
                for run, pick, out, step in calls:
                    watch.before(step)
                    slots[out] = run(*pick(slots))
                    watch.after([x for v in step.outputs if (x := slots[self._slot_of[v]]) is not None] if step else ())
        except Exception as e:
            done = len(self.calls) - calls.__length_hint__()
            raise StepFailed(self.calls[done - 1].step) from e
        leaving = [slots[slot] for slot in self._leaving]
        ARENAS.give(arena)
        return leaving

    def bound(self, arena: Arena) -> list[Any]:
        """The slots as a run finds them: constants, the places of the arena, and views of both."""
        slots = arena.bound.get(self)
        if slots is None:
            arena.reserve(self.nbytes)
            slots = [None] * self._count
            for slot, value in self._fixed:
                slots[slot] = value
            for slot, offset, spec in self._places:
                nbytes = spec.dtype.itemsize * math.prod(spec.shape)
                slots[slot] = arena.memory[offset : offset + nbytes].view(spec.dtype).reshape(spec.shape)
            for run, pick, out, _ in self._views:
                slots[out] = run(*pick(slots))
            arena.bound[self] = slots
        return slots


class StepFailed(Exception):
    """A call of a tape raised; the cause is what it raised."""

    def __init__(self, step: Step | None):
        super().__init__(step)
        self.step = step


class _Compiler:
    """Decides for every value where it lies, and for every step what is called."""

    def __init__(
        self, steps: Sequence[Step], types: Sequence[Spec], reads: Sequence[int], gives: Sequence[int], crew: Crew
    ):
        self.calls: list[Call] = []
        self.views: list[Call] = []
        self.places: list[_Place] = []
        self.fixed: list[tuple[int, Any]] = []
        self.layout = Layout()
        self.slots: dict[int, int] = {}
        self.count = 0
        self._types = types
        self._crew = crew
        self._gives = set(gives)
        self._static: set[int] = set()  # values whose slot is filled before a run
        self._root: dict[int, int] = {}  # value -> the value whose memory it sees
        self._strides: dict[int, tuple[int, ...]] = {}  # of values that are not contiguous
        self._offset: dict[int, int] = {}  # roots in the arena
        self._fresh: dict[int, list[int]] = {}  # roots that a run makes anew: their slots and those of their views
        self._end = len(steps)
        self._last = self._last_uses(steps)
        for v in reads:
            self._slot(v)
            self._root[v] = v
        for i, step in enumerate(steps):
            self._add(i, step)
            self._let_go(i, step)

    # -- lives ---------------------------------------------------------------------------------------------------

    def _last_uses(self, steps: Sequence[Step]) -> dict[int, int]:
        """The last step that sees the memory of each value, counting what may become a view of it as one."""
        root: dict[int, int] = {}
        last: dict[int, int] = {}
        for i, step in enumerate(steps):
            for k, v in enumerate(step.outputs):
                source = _seen(step, k)
                if source is not None:
                    root[v] = root.get(source, source)
                last[root.get(v, v)] = i
            for v in step.inputs:
                last[root.get(v, v)] = i
        for v in self._gives:
            last[root.get(v, v)] = self._end
        return {**last, **{v: last[r] for v, r in root.items()}}

    def _let_go(self, i: int, step: Step) -> None:
        for v in dict.fromkeys([self._root[v] for v in (*step.inputs, *step.outputs)]):
            if self._last[v] != i:
                continue
            if v in self._offset:
                self.layout.give(self._offset.pop(v), self._nbytes(v))
            elif v in self._fresh and self._nbytes(v) >= WORTH_DROPPING:
                self.calls += [Call(_nothing, picker(()), slot, None) for slot in self._fresh.pop(v)]

    def _nbytes(self, v: int) -> int:
        spec = self._types[v]
        return spec.dtype.itemsize * math.prod(spec.shape)

    def _slot(self, v: int) -> int:
        self.slots[v] = self._new_slot()
        return self.slots[v]

    def _new_slot(self) -> int:
        self.count += 1
        return self.count - 1

    # -- steps ---------------------------------------------------------------------------------------------------

    def _add(self, i: int, step: Step) -> None:
        if step.type == "Const":
            self._constant(step)
        elif step.type == FUSED:
            self._fused(i, step)
        elif self._is_view(step):
            self._view(step)
        elif OPS[step.type].kernel is None and step.type in INTO and len(step.outputs) == 1:
            self._into(i, step)
        else:
            self._kernel(step)

    def _constant(self, step: Step) -> None:
        (v,) = step.outputs
        self.fixed.append((self._slot(v), KERNELS["Const"](np, **step.attrs)))
        self._static.add(v)
        self._root[v] = v

    def _call(self, run: Callable[..., Any], values: Sequence[int], out: int, step: Step) -> None:
        self.calls.append(Call(run, picker([self.slots[v] for v in values]), out, step))

    def _is_view(self, step: Step) -> bool:
        if step.type != "Reshape" or step.inputs[0] not in self._strides:
            return step.type in VIEWS
        try:
            self._like(step.inputs[0]).reshape(step.attrs["shape"], copy=False)
        except ValueError:
            return False
        return True

    def _like(self, v: int) -> Array:
        """An array with the shape and strides of a value and nothing behind it."""
        spec = self._types[v]
        return as_strided(np.empty((), spec.dtype), spec.shape, self._strides.get(v) or _contiguous(spec))

    def _view(self, step: Step) -> None:
        """Made once where the memory is the arena's or a constant's, else in every run."""
        kernel = partial(KERNELS[step.type], np, **step.attrs)
        static = all(v in self._static for v in step.inputs)
        calls = self.views if static else self.calls
        like = kernel(*[self._like(v) for v in step.inputs])
        pick = picker([self.slots[v] for v in step.inputs])
        if isinstance(like, tuple):
            whole = self._new_slot()
            calls.append(Call(kernel, pick, whole, step))
            calls += [Call(partial(_item, k), picker([whole]), self._slot(v), step) for k, v in enumerate(step.outputs)]
        else:
            calls.append(Call(kernel, pick, self._slot(step.outputs[0]), step))
        for k, (v, x) in enumerate(zip(step.outputs, like if isinstance(like, tuple) else (like,), strict=True)):
            source = _seen(step, k)
            assert source is not None
            self._root[v] = self._root[source]
            if self._root[v] in self._fresh:
                self._fresh[self._root[v]].append(self.slots[v])
            if x.strides != _contiguous(self._types[v]):
                self._strides[v] = x.strides
            if static:
                self._static.add(v)

    def _into(self, i: int, step: Step) -> None:
        entry, (v,) = INTO[step.type], step.outputs
        out = self._out(i, step, v, step.inputs if entry.overlap else ())
        if entry.ufunc is not None:
            self._call(entry.ufunc, (*step.inputs, v), out, step)
        else:
            self._call(_Filled(entry.function, step.attrs), (v, *step.inputs), out, step)

    def _fused(self, i: int, step: Step) -> None:
        for v in step.outputs:
            self._out(i, step, v, _overwritable(step, v))
        run = Blocks(step, self._types, self._crew)
        self._call(run, (*step.inputs, *step.outputs), self._new_slot(), step)

    def _out(self, i: int, step: Step, v: int, overwritable: Sequence[int]) -> int:
        """The slot of a result, with an array in it: of the arena, or a new one where it leaves the task."""
        slot, spec = self._slot(v), self._types[v]
        self._root[v] = v
        if self._last[v] == self._end:
            self.calls.append(Call(partial(np.empty, spec.shape, spec.dtype), picker(()), slot, step))
            return slot
        self._offset[v] = self._place(i, step, v, overwritable)
        self._static.add(v)
        self.places.append(_Place(slot, self._offset[v], spec))
        return slot

    def _place(self, i: int, step: Step, v: int, overwritable: Sequence[int]) -> int:
        """The place of an input that dies with this step and has the same type, or one of the layout."""
        for u in overwritable:
            alone = sum(self._root[w] == u for w in set(step.inputs)) == 1
            if u in self._offset and alone and self._last[u] == i and self._types[u] == self._types[v]:
                return self._offset.pop(u)
        return self.layout.take(self._nbytes(v))

    def _kernel(self, step: Step) -> None:
        """A kernel that makes its own results."""
        several = len(step.outputs) != 1
        run = _Kernel(step, [self._types[v] for v in step.outputs])
        out = self._new_slot() if several else self._slot(step.outputs[0])
        self._call(run, step.inputs, out, step)
        for k, v in enumerate(step.outputs):
            if several:
                self.calls.append(Call(partial(_item, k), picker([out]), self._slot(v), step))
            self._root[v] = v
            self._fresh[v] = [self.slots[v]]
        if several:
            self.calls.append(Call(_nothing, picker(()), out, None))


class _Filled:
    """Calls what fills its first argument, and gives that."""

    def __init__(self, function: Callable[..., Any], attrs: Any):
        self._function = partial(function, **attrs) if attrs else function

    def __call__(self, out: Array, *inputs: Array) -> Array:
        self._function(out, *inputs)
        return out


class _Kernel:
    """Calls a kernel that makes its own results; they are contiguous, and no views of what it was given."""

    def __init__(self, step: Step, specs: Sequence[Spec]):
        self._type, self._attrs, self._specs = step.type, step.attrs, specs
        self._run = partial(KERNELS[step.type], np, **step.attrs) if OPS[step.type].kernel is None else self._user_op

    def _user_op(self, *inputs: Array) -> tuple[Array, ...]:
        return tuple(reference.apply(OPS[self._type], inputs, self._attrs, self._specs))

    def __call__(self, *inputs: Array) -> Any:
        made = self._run(*inputs)
        outputs = [_own(x, inputs) for x in (made if isinstance(made, tuple | list) else (made,))]
        return outputs[0] if len(self._specs) == 1 else outputs


def _own(x: Any, inputs: Sequence[Array]) -> Array:
    made: Array = np.asarray(x, order="C")
    seen = made.base is not None or any(made is y for y in inputs)
    return made.copy() if seen and any(np.may_share_memory(made, y) for y in inputs) else made


def _seen(step: Step, k: int) -> int | None:
    """The input whose memory the k-th result may see."""
    if step.type in PAIRED_VIEWS:
        return step.inputs[k]
    return step.inputs[0] if step.type in VIEWS else None


def _overwritable(step: Step, v: int) -> list[int]:
    """The inputs of a fused step in whose place this output can be written: all that reads them comes before."""
    if not any(v in inner.outputs for inner in step.body):
        return []
    at = next(i for i, inner in enumerate(step.body) if v in inner.outputs)
    last = {u: i for i, inner in enumerate(step.body) for u in inner.inputs}
    meanwhile = INTO[step.body[at].type].overlap
    return [u for u in step.inputs if last[u] < at or (last[u] == at and meanwhile)]


def _contiguous(spec: Spec) -> tuple[int, ...]:
    strides, step = [], spec.dtype.itemsize
    for n in reversed(spec.shape):
        strides.append(step)
        step *= n
    return tuple(reversed(strides))


def _item(k: int, values: Sequence[Any]) -> Any:
    return values[k]


def _nothing() -> None:
    return None
