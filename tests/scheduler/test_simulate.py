"""The simulator: invariants of timelines, and the cost of transfers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distgrad.scheduler.cluster import Cluster, Machine, Worker
from distgrad.scheduler.partition.partition import partition
from distgrad.scheduler.partition.simulate import (
    Load,
    Thing,
    Timeline,
    critical_seconds,
    eligible,
    replay,
    run,
    simulate,
)
from distgrad.scheduler.plan import Bundle, Task

from ..step_graphs import LONG, ray_cluster, towers
from ..support import LINEAR, growth

#: No overheads: what is predicted is what the tasks say.
FREE = Machine(task_seconds=0.0, link_seconds=0.0)


def task(seconds: float, *reads: int, gives: tuple[int, ...] = (), **options: Any) -> Task:
    return Task((), reads, gives, seconds=seconds, **options)


def bundle(task: int, value: int, *readers: int, nbytes: int = 0, wanted: bool = False) -> Bundle:
    return Bundle(task, (value,), readers, wanted, False, nbytes)


def local(cpus: int) -> Cluster:
    return Cluster((Worker(cpus),), FREE, "local", "local")


# -- order and placement -----------------------------------------------------------------------------------------


def test_tasks_without_order_run_side_by_side_as_far_as_cpus_reach() -> None:
    """four tasks of 1 s: on 2 cpus, two at a time"""
    found = simulate([task(1.0)] * 4, [], local(2))
    assert (sorted(found.start), found.seconds) == ([0.0, 0.0, 1.0, 1.0], 2.0)


def test_a_task_starts_when_what_it_reads_is_made() -> None:
    """a -> b"""
    found = simulate([task(1.0, gives=(0,)), task(2.0, 0)], [bundle(0, 0, 1)], local(4))
    assert found.start == (0.0, 1.0)


def test_a_task_waits_for_tokens() -> None:
    """a, then b, which reads nothing of it"""
    assert simulate([task(1.0), task(2.0, waits=(0,))], [], local(4)).start == (0.0, 1.0)


def test_a_task_takes_as_many_cpus_as_it_says() -> None:
    """three tasks of 2 cpus on a worker with 5"""
    assert simulate([task(1.0, cpus=2)] * 3, [], local(5)).seconds == 2.0


def test_gpus_are_taken_one_at_a_time_too() -> None:
    cluster = Cluster((Worker(4, gpus=1),), FREE, "gpu", "ray", gpu=FREE)
    assert simulate([task(1.0, gpus=1)] * 2, [], cluster).seconds == 2.0


def test_the_longest_way_is_begun_first() -> None:
    """short; a -> b: with one cpu free at a time, a goes first"""
    tasks = [task(1.0), task(1.0, gives=(0,)), task(5.0, 0)]
    assert simulate(tasks, [bundle(1, 0, 2)], local(1)).start == (6.0, 0.0, 1.0)


def test_overhead_is_paid_per_task() -> None:
    cluster = Cluster((Worker(1),), Machine(task_seconds=0.5), "slow", "ray")
    assert simulate([task(1.0)] * 2, [], cluster).seconds == 3.0


def test_a_task_that_no_worker_has_room_for_is_an_error() -> None:
    with pytest.raises(ValueError, match="no worker of cluster 'local' has 3 cpus and 0 GPUs"):
        simulate([task(1.0, cpus=3)], [], local(2))


def test_placed_tasks_run_where_they_say() -> None:
    found = simulate([task(1.0, worker=1)] * 2, [], ray_cluster(2), placed=True)
    assert found.worker == (1, 1)


def test_replaying_a_plan_takes_what_it_predicts() -> None:
    plan = partition(towers(6, 2), ray_cluster(3, nodes=3))
    assert replay(plan).seconds == pytest.approx(plan.predictions.seconds, rel=0.05)


def test_workers_of_a_device_that_have_room_take_its_tasks() -> None:
    big = {"size": "big"}
    cluster = Cluster((Worker(4), Worker(1, labels=big), Worker(2, labels=big)), FREE, "labelled", "ray")
    assert [eligible(cluster, 2, 0, device) for device in ("size=big", None, "worker:1")] == [(2,), (0, 2), ()]


# -- moves -------------------------------------------------------------------------------------------------------


def two_nodes(bandwidth: float) -> Cluster:
    machine = Machine(task_seconds=0.0, link_seconds=0.5, link_bandwidth=bandwidth, store_bandwidth=1e30)
    return Cluster((Worker(1, node=0), Worker(1, node=1)), machine, "two", "ray")


def test_a_bundle_that_crosses_nodes_takes_the_link() -> None:
    """a on node 0 -> b on node 1: 100 bytes at 100 bytes a second, after half a second"""
    tasks = [task(1.0, gives=(0,), worker=0), task(1.0, 0, worker=1)]
    found = simulate(tasks, [bundle(0, 0, 1, nbytes=100)], two_nodes(100.0), placed=True)
    assert (found.start, found.bytes_moved) == ((0.0, 2.5), 100)


def test_a_bundle_crosses_once_for_all_readers_on_a_node() -> None:
    """a on node 0 -> b, c on node 1"""
    tasks = [task(1.0, gives=(0,), worker=0), task(1.0, 0, worker=1), task(1.0, 0, worker=1)]
    found = simulate(tasks, [bundle(0, 0, 1, 2, nbytes=100)], two_nodes(100.0), placed=True)
    assert (found.end, found.bytes_moved) == ((1.0, 3.5, 4.5), 100)


def one_node() -> Cluster:
    machine = Machine(task_seconds=0.0, store_bandwidth=1e8)
    return Cluster((Worker(1), Worker(1)), machine, "one", "ray")


def test_a_task_writes_what_it_gives_and_readers_on_its_node_find_it_there() -> None:
    """a -> b on another worker: 1e8 bytes at 1e8 bytes a second, written before a ends"""
    tasks = [task(1.0, gives=(0,), worker=0), task(1.0, 0, worker=1)]
    assert simulate(tasks, [bundle(0, 0, 1, nbytes=10**8)], one_node(), placed=True).end == (2.0, 3.0)


def test_many_large_objects_take_longer_than_one() -> None:
    """a gives one object, b the same bytes in two"""
    bundles = [bundle(0, 0, wanted=True, nbytes=10**8), *[bundle(1, v, wanted=True, nbytes=10**8 // 2) for v in (1, 2)]]
    one, two = simulate([task(1.0, gives=(0,)), task(1.0, gives=(1, 2))], bundles, one_node()).end
    assert two == pytest.approx(one + 1.2e-3)


def test_two_bundles_to_one_node_come_one_after_the_other() -> None:
    """a, b on node 0 -> c on node 1"""
    tasks = [task(0.0, gives=(0,)), task(0.0, gives=(1,)), task(1.0, 0, 1, worker=1)]
    bundles = [bundle(0, 0, 2, nbytes=100), bundle(1, 1, 2, nbytes=100)]
    assert simulate(tasks, bundles, two_nodes(100.0), placed=True).start[2] == 2.5


def test_what_is_given_comes_to_another_node_once() -> None:
    """v (100 bytes, on node 0) -> a, b on node 1"""
    tasks = [task(1.0, 7, worker=1), task(1.0, 7, worker=1)]
    found = simulate(tasks, [], two_nodes(100.0), {7: 100}, placed=True)
    assert (found.seconds, found.bytes_moved) == (3.5, 100)


def test_a_task_stays_with_its_data_where_moving_takes_longer_than_waiting() -> None:
    """a -> b, c: both stay on a's node, though the other one is idle"""
    tasks = [task(1.0, gives=(0,)), task(1.0, 0), task(1.0, 0)]
    found = simulate(tasks, [bundle(0, 0, 1, 2, nbytes=1000)], two_nodes(100.0))
    assert (set(found.worker), found.bytes_moved < 2000) == ({0}, True)


