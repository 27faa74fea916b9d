"""Plans for a cluster: large sums in chunks, sparse gradients as trees of concatenations, and gates."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import distgrad as dg
from distgrad.scheduler.partition.partition import partition
from distgrad.scheduler.passes import chunks as module
from distgrad.scheduler.passes.chunks import chunks, joins, large_sums
from distgrad.scheduler.passes.fuse import fuse
from distgrad.scheduler.passes.sums import trees
from distgrad.scheduler.plan import Options, Plan
from distgrad.scheduler.program import Program, lower
from distgrad.workers import reference

from ..step_graphs import LONG, Steps, ray_cluster

RNG = np.random.default_rng(3)
#: 32 MB of float32.
LARGE = (1 << 13, 1 << 10)


@pytest.fixture
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything counts as large."""
    monkeypatch.setattr(module, "LARGE_CHUNKED", 1)
    monkeypatch.setattr(module, "LEAST_CHUNK", 8)


def summed(shape: Any, terms: int, follow: Any = lambda total, w: total) -> Program:
    """w, and a sum of so many feeds with what follows it, as a session lowers it."""
    with dg.Graph():
        w, *xs = [dg.placeholder(shape) for _ in range(terms + 1)]
        return fuse(trees(lower([follow(dg.add_n(xs), w)], [w, *xs]), 4))


def same_bits(first: Program, second: Program) -> None:
    feeds = [RNG.standard_normal(first.types[v].shape) for v in first.feeds]
    for a, b in zip(*[reference.run(p, feeds, {})[0] for p in (first, second)], strict=True):
        np.testing.assert_array_equal(a, b)


# -- chunks ------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("_small")
@pytest.mark.parametrize("shape", [(7,), (50, 100), (3, 1, 5)])
@pytest.mark.parametrize("terms", [2, 6, 17])
def test_chunks_keep_every_bit(shape: Any, terms: int) -> None:
    program = summed(shape, terms)
    cut = chunks(program, large_sums(program), 3)
    assert sum(step.type == "Concat" for step in cut.steps) == 1
    same_bits(program, cut)


@pytest.mark.usefixtures("_small")
def test_what_follows_element_by_element_goes_on_in_chunks() -> None:
    """The update of a parameter: one concatenation, at the end"""
    program = summed((60, 100), 6, lambda total, w: w - 0.1 * dg.tanh(total / 6.0))
    cut = chunks(program, large_sums(program), 3)
    assert [step.type for step in cut.steps][-1] == "Concat"
    assert sum(step.type == "Concat" for step in cut.steps) == 1
    same_bits(program, cut)


@pytest.mark.usefixtures("_small")
def test_what_needs_the_whole_gets_it() -> None:
    program = summed((60, 60), 3, lambda total, w: dg.tanh(total) @ w)
    cut = chunks(program, large_sums(program), 2)
    assert sum(step.type == "Concat" for step in cut.steps) == 1
    same_bits(program, cut)


@pytest.mark.usefixtures("_small")
def test_operands_without_those_rows_are_not_cut() -> None:
    with dg.Graph():
        xs = [dg.placeholder((60, 40)) for _ in range(3)]
        row, column = dg.placeholder((40,)), dg.placeholder((60, 1))
        program = fuse(lower([dg.add_n(xs) * row + column], [*xs, row, column]))
    cut = chunks(program, large_sums(program), 4)
    sliced = {step.inputs[0] for step in cut.steps if step.type == "StridedSlice"}
    assert sliced == {*program.feeds[:3], program.feeds[4]}
    same_bits(program, cut)


def test_small_sums_are_not_cut() -> None:
    assert large_sums(summed((1000, 1000), 8)) == []


def kinds(plan: Plan) -> list[tuple[list[str], list[int]]]:
    """Of each task the op types that compute, each once, and the tasks that it reads from."""
    giver = {v: k for k, task in enumerate(plan.tasks) for v in task.gives}
    found = []
    for task in plan.tasks:
        types = dict.fromkeys([plan.program.steps[i].type for i in task.steps])
        named = [kind for kind in types if kind not in ("Const", "StridedSlice")]
        found.append((named, sorted({giver[v] for v in task.reads if v in giver})))
    return found


def test_two_workers_add_half_of_a_large_tensor_each() -> None:
    """8 feeds of 32 MB, summed: each worker adds all terms of its rows, level by level, then the halves are joined"""
    s = Steps(LARGE)
    plan = partition(s.program(s.tree([s.given() for _ in range(8)])), ray_cluster(2))
    assert kinds(plan) == [(["AddN"], []), (["AddN"], []), (["Concat"], [0, 1])]
    assert [bundle.nbytes for bundle in plan.bundles[:2]] == [1 << 24, 1 << 24]


