"""Traces: plans and measurements of their runs, as one JSON document.

The document is in Chrome's trace format, which Perfetto and chrome://tracing open: slices by process and thread, arrows
for data passed between tasks, counters for memory. In addition, the key `distgrad` holds the data of the report: tasks,
bundles, predictions and measurements of each plan. This module converts plain data and draws nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

from distgrad.scheduler.cost.memory import given_bytes
from distgrad.scheduler.cost.step_costs import costs_inside, needs_of
from distgrad.scheduler.partition.simulate import Timeline, held, replay
from distgrad.scheduler.plan import Plan
from distgrad.scheduler.program import CALL, Inner, Step
from distgrad.scheduler.reports import OpTime, Report, op_text
from distgrad.scheduler.show.explain import bottleneck, ops_text, summed

#: Version of the document format; readers reject other versions.
FORMAT = 1
#: Maximum number of ops listed per plan.
MOST_OPS = 200
#: Maximum characters of a task's search text.
MOST_TEXT = 2000


@dataclass
class Entry:
    """A named plan with the report of its last run, the number of runs, and their seconds."""

    plan: Plan
    name: str
    last: Report | None = None
    count: int = 0
    seconds: Sequence[float] = field(default_factory=list)


def document(entries: Sequence[Entry], version: str) -> dict[str, Any]:
    """The trace of these plans. Plans without a run are shown as predicted."""
    plans = [_Described(entry) for entry in entries]
    cluster = entries[0].plan.cluster
    workers = [{"cpus": w.cpus, "gpus": w.gpus, "memory": w.memory, "node": w.node} for w in cluster.workers]
    return {
        "displayTimeUnit": "ms",
        "traceEvents": _events([plan.plain for plan in plans]),
        "distgrad": {
            "format": FORMAT,
            "version": version,
            "made": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "engine": cluster.engine,
            "cluster": {"name": cluster.name, "engine": cluster.engine, "nodes": cluster.nodes, "workers": workers},
            "plans": [plan.plain for plan in plans],
        },
    }


class _Described:
    """One plan of a document."""

    def __init__(self, entry: Entry):
        plan = self._plan = entry.plan
        self._ops = _priced(plan)
        self._giver = {v: k for k, task in enumerate(plan.tasks) for v in task.gives}
        timeline, report = replay(plan), entry.last
        ops = self._predicted_ops()
        measured = None if report is None or len(report.tokens) < len(plan.tasks) else self._measured(report)
        timed = self._measured_ops(report, ops) if report is not None else []
        self.plain: dict[str, Any] = {
            "name": entry.name,
            "digest": plan.digest,
            "steps": len(plan.program.steps),
            "budget": plan.options.memory or min([worker.memory for worker in plan.cluster.workers]),
            "predictions": asdict(plan.predictions),
            "decides": bottleneck(plan),
            "tasks": [self._task(k) for k in range(len(plan.tasks))],
            "bundles": [
                {
                    "task": b.task,
                    "readers": list(b.readers),
                    "nbytes": b.nbytes,
                    "values": len(b.values),
                    "wanted": b.wanted,
                }
                for b in plan.bundles
            ],
            "predicted": _timeline(timeline, [f"worker {i}" for i in range(len(plan.cluster.workers))]),
            "measured": measured,
            "runs": {
                "count": entry.count,
                "seconds": [_rounded(x) for x in entry.seconds],
                "began": None if report is None else report.began,
            },
            "ops": timed or sorted(ops.values(), key=lambda row: -row["seconds"])[:MOST_OPS],
            "ops_measured": bool(timed),
        }

    def _task(self, k: int) -> dict[str, Any]:
        plan, task = self._plan, self._plan.tasks[k]
        ops = [op for i in task.steps for op in self._ops[i]]
        reads = sorted({self._giver[v] for v in task.reads if v in self._giver})
        sums = [op.seconds for i in task.steps if _gathers(plan.program.steps[i]) for op in self._ops[i]]
        is_sum = len(reads) > 1 and 2 * sum(sums) >= sum([op.seconds for op in ops])
        return {
            "ops": ops_text([(op.op, op.seconds, op.calls) for op in ops]),
            "line": summed([(op.line, op.seconds) for op in ops])[0][0],
            "all": _words([plan.program.steps[i] for i in task.steps]),
            "steps": len(task.steps),
            "seconds": _rounded(task.seconds),
            "memory": task.memory,
            "cpus": task.cpus,
            "gpus": task.gpus,
            "device": task.device,
            "worker": task.worker,
            "kind": "reduce" if is_sum else "work",
            "reads": reads,
            "waits": list(task.waits),
        }

    def _predicted_ops(self) -> dict[tuple[str, str], dict[str, Any]]:
        found = _added([op for ops in self._ops for op in ops])
        for row in found.values():
            row["predicted"] = row["seconds"]
        return found

    def _measured_ops(self, report: Report, predicted: dict[tuple[str, str], dict[str, Any]]) -> list[dict[str, Any]]:
        found = _added([op for token in report.tokens.values() for op in token.ops])
        for key, row in found.items():
            row["predicted"] = predicted[key]["predicted"] if key in predicted else None
        return sorted(found.values(), key=lambda row: -row["seconds"])[:MOST_OPS]

    def _measured(self, report: Report) -> dict[str, Any]:
        """When and where tasks ran, relative to the start of the run. Places are processes, or threads of one."""
        plan, tokens = self._plan, [report.tokens[k] for k in range(len(self._plan.tasks))]
        first = sorted(tokens, key=lambda token: (token.start, token.end))
        nodes = {node: i for i, node in enumerate(dict.fromkeys([token.node for token in first]))}
        order = sorted(dict.fromkeys([(nodes[token.node], token.pid) for token in first]), key=lambda at: at[0])
        places = {at: i for i, at in enumerate(order)}
        worker = [places[nodes[token.node], token.pid] for token in tokens]
        zero = _zeros(report)
        start = [max(token.start - zero[token.node], 0.0) for token in tokens]
        end = [max(token.end - zero[token.node], 0.0) for token in tokens]
        resident: list[list[list[float]]] = [[] for _ in places]
        for k in sorted(range(len(tokens)), key=end.__getitem__):
            if tokens[k].resident:
                resident[worker[k]].append([_rounded(end[k]), tokens[k].resident])
        moved = Timeline(tuple(start), tuple(end), tuple(worker), 0)
        node_of = [node for node, _ in order]
        memory = held(plan.tasks, plan.bundles, node_of, given_bytes(plan.program), moved)
        found = _timeline(Timeline(moved.start, moved.end, moved.worker, 0, memory), _labels(order, list(nodes)))
        again = {str(k): n for k, n in report.recomputed.items()}
        return found | {
            "seconds": _rounded(report.seconds),
            "resident": resident,
            "again": again,
            "reasons": report.reasons,
        }


def _priced(plan: Plan) -> list[list[OpTime]]:
    """The predicted seconds of each step by op and line; for a call, of the ops inside, computed once per body."""
    needs = needs_of(plan.program, plan.cluster, plan.options, plan.executions)
    costs = costs_inside(plan.program, plan.cluster, needs)
    known: dict[int, list[OpTime]] = {}
    for inside in costs:
        if id(inside) not in known:
            rows = _added([(op_text(step), str(step.source), cost, 1) for step, cost in inside])
            known[id(inside)] = [OpTime(**row) for row in rows.values()]
    return [known[id(inside)] for inside in costs]


def _added(ops: Iterable[tuple[str, str, float, int]]) -> dict[tuple[str, str], dict[str, Any]]:
    """Seconds and calls by op and line."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for op, line, seconds, calls in ops:
        row = found.setdefault((op, line), {"op": op, "line": line, "seconds": 0.0, "calls": 0})
        row["seconds"] += seconds
        row["calls"] += calls
    return found


