"""Predicted memory: what is counted, what is not, and the error if a run needs too much."""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import distgrad as dg
from distgrad import nest
from distgrad.errors import BudgetError
from distgrad.registry import OPS, view_of
from distgrad.scheduler.cluster import local_cluster
from distgrad.scheduler.cost.memory import peak, refuse, value_bytes
from distgrad.scheduler.partition.partition import partition
from distgrad.scheduler.plan import Options
from distgrad.scheduler.program import Program, Step, lower
from distgrad.workers.kernels import KERNELS

from ..cases import all_cases
from ..random_graphs import build, random_graph
from ..step_graphs import Steps

#: The bytes of one value of `Steps`.
ONE = 64 * 64 * 4


def test_what_is_given_is_not_counted() -> None:
    """x (given) -> y"""
    s = Steps()
    assert peak(s.program(s.work(s.given()))).nbytes == ONE


def test_constants_are_not_counted() -> None:
    """c (constant), x -> y"""
    s = Steps()
    c = s.add("Const", attrs={"value": np.zeros((64, 64), np.float32)})
    assert peak(s.program(s.work(c, s.given()))).nbytes == ONE


def test_a_value_dies_with_its_last_reader() -> None:
    """x -> a -> b -> c -> d: never more than two at once"""
    s = Steps()
    v = s.given()
    for _ in range(4):
        v = s.work(v)
    assert peak(s.program(v)).nbytes == 2 * ONE


def test_a_value_that_is_read_late_is_held_until_then() -> None:
    """x -> a -> b -> c; a, c -> d"""
    s = Steps()
    a = s.work(s.given())
    c = s.work(s.work(a))
    assert peak(s.program(s.work(a, c))).nbytes == 3 * ONE


def test_results_are_held_to_the_end() -> None:
    """x -> a (fetched) -> b -> c -> d (fetched)"""
    s = Steps()
    a = s.work(s.given())
    assert peak(s.program(a, s.work(s.work(s.work(a))))).nbytes == 3 * ONE


def test_an_elementwise_step_writes_into_an_input_that_dies_with_it() -> None:
    """x -> a -> tanh -> tanh"""
    s = Steps()
    assert peak(s.program(s.add("Tanh", s.add("Tanh", s.work(s.given()))))).nbytes == ONE


def test_an_elementwise_step_leaves_alone_what_others_still_read() -> None:
    """x -> a -> tanh; a, tanh -> y"""
    s = Steps()
    a = s.work(s.given())
    assert peak(s.program(s.work(a, s.add("Tanh", a)))).nbytes == 3 * ONE


def test_an_elementwise_step_does_not_write_into_what_is_given() -> None:
    s = Steps()
    assert peak(s.program(s.add("Tanh", s.given()))).nbytes == ONE


def test_a_view_has_no_bytes_and_keeps_what_it_looks_at() -> None:
    """x -> a -> transposed view -> ...; the view is read last"""
    s = Steps()
    a = s.work(s.given())
    view = s.add("Transpose", a, attrs={"axes": (1, 0)})
    b = s.work(s.work(s.given()))
    found = peak(s.program(s.work(view, b)))
    assert (found.nbytes, [item.value for item in found.live if item.value == view]) == (3 * ONE, [])


def test_a_reshape_of_a_strided_view_is_a_copy() -> None:
    """x -> a -> transposed -> reshaped; without the transpose it is a view"""
    for types, held in ((["Transpose", "Reshape"], 2), (["Reshape"], 1)):
        s = Steps()
        v = s.work(s.given())
        for each in types:
            v = s.add(each, v)
        assert peak(s.program(v)).nbytes == held * ONE


def test_the_largest_at_the_peak_come_first() -> None:
    """x -> small, x -> large; both are read by y"""
    s = Steps()
    x = s.given()
    small, large = s.work(x, shape=(8, 64)), s.work(x, shape=(500, 64))
    y = s.work(small, large)
    assert [item.value for item in peak(s.program(y)).largest] == [large, y, small]


def test_a_part_of_a_program_has_a_peak_of_its_own() -> None:
    """x -> a -> b -> c: of the steps of b and c alone, a is given"""
    s = Steps()
    a = s.work(s.given())
    c = s.work(s.work(a))
    assert peak(s.program(c), order=[1, 2]).nbytes == 2 * ONE


# -- against the kernels -----------------------------------------------------------------------------------------


