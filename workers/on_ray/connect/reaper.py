"""Kills what is left of a Ray that a driver on this machine started, after the driver has ended.

Imports neither Ray nor distgrad. Ray has the kernel end its servers with their driver, but processes that the raylet
started, mainly its agents, may stay. So a driver that starts Ray also runs this file as a process: it keeps track of
the processes of that Ray, and when its parent has ended, for whatever reason, it kills them by their ids.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress
from typing import NamedTuple

#: The environment variable that marks the processes of one Ray that a driver started.
MARK = "DISTGRAD_RAY"
#: Seconds between two scans of the processes: at first, while Ray starts, and later.
EARLY_INTERVAL, LATER_INTERVAL = 0.5, 5.0
#: Number of early scans.
EARLY_SCANS = 60
#: Seconds for which leftover processes are killed repeatedly.
KILL_SECONDS = 10.0


class Process(NamedTuple):
    """A process. Its start time tells it from a later process with the same id."""

    pid: int
    began: int


def table() -> dict[int, tuple[int, int, str]]:
    """The parent, start time and state of every process, by id."""
    found = {}
    for name in os.listdir("/proc") if os.path.isdir("/proc") else ():
        if name.isdigit() and (stat := _stat(int(name))) is not None:
            found[int(name)] = stat
    return found


def _stat(pid: int) -> tuple[int, int, str] | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        return int(fields[1]), int(fields[19]), fields[0].decode()
    except (OSError, IndexError, ValueError):
        return None


def state(pid: int) -> str:
    """The state of a process: R, S and D are alive, T is stopped, Z has ended; "" if there is no such process."""
    found = _stat(pid)
    return "" if found is None else found[2]


def identified(pid: int) -> Process | None:
    found = _stat(pid)
    return None if found is None else Process(pid, found[1])


def lives(process: Process) -> bool:
    found = _stat(process.pid)
    return found is not None and found[1] == process.began and found[2] not in "ZX"


def called_with(argument: str) -> Process | None:
    """The process on this machine with an argument, if there is one and it is visible."""
    for pid, row in table().items():
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                if argument.encode() in file.read().split(b"\0"):
                    return Process(pid, row[1])
        except OSError:
            continue
    return None


def belonging(driver: int, mark: str) -> set[Process]:
    """The processes of a driver's Ray: the driver's children with the mark, and their descendants."""
    rows = table()
    found = [pid for pid, row in rows.items() if row[0] == driver and _has(pid, mark)]
    children: dict[int, list[int]] = {}
    for pid, row in rows.items():
        children.setdefault(row[0], []).append(pid)
    for pid in found:
        found += children.get(pid, [])
    return {Process(pid, rows[pid][1]) for pid in found if rows[pid][2] not in "ZX"}


def _has(pid: int, mark: str) -> bool:
    """Whether it is a process of Ray with this mark: others may have been started at the same moment."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as environment, open(f"/proc/{pid}/cmdline", "rb") as command:
            named = f"{MARK}={mark}".encode() in environment.read().split(b"\0")
            return named and b"ray" in command.read() and pid != os.getpid()
    except OSError:
        return False


def kill(processes: set[Process]) -> None:
    """Send SIGKILL to each one that is still the same process."""
    for process in processes:
        if lives(process):
            with suppress(OSError):
                os.kill(process.pid, signal.SIGKILL)


def main(driver: int, mark: str) -> None:
    known: set[Process] = set()
    scans = 0
    while os.getppid() == driver:
        known = {p for p in known if lives(p)} | belonging(driver, mark)
        scans += 1
        ends = time.monotonic() + (EARLY_INTERVAL if scans < EARLY_SCANS else LATER_INTERVAL)
        while os.getppid() == driver and time.monotonic() < ends:
            time.sleep(EARLY_INTERVAL)
    ends = time.monotonic() + KILL_SECONDS
    while any(map(lives, known)) and time.monotonic() < ends:
        kill(known)
        time.sleep(EARLY_INTERVAL)


if __name__ == "__main__":
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    main(int(sys.argv[1]), sys.argv[2])
