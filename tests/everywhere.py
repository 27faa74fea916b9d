"""`make test-everywhere`: all tests, four times, as on machines that differ. ARGS="-m 'not ray'" is the faster part.

Each run has a home of its own (empty, after a demo, or with a calibration), another order of the tests and another
number of processes. Afterwards the home must be as it was, to the last file: nobody else writes there.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from . import isolation

ROOT = Path(__file__).parent.parent


@dataclass(frozen=True)
class Run:
    what: str
    options: tuple[str, ...]
    #: A program that is run before, in the same home.
    before: tuple[str, ...] = ()
    #: How many times faster the machine is said to be: by a file in the user's home, and where the tests look.
    rates: float | None = None


RUNS = (
    Run("an empty home, four processes", ("-n", "4", "--shuffle", "1")),
    Run("after the demo, one process", ("-n", "1", "--shuffle", "2"), ("-m", "distgrad", "demo")),
    Run("a machine ten times faster", ("-n", "2", "--shuffle", "3"), rates=10),
    Run("a machine ten times slower", ("-n", "2", "--shuffle", "4"), rates=0.1),
)


def main(arguments: Sequence[str]) -> int:
    failed = []
    for each in RUNS:
        print(f"\n== {each.what}", flush=True)
        start = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="home-") as home:
            good = passes(each, Path(home), arguments)
        print(f"== {each.what}: {'green' if good else 'FAILED'} after {time.monotonic() - start:.0f} s", flush=True)
        failed += [] if good else [each.what]
    print("\nfailed: " + "; ".join(failed) if failed else "\ngreen everywhere")
    return bool(failed)


def passes(run: Run, home: Path, arguments: Sequence[str]) -> bool:
    """Whether all tests pass, and leave the home as it was."""
    env = isolation.neutral(os.environ, Path.home()) | {"HOME": str(home)}
    if run.before:
        subprocess.run([sys.executable, *run.before], cwd=home, env=env, check=True)
    if run.rates is not None:
        code = f"from tests.isolation import keep_rates; keep_rates({run.rates})"
        subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, check=True)
        env[isolation.RATES] = str(run.rates)
    before = isolation.files([home])
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", *run.options, *arguments], cwd=ROOT, env=env)
    after = isolation.files([home])
    for path in sorted(path for path in {*before, *after} if before.get(path) != after.get(path)):
        print(f"the tests changed the home: {path}")
    return done.returncode == 0 and before == after


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
