"""The local engine: runs a plan in this process.

Tasks run one after another in the caller's thread, or side by side on a pool of threads where the plan's tasks take
fewer cpus than there are threads; which of two ready tasks begins first changes no bit. Nothing here writes a variable:
an engine gives back what a run made, and the session decides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from distgrad.scheduler.plan import Plan, Task
from distgrad.scheduler.program import Step
from distgrad.workers import blas, reference
from distgrad.workers.backends import Backend
from distgrad.workers.crew import crew
from distgrad.workers.eager import Eager
from distgrad.workers.pool import inside, run_side_by_side
from distgrad.workers.tape import StepFailed, Tape
from distgrad.workers.watch import Stopped, Watch

Array = np.ndarray[Any, np.dtype[Any]]


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


class Engine:
    """A plan, ready to run: compiled at the first run, kept for the next."""

    def __init__(self, plan: Plan, settings: Settings):
        self.plan = plan
        self.settings = settings
        self._bodies: list[Tape | Eager | None] = [None] * len(plan.tasks)
        self._cpus = max((task.cpus for task in plan.tasks), default=1)
        self._side_by_side = 1 if settings.in_order else max(settings.threads // self._cpus, 1)
        types = {each.type for step in plan.program.steps for each in (step, *step.body)}
        self._blas = settings.backend.name == "numpy" and not types.isdisjoint(blas.USES_BLAS)
        self._uses = _uses(plan)

    def run(self, feeds: Sequence[Array], state: Mapping[str, Array]) -> tuple[list[Array], dict[str, Array]]:
        """The fetched values, and what the program writes."""
        program, tasks = self.plan.program, self.plan.tasks
        values: dict[int, Array] = dict(zip(program.feeds, feeds, strict=True))
        for key, v in program.reads:
            values[v] = state[key]
        with np.errstate(all="ignore"), blas.threads(self._cpus) if self._blas else nullcontext():
            if self.settings.timeout is None and (min(self._side_by_side, len(tasks)) <= 1 or inside()):
                self._in_order(values)
            elif tasks:
                run_side_by_side(self, values, self._side_by_side, self.settings.timeout)
        return [values[v] for v in program.fetches], {key: values[v] for key, v in program.writes}

    def _in_order(self, values: dict[int, Array]) -> None:
        uses = self._uses.copy()
        for i, task in enumerate(self.plan.tasks):
            made = self.run_task(i, [values[v] for v in task.reads])
            self.take_over(task, made, values, uses)

    def take_over(self, task: Task, made: Sequence[Array], values: dict[int, Array], uses: dict[int, int]) -> None:
        """What a task made is there for others, and what it was the last to read is gone."""
        values.update(zip(task.gives, made, strict=True))
        for v in task.reads:
            uses[v] -= 1
            if not uses[v]:
                del values[v]

    def uses(self) -> dict[int, int]:
        return self._uses.copy()

    def run_task(self, i: int, given: Sequence[Array], watch: Watch | None = None) -> list[Array]:
        task, check = self.plan.tasks[i], self.settings.check_numerics
        if watch is None and check:
            watch = Watch(check)
        try:
            made = self._body(i).run(given, watch)
        except StepFailed as failure:
            self._explain(task, given, failure)
        if watch is not None and watch.suspects:
            reference.check_finite(self._steps(task), self.plan.program.types, _named(task, given))
        return made

    def _body(self, i: int) -> Tape | Eager:
        """A task's compiled steps. Two threads that need it at the same time make it twice, which harms nobody."""
        made = self._bodies[i]
        if made is None:
            made = self._bodies[i] = self._compile(self.plan.tasks[i])
        return made

    def _compile(self, task: Task) -> Tape | Eager:
        types, backend = self.plan.program.types, self.settings.backend
        if backend.name == "numpy":
            return Tape(self._steps(task), types, task.reads, task.gives, crew(task.cpus))
        return Eager(self._steps(task), types, task.reads, task.gives, backend)

    def _steps(self, task: Task) -> list[Step]:
        return [self.plan.program.steps[i] for i in task.steps]

    def _explain(self, task: Task, given: Sequence[Array], failure: StepFailed) -> NoReturn:
        """Raise what a step raised, with the op, the user's line and the inputs' types. A fused step is run again step by
        step, to know which of them it was."""
        cause, types = failure.__cause__, self.plan.program.types
        assert cause is not None
        if failure.step is None or isinstance(cause, Stopped):
            raise cause
        if failure.step.body:
            reference.run_steps(self._steps(task), types, _named(task, given))
        cause.add_note(reference.note(failure.step, [types[v] for v in failure.step.inputs]))
        raise cause


def _named(task: Task, given: Sequence[Array]) -> dict[int, Array]:
    return dict(zip(task.reads, given, strict=True))


def _uses(plan: Plan) -> dict[int, int]:
    """How often each value is read, by tasks or at the end."""
    uses: dict[int, int] = {}
    for v in (*plan.program.wanted, *(v for task in plan.tasks for v in task.reads)):
        uses[v] = uses.get(v, 0) + 1
    return uses
