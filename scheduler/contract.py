"""Contracting: which steps belong together. Pure graph work on weights and edges; knows no ops and no cluster.

The way of a contraction, each part linear in the graph:

1. Towers. A step dominates the work that can only be reached through it. Where two or more steps behind one step (or
   behind nothing) each dominate at least a grain of work, they are heads: towers that may run side by side.
2. Lanes. A head opens a lane; any other step goes on in the lane it gets most bytes from. A step that adds up what
   several lanes made opens one too: a reduce tree is no part of any tower.
3. Phases. A step's phase is the largest of those it reads, plus one from another lane. A group is one lane in one
   phase: every edge between two groups goes to a later phase, so there is no cycle, whatever the lanes are.
4. Merging. Groups below the grain join their only reader or their only source, then others that read the same, then
   their neighbours in order. Each of these leaves the graph without cycles too; each says why.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Nodes:
    """A graph to contract: nodes in a topological order."""

    weight: list[float]
    #: The nodes that each one reads or waits for, and the bytes that come from each of them.
    before: list[tuple[int, ...]]
    moved: list[tuple[int, ...]]
    device: list[int]
    #: Adds up what others made; of groups, those that begin so.
    joint: list[bool]

    def __len__(self) -> int:
        return len(self.weight)


#: Node -> group, groups numbered in a topological order.
Groups = list[int]


def contract(nodes: Nodes, grain: float, window: float | None = None) -> Groups:
    """Groups of about `grain` seconds or more; with `window`, lanes are cut into pieces of about that many."""
    groups = _lanes(nodes, _heads(nodes, grain), window)
    graph, place = quotient(nodes, groups)
    for merge in (_into_readers, _into_sources, _siblings, _into_readers, _into_sources, _in_order):
        of = merge(graph, grain, window)
        if max(of, default=0) + 1 < len(graph):
            graph, moved = quotient(graph, of)
            place = [moved[of[g]] for g in place]
    return [place[g] for g in groups]


def whole(nodes: Nodes) -> Groups:
    """As few groups as devices allow: one, where there is one device."""
    if not any(nodes.device):
        return [0] * len(nodes)
    phase = [0] * len(nodes)
    for v, before in enumerate(nodes.before):
        here = nodes.device[v]
        phase[v] = max([phase[p] + (nodes.device[p] != here) for p in before], default=0)
    keys = list(zip(phase, nodes.device, strict=True))
    number = {key: g for g, key in enumerate(sorted(set(keys)))}  # by phase: a topological order
    return [number[key] for key in keys]


def quotient(nodes: Nodes, groups: Sequence[int]) -> tuple[Nodes, list[int]]:
    """The graph of the groups in a topological order, and the place in it of each group."""
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
    """The groups by depth, those of one depth in the order of their first members; and the place of each."""
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


# -- towers ------------------------------------------------------------------------------------------------------


def _heads(nodes: Nodes, grain: float) -> list[bool]:
    """The nodes that begin a tower."""
    n = len(nodes)
    parent, work = _dominators(nodes, grain)
    for v in range(n - 1, -1, -1):
        work[parent[v]] += work[v]
    heavy = [0] * (n + 1)
    for v in range(n):
        heavy[parent[v]] += work[v] >= grain
    return [work[v] >= grain and (parent[v] == n or heavy[parent[v]] > 1) for v in range(n)]


def _dominators(nodes: Nodes, grain: float) -> tuple[list[int], list[float]]:
    """The node that every path to a node leads through last (n: none), and the work of each with its small sources.

    A small tree of sources that only one node reads is a part of that node: it would hide what else dominates it.
    """
    n = len(nodes)
    fan = _fan_out(nodes)
    tree = _Tree(n)
    work = [*nodes.weight, 0.0]
    small = [False] * n
    for v, before in enumerate(nodes.before):
        at = -1
        sources = 0
        for p in before:
            if small[p]:
                work[v] += work[p]
                sources += 1
            else:
                at = p if at < 0 else tree.meet(at, p)
        tree.add(v, n if at < 0 else at)
        small[v] = sources == len(before) and fan[v] == 1 and work[v] < grain
    for v in range(n):
        if small[v]:
            work[v] = 0.0  # counted where it is read
    return tree.parent, work


def _fan_out(nodes: Nodes) -> list[int]:
    fan = [0] * len(nodes)
    for before in nodes.before:
        for p in before:
            fan[p] += 1
    return fan


class _Tree:
    """A tree that grows at its leaves; `meet` finds where two nodes' ways to the root join, by jumps that double."""

    def __init__(self, root: int):
        self.parent = [root] * (root + 1)
        self.jump = [root] * (root + 1)
        self.depth = [0] * (root + 1)

    def add(self, v: int, parent: int) -> None:
        jump, depth = self.jump, self.depth
        far = jump[parent]
        even = depth[parent] - depth[far] == depth[far] - depth[jump[far]]
        self.parent[v] = parent
        self.jump[v] = jump[far] if even else parent
        depth[v] = depth[parent] + 1

    def meet(self, a: int, b: int) -> int:
        parent, jump, depth = self.parent, self.jump, self.depth
        if depth[a] < depth[b]:
            a, b = b, a
        level = depth[b]
        while depth[a] > level:
            a = jump[a] if depth[jump[a]] >= level else parent[a]
        while a != b:
            if jump[a] != jump[b]:
                a, b = jump[a], jump[b]
            else:
                a, b = parent[a], parent[b]
        return a


