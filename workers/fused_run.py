"""FusedRun: how a fused step runs, by NumPy calls on blocks or as native code."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from distgrad.scheduler.program import Step

Array = np.ndarray[Any, np.dtype[Any]]


class FusedRun(ABC):
    """Called with the arrays of the step's inputs, then of its outputs, which it fills.

    It can also run in items, equal parts of the first axis, between other steps of the same items: then `begin` is
    called once, `item` for each of them, and `end` once.
    """

    #: The steps that it computes.
    body: tuple[Step, ...]
    #: Whether threads share it.
    shared: bool
    #: Whether all inputs have to be contiguous.
    in_order: ClassVar[bool] = False

    @abstractmethod
    def __call__(self, *arrays: Array) -> None: ...

    @abstractmethod
    def begin(self) -> list[Array]:
        """Where blocks put their parts of the reductions over rows."""

    @abstractmethod
    def item(self, number: int, count: int, parts: Sequence[Array], *arrays: Array) -> None:
        """One of `count` items, of arrays that are cut already."""

    @abstractmethod
    def end(self, arrays: Sequence[Array], parts: Sequence[Array]) -> None:
        """Combine the parts."""

    @abstractmethod
    def overwritable(self, v: int) -> list[int]:
        """The inputs in whose place this output can be written."""

    @abstractmethod
    def cut_by_items(self, lead: int, count: int) -> tuple[bool, ...] | None:
        """Whether the step can run as `count` equal items of the space's first axis, which has length `lead`: for each
        array if it is cut then."""
