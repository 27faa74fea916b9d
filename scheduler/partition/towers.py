"""Towers: parts of a graph that can run concurrently, found with a dominator tree.

A node dominates what can only be reached through it. If several children of one node (or of the root) in the dominator
tree each dominate much work, and none depends on another, each is the head of a tower.
"""

from __future__ import annotations

from collections.abc import Sequence

from distgrad.scheduler.partition.nodes import Nodes


def heads_of(nodes: Nodes, grain: float, branches: bool, deep: int = 0) -> tuple[list[bool], list[bool]]:
    """Which nodes are heads of towers, or with `branches` of any heavy branch; and which are small shared sources, up
    to `deep` levels: these belong to no tower."""
    n = len(nodes)
    tree, work, shared = _dominators(nodes, grain, deep)
    parent = tree.parent
    for v in range(n - 1, -1, -1):
        work[parent[v]] += work[v]
    heavy = [v for v in range(n) if work[v] >= grain]
    beside = [0] * (n + 1)
    for v in heavy:
        beside[parent[v]] += 1
    if not branches:
        heavy = [v for v in heavy if beside[parent[v]] < 2 or not _needs_another(nodes, v, tree, work, grain)]
        beside = [0] * (n + 1)
        for v in heavy:
            beside[parent[v]] += 1
    heads = [False] * n
    for v in heavy:
        heads[v] = parent[v] == n or beside[parent[v]] > 1
    return heads, shared


def _needs_another(nodes: Nodes, v: int, tree: _Tree, work: Sequence[float], grain: float) -> bool:
    """Whether a node reads from what a heavy sibling dominates, so that they cannot run concurrently."""
    level = tree.depth[tree.parent[v]] + 1
    above = [tree.above(p, level) for p in nodes.before[v] if tree.depth[p] >= level]
    return any(work[u] >= grain for u in above)


def _dominators(nodes: Nodes, grain: float, deep: int) -> tuple[_Tree, list[float], list[bool]]:
    """The dominator tree (root n), the work of each node with its small sources, and which small sources are shared.

    A small tree of sources with one reader counts as part of that reader: otherwise it would hide the reader's other
    dominators. Small shared sources can do the same, such as a step that all towers share, or the slices of an input
    sequence: up to `deep` levels of them are left out of the tree.
    """
    n = len(nodes)
    fan = _fan_out(nodes)
    tree = _Tree(n)
    work = [*nodes.weight, 0.0]
    small = [False] * n
    depth = [0] * n  # of small sources
    for v, before in enumerate(nodes.before):
        at = -1
        sources = 0
        for p in before:
            if small[p]:
                work[v] += work[p] if fan[p] == 1 else 0.0
                depth[v] = max(depth[v], depth[p] + 1)
                sources += 1
            else:
                at = p if at < 0 else tree.meet(at, p)
        tree.add(v, n if at < 0 else at)
        small[v] = sources == len(before) and work[v] < grain and (fan[v] == 1 or depth[v] < deep)
    for v in range(n):
        if small[v]:
            work[v] = 0.0  # counted in its reader, if there is only one
    return tree, work, [small[v] and fan[v] > 1 for v in range(n)]


def _fan_out(nodes: Nodes) -> list[int]:
    fan = [0] * len(nodes)
    for before in nodes.before:
        for p in before:
            fan[p] += 1
    return fan


class _Tree:
    """A tree that grows at its leaves, with jump pointers: finds the lowest common ancestor (`meet`) in logarithmic
    time."""

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

    def above(self, v: int, level: int) -> int:
        """The ancestor of v at this depth."""
        parent, jump, depth = self.parent, self.jump, self.depth
        while depth[v] > level:
            v = jump[v] if depth[jump[v]] >= level else parent[v]
        return v

    def meet(self, a: int, b: int) -> int:
        parent, jump, depth = self.parent, self.jump, self.depth
        if depth[a] < depth[b]:
            a, b = b, a
        if depth[a] > depth[b]:
            a = self.above(a, depth[b])
        while a != b:
            if jump[a] != jump[b]:
                a, b = jump[a], jump[b]
            else:
                a, b = parent[a], parent[b]
        return a
