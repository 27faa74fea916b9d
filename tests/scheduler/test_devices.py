"""Devices: parsing, matching workers, errors, and placement in plans."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import distgrad as dg
from distgrad import DeviceError
from distgrad.scheduler.cluster import Cluster, Machine, Worker, local_cluster
from distgrad.scheduler.devices import Device, parse, workers_of
from distgrad.scheduler.partition.partition import partition
from distgrad.scheduler.passes.canonical import canonical
from distgrad.scheduler.passes.fuse import fuse
from distgrad.scheduler.plan import Options, Plan, check_plan
from distgrad.scheduler.program import Program, lower

from ..step_graphs import LONG, Steps, ray_cluster

#: Workers 0 and 1 without GPUs, 2 with one, 3 with two; 0 and 2 in zone a, 1 and 3 in zone b.
MIXED = Cluster(
    (
        Worker(2, labels={"zone": "a"}),
        Worker(1, labels={"zone": "b"}),
        Worker(2, gpus=1, labels={"zone": "a", "ray.io/accelerator-type": "H100"}),
        Worker(2, gpus=2, labels={"zone": "b", "ray.io/accelerator-type": "A100"}),
    ),
    Machine(task_seconds=2e-3),
    "mixed",
    "ray",
    gpu=Machine(),
)


def one(device: str | None, *more: str | None) -> Program:
    """x -> a step on each of these devices, one after another"""
    s = Steps(LONG)
    v = s.given()
    for each in (device, *more):
        v = s.work(v, device=each)
    return s.program(v)


# -- what a text means -------------------------------------------------------------------------------------------

MEANINGS: dict[Device, Sequence[str | None]] = {
    Device(): (None, "", "cpu", "CPU", "cpu:0", "/cpu:0", "/device:CPU:0", "/job:localhost"),
    Device(gpus=1): ("gpu", "GPU", " gpu ", "/gpu", "/device:GPU:*"),
    Device(gpus=1, gpu=1): ("gpu:1", "GPU:1", "gpu:01", "/gpu:1", "/device:GPU:1", "/job:worker/device:GPU:1"),
    Device(worker=2): (
        "worker:2",
        "Worker:2",
        "worker:2,cpu",
        "/job:worker/task:2",
        "/job:worker/replica:0/task:2/cpu:0",
    ),
    Device(gpus=1, worker=2): ("worker:2,gpu", "gpu, worker:2"),
    Device(gpus=1, gpu=0, worker=0): ("gpu:0,worker:0", "/job:localhost/replica:0/task:0/device:GPU:0"),
    Device(labels=(("zone", "eu-1"),)): ("zone=eu-1", " zone = eu-1 ", "cpu,zone=eu-1", "zone=eu-1,zone=eu-1"),
    Device(labels=(("ray.io/accelerator-type", "H100"), ("zone", "a"))): ("zone=a,ray.io/accelerator-type=H100",),
    Device(gpus=1, labels=(("zone", "a"),)): ("gpu,zone=a", "zone=a,GPU"),
}


@pytest.mark.parametrize(("device", "text"), [(device, text) for device, texts in MEANINGS.items() for text in texts])
def test_a_text_means_a_device(device: Device, text: str | None) -> None:
    assert parse(text) == device


@pytest.mark.parametrize("device", MEANINGS, ids=str)
def test_a_device_prints_as_text_that_means_it(device: Device) -> None:
    assert parse(str(device)) == device


NO_DEVICES = {
    "gpuu": "contains 'gpuu', which is not a device; did you mean 'gpu'",
    "worker": "contains 'worker', which is not a device; did you mean 'worker:0'",
    "worker:-1": "contains 'worker:-1'",
    "worker:x": "contains 'worker:x'",
    "gpu:x": "contains 'gpu:x'",
    "cpu:1": "contains 'cpu:1'",
    "driver": "contains 'driver', which is not a device. A device is 'cpu', 'gpu'",
    "gpu,big": "contains 'big'",
    "zone=": "contains 'zone='",
    "=a": "contains '=a'",
    "a=b=c": "contains 'a=b=c'",
    "/job:ps/task:0": "contains 'job:ps'",
    "cpu,gpu": "contradicts itself",
    "gpu:0,gpu:1": "contradicts itself",
    "worker:1,worker:2": "contradicts itself",
    "zone=a,zone=b": "contradicts itself",
}


@pytest.mark.parametrize("text", NO_DEVICES)
def test_a_text_that_means_no_device_is_an_error_that_says_what_is_allowed(text: str) -> None:
    with pytest.raises(ValueError, match=rf"device '{text}' .*{NO_DEVICES[text]}.*'worker:2', a label of workers such"):
        parse(text)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.text("cpugworke:=/, 01*", max_size=12))
def test_every_text_is_a_device_or_a_value_error(text: str) -> None:
    try:
        device = parse(text)
    except ValueError:
        return
    assert parse(str(device)) == device


def test_a_graph_keeps_any_text_and_its_plan_names_op_line_and_what_is_allowed() -> None:
    with dg.Graph(), dg.device("the big one"):
        y = dg.exp(dg.constant([1.0]), name="y")
    assert y.device == "the big one"
    with pytest.raises(
        ValueError, match=r"op '\w+' \(type \w+, at test_devices.py:\d+\): device 'the big one' .* 'gpu'"
    ):
        dg.Session().run(y)


# -- one spelling ------------------------------------------------------------------------------------------------


def test_spellings_of_one_device_are_one_task() -> None:
    plan = partition(canonical(one("GPU:0", "/gpu:0", "/device:GPU:0", "gpu:0")), MIXED)
    assert [(task.device, len(task.steps)) for task in plan.tasks] == [("gpu:0", 4)]


def test_no_device_and_cpu_are_one_task() -> None:
    plan = partition(canonical(one(None, "cpu", "/CPU:0", None)), MIXED)
    assert [(task.device, len(task.steps)) for task in plan.tasks] == [(None, 4)]


def test_spellings_of_one_device_are_fused() -> None:
    with dg.Graph():
        y = x = dg.placeholder((1000, 10))
        for device in ("gpu", "/GPU", "Gpu"):
            with dg.device(device):
                y = dg.tanh(y)
    program = fuse(canonical(lower([y], [x])))
    assert [(step.device, len(step.body)) for step in program.steps] == [("gpu", 3)]


def test_groups_of_steps_are_respelled_with_what_is_in_them() -> None:
    with dg.Graph(), dg.device("/GPU"):
        x = dg.placeholder((1000, 10))
        program = canonical(fuse(lower([dg.exp(dg.tanh(x))], [x])))
    (step,) = program.steps
    assert {step.device, *(inner.device for inner in step.body)} == {"gpu"}


def test_a_program_with_one_spelling_is_left_as_it_is() -> None:
    program = one(None, "gpu", "worker:1")
    assert canonical(program) is program


# -- who serves it -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("device", "workers"),
    [
        (None, [0, 1, 2, 3]),
        ("worker:1", [1]),
        ("worker:4", []),
        ("gpu", [2, 3]),
        ("gpu:0", [2]),
        ("gpu:1", [3]),
        ("gpu:2", [3]),
        ("gpu:3", []),
        ("zone=a", [0, 2]),
        ("zone=c", []),
        ("gpu,zone=b", [3]),
        ("gpu:0,zone=b", [3]),
        ("worker:0,gpu", []),
        ("worker:3,gpu:1", [3]),
        ("worker:3,gpu:2", []),
        ("ray.io/accelerator-type=H100", [2]),
    ],
)
def test_a_device_allows_these_workers(device: str | None, workers: list[int]) -> None:
    assert list(workers_of(parse(device), MIXED)) == workers


REFUSED: dict[str, tuple[str, Cluster, str]] = {
    "no GPU": (
        "gpu",
        local_cluster(2, 1 << 30),
        r"op 'MatMul_0' \(type MatMul, at train.py:1\) asks for device 'gpu', but no worker has a GPU. "
        r"Cluster 'local' has 1 worker, 2 cpus, no GPUs and no labels. Place the op elsewhere",
    ),
    "worker of many": ("worker:9", MIXED, "asks for device 'worker:9', but the workers are worker:0 to worker:3"),
    "worker of one": ("worker:1", local_cluster(1, 1 << 30), "but there is one worker, worker:0"),
    "label": (
        "zone=c",
        MIXED,
        r"but no worker has the label 'zone=c' \(did you mean 'zone=\w'\?\). Cluster 'mixed' has 4 workers, 7 cpus, 3 "
        r"GPUs and the labels .*A100 \(1 worker\), .*H100 \(1 worker\), zone=a \(2 workers\), zone=b \(2 workers\)",
    ),
    "label nothing is near": ("big=yes", MIXED, "no worker has the label 'big=yes'. Cluster"),
    "number of a GPU": ("gpu:3", MIXED, "but there the GPUs are gpu:0 to gpu:2. Cluster"),
    "number of a worker's GPU": ("worker:2,gpu:1", MIXED, "but there the GPUs are gpu:0 to gpu:0. Cluster"),
    "not together": ("worker:1,gpu", MIXED, "but no worker has all of these at once"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_a_cluster_cannot_serve_is_refused_with_what_it_has(case: str) -> None:
    device, cluster, text = REFUSED[case]
    with pytest.raises(DeviceError, match=text):
        partition(one(device), cluster)


def test_a_device_whose_workers_have_too_few_cpus_for_a_task_is_refused() -> None:
    assert partition(one("worker:1"), MIXED).tasks[0].cpus == 1
    text = "'worker:1', but a task gets 2 cpus, and no worker there has more than 1: lower cpus_per_task. Cluster"
    with pytest.raises(DeviceError, match=text):
        partition(one("worker:1"), MIXED, Options(cpus_per_task=2))


def test_of_many_labels_the_first_are_named() -> None:
    cluster = ray_cluster(0)
    cluster = replace(cluster, workers=tuple([Worker(1, labels={"node": f"n{i:03}"}) for i in range(100)]))
    with pytest.raises(DeviceError, match=r"node=n007 \(1 worker\), 92 more\. Place"):
        partition(one("node=here"), cluster)


def test_the_refusal_is_a_value_error_and_survives_the_trip() -> None:
    with pytest.raises(ValueError, match="no worker has a GPU") as caught:
        partition(one("gpu"), ray_cluster(2))
    again = pickle.loads(pickle.dumps(caught.value))
    assert (type(again), str(again)) == (DeviceError, str(caught.value))


def test_of_a_group_of_steps_the_first_is_named() -> None:
    with dg.Graph(), dg.device("gpu"):
        x = dg.placeholder((1000, 10))
        y = dg.exp(dg.tanh(x, name="first"), name="last")
    with pytest.raises(DeviceError, match=r"op 'first' \(type Tanh, at test_devices.py:"):
        partition(fuse(lower([y], [x])), ray_cluster(2))


def test_nothing_runs_and_no_variable_changes_where_a_device_is_missing() -> None:
    v = dg.Variable(1.0)
    with dg.Graph():
        written = v.assign(2.0)
        with dg.device("gpu"):
            y = dg.exp(dg.placeholder((), name="x"))
    with pytest.raises(DeviceError, match="no worker has a GPU"):
        dg.Session().run([written, y], {y.op.inputs[0]: 1.0})
    assert v.numpy() == 1.0


@pytest.mark.parametrize("device", ["cpu", "worker:0", "/job:localhost/replica:0/task:0/device:CPU:0"])
def test_the_local_engine_is_worker_0_and_has_cpus(device: str) -> None:
    def f(x: Any) -> Any:
        with dg.device(device):
            return dg.exp(x) + 1.0

    np.testing.assert_array_equal(dg.function(f)(np.zeros(3)), np.full(3, 2.0))


# -- where plans put it ------------------------------------------------------------------------------------------


def test_every_device_of_a_plan_is_served_by_a_worker_it_allows() -> None:
    devices = ("worker:1", "gpu", "zone=b", "gpu:2", None, "worker:0", "gpu,zone=a")
    plan = partition(one(*devices), MIXED)
    assert [task.device for task in plan.tasks] == [*devices]
    assert all(task.worker in workers_of(parse(task.device), MIXED) for task in plan.tasks)
    assert [task.gpus for task in plan.tasks] == [0, 1, 0, 1, 0, 0, 1]


def test_towers_on_gpus_are_spread_over_all_of_them() -> None:
    """Three towers of four works on a GPU: one for each GPU"""
    s = Steps((2048, 2048))
    ends = []
    for _ in range(3):
        v = s.given()
        for _ in range(4):
            v = s.work(v, device="gpu")
        ends.append(v)
    plan = partition(s.program(*ends), MIXED, Options(cpus_per_task=1))
    assert sorted(task.worker for task in plan.tasks) == [2, 3, 3]


def layers() -> Plan:
    """x @ a on worker 2 -> tanh(h @ b) on worker 1 -> loss anywhere, with the gradients of a and b"""
    with dg.Graph():
        x, a, b = (dg.placeholder((512, 512), name=name) for name in "xab")
        with dg.device("worker:2"):
            h = dg.tanh(x @ a)
        with dg.device("/job:worker/task:1"):
            y = dg.tanh(h @ b)
        loss = dg.sum(y * y)
        program = lower([loss, *dg.gradients(loss, [a, b])], [x, a, b])
    return partition(program, ray_cluster(4, nodes=4))


def test_gradients_run_beside_their_forward_ops() -> None:
    plan = layers()
    steps = plan.program.steps
    products = [task.worker for task in plan.tasks for i in task.steps if steps[i].type == "MatMul"]
    assert sorted(products) == [1, 1, 1, 2, 2]  # forward, and by each input that needs a gradient
    placed = {(steps[i].source, task.worker) for task in plan.tasks for i in task.steps if steps[i].device}
    assert len(placed) == len({source for source, _ in placed}) == 2  # of a line and its gradients, one worker


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"worker": 2}, "task 0 is on device 'gpu:2', but is placed on worker 2"),
        ({"gpus": 0}, "task 0 is on device 'gpu:2', but has no GPU"),
    ],
)
def test_a_plan_with_a_task_where_its_device_is_not_is_refused(changes: Any, text: str) -> None:
    plan = partition(one("gpu:2"), MIXED)
    with pytest.raises(ValueError, match=text):
        check_plan(replace(plan, tasks=(replace(plan.tasks[0], **changes),)))
