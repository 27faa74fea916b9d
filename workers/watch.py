"""Looking on while a task runs: where it is, whether it shall stop, and whether its results are finite."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from distgrad.scheduler.program import Step


class Stopped(Exception):
    """The run that a task belongs to is over."""


class Watch:
    """Told before and after each step of a task.

    Args:
        check: look whether floating results are finite; `suspects` then says that one of them may not be.
        over: ends the task before its next step once it is set.
    """

    def __init__(self, check: bool, over: threading.Event | None = None):
        self.step: Step | None = None
        self.suspects = False
        self._check = check
        self._over = over

    def before(self, step: Step | None) -> None:
        self.step = step
        if self._over is not None and self._over.is_set():
            raise Stopped

    def after(self, outputs: Sequence[Any]) -> None:
        """A sum is finite only if everything in it is, and costs one sweep; that it overflows alone is found later."""
        if self._check and not self.suspects:
            self.suspects = any(x.dtype.kind in "fc" and not np.isfinite(np.sum(x)) for x in outputs)
