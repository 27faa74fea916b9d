"""The link of a session to Ray: the nodes of the cluster, the session's objects in the object store, and closing.

The connection itself, which all sessions of the process share, is in `connect.connection`.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import ray

from distgrad.printing import bytes_text
from distgrad.scheduler.cluster import Cluster, Machine, Worker, check_cluster, on_ray
from distgrad.scheduler.reports import Faults, Report
from distgrad.types import spec_of
from distgrad.workers.on_ray import agreement, objects
from distgrad.workers.on_ray.connect import connection, waits
from distgrad.workers.on_ray.connect.opening import hush, open_ray
from distgrad.workers.on_ray.hang_detector import dead_nodes
from distgrad.workers.on_ray.objects import LOST
from distgrad.workers.on_ray.packing import opened, pack
from distgrad.workers.on_ray.shipping import forget
from distgrad.workers.on_ray.values import Stored, Value

Array = np.ndarray[Any, np.dtype[Any]]

log = logging.getLogger("distgrad")

#: Seconds to copy values out of the object store of a cluster that has lost its head.
SALVAGE_TIMEOUT = 3.0
#: Fraction of a node's object store that tasks in flight may fill. Ray starts to spill at 0.8.
MAX_STORE_SHARE_AHEAD = 0.25
#: Seconds that close() waits for runs of other threads to end.
STOP_TIMEOUT = 5.0
#: The error of every call on a closed session.
CLOSED = "the session is closed: its Ray is gone. Open another session."


@dataclass(frozen=True, slots=True)
class Node:
    """A node as Ray reports it; `memory` and `store` are bytes."""

    id: str
    address: str
    cpus: int
    gpus: int
    memory: int
    store: int
    labels: Mapping[str, str]


class Link:
    """A session's use of Ray. If the first session of the process started Ray, Ray ends with the last one."""

    def __init__(
        self,
        address: str | None,
        cpus: int | None,
        gpus: int | None,
        object_store_memory: int | None,
        timeout: float | None = None,
    ):
        self.timeout = timeout
        #: Owner of the bodies that the session ships, so that they can be deleted at its end.
        self.name = uuid.uuid4().hex
        self.values: weakref.WeakSet[Value] = weakref.WeakSet()
        self._placed: dict[int, tuple[weakref.ref[Array], Value]] = {}
        self.closed = self._sent = False
        self._closed_by: int | None = None  # the thread that takes it down, which may still run what is lost again
        self._used_by: list[int] = []  # threads inside `used`, once per nested use
        self._closing = threading.RLock()  # reentrant: a signal may close what is being closed
        #: The report of the last run that ended, and the faults of all runs so far.
        self.last: Report | None = None
        self.faults = Faults()
        hush()
        joins = address or os.environ.get("RAY_ADDRESS")
        begin = partial(open_ray, joins, cpus, gpus, object_store_memory)
        connection.settle()
        if address is not None and address != "auto":
            _check_free(address)
        self.connection = connection.enter(self, begin, starts=not joins)
        self.monitor = self.connection.monitor
        try:
            atexit.register(self.close)
            self.home = str(ray.get_runtime_context().get_node_id())
            self.nodes = self.living()
            _check_room(self.nodes, gpus, object_store_memory)
            #: The kernels that workers run, and the nodes that get no tasks: see `agree`.
            self.bits = agreement.NONE
            self._seen = {node.id for node in self.nodes}
            self._dead_before = dead_nodes()
        except BaseException:
            self.close()
            raise

    def call(self, function: Callable[..., Any], *args: Any, what: str, ends: float | None = None) -> Any:
        """The result of a Ray call that accepts no timeout. Raises TimeoutError at the session's timeout, or at the
        deadline `ends` if it is given, and ClusterLost if Ray stops answering."""
        self._check_open()
        timeout = self.timeout if ends is None else max(ends - time.monotonic(), 0.001)
        return self.monitor.answered(function, *args, what=what, timeout=timeout)

    def submitted(self, submit: Callable[..., Any], *args: Any) -> Any:
        """Call a remote function. The first call also sends the function itself, through the GCS."""
        if self._sent:
            return submit(*args)
        made = self.call(submit, *args, what="sending the first task to Ray")
        self._sent = True
        return made

    # -- the cluster ---------------------------------------------------------------------------------------------

    def cluster(self, workers: int | None, cpus: int, memory: int | None, machine: Machine) -> Cluster:
        """The workers of the cluster: one per `cpus` cpus of a node, sharing its memory and GPUs."""
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

    def living(self, ends: float | None = None) -> list[Node]:
        """The nodes that are alive and can compute."""
        found: list[Node] = self.call(_nodes, self.home, what="asking Ray for its nodes", ends=ends)
        return found

    def agree(self, extras: tuple[str, ...], any_bits: bool) -> None:
        """Make all workers compute the same bits. Nodes that cannot are left out of plans."""
        asked = partial(agreement.agreed, self.nodes, self.home, extras, any_bits)
        self.bits = self.monitor.answered(asked, what="asking the nodes for their CPU features")
        self.nodes = [node for node in self.nodes if node.id not in self.bits.excluded]

    def exclude(self, node: str, why: str) -> None:
        """Send no more tasks to a node."""
        if node not in self.bits.excluded:
            self.bits = self.bits.without(node, why)
            log.warning("distgrad: node %s gets no tasks: it cannot compute the same bits: %s", node[:8], why)

    def died(self) -> set[str]:
        """The nodes that died since the session was opened, as far as Ray knows. None of them gets tasks any more: for
        a task with the same inputs and requests as one that waits for such a node, Ray would not ask another one."""
        found = dead_nodes() - self._dead_before
        for node in found:
            self.bits = self.bits.without(node, "it has died")
        return found

    def exclude_unfit_nodes(self, ends: float | None = None) -> bool:
        """Exclude nodes that joined since the last call and cannot run tasks; return whether there are any."""
        if self.bits is agreement.NONE:
            return False
        new = [node for node in self.living(ends) if node.id not in self._seen]
        self._seen |= {node.id for node in new}
        what = "asking new nodes for their CPU features"
        found = self.call(agreement.unfit, self.bits, new, what=what, ends=ends) if new else {}
        for node, why in found.items():
            self.exclude(node, why)
        return bool(found)

    @property
    def ahead(self) -> int:
        """Bytes that tasks in flight may make: any node's object store has room for them."""
        return int(MAX_STORE_SHARE_AHEAD * min([node.store for node in self.nodes]))

    def node_of(self, cluster: Cluster, worker: int) -> str:
        return self.nodes[cluster.workers[worker].node].id

    # -- objects -------------------------------------------------------------------------------------------------

    def put(self, arrays: Sequence[Array], what: str = "the arguments of the call") -> list[Value]:
        """Put arrays into the store as one object; `what` names them in errors."""
        nbytes = sum([x.nbytes for x in arrays])
        stored = Stored(self._put(pack(arrays), what, nbytes), nbytes)
        return [Value(spec_of(x), self, stored, i) for i, x in enumerate(arrays)]

    def _put(self, value: Any, what: str, nbytes: int) -> Any:
        return self.call(objects.put, value, what, nbytes, what=f"putting {bytes_text(nbytes)} into Ray's store")

    def placed(self, arrays: Sequence[Array], what: str) -> list[Value]:
        """The same for arrays that never change: each is put once, and stays in the store as long as it is alive."""
        new = [x for x in arrays if id(x) not in self._placed]
        for x, value in zip(new, self.put(new, what) if new else (), strict=True):
            self._placed[id(x)] = weakref.ref(x, partial(self._forget, id(x))), value
        return [self._placed[id(x)][1] for x in arrays]

    def _forget(self, key: int, _: Any) -> None:
        self._placed.pop(key, None)

    def fetch(self, stored: Stored) -> Any:
        """The object; if it was lost, it is recomputed first."""
        self._check_open()
        with self.used():
            try:
                return opened(self._got(stored))
            except LOST:
                remake(stored, None if self.timeout is None else time.monotonic() + self.timeout)
                return opened(self._got(stored))

    def _got(self, stored: Stored) -> Any:
        what = f"reading a value of {bytes_text(stored.nbytes)} from Ray's store"
        if self.connection.lost is None:
            return self.call(ray.get, stored.ref, what=what)
        if self.connection.raylet_lives():  # it serves this machine's store, even without the head
            job = waits.start(partial(ray.get, stored.ref))
            if job.wait(SALVAGE_TIMEOUT):
                return job.outcome()
        raise waits.lost(self.connection.lost, what)

    def pull_to_driver(self, stored: Stored) -> None:
        """Copy an object to the driver's node, so that it survives the loss of any other node."""
        stored.ref = self._put(self.fetch(stored), "a value of an earlier call", stored.nbytes)
        stored.record = None

    # -- the end -------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise RuntimeError if the session is closed, and ClusterLost if its cluster is lost."""
        self.check_open()
        if self.connection.lost is not None:
            raise waits.lost(self.connection.lost, "running on Ray")

    def check_open(self) -> None:
        """Raise RuntimeError if the session is closed or being closed: a call of Ray would start another Ray."""
        if self._closed_by not in (None, threading.get_ident()):
            raise RuntimeError(CLOSED)
        self._check_open()

    def _check_open(self) -> None:
        if self.closed or not ray.is_initialized():
            raise RuntimeError(CLOSED)
        if self.connection.pid != os.getpid():
            raise RuntimeError(connection.FORKED)

    @contextmanager
    def used(self) -> Iterator[None]:
        """While this is held, a thread that closes the session waits up to STOP_TIMEOUT before it ends Ray."""
        thread = threading.get_ident()
        self._used_by.append(thread)
        try:
            yield
        finally:
            self._used_by.remove(thread)

    def close(self) -> None:
        """Copy the values that are still referenced into this process. The last session then ends what it started."""
        if self.closed:
            return
        atexit.unregister(self.close)
        if self.connection.pid != os.getpid():  # a forked process: the link belongs to its parent
            self.closed = True
            return
        connection.uninterrupted(partial(self._close, threading.get_ident()))

    def _close(self, caller: int) -> None:
        with self._closing:  # two threads may leave the same session
            if self.closed:
                return
            self._closed_by = threading.get_ident()
            self._wait_for_others(caller)
            if ray.is_initialized():
                self._placed.clear()  # the arrays of these are here
                self._settle()
                if self.connection.lost is None and self._is_shared():
                    self._forget_bodies()
            connection.leave(self.connection, self, self.timeout)
            self.closed = True

    def _wait_for_others(self, caller: int) -> None:
        """Wait for runs of other threads. A run of the caller's thread is not waited for: a signal handler may close
        the session from within it."""
        ends = time.monotonic() + STOP_TIMEOUT
        while any(thread != caller for thread in list(self._used_by)) and time.monotonic() < ends:
            time.sleep(0.01)

    def _is_shared(self) -> bool:
        """Whether Ray keeps running after this session."""
        return not self.connection.opened or len(self.connection.users) > 1

    def _forget_bodies(self) -> None:
        try:
            self.call(forget, self.name, what="deleting the session's code from Ray")
        except (ConnectionError, TimeoutError) as e:
            log.warning("distgrad: %s", e)

    def _settle(self) -> None:
        """Copy values into this process; from a lost cluster, those that arrive within SALVAGE_TIMEOUT."""
        ends = time.monotonic() + SALVAGE_TIMEOUT
        for value in list(self.values):
            if self.connection.lost is None or time.monotonic() < ends:
                _settle(value)
            if self.connection.lost is None:
                ends = time.monotonic() + SALVAGE_TIMEOUT


