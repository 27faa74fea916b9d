"""Where tasks run on a cluster of three nodes with labels, by the tokens that they return."""

from __future__ import annotations

from typing import Any

import numpy as np

import distgrad as dg
from distgrad.scheduler.outlined_calls import all_steps

X = np.random.default_rng(0).normal(size=(8, 8))


def slope_on(device: str | None) -> Any:
    @dg.function
    def slope(x: Any) -> Any:
        with dg.device(device):
            y = dg.sum(dg.tanh(x @ x))
        return dg.gradients(y, x)[0]

    return slope


def nodes_of(session: dg.Session, device: str) -> set[str]:
    """The nodes that tasks of this device ran on, the gradient's too; the bits are those of this process."""
    slope = slope_on(device)
    with dg.Session(threads=1):
        expected = slope_on(None)(X)
    np.testing.assert_array_equal(session.submit(slope, X).numpy(), expected)
    plan, report = session.plan_call(slope.body(X)), session.last_run
    assert report is not None
    placed = [k for k, task in enumerate(plan.tasks) if task.device == device]
    types = {each.type for k in placed for i in plan.tasks[k].steps for each in all_steps([plan.program.steps[i]])}
    assert types >= {"MatMul", "Tanh"}, types
    assert [step.type for step in plan.program.steps if step.device == device].count("MatMul") == 3  # two are gradients
    return {report.tokens[k].node for k in placed}


def check(address: str) -> None:
    with dg.Session("ray", address=address, timeout=120) as session:
        link = session._planner.link
        assert link is not None
        by_zone = {node.labels["zone"]: node.id for node in link.nodes}
        assert sorted(by_zone) == ["a", "b", "c"]
        for zone, node in by_zone.items():
            assert nodes_of(session, f"zone={zone}") == {node}, zone
        workers = [node.id for node in link.nodes for _ in range(node.cpus)]
        for i, node in enumerate(workers):
            assert nodes_of(session, f"worker:{i}") == {node}, i