def _words(steps: Iterable[Step]) -> str:
    """The search text of a task: all ops and lines of its steps, including those inside them."""
    found: set[str] = set()
    called: set[Inner] = set()
    left = list(steps)
    while left:
        step = left.pop()
        if step.type != CALL:
            found |= {op_text(step), str(step.source)}
            left += step.body
        elif (inner := step.attrs["inner"]) not in called:
            called.add(inner)
            left += inner.program.steps
    return " ".join(sorted(found))[:MOST_TEXT]


def _gathers(step: Step) -> bool:
    """Whether it combines results of several tasks. A task that does little else is a node of a reduce tree."""
    return any(inner.type == "AddN" or inner.type == "Concat" for inner in step.body or (step,))


def _zeros(report: Report) -> dict[str, float]:
    """The clock of each node at the start of the run. Clocks differ; if tasks of a node seem to start before the run or
    to end after it, its clock is shifted accordingly."""
    began, ended = report.began, report.began + report.seconds
    spans: dict[str, tuple[float, float]] = {}
    for token in report.tokens.values():
        first, last = spans.get(token.node, (token.start, token.end))
        spans[token.node] = min(first, token.start), max(last, token.end)
    return {node: began + min(first - began, 0.0) + max(last - ended, 0.0) for node, (first, last) in spans.items()}


