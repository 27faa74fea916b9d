"""What to say when a run is given up: which tasks it was waiting for, on which nodes, with which ops and lines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from distgrad.scheduler.plan import Plan
from distgrad.scheduler.run_state import RunState

#: So many tasks are named.
NAMED = 8


def late_text(plan: Plan, state: RunState, tokens: Mapping[int, Any], timeout: float | None) -> str:
    waiting = state.waiting()
    running = {task for task, _ in waiting} & set(tokens)
    where = _nodes({k: tokens[k] for k in running})
    lines = [f"  {task_text(plan, k)}: {_state(what, where.get(k))}" for k, what in waiting[:NAMED]]
    if len(waiting) > NAMED:
        lines.append(f"  and {len(waiting) - NAMED} more tasks")
    return (
        f"the run was given up after its timeout of {timeout:g} s. It was waiting for:\n" + "\n".join(lines)
        + "\nVariables are as they were. Give it more time with Session(timeout=), or less to do."
    )  # fmt: skip


def _state(what: str, node: str | None) -> str:
    return what if node is None else f"{what}, {node}"


def task_text(plan: Plan, k: int) -> str:
    task, steps = plan.tasks[k], plan.program.steps
    first, last = steps[task.steps[0]], steps[task.steps[-1]]
    ops = f"{first.name!r} (at {first.source})"
    if last is not first:
        ops += f" to {last.name!r} (at {last.source})"
    return f"task {k} of {len(plan.tasks)}, {len(task.steps)} steps, {ops}"


def _nodes(tokens: Mapping[int, Any]) -> dict[int, str]:
    """Where tasks run, as far as Ray's own record of them tells: it needs the dashboard, and may know nothing."""
    try:
        from ray.util.state import list_tasks

        ids = {token.task_id().hex(): k for k, token in tokens.items()}
        rows = list_tasks(filters=[("job_id", "=", next(iter(tokens.values())).job_id().hex())], limit=1000, timeout=2)
    except Exception:
        return {}
    return {ids[row.task_id]: f"{row.state} on node {row.node_id}" for row in rows if row.task_id in ids}
