"""The options of the Ray engine. Does not import Ray."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from distgrad.scheduler.plan import Plan
from distgrad.scheduler.reports import Report


@dataclass(frozen=True, slots=True)
class RaySettings:
    """The options of the Ray engine."""

    backend: str = "numpy"
    check_numerics: bool = False
    #: Seconds after which a run is given up; seconds after which a task counts as hung and is retried.
    timeout: float | None = None
    task_timeout: float | None = None
    #: Maximum number of tasks in flight.
    in_flight: int = 512
    #: Attempts per task.
    attempts: int = 4
    #: How progress is shown: live, log or off; None for the default of the process.
    progress: str | None = None
    #: Called with the name, the plan and the report of each run. Without it ops are not timed.
    record: Callable[[str, Plan, Report], None] | None = None


def folder() -> Path:
    """The folder in which Ray keeps its files on this machine, in a subfolder `ray`."""
    return Path(os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp")
