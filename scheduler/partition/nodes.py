"""Graphs as lists of weights and edges, and their quotient graphs. Knows no ops and no cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Nodes:
    """A graph to contract, with its nodes in topological order."""

    weight: list[float]
    #: The predecessors of each node, and the bytes read from each of them.
    before: list[tuple[int, ...]]
    moved: list[tuple[int, ...]]
    device: list[int]
    #: Whether the node (or the first node of a group) adds results of others.
    joint: list[bool]

    def __len__(self) -> int:
        return len(self.weight)


#: Node -> group, with groups numbered in topological order.
Groups = list[int]


def quotient(nodes: Nodes, groups: Sequence[int]) -> tuple[Nodes, list[int]]:
    """The quotient graph of these groups in topological order, and the index of each group in it."""
    count = max(groups, default=-1) + 1
    weight = [0.0] * count
    edges: list[dict[int, int]] = [{} for _ in range(count)]
    device, joint, first = [0] * count, [False] * count, [-1] * count
    for v, g in enumerate(groups):
        weight[g] += nodes.weight[v]
        if first[g] < 0:
            first[g], device[g], joint[g] = v, nodes.device[v], nodes.joint[v]
        for p, moved in zip(nodes.before[v], nodes.moved[v], strict=True):
            h = groups[p]
            if h != g:
                edges[g][h] = edges[g].get(h, 0) + moved
    order, place = _ordered(edges, first)
    before = [{place[h]: moved for h, moved in edges[g].items()} for g in order]
    graph = Nodes(
        [weight[g] for g in order],
        [tuple(b) for b in before],
        [tuple(b.values()) for b in before],
        [device[g] for g in order],
        [joint[g] for g in order],
    )
    return graph, place


def _ordered(edges: Sequence[dict[int, int]], first: Sequence[int]) -> tuple[list[int], list[int]]:
    """The groups by depth, then by first member; and the index of each group."""
    after: list[list[int]] = [[] for _ in edges]
    for g, before in enumerate(edges):
        for h in before:
            after[h].append(g)
    missing = [len(before) for before in edges]
    depth = [0] * len(edges)
    ready = [g for g, n in enumerate(missing) if n == 0]
    for g in ready:  # grows while it is read
        below = depth[g] + 1
        for h in after[g]:
            if depth[h] < below:
                depth[h] = below
            missing[h] -= 1
            if not missing[h]:
                ready.append(h)
    if len(ready) != len(edges):
        raise AssertionError("contracting made a cycle")
    order = sorted(ready, key=lambda g: (depth[g], first[g]))
    place = [0] * len(edges)
    for at, g in enumerate(order):
        place[g] = at
    return order, place
