"""Predictions for backends that run steps one by one on whole arrays, as torch does, instead of in NumPy's blocks."""

from __future__ import annotations

from dataclasses import replace

import pytest

import distgrad as dg
from distgrad.scheduler.cluster import Machine, local_cluster
from distgrad.scheduler.cost.footprint import footprint
from distgrad.scheduler.cost.memory import value_bytes
from distgrad.scheduler.cost.rates import CostModel
from distgrad.scheduler.cost.step_costs import needs_of, prices
from distgrad.scheduler.execution import EAGER, NATIVE, Executions
from distgrad.scheduler.partition.partition import partition
from distgrad.scheduler.plan import Options
from distgrad.scheduler.program import Program, lower

from ..engines import fused

SIZE = 1 << 20
BYTES = 4 * SIZE
TORCH = Executions(EAGER, EAGER)


def chain() -> Program:
    """exp(x) * x + 1, one group of three steps, cut into blocks by NumPy's engine."""
    with dg.Graph():
        x = dg.placeholder((SIZE,), "float32")
        return fused([dg.exp(x) * x + x], [x])


def test_a_group_is_one_call_and_one_sweep_through_memory_per_step() -> None:
    program = chain()
    (group,) = program.steps
    blocked, eager = (CostModel(Machine(), 2, each).work(group, program.types) for each in (NATIVE, EAGER))
    assert (blocked.nbytes, eager.nbytes) == (2 * BYTES, (2 + 3 + 3) * BYTES)
    assert blocked.calls > eager.calls == 3
    assert (blocked.elementwise, blocked.transcendental) == (eager.elementwise, eager.transcendental)


def test_a_kernel_of_the_library_is_one_call() -> None:
    with dg.Graph():
        x = dg.placeholder((64, 64), "float32")
        program = lower([dg.nn.softmax(x)], [x])
    models = [CostModel(Machine(), 1, each) for each in (NATIVE, EAGER)]
    blocked, eager = (model.work(program.steps[0], program.types).calls for model in models)
    assert blocked > eager == 1


def test_the_library_shares_every_step_among_threads() -> None:
    with dg.Graph():
        x = dg.placeholder((SIZE,), "float32")
        program = lower([dg.exp(x)], [x])
    work = CostModel(Machine()).work(program.steps[0], program.types)
    one, two = (CostModel(Machine(), n, EAGER).terms(work) for n in (1, 2))
    assert two.elements == one.elements / 2
    assert two.calls == one.calls  # no blocks are handed out


def test_memory_is_that_of_live_values_without_an_arena() -> None:
    program = chain()
    found = footprint(program.steps, program.types, value_bytes(program.types), program.fetches, 2, EAGER)
    assert (found.arena, found.scratch) == (0, 0)
    assert found.arrays == BYTES  # exp(x), then the product and the sum in its place
    one_loop = footprint(program.steps, program.types, value_bytes(program.types), program.fetches, 2)
    assert (one_loop.arena, one_loop.arrays) == (0, BYTES)


def test_intermediate_values_are_not_in_fresh_memory() -> None:
    """cumsum is not placed in NumPy's arena: each result is fresh memory there, but freed memory of an allocator."""
    cluster = local_cluster(1, 1 << 30, Machine(fresh_bandwidth=1.0))
    with dg.Graph():
        x = dg.placeholder((100,), "float32")
        program = lower([dg.sum(dg.cumsum(x))], [x])
    needs = [needs_of(program, cluster, Options(), each) for each in (Executions(), TORCH)]
    blocked, eager = (prices(program, cluster, each) for each in needs)
    assert blocked[0].seconds > 100 > eager[0].seconds


def test_gpu_tasks_run_step_by_step_and_no_faster_with_more_cpus() -> None:
    cluster = replace(local_cluster(4, 1 << 40, gpus=1), gpu=Machine())
    with dg.Graph(), dg.device("gpu"):
        x = dg.placeholder((SIZE,), "float32")
        program = fused([dg.exp(x) * x + x], [x])
    found = [partition(program, cluster, Options(cpus_per_task=n)).predictions.work_seconds for n in (1, 4)]
    assert found[0] == pytest.approx(found[1])


def test_a_plan_keeps_how_it_runs_and_numpys_digest_does_not_depend_on_it() -> None:
    cluster = local_cluster(2, 1 << 30)
    ours, other = partition(chain(), cluster), partition(chain(), cluster, None, TORCH)
    assert (ours.executions, other.executions) == (Executions(), TORCH)
    assert ours.digest == partition(chain(), cluster, None, Executions()).digest != other.digest
