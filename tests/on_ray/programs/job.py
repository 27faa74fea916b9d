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


def secret(name: str, *words: str) -> None:
    """Tell how long a secret is, and which files came along; and run a step, so that there are workers."""
    quickstart.main(2)
    print("length:", len(os.environ[name]))
    print("files:", *sorted(str(x) for x in Path().rglob("*") if x.is_file() and "__pycache__" not in x.parts))


def fail() -> None:
    print("there are no data", file=sys.stderr)
    sys.exit(7)


def forever() -> None:
    print("begun", flush=True)
    while True:
        time.sleep(1)


if __name__ == "__main__":
    {"train": train, "secret": secret, "fail": fail, "forever": forever}[sys.argv[1]](*sys.argv[2:])
