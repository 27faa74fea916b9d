"""The local engine: runs a plan in this process.

Tasks run one after another in the caller's thread, or side by side on a pool of threads where the plan's tasks take
fewer cpus than there are threads; which of two ready tasks begins first changes no bit. Nothing here writes a variable:
an engine gives back what a run made, and the session decides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from distgrad.scheduler.plan import Plan, Task
from distgrad.scheduler.program import Step
from distgrad.workers import blas, numerics, reference
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
    """A plan, ready to run: compiled at the first run, kept for the next. `names` is what errors call the feeds."""

    def __init__(self, plan: Plan, settings: Settings, names: Sequence[str] = ()):
        self.plan = plan
        self.settings = settings
        self._names = names or [f"feed {i}" for i in range(len(plan.program.feeds))]
        self._bodies: list[Tape | Eager | None] = [None] * len(plan.tasks)
        self._cpus = max((task.cpus for task in plan.tasks), default=1)
        self._room = 1 if settings.in_order else max(settings.threads // self._cpus, 1)
        self._simple = settings.timeout is None and min(self._room, len(plan.tasks)) <= 1
        types = {each.type for step in plan.program.steps for each in (step, *step.body)}
        self._blas = settings.backend.name == "numpy" and not types.isdisjoint(blas.USES_BLAS)
        self._uses = _uses(plan)
        self._dead = _dead_after(plan)

    def run(self, feeds: Sequence[Array], state: Mapping[str, Array]) -> tuple[list[Array], dict[str, Array]]:
        """The fetched values, and what the program writes."""
        program = self.plan.program
        values: dict[int, Array] = dict(zip(program.feeds, feeds, strict=True))
        for key, v in program.reads:
            values[v] = state[key]
        with np.errstate(all="ignore"), blas.threads(1) if self._blas else _NOTHING:
            if self._simple or inside():  # a task that waited for the pool that it occupies would wait for ever
                self._in_order(values)
            elif self.plan.tasks:
                run_side_by_side(self, values, self._room, self.settings.timeout)
        if self.settings.check_numerics:
            numerics.check(program, [values[v] for v in program.wanted], feeds, state, self._names)
        return [values[v] for v in program.fetches], {key: values[v] for key, v in program.writes}

    def _in_order(self, values: dict[int, Array]) -> None:
        for i, (task, dead) in enumerate(zip(self.plan.tasks, self._dead, strict=True)):
            made = self.run_task(i, [values[v] for v in task.reads])
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

    def run_task(self, i: int, given: Sequence[Array], watch: Watch | None = None) -> list[Array]:
        try:
            return (self._bodies[i] or self._compile(i)).run(given, watch)
        except StepFailed as e:
            error = self._explained(i, given, e)
        try:
            raise error
        finally:
            del error  # which would hold this frame, and be held by it

    def _compile(self, i: int) -> Tape | Eager:
        """A task's compiled steps. Two threads that need it at the same time make it twice, which harms nobody."""
        task, types, backend = self.plan.tasks[i], self.plan.program.types, self.settings.backend
        made: Tape | Eager
        if backend.name == "numpy":
            made = Tape(self._steps(i), types, task.reads, task.gives, crew(task.cpus))
        else:
            made = Eager(self._steps(i), types, task.reads, task.gives, backend)
        self._bodies[i] = made
        return made

    def _steps(self, i: int) -> list[Step]:
        return [self.plan.program.steps[k] for k in self.plan.tasks[i].steps]

    def _explained(self, i: int, given: Sequence[Array], failure: StepFailed) -> BaseException:
        """What a step raised, with the op, the user's line and the inputs' types."""
        cause, step = failure.__cause__, failure.step
        assert cause is not None
        if step is not None and not isinstance(cause, Stopped):
            if step.body:
                step = self._culprit(i, given) or step
            reference.note(cause, step, [self.plan.program.types[v] for v in step.inputs])
        return cause

    def _culprit(self, i: int, given: Sequence[Array]) -> Step | None:
        """The step inside of a fused one that fails: it is found by running all of the task step by step."""
        values = dict(zip(self.plan.tasks[i].reads, given, strict=True))
        for step in self._steps(i):
            for each in step.body or (step,):
                try:
                    reference.run_steps((each,), self.plan.program.types, values)
                except Exception:
                    return each
        return None


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
