"""FusedRun: how a fused step runs. Knows nothing of native code, which is imported where it is used."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from distgrad.scheduler.program import Step

Array = np.ndarray[Any, np.dtype[Any]]


class FusedRun(ABC):
    """Called with the arrays of the step's inputs, which are contiguous, then of its outputs, which it fills."""

    #: The steps that it computes.
    body: tuple[Step, ...]
    #: Whether threads share it.
    shared: bool

    @abstractmethod
    def __call__(self, *arrays: Array) -> None: ...

    @property
    @abstractmethod
    def checked(self) -> list[int]:
        """The inputs whose values are checked before it runs."""

    @abstractmethod
    def overwritable(self, v: int) -> list[int]:
        """The inputs in whose place this output can be written."""

    @abstractmethod
    def cut_by_items(self, lead: int, count: int) -> tuple[bool, ...] | None:
        """Whether the step can run as `count` equal items of the space's first axis, which has length `lead`: for each
        array if it is cut then."""
