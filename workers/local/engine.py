"""The local engine: runs a plan in this process.

Tasks run one after another in the caller's thread, or side by side on a pool of threads where the plan's tasks take
fewer cpus than there are threads; which of two ready tasks begins first changes no bit. Nothing here writes a variable:
an engine gives back what a run made, and the session decides.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from distgrad import progress
from distgrad.handles import Handle, value_of
from distgrad.registry import OPS
from distgrad.scheduler.outlined_calls import all_steps
from distgrad.scheduler.plan import Plan, Task
from distgrad.scheduler.reports import Report
from distgrad.workers import blas, numerics
from distgrad.workers.backends import Backend
from distgrad.workers.body import Compiled, body_of
from distgrad.workers.kernels.table import USES_BLAS
from distgrad.workers.local.pool import inside, run_side_by_side
from distgrad.workers.local.run_monitor import RunMonitor

Array = np.ndarray[Any, np.dtype[Any]]
#: What comes in: an array, or a handle on one that may be elsewhere.
Value = Array | Handle

#: Runs that should take so many seconds tell within their tasks where they are.
LONG = 0.5


@dataclass(frozen=True, slots=True)
class Settings:
    """How the local engine runs plans."""

    backend: Backend
    #: Threads in all; tasks side by side share them.
    threads: int = 1
    #: Raise at the first NaN or Inf.
    check_numerics: bool = False
    #: One task after another, in the plan's order.
    in_order: bool = False
    #: Seconds after which a run is given up.
    timeout: float | None = None
    #: How progress is told: live, log or off; None: as the process does.
    progress: str | None = None
    #: Gets the name, the plan and the report of each run; runs are not timed without.
    record: Callable[[str, Plan, Report], None] | None = None


class Engine:
    """A plan, ready to run: compiled at the first run, kept for the next. `names` is what errors call the feeds, `name`
    what progress and traces call the run."""

    def __init__(self, plan: Plan, settings: Settings, names: Sequence[str] = (), name: str = "run"):
        self.plan = plan
        self.settings = settings
        self.name = name
        self._names = names or [f"feed {i}" for i in range(len(plan.program.feeds))]
        self._bodies: list[Compiled | None] = [None] * len(plan.tasks)
        self._cpus = max((task.cpus for task in plan.tasks), default=1)
        self._room = 1 if settings.in_order else max(settings.threads // self._cpus, 1)
        self._simple = settings.timeout is None and min(self._room, len(plan.tasks)) <= 1
        types = {each.type for each in all_steps(plan.program.steps)}
        self._blas = settings.backend.name == "numpy" and not types.isdisjoint(USES_BLAS)
        self._uses = _uses(plan)
        self._dead = _dead_after(plan)
        #: Whether a run may take so long that somebody wants to know where it is. What users' own ops take is unknown.
        own = any(OPS[t].kernel is not None for t in types & OPS.keys())
        self.long = own or len(plan.tasks) > 1 or plan.predictions.seconds >= LONG

    def run(
        self, feeds: Sequence[Value], state: Mapping[str, Value], fetch: bool = True
    ) -> tuple[list[Array], dict[str, Array]]:
        """The fetched values, and what the program writes. They are in this process, whether or not they shall be."""
        program = self.plan.program
        fed = [x if type(x) is np.ndarray else value_of(x) for x in feeds]
        kept = {key: x if type(x) is np.ndarray else value_of(x) for key, x in state.items()}
        values: dict[int, Array] = dict(zip(program.feeds, fed, strict=True))
        for key, v in program.reads:
            values[v] = kept[key]
        record = self.settings.record
        quiet = record is None and progress.mode(self.settings.progress) == "off"
        run_monitor = None if quiet else RunMonitor(self, record is not None)
        try:
            with np.errstate(all="ignore"), blas.threads(1) if self._blas else _NOTHING:
                if self._simple or inside():  # a task that waited for the pool that it occupies would wait for ever
                    self._in_order(values, run_monitor)
                elif self.plan.tasks:
                    run_side_by_side(self, values, self._room, self.settings.timeout, run_monitor or RunMonitor(self))
        finally:
            if run_monitor is not None:
                run_monitor.end()
        if self.settings.check_numerics:
            numerics.check(program, [values[v] for v in program.wanted], fed, kept, self._names)
        if record is not None and run_monitor is not None and run_monitor.report is not None:
            record(self.name, self.plan, run_monitor.report)
        return [values[v] for v in program.fetches], {key: values[v] for key, v in program.writes}

    def _in_order(self, values: dict[int, Array], run_monitor: RunMonitor | None) -> None:
        for i, (task, dead) in enumerate(zip(self.plan.tasks, self._dead, strict=True)):
            made = self.run_task(i, [values[v] for v in task.reads], run_monitor)
            values.update(zip(task.gives, made, strict=True))
            for v in dead:
                del values[v]

    def take_over(self, task: Task, made: Sequence[Array], values: dict[int, Array], uses: dict[int, int]) -> None:
        """What a task made is there for others, and what it was the last to read is gone."""
        values.update(zip(task.gives, made, strict=True))
        for v in task.reads:
            uses[v] -= 1
            if not uses[v]:
                del values[v]

    def uses(self) -> dict[int, int]:
        return self._uses.copy()

    def run_task(
        self, i: int, given: Sequence[Array], run_monitor: RunMonitor | None, over: threading.Event | None = None
    ) -> list[Array]:
        body = self._bodies[i] or self._compile(i)
        if run_monitor is None or (over is None and not run_monitor.monitors_tasks):
            return body.run(given)
        monitor = run_monitor.monitor_task(i, over, body.calls)
        start = time.time()
        made = body.run(given, monitor)
        run_monitor.ended(i, start, monitor)
        return made

    def _compile(self, i: int) -> Compiled:
        """A task's compiled steps. Two threads that need it at the same time make it twice, which harms nobody."""
        made = self._bodies[i] = Compiled(body_of(self.plan, i), self.settings.backend)
        return made


_NOTHING = nullcontext()


def _uses(plan: Plan) -> dict[int, int]:
    """How often each value is read, by tasks or at the end."""
    uses: dict[int, int] = {}
    for v in (*plan.program.wanted, *(v for task in plan.tasks for v in task.reads)):
        uses[v] = uses.get(v, 0) + 1
    return uses


def _dead_after(plan: Plan) -> list[list[int]]:
    """For each task but the last, the values that nothing reads after it when tasks run in the plan's order."""
    last = {v: i for i, task in enumerate(plan.tasks[:-1]) for v in (*task.reads, *task.gives)}
    for v in (*plan.program.wanted, *(plan.tasks[-1].reads if plan.tasks else ())):
        last.pop(v, None)
    dead: list[list[int]] = [[] for _ in plan.tasks]
    for v, i in last.items():
        dead[i].append(v)
    return dead
