"""Compiles a task for NumPy: assigns memory to every value and calls to every step.

Results that stay inside the task are placed in the arena, where values with disjoint lifetimes share memory. Views of
them, and of constants, are made before the first run. Results that leave the task are allocated in every run.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from distgrad.registry import OPS, Kind, View, kind_of, view_of
from distgrad.result_buffers import MIN_BUFFER_BYTES, RESULT_BUFFERS
from distgrad.scheduler.cost.layout import Layout
from distgrad.scheduler.cost.memory import value_bytes
from distgrad.scheduler.overwriting import overwriting, updates
from distgrad.scheduler.passes.fuse import alone
from distgrad.scheduler.program import FUSED, Step
from distgrad.types import Spec
from distgrad.workers.calls import Filled, Kernel, Place, TapeCall, add_up, copied, item, nothing
from distgrad.workers.fused_run import FusedRun
from distgrad.workers.kernels import KERNELS
from distgrad.workers.numpy_engine.destinations import contiguous, destinations, like, parts, small_terms
from distgrad.workers.numpy_engine.into import INTO
from distgrad.workers.numpy_engine.stretches import Stretch, stretches
from distgrad.workers.numpy_engine.updating import part_offset, update_in_place
from distgrad.workers.thread_pool import ThreadPool

if TYPE_CHECKING:
    from distgrad.workers.native.small import SmallSteps

Array = np.ndarray[Any, np.dtype[Any]]

#: Arrays of at least this many bytes are freed at their last use, smaller ones at the end of the run.
WORTH_DROPPING = 1 << 16


class Compiler:
    """Assigns memory to every value, and calls to every step."""

    def __init__(
        self,
        steps: Sequence[Step],
        types: Sequence[Spec],
        reads: Sequence[int],
        gives: Sequence[int],
        pool: ThreadPool,
        native: bool,
        stays: Sequence[int] = (),
    ):
        self.calls: list[TapeCall] = []
        self.views: list[TapeCall] = []
        self.places: list[Place] = []
        self.fixed: list[tuple[int, Any]] = []
        self.layout = Layout()
        self.slots: dict[int, int] = {}
        self.count = 0
        #: Whether nothing is computed with NumPy; known when the calls were `played`.
        self.all_native = False
        self._types = types
        self._pool = pool
        self._native = native
        self._gives, self._stays = set(gives), set(stays)
        self._leaves: set[int] = set()  # values whose memory the caller gets for good
        self._static: set[int] = set()  # values whose slot is filled before a run
        self._root: dict[int, int] = {}  # value -> the value whose memory it sees
        self._strides: dict[int, tuple[int, ...]] = {}  # of values that are not contiguous
        self._offset: dict[int, int] = {}  # roots in the arena
        self._where: dict[int, int] = {}  # values in the arena that are contiguous
        self._looks: set[int] = set()  # slots of views that every run makes
        self._fresh: dict[int, list[int]] = {}  # roots that every run allocates: their slots and those of their views
        self._stretches: list[_Under] = []
        self._stretch: _Under | None = None
        self._bytes = value_bytes(types)
        self._small_steps = _small_steps(types) if native else None
        self._small_types = _small_types({step.type for step in steps})
        steps, self._fused_runs = self._with_native_groups(steps)
        self._end = len(steps)
        self._overwriting = overwriting(steps, self._bytes, gives)
        self._last = self._last_uses(steps)
        found: list[Stretch] = []
        if native and not self._overwriting.in_place:  # what overwrites an array stays behind all that read it
            given, (steps, found) = steps, stretches(steps, types, self._last, pool.size, self._fused_runs)
            if not all(map(operator.is_, given, steps)):
                self._overwriting = overwriting(steps, self._bytes, gives)
                self._last = self._last_uses(steps)
        self._targets = destinations(steps, types, gives)
        self._early: set[int] = set()  # targets that are there before the step that copies into them
        self._dying: dict[int, list[int]] = {}  # the values whose memory each step is the last to see
        for v, i in self._last.items():
            self._dying.setdefault(i, []).append(v)
        inside = {v for v, i in self._last.items() if i < self._end}
        self._homes = {} if native else small_terms(steps, types, inside)
        self._tables: dict[int, int] = {}  # sums whose terms lie in a table of their own: where it begins
        for v in reads:
            self._slot(v)
            self._root[v] = v
        ahead = {stretch.start: stretch for stretch in found}
        for i, step in enumerate(steps):
            if i in ahead:
                self._stretch = _Under(ahead[i], len(self.calls))
            self._add(i, step)
            if self._stretch is None:
                self._let_go(i, i + 1)
            elif i + 1 == self._stretch.found.stop:
                self._end_stretch()
            else:
                self._stretch.next(step, self._root)

    def played(self) -> list[TapeCall]:
        """The calls, with those of a stretch as one."""
        if not self._native:
            return self.calls
        played: list[TapeCall] = []
        done = 0
        static = self._static_slots() if self._stretches else set()
        for stretch in self._stretches:
            played += self.calls[done : stretch.begin]
            played += self._as_one(stretch, static)
            done = stretch.end
        return self._walked(played + self.calls[done:])

    def _walked(self, calls: list[TapeCall]) -> list[TapeCall]:
        """The same calls, with small native steps in a row as one."""
        from distgrad.workers.native.small import Known, is_native, walked

        places = {place.slot: place.offset for place in self.places}
        static = {slot for slot, _ in self.fixed}.union([view.out for view in self.views])
        memory = self._new_slot()
        made, binds = walked(calls, Known(places, static, self._looks, memory), self._new_slot)
        self.places.append(Place(memory, 0, Spec((self.layout.size,), np.dtype(np.uint8))))
        self.views += binds
        self.all_native = all(map(is_native, made))
        return made

    def _static_slots(self) -> set[int]:
        """The slots that have the same array in every run of an arena."""
        found = {slot for slot, _ in self.fixed}
        found.update([place.slot for place in self.places], [view.out for view in self.views])
        return found

    # -- stretches -------------------------------------------------------------------------------------------------

    def _end_stretch(self) -> None:
        """Values that a stretch uses are freed at its end: one item may still use them when another is done."""
        assert self._stretch is not None
        stretch, self._stretch = self._stretch, None
        stretch.end = len(self.calls)
        self._stretches.append(stretch)
        for place in stretch.copies:
            self._give_back(place)
        self._let_go(stretch.found.start, stretch.found.stop)

    def _as_one(self, stretch: _Under, static: Collection[int]) -> list[TapeCall]:
        made: list[TapeCall] = []
        parts: list[int] = []
        for k in range(stretch.begin, stretch.end):
            if k in stretch.cuts:
                parts.append(k)
                continue
            if k not in stretch.first:
                made += self._region(stretch, parts, static)
                parts = []
            made.append(self.calls[k])
        return made + self._region(stretch, parts, static)

    def _region(self, stretch: _Under, parts: Sequence[int], static: Collection[int]) -> list[TapeCall]:
        """Calls of a stretch as one."""
        from distgrad.workers.numpy_engine.region import Part, Region  # late: llvmlite is large

        calls = [self.calls[k] for k in parts]
        if len(calls) < 2:
            return calls
        slots = list(dict.fromkeys([slot for call in calls for slot in call.args]))
        number = {slot: i for i, slot in enumerate(slots)}
        inside = [
            Part(call.run, tuple([number[slot] for slot in call.args]), stretch.cuts[k], call.step)
            for k, call in zip(parts, calls, strict=True)
        ]
        stays = [i for i, slot in enumerate(slots) if slot in static]
        region = Region(inside, stretch.found.lead, stretch.found.items, stays, self._pool)
        table, step = self._new_slot(), calls[0].step
        self.views.append(TapeCall(region.bind, tuple([slots[i] for i in stays]), table, step))
        return [TapeCall(region, (table, *[slots[i] for i in region.moving]), self._new_slot(), step)]

    def _first(self, calls: Sequence[TapeCall]) -> None:
        """Calls of every run that a stretch does not wait for: they make views, and arrays with nothing in them."""
        if self._stretch is not None:
            self._stretch.first.update(range(len(self.calls), len(self.calls) + len(calls)))
        self.calls += calls

    def _note_cuts(self, values: Sequence[int]) -> None:
        """The call that was added last reads or makes these values; a stretch cuts some of them."""
        if self._stretch is not None:
            cut = self._stretch.cut
            self._stretch.cuts[len(self.calls) - 1] = None if cut is None else tuple([cut.get(v) for v in values])

    def _with_native_groups(self, steps: Sequence[Step]) -> tuple[list[Step], dict[int, FusedRun]]:
        """How groups run as native code, by what they make first. Other groups are taken apart: into groups of one step
        where native code has a rule for that, else into their steps."""
        made: list[Step] = []
        runs: dict[int, FusedRun] = {}
        for step in steps:
            made += self._taken_apart(step, runs) if step.type == FUSED else (step,)
        return made, runs

    def _taken_apart(self, step: Step, runs: dict[int, FusedRun]) -> Sequence[Step]:
        if not self._native:
            return step.body
        run = _native_group(step, self._types, self._pool)
        if run is not None:
            runs[step.outputs[0]] = run
            return (step,)
        if len(step.body) == 1:
            return step.body
        return [each for inner in step.body for each in self._taken_apart(alone(inner, self._types), runs)]

    # -- lives ---------------------------------------------------------------------------------------------------

    def _last_uses(self, steps: Sequence[Step]) -> dict[int, int]:
        """The last step that sees the memory of each value, counting what may become a view of it as one."""
        root: dict[int, int] = {}
        last: dict[int, int] = {}
        sees = {each: view_of(each) is not None or updates(each) for each in {step.type for step in steps}}
        for i, step in enumerate(steps):
            if sees[step.type]:
                for k, v in enumerate(step.outputs):
                    source = self._overwriting.source(step, k)
                    if source is not None:
                        root[v] = root.get(source, source)
                        last[root[v]] = i
            for v in (*step.outputs, *step.inputs):
                last[root.get(v, v)] = i
        for v in self._gives:
            last[root.get(v, v)] = self._end
        left = {root.get(v, v) for v in self._gives - self._stays}
        self._leaves = {v for v in (*last, *root) if root.get(v, v) in left}
        return {**last, **{v: last[r] for v, r in root.items()}}

    def _let_go(self, start: int, stop: int) -> None:
        """Free the values that the steps from `start` to `stop` use last."""
        if stop == start + 1 and start not in self._dying:
            return
        for v in [v for i in range(start, stop) for v in self._dying.pop(i, ()) if self._root[v] == v]:
            if v in self._offset:
                self.layout.give(self._offset.pop(v), self._bytes[v])
            elif v in self._fresh and self._nbytes(v) >= WORTH_DROPPING:
                self.calls += [TapeCall(nothing, (), slot, None) for slot in self._fresh.pop(v)]

    def _nbytes(self, v: int) -> int:
        return self._bytes[v]

    def _slot(self, v: int) -> int:
        self.slots[v] = self._new_slot()
        return self.slots[v]

    def _new_slot(self) -> int:
        self.count += 1
        return self.count - 1

    # -- steps ---------------------------------------------------------------------------------------------------

    def _add(self, i: int, step: Step) -> None:
        if self._small_steps is not None and step.type in self._small_types and self._small(i, step):
            return
        if step.type == "Const":
            self._constant(step)
        elif step.type == FUSED:
            self._fused(i, step)
        elif step.outputs and step.outputs[0] in self._early:
            self._copy_rest(step)
        elif step.outputs and step.outputs[0] in self._overwriting.copied:
            self._copy_of_view(i, step)
        elif updates(step.type):
            self._update(i, step)
        elif not (self._is_view(step) and self._view(step)) and not self._into(i, step):
            self._kernel(step)

    def _constant(self, step: Step) -> None:
        (v,) = step.outputs
        self.fixed.append((self._slot(v), KERNELS["Const"](np, **step.attrs)))
        self._static.add(v)
        self._root[v] = v

    def _call(
        self,
        run: Callable[..., Any],
        values: Sequence[int],
        out: int,
        step: Step,
        body: Sequence[Step] = (),
        in_order: bool = False,
    ) -> None:
        """`body` is what is computed where that is not the step itself; with `in_order`, all inputs are contiguous."""
        readers = body or (step,)
        wanted = [v for v in dict.fromkeys(step.inputs) if self._wants_order(readers, v, in_order)]
        ordered = {v: self._in_order(v) for v in wanted}
        slots = [ordered[v].slot if v in ordered else self.slots[v] for v in values]
        self.calls.append(TapeCall(run, tuple(slots), out, step))
        if self._stretch is not None:
            self._stretch.copies += ordered.values()
            return
        for place in ordered.values():
            self._give_back(place)

    def _give_back(self, place: Place) -> None:
        self.layout.give(place.offset, math.prod(place.spec.shape) * place.spec.dtype.itemsize)

    def _wants_order(self, readers: Sequence[Step], v: int, always: bool) -> bool:
        """Whether an input must be contiguous. Values of other tasks are, so bits would depend on the partition."""
        if v not in self._strides or (x := like(self._types[v], self._strides[v])).flags.c_contiguous:
            return False
        return always or any(_sees_order(step, x, self._types) for step in readers if v in step.inputs)

    def _in_order(self, v: int) -> Place:
        """A place for a contiguous copy of a value, and the call that makes it."""
        place = Place(self._new_slot(), self.layout.take(self._nbytes(v)), self._types[v])
        self.places.append(place)
        copy = TapeCall(copied, (place.slot, self.slots[v]), place.slot, None)
        if self._stretch is None or v not in (self._stretch.cut or ()):
            self._first([copy])
        else:
            self.calls.append(copy)
            self._note_cuts((v, v))
        return place

    def _is_view(self, step: Step) -> bool:
        if step.type != "Reshape" or step.inputs[0] not in self._strides:
            return view_of(step.type) is not None
        try:
            like(self._types[step.inputs[0]], self._strides[step.inputs[0]]).reshape(step.attrs["shape"], copy=False)
        except ValueError:
            return False
        return True

    def _view(self, step: Step) -> bool:
        """Made once where the memory is the arena's or a constant's, else in every run. Not at all where NumPy makes a
        number of what has no axes, because that is a copy."""
        if self._part(step) is not None:
            return True
        kernel = partial(KERNELS[step.type], np, **step.attrs)
        static = all(v in self._static for v in step.inputs)
        seen = kernel(*[like(self._types[v], self._strides.get(v)) for v in step.inputs])
        if isinstance(seen, np.generic):
            return False
        args = tuple([self.slots[v] for v in step.inputs])
        if isinstance(seen, tuple):
            whole = self._new_slot()
            calls = [TapeCall(kernel, args, whole, step)]
            calls += [TapeCall(partial(item, k), (whole,), self._slot(v), step) for k, v in enumerate(step.outputs)]
        else:
            calls = [TapeCall(kernel, args, self._slot(step.outputs[0]), step)]
        self._look(calls, static)
        for k, (v, x) in enumerate(zip(step.outputs, seen if isinstance(seen, tuple) else (seen,), strict=True)):
            source = _seen(step, k)
            assert source is not None
            self._root[v] = self._root[source]
            if self._root[v] in self._fresh:
                self._fresh[self._root[v]].append(self.slots[v])
            if x.strides != contiguous(self._types[v]):
                self._strides[v] = x.strides
            if static:
                self._static.add(v)
        return True

    def _part(self, step: Step) -> int | None:
        """The slot of a part of a value in the arena that is contiguous like the value; None for any other view."""
        source, (v, *others) = step.inputs[0], step.outputs
        if "index" not in step.attrs or source not in self._where or others:
            return None
        slot = self._part_of(source, step.attrs["index"], v)
        if slot is not None:
            self.slots[v], self._root[v], self._where[v] = slot, self._root[source], self.places[-1].offset
            self._static.add(v)
        return slot

    def _part_of(self, source: int, index: Any, like: int) -> int | None:
        """The same for x[index], which has the type of `like`."""
        at = part_offset(index, self._types[source])
        if at is None:
            return None
        slot = self._new_slot()
        self.places.append(Place(slot, self._where[source] + at, self._types[like]))
        return slot

    def _look(self, views: Sequence[TapeCall], static: bool) -> None:
        if static:
            self.views += views
        else:
            self._looks.update([call.out for call in views])
            self._first(views)

    # -- updates -------------------------------------------------------------------------------------------------

    def _update(self, i: int, step: Step) -> None:
        """In place, or in a copy of the array."""
        (v,), base = step.outputs, step.inputs[0]
        if v in self._overwriting.in_place:
            self.slots[v], self._root[v] = self.slots[base], self._root[base]
            if base in self._static:
                self._static.add(v)
            if base in self._where:
                self._where[v] = self._where[base]
        else:
            out = self._out(i, step, v, ())
            self.calls.append(TapeCall(copied, (out, self.slots[base]), out, step))
        if not self._native_update(step):
            args = (v, *step.inputs[1:])
            run = update_in_place(step.type, step.attrs)
            self.calls.append(TapeCall(run, tuple([self.slots[u] for u in args]), self.slots[v], step))

    def _native_update(self, step: Step) -> bool:
        """Set or add to a contiguous part in the arena as native code; False if it cannot run so."""
        (v,), value, mode = step.outputs, step.inputs[1], step.attrs.get("mode")
        if self._small_steps is None or len(step.inputs) > 2 or v not in self._where or value in self._strides:
            return False
        if mode == "set":
            run = self._small_steps.copy(value)
        elif mode == "add":
            run = self._small_steps.of(replace(step, type="Add", inputs=(value, value), outputs=(value,), attrs={}))
        else:
            run = None
        at = None if run is None else self._part_of(v, step.attrs["index"], value)
        if run is None or at is None:
            return False
        before = (at,) if mode == "add" else ()
        self.calls.append(TapeCall(run, (*before, self.slots[value], at), at, step))
        return True

    def _copy_of_view(self, i: int, step: Step) -> None:
        """A view of what is overwritten before its last use."""
        (v,), source = step.outputs, step.inputs[0]
        run = None if self._small_steps is None else self._small_steps.copy(v)
        at = None
        if run is not None and "index" in step.attrs and source in self._where:
            at = self._part_of(source, step.attrs["index"], v)
        if run is None or at is None:
            at, view = self._new_slot(), partial(KERNELS[step.type], np, **step.attrs)
            self._look([TapeCall(view, (self.slots[source],), at, step)], source in self._static)
            run = None
        out = self._out(i, step, v, ())
        self.calls.append(
            TapeCall(copied, (out, at), out, step) if run is None else TapeCall(run, (at, out), out, step)
        )

    def _into(self, i: int, step: Step) -> bool:
        """Add a step that is computed into its place; False if its kernel allocates."""
        if len(step.outputs) != 1 or OPS[step.type].kernel is not None:
            return False
        if self._large(i, step):
            return True
        entry, (v,) = INTO.get(step.type), step.outputs
        if entry is None:
            return False
        if step.type == "AddN" and self._types[v].dtype.itemsize > 2 and len(step.inputs) > 1:
            self._sum(i, step)
            return True
        out = self._out(i, step, v, step.inputs if entry.overlap else ())
        if entry.ufunc is not None:
            self._call(entry.ufunc, (*step.inputs, v), out, step)
        else:
            assert entry.function is not None
            self._call(Filled(entry.function, step.attrs), (v, *step.inputs), out, step)
            self._note_cuts((v, *step.inputs))
        return True

    def _small(self, i: int, step: Step) -> bool:
        """Add an elementwise step as native code; False if it cannot run so, or is a sum of several."""
        assert self._small_steps is not None
        inputs = step.inputs
        run = None if step.type == "AddN" and len(inputs) > 2 else self._small_steps.of(step)
        if run is None:
            return False
        v = step.outputs[0]
        out = self._out(i, step, v, inputs)
        if self._stretch is None and self._strides.keys().isdisjoint(inputs):
            slots = self.slots
            self.calls.append(TapeCall(run, (*[slots[u] for u in inputs], out), out, step))
        else:
            self._call(run, (*inputs, v), out, step, in_order=True)
        return True

    def _large(self, i: int, step: Step) -> bool:
        """Add a step that is native code of its own, which threads share; False if there is none for it."""
        run = _native_run(step, self._types, self._pool) if self._native else None
        if run is None:
            return False
        (v,) = step.outputs
        out = self._out(i, step, v, ())
        self._call(run, (*step.inputs, v), out, step, in_order=True)
        return True

    def _row_of(self, v: int, total: Step, k: int) -> int:
        (home,) = total.outputs
        if home not in self._tables:
            self._tables[home] = self.layout.take(len(total.inputs) * self._nbytes(v))
        return self._tables[home] + k * self._nbytes(v)

    def _sum_rows(self, i: int, step: Step) -> None:
        """The sum of terms that lie one behind the other: NumPy adds row after row, as one addition after another."""
        (v,) = step.outputs
        spec, table = self._types[v], self._new_slot()
        self.places.append(Place(table, self._tables[v], Spec((len(step.inputs), math.prod(spec.shape)), spec.dtype)))
        out = self._out(i, step, v, ())
        self.calls.append(TapeCall(add_up, (table, out), out, step))

    def _sum(self, i: int, step: Step) -> None:
        """A sum of several is one addition after another."""
        first, second, *others = step.inputs
        (v,) = step.outputs
        if first in self._homes and self._homes[first][0] is step:
            self._sum_rows(i, step)
            return
        out = self._out(i, step, v, [u for u in (first, second) if u not in others])
        add = self._addition(step)
        self._call(add, (first, second, v), out, step)
        for u in others:
            if u in self._strides or self._stretch is not None:
                self._call(add, (v, u, v), out, step)
            else:
                self.calls.append(TapeCall(add, (out, self.slots[u], out), out, step))

    def _addition(self, step: Step) -> Callable[..., Any]:
        """What adds two terms of a sum: native code takes contiguous ones."""
        two = replace(step, inputs=step.inputs[:2])
        contiguous = self._native and self._strides.keys().isdisjoint(step.inputs)
        return (self._small_steps.of(two) if contiguous and self._small_steps is not None else None) or np.add

    def _fused(self, i: int, step: Step) -> None:
        run = self._fused_runs[step.outputs[0]]
        for v in step.outputs:
            self._out(i, step, v, run.overwritable(v))
        self._call(run, (*step.inputs, *step.outputs), self._new_slot(), step, run.body, in_order=True)
        self._note_cuts((*step.inputs, *step.outputs))

    def _out(self, i: int, step: Step, v: int, overwritable: Sequence[int]) -> int:
        """The slot of a result, with an array in it: of the arena, or a new one where it leaves the task."""
        if v in self._targets:
            return self._at_target(i, step, v)
        slot, spec = self.count, self._types[v]
        self.count, self.slots[v], self._root[v] = slot + 1, slot, v
        if v in self._leaves:
            empty = np.empty if self._nbytes(v) < MIN_BUFFER_BYTES else RESULT_BUFFERS.empty
            self._first([TapeCall(partial(empty, spec.shape, spec.dtype), (), slot, step)])
            return slot
        self._offset[v] = self._where[v] = self._place(i, step, v, overwritable)
        self._static.add(v)
        self.places.append(Place(slot, self._offset[v], spec))
        return slot

    def _at_target(self, i: int, step: Step, v: int) -> int:
        """The slot of a product that is computed into a part of the value it is copied to."""
        part = self._targets[v]
        if part.target not in self.slots:
            self._early.add(part.target)
            self._out(i, step, part.target, ())
        static = part.target in self._static
        slot = self._slot(v)
        self._look([TapeCall(part.of, (self.slots[part.target],), slot, step)], static)
        self._root[v] = part.target
        self._strides[v] = part.of(like(self._types[part.target])).strides
        if static:
            self._static.add(v)
        return slot

    def _copy_rest(self, step: Step) -> None:
        """What a step copies that was not made at its target already."""
        (target,) = step.outputs
        for v, part in zip(step.inputs, parts(step, self._types) or (), strict=True):
            if self._root[v] != target:
                at = self._new_slot()
                self._look([TapeCall(part.of, (self.slots[target],), at, step)], target in self._static)
                self.calls.append(TapeCall(copied, (at, self.slots[v]), at, step))
                self._note_cuts((v, v))

    def _place(self, i: int, step: Step, v: int, overwritable: Sequence[int]) -> int:
        """The place of an input that dies with this step and has the same type, or one of the layout."""
        if v in self._homes:
            return self._row_of(v, *self._homes[v])
        for u in overwritable:
            if u not in self._offset or self._last[u] != i or self._types[u] != self._types[v]:
                continue
            alone = sum([self._root[w] == u for w in set(step.inputs)]) == 1
            if alone and (self._stretch is None or self._stretch.has_alone(u)):
                return self._offset.pop(u)
        return self.layout.take(self._nbytes(v))

    def _kernel(self, step: Step) -> None:
        """A kernel that makes its own results."""
        several = len(step.outputs) != 1
        run = Kernel(step, [self._types[v] for v in step.outputs])
        out = self._new_slot() if several else self._slot(step.outputs[0])
        self._call(run, step.inputs, out, step)
        for k, v in enumerate(step.outputs):
            if several:
                self.calls.append(TapeCall(partial(item, k), (out,), self._slot(v), step))
            self._root[v] = v
            self._fresh[v] = [self.slots[v]]
        if several:
            self.calls.append(TapeCall(nothing, (), out, None))


def _native_group(step: Step, types: Sequence[Spec], pool: ThreadPool) -> FusedRun | None:
    """A fused step as native code; None where an op in it has no rule."""
    from distgrad.workers.native.blocks import native_blocks  # late: llvmlite is large

    return native_blocks(step, types, pool)


def _small_types(op_types: Collection[str]) -> frozenset[str]:
    """Those of elementwise built-in ops."""
    return frozenset([each for each in op_types if kind_of(each) is Kind.ELEMENTWISE and OPS[each].kernel is None])


def _small_steps(types: Sequence[Spec]) -> SmallSteps:
    """Elementwise steps as native code."""
    from distgrad.workers.native.small import SmallSteps

    return SmallSteps(types)


def _native_run(step: Step, types: Sequence[Spec], pool: ThreadPool) -> Callable[..., Any] | None:
    """A step that is not fused as native code; None where there is none for it."""
    from distgrad.workers.native.kernels.steps import native_step

    return native_step(step, types, pool)


class _Under:
    """A stretch under way: the calls from `begin` to `end`, which of them come first, and what the others cut."""

    def __init__(self, found: Stretch, begin: int):
        self.found, self.begin, self.end = found, begin, begin
        self.first: set[int] = set()
        self.cuts: dict[int, tuple[int | None, ...] | None] = {}
        self.copies: list[Place] = []
        self._done = 0
        self._read: set[int] = set()
        self._made: set[int] = set()

    @property
    def cut(self) -> Mapping[int, int] | None:
        """The values of the present step that are cut, with the axis; None where it is a product of its own."""
        return self.found.cut[self._done]

    def next(self, step: Step, root: Mapping[int, int]) -> None:
        """A step is done."""
        self._read.update([root[v] for v in step.inputs])
        self._made.update(step.outputs)
        self._done += 1

    def has_alone(self, v: int) -> bool:
        """Whether an item can overwrite its part of a value: what the stretch did not make, it may have read in other
        parts."""
        return v in self._made or v not in self._read


def _seen(step: Step, k: int) -> int | None:
    """The input whose memory the k-th result may see."""
    view = view_of(step.type)
    if view is View.SAME:
        return step.inputs[k]
    return step.inputs[0] if view is not None else None


def _sees_order(step: Step, x: Array, types: Sequence[Spec]) -> bool:
    """Whether a step's bits depend on how an input lies in memory: sums do, as NumPy takes them in its order. A product
    of matrices does not as long as BLAS takes them as they are; one with a vector does."""
    if step.type == "MatMul":
        as_it_is = x.strides[-1] == x.itemsize and x.strides[-2] >= x.shape[-1] * x.itemsize
        return not as_it_is or 1 in types[step.outputs[0]].shape[-2:]
    return step.type not in INTO
