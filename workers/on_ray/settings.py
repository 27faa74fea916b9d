"""How plans run on Ray. Knows no Ray."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from distgrad.scheduler.plan import Plan
from distgrad.scheduler.reports import Report


@dataclass(frozen=True, slots=True)
class RaySettings:
    """How plans run on Ray."""

    backend: str = "numpy"
    check_numerics: bool = False
    #: Seconds after which a run is given up; after which a task is taken for hung, and run again.
    timeout: float | None = None
    task_timeout: float | None = None
    #: Tasks that are with Ray at the same time.
    in_flight: int = 512
    #: How often one task is tried.
    attempts: int = 4
    #: How progress is told: live, log or off; None: as the process does.
    progress: str | None = None
    #: Gets the name, the plan and the report of each run; ops are not timed without.
    record: Callable[[str, Plan, Report], None] | None = None


def folder() -> Path:
    """Where Ray keeps its files on this machine, in a folder of its name."""
    return Path(os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp")
