"""Spare workers: in a long session, each node keeps one more started process than it has cpus.

Ray gives the cpu of a dead worker to the next task immediately, and that task waits a second or more until Ray has
started a process. A spare is a process that Ray starts in advance.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

import ray

from distgrad.workers.on_ray.connect import waits

if TYPE_CHECKING:
    from distgrad.workers.on_ray.link import Link

log = logging.getLogger("distgrad")

#: Seconds after which a session gets spares: short sessions would not profit.
SPARES_AFTER = 10.0
#: Seconds that Ray keeps an unused spare: a day, so that it outlasts most sessions.
KEEP_ALIVE = 86_400
#: Seconds for a raylet to answer.
RAYLET_TIMEOUT = 5.0
#: Seconds that a raylet takes to notice the death of a worker.
DEATH_DELAY = 0.1
#: Minimum seconds between two requests for spares, however many workers die.
REQUEST_INTERVAL = 2.0


class Spares:
    """The spares of a session."""

    def __init__(self, link: Link):
        self._link = link
        self._due: float | None = time.monotonic() + SPARES_AFTER
        self._asked = 0.0

    def start_if_due(self) -> None:
        """Start the first spares once the session has lasted long enough."""
        if self._due is not None and time.monotonic() > self._due:
            self.replace()

    def replace(self) -> None:
        """Start a process on each node without a spare, in the background."""
        self._due, now = None, time.monotonic()
        if now > self._asked + REQUEST_INTERVAL:
            self._asked = now
            waits.start(self._replace)

    def _replace(self) -> None:
        time.sleep(DEATH_DELAY)
        try:
            for node, env in self._nodes_to_ask():
                _ask(node, env)
        except Exception as e:  # Ray does not guarantee this interface; without spares tasks wait for new processes
            log.debug("distgrad: no spare workers: %s", e)

    def _nodes_to_ask(self) -> list[tuple[Mapping[str, Any], str]]:
        """The nodes to ask, and the environment of their workers. While this asks Ray, the session stays open: a call
        of Ray in a closed one would connect this process again."""
        link = self._link
        with link.used():
            link.check_open()
            env = _serialized(link.bits.env)
            nodes = ray.nodes()  # type: ignore[no-untyped-call]
        return [(node, env) for node in nodes if node["Alive"] and node["NodeID"] not in link.bits.excluded]


def _serialized(env: Mapping[str, str]) -> str:
    """The runtime environment of tasks in Ray's form, merged with that of the job."""
    from ray.runtime_env import RuntimeEnv

    parent = ray.get_runtime_context().runtime_env
    return str(RuntimeEnv(**{**parent, "env_vars": {**parent.get("env_vars", {}), **env}}).serialize())


def _ask(node: Mapping[str, Any], env: str) -> None:
    """Request one more process on a node that has no more of them than cpus. The request names no job: otherwise any
    idle worker of this job would satisfy it."""
    from ray._private.grpc_utils import init_grpc_channel

    modules = ("node_manager_pb2", "node_manager_pb2_grpc")
    messages, service = [import_module(f"ray.core.generated.{name}") for name in modules]
    channel = init_grpc_channel(f"{node['NodeManagerAddress']}:{node['NodeManagerPort']}")
    try:
        raylet = service.NodeManagerServiceStub(channel)
        pids = raylet.GetWorkerPIDs(messages.GetWorkerPIDsRequest(), timeout=RAYLET_TIMEOUT).pids
        workers = [pid for pid in pids if pid != os.getpid()]
        if len(workers) <= node["Resources"].get("CPU", 0):
            request = messages.PrestartWorkersRequest(num_workers=1, keep_alive_duration_secs=KEEP_ALIVE)
            request.runtime_env_info.serialized_runtime_env = env
            raylet.PrestartWorkers(request, timeout=RAYLET_TIMEOUT)
    finally:
        channel.close()
