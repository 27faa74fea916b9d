"""A job of tests, to be submitted beside the quickstart example: what it does is its first argument."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import quickstart  # type: ignore[import-not-found]  # lies beside it in the job's folder

import distgrad as dg
from distgrad import runtime


def train(path: str, *words: str) -> None:
    """Write the last loss of a training, and tell what a job finds where it runs."""
    Path(path).write_text(repr(quickstart.main(20)))
    print("words:", *words)
    print("distgrad:", dg.__file__)
    print("variables:", os.environ.get("TOLD"), os.environ.get("DISTGRAD_PROGRESS"))
    print("on Ray:", runtime.current().last_run is not None)  # type: ignore[attr-defined]


def fail() -> None:
    print("there are no data", file=sys.stderr)
    sys.exit(7)


def forever() -> None:
    print("begun", flush=True)
    while True:
        time.sleep(1)


if __name__ == "__main__":
    {"train": train, "fail": fail, "forever": forever}[sys.argv[1]](*sys.argv[2:])
