"""Ends what is left of a Ray that this machine's driver started, once the driver is gone. Knows no Ray and no distgrad.

Ray has the kernel end its servers with their driver; what the raylet started (its agents above all) may stay. So a
driver that starts Ray starts this file beside it, as a process of its own: it follows which processes belong to that
Ray, and when its parent has ended by whatever means, it kills them by their ids.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress
from typing import NamedTuple

#: A variable in the environment of all that a driver starts with its Ray: names which Ray it is.
MARK = "DISTGRAD_RAY"
#: Seconds between two looks at the processes: at first, when Ray starts, and later.
EARLY, LATER = 0.5, 5.0
#: Looks that count as early, and the seconds for which leftovers are killed again and again.
LOOKS, INSISTS = 60, 10.0


class Process(NamedTuple):
    """A process: its id may be given to another one later, with another time of its start."""

    pid: int
    began: int


def table() -> dict[int, tuple[int, int, str]]:
    """Of every process that runs: its parent, when it began, and its state."""
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
    """The state of a process: R, S and D go on, T is stopped, Z has ended; "" where there is none."""
    found = _stat(pid)
    return "" if found is None else found[2]


def identified(pid: int) -> Process | None:
    found = _stat(pid)
    return None if found is None else Process(pid, found[1])


def lives(process: Process) -> bool:
    found = _stat(process.pid)
    return found is not None and found[1] == process.began and found[2] not in "ZX"


def called_with(argument: str) -> Process | None:
    """The process of this machine that has an argument, if there is one and it can be seen."""
    for pid, row in table().items():
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                if argument.encode() in file.read().split(b"\0"):
                    return Process(pid, row[1])
        except OSError:
            continue
    return None


def belonging(driver: int, mark: str) -> set[Process]:
    """The processes of a driver's Ray: children of the driver that have the mark, and all that is below them."""
    rows = table()
    found = [pid for pid, row in rows.items() if row[0] == driver and _has(pid, mark)]
    children: dict[int, list[int]] = {}
    for pid, row in rows.items():
        children.setdefault(row[0], []).append(pid)
    for pid in found:
        found += children.get(pid, [])
    return {Process(pid, rows[pid][1]) for pid in found if rows[pid][2] not in "ZX"}


def _has(pid: int, mark: str) -> bool:
    """Whether it is one of Ray's with this mark: others may have been started in the same moment."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as environment, open(f"/proc/{pid}/cmdline", "rb") as command:
            named = f"{MARK}={mark}".encode() in environment.read().split(b"\0")
            return named and b"ray" in command.read() and pid != os.getpid()
    except OSError:
        return False


def kill(processes: set[Process]) -> None:
    """End them by force: each one that is still the same process."""
    for process in processes:
        if lives(process):
            with suppress(OSError):
                os.kill(process.pid, signal.SIGKILL)


def main(driver: int, mark: str) -> None:
    known: set[Process] = set()
    looks = 0
    while os.getppid() == driver:
        known = {p for p in known if lives(p)} | belonging(driver, mark)
        looks += 1
        ends = time.monotonic() + (EARLY if looks < LOOKS else LATER)
        while os.getppid() == driver and time.monotonic() < ends:
            time.sleep(EARLY)
    ends = time.monotonic() + INSISTS
    while any(map(lives, known)) and time.monotonic() < ends:
        kill(known)
        time.sleep(EARLY)


if __name__ == "__main__":
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    main(int(sys.argv[1]), sys.argv[2])
