"""A Ray cluster of this process, whose workers and nodes can be ended by force. All that is Ray's own is in here."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Mapping
from typing import Any

import ray
from ray.cluster_utils import Cluster

#: Ray would take 15 s to notice that a node is gone, and a minute to notice that a worker ended before it had begun.
QUICK = {
    "health_check_initial_delay_ms": 1000,
    "health_check_period_ms": 500,
    "health_check_failure_threshold": 4,
    "health_check_timeout_ms": 2000,
    "worker_register_timeout_seconds": 30,
}
STORE = 150 << 20


class OwnCluster:
    """A head, where the driver is, and nodes that come and go."""

    def __init__(self, cpus: int = 2, store: int = STORE, head: Mapping[str, Any] | None = None, **config: Any):
        made = {"num_cpus": cpus, "object_store_memory": store, "include_dashboard": False, **(head or {})}
        made["_system_config"] = QUICK | config
        self._store = store
        self._cluster = Cluster(initialize_head=True, head_node_args=made)
        self.address = str(self._cluster.address)
        ray.init(address=self.address, logging_level="error", log_to_driver=False)

    def add(self, cpus: int = 1) -> Any:
        node = self._cluster.add_node(num_cpus=cpus, object_store_memory=self._store)
        self._cluster.wait_for_nodes()
        return node

    def remove(self, node: Any) -> None:
        """As when its machine loses power."""
        self._cluster.remove_node(node, allow_graceful=False)

    def end(self) -> None:
        ray.shutdown()
        self._cluster.shutdown()


class Killer(threading.Thread):
    """Ends workers of this process's clusters with SIGKILL, one after another, at random moments."""

    def __init__(self, count: int, seconds: float, seed: int = 0):
        super().__init__(daemon=True)
        self.count, self.kills = count, 0
        self._mean, self._random = seconds, random.Random(seed)
        self._known: set[int] = set()
        self._stopped = threading.Event()

    @property
    def finished(self) -> bool:
        return self.kills >= self.count

    def run(self) -> None:
        while not self.finished and not self._stopped.wait(self._random.uniform(0, 2 * self._mean)):
            pids = self._workers()
            if pids:
                try:
                    os.kill(self._random.choice(pids), signal.SIGKILL)
                    self.kills += 1
                except ProcessLookupError:
                    pass

    def stop(self) -> None:
        self._stopped.set()
        self.join()

    def _workers(self) -> list[int]:
        """Workers that run a task now or were seen doing so: one that is still starting is not the driver's yet."""
        alive = dict(processes())
        self._known = {pid for pid, name in alive.items() if name == "ray::run_task" or pid in self._known}
        return sorted(self._known)


def processes() -> list[tuple[int, str]]:
    """The processes that this one started, and those that they started: ids and names."""
    import psutil  # Ray brings it, and has to be imported before

    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            found.append((process.pid, process.cmdline()[0]))
        except (psutil.Error, IndexError):  # it ended, or is about to
            continue
    return found