def test_towers_hand_each_worker_its_rows() -> None:
    """8 towers, each with a tensor of 32 MB, on 4 workers; each worker adds a quarter of the rows"""
    s = Steps(LARGE)
    plan = partition(s.program(s.tree([s.add("Tanh", s.add("Exp", s.given())) for _ in range(8)])), ray_cluster(4))
    assert [kind for kind, sources in kinds(plan) if sources == list(range(8))] == [["AddN"]] * 4
    assert {bundle.nbytes for bundle in plan.bundles if bundle.readers} == {1 << 23}


def test_a_large_sum_inside_one_task_is_not_cut() -> None:
    """x -> a, b, c -> a + b + c: nothing to run side by side"""
    s = Steps(LARGE)
    x = s.given()
    program = s.program(s.add("AddN", s.add("Tanh", x), s.add("Exp", x), s.add("Sin", x)))
    assert partition(program, ray_cluster(2)).program is program


# -- sparse gradients --------------------------------------------------------------------------------------------


def sparse(towers: int) -> tuple[Program, dg.IndexedSlices]:
    """Rows of one table in as many towers; the sparse gradient of all of them."""
    with dg.Graph():
        table, w = dg.placeholder((10**5, 1024), "float32"), dg.placeholder(LONG, "float32")
        rows = [dg.placeholder((512,), "int32") for _ in range(towers)]
        losses = [dg.sum(dg.tanh(dg.tanh(dg.gather(table, i) @ w) @ w)) for i in rows]
        (g,) = dg.gradients(losses, table)
        return fuse(lower([g.values, g.indices], [table, w, *rows])), g


def test_sparse_gradients_of_many_towers_stay_sparse_and_become_a_tree() -> None:
    program, g = sparse(8)
    assert isinstance(g, dg.IndexedSlices)
    assert [step.type for step in program.steps].count("UnsortedSegmentSum") == 0
    tree = [len(step.inputs) for step in joins(program, 4).steps if step.type == "Concat"]
    assert sorted(tree) == [2, 2, 4, 4, 4, 4]


def test_a_tree_of_joins_keeps_every_element() -> None:
    with dg.Graph():
        xs = [dg.placeholder((n, 3)) for n in range(1, 12)]
        program = lower([dg.concatenate(xs)], xs)
    same_bits(program, joins(program, 2))


def test_sparse_gradients_of_towers_are_put_together_behind_them() -> None:
    plan = partition(sparse(4)[0], ray_cluster(4))
    last = [sources for types, sources in kinds(plan) if "Concat" in types]
    assert [len(sources) >= 3 for sources in last] == [True] * len(last)
    assert plan.predictions.seconds < 0.6 * plan.predictions.work_seconds


# -- gates -------------------------------------------------------------------------------------------------------


def gated() -> Program:
    """Two products and what is between them, with gated gradients."""
    with dg.Graph():
        xs = [dg.placeholder(LONG, "float32") for _ in range(3)]
        y = dg.tanh(xs[0] @ xs[1]) @ xs[2]
        return fuse(lower(dg.gradients(dg.sum(y * y), xs, gate_gradients=True), xs))


def before(plan: Plan) -> list[set[int]]:
    """The tasks that have ended when each task begins: those it reads from or waits for, and those before them."""
    giver = {v: k for k, task in enumerate(plan.tasks) for v in task.gives}
    found: list[set[int]] = []
    for task in plan.tasks:
        direct = {giver[v] for v in task.reads if v in giver} | set(task.waits)
        found.append(direct.union(*[found[k] for k in direct]))
    return found


@pytest.mark.parametrize("granularity", [None, 1e-9, 1e-2])
def test_no_gated_gradient_is_used_before_all_of_its_op_are_there(granularity: float | None) -> None:
    plan = partition(gated(), ray_cluster(4), Options(granularity=granularity))
    steps, ended = plan.program.steps, before(plan)
    of = {i: k for k, task in enumerate(plan.tasks) for i in task.steps}
    gates = [i for i, step in enumerate(steps) if step.type == "NoOp" and len(step.after) > 1]
    assert len(gates) == 2
    for gate in gates:
        for i, step in enumerate(steps):
            for made in steps[gate].after if gate in step.after else ():
                assert of[made] in ended[of[i]] or (of[made] == of[i] and made < i)


def test_a_gate_is_a_token_where_its_gradients_are_in_other_tasks() -> None:
    plan = partition(gated(), ray_cluster(4), Options(granularity=1e-9))
    assert any(task.waits for task in plan.tasks)
