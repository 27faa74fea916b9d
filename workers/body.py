"""The body of a task, compiled: used by both engines. Compiled once, run any number of times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from distgrad.scheduler.bodies import Body
from distgrad.scheduler.outlined_calls import expanded
from distgrad.scheduler.plan import Plan, Task
from distgrad.scheduler.program import Step
from distgrad.workers import reference
from distgrad.workers.arena import Arena
from distgrad.workers.backends import Backend
from distgrad.workers.backends.eager import Eager
from distgrad.workers.calls import StepFailed
from distgrad.workers.kernels.user_ops import user_ops
from distgrad.workers.task_monitor import Stopped, TaskMonitor

Array = np.ndarray[Any, np.dtype[Any]]


def body_of(plan: Plan, task: Task, stays: tuple[int, ...] = ()) -> Body:
    """The body of one task, with the value ids of the program."""
    steps = tuple([plan.program.steps[k] for k in task.steps])
    native = plan.options.native
    return Body(steps, plan.program.types, task.reads, task.gives, task.cpus, task.gpus, native, stays)


class Compiled:
    """Computes the outputs of a body from its inputs. Errors name the op, the user's line and its input types."""

    def __init__(self, body: Body, backend: Backend):
        steps, types = expanded(body.steps, body.types)
        self._steps, self._types, self._reads = steps, types, body.reads
        self._ops = user_ops(steps)
        self._run = backend.compile(replace(body, steps=tuple(steps), types=tuple(types)), backend)
        self._compute = self._run.run if self._run.all_native else self._run_quietly

    @property
    def calls(self) -> int:
        """Number of calls per run, for progress."""
        return len(self._run.calls)

    def run(
        self, given: Sequence[Any], monitor: TaskMonitor | None = None, lent: list[Arena] | None = None
    ) -> list[Array]:
        """The outputs. `lent` gets the memory of those that stay in it, to be given back to `ARENAS`."""
        try:
            return self._compute(given, monitor) if lent is None else self._compute_in(given, monitor, lent)
        except StepFailed as e:
            error = self._explained(given, e)
        try:
            raise error
        finally:
            del error  # avoid a reference cycle with this frame

    def _run_quietly(self, given: Sequence[Any], monitor: TaskMonitor | None) -> list[Array]:
        with np.errstate(all="ignore"):  # it takes a microsecond, so only where NumPy computes
            return self._run.run(given, monitor)

    def _compute_in(self, given: Sequence[Any], monitor: TaskMonitor | None, lent: list[Arena]) -> list[Array]:
        tape: Any = self._run  # other backends have no memory to lend
        with np.errstate(all="ignore"):
            outputs: list[Array] = tape.run(given, monitor, lent)
        return outputs

    def run_kept(self, given: Sequence[Any], monitor: TaskMonitor | None = None) -> tuple[list[Array], list[Any]]:
        """Like `run`, and also return the results as arrays of the backend. Not for NumPy."""
        assert isinstance(self._run, Eager)
        there: list[Any] = []
        try:
            with np.errstate(all="ignore"):
                return self._run.run(given, monitor, there), there
        except StepFailed as e:
            error = self._explained([np.asarray(x) for x in given], e)
        try:
            raise error
        finally:
            del error

    def _explained(self, given: Sequence[Array], failure: StepFailed) -> BaseException:
        """The exception of a step, with a note on the op, the user's line and the types of the inputs."""
        cause, step = failure.__cause__, failure.step
        assert cause is not None
        if step is not None and not isinstance(cause, Stopped):
            if step.body:
                cause, step = self._culprit(given, cause, step)
            reference.note(cause, step, [self._types[v] for v in step.inputs])
        return cause

    def _culprit(self, given: Sequence[Array], cause: BaseException, failed: Step) -> tuple[BaseException, Step]:
        """The step inside a fused step that failed, and its exception; found by running the task step by step. When
        threads take rows through many steps, an earlier step may turn out to fail first: then that one is reported."""
        values = dict(zip(self._reads, given, strict=True))
        for step in self._steps:
            for each in step.body or (step,):
                try:
                    reference.run_steps((each,), self._types, values, self._ops)
                except Exception as e:
                    return (cause if step is failed else e), each
        return cause, failed
