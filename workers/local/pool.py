"""Runs the tasks of a run side by side on a thread pool, and enforces its timeout.

A run that is over (failed, interrupted, timed out) stops its tasks before their next step. A kernel that is running
finishes first, because threads cannot be killed; the next run does not wait for it, but gets new threads.
"""

from __future__ import annotations

import heapq
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import ContextVar, copy_context
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from distgrad.scheduler.plan import Task
from distgrad.workers.reference import place

if TYPE_CHECKING:
    from distgrad.workers.local.engine import Engine
    from distgrad.workers.local.run_monitor import RunMonitor

Array = np.ndarray[Any, np.dtype[Any]]

_Jobs = SimpleQueue[Callable[[], None] | None]

_inside: ContextVar[bool] = ContextVar("distgrad_inside", default=False)


def inside() -> bool:
    """Whether this thread runs a task: a nested run must not wait for the pool that it occupies."""
    return _inside.get()


class Pool:
    """A thread pool. Not that of `concurrent.futures`: Python joins its threads at exit, and a kernel that was given up
    may never end."""

    def __init__(self, size: int):
        self.size = size
        self._lock = threading.Lock()
        self._jobs: _Jobs = SimpleQueue()
        self._started = 0

    def submit(self, work: Callable[[], None]) -> None:
        with self._lock:
            self._jobs.put(work)
            more, jobs = self._started < self.size, self._jobs
            self._started += more
        if more:
            threading.Thread(target=_serve, args=(jobs,), name="distgrad-task", daemon=True).start()

    def renew(self) -> None:
        """Give queued work to new threads; the old threads end after their current work."""
        with self._lock:
            old, self._jobs = self._jobs, SimpleQueue()
            count, self._started = self._started, 0
        with suppress(Empty):
            while (work := old.get_nowait()) is not None:
                self.submit(work)
        for _ in range(count):
            old.put(None)


def _serve(jobs: _Jobs) -> None:
    while (work := jobs.get()) is not None:
        work()
        del work  # an idle thread keeps nothing alive


#: The pools of this process, by size.
_pools: dict[int, Pool] = {}
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pools.clear)  # threads do not survive a fork


def run_side_by_side(
    engine: Engine, values: dict[int, Array], room: int, timeout: float | None, run_monitor: RunMonitor
) -> None:
    """Run all tasks, at most `room` at a time; TimeoutError, which names the running tasks, after `timeout` seconds."""
    _Run(engine, values, _pools.setdefault(room, Pool(room)), run_monitor).finish(timeout)


class _Ended(NamedTuple):
    task: int
    made: list[Array]
    error: BaseException | None


class _Run:
    """The tasks of one run: how many others each waits for, and which are running."""

    def __init__(self, engine: Engine, values: dict[int, Array], pool: Pool, run_monitor: RunMonitor):
        self._engine, self._values, self._pool, self._run_monitor = engine, values, pool, run_monitor
        self._uses = engine.uses()
        self._waiting, self._followers = _dependencies(engine.tasks)
        self._ready = [i for i, count in enumerate(self._waiting) if not count]
        self._running: set[int] = set()
        self._ended: SimpleQueue[_Ended] = SimpleQueue()
        self._over = threading.Event()

    def finish(self, timeout: float | None) -> None:
        end = None if timeout is None else time.monotonic() + timeout
        try:
            while self._ready or self._running:
                self._begin()
                self._end(self._next(end, timeout))
        finally:
            self._over.set()
            if self._running:
                self._pool.renew()

    def _begin(self) -> None:
        """Start ready tasks, in the plan's order."""
        while self._ready and len(self._running) < self._pool.size:
            i = heapq.heappop(self._ready)
            given = [self._values[v] for v in self._engine.tasks[i].reads]
            self._running.add(i)
            self._pool.submit(partial(copy_context().run, self._task, i, given))

    def _task(self, i: int, given: list[Array]) -> None:
        _inside.set(True)
        try:
            ended = _Ended(i, self._engine.run_task(i, given, self._run_monitor, self._over), None)
        except BaseException as e:
            ended = _Ended(i, [], e)
        self._ended.put(ended)

    def _next(self, end: float | None, timeout: float | None) -> _Ended:
        left = None if end is None else min(max(end - time.monotonic(), 0), threading.TIMEOUT_MAX)
        try:
            return self._ended.get(timeout=left)
        except Empty:
            raise TimeoutError(self._late(timeout)) from None

    def _end(self, ended: _Ended) -> None:
        i, made, error = ended
        self._running.remove(i)
        if error is not None:
            try:
                raise error
            finally:
                del error, ended  # break the reference cycle with this frame
        self._engine.take_over(self._engine.tasks[i], made, self._values, self._uses)
        for j in self._followers[i]:
            self._waiting[j] -= 1
            if not self._waiting[j]:
                heapq.heappush(self._ready, j)

    def _late(self, timeout: float | None) -> str:
        tasks, lines, monitors = self._engine.tasks, [], self._run_monitor.running()
        for i in sorted(self._running):
            step = monitors[i].step if i in monitors else None
            at = "not begun" if step is None else f"at {place(step)}"
            lines.append(f"  task {i} of {len(tasks)}, {len(tasks[i].steps)} steps: {at}")
        return (
            f"the run was stopped after its timeout of {timeout:g} s. It was waiting for:\n" + "\n".join(lines)
            + "\nVariables are unchanged. Increase Session(timeout=), or do less in one call."
        )  # fmt: skip


def _dependencies(tasks: Sequence[Task]) -> tuple[list[int], list[list[int]]]:
    """For each task, the number of tasks that it waits for (for results or tokens), and the tasks that wait for it."""
    maker = {v: i for i, task in enumerate(tasks) for v in task.gives}
    followers: list[list[int]] = [[] for _ in tasks]
    waiting = []
    for j, task in enumerate(tasks):
        before = {maker[v] for v in task.reads if v in maker} | set(task.waits)
        waiting.append(len(before))
        for i in before:
            followers[i].append(j)
    return waiting, followers
