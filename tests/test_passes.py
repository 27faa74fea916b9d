"""Passes: fewer steps, the same bits."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import distgrad as dg
from distgrad.scheduler import Program, lower, merge_equal
from distgrad.workers import reference

from .random_graphs import build, random_graph

pytestmark = pytest.mark.usefixtures("graph")


def kinds(program: Program) -> list[str]:
    return [step.type for step in program.steps]


def merged(*fetches: dg.Tensor, feeds: tuple[dg.Tensor, ...] = ()) -> list[str]:
    return kinds(merge_equal(lower(fetches, feeds)))


def test_equal_steps_are_computed_once() -> None:
    x = dg.placeholder((2,))
    assert merged(dg.exp(x) * dg.exp(x), feeds=(x,)) == ["Exp", "Mul"]


def test_steps_that_become_equal_are_merged_too() -> None:
    x = dg.placeholder(())
    assert merged(dg.sin(dg.exp(x)) + dg.sin(dg.exp(x)), feeds=(x,)) == ["Exp", "Sin", "Add"]


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (lambda x: dg.sum(x, axis=0), lambda x: dg.sum(x, axis=1)),
        (lambda x: x + dg.constant(0.0), lambda x: x + dg.constant(-0.0)),
        (lambda x: x + dg.constant(np.float64(1)), lambda x: x + dg.cast(dg.constant(np.int64(1)), "float64")),
        (lambda x: dg.full((2, 2), 1.0), lambda x: dg.full((2, 2), 1)),
    ],
)
def test_steps_that_differ_in_an_attribute_are_not_equal(a: Any, b: Any) -> None:
    x = dg.placeholder((2, 2))
    fetches = [a(x), b(x)]
    assert len(set(merge_equal(lower(fetches, [x])).fetches)) == 2


def test_the_same_op_on_two_devices_is_two_steps() -> None:
    x = dg.placeholder(())
    with dg.device("gpu"):
        y = dg.exp(x)
    assert merged(y, dg.exp(x), feeds=(x,)) == ["Exp", "Exp"]


def test_reads_on_both_sides_of_an_assign_stay_two() -> None:
    v = dg.Variable(1.0)
    before = v.read() * 1
    v_next = v.assign(5.0)
    after = v.read() * 1
    assert dg.Session().run([before, v_next, after]) == [1.0, 5.0, 5.0]


def test_what_recompute_grad_computes_again_is_not_merged() -> None:
    x = dg.placeholder((2,))
    plain, again = (dg.gradients(f(x), x)[0] for f in (dg.sin, dg.recompute_grad(lambda x: dg.sin(dg.exp(x)))))
    assert merged(again, feeds=(x,)).count("Exp") == 1
    y = dg.recompute_grad(lambda x: dg.sin(dg.exp(x)))(x)
    assert merged(y, *dg.gradients(y, x), feeds=(x,)).count("Exp") == 2
    assert plain is not None


def test_the_gradient_of_nested_calls_takes_the_steps_of_the_inlined_one() -> None:
    def nested(depth: int) -> Any:
        f: Any = dg.sin
        for _ in range(depth):
            f = dg.function(lambda x, f=f: dg.sin(f(x)))
        return f

    def inlined(x: dg.Tensor, depth: int) -> dg.Tensor:
        for _ in range(depth + 1):
            x = dg.sin(x)
        return x

    x = dg.placeholder(())
    for depth in (1, 5, 20):
        calls, flat = (merged(*dg.gradients(y, x), feeds=(x,)) for y in (nested(depth)(x), inlined(x, depth)))
        assert sorted(kind for kind in calls if kind != "Identity") == sorted(flat)


def test_results_that_are_one_value_are_two_arrays() -> None:
    x = dg.constant([1.0, 2.0])
    a, b = dg.Session().run([x * 2, x * 2])
    a[0] = 99.0
    assert b.tolist() == [2.0, 4.0]


def test_a_merged_program_travels() -> None:
    x = dg.placeholder((2,))
    program = pickle.loads(pickle.dumps(merge_equal(lower([dg.exp(x) + dg.exp(x)], [x]))))
    (found,), _ = reference.run(program, [np.zeros(2)], {})
    assert found.tolist() == [2.0, 2.0]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(data=st.data())
def test_random_programs_give_the_same_bits(data: Any) -> None:
    graph = random_graph(lambda options: data.draw(st.sampled_from(options)))
    with dg.Graph():
        leaves = [dg.placeholder(shape) for shape in graph.leaves]
        values = build(graph, leaves)
        grads = dg.gradients([values[v] for v in graph.ends], leaves, unconnected_gradients="zero")
        fetches = [dg.identity(g) if isinstance(g, dg.Tensor) else g.values for g in grads] + [values[-1]]
        program = lower(fetches, leaves)
    plain, less = (reference.run(p, graph.leaf_values(), {})[0] for p in (program, merge_equal(program)))
    for a, b in zip(plain, less, strict=True):
        np.testing.assert_array_equal(a, b)
