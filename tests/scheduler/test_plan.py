"""Plans as data: the checker on broken plans, digests, JSON, pickling, and their explanation."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections.abc import Callable
from dataclasses import FrozenInstanceError, replace
from typing import Any

import numpy as np
import pytest

import distgrad as dg
from distgrad.printing import time_text
from distgrad.scheduler.cluster import local_cluster
from distgrad.scheduler.digest import content_digest
from distgrad.scheduler.partition.partition import partition
from distgrad.scheduler.plan import Options, Plan, Task, check_plan, recomputed_per_task
from distgrad.scheduler.program import Program, lower

from ..step_graphs import LONG, Steps, chain, ray_cluster, towers
from ..support import LINEAR, growth


def good() -> Plan:
    """x -> a -> b -> c; a, c -> d, where d waits for b; a on worker 0, the rest on worker 1

    task 0: a; task 1: b, c, d. Values: x 0, a 1, b 2, c 3, d 4; c and d are fetched.
    """
    s = Steps(LONG)
    a = s.work(s.given(), device="worker:0")
    c = s.work(s.work(a, device="worker:1"), device="worker:1")
    d = s.work(a, c, after=[1], device="worker:1")
    return partition(s.program(c, d), ray_cluster(2))


def waiting() -> Plan:
    """x -> a; x -> b, which waits for a; on two devices: tasks 0 and 1"""
    s = Steps(LONG)
    x = s.given()
    a = s.work(x, device="worker:0")
    return partition(s.program(a, s.work(x, device="worker:1", after=[0])), ray_cluster(2))


def task(plan: Plan, k: int, **changes: Any) -> Plan:
    tasks = list(plan.tasks)
    tasks[k] = replace(tasks[k], **changes)
    return replace(plan, tasks=tuple(tasks))


def bundle(plan: Plan, b: int, **changes: Any) -> Plan:
    bundles = list(plan.bundles)
    bundles[b] = replace(bundles[b], **changes)
    return replace(plan, bundles=tuple(bundles))


def test_the_plans_that_are_broken_below_are_good() -> None:
    plan = good()
    assert [(t.steps, t.reads, t.gives, t.waits) for t in plan.tasks] == [
        ((0,), (0,), (1,), ()),
        ((1, 2, 3), (1,), (3, 4), ()),
    ]
    assert [(b.task, b.values, b.readers, b.wanted) for b in plan.bundles] == [
        (0, (1,), (1,), False),
        (1, (3, 4), (), True),
    ]
    assert [t.waits for t in waiting().tasks] == [(), (0,)]


def backwards(plan: Plan) -> Plan:
    """The two tasks of `waiting` in the wrong order, everything else in keeping with it."""
    first, second = plan.tasks
    bundles = tuple([replace(b, task=1 - b.task) for b in plan.bundles])
    return replace(plan, tasks=(replace(second, waits=(1,)), first), bundles=bundles)


def with_useless_copy() -> Plan:
    """constant -> a (task 0); x -> b (task 1), with a copy of the constant"""
    s = Steps(LONG)
    c = s.add("Const", attrs={"value": np.zeros(LONG, np.float32)})
    a = s.work(c, s.given(), device="worker:0")
    plan = partition(s.program(a, s.work(s.given(), device="worker:1")), ray_cluster(2))
    return task(plan, 1, steps=(0, 2))


BROKEN: dict[str, tuple[Callable[[], Plan], str]] = {
    "step left out": (lambda: task(good(), 1, steps=(1, 3)), r"step 2 \('MatMul_2'\) is in no task"),
    "step twice": (
        lambda: task(good(), 1, steps=(0, 1, 2, 3)),
        r"step 0 \('MatMul_0'\) is in task 0 and again in task 1",
    ),
    "steps out of order": (lambda: task(good(), 1, steps=(2, 1, 3)), "task 1: step 1 is out of order"),
    "step of no program": (
        lambda: task(good(), 1, steps=(1, 2, 9)),
        "task 1: step 9 is out of order or not of the program",
    ),
    "task without steps": (lambda: task(good(), 0, steps=()), "task 0 has no steps"),
    "mixed devices": (
        lambda: task(good(), 1, device="worker:0"),
        "task 1 is on device 'worker:0', its step 1 .* 'worker:1'",
    ),
    "tasks out of order": (
        lambda: replace(good(), tasks=good().tasks[::-1]),
        "task 0 reads value 1, which nothing before it gives: tasks are not in order",
    ),
    "read left out": (lambda: task(good(), 1, reads=()), "task 1 needs value 1 but does not read it"),
    "read too much": (lambda: task(good(), 1, reads=(0, 1)), "task 1 reads value 0 but does not need it"),
    "give left out": (lambda: task(good(), 0, gives=()), "task 1 reads value 1, which nothing before it gives"),
    "give too much": (
        lambda: task(good(), 1, gives=(2, 3, 4)),
        "task 1 gives value 2, which nobody reads and nobody wants",
    ),
    "give of another": (lambda: task(good(), 1, gives=(1, 3, 4)), "task 1 gives value 1, which it does not make"),
    "wanted not given": (lambda: task(good(), 1, gives=(3,)), "value 4 is fetched or written but no task gives it"),
    "bundle left out": (
        lambda: replace(good(), bundles=good().bundles[:1]),
        "task 1 gives value 3, which is in no bundle",
    ),
    "bundle of no task": (lambda: bundle(good(), 0, task=7), "bundle 0 has no task"),
    "bundle split": (
        lambda: replace(
            bundle(good(), 1, values=(3,)), bundles=(*good().bundles, replace(good().bundles[1], values=(4,)))
        ),
        "bundle 2 has no task, or its task has a second bundle with the same readers",
    ),
    "bundle of what is not given": (
        lambda: bundle(good(), 0, values=(2,)),
        "bundle 0 holds value 2, which task 0 does not give",
    ),
    "bundle for others": (
        lambda: bundle(good(), 0, readers=()),
        r"bundle 0 holds value 1, which has other readers: \[1\]",
    ),
    "bundle not wanted": (
        lambda: bundle(good(), 1, fetched=False),
        "bundle 1 holds value 3, which is fetched or written",
    ),
    "bytes": (lambda: bundle(good(), 0, nbytes=1), "bundle 0 says 1 bytes, but its values have a different sum"),
    "wait left out": (lambda: task(waiting(), 1, waits=()), "task 1 must wait for task 0"),
    "wait too much": (lambda: task(good(), 1, waits=(0,)), "task 1 has no reason to wait for task 0"),
    "wait for a later one": (lambda: backwards(waiting()), "task 0 waits for task 1, which comes later"),
    "cpus": (lambda: task(good(), 0, cpus=2), "task 0 needs 2 cpus, but worker 0, where it is placed, has 1"),
    "gpus": (lambda: task(good(), 0, gpus=1), "task 0 needs 1 gpus, but worker 0, where it is placed, has 0"),
    "memory": (
        lambda: task(good(), 0, memory=1 << 60),
        "task 0 needs .* memory, but worker 0, where it is placed, has",
    ),
    "worker": (lambda: task(good(), 0, worker=2), "task 0 is placed on worker 2 of 2"),
    "copy without use": (with_useless_copy, r"task 1 has a copy of step 0 \('Const_0'\) and no use for it"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_plan_is_refused(name: str) -> None:
    make, text = BROKEN[name]
    with pytest.raises(ValueError, match=text):
        check_plan(make())


def test_constants_and_views_of_what_is_given_are_copied_and_nothing_else() -> None:
    """c (constant) -> turned; x -> turned; x -> a -> turned; c2 (constant) that a step waits for"""
    s = Steps()
    axes = {"axes": (1, 0)}
    c = s.add("Const", attrs={"value": np.zeros((64, 64), np.float32)})
    x = s.given()
    ends = [s.add("Transpose", v, attrs=axes) for v in (c, x)]
    a = s.work(x)
    ends += [s.add("Transpose", a, attrs=axes), s.add("Const", attrs={"value": np.ones((64, 64), np.float32)})]
    program = s.program(*ends, s.add("Tanh", a, after=[5]))
    assert recomputed_per_task(program) == [True, True, True, False, False, False, False]


def test_values_with_the_same_readers_travel_as_one_bundle() -> None:
    """x -> a, b, c (worker 0); a, b -> d; a, b, c -> e (others): {a, b} and {c}"""
    s = Steps(LONG)
    x = s.given()
    a, b, c = (s.work(x, device="worker:0") for _ in range(3))
    d = s.add("AddN", a, b, device="worker:1")
    e = s.add("AddN", a, b, c, device="worker:2")
    plan = partition(s.program(d, e), ray_cluster(3))
    assert [(each.values, each.readers) for each in plan.bundles[:2]] == [((a, b), (1, 2)), ((c,), (2,))]


def test_a_plan_does_not_change() -> None:
    with pytest.raises(FrozenInstanceError):
        good().tasks = ()  # type: ignore[misc]


# -- digest ------------------------------------------------------------------------------------------------------


def digest(program: Program, **options: Any) -> str:
    return content_digest(program, local_cluster(2, 1 << 30), Options(**options))


def constant(value: Any) -> Program:
    with dg.Graph():
        return lower([dg.constant(value)])


def test_equal_programs_have_equal_digests() -> None:
    assert digest(constant([1.0, 2.0])) == digest(constant([1.0, 2.0]))


@pytest.mark.parametrize("other", [[1.0, 3.0], [[1.0, 2.0]], [1, 2], [1.0, -2.0]])
def test_programs_with_other_constants_have_other_digests(other: Any) -> None:
    assert digest(constant([1.0, 2.0])) != digest(constant(other))


def test_a_large_constant_is_hashed_whole() -> None:
    a = np.zeros(100_000)
    b = a.copy()
    b[50_000] = 1.0
    s = Steps()
    first = s.program(s.add("Const", attrs={"value": a}))
    second = replace(first, steps=(replace(first.steps[0], attrs={"value": b}),))
    assert digest(first) != digest(second)


def test_options_and_cluster_are_part_of_the_digest() -> None:
    program = chain(2)
    found = {digest(program), digest(program, granularity=1.0), content_digest(program, ray_cluster(2), Options())}
    assert len(found) == 3


@pytest.mark.parametrize(
    ("a", "b"), [(1, 1.0), (1, True), (0.0, -0.0), ("1", 1), ((1,), [1]), (np.dtype("int8"), np.dtype("uint8"))]
)
def test_attributes_that_differ_in_kind_differ(a: Any, b: Any) -> None:
    first, second = (replace_attr(chain(1), value) for value in (a, b))
    assert digest(first) != digest(second)


def replace_attr(program: Program, value: Any) -> Program:
    return replace(program, steps=(replace(program.steps[0], attrs={"x": value}),))


class Own:
    """An attribute of a user's own op, without a repr."""

    def __init__(self, a: int):
        self.a = a


