"""The table of fault kinds: the name of each, the function that injects it, and the training that it disturbs."""

from __future__ import annotations

import ctypes
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import distgrad as dg

if TYPE_CHECKING:
    from .cluster import OwnCluster

#: A store with little room, and what it may spill: less than one array of those who fill it.
SMALL_STORE, SPILL = 80 << 20, 4 << 20
#: Bytes of the arrays of those who fill it, and the largest number of each.
FILLERS, MOST_FILLERS = (4 << 20, 120_000), 64

#: Tasks of one step that are told to end their process.
ORDERS = 3


@dataclass
class Site:
    """Where faults happen: a cluster, nodes that came for one round of the training, and a folder of orders."""

    cluster: OwnCluster
    orders: Path
    random: random.Random
    nodes: list[Any] = field(default_factory=list)
    #: Steps that have ended; and how many had when a worker was last killed.
    steps: int = 0
    killed_at: int = -1
    #: Held by the training during a step.
    stepping: threading.Lock = field(default_factory=threading.Lock)
    known: set[int] = field(default_factory=set)
    stopped: set[int] = field(default_factory=set)
    fillers: list[Any] = field(default_factory=list)

    def workers(self) -> list[int]:
        """Workers that run a task now or were seen doing so: one that is still starting is not the driver's yet."""
        from .cluster import processes  # brings Ray, which not everybody wants who looks at this table

        alive = dict(processes())
        self.known = {pid for pid, name in alive.items() if name.startswith("ray::run_task") or pid in self.known}
        return sorted(self.known - self.stopped)

    def resume(self) -> None:
        """Whatever was stopped and still is there goes on: stopped processes do not end with their cluster."""
        for pid in self.stopped:
            send(pid, signal.SIGCONT)


@dataclass(frozen=True)
class Kind:
    """A kind of fault. `inject` gives how many there were: none where nothing was there to disturb."""

    name: str
    inject: Callable[[Site], int]
    #: How many of 1,200, and of the few of a quick run; seconds between two, on average.
    count: int
    few: int
    seconds: float
    #: Nodes beside the head, and where weights are written. Where nodes go, the training has new ones after as many
    #: faults.
    nodes: int = 1
    devices: tuple[str, ...] = ("worker:0", "worker:1")
    goes: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    #: Errors that say why a step failed, after which it is repeated.
    may_raise: tuple[type[BaseException], ...] = ()
    #: Whether each fault must have cost the only copy of a value.
    loses: bool = False


# -- processes ---------------------------------------------------------------------------------------------------


#: The part of kills that come before a step has ended since the last one: a worker that is killed whenever it starts
#: computes nothing.
AT_ONCE = 0.2


def killed(site: Site) -> int:
    """One worker or two at once."""
    if site.steps == site.killed_at and site.random.random() > AT_ONCE:
        return 0
    pids, site.killed_at = site.workers(), site.steps
    site.random.shuffle(pids)
    return sum([send(pid, signal.SIGKILL) for pid in pids[: site.random.randint(1, 2)]])


def stopped(site: Site) -> int:
    """Most go on by themselves after a while; the others have to be ended."""
    stays, seconds = site.random.random() < 0.25, site.random.uniform(0.05, 1.5)

    def stop(pid: int) -> bool:
        if not send(pid, signal.SIGSTOP):
            return False
        if stays:
            site.stopped.add(pid)
        else:
            time.sleep(seconds)
            send(pid, signal.SIGCONT)
        return True

    return _one(site, stop)


def slowed(site: Site) -> int:
    """A worker that gets a fifth of its time for a second."""

    def slow(pid: int) -> bool:
        there = True
        for _ in range(10):
            there = there and send(pid, signal.SIGSTOP)
            time.sleep(0.08)
            there = there and send(pid, signal.SIGCONT)
            time.sleep(0.02)
        return there

    return _one(site, slow)


def gcs_paused(site: Site) -> int:
    from .cluster import processes

    pids = [pid for pid, name in processes() if name.endswith("gcs_server")]
    for pid in pids:
        send(pid, signal.SIGSTOP)
    time.sleep(site.random.uniform(0.5, 5) if site.random.random() < 0.5 else 0.5)
    for pid in pids:
        send(pid, signal.SIGCONT)
    return len(pids)


def _one(site: Site, what: Callable[[int], bool]) -> int:
    pids = site.workers()
    return int(bool(pids) and what(site.random.choice(pids)))


