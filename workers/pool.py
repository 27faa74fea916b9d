"""Tasks of one run side by side on a pool of threads, and giving a run up in time.

A run that is over (failed, interrupted, out of time) stops its tasks before their next step; a kernel that is running
ends first, because threads cannot be killed.
"""

from __future__ import annotations

import heapq
import threading
import time
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextvars import ContextVar, copy_context
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from distgrad.scheduler.plan import Plan
from distgrad.workers.watch import Watch

if TYPE_CHECKING:
    from distgrad.workers.local import Engine

Array = np.ndarray[Any, np.dtype[Any]]

_inside: ContextVar[bool] = ContextVar("distgrad_inside", default=False)


def inside() -> bool:
    """Whether this thread runs a task: a run that begins there must not wait for the pool that it occupies."""
    return _inside.get()


@cache
def _pool(size: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(size, thread_name_prefix="distgrad")


def run_side_by_side(engine: Engine, values: dict[int, Array], room: int, timeout: float | None) -> None:
    """Run all tasks, `room` at a time; TimeoutError, with what was running, after `timeout` seconds."""
    _Run(engine, values, room).finish(timeout)


class _Run:
    """Which tasks wait for how many others, and which are under way."""

    def __init__(self, engine: Engine, values: dict[int, Array], room: int):
        self._engine, self._values, self._room = engine, values, room
        self._uses = engine.uses()
        self._waiting, self._followers = _dependencies(engine.plan)
        self._ready = [i for i, count in enumerate(self._waiting) if not count]
        self._running: dict[Future[list[Array]], int] = {}
        self._watches: dict[int, Watch] = {}
        self._over = threading.Event()

    def finish(self, timeout: float | None) -> None:
        end = None if timeout is None else time.monotonic() + timeout
        try:
            while self._ready or self._running:
                self._begin()
                left = None if end is None else max(end - time.monotonic(), 0)
                done, _ = wait(self._running, left, FIRST_COMPLETED)
                if not done:
                    raise TimeoutError(self._late(timeout))
                for future in done:
                    self._end(self._running.pop(future), future.result())
        finally:
            self._over.set()

    def _begin(self) -> None:
        """Start what is ready, the first in the plan's order first."""
        while self._ready and len(self._running) < self._room:
            i = heapq.heappop(self._ready)
            self._watches[i] = Watch(self._engine.settings.check_numerics, self._over)
            given = [self._values[v] for v in self._engine.plan.tasks[i].reads]
            work = _pool(self._room).submit(copy_context().run, self._task, i, given)
            self._running[work] = i

    def _task(self, i: int, given: list[Array]) -> list[Array]:
        _inside.set(True)
        return self._engine.run_task(i, given, self._watches[i])

    def _end(self, i: int, made: list[Array]) -> None:
        self._engine.take_over(self._engine.plan.tasks[i], made, self._values, self._uses)
        del self._watches[i]
        for j in self._followers[i]:
            self._waiting[j] -= 1
            if not self._waiting[j]:
                heapq.heappush(self._ready, j)

    def _late(self, timeout: float | None) -> str:
        tasks, lines = self._engine.plan.tasks, []
        for i in sorted(self._running.values()):
            step = self._watches[i].step
            at = "not begun" if step is None else f"at op {step.name!r} (type {step.type}, at {step.source})"
            lines.append(f"  task {i} of {len(tasks)}, {len(tasks[i].steps)} steps: {at}")
        return (
            f"the run was given up after its timeout of {timeout:g} s. It was waiting for:\n" + "\n".join(lines)
            + "\nVariables are as they were. Give it more time with Session(timeout=), or less to do."
        )  # fmt: skip


def _dependencies(plan: Plan) -> tuple[list[int], list[list[int]]]:
    """For each task how many others it waits for, for their results or their tokens, and who waits for it."""
    maker = {v: i for i, task in enumerate(plan.tasks) for v in task.gives}
    followers: list[list[int]] = [[] for _ in plan.tasks]
    waiting = []
    for j, task in enumerate(plan.tasks):
        before = {maker[v] for v in task.reads if v in maker} | set(task.waits)
        waiting.append(len(before))
        for i in before:
            followers[i].append(j)
    return waiting, followers
