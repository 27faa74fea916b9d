"""Helpers of the tests on Ray: drivers in separate processes, and the contents of the object store."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
#: Seconds for a driver process to end. Starting Ray alone takes 4 to 12 s on an idle machine.
PROCESS_TIMEOUT = 240.0


def environment(more: Mapping[str, str]) -> dict[str, str]:
    """This process's, without the cluster that it may have been told to join."""
    kept = {name: value for name, value in os.environ.items() if name not in ("RAY_ADDRESS", "RAY_JOB_ID")}
    return {**kept, "PYTHONPATH": str(ROOT), **more}


def start(*command: str, cwd: Path = ROOT, **more: str) -> subprocess.Popen[str]:
    """A process of this Python, in a group of its own as if in a terminal of its own."""
    return subprocess.Popen(
        [sys.executable, *command],
        cwd=cwd,
        env=environment(more),
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def driver(*command: str, cwd: Path = ROOT, **more: str) -> tuple[str, str]:
    """What a driver prints: its output and its errors. It must end well."""
    process = start(*command, cwd=cwd, **more)
    try:
        out, err = process.communicate(timeout=PROCESS_TIMEOUT)
    finally:
        process.kill()
    assert process.returncode == 0, f"{command} ended with {process.returncode}:\n{out}\n{err}"
    return out, err


def program(name: str, *arguments: str, **more: str) -> tuple[str, str]:
    return driver("-m", f"tests.on_ray.programs.{name}", *arguments, **more)


def store_bytes() -> int:
    """The bytes that the object stores of all nodes hold in memory. The one place that asks Ray's internals."""
    import ray
    from ray._private.internal_api import node_stats

    used = 0
    for node in ray.nodes():
        if node["Alive"]:
            stats = node_stats(node["NodeManagerAddress"], node["NodeManagerPort"], include_memory_info=False)
            used += stats.store_stats.object_store_bytes_used
    return used


def settled_store() -> int:
    """The bytes of the stores once they do not fall any more: Ray frees what earlier tests let go a little later."""
    least = store_bytes()
    while until(lambda: store_bytes() < least, 1.5):  # noqa: B023 - called before it changes
        least = store_bytes()
    return least


def processes() -> dict[int, tuple[int, str]]:
    """The parent and the command line of every process that runs; a worker of Ray's says there what it runs."""
    ask = ["ps", "-A", "-o", "pid=,ppid=,stat=,command="]
    rows = subprocess.run(ask, text=True, capture_output=True, check=True).stdout.splitlines()
    found = [row.split(None, 3) for row in rows if not row.endswith(" ".join(ask))]
    return {int(pid): (int(parent), command) for pid, parent, state, command in found if not state.startswith("Z")}


def below(pid: int) -> list[int]:
    """The processes that a process started, and those that they started."""
    table, found = processes(), [pid]
    for each in found:
        found += [child for child, (parent, _) in table.items() if parent == each]
    return found[1:]


def until(condition: Callable[[], Any], seconds: float = 30.0) -> Any:
    """What a condition gives once it holds; the last it gave, if it does not in time."""
    ends = time.monotonic() + seconds
    while not (found := condition()) and time.monotonic() < ends:
        gc.collect()
        time.sleep(0.05)
    return found