def send(pid: int, number: int) -> bool:
    """Whether the process was still there."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


# -- inside of a task --------------------------------------------------------------------------------------------


@dg.op("FaultsObey", infer=lambda x, **_: (x.shape, x.dtype))
def obey(x: Any, *, orders: str, driver: int) -> Any:
    """Gives what it gets; on a worker that finds an order, it ends the process as the order says."""
    if os.getpid() != driver:
        for order in os.listdir(orders):
            with suppress(FileNotFoundError):  # another one was quicker
                os.unlink(os.path.join(orders, order))
                _end(order)
    return x.copy()


def _end(order: str) -> None:
    if order.startswith("segfault"):
        ctypes.string_at(0)
    elif order.startswith("_exit"):
        os._exit(3)
    elif order.startswith("sys.exit"):
        sys.exit(3)
    elif order.startswith("SIGTERM"):
        os.kill(os.getpid(), signal.SIGTERM)  # Ray's worker answers with sys.exit, wherever it is


def segfault(site: Site) -> int:
    return _order(site, "segfault")


def exits(site: Site) -> int:
    return _order(site, site.random.choice(["_exit", "sys.exit", "SIGTERM"]))


def _order(site: Site, what: str) -> int:
    """A few between two steps, once those before were obeyed: faster than workers start, no step would end."""
    with site.stepping:
        if any(site.orders.iterdir()):
            return 0
        for _ in range(ORDERS):
            (site.orders / f"{what}-{time.monotonic_ns()}").touch()
    return ORDERS


# -- nodes -------------------------------------------------------------------------------------------------------


def node_lost(site: Site) -> int:
    """A node goes, at whatever moment of a step."""
    if not site.nodes:
        return 0
    site.cluster.remove(site.nodes.pop(site.random.randrange(len(site.nodes))))
    return 1


def object_lost(site: Site) -> int:
    """A node goes between two steps: weights that the last one wrote there have no other copy."""
    with site.stepping:
        return node_lost(site)


# -- the store ---------------------------------------------------------------------------------------------------


class _Filler:
    """Somebody else's objects, in the store of a node: large ones, then small ones for what is left."""

    def fill(self) -> int:
        import numpy as np
        import ray

        self.kept = []
        for size in FILLERS:
            with suppress(Exception):  # it is full now
                for _ in range(MOST_FILLERS):
                    self.kept.append(ray.put(np.ones(size, np.uint8)))
        return len(self.kept)

    def empty(self) -> None:
        self.kept = []


def store_filled(site: Site) -> int:
    """Others fill the stores for a while; what they have can neither be spilled nor evicted."""
    import ray

    if not site.fillers:
        site.fillers = [_filler(node["NodeID"]) for node in ray.nodes() if node["Alive"]]
    ray.get([each.fill.remote() for each in site.fillers], timeout=120)
    time.sleep(site.random.uniform(0.2, 1.5))
    ray.get([each.empty.remote() for each in site.fillers], timeout=120)
    return 1


def _filler(node: str) -> Any:
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    where = NodeAffinitySchedulingStrategy(node, soft=False)
    return ray.remote(_Filler).options(num_cpus=0, scheduling_strategy=where).remote()


def mixed(site: Site) -> int:
    """One of those that can meet at any moment."""
    return site.random.choice([killed, segfault, exits, slowed, gcs_paused])(site)


#: Seconds after which a task counts as hung in the training whose workers are stopped.
TASK_TIMEOUT = 4.0
_AWAY = ("worker:1", "worker:2")

KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind("SIGKILL", killed, 440, 12, 0.3),
        Kind("SIGSTOP", stopped, 120, 6, 0.3, options={"task_timeout": TASK_TIMEOUT}),
        Kind("segfault", segfault, 180, 8, 0.3),
        Kind("sys.exit", exits, 180, 8, 0.3),
        Kind("slow worker", slowed, 90, 6, 0.2),
        Kind("GCS paused", gcs_paused, 50, 4, 0.5),
        Kind("mixed", mixed, 60, 5, 0.3),
        Kind("object loss", object_lost, 36, 4, 0.4, nodes=2, devices=_AWAY, goes=True, loses=True),
        Kind("node loss", node_lost, 24, 4, 0.6, nodes=2, devices=_AWAY, goes=True),
        Kind("full store", store_filled, 20, 3, 0.5, may_raise=(Exception,)),
    )
}
#: What needs a cluster with a small store, in a process of its own.
SMALL: Iterable[str] = ("full store",)
