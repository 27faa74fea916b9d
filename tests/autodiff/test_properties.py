"""Section 7 of the gradient semantics: what holds for every graph, on random ones."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import distgrad as dg
from distgrad.graph import check_graph
from distgrad.ops.builder import convert
from distgrad.testing import check_grads

from ..random_graphs import ALL, SMOOTH, RandomGraph, build, random_graph, seeded
from ..support import dense, run

G = dg.gradients
common = settings(deadline=None, max_examples=50, derandomize=True)


@st.composite
def graphs(draw: st.DrawFn, ops: Any = ALL) -> RandomGraph:
    return random_graph(lambda options: draw(st.sampled_from(options)), ops)


def subsets(values: Sequence[int]) -> st.SearchStrategy[list[int]]:
    return st.lists(st.sampled_from(values), unique=True)


def some(draw: st.DrawFn, graph: RandomGraph) -> list[int]:
    """Some values of a graph, leaves and inner ones."""
    return draw(st.lists(st.sampled_from(range(len(graph.shapes))), min_size=1, max_size=4, unique=True))


@st.composite
def graphs_and_xs(draw: st.DrawFn, ops: Any = ALL) -> tuple[RandomGraph, list[int]]:
    graph = draw(graphs(ops))
    return graph, some(draw, graph)


def constants(graph: RandomGraph) -> list[dg.Tensor]:
    return [dg.constant(x) for x in graph.leaf_values()]


def ends(graph: RandomGraph, values: Sequence[Any]) -> list[Any]:
    return [values[v] for v in graph.ends]


def assert_same(found: Any, expected: Any, exactly: bool = False) -> None:
    found, expected = run([list(found), list(expected)])
    assert [x is None for x in found] == [x is None for x in expected]
    for x, y in zip(found, expected, strict=True):
        if x is not None:
            tolerance = 0.0 if exactly else 1e-9
            np.testing.assert_allclose(dense(x), dense(y), rtol=tolerance, atol=tolerance)


def test_a_seed_gives_the_same_plain_graph_again() -> None:
    first, again = random_graph(seeded(3), max_nodes=30), random_graph(seeded(3), max_nodes=30)
    assert pickle.loads(pickle.dumps(first)) == again


@common
@given(graphs())
def test_a_random_graph_has_the_shapes_it_says(graph: RandomGraph) -> None:
    with dg.Graph():
        assert [t.shape for t in build(graph, constants(graph))] == graph.shapes


@common
@given(graphs(SMOOTH))
def test_7_01_gradients_equal_central_differences(graph: RandomGraph) -> None:
    check_grads(lambda *leaves: ends(graph, build(graph, leaves)), graph.leaf_values(), order=1, atol=1e-6)


@common
@given(graphs(SMOOTH))
def test_7_01_so_do_gradients_of_gradients(graph: RandomGraph) -> None:
    check_grads(lambda *leaves: ends(graph, build(graph, leaves)), graph.leaf_values(), order=2, atol=1e-6)


@common
@given(graphs_and_xs(), st.lists(st.sampled_from([None, "cpu", "worker:0"]), min_size=1, max_size=3))
def test_7_02_no_method_gate_or_placement_changes_values(
    case: tuple[RandomGraph, list[int]], devices: list[str | None]
) -> None:
    graph, xs = case
    with dg.Graph() as owner:
        values = build(graph, constants(graph))
        expected = G(ends(graph, values), [values[v] for v in xs])
        placed = _placed(graph, devices)
        for made, method, gate in itertools.product((values, placed), (0, 1, 2), (False, True)):
            found = G(ends(graph, made), [made[v] for v in xs], aggregation_method=method, gate_gradients=gate)
            assert_same(found, expected)
        check_graph(owner)


def _placed(graph: RandomGraph, devices: Sequence[str | None]) -> list[Any]:
    """The same graph with its values on alternating devices."""
    rounds = itertools.cycle(devices)

    def move(v: int, x: Any) -> Any:
        with dg.device(next(rounds)):
            return dg.identity(x)

    return build(graph, constants(graph), after=move)


@common
@given(st.data())
def test_7_03_stop_gradients_equals_the_graph_rebuilt_with_stop_gradient(data: st.DataObject) -> None:
    graph = data.draw(graphs())
    xs, stopped = some(data.draw, graph), data.draw(subsets(range(len(graph.shapes))))
    with dg.Graph():
        plain = build(graph, constants(graph))
        rebuilt = build(graph, constants(graph), after=lambda v, x: dg.stop_gradient(x) if v in stopped else x)
        stops = [plain[v] for v in stopped]
        found = G(ends(graph, plain), [plain[v] for v in xs], stop_gradients=stops, unconnected_gradients="zero")
        expected = G(ends(graph, rebuilt), [rebuilt[v] for v in xs], unconnected_gradients="zero")
        assert_same(found, expected, exactly=True)


@common
@given(graphs_and_xs())
def test_7_04_zero_is_none_with_zeros_for_none(case: tuple[RandomGraph, list[int]]) -> None:
    graph, chosen = case
    with dg.Graph():
        values = build(graph, constants(graph))
        ys, xs = values[-1], [values[v] for v in chosen]
        none, zero = G(ys, xs), G(ys, xs, unconnected_gradients="zero")
        assert not any(g is None for g in zero)
        assert_same(zero, [dg.zeros_like(x) if g is None else g for g, x in zip(none, xs, strict=True)], exactly=True)


@common
@given(graphs_and_xs(), st.integers(0, 100))
def test_7_05_gradients_add_over_ys_and_are_linear_in_grad_ys(case: tuple[RandomGraph, list[int]], seed: int) -> None:
    graph, chosen = case
    rng = np.random.default_rng(seed)
    with dg.Graph():
        values = build(graph, constants(graph))
        ys, xs = ends(graph, values), [values[v] for v in chosen]
        us, vs = ([rng.normal(size=y.shape) for y in ys] for _ in range(2))
        assert_same(_zero(ys, xs), _sums([_zero(y, xs) for y in ys]))
        mixed = [2 * u - 3 * v for u, v in zip(us, vs, strict=True)]
        assert_same(
            _zero(ys, xs, mixed),
            [2 * a - 3 * b for a, b in zip(_zero(ys, xs, us), _zero(ys, xs, vs), strict=True)],
        )


def _zero(ys: Any, xs: Any, grad_ys: Any = None) -> list[Any]:
    return [convert(g) for g in G(ys, xs, grad_ys, unconnected_gradients="zero")]


def _sums(lists: Sequence[Sequence[Any]]) -> list[Any]:
    return [dg.add_n(list(terms)) for terms in zip(*lists, strict=True)]


@common
@given(st.data())
def test_7_06_neither_order_nor_repetition_of_xs_changes_values(data: st.DataObject) -> None:
    graph = data.draw(graphs())
    once = some(data.draw, graph)
    again = data.draw(st.lists(st.sampled_from(once), min_size=1, max_size=6))
    with dg.Graph():
        values = build(graph, constants(graph))
        ys = ends(graph, values)
        by_value = dict(zip(once, G(ys, [values[v] for v in once]), strict=True))
        found = G(ys, [values[v] for v in again] + [values[v] for v in once])
        assert_same(found, [by_value[v] for v in again + once], exactly=True)


@common
@given(graphs())
def test_7_07_inlined_called_and_symbolic_gradients_are_equal(graph: RandomGraph) -> None:
    def f(*leaves: Any) -> list[Any]:
        return ends(graph, build(graph, leaves))

    types = [np.dtype(np.float64)] * len(graph.leaves)
    with dg.Graph():
        xs = constants(graph)
        ys = f(*xs)
        inlined = _zero(ys, xs)
        assert_same(_zero(dg.function(f)(*xs), xs), inlined)
        seeds = [dg.ones_like(y) for y in ys]
        defined = dg.Defun(*types, func_name="f")(_with_arguments(f, len(xs)))
        assert_same(dg.raw_ops.SymbolicGradient(input=[*xs, *seeds], Tout=types, f=defined), inlined)


def _with_arguments(f: Callable[..., Any], count: int) -> Callable[..., Any]:
    """Defun takes no *args: f with this many named arguments."""
    wrappers: dict[int, Callable[..., Any]] = {
        1: lambda a: tuple(f(a)),
        2: lambda a, b: tuple(f(a, b)),
        3: lambda a, b, c: tuple(f(a, b, c)),
    }
    return wrappers[count]


@common
@given(graphs(SMOOTH), st.integers(0, 100))
def test_7_08_a_jvp_by_two_vjps_equals_differences_and_never_runs_the_dummy(graph: RandomGraph, seed: int) -> None:
    rng = np.random.default_rng(seed)
    leaves = graph.leaf_values()
    tangents = [rng.normal(size=x.shape) for x in leaves]
    with dg.Graph():
        xs = [dg.constant(x) for x in leaves]
        ys = ends(graph, build(graph, xs))
        dummies = [dg.placeholder(y.shape) for y in ys]
        gs = [convert(g) for g in G(ys, xs, grad_ys=dummies, unconnected_gradients="zero")]
        found = run(G(gs, dummies, grad_ys=tangents, unconnected_gradients="zero"))  # no dummy is fed

    def at(t: float) -> list[Any]:
        return ends(graph, build(graph, [x + t * v for x, v in zip(leaves, tangents, strict=True)]))

    h = 1e-4
    for jvp, after, before in zip(found, at(h), at(-h), strict=True):
        np.testing.assert_allclose(jvp, (after - before) / (2 * h), rtol=1e-5, atol=1e-5)


@common
@given(
    st.integers(1, 5),
    hnp.arrays(np.int64, hnp.array_shapes(min_dims=0, max_dims=2, min_side=0, max_side=4), elements=st.integers(0, 9)),
    st.integers(0, 100),
)
def test_7_09_sparse_gradients_equal_those_of_a_one_hot_matmul(rows: int, indices: Any, seed: int) -> None:
    indices = indices % rows
    rng = np.random.default_rng(seed)
    table, weights = rng.normal(size=(rows, 3)), rng.normal(size=(*indices.shape, 3))
    with dg.Graph():
        p = dg.constant(table)
        one_hot = np.eye(rows)[indices.reshape(-1)]
        picked = dg.reshape(dg.matmul(one_hot, p), (*indices.shape, 3))
        (sparse,) = G(dg.tanh(dg.gather(p, indices)) * weights, p)
        assert isinstance(sparse, dg.IndexedSlices)
        assert_same([sparse], G(dg.tanh(picked) * weights, p))


@common
@given(graphs(SMOOTH))
def test_7_10_custom_gradient_with_the_true_gradient_changes_nothing(graph: RandomGraph) -> None:
    def f(*leaves: Any) -> Any:
        return dg.add_n([dg.sum(y) for y in ends(graph, build(graph, leaves))])

    @dg.custom_gradient
    def wrapped(*leaves: Any) -> Any:
        y = f(*leaves)
        return y, lambda dy: [dy * g for g in _zero(y, leaves)]

    with dg.Graph():
        xs = constants(graph)
        first, expected = _zero(wrapped(*xs), xs), _zero(f(*xs), xs)
        assert_same(first, expected)
        assert_same(_zero([dg.sin(g) for g in first], xs), _zero([dg.sin(g) for g in expected], xs))
