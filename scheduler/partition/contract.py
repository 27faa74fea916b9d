"""Graph contraction: which steps belong together. Works on weights and edges only; knows no ops and no cluster.

The parts of a contraction, each linear in the size of the graph:

1. Towers. A step dominates the work that can only be reached through it. If two or more children of one step (or of
   the root) in the dominator tree each dominate at least a grain of work, and none depends on another, they are heads
   of towers that can run concurrently.
2. Lanes. A head opens a lane; any other step continues the lane that it reads the most bytes from. A step that adds
   results of several lanes also opens one: a reduce tree is not part of any tower.
3. Merging lanes, if the strategy asks for it (`reduce`): towers with the sum over them, and whole reduce trees.
4. Phases. A step's phase is the maximum of those it reads, plus one for those in another lane. A group is one lane in
   one phase: every edge between two groups goes to a later phase, so there are no cycles, whatever the lanes are.
5. Merging. Groups below the grain are merged with their only reader or only source, then with others that read the
   same, then with their neighbours in order. None of these creates a cycle; each function says why.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from distgrad.scheduler.partition.nodes import Groups, Nodes, quotient
from distgrad.scheduler.partition.reduce import Lanes, Way, merged_lanes
from distgrad.scheduler.partition.towers import heads_of

#: Levels of small sources that may be shared, for example a slice and a product of it.
DEEP = 2


def contract(nodes: Nodes, way: Way, known: dict[tuple[float, bool, int], Lanes] | None = None) -> Groups:
    """Groups of about a grain of seconds or more, by this strategy; `known` caches lanes for other strategies."""
    known = {} if known is None else known
    key = way.grain, way.branches, way.deep
    if key not in known:
        known[key] = _lanes(nodes, *key)
    lanes = known[key]
    color = [0] * len(lanes.weight)
    if way.fold or way.columns:
        lanes, color = merged_lanes(nodes, lanes, way)
    groups = _phased(nodes, lanes.of, way.window)
    graph, place = quotient(nodes, groups)
    graph = _colored(graph, {place[g]: color[lane] for g, lane in zip(groups, lanes.of, strict=True)})
    for merge in (_into_readers, _into_sources, _siblings, _into_readers, _into_sources, _in_order):
        of = merge(graph, way.grain, way.window)
        if max(of, default=0) + 1 < len(graph):
            graph, moved = quotient(graph, of)
            place = [moved[of[g]] for g in place]
    return [place[g] for g in groups]


def pieces(nodes: Nodes, grain: float) -> Groups:
    """Every lane in every phase as a group, split at the grain: the small pieces that all candidates are built from.
    Steps that any strategy puts into different lanes are in different pieces."""
    of = zip(*[_lanes(nodes, grain, False, deep).of for deep in (0, DEEP)], strict=True)
    ids: dict[tuple[int, ...], int] = {}
    return _phased(nodes, [ids.setdefault(lanes, len(ids)) for lanes in of], grain)


def _colored(graph: Nodes, color: dict[int, int]) -> Nodes:
    """Prevent merging of groups with different colors, by giving them different devices."""
    count = max(graph.device, default=0) + 1
    return replace(graph, device=[device + count * color[g] for g, device in enumerate(graph.device)])


def whole(nodes: Nodes) -> Groups:
    """As few groups as devices allow: one if there is one device."""
    if not any(nodes.device):
        return [0] * len(nodes)
    phase = [0] * len(nodes)
    for v, before in enumerate(nodes.before):
        here = nodes.device[v]
        phase[v] = max([phase[p] + (nodes.device[p] != here) for p in before], default=0)
    keys = list(zip(phase, nodes.device, strict=True))
    number = {key: g for g, key in enumerate(sorted(set(keys)))}  # by phase: a topological order
    return [number[key] for key in keys]


# -- lanes and phases --------------------------------------------------------------------------------------------


def _lanes(nodes: Nodes, grain: float, branches: bool, deep: int) -> Lanes:
    heads, shared = heads_of(nodes, grain, branches, deep)
    of: list[int] = []
    weight: list[float] = []  # of each lane
    tower: list[bool] = []  # whether a lane was opened by a head, or adds results of such lanes
    sums: list[int] = []  # the node that adds them, or -1
    for v, before in enumerate(nodes.before):
        begins = heads[v] or all(map(shared.__getitem__, before))  # opens a lane; so does a node without inputs
        here = -1 if begins else _best_lane(nodes, v, of, weight, tower)
        if here < 0:
            here = len(weight)
            adds = nodes.joint[v] and len(before) > 1
            weight.append(0.0)
            tower.append(heads[v] or adds)
            sums.append(v if adds and not heads[v] else -1)
        of.append(here)
        weight[here] += nodes.weight[v]
    return Lanes(of, weight, sums, tower)


def _phased(nodes: Nodes, lane: Sequence[int], window: float | None) -> Groups:
    phase = [0] * len(nodes)
    floor = [0] * (max(lane, default=-1) + 1)  # the current phase of each lane
    ids: dict[tuple[int, int], int] = {}
    held: list[float] = []  # the weight of each group
    groups = []
    for v, before in enumerate(nodes.before):
        here = lane[v]
        at = floor[here]
        for p in before:
            least = phase[p] if lane[p] == here else phase[p] + 1
            if least > at:
                at = least
        phase[v] = at
        g = ids.setdefault((here, at), len(ids))
        if g == len(held):
            held.append(0.0)
        held[g] += nodes.weight[v]
        if window is not None and held[g] >= window:
            floor[here] = at + 1
        groups.append(g)
    return groups


def _best_lane(nodes: Nodes, v: int, lane: Sequence[int], weight: Sequence[float], tower: Sequence[bool]) -> int:
    """The lane on the same device that most bytes come from, then the one with more work; -1 opens a new lane."""
    before = nodes.before[v]
    here = nodes.device[v]
    if len(before) == 1:
        return lane[before[0]] if nodes.device[before[0]] == here else -1
    bytes_from: dict[int, int] = {}
    for p, moved in zip(before, nodes.moved[v], strict=True):
        if nodes.device[p] == here:
            bytes_from[lane[p]] = bytes_from.get(lane[p], 0) + moved
    if not bytes_from or (nodes.joint[v] and sum([tower[each] for each in bytes_from]) > 1):
        return -1
    return max(bytes_from, key=lambda each: (bytes_from[each], weight[each], -each))


# -- merging -----------------------------------------------------------------------------------------------------


def _readers(nodes: Nodes) -> list[list[int]]:
    after: list[list[int]] = [[] for _ in range(len(nodes))]
    for v, before in enumerate(nodes.before):
        for p in before:
            after[p].append(v)
    return after


def _into_readers(nodes: Nodes, grain: float, window: float | None) -> Groups:
    """Merge nodes into their only reader. Every path from a node leads through it, so no cycle can arise."""
    limit = float("inf") if window is None else window
    after = _readers(nodes)
    of = list(range(len(nodes)))
    taken, sources = [0.0] * len(nodes), [set(before) for before in nodes.before]
    for v in range(len(nodes) - 1, -1, -1):  # backwards: a node is visited before anything is merged into it
        into = {of[w] for w in after[v]}
        w = into.pop() if len(into) == 1 else v
        if w == v or nodes.device[v] != nodes.device[w]:
            continue
        weight, added = nodes.weight[v], taken[w] + nodes.weight[v]
        chain = len(sources[w]) == 1 and nodes.joint[v] == nodes.joint[w]  # there are no other inputs to wait for
        small = weight < grain and added <= grain and not nodes.joint[v] and not nodes.joint[w]
        if (chain and nodes.weight[w] + added <= limit) or (small and nodes.weight[w] + added <= max(limit, grain)):
            of[v] = w
            taken[w] = added
            sources[w].update(nodes.before[v])
            sources[w].discard(v)
    return _numbered(of)


def _into_sources(nodes: Nodes, grain: float, window: float | None) -> Groups:
    """Merge nodes into their only source. Every path to a node leads through it, so no cycle can arise."""
    limit = float("inf") if window is None else window
    of = list(range(len(nodes)))
    taken = [0.0] * len(nodes)
    for v, before in enumerate(nodes.before):
        into = {of[w] for w in before}
        w = into.pop() if len(into) == 1 else v
        added = taken[w] + nodes.weight[v]
        small = nodes.weight[v] < grain and added <= grain and nodes.weight[w] + added <= max(limit, grain)
        if w != v and small and nodes.device[v] == nodes.device[w]:
            of[v] = w
            taken[w] = added
    return _numbered(of)


def _numbered(of: Sequence[int]) -> Groups:
    ids: dict[int, int] = {}
    return [ids.setdefault(g, len(ids)) for g in of]


def _siblings(nodes: Nodes, grain: float, window: float | None) -> Groups:
    """Merge nodes that read the same sources. Neither can depend on the other, so no cycle can arise."""
    bins: dict[tuple[tuple[int, ...], int, bool], tuple[int, float]] = {}
    of: list[int] = []
    for v, weight in enumerate(nodes.weight):
        at = v
        if weight < grain:
            key = tuple(sorted({of[p] for p in nodes.before[v]})), nodes.device[v], nodes.joint[v]
            at, held = bins.get(key, (v, 0.0))
            if held >= grain:
                at, held = v, 0.0
            bins[key] = at, held + weight
        of.append(at)
    return _numbered(of)


def _in_order(nodes: Nodes, grain: float, window: float | None) -> Groups:
    """Merge neighbours in topological order. A path cannot leave an interval and return, so no cycle can arise."""
    apart = _reduce_trees(nodes, grain)
    of: list[int] = []
    at, held = -1, 0.0
    for v, weight in enumerate(nodes.weight):
        alone = weight >= grain or apart[v]
        if alone or at < 0 or held >= grain or nodes.device[v] != nodes.device[at]:
            at, held = v, 0.0
        held += weight
        of.append(at)
        if alone:
            at = -1
    return _numbered(of)


def _reduce_trees(nodes: Nodes, grain: float) -> list[bool]:
    """The nodes that add results of two or more others, each a tower or itself a node of the tree."""
    apart: list[bool] = []
    for v, before in enumerate(nodes.before):
        terms = sum([1 for p in before if apart[p] or nodes.weight[p] >= grain]) if nodes.joint[v] else 0
        apart.append(terms > 1)
    return apart
