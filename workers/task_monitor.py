"""Monitors a running task: its current step, a request to stop, and the time of each op."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence

from distgrad.scheduler.program import Step
from distgrad.scheduler.reports import OpTime, op_text

#: Maximum number of ops in a task's report: the slowest.
MAX_OP_TIMES = 64


class Stopped(Exception):
    """Raised in a task when its run is over."""


class TaskMonitor:
    """Called before each of a task's `calls` calls, with the step that the call belongs to. Stops the task there if
    `over` is set."""

    def __init__(self, over: threading.Event | None = None, calls: int = 0):
        #: The current or last step, and the number of calls begun.
        self.step: Step | None = None
        self.count = 0
        self.calls = calls
        self._over = over

    def before(self, step: Step | None) -> None:
        self.count += 1
        self.inside(step)

    def inside(self, step: Step | None) -> None:
        """A call that takes rows through several steps is now at this one. Threads may say so at the same time."""
        self.step = step or self.step
        if self._over is not None and self._over.is_set():
            raise Stopped

    def divide(self, spent: Sequence[tuple[Step | None, float]]) -> None:
        """A call has ended; the seconds that its threads spent with each of these steps."""


class Clock(TaskMonitor):
    """A monitor that also measures time: a step lasts until the next one begins."""

    def __init__(self, over: threading.Event | None = None, calls: int = 0):
        super().__init__(over, calls)
        #: By identity of the step: the step and its seconds, over all its calls.
        self._times: dict[int, tuple[Step, list[float]]] = {}
        self._at = time.perf_counter()

    def before(self, step: Step | None) -> None:
        self._add()
        super().before(step)

    def divide(self, spent: Sequence[tuple[Step | None, float]]) -> None:
        now, total = time.perf_counter(), sum([seconds for _, seconds in spent]) or 1.0
        for step, seconds in spent:
            if step is not None:
                self._times.setdefault(id(step), (step, [0.0]))[1][0] += (now - self._at) * seconds / total
                self.step = step
        self._at = now

    def ops(self) -> tuple[OpTime, ...]:
        """The time of each op, slowest first. Call it after the last step."""
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
    """Resident memory of this process in bytes; its peak, or 0, on systems that do not report it."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        try:
            import resource
        except ImportError:  # Windows
            return 0
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # bytes on macOS, which has no /proc
