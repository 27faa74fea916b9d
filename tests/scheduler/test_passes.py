"""Passes: fewer steps, the same bits."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import distgrad as dg
from distgrad import nest
from distgrad.scheduler.passes.equal import merge_equal
from distgrad.scheduler.passes.sums import slice_sums, trees
from distgrad.scheduler.program import Program, lower
from distgrad.types import size_of
from distgrad.workers import reference

from ..cases import all_cases
from ..random_graphs import RandomGraph, build, random_graph
from .test_rewrites import assert_same_bits, kinds, optimized

pytestmark = pytest.mark.usefixtures("graph")


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


# -- sums of slices ----------------------------------------------------------------------------------------------------


def slices_of(shape: tuple[int, ...], keys: Sequence[Any], *dense: Any, dtype: str = "float64") -> list[dg.Tensor]:
    """Placeholders, and last the sum of the slices that they stand for and of those that have the full shape."""
    values = [dg.placeholder(np.zeros(shape)[key].shape, dtype) for key in keys]
    whole = [dg.placeholder(shape, dtype) for _ in dense]
    terms = [dg.scatter(x, key, shape) for x, key in zip(values, keys, strict=True)]
    for place, x in zip(dense, whole, strict=True):
        terms.insert(place, x)
    return [*values, *whole, dg.add_n(terms)]


K = np.index_exp
ALL_MINUS_ZERO: list[tuple[tuple[int, ...], list[Any], tuple[int, ...]]] = [
    ((4, 3), [K[0], K[2]], ()),
    ((4, 3), [K[1:], K[:-1]], ()),
    ((4, 3), [K[1:], K[:, 1:]], (0,)),
    ((4, 3), [K[::2], K[::-2], K[2]], (1,)),
    ((9,), [K[::2], K[1::3], K[4:]], ()),
    ((4, 3), [K[:2, None], K[1, 2]], (2,)),
    ((), [(), ()], ()),
]


@pytest.mark.parametrize("dtype", ["float64", "complex64", "float16", "int32"])
@pytest.mark.parametrize(("shape", "keys", "dense"), ALL_MINUS_ZERO)
def test_slices_are_added_in_one_buffer_to_the_bit(shape: Any, keys: Any, dense: Any, dtype: str) -> None:
    """-0.0 is where an array of zeros around a slice shows: 0.0 is added to what lies outside."""
    *feeds, y = slices_of(shape, keys, *dense, dtype=dtype)
    before = lower([y], feeds)
    after = slice_sums(before)
    assert kinds(after) == ["AddSlices"]
    rng = np.random.default_rng(0)
    for some in (0.0, 0.5, 1.0):
        arrays = [np.where(rng.random(x.shape) < some, rng.standard_normal(x.shape), -0.0) for x in feeds]
        assert_same_bits(before, after, *[x.astype(dtype) for x in arrays])


def test_the_gradient_of_a_loop_over_rows_is_linear() -> None:
    a = dg.placeholder((252, 20_000))
    total = dg.zeros(20_000)
    for i in range(252):
        total = total + dg.sin(a[i])
    program = optimized(lower(dg.gradients(total, a), [a]))
    assert kinds(program).count("Stack") == 1
    made = sum(size_of(program.types[v].shape) for step in program.steps for v in step.outputs)
    assert made <= 5 * 252 * 20_000


def test_the_gradients_of_a_loop_over_rows_keep_every_bit() -> None:
    a = dg.placeholder((5, 3), "float32")
    total = dg.sum(a)
    for i in (0, 3, -1, 0):
        total = total + dg.sum(dg.sin(a[i]) * a[1:3])
    before = lower(dg.gradients(total, a), [a])
    after = optimized(before)
    assert "AddSlices" in kinds(after)
    assert_same_bits(before, after, np.random.default_rng(0).standard_normal((5, 3)).astype("float32"))


@pytest.mark.parametrize(
    ("keys", "kind"),
    [
        ([2, 0, 1], "Stack"),
        ([slice(1, 3), slice(0, 1)], "Concat"),
        ([slice(1, 3), slice(0, 2)], "AddSlices"),
        ([0, 1], "AddSlices"),
        ([slice(0, 3, 2), 1], "AddSlices"),
        ([0, 1, 1, 2], "AddSlices"),
    ],
)
def test_slices_that_fill_everything_side_by_side_are_put_together(keys: Any, kind: str) -> None:
    a = dg.placeholder((3, 2))
    total = dg.add_n([dg.sum(dg.sin(a[key])) for key in keys])
    before = lower(dg.gradients(total, a), [a])
    after = slice_sums(before)
    assert kinds(after)[-1] == kind
    assert_same_bits(before, after, np.random.default_rng(0).standard_normal((3, 2)))


def test_a_slice_that_is_read_elsewhere_stays_a_term() -> None:
    *feeds, y = slices_of((4,), [0, 1, 2])
    part = y.op.inputs[1]
    program = slice_sums(lower([y, part], feeds))
    assert kinds(program) == ["StridedSliceGrad", "Update", "Update"]
    assert [step.attrs for step in program.steps[1:]] == [{"index": (k,), "mode": "add"} for k in (0, 2)]


def test_a_few_small_slices_are_added_to_another_term_in_the_order_of_the_terms() -> None:
    a = dg.placeholder((12,))
    total = dg.sum(a[1] * a[1]) + dg.sum(dg.square(a)) + dg.sum(a[2:4] * a[0]) + dg.sum(dg.sin(a))
    before = lower(dg.gradients(total, a), [a])
    after = slice_sums(before)
    assert {"StridedSliceGrad", "AddSlices"}.isdisjoint(kinds(after))
    assert kinds(after).count("Update") == 4
    assert_same_bits(before, after, np.random.default_rng(0).standard_normal(12))


def test_overlapping_slices_before_the_first_array_are_added_to_each_other_first() -> None:
    a = dg.placeholder((6,))
    total = dg.sum(dg.square(a)) + dg.sum(a[2:4] * a[1:3])  # gradients arrive from the last to the first
    after = slice_sums(lower(dg.gradients(total, a), [a]))
    assert kinds(after)[-1] == "AddSlices"


def test_a_slice_that_somebody_waits_for_stays_a_term() -> None:
    *feeds, y = slices_of((4,), [0, 1])
    with dg.control_dependencies([y.op.inputs[1]]):
        z = dg.sin(feeds[0])
    assert "AddSlices" not in kinds(slice_sums(lower([y, z], feeds)))


# -- trees -------------------------------------------------------------------------------------------------------------


def drawn(program: Program) -> str:
    """The sums of a program as brackets around the inputs they add."""
    names = {v: "abcdefghijklmnopqrstuvwxyz"[i] for i, v in enumerate(program.feeds)}
    for step in program.steps:
        names[step.outputs[0]] = f"({' '.join(names[v] for v in step.inputs)})"
    return names[program.fetches[0]]


def sum_of(count: int, shape: tuple[int, ...] = (100, 100)) -> tuple[list[dg.Tensor], dg.Tensor]:
    xs = [dg.placeholder(shape) for _ in range(count)]
    return xs, dg.add_n(xs)


@pytest.mark.parametrize(
    ("count", "fan_in", "tree"),
    [
        (4, 4, "(a b c d)"),
        (5, 4, "((a b c d) e)"),
        (8, 4, "((a b c d) (e f g h))"),
        (17, 4, "(((a b c d) (e f g h) (i j k l) (m n o p)) q)"),
        (5, 2, "(((a b) (c d)) e)"),
        (7, 3, "((a b c) (d e f) g)"),
    ],
)
def test_the_shape_of_a_tree_follows_from_the_order_of_the_terms(count: int, fan_in: int, tree: str) -> None:
    xs, y = sum_of(count)
    assert drawn(trees(lower([y], xs), fan_in)) == tree


def test_a_tree_adds_all_of_its_terms() -> None:
    xs, y = sum_of(23)
    (found,), _ = reference.run(trees(lower([y], xs)), [np.full((100, 100), 2.0**i) for i in range(23)], {})
    assert (found == 2.0**23 - 1).all()


def test_small_sums_are_no_trees() -> None:
    xs, y = sum_of(9, (10, 10))
    program = lower([y], xs)
    assert trees(program) is program


def test_a_part_of_a_tree_stands_where_its_last_term_is_made() -> None:
    x = dg.placeholder((100, 100))
    y = dg.add_n([dg.sin(x, name=f"t{i}") for i in range(6)])
    with dg.control_dependencies([y]):
        z = dg.cos(x)
    program = trees(lower([z], [x]))
    assert " ".join(kinds(program)) == "Sin Sin Sin Sin AddN Sin Sin AddN AddN Cos"
    assert program.steps[-1].after == (8,)


def test_a_fan_in_of_one_is_refused() -> None:
    with pytest.raises(ValueError, match="a sum has at least 2 terms, but fan_in is 1"):
        trees(lower([dg.constant(1.0)]), fan_in=1)


# -- all of them -------------------------------------------------------------------------------------------------------


def test_the_gates_of_gradients_stay() -> None:
    x, w = dg.placeholder((3, 3)), dg.placeholder((3, 3))
    y = dg.sum(dg.identity(dg.sin(x @ w)) @ w)
    before = lower(dg.gradients(y, [x, w], gate_gradients=True), [x, w])
    after = optimized(before)
    gates = [i for i, step in enumerate(after.steps) if step.type == "NoOp"]
    assert len(gates) == kinds(before).count("NoOp") > 0
    for gate in gates:
        gated = [step for step in after.steps if step.after == (gate,)]
        assert [step.type for step in gated] == ["Identity", "Identity"]
        makers = {i for i, step in enumerate(after.steps) for v in step.outputs for g in gated if v in g.inputs}
        assert set(after.steps[gate].after) == makers
    feeds = np.random.default_rng(0).standard_normal((2, 3, 3))
    assert_same_bits(before, after, *feeds)


def test_what_recompute_grad_computes_again_stays_a_second_computation() -> None:
    x = dg.placeholder((2,))
    y = dg.recompute_grad(lambda x: dg.sin(dg.exp(x)))(dg.identity(x))
    for fetches in ([y, *dg.gradients(y, x)], [y, *dg.gradients(y, x, grad_ys=[dg.identity(dg.ones(2))])]):
        assert kinds(optimized(lower(fetches, [x]))).count("Exp") == 2


def test_the_identities_of_custom_gradient_go() -> None:
    @dg.custom_gradient
    def f(x: dg.Tensor) -> Any:
        return dg.sin(x), lambda dy: dy * dg.cos(x)

    x = dg.placeholder((2,))
    y = f(x)
    assert sorted(kinds(optimized(lower([y, *dg.gradients(y, x)], [x])))) == ["Cos", "Sin"]


def test_optimizing_twice_changes_nothing_more() -> None:
    x = dg.placeholder((3, 4), "float32")
    w = dg.placeholder((4, 4), "float32")
    loss = dg.mean(dg.square(dg.nn.relu(x @ w) @ dg.transpose(w)))
    program = optimized(lower([loss, *dg.gradients(loss, w)], [x, w]))
    assert optimized(program) == program


def lowered(graph: RandomGraph, dtype: str, constants: int) -> tuple[Program, list[Any]]:
    """The program of a random graph and its gradients, some of its leaves constants; and what is fed."""
    arrays = graph.leaf_values(dtype=dtype)
    with dg.Graph():
        fed = [i for i in range(len(arrays)) if not constants >> i & 1]
        leaves = [dg.placeholder(x.shape, dtype) if i in fed else dg.constant(x) for i, x in enumerate(arrays)]
        values = build(graph, leaves)
        grads = dg.gradients([values[v] for v in graph.ends], leaves, unconnected_gradients="zero")
        fetches = [dg.identity(g) if isinstance(g, dg.Tensor) else g.values for g in grads] + [values[-1]]
        return lower(fetches, [leaves[i] for i in fed]), [arrays[i] for i in fed]


@settings(max_examples=150, deadline=None, derandomize=True)
@given(data=st.data())
def test_random_programs_give_the_same_bits(data: Any) -> None:
    graph = random_graph(lambda options: data.draw(st.sampled_from(options)), max_nodes=12)
    program, feeds = lowered(graph, data.draw(st.sampled_from(["float64", "float32"])), data.draw(st.integers(0, 7)))
    special = data.draw(st.sampled_from([None, -0.0, np.nan, np.inf]))
    if special is not None:
        feeds = [np.where(np.arange(x.size).reshape(x.shape) % 2, x, x.dtype.type(special)) for x in feeds]
    for after in (merge_equal(program), optimized(program)):
        assert_same_bits(program, after, *feeds)


@pytest.mark.parametrize("op_type", sorted(all_cases()))
def test_every_op_and_its_gradients_keep_their_bits(op_type: str) -> None:
    for case in all_cases()[op_type]:
        arrays = [np.asarray(x) for x in case.inputs]
        xs = [dg.placeholder(x.shape, x.dtype) for x in arrays]
        ys = [y for y in nest.flatten(case.build(*xs)) if isinstance(y, dg.Tensor)]
        moving = [x for x in xs if x.dtype.kind in "fc"] if case.order else []
        losses = [dg.sum(dg.real(y * y)) for y in ys if y.dtype.kind in "fc"]
        grads = dg.gradients(losses, moving, unconnected_gradients="zero")
        program = lower([*ys, *[dg.add(g, 0.0) for g in grads]], xs)
        assert_same_bits(program, optimized(program), *arrays)
