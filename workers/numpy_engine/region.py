"""Regions: a stretch of steps as a table, which threads walk without Python.

A thread takes an item of rows through all parts of the stretch, then the next one; products that have nothing to do
with the items are cut into pieces, which threads take at the end. For a part without a native function the thread
returns to Python, computes the part there, and goes on with the next row.
"""

from __future__ import annotations

import ctypes
import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from distgrad.scheduler.program import Step
from distgrad.workers.calls import StepFailed, Watched
from distgrad.workers.calls import copied as copies_all
from distgrad.workers.kernels.products import multiply, split
from distgrad.workers.kernels.scratch import several
from distgrad.workers.kernels.sharing import in_turn, shared
from distgrad.workers.native.blocks import NativeBlocks
from distgrad.workers.native.regions.code import DONE, LAST, NEXT, PYTHON, SPENT, region_code
from distgrad.workers.native.regions.table import Place, Row, Table, View, address, copied, multiplied
from distgrad.workers.numpy_engine.into import COPIES, matrices
from distgrad.workers.task_monitor import TaskMonitor
from distgrad.workers.thread_pool import ThreadPool

Array = np.ndarray[Any, np.dtype[Any]]

_ALL = (slice(None),) * 64
_BYTE = np.dtype(np.uint8)
#: Bytes of which the memory of partial sums is a multiple: a cache line.
_LINE = 64


class Part(NamedTuple):
    """A call of a stretch: which of the stretch's arrays it takes, and along which axis each is cut, if it is; `cut` is
    None for a product of its own."""

    run: Callable[..., Any]
    arrays: tuple[int, ...]
    cut: tuple[int | None, ...] | None
    step: Step | None


class Region(Watched):
    """The parts of a stretch. `static` are those of its arrays, by number, that an arena has for good."""

    def __init__(self, parts: Sequence[Part], lead: int, count: int, static: Sequence[int], pool: ThreadPool):
        self.parts, self.pool, self.static = parts, pool, static
        self.count = count if any(part.cut is not None for part in parts) else 0
        size = lead // count if count else 0
        self.items = [slice(i * size, (i + 1) * size) for i in range(self.count)]
        arrays = {i for part in parts for i in part.arrays}
        self.moving = sorted(arrays.difference(static))
        #: The parts whose inputs are checked, with what these are made of: the region itself may copy them.
        copied_from = {part.arrays[0]: part.arrays[1] for part in parts if part.run is copies_all}
        self.checked = [
            (part, [copied_from.get(i, i) for i in part.arrays])
            for part in parts
            if isinstance(part.run, NativeBlocks) and part.run.checked
        ]
        fused = [part.run for part in parts if isinstance(part.run, NativeBlocks)]
        self.scratch_bytes = max([run.scratch_bytes for run in fused], default=0)

    def bind(self, *arrays: Array) -> Bound:
        """The region for one arena, with the arrays that it has for good."""
        return Bound(self, dict(zip(self.static, arrays, strict=True)))

    def __call__(self, bound: Bound, *moving: Array) -> None:
        bound.run(moving, None)

    def watched(self, monitor: TaskMonitor, bound: Bound, *moving: Array) -> None:
        bound.run(moving, monitor)


