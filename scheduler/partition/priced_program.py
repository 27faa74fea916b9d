"""A program with the predicted costs of its steps on a cluster, and the graph that is partitioned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from distgrad.scheduler.cluster import Cluster
from distgrad.scheduler.cost.memory import given_bytes, value_bytes
from distgrad.scheduler.cost.step_costs import Needs, needs_of, prices
from distgrad.scheduler.execution import Executions
from distgrad.scheduler.partition.contract import whole
from distgrad.scheduler.partition.nodes import Groups, Nodes
from distgrad.scheduler.passes.chunks import adds_up
from distgrad.scheduler.plan import Options, recomputed_per_task
from distgrad.scheduler.program import Program

#: Minimum task duration in task overheads: 20 ms on Ray, 0.5 ms in this process.
PAYS = 10


@dataclass(frozen=True)
class Priced:
    """A program with its costs, and the graph of its steps without those duplicated into every reader."""

    program: Program
    cluster: Cluster
    options: Options
    executions: Executions
    needs: dict[str | None, Needs]
    seconds: list[float]
    flops: list[float]
    nbytes: list[int]
    free: list[bool]
    given_bytes: dict[int, int]
    #: Minimum task duration in task overheads.
    pays: int

    @classmethod
    def of(
        cls, program: Program, cluster: Cluster, options: Options, executions: Executions, pays: int = PAYS
    ) -> Priced:
        needs = needs_of(program, cluster, options, executions)
        costs = prices(program, cluster, needs)
        seconds, flops = [c.seconds for c in costs], [c.flops for c in costs]
        nbytes, free = value_bytes(program.types), recomputed_per_task(program)
        priced = seconds, flops, nbytes, free, given_bytes(program), pays
        return cls(program, cluster, options, executions, needs, *priced)

    @property
    def nodes(self) -> Nodes:
        return self._graph[0]

    @property
    def given(self) -> list[tuple[int, ...]]:
        """The input values that each node of the graph reads."""
        return self._graph[1]

    @cached_property
    def _graph(self) -> tuple[Nodes, list[tuple[int, ...]]]:
        devices = {device: k for k, device in enumerate(self.needs)}
        return _nodes(self.program, self.seconds, self.nbytes, self.free, devices)

    @property
    def total(self) -> float:
        """The seconds of all nodes."""
        return sum([seconds for seconds, free in zip(self.seconds, self.free, strict=True) if not free])

    @property
    def one_group(self) -> Groups:
        """All nodes in one group, or in as few as devices allow."""
        return whole(self.nodes) if len(self.needs) > 1 else [0] * self.free.count(False)

    @property
    def slots(self) -> int:
        """Number of tasks that can run concurrently."""
        cpus = max([need.cpus for need in self.needs.values()], default=1)
        return sum(worker.cpus // cpus for worker in self.cluster.workers)

    @property
    def grain(self) -> float:
        return self.pays * self.cluster.machine.task_seconds


def _nodes(
    program: Program,
    seconds: Sequence[float],
    nbytes: Sequence[int],
    free: Sequence[bool],
    devices: dict[str | None, int],
) -> tuple[Nodes, list[tuple[int, ...]]]:
    place = [-1] * len(program.steps)
    maker = [-1] * len(program.types)
    outside: dict[int, tuple[int, ...]] = {v: (v,) for v in program.given}
    nodes = Nodes([], [], [], [], [])
    given: list[tuple[int, ...]] = []
    for i, step in enumerate(program.steps):
        if free[i]:
            outside[step.outputs[0]] = tuple([x for v in step.inputs for x in outside[v]])
            continue
        place[i] = node = len(nodes.weight)
        edges: dict[int, int] = {}
        read: list[int] = []
        for v in step.inputs:
            p = maker[v]
            if p >= 0:
                edges[p] = edges.get(p, 0) + nbytes[v]
            else:
                read += outside[v]
        for j in step.after:
            edges.setdefault(place[j], 0)
        for v in step.outputs:
            maker[v] = node
        nodes.weight.append(seconds[i])
        nodes.before.append(tuple(edges))
        nodes.moved.append(tuple(edges.values()))
        nodes.device.append(devices[step.device])
        nodes.joint.append(adds_up(step))
        given.append(tuple(read))
    return nodes, given
