"""Partitioning: what becomes a task, and that every partition is complete, acyclic and gives the same bits."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import distgrad as dg
from distgrad.errors import BudgetError
from distgrad.scheduler.cluster import Cluster, Machine, Worker, local_cluster
from distgrad.scheduler.partition.contract import contract, whole
from distgrad.scheduler.partition.nodes import Nodes
from distgrad.scheduler.partition.partition import partition
from distgrad.scheduler.partition.reduce import Way
from distgrad.scheduler.passes.equal import merge_equal
from distgrad.scheduler.plan import Options, Plan, check_plan
from distgrad.scheduler.program import Program, lower
from distgrad.workers import reference

from ..random_graphs import random_graph, seeded, with_gradients
from ..step_graphs import LONG, SHORT, Steps, chain, random_steps, ray_cluster, towers

HERE = local_cluster(2, 1 << 40)


def shape(plan: Plan) -> list[tuple[list[str], list[int]]]:
    """Of each task the op types, each once, and the tasks that it reads from."""
    giver = {v: k for k, task in enumerate(plan.tasks) for v in task.gives}
    found = []
    for task in plan.tasks:
        types = list(dict.fromkeys([plan.program.steps[i].type for i in task.steps]))
        found.append((types, sorted({giver[v] for v in task.reads if v in giver})))
    return found


def task_of(plan: Plan, step: int) -> int:
    (found,) = [k for k, task in enumerate(plan.tasks) if step in task.steps]
    return found


# -- one task ----------------------------------------------------------------------------------------------------


def test_in_one_process_with_all_cpus_a_program_is_one_task() -> None:
    assert len(partition(towers(8, 2), HERE).tasks) == 1


def test_a_chain_is_one_task_on_any_cluster() -> None:
    """x -> work -> ... -> y: nothing to run side by side"""
    assert len(partition(chain(50, LONG), ray_cluster(8)).tasks) == 1


def test_what_does_not_pay_for_a_second_task_is_one_task() -> None:
    """8 towers of 20 µs each on 8 Ray workers"""
    assert len(partition(towers(8, 1, SHORT), ray_cluster(8)).tasks) == 1


def test_a_program_without_steps_is_a_plan_without_tasks() -> None:
    s = Steps()
    assert partition(s.program(s.given()), HERE).tasks == ()


def test_a_constant_that_is_fetched_is_a_task() -> None:
    with dg.Graph():
        program = lower([dg.constant(1.0)])
    (task,) = partition(program, HERE).tasks
    assert (task.steps, task.gives) == ((0,), program.fetches)


# -- towers and reduce trees -------------------------------------------------------------------------------------


def test_independent_towers_are_parallel_tasks_and_their_sum_is_a_task_of_its_own() -> None:
    """x_i -> work -> work (4 times), AddN over all four"""
    plan = partition(towers(4, 2), ray_cluster(4))
    assert shape(plan) == [*[(["MatMul"], [])] * 4, (["AddN"], [0, 1, 2, 3])]
    assert sorted(task.worker for task in plan.tasks[:4]) == [0, 1, 2, 3]


def test_a_reduce_tree_over_towers_is_a_tree_of_tasks() -> None:
    """16 towers, 4 AddN over four of them each, 1 AddN over those"""
    plan = partition(towers(16, 2), ray_cluster(16))
    sums = [sources for types, sources in shape(plan) if types == ["AddN"]]
    assert sums == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15], [16, 17, 18, 19]]


def tower_results(sums: int, shape: Any = LONG) -> Program:
    """4 towers with as many results each; AddN over the first results, AddN over the second ones, ..."""
    s = Steps(LONG)
    towers = [s.work(s.work(s.given())) for _ in range(4)]
    ends = [[s.add("Tanh", v, shape=shape) for _ in range(sums)] for v in towers]
    return s.program(*[s.add("AddN", *terms, shape=shape) for terms in zip(*ends, strict=True)])


def test_small_sums_over_the_same_towers_share_a_task() -> None:
    plan = partition(tower_results(8, SHORT), ray_cluster(4))
    assert [sources for types, sources in shape(plan) if types == ["AddN"]] == [[0, 1, 2, 3]]


def test_large_sums_over_the_same_towers_run_side_by_side() -> None:
    """8 sums of 4 MB on 2 workers: 2 tasks with half of the bytes each, and from each tower one bundle for each"""
    plan = partition(tower_results(8), ray_cluster(2))
    assert [sources for types, sources in shape(plan) if types == ["AddN"]] == [[0, 1, 2, 3]] * 2
    assert [bundle.nbytes for bundle in plan.bundles] == [4 << 22] * 10
    assert {task.worker for task in plan.tasks[4:]} == {0, 1}


def test_a_tree_over_few_towers_is_added_level_by_level_in_one_task() -> None:
    """8 towers on 8 workers of one node, 2 AddN over four of them, 1 AddN over those: nothing is written between"""
    plan = partition(towers(8, 2), ray_cluster(8))
    assert [sources for types, sources in shape(plan) if types == ["AddN"]] == [[0, 1, 2, 3, 4, 5, 6, 7]]


def test_towers_that_run_one_after_another_hand_on_their_sum() -> None:
    """16 towers on 4 workers: each worker has four of them and the AddN over these"""
    plan = partition(towers(16, 2), ray_cluster(4))
    assert shape(plan) == [*[(["MatMul", "AddN"], [])] * 4, (["AddN"], [0, 1, 2, 3])]


def test_an_update_behind_a_sum_is_in_its_task() -> None:
    """4 towers, AddN over them, w - rate * sum"""
    s = Steps(LONG)
    g = s.tree([s.work(s.work(s.given())) for _ in range(4)])
    w = s.add("Sub", s.given(), s.add("Mul", g, s.given(())))
    plan = partition(s.program(w), ray_cluster(4))
    assert shape(plan)[4:] == [(["AddN", "Mul", "Sub"], [0, 1, 2, 3])]


def test_the_sum_inside_one_tower_stays_in_it() -> None:
    """x_i -> a -> b, c; a + b + c (4 times), AddN over all four"""
    s = Steps(LONG)
    ends = []
    for _ in range(4):
        a = s.work(s.given())
        ends.append(s.add("AddN", a, s.work(a), s.work(a)))
    plan = partition(s.program(s.tree(ends)), ray_cluster(4))
    assert len(plan.tasks) == 5


def test_forward_and_backward_of_a_tower_are_one_task() -> None:
    """x_i -> a -> b -> c, then c, b -> d; d, a -> e (4 times), AddN over all e"""
    s = Steps(LONG)
    ends = []
    for _ in range(4):
        a = s.work(s.given())
        b = s.work(a)
        ends.append(s.work(s.work(s.work(b), b), a))
    plan = partition(s.program(s.tree(ends)), ray_cluster(4))
    assert [len(task.steps) for task in plan.tasks] == [5, 5, 5, 5, 1]


def test_small_towers_share_tasks_that_pay() -> None:
    """64 towers of 6 ms on 4 Ray workers: a task has as many of them as make 20 ms, or more"""
    program = towers(64, 10, (256, 256))
    plan = partition(program, ray_cluster(4))
    works = [task for task in plan.tasks if program.steps[task.steps[0]].type == "MatMul"]
    assert 4 <= len(works) <= 16
    assert min(task.seconds for task in works) > 0.02
    assert plan.predictions.seconds < 0.5 * plan.predictions.work_seconds


def test_what_all_towers_read_is_a_task_before_them() -> None:
    """x -> p -> p; p -> tower_i (4 times), AddN over all four"""
    s = Steps(LONG)
    p = s.work(s.work(s.given()))
    ends = [s.work(s.work(p, s.given())) for _ in range(4)]
    plan = partition(s.program(s.tree(ends)), ray_cluster(4))
    assert shape(plan) == [(["MatMul"], []), *[(["MatMul"], [0])] * 4, (["AddN"], [1, 2, 3, 4])]


def test_a_constant_that_all_towers_read_does_not_tie_them() -> None:
    """c -> tower_i (4 times), AddN over all four: each tower has the constant for itself"""
    s = Steps(LONG)
    c = s.add("Const", attrs={"value": np.zeros(LONG, np.float32)})
    turned = s.add("Transpose", s.given(), attrs={"axes": (1, 0)})
    ends = [s.work(s.work(s.work(s.given(), c), turned)) for _ in range(4)]
    plan = partition(s.program(s.tree(ends)), ray_cluster(4))
    assert [sources for _, sources in shape(plan)] == [[], [], [], [], [0, 1, 2, 3]]
    assert [set(task.steps) >= {0, 1} for task in plan.tasks] == [True] * 4 + [False]


def test_gradients_of_shards_become_towers() -> None:
    """4 shards of a two-layer net, each with its gradients; the gradients are added, the weights updated"""
    with dg.Graph():
        shards = [dg.placeholder((2048, 512), "float32") for _ in range(4)]
        weights = [dg.placeholder((512, 512), "float32") for _ in range(2)]
        losses = [dg.sum(dg.tanh(dg.tanh(x @ weights[0]) @ weights[1])) for x in shards]
        grads = [dg.gradients(loss, weights) for loss in losses]
        updated = [w - 0.1 * dg.add_n([g[i] for g in grads]) for i, w in enumerate(weights)]
        program = merge_equal(lower(updated, [*shards, *weights]))
    plan = partition(program, ray_cluster(4))
    assert [sources for _, sources in shape(plan)] == [[], [], [], [], [0, 1, 2, 3]]
    assert shape(plan)[4][0][0] == "AddN"


def recurrence(w: Any, x: Any) -> Any:
    """Over the columns of a sequence, from zeros."""
    h = np.zeros((x.shape[0], 64))
    for t in range(x.shape[1]):
        h = np.tanh(x[:, t] @ w["x"] + h @ w["h"])
    return np.mean(h**2)


def symmetric(w: Any, x: Any) -> Any:
    """With weights that are made of others, once for all shards."""
    h = x[:, 0] @ w["x"]
    for _ in range(20):
        h = np.tanh(h @ (w["h"] + w["h"].T))
    return np.mean(h**2)


@pytest.mark.parametrize("loss", [recurrence, symmetric])
def test_shards_that_share_a_small_step_run_side_by_side(loss: Any) -> None:
    weights, x = {"x": np.ones((8, 64)), "h": np.eye(64)}, np.zeros((16_000, 20, 8))
    with dg.Session(cluster=ray_cluster(8)):
        plan = dg.data_parallel(dg.value_and_grad(loss), shards=8).plan(weights, x)
    assert plan.predictions.seconds < 0.25 * plan.predictions.work_seconds


def test_towers_that_meet_in_the_middle_are_cut_there() -> None:
    """x_i -> a_i -> b_i; all b_i -> join; join, b_i -> c_i; c_i, a_i -> d_i; AddN over all d_i"""
    s = Steps(LONG)
    ways = [(a := s.work(s.given()), s.work(a)) for _ in range(4)]
    join = s.add("AddN", *[b for _, b in ways], shape=SHORT)
    plan = partition(s.program(s.tree([s.work(s.work(b, join), a) for a, b in ways])), ray_cluster(4))
    meet = [[], [], [], [], [0, 1, 2, 3]]
    assert [sources for _, sources in shape(plan)] == [*meet, [0, 4], [1, 4], [2, 4], [3, 4], [5, 6, 7, 8]]


def test_branches_of_one_tower_run_side_by_side_where_that_pays() -> None:
    """x -> a -> b -> c -> d; from each of them one long branch"""
    s = Steps((2048, 2048))
    ways = [s.given()]
    for _ in range(4):
        ways.append(s.work(ways[-1]))
    predicted = partition(s.program(*[s.work(v) for v in ways]), ray_cluster(4)).predictions
    assert predicted.seconds < 0.8 * predicted.work_seconds


# -- barriers, devices, options ----------------------------------------------------------------------------------


def test_a_barrier_between_tasks_is_a_wait_and_moves_no_data() -> None:
    """x -> a, z -> b after a: two towers, of which the second waits for the first"""
    s = Steps(LONG)
    a = s.work(s.given(), device="worker:0")
    b = s.work(s.given(), after=[0], device="worker:1")
    plan = partition(s.program(a, b), ray_cluster(2))
    assert [task.waits for task in plan.tasks] == [(), (0,)]
    assert [bundle.readers for bundle in plan.bundles] == [(), ()]


def test_a_barrier_that_data_implies_is_no_wait() -> None:
    """x -> a -> b after a, on two devices"""
    s = Steps()
    a = s.work(s.given(), device="worker:0")
    b = s.work(a, after=[0], device="worker:1")
    plan = partition(s.program(b), ray_cluster(2))
    assert [(task.waits, task.device) for task in plan.tasks] == [((), "worker:0"), ((), "worker:1")]


def test_devices_are_not_mixed_even_in_one_process() -> None:
    """x -> a (cpu) -> b (gpu) -> c (cpu); x -> d (cpu)"""
    s = Steps()
    x = s.given()
    b = s.work(s.work(x), device="gpu")
    plan = partition(s.program(s.work(b), s.work(x)), local_cluster(2, 1 << 40, gpus=1))
    assert [(task.device, len(task.steps)) for task in plan.tasks] == [(None, 2), ("gpu", 1), (None, 1)]


def test_steps_on_a_gpu_ask_for_one() -> None:
    """x -> a (cpu) -> b (gpu), on a worker without and one with a GPU"""
    s = Steps(LONG)
    plan_of = s.program(s.work(s.work(s.given()), device="gpu:0"))
    machine = Machine(task_seconds=2e-3)
    mixed = Cluster((Worker(1), Worker(1, gpus=1)), machine, "mixed", "ray", gpu=Machine(gemm_flops=1e12))
    tasks = partition(plan_of, mixed).tasks
    assert [(task.gpus, task.worker) for task in tasks][1] == (1, 1)
    assert tasks[0].seconds > 5 * tasks[1].seconds


def test_a_step_goes_to_a_worker_with_the_label_it_asks_for() -> None:
    s = Steps(LONG)
    workers = (Worker(1), Worker(1, labels={"size": "big"}))
    cluster = Cluster(workers, Machine(), "labelled", "ray")
    (task,) = partition(s.program(s.work(s.given(), device="size=big")), cluster).tasks
    assert task.worker == 1


def test_granularity_is_the_seconds_of_a_task() -> None:
    """A chain of 100 works of 35 ms: 10 tasks of ten"""
    program = chain(100, LONG)
    work = partition(program, ray_cluster(1)).predictions.work_seconds
    plan = partition(program, ray_cluster(1), Options(granularity=work / 10))
    assert 8 <= len(plan.tasks) <= 12


def test_the_finest_granularity_is_a_task_per_step() -> None:
    program = towers(3, 3)
    assert len(partition(program, HERE, Options(granularity=1e-9)).tasks) == len(program.steps)


def test_tasks_have_the_cpus_of_the_smallest_worker_or_what_is_asked() -> None:
    cluster = Cluster((Worker(4), Worker(2)), Machine(), "uneven", "ray")
    assert {task.cpus for task in partition(towers(4, 2), cluster).tasks} == {2}
    assert {task.cpus for task in partition(towers(4, 2), cluster, Options(cpus_per_task=1)).tasks} == {1}


def test_tasks_with_fewer_cpus_than_the_process_run_side_by_side() -> None:
    plan = partition(towers(4, 2), local_cluster(4, 1 << 40), Options(cpus_per_task=1))
    assert len(plan.tasks) == 5
    assert plan.predictions.seconds < 0.4 * plan.predictions.work_seconds


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (Options(granularity=0.0), "granularity is 0.0, but must be a number of seconds above 0, or None"),
        (Options(cpus_per_task=3), "cpus_per_task is 3, but the largest worker of cluster 'local' has 2 cpus"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: Options, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        partition(chain(2), HERE, options)


def test_a_task_that_does_not_fit_a_worker_is_cut() -> None:
    """A chain whose early values are all read at the end of it: cut, no task needs all of them at once"""
    s = Steps()
    kept, v = [], s.given()
    for _ in range(64):
        v = s.work(v)
        kept.append(v)
    ends = [s.tree([s.work(a) for a in kept[i : i + 8]]) for i in range(0, 64, 8)]
    program = s.program(s.tree(ends))
    whole = partition(program, ray_cluster(1))
    assert len(whole.tasks) == 1
    least = whole.tasks[0].memory * 9 // 10
    assert all(task.memory <= least for task in partition(program, ray_cluster(1, memory=least)).tasks)
    with pytest.raises(BudgetError):
        partition(program, ray_cluster(1, memory=1000))


# -- every partition ---------------------------------------------------------------------------------------------

GRAINS = (None, 1e-9, 3e-5, 2e-4)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(data=st.data())
def test_random_programs_are_cut_completely_and_without_cycles(data: Any) -> None:
    def choose(options: Any) -> Any:
        return data.draw(st.sampled_from(options))

    program = random_steps(choose(range(1, 20)), choose, devices=choose([(None,), (None, "worker:0")]))
    cluster = choose([ray_cluster(3, nodes=2), local_cluster(2, 1 << 40)])
    plan = partition(program, cluster, Options(granularity=choose(GRAINS), cpus_per_task=1))
    assert check_plan(plan) is plan


@pytest.mark.parametrize("seed", range(20))
def test_larger_random_programs_are_cut_completely_and_without_cycles(seed: int) -> None:
    choose = seeded(seed)
    program = random_steps(600, choose, span=choose((3, 30, 300)))
    for grain in GRAINS:
        check_plan(partition(program, ray_cluster(4), Options(granularity=grain)))


def random_nodes(choose: Any) -> Nodes:
    """Up to 60 nodes of random weights, edges, devices and kinds."""
    before: list[tuple[int, ...]] = [()]
    span = choose((2, 5, 60))
    for v in range(1, choose(range(2, 60))):
        near = range(max(0, v - span), v)
        before.append(tuple(sorted({choose(near) for _ in range(choose((0, 1, 1, 2, 3)))})))
    each = range(len(before))
    moved = [tuple([choose((0, 1, 100)) for _ in read]) for read in before]
    weight = [choose((0.0, 0.1, 1.0, 5.0, 20.0)) for _ in each]
    return Nodes(weight, before, moved, [choose((0, 0, 0, 1)) for _ in each], [choose(range(5)) == 0 for _ in each])


@pytest.mark.parametrize("seed", range(30))
def test_every_contraction_keeps_the_order_and_the_devices(seed: int) -> None:
    nodes = random_nodes(seeded(seed))
    grains, windows, flags = (1e-9, 3.0, 1e9), (None, 1e-9, 8.0), (False, True)
    ways = [Way(grain, window, b) for grain in grains for window in windows for b in flags]
    ways += [Way(3.0, window, fold=fold, columns=c) for window in windows for fold in (0.0, 30.0) for c in (1, 3)]
    for groups in (whole(nodes), *[contract(nodes, way) for way in ways]):
        assert all(groups[p] <= groups[v] for v, before in enumerate(nodes.before) for p in before)
        assert len(set(zip(groups, nodes.device, strict=True))) == len(set(groups)) == max(groups) + 1


def run_tasks(plan: Plan, feeds: list[Any]) -> list[Any]:
    """The plan task by task: each sees what it reads, and nothing else."""
    values = dict(zip(plan.program.feeds, feeds, strict=True))
    for task in plan.tasks:
        inside = {v: values[v] for v in task.reads}
        for i in task.steps:
            step = plan.program.steps[i]
            part = Program((step,), plan.program.types, tuple(step.inputs), step.outputs)
            made = reference.run(part, [inside[v] for v in step.inputs], {})[0]
            inside.update(zip(step.outputs, made, strict=True))
        values.update((v, inside[v]) for v in task.gives)
    return [values[v] for v in plan.program.fetches]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(data=st.data())
def test_no_partition_changes_a_bit(data: Any) -> None:
    graph = random_graph(lambda options: data.draw(st.sampled_from(options)))
    program = merge_equal(lower(*with_gradients(graph)))
    expected = reference.run(program, graph.leaf_values(), {})[0]
    for grain in (1e-9, 5e-6):
        plan = partition(program, ray_cluster(2), Options(granularity=grain))
        for found, value in zip(run_tasks(plan, graph.leaf_values()), expected, strict=True):
            np.testing.assert_array_equal(found, value)


def test_the_same_program_gives_the_same_plan() -> None:
    program, cluster = random_steps(300, seeded(1)), ray_cluster(4)
    assert partition(program, cluster) == partition(program, cluster)


# -- cost --------------------------------------------------------------------------------------------------------


def cpu_seconds(program: Program) -> float:
    before = time.process_time()
    partition(program, ray_cluster(8))
    return time.process_time() - before


def test_the_time_to_plan_grows_with_the_steps_and_not_faster() -> None:
    small, large = towers(16, 100, SHORT), towers(16, 400, SHORT)
    cpu_seconds(small)
    assert min(cpu_seconds(large) for _ in range(3)) < 12 * min(cpu_seconds(small) for _ in range(3))
