"""Looking on while a task runs: where it is, whether it shall stop, and how long each of its ops takes."""

from __future__ import annotations

import os
import threading
import time

from distgrad.scheduler.program import Step
from distgrad.scheduler.reports import OpTime, op_text

#: Ops of a task that are told of: those that took longest.
MAX_OP_TIMES = 64


class Stopped(Exception):
    """The run that a task belongs to is over."""


class TaskMonitor:
    """Told before each call of a task which step it belongs to; ends the task there once `over` is set. `calls` is how
    many there are."""

    def __init__(self, over: threading.Event | None = None, calls: int = 0):
        #: The step that is under way, or was the last, and how many calls were begun.
        self.step: Step | None = None
        self.count = 0
        self.calls = calls
        self._over = over

    def before(self, step: Step | None) -> None:
        self.step = step or self.step
        self.count += 1
        if self._over is not None and self._over.is_set():
            raise Stopped


class Clock(TaskMonitor):
    """A monitor that also takes the time: a step lasts until the next one begins."""

    def __init__(self, over: threading.Event | None = None, calls: int = 0):
        super().__init__(over, calls)
        #: By identity: the step and its seconds, in however many calls.
        self._times: dict[int, tuple[Step, list[float]]] = {}
        self._at = time.perf_counter()

    def before(self, step: Step | None) -> None:
        self._add()
        super().before(step)

    def ops(self) -> tuple[OpTime, ...]:
        """What each op took, the longest first; called when the last step has ended."""
        self._add()
        found: dict[tuple[str, str], list[float]] = {}
        for step, seconds in self._times.values():
            row = found.setdefault((op_text(step), str(step.source)), [0.0, 0])
            row[0] += seconds[0]
            row[1] += 1
        ordered = sorted(found.items(), key=lambda item: (-item[1][0], item[0]))[:MAX_OP_TIMES]
        return tuple([OpTime(op, line, seconds, int(calls)) for (op, line), (seconds, calls) in ordered])

    def _add(self) -> None:
        now = time.perf_counter()
        if self.step is not None:
            _, seconds = self._times.setdefault(id(self.step), (self.step, [0.0]))
            seconds[0] += now - self._at
        self._at = now


def resident_bytes() -> int:
    """The bytes of this process that are in memory now; where the system does not tell, the most that were, or 0."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        try:
            import resource
        except ImportError:  # Windows
            return 0
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # bytes on macOS, which has no /proc
