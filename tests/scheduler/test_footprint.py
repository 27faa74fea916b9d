"""Predicted memory and blocks compared with what the NumPy engine really does."""

from __future__ import annotations

import math
import tracemalloc
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest

import distgrad as dg
from benchmarks.steps import in_distgrad, inputs
from distgrad.errors import UNKNOWN
from distgrad.registry import OPS, Kind, kind_of
from distgrad.result_buffers import RESULT_BUFFERS
from distgrad.scheduler.cost import cutting
from distgrad.scheduler.cost.footprint import STEP_BYTES, Footprint, footprint, is_placed, overwritable
from distgrad.scheduler.cost.memory import value_bytes
from distgrad.scheduler.execution import NATIVE, PLAIN
from distgrad.scheduler.plan import Plan
from distgrad.scheduler.program import FUSED, Step, lower
from distgrad.workers import native
from distgrad.workers.kernels import products
from distgrad.workers.kernels.scratch import several
from distgrad.workers.numpy_engine.into import INTO
from distgrad.workers.numpy_engine.tape import Tape
from distgrad.workers.thread_pool import thread_pool

from ..step_graphs import Steps

WORKLOADS = sorted(in_distgrad.LOSSES)
#: The bytes of one value of `Steps`.
ONE = 64 * 64 * 4


@cache
def plan_of(workload: str) -> Plan:
    params, data = inputs.make(workload)
    plan: Plan = in_distgrad.step(workload).plan(params, *data)
    return plan


def predicted(plan: Plan, cpus: int = 2) -> Footprint:
    program, (task,) = plan.program, plan.tasks
    steps = [program.steps[i] for i in task.steps]
    execution = NATIVE if plan.options.native else PLAIN
    return footprint(steps, program.types, value_bytes(program.types), task.gives, cpus, execution)


def tape_of(plan: Plan, cpus: int = 2) -> Tape:
    program, (task,) = plan.program, plan.tasks
    steps = [program.steps[i] for i in task.steps]
    return Tape(steps, program.types, task.reads, task.gives, thread_pool(cpus), plan.options.native)


# -- the workloads of the benchmark ------------------------------------------------------------------------------


@pytest.mark.parametrize("workload", WORKLOADS)
def test_the_arena_of_a_workload_is_predicted(workload: str) -> None:
    plan = plan_of(workload)
    assert predicted(plan).arena == pytest.approx(tape_of(plan).nbytes, rel=0.1, abs=1 << 16)


@pytest.mark.parametrize("workload", ["mlp", "elementwise", "conv"])
def test_what_a_run_allocates_beside_the_arena_is_predicted(workload: str) -> None:
    """In the second run the arena and what threads work in are there: the rest is what leaves and what kernels make."""
    plan = plan_of(workload)
    tape, types = tape_of(plan, cpus=1), plan.program.types
    given = [np.ones(*types[v]) for v in plan.tasks[0].reads]
    tape.run(given)
    RESULT_BUFFERS.clear()
    tracemalloc.start()
    try:
        tape.run(given)
        allocated = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert predicted(plan, cpus=1).arrays == pytest.approx(allocated, rel=0.15)


# -- the tables --------------------------------------------------------------------------------------------------


def test_the_figures_are_those_of_the_engine() -> None:
    assert cutting.PIECE_FLOPS == products.PIECE_FLOPS


def test_what_counts_as_placed_in_the_arena_is() -> None:
    """Rare ops of the same kinds, which their kernels allocate, count as placed too."""
    own = [name for name, op in OPS.items() if op.kernel is None and op.view is None]
    placed = {name for name in own if is_placed(name)}
    assert {name for name in own if name in INTO} <= placed
    others = {name for name in placed - INTO.keys() if not OPS[name].updates}
    assert {kind_of(name) for name in others} <= {Kind.ELEMENTWISE, Kind.LAYOUT, Kind.CONVOLUTION}


@pytest.mark.skipif(bool(native.unusable()), reason="native code")
@pytest.mark.parametrize("workload", WORKLOADS)
def test_what_counts_as_overwritten_is(workload: str) -> None:
    """Nothing that a group cannot overwrite is taken for free memory."""
    from distgrad.workers.native.blocks import native_blocks

    program = plan_of(workload).program
    for step in program.steps:
        run = native_blocks(step, program.types, thread_pool(1)) if step.body else None
        for v in step.outputs if run is not None else ():
            assert set(overwritable(step, v, program.types)) <= set(run.overwritable(v)), step.name


