"""The calls of a compiled task, and the small functions that it calls in addition to kernels."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from distgrad.registry import OPS
from distgrad.scheduler.program import Step
from distgrad.types import Spec
from distgrad.workers.kernels import KERNELS
from distgrad.workers.kernels.user_ops import run_user_op
from distgrad.workers.task_monitor import TaskMonitor

Array = np.ndarray[Any, np.dtype[Any]]

#: By kind of dtype: the number that sums start from.
_NOTHING_YET = {"f": -0.0, "c": complex(-0.0, -0.0)}


class TapeCall(NamedTuple):
    """slots[out] = run(*[slots[i] for i in args]); `step` is the step that errors name."""

    run: Callable[..., Any]
    args: tuple[int, ...]
    out: int
    step: Step | None


class StepFailed(Exception):
    """A call of a tape raised an exception, which is the cause of this one."""

    def __init__(self, step: Step | None):
        super().__init__(step)
        self.step = step


class Watched(ABC):
    """What a call runs if it takes rows through several steps and can tell how long each of them took."""

    @abstractmethod
    def __call__(self, *arrays: Any) -> None: ...

    @abstractmethod
    def watched(self, monitor: TaskMonitor, *arrays: Any) -> None:
        """The same for somebody who looks on."""


class Place(NamedTuple):
    """An array in the arena."""

    slot: int
    offset: int
    spec: Spec


class Filled:
    """Calls a function that fills its first argument, and returns that."""

    def __init__(self, function: Callable[..., Any], attrs: Any):
        self._function = partial(function, **attrs) if attrs else function

    def __call__(self, out: Array, *inputs: Array) -> Array:
        self._function(out, *inputs)
        return out


class Kernel:
    """Calls a kernel that allocates its results. They are contiguous, and never views of its inputs."""

    def __init__(self, step: Step, specs: Sequence[Spec]):
        self._op, self._attrs, self._specs = OPS[step.type], step.attrs, specs  # a user may redefine the op later
        self._run = partial(KERNELS[step.type], np, **step.attrs) if self._op.kernel is None else self._user_op

    def _user_op(self, *inputs: Array) -> tuple[Array, ...]:
        """Copies, because a kernel may return an array that it keeps."""
        return tuple([x.copy() for x in run_user_op(self._op, inputs, self._attrs, self._specs)])

    def __call__(self, *inputs: Array) -> Any:
        made = self._run(*inputs)
        outputs = [_own(x, inputs) for x in (made if isinstance(made, tuple | list) else (made,))]
        return outputs[0] if len(self._specs) == 1 else outputs


def _own(x: Any, inputs: Sequence[Array]) -> Array:
    made: Array = np.asarray(x, order="C")
    seen = made.base is not None or any(made is y for y in inputs)
    return made.copy() if seen and any(np.may_share_memory(made, y) for y in inputs) else made


def add_up(table: Array, out: Array) -> Array:
    """Sum starting from -0.0, which changes no term; NumPy would start from 0.0."""
    np.add.reduce(table, axis=0, out=out.reshape(-1), initial=_NOTHING_YET.get(table.dtype.kind, 0))
    return out


def copied(place: Array, x: Array) -> Array:
    np.copyto(place, x)
    return place


def item(k: int, values: Sequence[Any]) -> Any:
    return values[k]


def nothing() -> None:
    """Empties a slot."""
    return None