def test_in_one_process_nothing_moves() -> None:
    tasks = [task(1.0, gives=(0,)), task(1.0, 0)]
    found = simulate(tasks, [bundle(0, 0, 1, nbytes=1 << 40)], local(2))
    assert (found.seconds, found.bytes_moved) == (2.0, 0)


# -- memory ------------------------------------------------------------------------------------------------------


def test_memory_is_held_by_tasks_while_they_run_and_by_bundles_until_they_are_read() -> None:
    """a (70 inside, gives 10) -> b (30 beside what it reads, gives 5, which is wanted)"""
    tasks = [task(1.0, gives=(0,), memory=70), task(1.0, 0, gives=(1,), memory=40)]
    bundles = [bundle(0, 0, 1, nbytes=10), bundle(1, 1, nbytes=5, wanted=True)]
    found = simulate(tasks, bundles, local(1))
    assert found.memory == (((0.0, 70), (1.0, 40), (2.0, 5)),)
    assert found.peak_bytes == 70


def test_a_bundle_that_crosses_is_held_on_both_nodes() -> None:
    """a on node 0 -> b on node 1"""
    tasks = [task(1.0, gives=(0,), memory=10), task(1.0, 0, memory=10, worker=1)]
    found = simulate(tasks, [bundle(0, 0, 1, nbytes=10)], two_nodes(1e9), placed=True)
    assert max(held for _, held in found.memory[1]) == 10
    assert [line[-1][1] for line in found.memory] == [0, 0]


