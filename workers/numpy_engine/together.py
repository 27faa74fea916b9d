"""Running a stretch: threads take items through its calls, and then what is left for them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from distgrad.scheduler.program import Step
from distgrad.workers.calls import StepFailed
from distgrad.workers.fused_run import FusedRun
from distgrad.workers.kernels.sharing import BlockRunner, in_turn, shared
from distgrad.workers.task_monitor import TaskMonitor
from distgrad.workers.thread_pool import ThreadPool

Array = np.ndarray[Any, np.dtype[Any]]

_ALL = (slice(None),) * 64


#: A piece of a product: its step, and what computes it.
Piece = tuple[Step | None, Callable[[], None]]


class Part(NamedTuple):
    """A call of a stretch: which of the stretch's arrays it takes, and along which axis each is cut, if it is; `cut` is
    None for a product of its own."""

    run: Callable[..., Any]
    arrays: tuple[int, ...]
    cut: tuple[int | None, ...] | None
    step: Step | None


class Together:
    """The calls of a stretch, called with all their arrays, into which they write. Threads share the items, and then
    the pieces of products that have nothing to do with them, so that no thread waits for the last item."""

    def __init__(self, parts: Sequence[Part], lead: int, count: int, pool: ThreadPool):
        self._products = [part for part in parts if part.cut is None]
        self._parts = [(part, tuple(zip(part.arrays, part.cut, strict=True))) for part in parts if part.cut is not None]
        self._pool = pool
        size = lead // count if count else 0
        self._items = [slice(i * size, (i + 1) * size) for i in range(count if self._parts else 0)]

    def __call__(self, *arrays: Array) -> None:
        self._run(arrays, None)

    def watched(self, monitor: TaskMonitor, *arrays: Array) -> None:
        """The same for somebody who looks on."""
        watch = _Watch(monitor)
        self._run(arrays, watch)
        monitor.divide(watch.spent)

    def _run(self, arrays: Sequence[Array], watch: _Watch | None) -> None:
        pieces = self._pieces(arrays)
        sums = [part.run.begin() if isinstance(part.run, FusedRun) else [] for part, _ in self._parts]
        self._pool.each(len(self._items) + len(pieces), partial(self._work, arrays, sums, pieces, watch))
        for (part, _), made in zip(self._parts, sums, strict=True):
            if isinstance(part.run, FusedRun):
                part.run.end([arrays[i] for i in part.arrays], made)

    def _pieces(self, arrays: Sequence[Array]) -> list[Piece]:
        """The pieces into which products cut themselves, instead of what they would do with them."""
        found: list[Piece] = []

        def later(step: Step | None, count: int, work: BlockRunner) -> None:
            found.extend([(step, partial(work, iter((i,)))) for i in range(count)])

        for part in self._products:
            with shared(self._pool.size, partial(later, part.step)):
                _run(part.step, part.run, [arrays[i] for i in part.arrays], None)
        return found

    def _work(
        self,
        arrays: Sequence[Array],
        sums: Sequence[Sequence[Array]],
        pieces: Sequence[Piece],
        watch: _Watch | None,
        numbers: Iterator[int],
    ) -> None:
        """One thread's share."""
        count = len(self._items)
        with shared(1, in_turn):
            for number in numbers:
                if number < count:
                    self._item(number, arrays, sums, watch)
                else:
                    step, run = pieces[number - count]
                    _run(step, run, (), watch)

    def _item(
        self, number: int, arrays: Sequence[Array], sums: Sequence[Sequence[Array]], watch: _Watch | None
    ) -> None:
        item = self._items[number]
        for (part, taken), made in zip(self._parts, sums, strict=True):
            given = [arrays[i] if axis is None else arrays[i][(*_ALL[:axis], item)] for i, axis in taken]
            run = partial(part.run.item, number, len(self._items), made) if isinstance(part.run, FusedRun) else part.run
            _run(part.step, run, given, watch)


class _Watch:
    """Where threads are, and the seconds that they spent with each step."""

    def __init__(self, monitor: TaskMonitor):
        self._monitor = monitor
        self.spent: list[tuple[Step | None, float]] = []

    def run(self, step: Step | None, run: Callable[..., Any], arrays: Sequence[Array]) -> None:
        self._monitor.inside(step)
        start = time.perf_counter()
        run(*arrays)
        self.spent.append((step, time.perf_counter() - start))


def _run(step: Step | None, run: Callable[..., Any], arrays: Sequence[Array], watch: _Watch | None) -> None:
    try:
        if watch is None:
            run(*arrays)
        else:
            watch.run(step, run, arrays)
    except Exception as e:
        raise StepFailed(step) from e
