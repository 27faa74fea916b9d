"""A task on another array library than NumPy: step by step, with that library's kernels and its own memory.

What comes in is moved to the library's device, what leaves comes back as NumPy arrays. Running is one loop over
numbered slots; a value is let go after the last call that reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from distgrad.registry import OPS, OpDef
from distgrad.scheduler.program import Step
from distgrad.types import Spec
from distgrad.workers import reference
from distgrad.workers.backends import Backend
from distgrad.workers.backends.torch import hand_out, on_cpu
from distgrad.workers.blocked.blocks import picker
from distgrad.workers.calls import StepFailed
from distgrad.workers.kernels import lookup
from distgrad.workers.task_monitor import TaskMonitor
from distgrad.workers.torch_engine.fused import FUSED_KERNELS, OVER
from distgrad.workers.torch_engine.rules import rewrite
from distgrad.workers.torch_engine.steps import TorchStep

Array = np.ndarray[Any, np.dtype[Any]]


class _Instruction(NamedTuple):
    """What `run` makes of the slots that `pick` takes goes into those of `out`; then those of `dead` are emptied."""

    run: Callable[..., Any]
    pick: Callable[[Any], Any]
    out: tuple[int, ...]
    dead: tuple[int, ...]
    step: Step


class Eager:
    """The steps of a task, from the arrays of `reads` to those of `gives`."""

    def __init__(
        self, steps: Sequence[Step], types: Sequence[Spec], reads: Sequence[int], gives: Sequence[int], backend: Backend
    ):
        self._backend, self._types = backend, types
        flat = [each for step in steps for each in (step.body or (step,))]
        constants = {s.outputs[0]: s.attrs["value"] for s in flat if s.type == "Const"}
        kept = {*reads, *gives}
        works = self._works([step for step in flat if step.type != "Const"], constants, kept)
        values = [*constants, *reads, *(v for work in works for v in work.outputs)]
        slots = {v: i for i, v in enumerate(dict.fromkeys(values))}
        dead = _dead_after(works, {*gives, *constants})
        self.calls = [self._call(work, gone, slots) for work, gone in zip(works, dead, strict=True)]
        self._given, self._leaving = [slots[v] for v in reads], [slots[v] for v in gives]
        self._slots: list[Any] = [None] * len(slots)
        for v, x in constants.items():
            self._slots[slots[v]] = backend.to_device(x)

    def run(
        self, given: Sequence[Any], monitor: TaskMonitor | None = None, there: list[Any] | None = None
    ) -> list[Array]:
        """From arrays of NumPy or of the library to NumPy's; `there` gets the results as the library has them."""
        slots, move = self._slots.copy(), self._backend.extras.mover()
        for slot, x in zip(self._given, given, strict=True):
            slots[slot] = move(x) if isinstance(x, np.ndarray) else x
        for run, pick, out, dead, step in self.calls:
            try:
                if monitor is not None:
                    monitor.before(step)
                made = run(*pick(slots))
            except Exception as e:
                raise StepFailed(step) from e
            for slot, x in zip(out, made if isinstance(made, tuple | list) else (made,), strict=True):
                slots[slot] = x
            for slot in dead:
                slots[slot] = None
        leaving = [slots[slot] for slot in self._leaving]
        if there is not None:
            there += leaving
        if self._backend.name == "torch":
            return hand_out(self._backend.extras, leaving)
        return [self._backend.to_numpy(x) for x in leaving]

    def _works(self, steps: Sequence[Step], constants: dict[int, Array], kept: set[int]) -> list[TorchStep]:
        if self._backend.name == "torch":
            return rewrite(steps, self._types, constants, kept, on_cpu())
        return [TorchStep(step.type, step.inputs, step.outputs, step.attrs, step) for step in steps]

    def _call(self, work: TorchStep, dead: Sequence[int], slots: dict[int, int]) -> _Instruction:
        inputs = work.inputs if work.over is None else (work.inputs[work.over], *work.inputs)
        out, gone = tuple([slots[v] for v in work.outputs]), tuple([slots[v] for v in dead])
        return _Instruction(self._kernel(work), picker([slots[v] for v in inputs]), out, gone, work.step)

    def _kernel(self, work: TorchStep) -> Callable[..., Any]:
        if work.over is not None:
            return partial(OVER[work.type], **work.attrs) if work.attrs else OVER[work.type]
        if work.type in FUSED_KERNELS:
            return partial(FUSED_KERNELS[work.type], self._backend.xp, **work.attrs)
        if OPS[work.type].kernel is None:
            return partial(lookup(self._backend.name, work.type), self._backend.xp, **work.attrs)
        return partial(self._user_op, OPS[work.type], work.step, [self._types[v] for v in work.outputs])

    def _user_op(self, op: OpDef, step: Step, specs: Sequence[Spec], *inputs: Any) -> list[Any]:
        """A user's own kernel speaks NumPy."""
        arrays = [self._backend.to_numpy(x) for x in inputs]
        return [self._backend.to_device(x) for x in reference.apply(op, arrays, step.attrs, specs)]


def _dead_after(works: Sequence[TorchStep], kept: set[int]) -> list[list[int]]:
    """For each piece of work, the values that nothing needs after it."""
    last = {v: i for i, work in enumerate(works) for v in (*work.inputs, *work.outputs) if v not in kept}
    dead: list[list[int]] = [[] for _ in works]
    for v, i in last.items():
        dead[i].append(v)
    return dead