def _settle(value: Value) -> None:
    try:
        value.settle()
    except Exception as e:  # the others may still be saved
        log.warning("distgrad: %r was lost with the cluster: %s", value, e)


def remake(stored: Stored, ends: float | None = None) -> None:
    """Recompute a lost object from its lineage; RuntimeError if it has none."""
    if stored.record is None:
        raise RuntimeError(
            "a value was lost that the driver had put into the store, so it cannot be recomputed. "
            "Restore the last checkpoint (distgrad.Checkpoints) and continue from there."
        )
    record, _ = stored.record
    record.link.faults.lost += 1
    log.warning("distgrad: a value of %d bytes was lost with its node; the run that made it runs again", stored.nbytes)
    record.again(ends)


def _check_free(address: str) -> None:
    if ray.is_initialized():
        here = ray.get_runtime_context().gcs_address
        raise ValueError(
            f"Session: this process is already connected to Ray (at {here}), so it cannot join {address!r}: leave "
            f"out address, or call ray.shutdown() first"
        )


def _check_room(nodes: Sequence[Node], gpus: int | None, object_store_memory: int | None) -> None:
    """Raise ValueError if a Ray that is already running has fewer resources than the session asks for."""
    most, store = sum(node.gpus for node in nodes), max(node.store for node in nodes)
    if gpus is not None and gpus > most:
        raise ValueError(f"Session: gpus is {gpus}, but the running Ray has {most} ({describe(nodes)})")
    if object_store_memory is not None and object_store_memory > 1.01 * store + (1 << 20):
        raise ValueError(
            f"Session: object_store_memory is {object_store_memory} bytes, but the running Ray has {store} bytes per "
            f"node: close the session that started it first"
        )


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
    """The resources of a cluster, for error messages."""
    cpus, gpus = sum(node.cpus for node in nodes), sum(node.gpus for node in nodes)
    return f"{len(nodes)} nodes with {cpus} cpus and {gpus} GPUs in all"
