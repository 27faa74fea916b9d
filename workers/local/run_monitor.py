"""Monitors runs of the local engine, for their reports and for progress."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from distgrad import progress
from distgrad.scheduler.reports import Report, Shares, Token, at_text
from distgrad.workers.task_monitor import Clock, TaskMonitor, resident_bytes

if TYPE_CHECKING:
    from distgrad.workers.local.engine import Engine


class RunMonitor:
    """The running and finished tasks of one run. With `reports`, ops are timed for a report."""

    def __init__(self, engine: Engine, reports: bool = False):
        self._plan = engine.plan
        self.report = Report() if reports else None
        count, own = len(engine.plan.tasks), engine.settings.progress
        self._work = progress.begin("running", engine.name, count, "tasks", self.at, own)
        self._monitors: dict[int, TaskMonitor] = {}
        #: Whether to monitor the steps of tasks.
        self.monitors_tasks = reports
        if self._work is not progress.NOT_SHOWN:
            self.monitors_tasks |= engine.long
            self._shares = Shares(engine.plan)

    def monitor_task(self, i: int, over: threading.Event | None, calls: int) -> TaskMonitor:
        """The monitor of task `i`, which has `calls` calls."""
        monitor = self._monitors[i] = TaskMonitor(over, calls) if self.report is None else Clock(over, calls)
        return monitor

    def ended(self, i: int, start: float, monitor: TaskMonitor) -> None:
        self._monitors.pop(i, None)
        if self._work is not progress.NOT_SHOWN:
            self._shares.ended(i, self._work)
        if self.report is not None:
            ops = monitor.ops() if isinstance(monitor, Clock) else ()
            thread = threading.get_ident()
            self.report.tokens[i] = Token(start, time.time(), "", thread, 0, resident_bytes(), ops)

    def end(self) -> None:
        progress.end(self._work)
        if self.report is not None:
            self.report.seconds = time.time() - self.report.began

    def running(self) -> dict[int, TaskMonitor]:
        """The monitors of the running tasks."""
        return self._monitors.copy()

    def at(self) -> str:
        """Where the run is, in a few words."""
        said = []
        for _, monitor in sorted(self.running().items()):
            if monitor.step is not None:
                said.append(f"{at_text(monitor.step)} (step {monitor.count:,} of {monitor.calls:,})")
                if len(self._plan.tasks) == 1:
                    self._work.share = (monitor.count - 1) / monitor.calls
        return "; ".join(said[:2])
