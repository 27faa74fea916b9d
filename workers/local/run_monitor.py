"""What is seen of a run of the local engine: for its report, and for whoever waits for it."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from distgrad import progress
from distgrad.scheduler.reports import Report, Shares, Token, at_text
from distgrad.workers.task_monitor import Clock, Watch, resident_bytes

if TYPE_CHECKING:
    from distgrad.workers.local.engine import Engine


class Look:
    """One run: its tasks that are under way, and those that have ended. `reports`: ops are timed, for a report."""

    def __init__(self, engine: Engine, reports: bool = False):
        self._plan = engine.plan
        self.report = Report() if reports else None
        count, own = len(engine.plan.tasks), engine.settings.progress
        self._work = progress.begin("running", engine.name, count, "tasks", self.at, own)
        self._watches: dict[int, Watch] = {}
        #: Whether tasks are to be watched.
        self.looks = reports
        if self._work is not progress.NOBODY:
            self.looks |= engine.long
            self._shares = Shares(engine.plan)

    def watch(self, i: int, over: threading.Event | None, calls: int) -> Watch:
        """For a task of so many calls."""
        watch = self._watches[i] = Watch(over, calls) if self.report is None else Clock(over, calls)
        return watch

    def ended(self, i: int, start: float, watch: Watch) -> None:
        self._watches.pop(i, None)
        if self._work is not progress.NOBODY:
            self._shares.ended(i, self._work)
        if self.report is not None:
            ops = watch.ops() if isinstance(watch, Clock) else ()
            thread = threading.get_ident()
            self.report.tokens[i] = Token(start, time.time(), "", thread, 0, resident_bytes(), ops)

    def end(self) -> None:
        progress.end(self._work)
        if self.report is not None:
            self.report.seconds = time.time() - self.report.began

    def running(self) -> dict[int, Watch]:
        """The tasks that are under way."""
        return self._watches.copy()

    def at(self) -> str:
        """Where the run is, in a few words."""
        said = []
        for _, watch in sorted(self.running().items()):
            if watch.step is not None:
                said.append(f"{at_text(watch.step)} (step {watch.count:,} of {watch.calls:,})")
                if len(self._plan.tasks) == 1:
                    self._work.share = (watch.count - 1) / watch.calls
        return "; ".join(said[:2])
