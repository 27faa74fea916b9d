"""A plan as HTML, for notebooks: its predicted cost and its longest tasks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from distgrad.html import block, line, table
from distgrad.printing import bytes_text, time_text
from distgrad.scheduler.cost.step_costs import costs_inside, needs_of
from distgrad.scheduler.devices import counted
from distgrad.scheduler.show.explain import ops_text, summed

if TYPE_CHECKING:
    from distgrad.scheduler.plan import Plan
    from distgrad.scheduler.program import Step

#: Maximum number of tasks shown, the longest first.
TOP = 15


def plan_html(plan: Plan) -> str:
    """Totals, predictions and the longest tasks, with the user's source lines."""
    cluster, steps = plan.cluster, len(plan.program.steps)
    title = f"Plan of {counted(len(plan.tasks), 'task')}, {counted(steps, 'step')}"
    where = f"on cluster {cluster.name!r}: {counted(len(cluster.workers), 'worker')}, {counted(cluster.cpus, 'cpu')}"
    return block(f"{title}, {where}", _predictions(plan), _tasks(plan), line("print(plan) shows more."))


def _predictions(plan: Plan) -> str:
    found = plan.predictions
    rows = [
        ["time", time_text(found.seconds)],
        ["work of all tasks", time_text(found.work_seconds)],
        ["critical path", time_text(found.critical_seconds)],
        ["moved", bytes_text(found.bytes_moved)],
        ["peak memory on one worker", bytes_text(found.peak_bytes)],
    ]
    if found.held_peak_bytes > found.peak_bytes:
        rows.append(["the same while others hold all variables", bytes_text(found.held_peak_bytes)])
    return table(["predicted", ""], rows, len(rows), "figures")


def _tasks(plan: Plan) -> str:
    needs = needs_of(plan.program, plan.cluster, plan.options, plan.executions)
    costs = costs_inside(plan.program, plan.cluster, needs)
    order = sorted(range(len(plan.tasks)), key=lambda k: (-plan.tasks[k].seconds, k))[:TOP]
    rows = [_task(plan, k, costs) for k in sorted(order)]
    head = ["task", "worker", "time", "memory", "steps", "ops", "mostly at"]
    return table(head, rows, len(plan.tasks), "tasks, none of them longer")


def _task(plan: Plan, k: int, costs: Sequence[Sequence[tuple[Step, float]]]) -> list[str]:
    task = plan.tasks[k]
    steps = [pair for i in task.steps for pair in costs[i]]
    ops = ops_text([(step.type, cost, 1) for step, cost in steps])
    where = summed([(str(step.source), cost) for step, cost in steps])[0][0]
    place = f"{task.worker}" if task.device is None else f"{task.worker} @{task.device}"
    return [f"{k}", place, time_text(task.seconds), bytes_text(task.memory), f"{len(task.steps)}", ops, where]
