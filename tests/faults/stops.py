"""Scenes with stopped workers (SIGSTOP), which do not answer, and accept no signals but SIGKILL and SIGCONT."""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import distgrad as dg

#: Timeouts of tasks and of runs in seconds. A task takes some tenths of a second.
TASK_TIMEOUT, TIMEOUT = 3.0, 6.0


@dg.op("FaultsSlow", infer=lambda x, **_: (x.shape, x.dtype))
def slow(x: Any, *, folder: str) -> Any:
    """Tells who runs it; takes a while."""
    if folder:
        Path(folder, str(os.getpid())).touch()
    time.sleep(0.3)
    return x + 1


class Stopped(NamedTuple):
    """How a step ended whose workers were stopped, and the next one."""

    kind: str
    text: str
    seconds: float
    stopped: int
    reasons: list[str]
    values: tuple[float, float, float]


def stop(how: str, folder: str = "", **options: Any) -> Stopped:
    """A step of which one idle worker is stopped, one that has just begun its task ("busy"), or all."""
    v = dg.Variable(0.0)

    def step(x: dg.Tensor, folder: str) -> None:
        parts = [dg.sum(slow(x * float(i), folder=folder) @ x) for i in range(4)]
        v.assign_add(dg.sum(dg.stack(parts)) * 0.0 + 1.0)

    call, x, kind, text = dg.function(step), np.ones((100, 100)), "", ""
    stopped: list[int] = []
    try:
        with dg.Session("ray", granularity=1e-6, **options) as s:
            call(x, "")
            first = float(v.numpy())
            watch = threading.Thread(target=_stop_busy, args=(folder, stopped))
            if how == "busy":
                call.plan(x, folder)
                watch.start()
            else:
                ran = {token.pid for token in s.last_run.tokens.values()}  # one that never ran may be starting still
                idle = _idle()
                stopped += _stop([pid for pid in idle if pid in ran][:1] if how == "idle" else idle)
            begin = time.monotonic()
            try:
                call(x, folder)
            except Exception as e:
                kind, text = type(e).__name__, str(e)
            seconds, second = time.monotonic() - begin, float(v.numpy())
            reasons = [] if s.last_run is None else list(s.last_run.reasons)
            if how == "busy":
                watch.join()
            _resume(stopped)  # those that were given nothing
            call(x, "")
            return Stopped(kind, text, seconds, len(stopped), reasons, (first, second, float(v.numpy())))
    finally:
        _resume(stopped)


def ask_while_stopped() -> tuple[int, float, int]:
    """How many workers are stopped, the seconds until their raylet answers, and the events read of one task."""
    import ray

    from distgrad.workers.on_ray import hang_detector
    from distgrad.workers.on_ray.connect import connection

    stopped: list[int] = []
    try:
        with dg.Session("ray", granularity=1e-6, timeout=60):
            call = dg.function(lambda x: dg.sum(dg.stack([dg.sum(slow(x * float(i), folder="")) for i in range(4)])))
            call(np.ones((100, 100)))
            ref, ends = ray.remote(lambda: None).remote(), time.monotonic() + 30
            ray.get(ref)
            task = ref.task_id().binary()
            while not (events := hang_detector._events([task])) and time.monotonic() < ends:
                time.sleep(0.1)
            stopped += _stop(_idle())
            begin = time.monotonic()
            connection._questions()[connection.RAYLET]()
            return len(stopped), time.monotonic() - begin, len(events)
    finally:
        _resume(stopped)


def _resume(pids: list[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def _idle() -> list[int]:
    """The workers of this process's clusters, once none runs a task any more."""
    from .cluster import processes

    ends = time.monotonic() + 30
    while time.monotonic() < ends:
        found = processes()
        if not any(name == "ray::run_task" for _, name in found):
            return [pid for pid, name in found if name == "ray::IDLE"]
        time.sleep(0.05)
    raise AssertionError("workers do not end")


def _stop(pids: list[int]) -> list[int]:
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    return pids


def _stop_busy(folder: str, stopped: list[int]) -> None:
    ends = time.monotonic() + 30
    while time.monotonic() < ends:
        for file in os.listdir(folder):
            stopped += _stop([int(file)])
            return
        time.sleep(0.01)
