"""Recording: the runs of a session, for traces and reports. Only the last run of each plan is kept in full."""

from __future__ import annotations

import atexit
import json
import os
import threading
from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import Any

from distgrad.files import check_writable, write_text
from distgrad.scheduler.plan import Plan
from distgrad.scheduler.reports import Report
from distgrad.scheduler.trace import Entry, document

#: Maximum number of run times kept per plan, and of plans kept; the most recent ones are.
RUNS, PLANS = 1000, 64


class Recording:
    """The runs of a session. If it has a path, it is written when the session is closed or the process exits."""

    def __init__(self, path: Path | None = None):
        self.path = path and path.absolute()  # the process may change its working directory
        self.last: Report | None = None
        #: By the id of plans, which are kept alive here: computing a digest can take longer than a run.
        self._entries: dict[int, Entry] = {}
        self._lock = threading.Lock()
        if path is not None:
            atexit.register(self.close)

    def add(self, name: str, plan: Plan, report: Report) -> None:
        if not plan.tasks:  # results are feeds: there is nothing to record
            return
        with self._lock:
            entry = self._entries.pop(id(plan), None) or Entry(plan, name, seconds=deque(maxlen=RUNS))
            self._entries[id(plan)] = entry
            entry.last = self.last = report
            entry.count += 1
            entry.seconds.append(report.seconds)  # type: ignore[attr-defined]
            if len(self._entries) > PLANS:
                del self._entries[next(iter(self._entries))]

    def document(self) -> dict[str, Any]:
        """The trace. Raises ValueError if nothing ran."""
        from distgrad import __version__

        with self._lock:  # a run that ends now waits for this copy, not for the whole document
            entries = [replace(entry, seconds=list(entry.seconds)) for entry in self._entries.values()]
        if not entries:
            raise ValueError("nothing was recorded: no run has ended in this session yet")
        return document(entries, __version__)

    def close(self) -> None:
        """Write the recording to its path, if it has one."""
        if self.path is not None:
            atexit.unregister(self.close)
            if self._entries:
                write(self.document(), self.path)


def target(path: str | os.PathLike[str]) -> Path:
    """The path to write a trace or report to. Raises ValueError early if it cannot be written there."""
    found = Path(path)
    if found.suffix not in (".json", ".html"):
        raise ValueError(f"{found}: a trace is a .json file, a report a .html file")
    if not found.parent.is_dir():
        raise ValueError(f"{found}: there is no folder {str(found.parent)!r}")
    try:
        return check_writable(found)
    except OSError as e:
        raise ValueError(str(e)) from None


def write(data: dict[str, Any], path: str | os.PathLike[str]) -> Path:
    """Write a trace as JSON, or as an HTML report. Raises ValueError for an invalid path and OSError if writing fails,
    for example on a full disk; both name the path and a remedy."""
    found = target(path)
    if found.suffix == ".html":
        from distgrad.report import page

        text = page(data)
    else:
        text = json.dumps(data, separators=(",", ":"))
    return write_text(found, text)