# -- convolutions ------------------------------------------------------------------------------------------------


def conv_steps(n: int, channels: int, made: int, size: int, stride: int) -> Iterator[tuple[Step, Any]]:
    with dg.Graph():
        x = dg.placeholder((n, 32, 32, channels), np.float32)
        w = dg.placeholder((size, size, channels, made), np.float32)
        y = dg.nn.conv2d(x, w, stride, padding="SAME")
        program = lower([y, *dg.gradients(y, [x, w])], [x, w])
    for step in program.steps:
        if step.type.startswith("Conv2D"):
            yield step, program.types


@pytest.mark.parametrize(
    ("n", "channels", "made", "size", "stride"),
    [(32, 32, 32, 3, 1), (32, 3, 32, 3, 1), (16, 32, 64, 3, 2), (8, 16, 16, 1, 1), (1, 4, 4, 3, 1), (2, 16, 8, 5, 1)],
)
@pytest.mark.skipif(bool(native.unusable()), reason="native code")
def test_convolutions_take_the_predicted_scratch_memory(
    n: int, channels: int, made: int, size: int, stride: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from distgrad.workers.native.kernels import conv
    from distgrad.workers.native.kernels.steps import native_step

    taken: dict[str, int] = {}

    def noted(wanted: Any, slot: str) -> Any:
        taken[slot] = max(taken.get(slot, 0), sum([math.prod(shape) * dtype.itemsize for shape, dtype in wanted]))
        return several(wanted, slot)

    monkeypatch.setattr(conv, "several", noted)
    for step, types in conv_steps(n, channels, made, size, stride):
        run = native_step(step, types, thread_pool(1))
        assert run is not None
        taken.clear()
        run(*[np.ones(*types[v]) for v in (*step.inputs, *step.outputs)])
        found = footprint([step], types, value_bytes(types), step.outputs, 1)
        assert found.scratch == pytest.approx(sum(taken.values()), rel=0.01), step.type


# -- small programs ----------------------------------------------------------------------------------------------


def of(steps: Steps, *gives: int, cpus: int = 1) -> Footprint:
    return footprint(steps.steps, steps.types, value_bytes(steps.types), gives, cpus)


def test_what_leaves_is_not_in_the_arena() -> None:
    """x -> a -> y (given out)"""
    s = Steps()
    y = s.work(s.work(s.given()))
    assert of(s, y)[:2] == (ONE, ONE)


def test_an_arena_is_as_large_as_what_lives_at_once() -> None:
    """x -> a -> b -> c -> d -> y (given out): two of a to d at a time"""
    s = Steps()
    v = s.given()
    for _ in range(5):
        v = s.work(v)
    assert of(s, v).arena == 2 * ONE


def test_what_kernels_make_themselves_is_gone_after_its_last_use() -> None:
    """x -> sorted -> sorted -> y (given out): two of them at a time"""
    s = Steps()
    v = s.given()
    for _ in range(3):
        v = s.add("Sort", v, attrs={"axis": -1})
    assert of(s, v)[:2] == (0, 2 * ONE)


def test_every_step_is_compiled() -> None:
    s = Steps()
    y = s.work(s.work(s.given()))
    assert of(s, y).code == 2 * STEP_BYTES


def test_blocks_make_parts_of_sums_over_rows() -> None:
    """x -> [product with itself -> sum of columns]: a row for each block"""
    s = Steps((1 << 10, 1 << 10))
    x, a = s.given(), s.value()
    y = s.value((1 << 10,))
    attrs = {"axis": (0,), "keepdims": False}
    body = (Step("Mul", (x, x), (a,), {}, (), UNKNOWN, "Mul"), Step("Sum", (a,), (y,), attrs, (), UNKNOWN, "Sum"))
    s.steps.append(Step(FUSED, (x,), (y,), {"space": s.shape, "split": 1}, (), UNKNOWN, "fused", None, body))
    blocks = cutting.cut_group(s.steps[0]).blocks
    assert blocks > 1
    assert of(s, y).scratch == of(s, y, cpus=2).scratch == blocks * (4 << 10)