def test_objects_of_user_ops_go_by_their_fields_and_never_by_address() -> None:
    one, same, other = (digest(replace_attr(chain(1), Own(a))) for a in (1, 1, 2))
    assert one == same != other


def test_the_digest_is_the_same_in_another_process() -> None:
    code = "from tests.scheduler.test_plan import digest, chain; print(digest(chain(3)))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == digest(chain(3))


def test_hashing_takes_time_linear_in_the_steps() -> None:
    assert growth(digest, chain(2_000), chain(20_000)) < LINEAR


# -- plain data --------------------------------------------------------------------------------------------------


def test_a_plan_of_many_steps_survives_pickling() -> None:
    plan = partition(chain(20_000), local_cluster(2, 1 << 40))
    assert pickle.loads(pickle.dumps(plan)) == plan


def test_json_has_every_step_with_its_line_and_printed_attributes() -> None:
    data = json.loads(partition(constant_times(), local_cluster(1, 1 << 30)).to_json())
    step = data["program"]["steps"][0]
    assert (step["type"], step["line"].split(":")[0], step["attrs"]) == ("Const", "test_plan.py", ["value=array(2.)"])


def constant_times() -> Program:
    with dg.Graph():
        x = dg.placeholder(())
        return lower([x * dg.constant(2.0)], [x])