def _labels(places: Sequence[tuple[int, int]], nodes: Sequence[str]) -> list[str]:
    if nodes == [""]:  # the local engine has threads, no nodes
        return [f"thread {i}" for i in range(len(places))]
    return [f"node {node}, process {pid}" if len(nodes) > 1 else f"process {pid}" for node, pid in places]


def _timeline(timeline: Timeline, places: Sequence[str]) -> dict[str, Any]:
    return {
        "start": [_rounded(x) for x in timeline.start],
        "end": [_rounded(x) for x in timeline.end],
        "worker": list(timeline.worker),
        "places": list(places),
        "memory": [[[_rounded(at), nbytes] for at, nbytes in line] for line in timeline.memory],
    }


def _rounded(seconds: float) -> float:
    """To a tenth of a microsecond."""
    return round(seconds, 7)


# -- Chrome's format ---------------------------------------------------------------------------------------------


def _events(plans: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One process per plan and one thread per worker, so that concurrent plans are shown next to each other."""
    first = min([plan["runs"]["began"] for plan in plans if plan["measured"]], default=0.0)
    made: list[dict[str, Any]] = []
    for pid, plan in enumerate(plans, 1):
        ran = plan["measured"] or plan["predicted"]
        offset = plan["runs"]["began"] - first if plan["measured"] else 0.0
        what = f"{plan['name']}: {'measured' if plan['measured'] else 'predicted'}"
        made.append({"ph": "M", "pid": pid, "tid": 0, "name": "process_name", "args": {"name": what}})
        used = sorted({*ran["worker"]})
        for tid in used:
            args = {"name": ran["places"][tid]}
            made.append({"ph": "M", "pid": pid, "tid": tid, "name": "thread_name", "args": args})
        made += _slices(plan, ran, pid, offset)
        made += _arrows(plan, ran, pid, offset, len(made))
        made += _counters(ran, pid, offset, used)
    return made


def _micros(seconds: float) -> float:
    return round(seconds * 1e6, 1)


def _slices(plan: dict[str, Any], ran: dict[str, Any], pid: int, offset: float) -> list[dict[str, Any]]:
    return [
        {
            "ph": "X",
            "pid": pid,
            "tid": ran["worker"][k],
            "name": task["ops"],
            "cat": "reduce" if task["kind"] == "reduce" else "task",
            "ts": _micros(offset + ran["start"][k]),
            "dur": _micros(ran["end"][k] - ran["start"][k]),
            "args": {"task": k, "plan": plan["name"], "steps": task["steps"], "line": task["line"]},
        }
        for k, task in enumerate(plan["tasks"])
    ]


def _arrows(plan: dict[str, Any], ran: dict[str, Any], pid: int, offset: float, first: int) -> list[dict[str, Any]]:
    """Arrows from the end of each task to the start of those that read its results or wait for it."""
    made: list[dict[str, Any]] = []
    for k, task in enumerate(plan["tasks"]):
        for cat, sources in (("bundle", task["reads"]), ("barrier", task["waits"])):
            for j in sources:
                common = {"pid": pid, "cat": cat, "name": cat, "id": first + len(made)}
                at = _micros(offset + max(ran["end"][j] - 1e-7, ran["start"][j]))
                made.append(common | {"ph": "s", "tid": ran["worker"][j], "ts": at})
                begin = _micros(offset + ran["start"][k])
                made.append(common | {"ph": "f", "bp": "e", "tid": ran["worker"][k], "ts": begin})
    return made


def _counters(ran: dict[str, Any], pid: int, offset: float, used: Sequence[int]) -> list[dict[str, Any]]:
    return [
        {
            "ph": "C",
            "pid": pid,
            "tid": w,
            "name": f"memory of {ran['places'][w]}",
            "ts": _micros(offset + at),
            "args": {"bytes": nbytes},
        }
        for w in used
        for at, nbytes in ran["memory"][w]
    ]
