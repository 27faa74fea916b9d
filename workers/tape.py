"""A task, compiled for NumPy and run: a tape of calls over numbered slots.

Everything that does not depend on a run is made before: constants, the places of the arena, views of both. Running is
one loop: `slots[out] = run(*pick(slots))`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from distgrad.registry import OpDef
from distgrad.scheduler.program import Step
from distgrad.types import DType, Shape, Spec
from distgrad.workers import blas, reference
from distgrad.workers.arena import ARENAS, Arena
from distgrad.workers.compiler import Compiler
from distgrad.workers.crew import Crew
from distgrad.workers.kernels.into import INTO
from distgrad.workers.kernels.sharing import shared
from distgrad.workers.watch import Watch

Array = np.ndarray[Any, np.dtype[Any]]


class Tape:
    """The steps of a task, from the arrays of `reads` to those of `gives`.

    Args:
        steps: in an order that respects what they read.
        types: of all values of the program.
        reads: the values that come in; their arrays are never written into.
        gives: the values that go out; their arrays belong to the caller, except for those that came in.
        crew: the threads that share fused steps.
    """

    def __init__(
        self, steps: Sequence[Step], types: Sequence[Spec], reads: Sequence[int], gives: Sequence[int], crew: Crew
    ):
        made = Compiler(steps, types, reads, gives, crew)
        self._crew = crew
        self._shares = crew.size > 1 and any(step.type in blas.USES_BLAS for step in steps)
        self.calls = made.calls
        self.nbytes = made.layout.size
        self._places = made.places
        self._views = made.views
        self._fixed = made.fixed
        self._given = [made.slots[v] for v in reads]
        self._leaving = [made.slots[v] for v in gives]
        self._count = made.count

    def run(self, given: Sequence[Array], watch: Watch | None = None) -> list[Array]:
        arena = ARENAS.take()  # given back after a run that ended well: after another, somebody may still write into it
        slots = self.bound(arena).copy()
        for slot, x in zip(self._given, given, strict=True):
            slots[slot] = x if x.flags.c_contiguous else np.asarray(x, order="C")
        if self._shares:
            with shared(self._crew.size, self._crew.each):
                self._play(slots, watch)
        else:
            self._play(slots, watch)
        leaving = [slots[slot] for slot in self._leaving]
        ARENAS.give(arena)
        return leaving

    def _play(self, slots: list[Any], watch: Watch | None) -> None:
        calls = iter(self.calls)
        try:
            if watch is None:
                for run, pick, out, _ in calls:
                    slots[out] = run(*pick(slots))
            else:
                for run, pick, out, step in calls:
                    watch.before(step)
                    slots[out] = run(*pick(slots))
        except Exception as e:
            done = len(self.calls) - calls.__length_hint__()
            raise StepFailed(self.calls[done - 1].step) from e

    def bound(self, arena: Arena) -> list[Any]:
        """The slots as a run finds them: constants, the places of the arena, and views of both."""
        slots = arena.bound.get(self)
        if slots is None:
            arena.reserve(self.nbytes)
            slots = [None] * self._count
            for slot, value in self._fixed:
                slots[slot] = value
            for slot, offset, spec in self._places:
                nbytes = spec.dtype.itemsize * math.prod(spec.shape)
                slots[slot] = arena.memory[offset : offset + nbytes].view(spec.dtype).reshape(spec.shape)
            for run, pick, out, _ in self._views:
                slots[out] = run(*pick(slots))
            arena.bound[self] = slots
        return slots


class StepFailed(Exception):
    """A call of a tape raised; the cause is what it raised."""

    def __init__(self, step: Step | None):
        super().__init__(step)
        self.step = step


def compute(
    definition: OpDef, inputs: Sequence[Array], attrs: Mapping[str, Any], specs: Sequence[tuple[Shape, DType]]
) -> list[Array]:
    """One op at once, with the bits that a tape gives."""
    entry = INTO.get(definition.type) if definition.kernel is None else None
    if entry is None or entry.exact:
        return reference.apply(definition, inputs, attrs, specs)
    out: Array = np.empty(*specs[0])
    with np.errstate(all="ignore"):
        entry(out, *inputs, **attrs)
    return [out]
