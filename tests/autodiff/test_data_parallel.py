"""data_parallel: shards give what the whole batch gives, whatever their number, in a graph and outside."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import distgrad as dg
from distgrad.tracing.function import MANY_TRACES

from ..step_graphs import this_process

RNG = np.random.default_rng(5)
W = {"a": RNG.standard_normal((3, 4)), "b": RNG.standard_normal(4)}
X, Y = RNG.standard_normal((7, 3)), RNG.standard_normal((7, 4))


def mean_loss(w: Any, x: Any, y: Any) -> Any:
    return dg.mean((dg.tanh(x @ w["a"] + w["b"]) - y) ** 2)


def sum_loss(w: Any, x: Any, y: Any) -> Any:
    return dg.sum((dg.tanh(x @ w["a"] + w["b"]) - y) ** 2)


def close(found: Any, expected: Any) -> None:
    for a, b in zip(_flat(found), _flat(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14)


def _flat(tree: Any) -> list[Any]:
    if isinstance(tree, dict):
        return [leaf for key in sorted(tree) for leaf in _flat(tree[key])]
    if isinstance(tree, tuple | list):
        return [leaf for item in tree for leaf in _flat(item)]
    return [tree]


# -- results -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shards", [1, 2, 3, 7])
def test_the_mean_of_unequal_shards_is_the_mean_of_the_batch(shards: int) -> None:
    step = dg.value_and_grad(mean_loss)
    close(dg.data_parallel(step, shards)(W, X, Y), step(W, X, Y))


@pytest.mark.parametrize("shards", [1, 2, 3, 7])
def test_the_sum_of_shards_is_the_sum_of_the_batch(shards: int) -> None:
    step = dg.value_and_grad(sum_loss)
    close(dg.data_parallel(step, shards, reduction="sum")(W, X, Y), step(W, X, Y))


def test_in_a_graph_it_gives_the_same_bits_as_outside() -> None:
    step = dg.data_parallel(dg.value_and_grad(mean_loss), 3)
    inside = dg.function(lambda w, x, y: step(w, x, y))(W, X, Y)
    for a, b in zip(_flat(inside), _flat(step(W, X, Y)), strict=True):
        np.testing.assert_array_equal(a, b)


def test_what_it_gives_can_be_differentiated() -> None:
    found = dg.grad(dg.data_parallel(mean_loss, 3, batch=("x", "y")))(W, X, Y)
    close(found, dg.grad(mean_loss)(W, X, Y))


def test_bits_do_not_depend_on_the_tasks_of_a_plan() -> None:
    step = dg.data_parallel(dg.value_and_grad(mean_loss), 5)
    whole = step(W, X, Y)
    with dg.Session(threads=2, cpus_per_task=1, granularity=1e-6, cluster=this_process()):
        fine = step(W, X, Y)
    for a, b in zip(_flat(fine), _flat(whole), strict=True):
        np.testing.assert_array_equal(a, b)


def test_integers_are_counted_and_flags_too() -> None:
    def count(x: Any) -> Any:
        return dg.sum(dg.cast(x > 0, np.int64)), dg.any(x > 0)

    total, flags = dg.data_parallel(count, 7, reduction="sum")(X)
    assert (total, total.dtype, flags) == ((X > 0).sum(), np.int64, (X > 0).any(axis=1).sum())


def test_the_mean_of_integers_is_a_float_as_in_numpy() -> None:
    assert dg.data_parallel(lambda x: dg.sum(x), 2)(np.array([1, 2, 3, 5])) == np.mean([3, 8])


def test_none_stays_none_and_nestings_stay_as_they_are() -> None:
    made = dg.data_parallel(lambda x: {"mean": dg.mean(x), "no": [None]}, 2)(X)
    assert made == {"mean": pytest.approx(X.mean()), "no": [None]}


def sparse_gradient(table: Any, rows: Any) -> Any:
    return dg.gradients(dg.mean(dg.gather(table, rows)), table)[0]


@pytest.mark.parametrize("shards", [2, 3])
def test_sparse_gradients_stay_sparse(shards: int) -> None:
    table, rows = RNG.standard_normal((10, 2)), np.array([1, 4, 4, 9, 1, 3])
    whole, found = (
        f(table, rows) for f in (dg.function(sparse_gradient), dg.data_parallel(sparse_gradient, shards, batch="rows"))
    )
    assert isinstance(found, dg.IndexedSlicesValue)
    np.testing.assert_array_equal(found.indices, rows)
    np.testing.assert_allclose(found.dense(), whole.dense())


def test_variables_are_read_by_every_shard() -> None:
    v = dg.Variable(W["b"])
    found = dg.data_parallel(lambda x: dg.mean(x @ v.read()), 2)(Y)
    np.testing.assert_allclose(found, np.mean(Y @ W["b"]))


def test_a_variable_is_updated_behind_it() -> None:
    v = dg.Variable(W["b"])

    @dg.function
    def step(y: Any) -> Any:
        loss, g = dg.data_parallel(dg.value_and_grad(lambda b, y: dg.mean((y - b) ** 2)), 2, batch="y")(v.read(), y)
        v.assign_sub(0.1 * g)
        return loss

    step(Y)
    np.testing.assert_allclose(v.numpy(), W["b"] + 0.2 * np.mean(Y - W["b"], axis=0) / 4)


# -- tracing -----------------------------------------------------------------------------------------------------


def test_the_function_is_traced_once_per_shape_of_a_shard() -> None:
    shapes = []

    def loss(x: Any) -> Any:
        shapes.append(x.shape[0])
        return dg.mean(x)

    step = dg.data_parallel(loss, 4)
    step(X)
    step(X + 1)
    assert shapes == [2, 1]


def test_every_shard_is_a_feed_of_its_own() -> None:
    plan = dg.data_parallel(dg.value_and_grad(mean_loss), 3).plan(W, X, Y)
    shapes = [plan.program.types[v].shape for v in plan.program.feeds]
    assert shapes == [(3, 4), (4,), (3, 3), (2, 3), (2, 3), (3, 4), (2, 4), (2, 4)]


def test_many_shards_are_few_ops() -> None:
    body = dg.data_parallel(dg.value_and_grad(mean_loss), 200).body(W, np.zeros((200, 3)), np.zeros((200, 4)))
    assert sum(op.type == "Call" for op in body.ops) == 200
    assert len(body.ops) < 650


def test_varying_batches_warn_and_name_the_shard() -> None:
    step = dg.data_parallel(lambda x: dg.mean(x), 2)
    for n in range(1, MANY_TRACES):
        step(np.ones(2 * n))
    with pytest.warns(UserWarning, match=r"data_parallel_<lambda> was traced 5 times: argument x\[0\]"):
        step(np.ones(2 * MANY_TRACES))


# -- which arguments ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [(1, 2), ("x", "y"), ["x", -1], (-2, "y")])
def test_arguments_are_named_by_position_or_name(batch: Any) -> None:
    close(dg.data_parallel(mean_loss, 2, batch=batch)(W, x=X, y=Y), mean_loss_of_all())


def mean_loss_of_all() -> Any:
    return dg.function(mean_loss)(W, X, Y)


def test_of_a_gradient_all_but_what_is_differentiated_is_split() -> None:
    step = dg.grad(lambda x, w: dg.mean(x @ w), argnums=-1)
    close(dg.data_parallel(step, 2)(X, W["a"]), step(X, W["a"]))


def test_of_a_traced_gradient_too() -> None:
    step = dg.function(dg.value_and_grad(mean_loss))
    close(dg.data_parallel(step, 2)(W, X, Y), step(W, X, Y))


def test_of_any_other_function_all_arrays_are_split_and_nothing_else() -> None:
    scaled = dg.data_parallel(lambda data, scale: dg.mean(data["x"] * data["y"][:, :3]) * scale, 2)
    close(scaled({"x": X, "y": Y}, 2.0), np.mean(X * Y[:, :3]) * 2.0)


def test_keyword_only_arguments_are_split() -> None:
    def loss(w: Any, *, x: Any) -> Any:
        return dg.mean(x @ w)

    close(dg.data_parallel(loss, 2, batch="x")(W["a"], x=X), np.mean(X @ W["a"]))


# -- errors ------------------------------------------------------------------------------------------------------


DP = dg.data_parallel


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: DP(3, 2), TypeError, "data_parallel takes a function"),
        (lambda: DP(mean_loss, 0), ValueError, "shards is a positive whole number, got 0"),
        (lambda: DP(mean_loss, 2, reduction="max"), ValueError, "'mean', 'sum', got 'max'"),
        (lambda: DP(mean_loss, 2, batch="z"), ValueError, "names 'z', but .*mean_loss' are w, x, y"),
        (lambda: DP(mean_loss, 2, batch=1.5), TypeError, "positions and names of arguments"),
        (lambda: DP(mean_loss, 2, batch=()), ValueError, "batch is empty"),
        (lambda: DP(mean_loss, 2, batch=5)(W, X, Y), ValueError, "5, which the call does not give: it has 3"),
        (lambda: DP(mean_loss, 2)(W, X, Y), ValueError, r"w\['a'\] has 3, w\['b'\] has 4, x has 7"),
        (lambda: DP(mean_loss, 2, batch=(1, 2))(W, X, Y[:3]), ValueError, "x has 7, y has 3"),
        (lambda: DP(mean_loss, 8, batch=(1, 2))(W, X, Y), ValueError, "7 rows cannot be split into 8 shards"),
        (lambda: DP(lambda x: x, 2)(np.array(1.0)), ValueError, "argument x is a scalar and has no rows"),
        (lambda: DP(lambda x: x, 2, batch=0)(1.0), TypeError, "argument x is 1.0, not an array"),
        (lambda: DP(lambda x: dg.sum(x), 2)(1.0), ValueError, "no argument of the call contains an array to split"),
        (lambda: DP(lambda x: x * 2, 2)(X), ValueError, "its result has different shapes in different shards"),
    ],
)
def test_a_wrong_call_says_what_is_wrong(call: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        call()


def test_a_function_that_assigns_is_refused() -> None:
    v = dg.Variable(0.0)

    def loss(x: Any) -> Any:
        v.assign(dg.mean(x))
        return dg.mean(x)

    with pytest.raises(ValueError, match="Shards run in parallel, so none may assign"):
        dg.data_parallel(loss, 2)(X)
