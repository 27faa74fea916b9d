"""Looking on while a task runs: where it is, and whether it shall stop."""

from __future__ import annotations

import threading

from distgrad.scheduler.program import Step


class Stopped(Exception):
    """The run that a task belongs to is over."""


class Watch:
    """Told before each call of a task which step it belongs to; ends the task there once `over` is set."""

    def __init__(self, over: threading.Event):
        #: The step that is under way, or was the last.
        self.step: Step | None = None
        self._over = over

    def before(self, step: Step | None) -> None:
        self.step = step or self.step
        if self._over.is_set():
            raise Stopped
