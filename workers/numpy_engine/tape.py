"""A task compiled for NumPy: a tape of calls on numbered slots.

Constants, arrays in the arena and views of both are made once, before the first run. A run is one loop over the calls
or, for tapes of moderate length, the same calls as generated code.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

import numpy as np

from distgrad.scheduler.program import Step
from distgrad.types import Spec
from distgrad.workers.arena import ARENAS, Arena
from distgrad.workers.calls import Place, StepFailed, TapeCall, Watched
from distgrad.workers.fused_run import FusedRun
from distgrad.workers.kernels.sharing import shared
from distgrad.workers.kernels.table import USES_BLAS
from distgrad.workers.numpy_engine.compiler import Compiler
from distgrad.workers.numpy_engine.straight import CHUNK, LONGEST, Chunk, Straight, failed_at
from distgrad.workers.task_monitor import TaskMonitor
from distgrad.workers.thread_pool import ThreadPool

Array = np.ndarray[Any, np.dtype[Any]]

#: The slots at the start of a run, and the generated code for them, if any.
Bound = tuple[list[Any], list[Chunk] | None]


class Tape:
    """The steps of a task, from the arrays of `reads` to those of `gives`.

    Args:
        steps: in topological order.
        types: of all values of the program.
        reads: the inputs; their arrays are never written to.
        gives: the outputs; their arrays belong to the caller, except inputs that are returned.
        pool: the threads that share fused steps.
        native: whether fused steps run as native code, where there is a rule for each of their ops.
        stays: outputs that may stay in the arena, which the caller then gets with them.
    """

    def __init__(
        self,
        steps: Sequence[Step],
        types: Sequence[Spec],
        reads: Sequence[int],
        gives: Sequence[int],
        pool: ThreadPool,
        native: bool = False,
        stays: Sequence[int] = (),
    ):
        made = Compiler(steps, types, reads, gives, pool, native, stays)
        self._pool = pool
        self._shares = pool.size > 1 and any(step.type in USES_BLAS for step in steps)
        played = made.played()
        self.nbytes, self.all_native = made.layout.size, made.all_native
        leaving = [made.slots[v] for v in gives]
        used = {slot for call in (*played, *made.views) for slot in call.args}.union(leaving)
        places = [place for place in made.places if place.slot in used]  # others are known by their addresses alone
        static = [slot for slot, _ in made.fixed]
        static += [*(place.slot for place in places), *(view.out for view in made.views)]
        used.update(range(len(reads)), static, [call.out for call in played])
        new, self._moving = _numbers(sorted(used), set(static), set(leaving))
        self.calls, self._views = _renumbered(played, new), _renumbered(made.views, new)
        self._places = [Place(new[slot], offset, spec) for slot, offset, spec in places]
        self._fixed = [(new[slot], value) for slot, value in made.fixed]
        self._leaving = [new[slot] for slot in leaving]
        self._count = len(used)
        short = len(self.calls) <= LONGEST
        self._straight = Straight(self.calls, [new[slot] for slot in static]) if short else None

    def run(
        self, given: Sequence[Array], monitor: TaskMonitor | None = None, lent: list[Arena] | None = None
    ) -> list[Array]:
        """The outputs. With `lent`, the arena is added to it, and the caller gives it back to `ARENAS`."""
        if self._shares:
            with shared(self._pool.size, self._pool.each):
                return self._run(given, monitor, lent)
        return self._run(given, monitor, lent)

    def _run(self, given: Sequence[Array], monitor: TaskMonitor | None, lent: list[Arena] | None) -> list[Array]:
        arena = ARENAS.take()  # returned after success alone: after a failure, a thread may still write to it
        before, chunks = self._bound(arena)
        slots = [x if type(x) is np.ndarray and x.flags.c_contiguous else np.asarray(x, order="C") for x in given]
        if chunks is None or monitor is not None:
            slots += before[len(slots) :]
            self._play(slots, monitor)
        else:
            slots += before[len(slots) : self._moving]
            self._play_straight(slots, chunks)
        leaving = [slots[slot] for slot in self._leaving]
        if lent is None:
            ARENAS.give(arena)
        else:
            lent.append(arena)
        return leaving

    def _play(self, slots: list[Any], monitor: TaskMonitor | None) -> None:
        step = None
        try:
            for run, args, out, step in self.calls:
                given = [slots[i] for i in args]
                slots[out] = run(*given) if monitor is None else _watched(monitor, run, given, step)
        except StepFailed:
            raise
        except Exception as e:
            raise StepFailed(step) from e

    def _play_straight(self, slots: list[Any], chunks: Sequence[Chunk]) -> None:
        done = 0
        try:
            for chunk in chunks:
                chunk(slots)
                done += CHUNK
        except StepFailed:
            raise
        except Exception as e:
            raise StepFailed(self.calls[done + failed_at(e.__traceback__)].step) from e

    def _bound(self, arena: Arena) -> Bound:
        """The slots at the start of a run (constants, arrays in the arena, views of both), and the code for them."""
        bound: Bound | None = arena.bound.get(self)
        if bound is None:
            arena.reserve(self.nbytes)
            slots: list[Any] = [None] * self._count
            for slot, value in self._fixed:
                slots[slot] = value
            for slot, offset, spec in self._places:
                nbytes = spec.dtype.itemsize * math.prod(spec.shape)
                slots[slot] = arena.memory[offset : offset + nbytes].view(spec.dtype).reshape(spec.shape)
            for run, args, out, _ in self._views:
                slots[out] = run(*[slots[i] for i in args])
            bound = arena.bound[self] = slots, None if self._straight is None else self._straight.bound(slots)
        return bound


def _watched(monitor: TaskMonitor, run: Callable[..., Any], given: Sequence[Any], step: Step | None) -> Any:
    """The result of a call, of which a monitor knows: steps that one call takes together share its time."""
    monitor.before(step)
    if isinstance(run, Watched):
        return run.watched(monitor, *given)
    made = run(*given)
    if step is not None and step.body and not isinstance(run, FusedRun):
        monitor.divide([(each, 1.0) for each in step.body])
    return made


def _numbers(slots: Sequence[int], static: Set[int], leaving: Set[int]) -> tuple[dict[int, int], int]:
    """New numbers of slots, by their old ones: those that a run fills or hands out come first, those of the inputs
    before all others as they do already; and how many these are. Generated code has the others in its globals."""
    first = [slot for slot in slots if slot not in static]
    first += [slot for slot in slots if slot in static and slot in leaving]
    order = first + [slot for slot in slots if slot in static and slot not in leaving]
    return {slot: k for k, slot in enumerate(order)}, len(first)


def _renumbered(calls: Sequence[TapeCall], new: Mapping[int, int]) -> list[TapeCall]:
    return [TapeCall(run, tuple([new[slot] for slot in args]), new[out], step) for run, args, out, step in calls]
