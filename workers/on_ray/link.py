"""The link to Ray: starting it here or joining a cluster, what the cluster has, objects in its store, and the end."""

from __future__ import annotations

import atexit
import logging
import os
import socket
import threading
import uuid
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import ray
from ray import exceptions

from distgrad.scheduler.cluster import Cluster, Machine, Worker, check_cluster, on_ray
from distgrad.scheduler.reports import Faults, Report
from distgrad.types import spec_of
from distgrad.workers.on_ray.packing import opened, pack
from distgrad.workers.on_ray.shipping import forget
from distgrad.workers.on_ray.values import Stored, Value

Array = np.ndarray[Any, np.dtype[Any]]

log = logging.getLogger("distgrad")

#: Seconds in which a cluster that is to be joined must take a connection.
KNOCK = 10.0
#: The share of a node's store that tasks may fill before the driver heard of their ends. Ray spills from 0.8 on.
AHEAD = 0.25
#: A closed link's answer to everything.
CLOSED = "the session is closed: its Ray is gone. Open another one."


@dataclass(frozen=True, slots=True)
class Node:
    """A node as Ray tells of it."""

    id: str
    address: str
    cpus: int
    gpus: int
    memory: int
    store: int
    labels: Mapping[str, str]


class Link:
    """A connection of this process to Ray. What it started it stops; a Ray that it joined it leaves running."""

    def __init__(self, address: str | None, cpus: int | None, gpus: int | None, object_store_memory: int | None):
        self.opened = not ray.is_initialized()
        #: What bodies are shipped under, so that they can be taken back.
        self.name = uuid.uuid4().hex
        self.values: weakref.WeakSet[Value] = weakref.WeakSet()
        self._placed: dict[int, tuple[weakref.ref[Array], Value]] = {}
        self.closed = False
        self._closing = threading.RLock()  # reentrant: a signal may close what is being closed
        #: What happened in the run that ended last, and what failures have cost so far.
        self.last: Report | None = None
        self.faults = Faults()
        _hush_ray()
        if self.opened:
            _open(address, cpus, gpus, object_store_memory)
        elif address not in (None, "auto"):
            here = ray.get_runtime_context().gcs_address
            raise ValueError(
                f"Session: this process is connected to Ray already (at {here}), so it cannot join {address!r}: leave "
                f"out address, or call ray.shutdown() first"
            )
        self.home = str(ray.get_runtime_context().get_node_id())
        self.nodes = _nodes(self.home)
        atexit.register(self.close)

    # -- the cluster ---------------------------------------------------------------------------------------------

    def cluster(self, workers: int | None, cpus: int, memory: int | None, machine: Machine) -> Cluster:
        """The workers of the cluster: a node has as many as its cpus allow, and they share its memory and GPUs."""
        found: list[Worker] = []
        for k, node in enumerate(self.nodes):
            count = node.cpus // cpus
            for i in range(count):
                gpus = node.gpus // count + (i < node.gpus % count)
                found.append(Worker(cpus, gpus, memory or node.memory // count, dict(node.labels), k))
        if not found:
            most = max(node.cpus for node in self.nodes)
            raise ValueError(f"Session: cpus_per_task is {cpus}, but no node of the cluster has more than {most} cpus")
        if workers is not None and workers > len(found):
            raise ValueError(
                f"Session: workers is {workers}, but the cluster has room for {len(found)} of {cpus} cpus each "
                f"({describe(self.nodes)})"
            )
        machine = on_ray(machine)
        gpu = machine if any(node.gpus for node in self.nodes) else None
        return check_cluster(Cluster(tuple(found[:workers]), machine, "ray", "ray", gpu))

    @property
    def ahead(self) -> int:
        """Bytes that tasks may make before the driver heard of their ends: wherever they run, the store has room."""
        return int(AHEAD * min([node.store for node in self.nodes]))

    def node_of(self, cluster: Cluster, worker: int) -> str:
        return self.nodes[cluster.workers[worker].node].id

    # -- objects -------------------------------------------------------------------------------------------------

    def put(self, arrays: Sequence[Array]) -> list[Value]:
        """These arrays as one object of the store."""
        stored = Stored(ray.put(pack(arrays)), sum([x.nbytes for x in arrays]))
        return [Value(spec_of(x), self, stored, i) for i, x in enumerate(arrays)]

    def placed(self, arrays: Sequence[Array]) -> list[Value]:
        """The same for arrays that never change: they are put once, and stay as long as they live here."""
        new = [x for x in arrays if id(x) not in self._placed]
        for x, value in zip(new, self.put(new) if new else (), strict=True):
            self._placed[id(x)] = weakref.ref(x, partial(self._forget, id(x))), value
        return [self._placed[id(x)][1] for x in arrays]

    def _forget(self, key: int, _: Any) -> None:
        self._placed.pop(key, None)

    def fetch(self, stored: Stored) -> Any:
        """The object; if it was lost, it is made again first."""
        self.check()
        try:
            return opened(ray.get(stored.ref))
        except LOST:
            remake(stored)
            return opened(ray.get(stored.ref))

    def bring_home(self, stored: Stored) -> None:
        """Copy an object to the driver's node: from now on it is as safe as the driver."""
        stored.ref = ray.put(self.fetch(stored))
        stored.record = None

    # -- the end -------------------------------------------------------------------------------------------------

    def check(self) -> None:
        if self.closed or not ray.is_initialized():
            raise RuntimeError(CLOSED)

    def close(self) -> None:
        """Values that somebody still has come to this process; then what was started here ends."""
        with self._closing:  # two threads may leave the same session
            if self.closed:
                return
            atexit.unregister(self.close)
            if ray.is_initialized():
                self._placed.clear()  # the arrays of these are here
                for value in list(self.values):
                    _settle(value)
                if self.opened:
                    ray.shutdown()
                else:
                    forget(self.name)
            self.closed = True


def _settle(value: Value) -> None:
    try:
        value.settle()
    except Exception as e:  # of all values those that can be saved are
        log.warning("distgrad: %r was lost with the cluster: %s", value, e)


#: What Ray raises for an object that nobody has any more.
LOST = (exceptions.ObjectLostError, exceptions.ObjectFetchTimedOutError)


def remake(stored: Stored, ends: float | None = None) -> None:
    """Run again what made a lost object; RuntimeError where that is not known."""
    if stored.record is None:
        raise RuntimeError(
            "a value was lost that the driver had put into the store, and it cannot be made again. "
            "Restore the last checkpoint (distgrad.Checkpoints), and go on from there."
        )
    record, _ = stored.record
    record.link.faults.lost += 1
    log.warning("distgrad: a value of %d bytes was lost with its node; the run that made it runs again", stored.nbytes)
    record.again(ends)


def _open(address: str | None, cpus: int | None, gpus: int | None, object_store_memory: int | None) -> None:
    joins = address or os.environ.get("RAY_ADDRESS")
    options: dict[str, Any] = {"logging_level": logging.WARNING, "log_to_driver": True}
    try:
        if joins:
            _knock(joins)
            show_token(joins)
            _ask(joins)
            ray.init(address=joins, **options)
        else:
            options |= {"include_dashboard": False, "num_cpus": cpus, "num_gpus": gpus}
            ray.init(address="local", object_store_memory=object_store_memory, **options)
    except Exception as e:  # Ray raises all kinds, plain Exception among them
        raise ConnectionError(f"Session: cannot {_doing(joins)}: {_first_line(e)}{_token(e)}") from e


def _knock(address: str) -> None:
    """ConnectionError where nobody listens at an address with a port: Ray itself would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=KNOCK).close()
    except (OSError, OverflowError) as e:
        raise ConnectionError(
            f"nothing listens there ({e}). Is the cluster up, is this the port of its head (6379 unless `ray start` "
            f"was told otherwise), and may this machine reach it?"
        ) from e


def show_token(address: str) -> None:
    """Have Ray show its token to the cluster that is joined, where RAY_AUTH_MODE does not say whether to: one that the
    environment names to any cluster, that of this user's file to one on this machine alone. Ray itself does so for
    "auto"; other clusters that want one it would ask without, for long and with many words."""
    named = any(os.environ.get(name) for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"))
    host = address.removeprefix("ray://").rpartition(":")[0]
    if not (named or host.startswith("127.") or host in ("localhost", "[::1]")):
        return
    with suppress(ImportError):  # of a Ray that knows no tokens
        from ray._private.authentication.authentication_token_setup import maybe_enable_token_auth_if_token_available

        maybe_enable_token_auth_if_token_available(warn_if_disabled=False)


def _ask(address: str) -> None:
    """AuthenticationError where the cluster does not take this machine's token: Ray itself would ask again and again.
    Anything else that may be wrong Ray tells well enough when it joins."""
    if address.startswith("ray://") or not address.rpartition(":")[2].isdigit():
        return
    try:
        from ray._raylet import GcsClient  # type: ignore[attr-defined]

        GcsClient(address=address)
    except exceptions.AuthenticationError:
        raise
    except Exception as e:
        log.debug("distgrad: asking the cluster at %s: %s", address, e)


def _doing(joins: str | None) -> str:
    return f"join the Ray cluster at {joins!r}" if joins else "start Ray on this machine"


def _first_line(e: BaseException) -> str:
    return (str(e).strip().splitlines() or [type(e).__name__])[0]


def _token(e: BaseException) -> str:
    """What to do where the cluster asks for a token, which Ray tells in the middle of a traceback."""
    texts = f"{e} {e.__cause__} {e.__context__}"
    if "AuthToken" not in texts:
        return ""
    return ". It wants an authentication token: set RAY_AUTH_MODE=token, and give this machine the cluster's token"


def _hush_ray() -> None:
    """What Ray need not print: errors of tasks whose objects nobody asked for, which the run that submitted them
    raises; and, at every start, that it asks for a token, which is as it should be."""
    logging.getLogger("ray._private.worker").addFilter(_is_not_ours)
    logging.getLogger("ray._private.authentication.authentication_token_setup").addFilter(_is_no_token)


def _is_not_ours(record: logging.LogRecord) -> bool:
    text = record.getMessage()
    return not (text.startswith("Unhandled error") and "ray::run_task()" in text)


def _is_no_token(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith("Token authentication is enabled")


def _nodes(home: str) -> list[Node]:
    """The living nodes that can compute, the driver's first."""
    found = []
    for node in ray.nodes():  # type: ignore[no-untyped-call]
        resources = node["Resources"]
        if node["Alive"] and int(resources.get("CPU", 0)) >= 1:
            labels = {str(k): str(v) for k, v in (node.get("Labels") or {}).items()}
            gpus, memory = int(resources.get("GPU", 0)), int(resources.get("memory", 1 << 30))
            store = int(resources.get("object_store_memory", 0))
            where = node["NodeID"], node["NodeManagerAddress"]
            found.append(Node(*where, int(resources["CPU"]), gpus, memory, store, labels))
    if not found:
        raise ConnectionError("Session: no node of the Ray cluster has a cpu")
    return sorted(found, key=lambda node: (node.id != home, node.address, node.id))


def describe(nodes: Sequence[Node]) -> str:
    """What a cluster has, for errors."""
    cpus, gpus = sum(node.cpus for node in nodes), sum(node.gpus for node in nodes)
    return f"{len(nodes)} nodes with {cpus} cpus and {gpus} GPUs in all"