def steps_of_the_op_table() -> Iterator[tuple[Step, list[Any], list[Any]]]:
    """Every step that the rows of the op table make of one view, with its inputs and outputs."""
    rows = [case for kind, cases in all_cases().items() if view_of(kind) for case in cases]
    for case in rows:
        with dg.Graph():
            feeds = [dg.placeholder(np.shape(x), np.asarray(x).dtype) for x in case.inputs]
            built = [t for t in nest.flatten(case.build(*feeds)) if isinstance(t, dg.Tensor)]
            program = lower(built, feeds)
        values = dict(zip(program.feeds, map(np.asarray, case.inputs), strict=True))
        for step in program.steps:
            read = [values[v] for v in step.inputs]
            found = KERNELS[step.type](np, *read, **step.attrs)
            made = found if isinstance(found, tuple) else (found,)
            values.update(zip(step.outputs, made, strict=True))
            yield step, read, list(made)


def test_every_op_type_that_counts_as_a_view_is_one() -> None:
    seen = set()
    for step, read, made in steps_of_the_op_table():
        if view_of(step.type) and read[0].flags.c_contiguous:
            pairs = zip(read, made, strict=True) if step.type == "IdentityN" else [(read[0], each) for each in made]
            assert all(np.shares_memory(a, b) for a, b in pairs if b.size > 1), step  # scalars are copied
            seen.add(step.type)
    assert seen == {name for name, op in OPS.items() if op.view}


@settings(max_examples=60, deadline=None, derandomize=True)
@given(data=st.data())
def test_the_peak_is_no_more_than_everything_and_no_less_than_the_results(data: Any) -> None:
    graph = random_graph(lambda options: data.draw(st.sampled_from(options)))
    with dg.Graph():
        leaves = [dg.placeholder(shape) for shape in graph.leaves]
        values = build(graph, leaves)
        program = lower([values[v] for v in graph.ends], leaves)
    made = [v for step in program.steps for v in step.outputs]
    sizes = value_bytes(program.types)
    held = {v for step in program.steps if step.type != "Const" and not view_of(step.type) for v in step.outputs}
    found = peak(program)
    assert sum(sizes[v] for v in set(program.fetches) & held) <= found.nbytes <= sum(sizes[v] for v in made)
    assert sum(item.nbytes for item in found.live) == found.nbytes


# -- the budget --------------------------------------------------------------------------------------------------


def wide() -> Program:
    """x -> a -> b -> c; a, b, c -> y, in float64"""
    with dg.Graph():
        x = dg.placeholder((100, 100), name="x")
        a = dg.matmul(x, x, name="a")
        b = dg.matmul(a, a, name="b")
        c = dg.matmul(b, b, name="c")
        return lower([dg.concatenate([a, b, c], axis=0, name="y")], [x])


def test_a_budget_that_cannot_be_met_is_refused_before_anything_runs() -> None:
    with pytest.raises(BudgetError, match=r"would need 470.5 KiB at its peak, but may use only 97.7 KiB"):
        partition(wide(), local_cluster(1, 1 << 30), Options(memory=100_000))


def test_the_refusal_names_the_three_largest_and_what_would_help() -> None:
    plan = partition(wide(), local_cluster(1, 1 << 30))
    with pytest.raises(BudgetError) as caught:
        refuse(plan.program, plan, 1000)
    text = str(caught.value)
    assert re.search(r"'y' f64\[300,100\], 234.4 KiB \(Concat, at test_memory.py:\d+\); 'a' f64\[100,100\], ", text)
    for remedy in ("a smaller batch", "float32 instead of float64", "fetching fewer"):
        assert remedy in text


def test_recomputing_is_advised_where_there_are_gradients() -> None:
    with dg.Graph():
        x = dg.placeholder((100, 100))
        program = lower(dg.gradients(dg.exp(dg.exp(x @ x) @ x), x), [x])
    with pytest.raises(BudgetError, match="recompute_grad"):
        partition(program, local_cluster(1, 1 << 30), Options(memory=1000))


def test_only_remedies_that_apply_are_named() -> None:
    """x -> a -> b -> c; a, b, c -> y (fetched, small), in float32"""
    s = Steps()
    a = s.work(s.given())
    b = s.work(a)
    y = s.add("AddN", a, b, s.work(b), shape=(1, 1))
    with pytest.raises(BudgetError) as caught:
        partition(s.program(y), local_cluster(1, 1 << 30), Options(memory=ONE))
    assert "recompute_grad" not in str(caught.value)
    assert "float64" not in str(caught.value)
    assert "fetching fewer" not in str(caught.value)


def test_a_budget_that_is_met_is_no_error() -> None:
    plan = partition(wide(), local_cluster(1, 1 << 30), Options(memory=700_000))
    assert refuse(plan.program, plan, 700_000) is plan


def test_a_task_that_fits_no_worker_is_refused_too() -> None:
    with pytest.raises(BudgetError, match=r"may use only 195.3 KiB"):
        partition(wide(), local_cluster(1, 200_000))


def test_a_refusal_travels() -> None:
    error = pickle.loads(pickle.dumps(BudgetError("too much")))
    assert isinstance(error, MemoryError)
    assert str(error) == "too much"
