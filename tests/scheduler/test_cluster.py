"""Clusters: their properties, reading their files, and errors in them."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from distgrad.scheduler.cluster import (
    RAY_TASK_SECONDS,
    Cluster,
    Machine,
    Worker,
    check_cluster,
    check_machine,
    load_cluster,
    local_cluster,
    on_ray,
    usable_cpus,
    usable_memory,
)

CONFIGS = Path(__file__).parent.parent.parent / "cluster-configs"
Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def make(text: str) -> Path:
        path = tmp_path / "my.toml"
        path.write_text(text)
        return path

    return make


# -- values ------------------------------------------------------------------------------------------------------


def test_the_local_cluster_is_one_worker_with_all_that_the_process_may_use() -> None:
    assert local_cluster().workers == (Worker(cpus=usable_cpus(), memory=usable_memory()),)


def test_a_local_cluster_takes_the_threads_bytes_and_rates_it_is_given() -> None:
    machine = Machine(gemm_flops=1e9)
    cluster = local_cluster(3, 1 << 20, machine)
    assert (cluster.cpus, cluster.workers[0].memory, cluster.machine) == (3, 1 << 20, machine)


def test_a_cluster_travels_by_pickle_and_is_hashable() -> None:
    cluster = load_cluster(CONFIGS / "8x8-gpus.toml")
    assert pickle.loads(pickle.dumps(cluster)) == cluster
    assert hash(cluster) == hash(load_cluster(CONFIGS / "8x8-gpus.toml"))


def test_a_cluster_is_plain_json() -> None:
    made = json.loads(json.dumps(local_cluster(2, 100).to_json()))
    assert made["workers"] == [{"cpus": 2, "gpus": 0, "memory": 100, "labels": {}, "node": 0}]


@pytest.mark.parametrize(
    ("machine", "message"),
    [
        (Machine(gemm_flops=0), "gemm_flops is 0, but must be finite and > 0"),
        (Machine(kernel_seconds=-1.0), "kernel_seconds is -1.0, but must be finite and >= 0"),
        (Machine(elementwise=float("nan")), "elementwise is nan, but must be finite"),
        (Machine(irregular="fast"), "irregular is 'fast', but must be a number"),  # type: ignore[arg-type]
    ],
)
def test_a_rate_that_no_hardware_has_is_refused(machine: Machine, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_machine(machine)


@pytest.mark.parametrize(
    ("cluster", "message"),
    [
        (Cluster(()), "has no workers"),
        (Cluster((Worker(0),)), "worker 0: cpus is 0, but must be an integer >= 1"),
        (Cluster((Worker(1), Worker(1))), "has 2 workers, but the local engine has one process"),
        (Cluster((Worker(1),), engine="spark"), "engine is 'spark', but must be one of 'local', 'ray'"),
        (Cluster((Worker(1, gpus=1),)), r"there are no rates for them: give \[gpu\]"),
        (Cluster((Worker(10**18),)), "worker 0: cpus is 10{18}, but must be an integer from 1 to 65536"),
        (Cluster((Worker(1),) * 100_001, engine="ray"), "has 100,001 workers; the maximum is 100,000"),
    ],
)
def test_a_cluster_that_cannot_be_is_refused(cluster: Cluster, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_cluster(cluster)


def test_moving_costs_nothing_in_a_process_less_within_a_node_than_between_nodes() -> None:
    workers = (Worker(1, node=0), Worker(1, node=0), Worker(1, node=1))
    cluster = Cluster(workers, engine="ray")
    within, between = cluster.move_seconds(1e6, 0, 1), cluster.move_seconds(1e6, 0, 2)
    assert 0 == replace(cluster, engine="local").move_seconds(1e6, 0, 2) < within < between


# -- files -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("file", "workers", "cpus", "gpus", "nodes"),
    [
        ("laptop.toml", 1, 8, 0, 1),
        ("64-cpu-nodes.toml", 64, 512, 0, 64),
        ("8x8-gpus.toml", 64, 512, 64, 8),
        ("512-workers.toml", 512, 2048, 0, 64),
    ],
)
def test_the_files_that_come_along_say_what_their_names_say(
    file: str, workers: int, cpus: int, gpus: int, nodes: int
) -> None:
    cluster = load_cluster(CONFIGS / file)
    assert (len(cluster.workers), cluster.cpus, cluster.gpus, cluster.nodes) == (workers, cpus, gpus, nodes)


def test_every_file_opens_with_three_lines_on_its_use() -> None:
    for path in CONFIGS.glob("*.toml"):
        lines = path.read_text().splitlines()
        assert [line[:2] for line in lines[:4]] == ["# ", "# ", "# ", ""], path


def test_a_short_file_takes_the_defaults_of_ray(write: Write) -> None:
    cluster = load_cluster(write("[[nodes]]\ncpus = 4\n"))
    assert cluster == Cluster((Worker(4),), on_ray(Machine()), "my", "ray")


@pytest.mark.parametrize("text", ["1.5 GiB", "1.5gib", "1610612736"])
def test_memory_may_have_a_unit_as_that_of_a_session(text: str, write: Write) -> None:
    cluster = load_cluster(write(f'[[nodes]]\ncpus = 1\nmemory = "{text}"\n'))
    assert cluster.workers[0].memory == 3 << 29


def test_a_calibration_gives_the_rates_that_the_file_does_not(write: Write) -> None:
    path = write('[[nodes]]\ncpus = 1\n[machine]\ncalibration = "rates.json"\nelementwise = 5\nlink_seconds = 7\n')
    rates = Machine(gemm_flops=123.0, elementwise=4.0, task_seconds=9.0, link_seconds=9.0)
    (path.parent / "rates.json").write_text(json.dumps({"machine": rates.to_json()}))
    made = load_cluster(path).machine
    assert (made.gemm_flops, made.elementwise, made.link_seconds, made.task_seconds) == (123, 5, 7, RAY_TASK_SECONDS)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nodes = [", "is not TOML: "),
        ("", r"nodes is missing; give at least one \[\[nodes\]\] table"),
        ("[nodes]\ncpus = 1", "nodes is missing"),
        ("[[nodes]]\ncpu = 4", r"\[\[nodes\]\] 1: there is no field 'cpu'; did you mean 'cpus'\? Allowed: count,"),
        ("[[nodes]]\ngpus = 4", r"\[\[nodes\]\] 1: cpus is missing"),
        ("[[nodes]]\ncpus = 4.5", r"cpus is 4.5, but must be an integer >= 1"),
        ("[[nodes]]\ncpus = true", r"cpus is True, but must be an integer >= 1"),
        ("[[nodes]]\ncpus = 1\n[[nodes]]\ncpus = 1\ncount = 0", r"\[\[nodes\]\] 2: count is 0, but must be an integer"),
        ('[[nodes]]\ncpus = 1\nmemory = "much"', 'memory is \'much\', but must be bytes: an integer, or "64 GiB"'),
        ("[[nodes]]\ncpus = 1\nlabels = { zone = 3 }", "labels: zone is 3, but must be text"),
        ("name = 3\n[[nodes]]\ncpus = 1", "name is 3, but must be text"),
        ('engine = "rey"\n[[nodes]]\ncpus = 1', "engine is 'rey', but must be one of .*; did you mean 'ray'"),
        ("machines = 3", "there is no field 'machines'; did you mean 'machine'"),
        ("machine = 3\n[[nodes]]\ncpus = 1", r"\[machine\] is 3, but must be a table"),
        ("[[nodes]]\ncpus = 1\n[machine]\ngemm_flop = 3", r"\[machine\]: there is no field 'gemm_flop'; did you mean"),
        ("[[nodes]]\ncpus = 1\n[machine]\nelementwise = -3", r"\[machine\]: elementwise is -3.0, but must be finite"),
        ("[[nodes]]\ncpus = 1\ngpus = 1", "workers have GPUs, but there are no rates"),
        ('engine = "local"\n[[nodes]]\ncpus = 1\ncount = 2', "the local engine has one process"),
        ('[[nodes]]\ncpus = 1\n[machine]\ncalibration = "none.json"', "none.json: cannot be read: No such file"),
        ('[[nodes]]\ncpus = 1\n[machine]\ncalibration = "my.toml"', "my.toml: is not JSON"),
        ("[[nodes]]\ncpus = 1\ncount = 1e9", r"count is 1000000000.0, but must be an integer from 1 to 100000"),
        ("[[nodes]]\ncpus = 1\ncount = 1000000000", "count is 1000000000, but must be an integer from 1 to 100000"),
        ("[[nodes]]\ncpus = 1\ncount = 99999\nworkers = 99999", "workers 99999 brings the total above 100,000"),
        ("[[nodes]]\ncpus = 1\ncount = 60000\n[[nodes]]\ncpus = 1\ncount = 60000", r"\[\[nodes\]\] 2: count 60000 × "),
        ("[[nodes]]\ncpus = 1e18", r"cpus is 1e\+18, but must be an integer from 1 to 65536"),
        ("[[nodes]]\ncpus = 1000000000000000000", "cpus is 10{18}, but must be an integer from 1 to 65536"),
        ("[[nodes]]\ncpus = 1\ngpus = 1000000", "gpus is 1000000, but must be an integer from 0 to 4096"),
        ("[[nodes]]\ncpus = 1\nmemory = 10000000000000000000", r"memory is too large; .* \(1 EiB\)"),
        (f'[[nodes]]\ncpus = 1\nmemory = "{"9" * 400} TiB"', "memory is too large"),
        (f"[[nodes]]\ncpus = {'9' * 400}", "cpus is a number of more than 30 digits, but must be an integer from 1 to"),
        (f"[[nodes]]\ncpus = {'9' * 5000}", "is not TOML: "),
        (f"[[nodes]]\ncpus = 1\n[machine]\nelementwise = {'9' * 400}", r"\[machine\]: a rate has more than"),
        (f"nodes = {'[' * 20000}{']' * 20000}", "is not TOML: "),
    ],
    ids=lambda x: x[:60],
)  # fmt: skip
def test_a_wrong_file_is_told_its_name_the_field_and_what_is_allowed(write: Write, text: str, message: str) -> None:
    path = write(text)
    with pytest.raises(ValueError, match=message) as caught:
        load_cluster(path)
    assert str(caught.value).startswith(str(path.parent))


def test_a_file_that_is_not_there_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"none\.toml: cannot be read: No such file"):
        load_cluster(tmp_path / "none.toml")


def test_a_calibration_that_is_none_is_told_how_to_make_one(write: Write) -> None:
    path = write('[[nodes]]\ncpus = 1\n[machine]\ncalibration = "rates.json"\n')
    (path.parent / "rates.json").write_text("[]")
    with pytest.raises(ValueError, match="not a calibration file; create one with `distgrad calibrate --json`"):
        load_cluster(path)
