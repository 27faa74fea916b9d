"""What a framework provides to the server, and how the server measures it: seconds and peak memory of this process."""

from __future__ import annotations

import ctypes
import gc
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

#: Minimum seconds of a turn: steps of a millisecond are timed many times.
TURN_SECONDS = 0.1


def _nothing() -> None:
    return None


class Step(NamedTuple):
    """A workload in one framework, with its inputs in place."""

    run: Callable[[], Any]  # one step, done when it returns
    arrays: Callable[[Any], list[np.ndarray[Any, np.dtype[Any]]]]  # of what run() gives: the loss, then the gradients
    prepare: Callable[[], object] = _nothing  # what can be done before the first step, such as tracing
    predictions: Callable[[], dict[str, float] | None] = _nothing


def turn(run: Callable[[], Any]) -> float:
    """The median of the steps of one turn, after one that wakes threads and caches."""
    run()
    seen: list[float] = []
    collects = gc.isenabled()
    gc.disable()
    try:
        while sum(seen) < TURN_SECONDS:
            start = time.perf_counter()
            run()  # what it gives is dropped within its time, as a loop of training would
            seen.append(time.perf_counter() - start)
    finally:
        if collects:
            gc.enable()
    return statistics.median(seen)


def cores_used(seconds: float) -> float | None:
    """The share of all cores that was in use during a pause; None where /proc does not say."""
    before = _ticks()
    time.sleep(seconds)
    after = _ticks()
    if before is None or after is None or after[0] == before[0]:
        return None
    return 1 - (after[1] - before[1]) / (after[0] - before[0])


def _ticks() -> tuple[int, int] | None:
    """Of all cores since the system's start: all, and the idle ones."""
    try:
        counts = [int(text) for text in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    except OSError:
        return None
    return sum(counts), counts[3] + counts[4]


def resident(field: str = "VmRSS") -> int | None:
    """Bytes of memory without those of files, which are the code of libraries and shared with other processes: VmRSS
    now, VmHWM at most since `forget_peak`; None where /proc does not say."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    found = {line.split(":")[0]: line.split()[1] for line in lines if line.endswith("kB")}
    return int(found[field]) * 1024 - int(found["RssFile"]) * 1024 if {field, "RssFile"} <= found.keys() else None


def forget_peak() -> bool:
    """Reset the peak VmHWM; whether the kernel allows it."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def _trim() -> None:
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's
    if trim is not None:
        trim(0)


def peak_over(base: int | None, run: Callable[[], Any], steps: int = 3) -> int | None:
    """How far the resident memory of a few steps rises over `base`. What was needed for a while is not in it, be it for
    compiling or for saving the first step's results: malloc gives that back, whatever framework it was for."""
    gc.collect()
    _trim()
    if base is None or not forget_peak():
        return None
    for _ in range(steps):
        run()
    peak = resident("VmHWM")
    return None if peak is None else max(0, peak - base)
