"""Traces made up for the tests of the page: towers, reduce trees and barriers of any size, consistent in themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

MIB = 1 << 20
FAN_IN = 4


class Tasks:
    """Tasks in the making, in order. Each runs when what it reads is there and its worker is free."""

    def __init__(self, workers: int):
        self.workers = workers
        self.tasks: list[dict[str, Any]] = []

    def add(self, ops: str, worker: int, reads: Sequence[int] = (), kind: str = "work", **fields: Any) -> int:
        k = len(self.tasks)
        task = {
            "ops": ops,
            "line": f"model.py:{10 + len(ops) % 37}",
            "steps": 3 + k % 5,
            "seconds": 0.004 if kind == "reduce" else 0.02 + 0.001 * (k % 7),
            "memory": 40 * MIB,
            "cpus": 1,
            "gpus": 0,
            "device": None,
            "worker": worker % self.workers,
            "kind": kind,
            "reads": sorted(set(reads)),
            "waits": [],
        }
        self.tasks.append(task | fields)
        return k

    def tree(self, terms: Sequence[int], ops: str, waits: Sequence[int]) -> int:
        """A reduce tree; its root waits for these tasks too."""
        level = list(terms)
        while len(level) > 1:
            parts = [level[i : i + FAN_IN] for i in range(0, len(level), FAN_IN)]
            last = list(waits) if len(parts) == 1 else []
            level = [self.node(part, ops, last) for part in parts]
        return level[0]

    def node(self, terms: Sequence[int], ops: str, waits: Sequence[int]) -> int:
        return terms[0] if len(terms) == 1 else self.add(ops, len(self.tasks), terms, "reduce", waits=waits)


def towers(count: int, depth: int, workers: int) -> list[dict[str, Any]]:
    """Per tower `depth` forward tasks and as many backward; then a reduce tree per layer, each behind the one before.

    Two towers of depth two are ten tasks.
    """
    made = Tasks(workers)
    gradients: list[list[int]] = [[] for _ in range(depth)]
    for t in range(count):
        forward: list[int] = []
        for layer in range(depth):
            forward.append(made.add(f"MatMul ×{layer + 1}, Tanh", t, forward[-1:]))
        last = forward[-1]
        for layer in reversed(range(depth)):
            last = made.add(f"MatMul ×{layer + 2}, Mul, Sub", t, [last, forward[layer]])
            gradients[layer].append(last)
    roots: list[int] = []
    for layer in reversed(range(depth)):
        roots.append(made.tree(gradients[layer], f"AddN ×{layer + 1}", roots[-1:]))
    return made.tasks


def timeline(tasks: Sequence[dict[str, Any]], places: Sequence[str], slower: float) -> dict[str, Any]:
    """Each task as early as it can on its worker, `slower` and unevenly; memory held while tasks run."""
    free = [0.0] * len(places)
    start: list[float] = []
    end: list[float] = []
    memory: list[list[list[float]]] = [[[0.0, 0]] for _ in places]
    for k, task in enumerate(tasks):
        w = task["worker"]
        begin = max([free[w], *[end[j] for j in (*task["reads"], *task["waits"])]])
        until = begin + task["seconds"] * slower * (1 + (k * 37 % 11) / 50)
        start.append(round(begin, 7))
        end.append(round(until, 7))
        free[w] = until
        memory[w] += [[start[-1], (40 + k % 9) * MIB], [end[-1], (8 + k % 5) * MIB]]
    worker = [task["worker"] for task in tasks]
    return {"start": start, "end": end, "worker": worker, "places": list(places), "memory": memory}


def bundles(tasks: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    readers: dict[int, list[int]] = {}
    for k, task in enumerate(tasks):
        for j in task["reads"]:
            readers.setdefault(j, []).append(k)
    return [
        {"task": k, "readers": readers.get(k, []), "nbytes": (1 + k % 4) * MIB, "values": 2, "wanted": k not in readers}
        for k in range(len(tasks))
    ]


def plan(name: str, count: int, depth: int, workers: int, measured: bool = True) -> dict[str, Any]:
    tasks = towers(count, depth, workers)
    predicted = timeline(tasks, [f"worker {i}" for i in range(workers)], 1.0)
    ran = None
    if measured:
        ran = timeline(tasks, [f"node {i % 2}, process {4000 + i}" for i in range(workers)], 1.2)
        ran["resident"] = [[[t, n + 90 * MIB] for t, n in line[::2]] for line in ran["memory"]]
        ran |= {"again": {}, "reasons": [], "seconds": max(ran["end"])}
    seconds = max(predicted["end"])
    return {
        "name": name,
        "digest": f"{name}-{count}-{depth}",
        "steps": sum(task["steps"] for task in tasks),
        "budget": 64 * MIB,
        "predictions": {
            "seconds": seconds,
            "bytes_moved": 4 * len(tasks) * MIB,
            "peak_bytes": max(n for line in predicted["memory"] for _, n in line),
            "work_seconds": sum(task["seconds"] for task in tasks),
            "critical_seconds": seconds / 2,
        },
        "tasks": tasks,
        "bundles": bundles(tasks),
        "predicted": predicted,
        "measured": ran,
        "runs": _runs(ran),
        "ops": _ops(measured),
        "ops_measured": measured,
    }


def _runs(ran: dict[str, Any] | None) -> dict[str, Any]:
    if ran is None:
        return {"count": 0, "seconds": [], "began": None}
    return {"count": 4, "seconds": [ran["seconds"] * (1 + i / 10) for i in (3, 1, 2, 0)], "began": 1794826800.0}


def _ops(measured: bool) -> list[dict[str, Any]]:
    kinds = ("MatMul", "Tanh", "AddN", "Mul", "Sub", "Sum", "Transpose", "Exp")
    return [
        {
            "op": op,
            "line": f"model.py:{40 - 3 * i}",
            "seconds": 0.2 / (i + 1),
            "calls": 3 * i + 1,
            "predicted": None if measured and i == 2 else 0.15 / (i + 1),
        }
        for i, op in enumerate(kinds)
    ]


def document(*plans: dict[str, Any], workers: int = 2) -> dict[str, Any]:
    return {
        "displayTimeUnit": "ms",
        "traceEvents": [],
        "distgrad": {
            "format": 1,
            "version": "0.1.0",
            "made": "2026-11-16T11:00:00Z",
            "engine": "ray",
            "cluster": {
                "name": "made up",
                "engine": "ray",
                "nodes": 2,
                "workers": [{"cpus": 1, "gpus": 0, "memory": 64 * MIB, "node": i % 2} for i in range(workers)],
            },
            "plans": list(plans),
        },
    }


def small(**fields: Any) -> dict[str, Any]:
    """Ten tasks on two workers."""
    return document(plan("step", 2, 2, 2) | fields)


def large() -> dict[str, Any]:
    """More than five thousand tasks on 64 workers."""
    return document(plan("large", 268, 8, 64), workers=64)
