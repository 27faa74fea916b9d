"""Reduce trees on their way into tasks: which sums join the towers that they add up, and which run side by side.

Pure graph work, as contracting is. A sum of what several lanes made is a lane of its own at first, and so is every node
of a reduce tree. Two things make fewer of them:

- Folding. Towers that run one after another anyway hand on their sum, not each its own terms: the more shards than
  workers, the more it saves.
- Columns. Whole trees, not their levels, are dealt out to as many lanes as can run side by side: each adds up a part of
  the tensors, all terms of them, and nothing is written between two levels.

Neither changes a tree: what is added to what is fixed before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from distgrad.scheduler.partition.nodes import Nodes

#: Above 64 inputs fetching dominates; use tree levels.
MANY = 64


class Way(NamedTuple):
    """One way to cut, in seconds of work."""

    #: What a task should last at least.
    grain: float
    #: About what a task should last at most, where it can be cut.
    window: float | None = None
    #: A branch of a tower that dominates a grain is a lane too, though it needs others of its kind.
    branches: bool = False
    #: So many levels of small sources that several nodes read belong to no tower.
    deep: int = 0
    #: Towers join with the sum over them as long as they do not last longer than this together.
    fold: float = 0.0
    #: Trees of sums are dealt out to at most so many lanes, of at least so much work; 0: every sum is a lane.
    columns: int = 0
    least: float = 0.0


class Lanes(NamedTuple):
    """The lane of each node, and what is known of each lane."""

    of: list[int]
    #: Its work.
    weight: list[float]
    #: The node that adds up what other lanes made, where a lane began so; else -1.
    sums: list[int]
    #: Whether it began so, or with the head of a tower.
    tower: list[bool]


def merged_lanes(nodes: Nodes, lanes: Lanes, way: Way) -> tuple[Lanes, list[int]]:
    """Fewer lanes, and a color for each of them: those that shall not merge with others have one above 0."""
    device = _devices(nodes, lanes)
    into = _absorbed(nodes, lanes, device, way.grain)
    folded = _fold(nodes, lanes, device, way.fold, into)
    color = _columns(nodes, lanes, device, folded, way, into) if way.columns else [0] * len(into)
    of = [_root(into, lane) for lane in lanes.of]
    return lanes._replace(of=of), color


def _devices(nodes: Nodes, lanes: Lanes) -> list[int]:
    device = [0] * len(lanes.weight)
    for v, lane in enumerate(lanes.of):
        device[lane] = nodes.device[v]
    return device


def _absorbed(nodes: Nodes, lanes: Lanes, device: Sequence[int], grain: float) -> list[int]:
    """The lane that each becomes a part of: small ones that only one other reads. They would cut it into phases."""
    into = list(range(len(lanes.weight)))
    readers: list[set[int]] = [set() for _ in into]
    for v, before in enumerate(nodes.before):
        for p in before:
            readers[lanes.of[p]].add(lanes.of[v])
    for lane in range(len(into) - 1, -1, -1):
        if lanes.tower[lane] or lanes.weight[lane] >= grain:
            continue
        to = {_root(into, r) for r in readers[lane]} - {lane}
        if len(to) == 1 and device[lane] == device[next(iter(to))]:
            into[lane] = to.pop()
    return into


def _root(into: list[int], lane: int) -> int:
    while into[lane] != lane:
        into[lane] = into[into[lane]]
        lane = into[lane]
    return lane


def _terms(nodes: Nodes, lanes: Lanes, v: int) -> list[int]:
    return list(dict.fromkeys([lanes.of[p] for p in nodes.before[v]]))


def _fold(nodes: Nodes, lanes: Lanes, device: Sequence[int], most: float, into: list[int]) -> list[bool]:
    """Join towers and the sums over them up to this much work; whether each lane is a tower or a sum that joined."""
    weight = [0.0] * len(into)
    for lane, own in enumerate(lanes.weight):
        weight[_root(into, lane)] += own
    inside = [v < 0 for v in lanes.sums]
    for lane, v in enumerate(lanes.sums):
        terms = _terms(nodes, lanes, v) if v >= 0 else []
        roots = {_root(into, t) for t in (*terms, lane)}
        total = sum([weight[r] for r in roots])
        if not terms or total > most or not all(inside[t] and device[t] == device[lane] for t in terms):
            continue
        first = min(roots)
        for r in roots:
            into[r] = first
        weight[first] = total
        inside[lane] = True
    return inside


def _columns(
    nodes: Nodes, lanes: Lanes, device: Sequence[int], inside: Sequence[bool], way: Way, into: list[int]
) -> list[int]:
    """Join the sums that are in no tower to columns of about the same work; gives the color of each lane."""
    color = [0] * len(into)
    trees = _trees(nodes, lanes, device, inside, into)
    total = sum([weight for weight, _ in trees])
    count = max(min(way.columns, int(total / way.least) if way.least else way.columns), 1)
    for kind in sorted({device[members[0]] for _, members in trees}):
        held = [0.0] * count
        first = [-1] * count
        for weight, members in sorted(trees, key=lambda tree: (-tree[0], tree[1])):
            if device[members[0]] != kind:
                continue
            at = held.index(min(held))
            held[at] += weight
            first[at] = first[at] if first[at] >= 0 else members[0]
            for lane in members:
                into[lane] = first[at]
                color[lane] = at + 1
    return color


def _trees(
    nodes: Nodes, lanes: Lanes, device: Sequence[int], inside: Sequence[bool], into: list[int]
) -> list[tuple[float, list[int]]]:
    """The sums that read each other, with their work; not those of too many terms."""
    tree = list(range(len(into)))
    sources: dict[int, set[int]] = {}
    for lane, v in enumerate(lanes.sums):
        if inside[lane]:
            continue
        read: set[int] = set()
        for t in _terms(nodes, lanes, v):
            if inside[t] or device[t] != device[lane]:
                read.add(_root(into, t))
            else:
                root = _root(tree, t)
                tree[root] = lane
                read |= sources.pop(root, set())
        sources[lane] = read
    members: dict[int, list[int]] = {}
    for lane, done in enumerate(inside):
        if not done:
            members.setdefault(_root(tree, lane), []).append(lane)
    few = [root for root in members if len(sources[root]) <= MANY]
    return [(sum([lanes.weight[lane] for lane in members[root]]), members[root]) for root in few]