def test_what_is_given_is_not_counted() -> None:
    found = simulate([task(1.0, 3, memory=150)], [], local(1), {3: 100})
    assert found.peak_bytes == 50


# -- what always holds -------------------------------------------------------------------------------------------


def random_run(choose: Any) -> tuple[list[Load], list[Thing], Cluster, Timeline]:
    """A random graph of tasks on a random cluster."""
    cpus = choose(range(1, 5))
    nodes = choose(range(1, 4))
    workers = tuple([Worker(cpus, node=choose(range(nodes))) for _ in range(choose(range(1, 5)))])
    cluster = Cluster(workers, Machine(task_seconds=choose((0.0, 0.5))), "random", choose(("ray", "local")))
    loads: list[Load] = []
    things: list[Thing] = []
    for k in range(choose(range(1, 25))):
        reads = sorted({choose(range(len(things))) for _ in range(choose(range(3)))}) if things else []
        waits = (choose(range(k)),) if k and choose(range(4)) == 0 else ()
        loads.append(Load(choose((0.0, 1.0, 3.5)), choose(range(1, cpus + 1)), 0, None, tuple(reads), waits))
        things += [Thing(k, choose((0, 10**9))) for _ in range(choose(range(3)))]
    return loads, things, cluster, run(loads, things, cluster)


@settings(max_examples=120, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32))
def test_every_timeline_keeps_order_and_bounds(seed: int) -> None:
    rng = np.random.default_rng(seed)
    loads, things, cluster, found = random_run(lambda options: options[int(rng.integers(len(options)))])
    for k, load in enumerate(loads):
        alone = found.start[k] + load.seconds + cluster.machine.task_seconds
        assert found.end[k] >= alone - 1e-9 if cluster.engine == "ray" else found.end[k] == pytest.approx(alone)
        for j in (*load.waits, *(things[x].task for x in load.reads)):
            assert found.start[k] >= found.end[j]
    cpu_seconds = sum(load.seconds * load.cpus for load in loads)
    assert found.seconds >= critical_seconds(loads, things) - 1e-9
    assert found.seconds >= cpu_seconds / cluster.cpus - 1e-9


@settings(max_examples=120, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32))
def test_no_worker_ever_runs_more_than_it_has_cpus_for(seed: int) -> None:
    rng = np.random.default_rng(seed)
    loads, _, cluster, found = random_run(lambda options: options[int(rng.integers(len(options)))])
    for w, worker in enumerate(cluster.workers):
        here = [k for k in range(len(loads)) if found.worker[k] == w]
        for at in [found.start[k] for k in here]:
            running = [k for k in here if found.start[k] <= at < found.end[k]]
            assert sum(loads[k].cpus for k in running) <= worker.cpus


def test_simulating_takes_time_linear_in_the_tasks() -> None:
    cluster = ray_cluster(64, nodes=64)

    def drawn(n: int) -> tuple[list[Load], list[Thing]]:
        rng = np.random.default_rng(0)
        reads = [tuple({int(j) for j in rng.integers(max(0, k - 300), k, 2)}) if k else () for k in range(n)]
        return [Load(0.02, 1, 0, None, each, ()) for each in reads], [Thing(k, 1_000_000) for k in range(n)]

    assert growth(lambda made: run(*made, cluster), drawn(500), drawn(5000)) < LINEAR


def test_more_nodes_than_towers_change_nothing() -> None:
    """4 towers on 4 and on 512 workers"""
    few, many = (partition(towers(4, 2, LONG), ray_cluster(n, nodes=n)).predictions for n in (4, 512))
    assert few == many
