"""Placement: the resources and nodes that a task asks Ray for. Ray places unpinned tasks near most of their inputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from distgrad.scheduler.cluster import Cluster
from distgrad.scheduler.devices import parse
from distgrad.scheduler.plan import Task
from distgrad.workers.on_ray import task as tasks
from distgrad.workers.on_ray.agreement import refused
from distgrad.workers.on_ray.link import Link, Node

#: Bytes of memory below which a task requests none: Ray keeps separate workers for each kind of request.
NOTABLE = 256 << 20


def options_of(task: Task, cluster: Cluster, link: Link, returns: int) -> Any:
    """The remote function with the resources of this task, on workers that run the agreed kernels."""
    device, excluded = parse(task.device), link.bits.excluded
    pinned = device.worker is not None or device.gpu is not None
    node = link.node_of(cluster, task.worker) if pinned else None
    node = None if node in excluded else node
    labels = _others(excluded) + (device.labels if node is None else ())
    env = tuple(link.bits.env.items())
    return _options(returns, task.cpus, task.gpus, _rounded(task.memory), node, labels, env)


def anywhere(remote: Any, link: Link) -> Any:
    """A remote function that needs no cpu, on a worker like those of tasks."""
    bits = link.bits
    env = {"env_vars": dict(bits.env)}
    return remote.options(num_cpus=0, runtime_env=env, label_selector=dict(_others(bits.excluded)))


def _others(excluded: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """The label selector that keeps tasks off excluded nodes."""
    names = ",".join(sorted(excluded))
    return (("ray.io/node-id", f"!in({names})"),) if names else ()


def check_places(tasks: Iterable[Task], link: Link, ends: float | None = None) -> None:
    """Raise FingerprintError if only excluded nodes could run a task: Ray would wait for another node forever."""
    if link.bits.excluded:
        nodes = link.living(ends)
        for cpus, gpus, device in dict.fromkeys([(task.cpus, task.gpus, task.device) for task in tasks]):
            _check(nodes, link, cpus, gpus, dict(parse(device).labels))


def check_left(link: Link) -> None:
    """The same for work that needs one cpu anywhere."""
    _check(link.living(), link, 1, 0, {})


def _check(nodes: Iterable[Node], link: Link, cpus: int, gpus: int, labels: Mapping[str, str]) -> None:
    could = [
        node.id
        for node in nodes
        if node.cpus >= cpus and node.gpus >= gpus and labels.items() <= dict(node.labels).items()
    ]
    if could and all(id in link.bits.excluded for id in could):
        raise refused(link.bits)


def _rounded(memory: int) -> int:
    """Memory rounded up to a power of two, so that tasks of about the same size can reuse a worker."""
    return 0 if memory < NOTABLE else 1 << (memory - 1).bit_length()


@lru_cache(maxsize=1024)
def _options(
    returns: int,
    cpus: int,
    gpus: int,
    memory: int,
    node: str | None,
    labels: tuple[tuple[str, str], ...],
    env: tuple[tuple[str, str], ...],
) -> Any:
    options: dict[str, Any] = {"num_returns": returns, "num_cpus": cpus}
    if env:
        options["runtime_env"] = {"env_vars": dict(env)}
    if gpus:
        options["num_gpus"] = gpus
    if memory:
        options["memory"] = memory
    if node is not None:  # soft: if the node is lost, another one can run the task
        options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(node, soft=True)
    if labels:
        options["label_selector"] = dict(labels)
    return tasks.remote.options(**options)