# -- lanes and phases --------------------------------------------------------------------------------------------


def _lanes(nodes: Nodes, heads: Sequence[bool], window: float | None) -> Groups:
    lane, phase = [0] * len(nodes), [0] * len(nodes)
    weight: list[float] = []  # of each lane
    floor: list[int] = []  # the phase that a lane has come to
    ids: dict[tuple[int, int], int] = {}
    held: list[float] = []  # the weight of each group
    groups = []
    for v, before in enumerate(nodes.before):
        here = -1 if heads[v] or not before else _best_lane(nodes, v, lane, weight)
        if here < 0:
            here = len(weight)
            weight.append(0.0)
            floor.append(0)
        at = floor[here]
        for p in before:
            least = phase[p] if lane[p] == here else phase[p] + 1
            if least > at:
                at = least
        lane[v], phase[v] = here, at
        weight[here] += nodes.weight[v]
        g = ids.setdefault((here, at), len(ids))
        if g == len(held):
            held.append(0.0)
        held[g] += nodes.weight[v]
        if window is not None and held[g] >= window:
            floor[here] = at + 1
        groups.append(g)
    return groups


def _best_lane(nodes: Nodes, v: int, lane: Sequence[int], weight: Sequence[float]) -> int:
    """The lane of the same device that most bytes come from, of equals the one with more work; -1: a new one."""
    before = nodes.before[v]
    here = nodes.device[v]
    if len(before) == 1:
        return lane[before[0]] if nodes.device[before[0]] == here else -1
    bytes_from: dict[int, int] = {}
    for p, moved in zip(before, nodes.moved[v], strict=True):
        if nodes.device[p] == here:
            bytes_from[lane[p]] = bytes_from.get(lane[p], 0) + moved
    if not bytes_from or (nodes.joint[v] and len(bytes_from) > 1):
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
    """Every path from a node leads through its only reader, so none can leave the two and come back."""
    limit = float("inf") if window is None else window
    after = _readers(nodes)
    of = list(range(len(nodes)))
    taken, sources = [0.0] * len(nodes), [set(before) for before in nodes.before]
    for v in range(len(nodes) - 1, -1, -1):  # backwards: a node takes nothing in before it is asked itself
        into = {of[w] for w in after[v]}
        w = into.pop() if len(into) == 1 else v
        if w == v or nodes.device[v] != nodes.device[w]:
            continue
        weight, added = nodes.weight[v], taken[w] + nodes.weight[v]
        chain = len(sources[w]) == 1 and nodes.joint[v] == nodes.joint[w]  # nothing else has to be waited for
        small = weight < grain and added <= grain and not nodes.joint[v] and not nodes.joint[w]
        if (chain and nodes.weight[w] + added <= limit) or (small and nodes.weight[w] + added <= max(limit, grain)):
            of[v] = w
            taken[w] = added
            sources[w].update(nodes.before[v])
            sources[w].discard(v)
    return _numbered(of)


def _into_sources(nodes: Nodes, grain: float, window: float | None) -> Groups:
    """Every path to a node leads through its only source, so none can leave the two and come back."""
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
    """Those that read the same. Of two with the same sources none can lead to the other, so joining them is safe."""
    bins: dict[tuple[tuple[int, ...], int, bool], tuple[int, float]] = {}
    of = []
    for v, weight in enumerate(nodes.weight):
        at = v
        if weight < grain:
            key = tuple(sorted(nodes.before[v])), nodes.device[v], nodes.joint[v]
            at, held = bins.get(key, (v, 0.0))
            if held + weight > grain:
                at, held = v, 0.0
            bins[key] = at, held + weight
        of.append(at)
    return _numbered(of)


def _in_order(nodes: Nodes, grain: float, window: float | None) -> Groups:
    """Neighbours in the order. An interval of a topological order cannot be left and entered again."""
    apart = _reduce_trees(nodes, grain)
    of: list[int] = []
    at, held = -1, 0.0
    for v, weight in enumerate(nodes.weight):
        alone = weight >= grain or apart[v]
        if alone or at < 0 or held + weight > grain or nodes.device[v] != nodes.device[at]:
            at, held = v, 0.0
        held += weight
        of.append(at)
        if alone:
            at = -1
    return _numbered(of)


def _reduce_trees(nodes: Nodes, grain: float) -> list[bool]:
    """The nodes that add up what two or more others made, which are towers or parts of the tree themselves."""
    apart: list[bool] = []
    for v, before in enumerate(nodes.before):
        terms = sum([1 for p in before if apart[p] or nodes.weight[p] >= grain]) if nodes.joint[v] else 0
        apart.append(terms > 1)
    return apart
