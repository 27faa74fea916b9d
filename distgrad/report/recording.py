"""Recording: what a session keeps of its runs, for traces and reports. Of each plan the last run in full."""

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

#: Run times that are kept of each plan, and plans that are kept: those that ran last.
RUNS, PLANS = 1000, 64


class Recording:
    """The runs of a session. With a path it is written when the session is closed, or at the end of the process."""

    def __init__(self, path: Path | None = None):
        self.path = path and path.absolute()  # the process may go to another folder meanwhile
        self.last: Report | None = None
        #: By the identity of plans, which are kept here: the digest of one takes longer than many a run.
        self._entries: dict[int, Entry] = {}
        self._lock = threading.Lock()
        if path is not None:
            atexit.register(self.close)

    def add(self, name: str, plan: Plan, report: Report) -> None:
        if not plan.tasks:  # what was given is what is wanted: there is nothing to tell
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
        """The trace; ValueError where nothing ran."""
        from distgrad import __version__

        with self._lock:  # runs that end meanwhile wait for this copy, not for the document
            entries = [replace(entry, seconds=list(entry.seconds)) for entry in self._entries.values()]
        if not entries:
            raise ValueError("nothing was recorded: no run has ended in this session yet")
        return document(entries, __version__)

    def close(self) -> None:
        """Write what was recorded to the path that was asked for."""
        if self.path is not None:
            atexit.unregister(self.close)
            if self._entries:
                write(self.document(), self.path)


def target(path: str | os.PathLike[str]) -> Path:
    """Where a trace or a report shall be written; ValueError where that cannot be, before there is one."""
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
    """Write a trace: as JSON, or as the page that shows it. ValueError for a path that cannot be one, OSError where the
    disk is full, say: both name the path and what to do."""
    found = target(path)
    if found.suffix == ".html":
        from distgrad.report import page

        text = page(data)
    else:
        text = json.dumps(data, separators=(",", ":"))
    return write_text(found, text)
