"""Wrapping a part of a model in a function, a Defun, a custom_gradient or recompute_grad changes no gradient.

Random expressions of two arguments and two variables, with random parts wrapped and nested, differentiated to second
order in a graph, in a function, and in a function called in a function.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import distgrad as dg
from distgrad.autodiff.gradients import gradients_of_part

Model = Callable[[Any, Any], Any]

OPS: list[Model] = [
    lambda a, b: dg.sin(a) * b,
    lambda a, b: a * b + a,
    lambda a, b: dg.exp(-a * a) * b,
    lambda a, b: a / (1 + b * b),
    lambda a, b: dg.tanh(a + b) * b,
]


def with_its_true_gradient(f: Model) -> Model:
    @dg.custom_gradient
    def wrapped(a: Any, b: Any) -> Any:
        y = f(a, b)

        def grad(dy: Any, variables: Sequence[dg.Variable] = ()) -> Any:
            xs = [a, b, *variables]
            found = dg.gradients(y, xs, dy, unconnected_gradients="zero", stop_gradients=[a, b])
            return (found[:2], found[2:]) if variables else found

        return y, grad

    return wrapped


WRAPPERS: dict[str, Callable[[Model], Model]] = {
    "function": dg.function,
    "function that captures": lambda f: lambda a, b: dg.function(lambda a: f(a, b))(a),
    "Defun": lambda f: dg.Defun()(lambda a, b: f(a, b)),
    "custom_gradient": with_its_true_gradient,
    "recompute_grad": dg.recompute_grad,
}

leaf = st.one_of(
    st.tuples(st.just("op"), st.integers(0, len(OPS) - 1)),
    st.tuples(st.just("variable"), st.integers(0, 1)),
    st.just(("swap",)),
)
expressions = st.recursive(
    st.lists(leaf, min_size=1, max_size=3),
    lambda inner: st.lists(
        st.one_of(leaf, st.tuples(st.just("part"), st.sampled_from(sorted(WRAPPERS)), inner)), min_size=1, max_size=3
    ),
    max_leaves=6,
)


def model(expression: Sequence[Any], variables: Sequence[dg.Variable], wrap: bool) -> Model:
    def f(a: Any, b: Any) -> Any:
        for kind, *rest in expression:
            if kind == "part":
                part = model(rest[1], variables, wrap)
                a = (WRAPPERS[rest[0]](part) if wrap else part)(a, b)
            elif kind == "variable":
                a = a * variables[rest[0]]
            elif kind == "swap":
                a, b = b, a + 0.1
            else:
                a = OPS[rest[0]](a, b)
        return a + 0.01 * b

    return f


def derivatives(expression: Sequence[Any], wrap: bool, where: str) -> list[Any]:
    """The value and all first and second order gradients, the second of a function that mixes the first."""
    variables = [dg.Variable(0.7, name="v"), dg.Variable(0.3, name="w")]
    f = model(expression, variables, wrap)

    def work(x: Any, k: Any) -> list[Any]:
        y = f(x, k)
        made = [y]
        for _ in range(2):
            grads = dg.gradients(y, [x, k, *variables], unconnected_gradients="zero")
            made += grads
            y = dg.add_n([dg.sin(g * (1 + 0.3 * i)) for i, g in enumerate(grads)])
        return made

    if where == "graph":
        with dg.Graph() as graph:
            made = work(dg.constant(0.4), dg.constant(0.9))
        dg.check_graph(graph)
        return dg.Session().run(made)
    inner = dg.function(work)
    return (inner if where == "function" else dg.function(lambda x, k: inner(x, k)))(np.float64(0.4), np.float64(0.9))


@pytest.mark.parametrize("where", ["graph", "function", "function in a function"])
@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(expression=expressions)
def test_wrapping_a_part_changes_no_gradient(expression: Sequence[Any], where: str) -> None:
    plain, wrapped = (derivatives(expression, wrap, where) for wrap in (False, True))
    np.testing.assert_allclose(plain, wrapped, rtol=1e-9, atol=1e-11)


def test_gradients_in_a_function_follow_a_captured_tensor_to_the_graph_around_it() -> None:
    with dg.Graph():
        x = dg.constant(3.0)
        m = x * x
        y = dg.function(lambda: dg.gradients(m * 2, x)[0])()
    assert dg.Session().run(y) == 12.0


def test_recompute_grad_in_a_function_reaches_a_variable_behind_a_captured_tensor() -> None:
    v = dg.Variable(3.0)
    with dg.Graph():
        k, x = v * 2, dg.constant(5.0)
        y = dg.function(lambda x: dg.recompute_grad(lambda x: x * x * k)(x))(x)
        assert dg.Session().run(dg.gradients(y, [x, v])) == [60.0, 50.0]


def test_nested_recompute_grads_in_a_function_reach_a_shared_variable() -> None:
    v = dg.Variable(3.0)
    inner = dg.recompute_grad(lambda x: x * v)
    block = dg.recompute_grad(lambda x: inner(x) * v)
    with dg.Graph():
        x = dg.constant(5.0)
        assert dg.Session().run(dg.gradients(dg.function(lambda x: block(x))(x), [x, v])) == [9.0, 30.0]


def test_a_grad_fn_may_return_a_tensor_of_the_forward_pass() -> None:
    @dg.custom_gradient
    def softplus(x: Any) -> Any:
        e = dg.exp(x)
        return dg.log(1 + e), lambda dy: e

    with dg.Graph():
        x = dg.constant(0.0)
        assert dg.Session().run(dg.gradients(dg.function(softplus)(x), x)) == [1.0]


def test_a_rule_that_returns_a_tensor_of_an_unrelated_graph_is_refused() -> None:
    with dg.Graph():
        foreign = dg.constant(1.0)
    f = dg.custom_gradient(lambda x: (x * 1, lambda dy: foreign))
    with dg.Graph():
        x = dg.constant(1.0)
        with pytest.raises(ValueError, match="belong to different graphs"):
            dg.gradients(f(x), x)


def test_the_gradients_of_a_part_do_not_look_behind_where_it_begins() -> None:
    """x -> 1000 ops -> s (stopped) -> y: nothing behind s is looked at, so deleting what it reads changes nothing."""
    with dg.Graph():
        x = y = dg.constant(1.0)
        for _ in range(1000):
            y = y * x
        s = y * 1
        for op in x.graph.ops[1:-2]:
            del op.inputs
        out = s * x
        assert dg.Session().run(gradients_of_part(out, x, None, [s]), {s: 2.0}) == [2.0]
