"""What was skipped because something is not installed, and the command that installs it: told when tests end."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

#: What may be missing: how the reason of a skip names it.
MISSING = {
    "torch": r"\btorch\b",
    "Chromium": r"\bChromium\b",
    "selenium": r"\bselenium\b",
    "matplotlib": r"\bmatplotlib\b",
    "ml_dtypes": r"\bml_dtypes\b",
}
#: How Chromium and its driver are installed, by the first of these programs that there is.
CHROMIUM = {
    "apt-get": "apt-get install -y chromium chromium-driver",
    "dnf": "dnf install -y chromium chromedriver",
    "apk": "apk add chromium chromium-chromedriver",
    "pacman": "pacman -S --noconfirm chromium",
    "brew": "brew install chromium chromedriver",
}


def tell(terminal: Any) -> None:
    """At the end of the session, with or without pytest-xdist: its reports are all here."""
    counts = grouped(report.longrepr[2] for report in terminal.stats.get("skipped", []) if len(report.longrepr) == 3)
    if counts:
        terminal.section("skipped, for what is not installed here", yellow=True, bold=True)
    for name, count in counts.items():
        terminal.line(f"{count} {'test needs' if count == 1 else 'tests need'} {name}, which this installs:")
        terminal.line(f"    {command(name)}")


def grouped(reasons: Iterable[str]) -> dict[str, int]:
    """How many tests lack what, by the reasons of skips; those for other reasons are left out."""
    named = Counter(name for reason in reasons for name in (missing(reason),) if name is not None)
    return {name: named[name] for name in MISSING if name in named}


def missing(reason: str) -> str | None:
    return next((name for name, pattern in MISSING.items() if re.search(pattern, reason)), None)


def command(name: str) -> str:
    if name != "Chromium":
        return f"{_python()} -m pip install {name}"
    found = next((line for program, line in CHROMIUM.items() if shutil.which(program)), CHROMIUM["apt-get"])
    return found if os.geteuid() == 0 or found.startswith("brew") else f"sudo {found}"


def _python() -> str:
    """This Python, as it would be called from here."""
    path = Path(sys.executable)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
