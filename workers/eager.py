"""A task on another array library than NumPy: step by step, with that library's kernels and its own memory.

What comes in is moved to the library's device, what leaves comes back as NumPy arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from distgrad.registry import OPS
from distgrad.scheduler.program import Step
from distgrad.types import Spec
from distgrad.workers import reference
from distgrad.workers.backends import Backend
from distgrad.workers.kernels import lookup
from distgrad.workers.tape import StepFailed
from distgrad.workers.watch import Watch

Array = np.ndarray[Any, np.dtype[Any]]


class Eager:
    """The steps of a task, from the arrays of `reads` to those of `gives`."""

    def __init__(
        self, steps: Sequence[Step], types: Sequence[Spec], reads: Sequence[int], gives: Sequence[int], backend: Backend
    ):
        self._backend, self._reads, self._gives = backend, reads, gives
        flat = [each for step in steps for each in (step.body or (step,))]
        self._calls = [(self._kernel(step, types), step) for step in flat if step.type != "Const"]
        self._constants = {s.outputs[0]: backend.to_device(s.attrs["value"]) for s in flat if s.type == "Const"}
        self._dead = _dead_after([step for _, step in self._calls], {*reads, *gives, *self._constants})

    def run(self, given: Sequence[Array], watch: Watch | None = None) -> list[Array]:
        move = self._backend.to_device
        values = {**self._constants, **{v: move(x) for v, x in zip(self._reads, given, strict=True)}}
        for (run, step), dead in zip(self._calls, self._dead, strict=True):
            try:
                if watch is not None:
                    watch.before(step)
                made = run(*[values[v] for v in step.inputs])
                outputs = made if isinstance(made, tuple | list) else (made,)
            except Exception as e:
                raise StepFailed(step) from e
            for v, x in zip(step.outputs, outputs, strict=True):
                values[v] = x
            for v in dead:
                del values[v]
        return [self._backend.to_numpy(values[v]) for v in self._gives]

    def _kernel(self, step: Step, types: Sequence[Spec]) -> Any:
        if OPS[step.type].kernel is None:
            return partial(lookup(self._backend.name, step.type), self._backend.xp, **step.attrs)
        return partial(self._user_op, step, [types[v] for v in step.outputs])

    def _user_op(self, step: Step, specs: Sequence[Spec], *inputs: Any) -> list[Any]:
        """A user's own kernel speaks NumPy."""
        arrays = [self._backend.to_numpy(x) for x in inputs]
        return [self._backend.to_device(x) for x in reference.apply(OPS[step.type], arrays, step.attrs, specs)]


def _dead_after(steps: Sequence[Step], kept: set[int]) -> list[list[int]]:
    """For each step, the values that nothing needs after it."""
    last = {v: i for i, step in enumerate(steps) for v in (*step.inputs, *step.outputs) if v not in kept}
    dead: list[list[int]] = [[] for _ in steps]
    for v, i in last.items():
        dead[i].append(v)
    return dead
