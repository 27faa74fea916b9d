"""gate_gradients on Ray: no task reads a gradient of an op before all gradients of that op exist."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

import distgrad as dg

pytestmark = pytest.mark.ray


@dg.op("RayTestPair", infer=lambda x, y: (x.shape, x.dtype))
def pair(x: Any, y: Any) -> Any:
    return x * y


@dg.op("RayTestSlow", infer=lambda x: (x.shape, x.dtype))
def slow(x: Any) -> Any:
    time.sleep(0.4)
    return x + 1


@dg.op("RayTestQuick", infer=lambda x: (x.shape, x.dtype))
def quick(x: Any) -> Any:
    return x + 2


@dg.RegisterGradient("RayTestPair")
def _pair_grad(op: Any, g: Any) -> Any:
    return slow(g), quick(g)


def gated(gate: bool) -> tuple[list[dg.Tensor], dict[dg.Tensor, Any]]:
    """
    x ────────┐                                 ┌ slow ── gate ── dx
              ├ pair ── sum   gradients:    g ──┤          │
    z ── exp ─┘                                 └ quick ─ gate ── mul ── dz
    """
    with dg.Graph():
        x, z = dg.placeholder((4,)), dg.placeholder((4,))
        loss = dg.sum(pair(x, dg.exp(z)))
        return dg.gradients(loss, [x, z], gate_gradients=gate), {x: np.ones(4), z: np.zeros(4)}


def run(session: dg.Session, gate: bool) -> tuple[dg.Plan, dict[int, Any]]:
    found, feeds = gated(gate)
    for _ in range(2):  # in the first run processes start, and bodies are compiled
        session.run(found, feeds)
    assert session.last_run is not None
    return session.plan(found, feeds), session.last_run.tokens


def task_of(plan: dg.Plan, op_type: str) -> int:
    types = [{plan.program.steps[i].type for i in task.steps} for task in plan.tasks]
    return next(k for k, found in enumerate(types) if op_type in found)


def test_a_gated_plan_waits_for_tokens_and_ray_keeps_the_order(fine: dg.Session) -> None:
    plan, tokens = run(fine, gate=True)
    waits = [(k, j) for k, task in enumerate(plan.tasks) for j in task.waits]
    assert waits
    for k, j in waits:
        assert tokens[k].start >= tokens[j].end
    assert tokens[task_of(plan, "Mul")].start >= tokens[task_of(plan, "RayTestSlow")].end


def test_without_a_gate_the_quick_gradient_is_read_before_the_slow_one_is_there(fine: dg.Session) -> None:
    """Shows that the order above is the gate's doing."""
    plan, tokens = run(fine, gate=False)
    assert not any(task.waits for task in plan.tasks)
    assert tokens[task_of(plan, "Mul")].start < tokens[task_of(plan, "RayTestSlow")].end
