"""Task bodies: which tasks share one, and that it computes the same as its tasks."""

from __future__ import annotations

import hashlib
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import distgrad as dg
from distgrad.scheduler.bodies import Body, bodies
from distgrad.scheduler.partition.partition import partition
from distgrad.scheduler.passes.equal import merge_equal
from distgrad.scheduler.passes.fuse import fuse
from distgrad.scheduler.plan import Options, Plan
from distgrad.scheduler.program import Program, check_program, lower
from distgrad.workers import reference

from ..random_graphs import random_graph, with_gradients
from ..step_graphs import LONG, Steps, random_steps, ray_cluster, towers


def cut(program: Program, workers: int = 2) -> Plan:
    """As many tasks as there can be."""
    return partition(program, ray_cluster(workers), Options(granularity=1e-9, cpus_per_task=1))


def two(first: dict[str, Any], second: dict[str, Any], kind: str = "Transpose") -> list[int]:
    """x -> a on one worker, y -> b on the other: one op each, with these attributes; gives the body of each task."""
    s = Steps(LONG)
    a, b = [s.add(kind, s.work(s.given()), attrs=attrs) for attrs in (first, second)]
    return bodies(partition(s.program(a, b), ray_cluster(2)))[1]


# -- who shares one ----------------------------------------------------------------------------------------------


def test_equal_towers_share_one_body() -> None:
    """x_i -> work -> work (4 times), AddN over all four"""
    found, of = bodies(partition(towers(4, 2), ray_cluster(4)))
    assert [[step.type for step in body.steps] for body in found] == [["MatMul", "MatMul"], ["AddN"]]
    assert of == [0, 0, 0, 0, 1]


def test_the_values_of_a_body_count_from_zero_with_what_it_reads_first() -> None:
    """x_i -> work -> work (4 times), AddN over all four"""
    (tower, total), _ = bodies(partition(towers(4, 2), ray_cluster(4)))
    assert [(step.inputs, step.outputs) for step in tower.steps] == [((0, 0), (1,)), ((1, 1), (2,))]
    assert (tower.reads, tower.gives, len(tower.types)) == ((0,), (2,), 3)
    assert (total.steps[0].inputs, total.reads, total.gives) == ((0, 1, 2, 3), (0, 1, 2, 3), (4,))


def test_a_body_has_the_names_and_lines_of_the_first_task_that_has_it() -> None:
    plan = partition(towers(4, 2), ray_cluster(4))
    (tower, _), _ = bodies(plan)
    first = [plan.program.steps[i] for i in plan.tasks[0].steps]
    assert [(step.name, step.source) for step in tower.steps] == [(step.name, step.source) for step in first]


def test_what_a_step_waits_for_is_no_part_of_a_body() -> None:
    """x -> a; y -> b, which waits for a"""
    s = Steps(LONG)
    a = s.work(s.given())
    plan = partition(s.program(a, s.work(s.given(), after=[0], device="worker:1")), ray_cluster(2))
    found, _ = bodies(plan)
    assert [task.waits for task in plan.tasks] == [(), (0,)]
    assert [step.after for body in found for step in body.steps] == [()]


def test_towers_of_other_shapes_have_other_bodies() -> None:
    """x_i -> work, three times"""
    s = Steps(LONG)
    ends = [s.work(s.given(shape), shape=shape) for shape in (LONG, (1100, 1100), LONG)]
    assert bodies(partition(s.program(*ends), ray_cluster(3)))[1] == [0, 1, 0]


def test_equal_tasks_on_two_workers_have_one_body() -> None:
    s = Steps()
    ends = [s.work(s.given(), device=device) for device in ("worker:0", "worker:1")]
    found, of = bodies(partition(s.program(*ends), ray_cluster(2)))
    assert (len(found), of) == (1, [0, 0])


ARRAY = np.arange(6.0)
EQUAL: dict[str, tuple[Any, Any]] = {
    "tuples": ((1, 0), (1, 0)),
    "nested": (([1], "a", None), ([1], "a", None)),
    "arrays of equal content": (ARRAY, ARRAY.copy()),
    "nan": (float("nan"), float("nan")),
    "dtypes": (np.dtype("float32"), np.dtype(np.float32)),
    "scalars": (np.float32(1), np.float32(1)),
}
OTHER: dict[str, tuple[Any, Any]] = {
    "other numbers": ((1, 0), (0, 1)),
    "int and float": (1, 1.0),
    "int and bool": (1, True),
    "zeros of other signs": (0.0, -0.0),
    "tuple and list": ((1, 0), [1, 0]),
    "arrays of other content": (ARRAY, ARRAY + 1),
    "arrays of other shapes": (ARRAY, ARRAY.reshape(2, 3)),
    "arrays of other types": (ARRAY, ARRAY.view(np.int64)),
    "zeros of other signs in arrays": (np.zeros(2), -np.zeros(2)),
    "array and scalar": (np.array(1.0), np.float64(1)),
    "dtypes": (np.dtype("float32"), np.dtype("float64")),
    "objects that look alike": (object(), object()),
    "arrays of objects": (np.array([None]), np.array([None])),
}


