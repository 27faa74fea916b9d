"""Reduce trees: which sums are merged with the towers they add, and which run concurrently.

Works on the graph only, like `contract`. A sum over several lanes, and every node of a reduce tree, starts as a
separate lane. Two transformations reduce their number:

- Folding. Towers that run one after another anyway produce their sum instead of separate terms. The more shards per
  worker, the more this saves.
- Columns. Whole trees, not their levels, are distributed over as many lanes as can run concurrently. Each lane adds all
  terms of some of the tensors, and nothing is written between two levels.

Neither changes a tree: the order of additions is fixed beforehand.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from distgrad.scheduler.partition.nodes import Nodes

#: Maximum inputs of a task that adds a whole tree. Above it fetching dominates, and tree levels are faster.
MANY = 64


class Way(NamedTuple):
    """A partitioning strategy. Durations are seconds of work."""

    #: Minimum duration of a task.
    grain: float
    #: Approximate maximum duration of a task that can be split.
    window: float | None = None
    #: Whether a branch of a tower that dominates a grain is a lane too, even if it depends on other branches.
    branches: bool = False
    #: Number of levels of small shared sources that belong to no tower.
    deep: int = 0
    #: Maximum duration of towers merged with the sum over them.
    fold: float = 0.0
    #: Maximum number of lanes for trees of sums (0: every sum is a lane), and minimum work of each.
    columns: int = 0
    least: float = 0.0


class Lanes(NamedTuple):
    """The lane of each node, and properties of each lane."""

    of: list[int]
    #: Seconds of work.
    weight: list[float]
    #: The node that opened the lane if it adds results of other lanes; else -1.
    sums: list[int]
    #: Whether it was opened by such a sum, or by the head of a tower.
    tower: list[bool]


def merged_lanes(nodes: Nodes, lanes: Lanes, way: Way) -> tuple[Lanes, list[int]]:
    """Merge lanes by this strategy; also returns a color per lane. Lanes with a color above 0 merge only with their own
    color."""
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
    """The lane that each is merged into: small lanes with a single reader, which they would split into phases."""
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
    """Merge towers with the sums over them up to this much work. Returns which lanes are towers or merged sums."""
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
    """Distribute the sums that are in no tower over columns of similar work. Returns the color of each lane."""
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
    """Trees of sums that read each other, with their work; without trees of too many inputs."""
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