# -- explain -----------------------------------------------------------------------------------------------------


def test_the_explanation_of_one_task() -> None:
    text = partition(chain(3, LONG), local_cluster(1, 1 << 30)).explain()
    assert text.startswith("1 task of 3 steps on cluster 'local' (local: 1 worker, 1 cpu)\npredicted ")
    assert "bottleneck  the work itself: faster steps would help" in text
    assert "by op       MatMul 100%" in text
    assert "MatMul ×3" in text
    assert "train.py:2" in text
    assert "bundles" not in text
    assert "barriers" not in text


def test_the_explanation_of_towers_says_what_travels() -> None:
    text = partition(towers(16, 4), ray_cluster(16)).explain()
    assert "tasks, the 10 longest of 21" in text
    assert "bundles between tasks, the 10 largest of 20" in text


def test_the_explanation_names_barriers() -> None:
    assert "barriers\ntask  waits for\n1     0" in waiting().explain()


def test_the_explanation_says_when_more_workers_would_not_help() -> None:
    """9 products, each of which reads the one before, cut into tasks"""
    plan = partition(chain(9, LONG), ray_cluster(8), Options(granularity=0.05))
    assert len(plan.tasks) > 1
    assert "the critical path: more workers would not help" in plan.explain()


def test_a_plan_names_the_ops_inside_of_calls_as_text_and_as_html() -> None:
    """16 shards of a long body: each is one step, a Call, which says nothing to its user"""

    def loss(w: Any, x: Any) -> Any:
        for _ in range(20):
            x = np.tanh(x @ w)
        return np.mean(x)

    with dg.Session(cluster=ray_cluster(4)):
        plan = dg.data_parallel(dg.value_and_grad(loss), shards=16).plan(np.eye(256), np.ones((16_384, 256)))
    assert any(step.type == "Call" for step in plan.program.steps)
    by_op = next(line for line in plan.explain().splitlines() if line.startswith("by op"))
    assert "MatMul" in by_op
    assert "Call" not in by_op + plan._repr_html_()