@pytest.mark.parametrize("case", EQUAL)
def test_attributes_of_equal_content_are_equal(case: str) -> None:
    first, second = EQUAL[case]
    assert two({"axes": (1, 0), "extra": first}, {"axes": (1, 0), "extra": second}) == [0, 0]


@pytest.mark.parametrize("case", OTHER)
def test_attributes_of_other_content_or_kind_are_not_equal(case: str) -> None:
    first, second = OTHER[case]
    assert two({"axes": (1, 0), "extra": first}, {"axes": (1, 0), "extra": second}) == [0, 1]


def test_an_object_that_is_no_plain_value_is_equal_to_itself() -> None:
    extra = object()
    assert two({"axes": (1, 0), "extra": extra}, {"axes": (1, 0), "extra": extra}) == [0, 0]


def test_attributes_of_other_names_are_not_equal() -> None:
    assert two({"axes": (1, 0), "one": 1}, {"axes": (1, 0), "two": 1}) == [0, 1]


# -- what they compute -------------------------------------------------------------------------------------------


def run(body: Body, given: list[Any]) -> list[Any]:
    values = dict(zip(body.reads, given, strict=True))
    reference.run_steps(body.steps, body.types, values)
    return [values[v] for v in body.gives]


def run_plan(plan: Plan, feeds: list[Any]) -> list[Any]:
    found, of = bodies(plan)
    values = dict(zip(plan.program.feeds, feeds, strict=True))
    for task, place in zip(plan.tasks, of, strict=True):
        values.update(zip(task.gives, run(found[place], [values[v] for v in task.reads]), strict=True))
    return [values[v] for v in plan.program.fetches]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(data=st.data())
def test_a_plan_run_by_bodies_gives_the_bits_of_its_program(data: Any) -> None:
    graph = random_graph(lambda options: data.draw(st.sampled_from(options)))
    program = merge_equal(lower(*with_gradients(graph)))
    expected = reference.run(program, graph.leaf_values(), {})[0]
    for found, value in zip(run_plan(cut(program), graph.leaf_values()), expected, strict=True):
        np.testing.assert_array_equal(found, value)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(data=st.data())
def test_every_body_is_a_program_of_its_own(data: Any) -> None:
    def choose(options: Any) -> Any:
        return data.draw(st.sampled_from(options))

    plan = cut(random_steps(choose(range(1, 20)), choose, devices=choose([(None,), (None, "worker:0")])))
    for body in bodies(plan)[0]:
        check_program(Program(body.steps, body.types, body.reads, body.gives))


def test_the_values_inside_a_fused_step_are_renumbered_too() -> None:
    """exp(tanh(x)) + tanh(x) of two feeds, fused"""
    with dg.Graph():
        feeds = [dg.placeholder((512, 512)) for _ in range(2)]
        ends = [dg.exp(t) + t for t in map(dg.tanh, feeds)]
        plan = cut(fuse(lower(ends, feeds)))
    found, _ = bodies(plan)
    assert {step.type for body in found for step in body.steps} == {"Fused"}
    for body in found:
        check_program(Program(body.steps, body.types, body.reads, body.gives))


def test_a_body_survives_pickling() -> None:
    (body, _), _ = bodies(partition(towers(4, 2), ray_cluster(4)))
    again = pickle.loads(pickle.dumps(body))
    assert (again.steps, again.types, again.reads, again.gives) == (body.steps, body.types, body.reads, body.gives)


def test_a_constant_that_many_tasks_have_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """constant, x_i -> work -> work (4 times): each task has the constant for itself"""
    s = Steps(LONG)
    c = s.add("Const", attrs={"value": np.zeros(LONG, np.float32)})
    plan = partition(s.program(*[s.work(s.work(s.given(), c)) for _ in range(4)]), ray_cluster(4))
    hashed: list[int] = []
    sha256 = hashlib.sha256

    def counted(data: bytes) -> Any:
        hashed.append(len(data))
        return sha256(data)

    monkeypatch.setattr(hashlib, "sha256", counted)
    assert bodies(plan)[1] == [0, 0, 0, 0]
    assert len(hashed) == 1
