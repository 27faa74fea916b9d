"""Finds hung tasks: since when and where Ray runs them, and the text of a timeout, with the tasks that were waited for.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple

import ray

from distgrad.scheduler.plan import Plan
from distgrad.scheduler.run_state import RunState
from distgrad.workers.on_ray.connect.waits import start

#: Maximum number of tasks that an error names.
MAX_NAMED_TASKS = 8
#: Seconds to wait for Ray to say where tasks run.
ANSWER_TIMEOUT = 2.0
#: Ray's numbers for the task states "submitted to a worker" and "running". The worker itself reports the second, so a
#: stopped one never does.
_GIVEN, _RUNNING = 5, 8


class Place(NamedTuple):
    """Where a task runs, and for how many seconds; 0 while no worker is free for it."""

    node: str
    pid: int
    seconds: float

    def __str__(self) -> str:
        if not self.node:
            return "on no node yet"
        return f"on node {self.node}, {f'process {self.pid}' if self.pid else 'not yet begun by its process'}"


def timeout_text(plan: Plan, state: RunState, tokens: Mapping[int, Any], timeout: float | None) -> str:
    waiting = state.waiting()
    running = {task for task, _ in waiting} & set(tokens)
    where = places({k: tokens[k] for k in running}) or {}
    lines = [] if waiting else ["  the results, which were being copied to this process"]
    lines += [f"  {task_text(plan, k)}: {_state(what, where.get(k))}" for k, what in waiting[:MAX_NAMED_TASKS]]
    if len(waiting) > MAX_NAMED_TASKS:
        lines.append(f"  and {len(waiting) - MAX_NAMED_TASKS} more tasks")
    return (
        f"the run was stopped after its timeout of {timeout:g} s. It was waiting for:\n" + "\n".join(lines)
        + "\nVariables are unchanged. Increase Session(timeout=), or do less in one call."
    )  # fmt: skip


def _state(what: str, place: Place | None) -> str:
    return what if place is None else f"{what}, {place}"


def task_text(plan: Plan, k: int) -> str:
    task, steps = plan.tasks[k], plan.program.steps
    first, last = steps[task.steps[0]], steps[task.steps[-1]]
    ops = f"{first.name!r} (at {first.source})"
    if last is not first:
        ops += f" to {last.name!r} (at {last.source})"
    return f"task {k} of {len(plan.tasks)}, {len(task.steps)} steps, {ops}"


def places(tokens: Mapping[int, Any]) -> dict[int, Place] | None:
    """Where tasks run, according to Ray's task events, which may be a second old. None if Ray does not answer in time,
    for example because its head is paused: the call itself accepts no timeout."""
    asked = start(partial(_places, tokens))
    found: dict[int, Place] | None = asked.outcome() if asked.wait(ANSWER_TIMEOUT) else None
    return found


def dead_nodes() -> set[str]:
    """The ids of nodes that Ray's head has declared dead; none if it does not answer in time."""
    asked = start(_dead_nodes)
    found: set[str] = asked.outcome() if asked.wait(ANSWER_TIMEOUT) else set()
    return found


def _dead_nodes() -> set[str]:
    return {node["NodeID"] for node in ray.nodes() if not node["Alive"]}  # type: ignore[no-untyped-call]


def _places(tokens: Mapping[int, Any]) -> dict[int, Place]:
    ids = {token.task_id().binary(): k for k, token in tokens.items()}
    try:
        known = {ids[e.task_id]: e.state_updates for e in _events(ids) if e.task_id in ids}
    except Exception:  # no public interface
        return {}
    return {k: Place(at.node_id.hex(), at.worker_pid, _seconds(at.state_ts_ns)) for k, at in known.items()}


def _events(tasks: Iterable[bytes]) -> list[Any]:
    """Ray's events of these tasks. The GCS keeps those of up to 100,000 tasks, and to read all takes seconds. Uses its
    own interface: the public one needs the dashboard, which may not be running."""
    from ray._private.grpc_utils import init_grpc_channel

    messages, service = [import_module(f"ray.core.generated.gcs_service_pb2{part}") for part in ("", "_grpc")]
    channel = init_grpc_channel(ray.get_runtime_context().gcs_address)
    try:
        stub, found = service.TaskInfoGcsServiceStub(channel), []
        for task in tasks:
            request = messages.GetTaskEventsRequest()
            request.filters.task_filters.add(task_id=task, predicate=messages.FilterPredicate.EQUAL)
            found += stub.GetTaskEvents(request, timeout=ANSWER_TIMEOUT).events_by_task
        return found
    finally:
        channel.close()


def _seconds(states: Mapping[int, int]) -> float:
    began = states.get(_RUNNING) or states.get(_GIVEN)
    return time.time() - began / 1e9 if began else 0.0
