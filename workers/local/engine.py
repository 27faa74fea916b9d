"""The local engine: runs a plan in this process.

Tasks run one after another in the caller's thread, or side by side on a thread pool if they take fewer cpus than there
are threads. The order of ready tasks changes no bits. Nothing here assigns variables: the engine returns the new
values, and the session assigns them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from distgrad import progress
from distgrad.handles import Handle, value_of
from distgrad.scheduler.outlined_calls import all_steps
from distgrad.scheduler.plan import Plan, Task
from distgrad.scheduler.program import planning
from distgrad.scheduler.reports import Report
from distgrad.scheduler.updates import first_phase, stays
from distgrad.workers import blas, numerics
from distgrad.workers.arena import ARENAS, Arena
from distgrad.workers.backends import Backend
from distgrad.workers.body import Compiled, body_of
from distgrad.workers.kernels.table import USES_BLAS
from distgrad.workers.kernels.user_ops import user_ops
from distgrad.workers.local.pool import inside, run_side_by_side
from distgrad.workers.local.run_monitor import RunMonitor
from distgrad.workers.local.second_phase import SecondPhase

Array = np.ndarray[Any, np.dtype[Any]]
#: An input: an array, or a handle of one that may be in another process.
Value = Array | Handle

#: Predicted seconds from which on a run reports progress within its tasks.
LONG = 0.5


@dataclass(frozen=True, slots=True)
class Settings:
    """The options of the local engine."""

    backend: Backend
    #: Threads in total; concurrent tasks share them.
    threads: int = 1
    #: Raise at the first NaN or Inf.
    check_numerics: bool = False
    #: Run one task after another, in the plan's order.
    in_order: bool = False
    #: Seconds after which a run is given up.
    timeout: float | None = None
    #: How progress is shown: live, log or off; None for the default of the process.
    progress: str | None = None
    #: Called with the name, the plan and the report of each run. Without it runs are not timed.
    record: Callable[[str, Plan, Report], None] | None = None


class FirstPhase(NamedTuple):
    """What the first phase of a run has made."""

    #: The fetched values.
    values: list[Array]
    #: The values that the program writes, by key, without those that the second phase makes.
    writes: dict[str, Array]
    #: What the second phase reads, by value, beside the old values of variables.
    needed: dict[int, Array]
    #: The memory that some of it is in.
    lent: list[Arena]

    def end(self) -> None:
        """Give the memory back; `needed` must not be read afterwards."""
        for arena in self.lent:
            ARENAS.give(arena)


class Engine:
    """A plan that is ready to run: compiled at the first run, and kept for later ones. `names` are the names of the
    feeds in errors, `name` is that of the run in progress and traces."""

    def __init__(self, plan: Plan, settings: Settings, names: Sequence[str] = (), name: str = "run"):
        self.plan = plan
        self.settings = settings
        self.name = name
        self._names = names or [f"feed {i}" for i in range(len(plan.program.feeds))]
        self.tasks, self._wanted = plan.tasks, plan.program.wanted
        self.second: SecondPhase | None = None
        if plan.updates is not None and plan.updates.steps:
            self.second = SecondPhase(plan, settings.threads)
            self.tasks = tuple([_without_updates(plan, task) for task in plan.tasks])
            later = {v for _, v in self.second.pairs.values()}
            self._wanted = (*[v for v in plan.program.wanted if v not in later], *self.second.needs)
        self._stays = () if plan.updates is None else stays(plan.program, plan.updates, len(plan.tasks))
        self._bodies: list[Compiled | None] = [None] * len(plan.tasks)
        self._cpus = max((task.cpus for task in plan.tasks), default=1)
        self._room = 1 if settings.in_order else max(settings.threads // self._cpus, 1)
        self._simple = settings.timeout is None and min(self._room, len(plan.tasks)) <= 1
        #: Whether a run has nothing to do but its tasks, in order.
        self._plain = self._simple and settings.record is None and not settings.check_numerics
        types = {each.type for each in all_steps(plan.program.steps)}
        self._blas = settings.backend.is_numpy and not types.isdisjoint(USES_BLAS)
        self._uses = _uses(self.tasks, self._wanted)
        program = plan.program
        #: The values of a run: the inputs first, then what tasks give, in their order. A task may give an input.
        self._ids = [*program.feeds, *[v for _, v in program.reads], *[v for task in self.tasks for v in task.gives]]
        self._place = {v: k for k, v in enumerate(self._ids)}
        dead = [[self._place[v] for v in each] for each in _dead_after(self.tasks, self._wanted)]
        self._links = [([self._place[v] for v in task.reads], k) for task, k in zip(self.tasks, dead, strict=True)]
        updated: Collection[str] = () if self.second is None else self.second.pairs
        self._fetches = [self._place[v] for v in program.fetches]
        self._writes = [(key, self._place[v]) for key, v in program.writes if key not in updated]
        self._needs = [] if self.second is None else [(v, self._place[v]) for v in self.second.needs]
        #: Whether a run may take long enough to report progress. The time of users' own ops is unknown.
        self._ops = user_ops(plan.program.steps)
        self.long = bool(self._ops) or len(plan.tasks) > 1 or plan.predictions.seconds >= LONG

    def run(
        self, feeds: Sequence[Value], state: Mapping[str, Value], fetch: bool = True
    ) -> tuple[list[Array], dict[str, Array]]:
        """The fetched values, and the values that the program writes. All are in this process, whatever `fetch` is."""
        first = self.first_phase(feeds, state)
        if self.second is None:
            return first.values, first.writes
        old = {key: value_of(state[key]) for key, (v, _) in self.second.pairs.items() if v is not None}
        ready = self.second.ready(first.needed, old, held=old)
        for call in ready.calls:
            call()
        first.end()
        return first.values, first.writes | ready.fresh

    def first_phase(self, feeds: Sequence[Value], state: Mapping[str, Value]) -> FirstPhase:
        """Compute everything but what the second phase makes."""
        values: list[Any] = [x if type(x) is np.ndarray else value_of(x) for x in feeds]
        if state:
            values += [value_of(state[key]) for key, _ in self.plan.program.reads]
        lent: list[Arena] = []
        if not self._plain or progress.mode(self.settings.progress) != "off":
            self._run_watched(values, lent)
        elif self._blas:
            with blas.threads(1):
                self._in_order(values, None, lent)
        else:
            self._in_order(values, None, lent)
        writes = {key: values[k] for key, k in self._writes}
        return FirstPhase([values[k] for k in self._fetches], writes, {v: values[k] for v, k in self._needs}, lent)

    def _run_watched(self, values: list[Any], lent: list[Arena]) -> None:
        """The same tasks, perhaps side by side, for those who look on."""
        settings, given = self.settings, values.copy()
        run_monitor = RunMonitor(self, settings.record is not None)
        try:
            with blas.threads(1) if self._blas else nullcontext():
                if self._simple or inside():  # a nested run would wait forever for the pool that it occupies
                    self._in_order(values, run_monitor, lent)
                elif self.plan.tasks:
                    self._side_by_side(values, run_monitor)
        finally:
            run_monitor.end()
        if settings.check_numerics:
            self._check_numerics(given, values)
        if settings.record is not None and run_monitor.report is not None:
            settings.record(self.name, self.plan, run_monitor.report)

    def _check_numerics(self, given: Sequence[Array], values: Sequence[Array]) -> None:
        program = self.plan.program
        fed, read = given[: len(program.feeds)], given[len(program.feeds) :]
        kept = {key: x for (key, _), x in zip(program.reads, read, strict=True)}
        numerics.check(program, [values[self._place[v]] for v in program.wanted], fed, kept, self._names, self._ops)

    def _in_order(self, values: list[Any], run_monitor: RunMonitor | None, lent: list[Arena]) -> None:
        """Append the results of all tasks. Those that nothing reads any more, and inputs, become None."""
        for i, (reads, dead) in enumerate(self._links):
            values += self.run_task(i, [values[k] for k in reads], run_monitor, lent=lent)
            for k in dead:
                values[k] = None

    def _side_by_side(self, values: list[Any], run_monitor: RunMonitor) -> None:
        by_id = dict(zip(self._ids, values, strict=False))
        run_side_by_side(self, by_id, self._room, self.settings.timeout, run_monitor)
        values[:] = [by_id.get(v) for v in self._ids]

    def take_over(self, task: Task, made: Sequence[Array], values: dict[int, Array], uses: dict[int, int]) -> None:
        """Make a task's results available, and release the inputs that nothing else reads."""
        values.update(zip(task.gives, made, strict=True))
        for v in task.reads:
            uses[v] -= 1
            if not uses[v]:
                del values[v]

    def uses(self) -> dict[int, int]:
        return self._uses.copy()

    def run_task(
        self,
        i: int,
        given: Sequence[Array],
        run_monitor: RunMonitor | None,
        over: threading.Event | None = None,
        lent: list[Arena] | None = None,
    ) -> list[Array]:
        body, lent = self._bodies[i] or self._compile(i), lent if self._stays else None
        if run_monitor is None or (over is None and not run_monitor.monitors_tasks):
            return body.run(given, None, lent)
        monitor = run_monitor.monitor_task(i, over, body.calls)
        start = time.time()
        made = body.run(given, monitor, lent)
        run_monitor.ended(i, start, monitor)
        return made

    def _compile(self, i: int) -> Compiled:
        """Compile a task's steps. Two threads may do so at the same time, which is harmless."""
        body = body_of(self.plan, self.tasks[i], self._stays)
        work = progress.begin("compiling", self.name, session_mode=self.settings.progress)
        try:
            with planning():
                made = self._bodies[i] = Compiled(body, self.settings.backend)
        finally:
            progress.end(work)
        return made


def _without_updates(plan: Plan, task: Task) -> Task:
    """What the first phase has to do of a task."""
    assert plan.updates is not None
    steps, gives = first_phase(plan.program, plan.updates, task.steps, task.gives)
    return replace(task, steps=steps, gives=gives)


def _uses(tasks: Sequence[Task], wanted: Sequence[int]) -> dict[int, int]:
    """The number of readers of each value: tasks, and the results of the run."""
    uses: dict[int, int] = {}
    for v in (*wanted, *(v for task in tasks for v in task.reads)):
        uses[v] = uses.get(v, 0) + 1
    return uses


def _dead_after(tasks: Sequence[Task], wanted: Sequence[int]) -> list[list[int]]:
    """For each task but the last, the values that nothing reads after it when tasks run in the plan's order."""
    last = {v: i for i, task in enumerate(tasks[:-1]) for v in (*task.reads, *task.gives)}
    for v in (*wanted, *(tasks[-1].reads if tasks else ())):
        last.pop(v, None)
    dead: list[list[int]] = [[] for _ in tasks]
    for v, i in last.items():
        dead[i].append(v)
    return dead