def test_the_explanation_says_when_all_is_one_task() -> None:
    assert "the plan is one task: more workers would not help" in partition(chain(9, LONG), ray_cluster(8)).explain()


def test_the_explanation_says_when_feeding_takes_longest() -> None:
    """256 towers, each with a feed of its own, on 256 nodes: the driver sends them one after another"""
    text = partition(towers(256, 1), ray_cluster(256, nodes=256)).explain()
    assert "feeds and variables: 1020.0 MiB leave the driver's node, one object at a time" in text


def test_the_explanation_says_which_devices_have_how_many_tasks() -> None:
    """x -> a -> b (gpu) -> c"""
    s = Steps()
    plan = partition(s.program(s.work(s.work(s.work(s.given()), device="gpu"))), local_cluster(1, 1 << 30, gpus=1))
    assert "(local: 1 worker, 1 cpu, 1 GPU)" in plan.explain()
    assert "devices     2 tasks on any worker, 1 task on gpu\n" in plan.explain()
    assert "1     0 @gpu  " in plan.explain()


def test_the_explanation_names_no_devices_where_none_is_asked_for() -> None:
    assert "devices" not in partition(chain(3), ray_cluster(2)).explain()


def test_the_explanation_of_thousands_of_tasks_is_readable() -> None:
    plan = partition(towers(1000, 4), ray_cluster(64), Options(granularity=1e-9))
    assert len(plan.tasks) > 4000
    lines = plan.explain().splitlines()
    assert len(lines) < 70
    assert max(map(len, lines)) < 160


def test_a_plan_without_tasks_is_explained_too() -> None:
    s = Steps()
    assert partition(s.program(s.given()), local_cluster(1, 1 << 30)).explain().startswith("0 tasks of 0 steps")


def test_seconds_print_in_the_unit_that_fits() -> None:
    assert [time_text(t) for t in (90.0, 119.0, 7200.0)] == ["1.5 min", "2.0 min", "2.0 h"]


def test_tasks_default_to_one_cpu() -> None:
    assert Task((0,), (), ()).cpus == 1
