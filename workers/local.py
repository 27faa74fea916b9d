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
from distgrad.scheduler.plan import Plan, Task
from distgrad.scheduler.reports import Report, Shares, Token, at_text
from distgrad.scheduler.stamps import all_steps
from distgrad.workers import blas, numerics
from distgrad.workers.backends import Backend
from distgrad.workers.body import Compiled, body_of
from distgrad.workers.pool import inside, run_side_by_side
from distgrad.workers.watch import Clock, Watch, resident_bytes

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
        self._blas = settings.backend.name == "numpy" and not types.isdisjoint(blas.USES_BLAS)
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
        report = None if self.settings.record is None else Report()
        look = Look(self, report)
        try:
            with np.errstate(all="ignore"), blas.threads(1) if self._blas else _NOTHING:
                if self._simple or inside():  # a task that waited for the pool that it occupies would wait for ever
                    self._in_order(values, look)
                elif self.plan.tasks:
                    run_side_by_side(self, values, self._room, self.settings.timeout, look)
        finally:
            look.end()
        if self.settings.check_numerics:
            numerics.check(program, [values[v] for v in program.wanted], fed, kept, self._names)
        if report is not None and self.settings.record is not None:
            self.settings.record(self.name, self.plan, report)
        return [values[v] for v in program.fetches], {key: values[v] for key, v in program.writes}

    def _in_order(self, values: dict[int, Array], look: Look) -> None:
        for i, (task, dead) in enumerate(zip(self.plan.tasks, self._dead, strict=True)):
            made = self.run_task(i, [values[v] for v in task.reads], look)
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
        self, i: int, given: Sequence[Array], look: Look, over: threading.Event | None = None
    ) -> list[Array]:
        body = self._bodies[i] or self._compile(i)
        if not look.looks and over is None:
            return body.run(given)
        watch = look.watch(i, over)
        start = time.time()
        made = body.run(given, watch)
        look.ended(i, start, watch)
        return made

    def _compile(self, i: int) -> Compiled:
        """A task's compiled steps. Two threads that need it at the same time make it twice, which harms nobody."""
        made = self._bodies[i] = Compiled(body_of(self.plan, i), self.settings.backend)
        return made


_NOTHING = nullcontext()


class Look:
    """What is seen of one run: for its report, and for whoever waits for it."""

    def __init__(self, engine: Engine, report: Report | None):
        self._plan, self._report = engine.plan, report
        self._work = progress.begin("running", engine.name, len(engine.plan.tasks), "tasks", self.at)
        self._watches: dict[int, Watch] = {}
        #: Whether tasks are to be watched.
        self.looks = report is not None
        if self._work is not progress.NOBODY:
            self.looks |= engine.long
            self._shares = Shares(engine.plan)

    def watch(self, i: int, over: threading.Event | None) -> Watch:
        watch = self._watches[i] = Watch(over) if self._report is None else Clock(over)
        return watch

    def ended(self, i: int, start: float, watch: Watch) -> None:
        self._watches.pop(i, None)
        if self._work is not progress.NOBODY:
            self._shares.ended(i, self._work)
        if self._report is not None:
            ops = watch.ops() if isinstance(watch, Clock) else ()
            thread = threading.get_ident()
            self._report.tokens[i] = Token(start, time.time(), "", thread, 0, resident_bytes(), ops)

    def end(self) -> None:
        progress.end(self._work)
        if self._report is not None:
            self._report.seconds = time.time() - self._report.began

    def running(self) -> dict[int, Watch]:
        """The tasks that are under way."""
        return self._watches.copy()

    def at(self) -> str:
        """Where the run is, in a few words."""
        said = []
        for i, watch in sorted(self.running().items()):
            task = self._plan.tasks[i]
            if watch.step is not None:
                at = min(watch.count, len(task.steps))
                said.append(f"{at_text(watch.step)} (step {at:,} of {len(task.steps):,})")
                if len(self._plan.tasks) == 1:
                    self._work.share = (at - 1) / len(task.steps)
        return "; ".join(said[:2])


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
