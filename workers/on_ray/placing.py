"""Placing: what a task asks of Ray. Where nothing pins it, Ray puts it where most of what it reads lies."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from distgrad.scheduler.cluster import Cluster
from distgrad.scheduler.devices import parse
from distgrad.scheduler.plan import Task
from distgrad.workers.on_ray import task as tasks
from distgrad.workers.on_ray.link import Link

#: Tasks that need less are not told apart: each kind of request has workers of its own.
NOTABLE = 256 << 20


def options_of(task: Task, cluster: Cluster, link: Link, returns: int) -> Any:
    """The remote function with what this task asks for."""
    device = parse(task.device)
    pinned = device.worker is not None or device.gpu is not None
    node = link.node_of(cluster, task.worker) if pinned else None
    return _options(returns, task.cpus, task.gpus, _rounded(task.memory), node, device.labels)


def _rounded(memory: int) -> int:
    """Up to a power of two, so that tasks of about the same size can follow each other on a worker."""
    return 0 if memory < NOTABLE else 1 << (memory - 1).bit_length()


@lru_cache(maxsize=1024)
def _options(
    returns: int, cpus: int, gpus: int, memory: int, node: str | None, labels: tuple[tuple[str, str], ...]
) -> Any:
    options: dict[str, Any] = {"num_returns": returns, "num_cpus": cpus}
    if gpus:
        options["num_gpus"] = gpus
    if memory:
        options["memory"] = memory
    if node is not None:  # soft: a node that is gone shall not hold up what others can do
        options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(node, soft=True)
    elif labels:
        options["label_selector"] = dict(labels)
    return tasks.remote.options(**options)
