"""Towers: parts of a graph that can run side by side, found by dominance.

A node dominates what can only be reached through it. Where several nodes behind one node (or behind nothing) dominate
much work each, and none needs another, each is the head of a tower.
"""

from __future__ import annotations

from collections.abc import Sequence

from distgrad.scheduler.partition.nodes import Nodes


def heads_of(nodes: Nodes, grain: float, branches: bool, deep: int = 0) -> tuple[list[bool], list[bool]]:
    """The nodes that begin a tower, or with `branches` any heavy branch; and small sources that several nodes read, of
    which `deep` levels are looked for: they are no part of any tower."""
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
    """Whether a node reads from what another heavy one beside it dominates: they cannot run side by side."""
    level = tree.depth[tree.parent[v]] + 1
    above = [tree.above(p, level) for p in nodes.before[v] if tree.depth[p] >= level]
    return any(work[u] >= grain for u in above)


def _dominators(nodes: Nodes, grain: float, deep: int) -> tuple[_Tree, list[float], list[bool]]:
    """The node that every path to a node leads through last (n: none), the work of each with its small sources, and
    which small sources several nodes read.

    A small tree of sources that only one node reads is a part of that node: it would hide what else dominates it. So
    may small sources that several nodes read, as a step that all towers share, or the slices of a sequence that one
    begins with: `deep` levels of them dominate nothing.
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
            work[v] = 0.0  # counted where it is read, if that is one place
    return tree, work, [small[v] and fan[v] > 1 for v in range(n)]


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

    def above(self, v: int, level: int) -> int:
        """The node at this depth on the way from v to the root."""
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
