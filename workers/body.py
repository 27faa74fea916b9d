"""The body of a task, compiled and run: what both engines share. Compiled once, run as often as wanted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from distgrad.scheduler.bodies import Body
from distgrad.scheduler.outlined_calls import expanded
from distgrad.scheduler.plan import Plan
from distgrad.scheduler.program import Step
from distgrad.workers import reference
from distgrad.workers.backends import Backend
from distgrad.workers.backends.eager import Eager
from distgrad.workers.calls import StepFailed
from distgrad.workers.kernels.user_ops import user_ops
from distgrad.workers.task_monitor import Stopped, TaskMonitor

Array = np.ndarray[Any, np.dtype[Any]]


def body_of(plan: Plan, i: int) -> Body:
    """The body of one task, with the values as the program numbers them."""
    task = plan.tasks[i]
    steps = tuple([plan.program.steps[k] for k in task.steps])
    return Body(steps, plan.program.types, task.reads, task.gives, task.cpus, task.gpus)


class Compiled:
    """From the arrays that a body reads to those that it gives; an error names the op, the user's line, the inputs."""

    def __init__(self, body: Body, backend: Backend):
        steps, types = expanded(body.steps, body.types)
        self._steps, self._types, self._reads = steps, types, body.reads
        self._ops = user_ops(steps)
        self._run = backend.compile(replace(body, steps=tuple(steps), types=tuple(types)), backend)

    @property
    def calls(self) -> int:
        """How many calls a run makes: what is looked on at."""
        return len(self._run.calls)

    def run(self, given: Sequence[Any], monitor: TaskMonitor | None = None) -> list[Array]:
        try:
            return self._run.run(given, monitor)
        except StepFailed as e:
            error = self._explained(given, e)
        try:
            raise error
        finally:
            del error  # which would hold this frame, and be held by it

    def run_kept(self, given: Sequence[Any], monitor: TaskMonitor | None = None) -> tuple[list[Array], list[Any]]:
        """The same with the results as the backend has them, too. Not for NumPy, whose results are what they are."""
        assert isinstance(self._run, Eager)
        there: list[Any] = []
        try:
            return self._run.run(given, monitor, there), there
        except StepFailed as e:
            error = self._explained([np.asarray(x) for x in given], e)
        try:
            raise error
        finally:
            del error

    def _explained(self, given: Sequence[Array], failure: StepFailed) -> BaseException:
        """What a step raised, with the op, the user's line and the inputs' types."""
        cause, step = failure.__cause__, failure.step
        assert cause is not None
        if step is not None and not isinstance(cause, Stopped):
            if step.body:
                cause, step = self._culprit(given, cause, step)
            reference.note(cause, step, [self._types[v] for v in step.inputs])
        return cause

    def _culprit(self, given: Sequence[Array], cause: BaseException, failed: Step) -> tuple[BaseException, Step]:
        """The step inside of a fused one that failed, and what it raised. It is found by running the task step by step:
        where threads took rows through many steps, another one may fail first, and is the one to tell of."""
        values = dict(zip(self._reads, given, strict=True))
        for step in self._steps:
            for each in step.body or (step,):
                try:
                    reference.run_steps((each,), self._types, values, self._ops)
                except Exception as e:
                    return (cause if step is failed else e), each
        return cause, failed
