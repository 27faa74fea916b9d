"""Eager: runs a task step by step with the kernels and the allocator of an array library.

Inputs are moved to the library's device, results come back as NumPy arrays. Running is one loop over numbered slots; a
slot is emptied after the last call that reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from distgrad.registry import OPS, OpDef
from distgrad.scheduler.program import Step
from distgrad.types import Spec
from distgrad.workers.backends.backend import Backend
from distgrad.workers.backends.base_extras import Array
from distgrad.workers.calls import StepFailed
from distgrad.workers.kernels import lookup
from distgrad.workers.kernels.user_ops import run_user_op
from distgrad.workers.task_monitor import TaskMonitor


class EagerStep(NamedTuple):
    """A call of `kernel` on the arrays of `inputs`, which makes those of `outputs`; errors name `step`."""

    kernel: Callable[..., Any]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    step: Step


class _Instruction(NamedTuple):
    """slots[out] = run(*pick(slots)); then the slots of `dead` are emptied."""

    run: Callable[..., Any]
    pick: Callable[[Any], Any]
    out: tuple[int, ...]
    dead: tuple[int, ...]
    step: Step


class Eager:
    """The steps of a task, from the arrays of `reads` to those of `gives`."""

    all_native = False

    def __init__(
        self, steps: Sequence[Step], types: Sequence[Spec], reads: Sequence[int], gives: Sequence[int], backend: Backend
    ):
        self._backend = backend
        flat = [each for step in steps for each in (step.body or (step,))]
        constants = {s.outputs[0]: s.attrs["value"] for s in flat if s.type == "Const"}
        flat = [step for step in flat if step.type != "Const"]
        made: Sequence[EagerStep]
        if backend.rewrite is None:
            made = [eager_step(step, types, backend) for step in flat]
        else:
            made = backend.rewrite(flat, types, constants, {*reads, *gives}, backend)
        values = [*constants, *reads, *(v for each in made for v in each.outputs)]
        slots = {v: i for i, v in enumerate(dict.fromkeys(values))}
        dead = _dead_after(made, {*gives, *constants})
        self.calls = [_instruction(each, gone, slots) for each, gone in zip(made, dead, strict=True)]
        self._given, self._leaving = [slots[v] for v in reads], [slots[v] for v in gives]
        self._slots: list[Any] = [None] * len(slots)
        for v, x in constants.items():
            self._slots[slots[v]] = backend.to_device(x)

    def run(
        self, given: Sequence[Any], monitor: TaskMonitor | None = None, there: list[Any] | None = None
    ) -> list[Array]:
        """From arrays of NumPy or of the library to NumPy's. The library's own results are appended to `there`."""
        extras = self._backend.extras
        slots, move = self._slots.copy(), extras.mover()
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
        return extras.hand_out(leaving)


def eager_step(step: Step, types: Sequence[Spec], backend: Backend) -> EagerStep:
    """The call of one op: with the backend's own kernel, or the one for every library, or a user's."""
    op = OPS[step.type]
    kernel: Callable[..., Any]
    if op.kernel is None:
        kernel = partial(lookup(backend.name, step.type), backend.xp, **step.attrs)
    else:
        kernel = partial(_user_op, backend, op, step, [types[v] for v in step.outputs])
    return EagerStep(kernel, step.inputs, step.outputs, step)


def _user_op(backend: Backend, op: OpDef, step: Step, specs: Sequence[Spec], *inputs: Any) -> list[Any]:
    """A user's kernel takes and returns NumPy arrays."""
    arrays = [backend.to_numpy(x) for x in inputs]
    return [backend.to_device(x) for x in run_user_op(op, arrays, step.attrs, specs)]


def _instruction(call: EagerStep, dead: Sequence[int], slots: dict[int, int]) -> _Instruction:
    out, gone = tuple([slots[v] for v in call.outputs]), tuple([slots[v] for v in dead])
    return _Instruction(call.kernel, picker([slots[v] for v in call.inputs]), out, gone, call.step)


def _dead_after(calls: Sequence[EagerStep], kept: set[int]) -> list[list[int]]:
    """For each call, the values that no later call reads."""
    last = {v: i for i, call in enumerate(calls) for v in (*call.inputs, *call.outputs) if v not in kept}
    dead: list[list[int]] = [[] for _ in calls]
    for v, i in last.items():
        dead[i].append(v)
    return dead


def picker(places: Sequence[int]) -> Callable[[Any], Any]:
    """What takes these places of a list as a tuple."""
    if len(places) > 1:
        return itemgetter(*places)
    return partial(_picked, tuple(places))  # an itemgetter of one gives the item itself


def _picked(places: Sequence[int], values: Sequence[Any]) -> tuple[Any, ...]:
    return tuple([values[i] for i in places])