class Bound:
    """A region with the arrays of an arena. The table is made at the first run, when all arrays have been seen."""

    def __init__(self, region: Region, static: dict[int, Array]):
        self._region, self._static = region, static
        self._arrays = static.copy()
        self._table: Table | None = None

    def run(self, moving: Sequence[Array], monitor: TaskMonitor | None) -> None:
        self._arrays.update(zip(self._region.moving, moving, strict=True))
        try:
            spent = self._run(monitor)
        finally:  # nothing that leaves the task is kept alive
            self._arrays = self._static.copy()
        if monitor is not None:
            seconds = [sum([each[SPENT + k] for each in spent]) / 1e9 for k in range(len(self._region.parts))]
            monitor.divide([(part.step, s) for part, s in zip(self._region.parts, seconds, strict=True)])

    def _run(self, monitor: TaskMonitor | None) -> list[Any]:
        """The final states of the threads."""
        for part, sources in self._region.checked:
            self._check(part, sources)
        table = self._table = self._table or self._made()
        memory = self._arrays[self._sums] = self._begun.copy()
        table.move(self._arrays)
        states: list[Any] = []
        try:  # threads keep the arrays: an interrupt may end this call while they are still inside
            self._region.pool.each(len(self._units), partial(self._work, table, self._arrays, monitor, states))
        except BaseException:
            table.stop()
            raise
        for part, fused, sums in self._folded:
            fused.end([self._arrays[i] for i in part.arrays], [each.of_memory(memory) for each in sums])
        return states

    def _check(self, part: Part, sources: Sequence[int]) -> None:
        """Before anything runs: what native code takes for granted is not checked for each item."""
        assert isinstance(part.run, NativeBlocks)
        try:
            part.run.check([self._arrays[i] for i in sources])
        except Exception as e:
            raise StepFailed(part.step) from e

    # -- threads -------------------------------------------------------------------------------------------------------

    def _work(
        self,
        table: Table,
        arrays: dict[int, Array],
        monitor: TaskMonitor | None,
        states: list[Any],
        numbers: Iterator[int],
    ) -> None:
        """One thread's share of the units."""
        state = (ctypes.c_int64 * (SPENT + len(self._region.parts)))()
        states.append(state)
        size, run = self._region.scratch_bytes, region_code().run
        memory = several([((size,), _BYTE)], "native") if size else []  # alive as long as its address is used
        scratch = address(memory[0]) if memory else 0
        try:
            with shared(1, in_turn):
                for number in numbers:
                    state[NEXT], state[LAST] = self._units[number]
                    self._go(run, table, arrays, state, scratch, monitor)
        except BaseException:
            table.stop()
            raise

    def _go(
        self,
        run: Callable[..., int],
        table: Table,
        arrays: dict[int, Array],
        state: Any,
        scratch: int,
        monitor: TaskMonitor | None,
    ) -> None:
        """Walk the rows of a unit. From time to time Python is back, and hears of signals and of a run that is over."""
        parts, steps = self._region.parts, self._steps
        while True:
            if monitor is not None:
                self._tell(monitor, parts[steps[min(state[NEXT], len(steps) - 1)]].step)
            found = run(table.address, ctypes.addressof(state), scratch)
            if found == DONE:
                return
            if found == PYTHON:
                k, number = self._called[state[NEXT]]
                begun = time.perf_counter_ns()
                self._call(arrays, k, number)
                state[SPENT + k] += time.perf_counter_ns() - begun
                state[NEXT] += 1

    def _tell(self, monitor: TaskMonitor, step: Step | None) -> None:
        try:
            monitor.inside(step)
        except Exception as e:
            raise StepFailed(step) from e

    def _call(self, arrays: dict[int, Array], k: int, number: int) -> None:
        """A part for one item, or a piece of a product, by its own Python."""
        part = self._region.parts[k]
        try:
            given = [arrays[i] for i in part.arrays]
            if part.cut is None:
                multiply(*self._pieces(part, given)[number])
            else:
                self._item(part, number, given)
        except Exception as e:
            raise StepFailed(part.step) from e

    def _item(self, part: Part, number: int, given: Sequence[Array]) -> None:
        assert part.cut is not None
        item = self._region.items[number]
        cut = [x if axis is None else x[(*_ALL[:axis], item)] for x, axis in zip(given, part.cut, strict=True)]
        part.run(*cut)

    # -- the table -----------------------------------------------------------------------------------------------------

    def _made(self) -> Table:
        region = self._region
        self._sums = len(self._arrays)
        self._folded, self._begun = _partial_sums(region.parts)
        self._arrays[self._sums] = self._begun
        sums = {id(part): [view.offset for view in views] for part, _, views in self._folded}
        rows: list[Row] = []
        self._units: list[tuple[int, int]] = []
        own = [(k, part) for k, part in enumerate(region.parts) if part.cut is None]
        inside = [(k, part) for k, part in enumerate(region.parts) if part.cut is not None]
        for number in range(region.count):
            made = [self._rows(k, part, number, sums.get(id(part), ())) for k, part in inside]
            self._unit(rows, itertools.chain(*made))
        for k, part in own:
            for row in self._products(k, part):
                self._unit(rows, [row])
        self._steps = [row.step for row in rows]
        self._called = {i: row.numbers[:2] for i, row in enumerate(rows) if not row.function}
        return Table(rows, {i: address(x) for i, x in self._static.items()})

    def _unit(self, rows: list[Row], more: Any) -> None:
        first = len(rows)
        rows.extend(more)
        self._units.append((first, len(rows)))

    def _rows(self, k: int, part: Part, number: int, sums: Sequence[int]) -> list[Row]:
        """The rows of a part for one item."""
        assert part.cut is not None
        item = self._region.items[number]
        views = [
            self._view(i, () if axis is None else (*_ALL[:axis], item))
            for i, axis in zip(part.arrays, part.cut, strict=True)
        ]
        if isinstance(part.run, NativeBlocks):
            places = [*[view.place for view in views], *[Place(self._sums, offset) for offset in sums]]
            return [part.run.row(number, self._region.count, places, k)]
        if part.step is not None and part.step.type == "MatMul":
            found = [_product(views, part.step, k)]
        else:
            found = [copied(*pair, k) for pair in _pairs(views, part)]
        native = [row for row in found if row is not None]
        return native if len(native) == len(found) else [self._in_python(k, number)]

    def _products(self, k: int, part: Part) -> list[Row]:
        """The pieces of a product of its own."""
        views = [self._view(i) for i in part.arrays]
        pieces = self._pieces(part, [view.sample for view in views])
        rows = []
        for number, (a, b, c) in enumerate(pieces):
            rows.append(_multiplied(views, (c, a, b), k) or self._in_python(k, number))
        return rows

    def _pieces(self, part: Part, given: Sequence[Array]) -> list[tuple[Array, Array, Array]]:
        assert part.step is not None
        return split(*matrices(*given, **part.step.attrs), self._region.pool.size)

    def _view(self, i: int, key: tuple[slice, ...] = ()) -> View:
        x = self._arrays[i]
        return View(i, x, x[key] if key else x, i not in self._static)

    def _in_python(self, k: int, number: int) -> Row:
        return Row(0, (), k, (k, number, 0, 0))


