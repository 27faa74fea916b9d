"""The second phase of a call: updates of variables in place.

When it begins, everything that can fail is done, and nobody can read the variables any more. An array that somebody
still refers to is left alone: then the new value is in fresh memory. Python's own count of references tells, because
every reader raises it by reading: a copy in the making, a checkpoint being written, a running call, a view. Weak
references count too: a Ray session recognises by them what it has sent to the cluster.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from distgrad.result_buffers import ResultBuffer
from distgrad.scheduler.plan import Plan
from distgrad.scheduler.program import Step
from distgrad.types import Spec
from distgrad.workers.thread_pool import thread_pool

Array = np.ndarray[Any, np.dtype[Any]]


def has_code(types: Sequence[Spec], step: Step) -> bool:
    """Whether native code computes a fused step, without scratch memory."""
    from distgrad.workers.native.compiled import compiled  # late: llvmlite is large

    code = compiled(step, types)
    return code is not None and not code.scratch_bytes and not code.group.folds and not code.group.labels


class Ready(NamedTuple):
    """A second phase that only has to be carried out: all calls one after another, without any instruction of Python in
    between. `fresh` has the new values, by key, of variables that are not updated in place."""

    fresh: dict[str, Array]
    calls: list[Callable[[], Any]]
    sweep: Any  # keeps the arrays alive


class SecondPhase:
    """The updates of a plan, compiled."""

    def __init__(self, plan: Plan, threads: int):
        from distgrad.workers.native.compiled import compiled

        program, updates = plan.program, plan.updates
        assert updates is not None
        steps = [program.steps[i] for i in updates.steps]
        self._groups = [(compiled(step, program.types), step) for step in steps]
        self._types, self._pool = program.types, thread_pool(threads)
        self._in_place = frozenset(updates.in_place)
        made = {v for step in steps for v in step.outputs}
        reads = dict(program.reads)
        #: The values before and after, by key, of the variables whose new values are made here.
        self.pairs = {key: (reads.get(key), v) for key, v in program.writes if v in made}
        before = {old for old, _ in self.pairs.values()}
        #: The values that the first phase has to leave for it.
        self.needs = sorted({v for step in steps for v in step.inputs} - before)

    def ready(self, needed: Mapping[int, Array], old: dict[str, Array], held: Container[str] = ()) -> Ready:
        """Prepare everything that can fail. Variables in `held` are not updated in place, nor are those with an array
        that anything else refers to, beside `old` and the variable itself."""
        from distgrad.workers.native.sweep import Sweep

        free = dict(zip(old, _nobody_else_has(list(old.values())), strict=True))
        in_place = {key for key in self._in_place if free[key] and key not in held}
        fresh = {
            key: np.empty(self._types[new].shape, self._types[new].dtype)
            for key, (_, new) in self.pairs.items()
            if key not in in_place
        }
        values = {v: np.asarray(x, order="C") for v, x in needed.items()}
        for key, (before, after) in self.pairs.items():
            values[after] = old[key] if key in in_place else fresh[key]
            if before is not None:
                values[before] = np.asarray(old[key], order="C")
        sweep = Sweep([(code, [values[v] for v in (*s.inputs, *s.outputs)]) for code, s in self._groups if code])
        return Ready(fresh, [*self._pool.invitations(sweep.part), sweep.begin], sweep)


# -- who else has an array -----------------------------------------------------------------------------------------


def _nobody_else_has(arrays: list[Array]) -> list[bool]:
    """For each array, whether nothing refers to it or to its memory but one place, a dict and this list."""
    counts = list(map(sys.getrefcount, arrays))  # before a loop's own name for the array counts
    return [count == _COUNT and _is_own(x) for count, x in zip(counts, arrays, strict=True)]


def _is_own(x: Array) -> bool:
    """Whether an array can be written over as far as its memory is concerned, and nobody recognises it later."""
    if type(x) is not np.ndarray or not x.flags.c_contiguous or weakref.getweakrefcount(x):
        return False
    return x.flags.owndata or (isinstance(x.base, ResultBuffer) and sys.getrefcount(x.base) == _BASE_COUNT)


def _counts() -> tuple[int, int]:
    """What Python counts for an array that nothing else has, and for its base: versions differ."""
    place = [np.asarray(ResultBuffer(np.empty(256, np.uint8), (1,), np.dtype(np.uint8)))]
    old = {"": place[0]}
    arrays = list(old.values())
    (count,) = list(map(sys.getrefcount, arrays))
    return count, sys.getrefcount(place[0].base)


_COUNT, _BASE_COUNT = _counts()
