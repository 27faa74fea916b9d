"""A new engine, as CONTRIBUTING.md describes it: runs the tasks of a plan one after another, in the caller's thread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from distgrad.graph import Operation, Tensor
from distgrad.run.planner import Planner
from distgrad.scheduler.bodies import bodies
from distgrad.scheduler.plan import Plan
from distgrad.scheduler.program import lower
from distgrad.workers import blas
from distgrad.workers.backends import Backend
from distgrad.workers.body import Compiled

Array = np.ndarray[Any, np.dtype[Any]]


class InOrderEngine:
    """What a session needs of an engine: its plan, and `run`."""

    def __init__(self, plan: Plan, backend: Backend):
        found, self._body_of = bodies(plan)
        self._compiled = [Compiled(body, backend) for body in found]
        self.plan = plan

    def run(
        self, feeds: Sequence[Array], state: Mapping[str, Array], fetch: bool = True
    ) -> tuple[list[Array], dict[str, Array]]:
        """The fetched values, and the new values of the variables that the program writes."""
        program = self.plan.program
        values = dict(zip(program.feeds, feeds, strict=True)) | {v: state[key] for key, v in program.reads}
        with blas.threads(1), np.errstate(all="ignore"):
            for task, body in zip(self.plan.tasks, self._body_of, strict=True):  # in an order that respects reads
                made = self._compiled[body].run([values[v] for v in task.reads])
                values.update(zip(task.gives, made, strict=True))
        return [values[v] for v in program.fetches], {key: values[v] for key, v in program.writes}


class InOrderPlanner(Planner):
    """Plans as a session does, and runs the plans on the new engine."""

    def engine(self, tensors: Sequence[Tensor], feeds: Sequence[Tensor], effects: Sequence[Operation]) -> Any:
        return InOrderEngine(self.plan(lower(tensors, feeds, effects)), self.settings.backend)