class _Sums(NamedTuple):
    """Where the memory of partial sums has those of one reduction."""

    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def of_memory(self, memory: Array) -> Array:
        nbytes = math.prod(self.shape) * self.dtype.itemsize
        return memory[self.offset : self.offset + nbytes].view(self.dtype).reshape(self.shape)


def _partial_sums(parts: Sequence[Part]) -> tuple[list[tuple[Part, NativeBlocks, list[_Sums]]], Array]:
    """The parts with reductions over rows, with the places of their partial sums; and the memory as a run begins."""
    found: list[tuple[Part, NativeBlocks, list[_Sums]]] = []
    begun: list[tuple[_Sums, Array]] = []
    size = 0
    for part in parts:
        if not isinstance(part.run, NativeBlocks):
            continue
        places = []
        for x in part.run.begin():
            places.append(_Sums(size, x.shape, x.dtype))
            begun.append((places[-1], x))
            size += -(-x.nbytes // _LINE) * _LINE
        if places:
            found.append((part, part.run, places))
    memory = np.zeros(size, _BYTE)
    for place, x in begun:
        place.of_memory(memory)[...] = x
    return found, memory


def _product(views: Sequence[View], step: Step, k: int) -> Row | None:
    """The row of a product whose operands are cut already; None where NumPy would copy one of them first."""
    out, a, b = views
    x, y, made = matrices(out.sample, a.sample, b.sample, **step.attrs)
    return _multiplied(views, (made, x, y), k)


def _multiplied(views: Sequence[View], arrays: Sequence[Array], k: int) -> Row | None:
    """The same for parts of the result and the operands."""
    if not all(np.may_share_memory(x, view.base) for view, x in zip(views, arrays, strict=True)):
        return None
    to, a, b = [view.like(x) for view, x in zip(views, arrays, strict=True)]
    return multiplied(to, a, b, k)


def _pairs(views: Sequence[View], part: Part) -> list[tuple[View, View]]:
    """What a part that only rearranges its inputs copies, and where to."""
    out, *inputs = views
    step = part.step
    if part.run is copies_all or step is None:
        return [(out, inputs[0])]
    pairs = COPIES[step.type](out.sample, *[view.sample for view in inputs], **step.attrs)
    return [(out.like(to), view.like(x)) for view, (to, x) in zip(inputs, pairs, strict=True)]
