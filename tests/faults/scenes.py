"""The scenes of the tests of faults, one function each. They run in the process that has the cluster."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import distgrad as dg

from .training import GRANULARITY, Training, same_bits, undisturbed

_cluster: list[Any] = []


def open_cluster() -> None:
    from .cluster import OwnCluster

    _cluster.append(OwnCluster())


def close_cluster() -> None:
    _cluster.pop().end()


def cluster() -> Any:
    return _cluster[0]


def address() -> str:
    return str(_cluster[0].address)


class Outcome(NamedTuple):
    """What came of a training that was disturbed."""

    same: bool
    steps: int
    tasks: int
    faults: Any
    kills: int = 0
    replayed: int = 0


def session(**options: Any) -> dg.Session:
    return dg.Session("ray", timeout=120, granularity=GRANULARITY, **options)


# -- workers -----------------------------------------------------------------------------------------------------


def workers_die(kills: int, seconds: float) -> Outcome:
    """A training while workers are killed, one every so many seconds."""
    from .cluster import Killer

    killer = Killer(kills, seconds)
    with session(attempts=20) as s:
        training, i = Training(), 0
        training.step(i)
        killer.start()
        while not killer.finished:
            i += 1
            training.step(i)
        killer.stop()
        same = same_bits(training.values(), undisturbed(i + 1))
        return Outcome(same, i + 1, training.tasks(), s.faults, kills=killer.kills)


# -- nodes -------------------------------------------------------------------------------------------------------


def node_dies(before: int, after: int, copied: bool) -> Outcome:
    """A training whose weights lie on a node that goes; `copied`: the driver's node has a copy of them."""
    node = _cluster[0].add()
    with session() as s:
        training = Training(device="worker:2")  # the two workers of the head come first
        for i in range(before):
            training.step(i)
        if copied:
            training.values()
        _cluster[0].remove(node)
        replayed = 0
        for i in range(before, before + after):
            training.step(i)
            replayed += s.last_run.replayed
        same = same_bits(training.values(), undisturbed(before + after))
        return Outcome(same, before + after, training.tasks(), s.faults, replayed=replayed)


def node_dies_late(before: int, longest: int) -> Outcome:
    """The same, where no chain of runs that would have to run again may be longer than `longest`."""
    from distgrad.workers.on_ray import engine

    kept, engine.MAX_REPLAYED_RUNS = engine.MAX_REPLAYED_RUNS, longest
    try:
        return node_dies(before, 1, copied=False)
    finally:
        engine.MAX_REPLAYED_RUNS = kept


def node_dies_in_a_step(steps: int, seconds: float) -> Outcome:
    """A training of which a node goes at some moment, with all that it had."""
    node = _cluster[0].add()
    with session() as s:
        training = Training(device="worker:2")
        training.step(0)
        removal = threading.Timer(seconds, _cluster[0].remove, [node])
        removal.start()
        i = 0
        while removal.is_alive() or i < steps:
            i += 1
            training.step(i)
        return Outcome(same_bits(training.values(), undisturbed(i + 1)), i + 1, training.tasks(), s.faults)


# -- tasks -------------------------------------------------------------------------------------------------------


@dg.op("FaultsDie", infer=lambda x, **_: (x.shape, x.dtype))
def die(x: Any, *, mark: str = "") -> Any:
    """The process ends as if it had taken too much memory; with `mark`, the first time only."""
    if not (mark and os.path.exists(mark)):
        Path(mark or os.devnull).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return x + 1


@dg.op("FaultsLeave", infer=lambda x, **_: (x.shape, x.dtype))
def leave(x: Any, *, mark: str = "") -> Any:
    """The process is told to end, as when its machine shuts down; then a kernel leaves with sys.exit. With `mark`, once
    each."""
    if not (mark and os.path.exists(f"{mark}-told")):
        Path(f"{mark}-told" if mark else os.devnull).touch()
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)
    if not os.path.exists(mark):
        Path(mark).touch()
        sys.exit(3)
    return x + 1


@dg.op("FaultsHang", infer=lambda x, **_: (x.shape, x.dtype))
def hang(x: Any, *, mark: str = "") -> Any:
    """Never ends; with `mark`, the first time only."""
    if not (mark and os.path.exists(mark)):
        Path(mark or os.devnull).touch()
        while True:
            time.sleep(1)
    return x + 1


class Troubled(NamedTuple):
    """What came of a step with a task that dies or hangs."""

    error: str
    kind: str
    seconds: float
    weights: tuple[float, float]
    recomputed: dict[int, int]
    tasks: int
    reasons: list[str]


def trouble(op: Callable[..., Any], mark: str, **options: Any) -> Troubled:
    """One step with an op that dies or hangs between others; then one without it: the session goes on."""
    a, b = dg.Variable(np.zeros((200, 200))), dg.Variable(0.0)

    @dg.function
    def step(x: dg.Tensor, bad: bool) -> None:
        y = dg.tanh(x @ x)
        a.assign((op(y, mark=mark) if bad else y + 1) @ x)
        b.assign_add(1.0)

    x, error, kind = np.ones((200, 200)), "", ""
    with dg.Session("ray", granularity=1e-6, **options) as s:
        step(x, False)
        start = time.monotonic()
        try:
            step(x, True)
        except Exception as e:
            error, kind = str(e), type(e).__name__
        seconds, weight, report = time.monotonic() - start, float(b.numpy()), s.last_run
        tasks = len(step.plan(x, True).tasks)
        step(x, False)
        return Troubled(error, kind, seconds, (weight, float(b.numpy())), report.recomputed, tasks, report.reasons)


# -- memory ------------------------------------------------------------------------------------------------------

#: What may be used beyond what is in use, and what the task would take: Ray ends it in between. Other processes of the
#: machine count too, hence the room.
ALLOWED, WANTED = 2 << 30, 5 << 30


@dg.op("FaultsEat", infer=lambda x, **_: (x.shape, x.dtype))
def eat(x: Any, *, mark: str) -> Any:
    """Takes memory until it is ended; the first time only."""
    if not os.path.exists(mark):
        Path(mark).touch()
        taken = [np.ones(1 << 23) for _ in range(WANTED >> 26)]
        while taken:
            time.sleep(1)
    return x + 1


def memory_ends(mark: str) -> Troubled:
    """A step with a task that takes too much memory, in a cluster of its own with little to give."""
    from ray._private.utils import get_system_memory, get_used_memory

    from .cluster import OwnCluster

    threshold = (get_used_memory() + ALLOWED) / get_system_memory()
    cluster = OwnCluster(memory_usage_threshold=threshold, memory_monitor_refresh_ms=100)
    try:
        return trouble(eat, mark, attempts=10)
    finally:
        cluster.end()
