"""Reductions, cumulative products and sorting beyond the op table: ties, zeros, empty axes, dtypes, errors."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import distgrad as dg
from distgrad.testing import check_grads

INF = np.inf
DTYPES = ("bool", "int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64", "complex64")


def slope(f: Any, x: Any) -> Any:
    """The gradient of the sum of f."""
    with dg.Graph():
        t = dg.constant(x)
        found = dg.gradients(f(t), t)
    return dg.Session().run(found)[0]


# -- dtypes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["sum", "prod", "cumsum", "cumprod", "mean", "max", "min", "var", "std", "argmax", "any", "all", "sort"]
)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_dtype_of_the_result_is_numpys(name: str, dtype: str) -> None:
    x = np.ones((2, 3), dtype)
    with dg.Graph():
        built = getattr(dg, name)(dg.constant(x), axis=1)
    assert built.dtype == getattr(dg, name)(x, axis=1).dtype == getattr(np, name)(x, axis=1).dtype


@pytest.mark.parametrize("name", ["sum", "prod", "cumsum", "cumprod", "mean", "var", "std"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_dtype_says_in_what_to_compute(name: str, dtype: str) -> None:
    x = np.array([1, 2, 3], "int16")
    assert getattr(dg, name)(x, dtype=dtype).dtype == dtype


def test_the_mean_of_many_small_halves_does_not_overflow() -> None:
    assert dg.mean(np.full(100_000, 2, "float16")) == 2


def test_a_gradient_through_another_dtype_comes_back_in_the_inputs() -> None:
    found = slope(lambda x: dg.sum(x, dtype="float64"), np.ones(3, "float32"))
    assert found.dtype == "float32"


# -- ties --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("f", [dg.max, lambda x: dg.min(-x), dg.amax])
def test_equal_extremes_share_the_gradient(f: Any) -> None:
    np.testing.assert_array_equal(abs(slope(f, np.array([2.0, 2.0, 0.0]))), [0.5, 0.5, 0.0])


def test_ties_are_shared_within_each_row() -> None:
    x = np.array([[1.0, 1.0, 0.0], [0.0, 3.0, 1.0]])
    np.testing.assert_array_equal(slope(lambda x: dg.max(x, axis=1), x), [[0.5, 0.5, 0.0], [0.0, 1.0, 0.0]])


def test_sort_sends_the_gradient_of_equal_elements_to_their_own_places() -> None:
    weights = np.array([1.0, 2.0, 3.0])
    np.testing.assert_array_equal(slope(lambda x: dg.sort(x) * weights, np.array([5.0, 1.0, 5.0])), [2.0, 1.0, 3.0])


def test_top_k_takes_the_first_of_equal_elements() -> None:
    values, indices = dg.top_k(np.array([1, 3, 0, 3, 1]), 3)
    np.testing.assert_array_equal(values, [3, 3, 1])
    np.testing.assert_array_equal(indices, [1, 3, 0])


@pytest.mark.parametrize("dtype", ["uint8", "bool", "int8"])
def test_top_k_orders_dtypes_that_have_no_negative(dtype: str) -> None:
    values, _ = dg.top_k(np.array([0, 1, 0], dtype), 2)
    np.testing.assert_array_equal(values, np.array([1, 0], dtype))


def test_indices_get_and_give_no_gradient() -> None:
    with dg.Graph():
        x = dg.constant([3.0, 1.0, 2.0])
        values, indices = dg.top_k(x, 2)
        assert dg.gradients([dg.argsort(x), dg.argmax(x), indices], x) == [None]
        (through_values,) = dg.gradients([values, dg.cast(indices, float)], x)
    np.testing.assert_array_equal(dg.Session().run(through_values), [1.0, 0.0, 1.0])


# -- zeros, infinities, nothing ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("x", "expected"),
    [([2.0, 0.0, 3.0], [0.0, 6.0, 0.0]), ([0.0, 0.0, 3.0], [0.0, 0.0, 0.0]), ([2.0, 5.0, 3.0], [15.0, 6.0, 10.0])],
)
def test_the_gradient_of_a_product_is_the_product_of_the_others(x: list[float], expected: list[float]) -> None:
    np.testing.assert_array_equal(slope(dg.prod, np.array(x)), expected)


def test_cumulative_products_have_third_derivatives_where_factors_are_zero() -> None:
    x = np.array([1.5, 0.0, 0.7, 0.0, -1.2])
    check_grads(dg.prod, [x], order=3)
    check_grads(dg.cumprod, [x], order=3)


def test_a_long_scan_equals_the_loop() -> None:
    rng = np.random.default_rng(3)
    a, b = rng.uniform(-1, 1, 1000), rng.uniform(-1, 1, 1000)
    expected, total = [], 0.0
    for i in range(1000):
        total = a[i] * total + b[i]
        expected.append(total)
    np.testing.assert_allclose(dg.linear_scan(a, b), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("x", "expected"),
    [([0.0, -np.inf], [1.0, 0.0]), ([-np.inf, -np.inf], [0.0, 0.0]), ([1000.0, 1000.0], [0.5, 0.5])],
)
def test_the_gradient_of_logsumexp_has_no_nan(x: list[float], expected: list[float]) -> None:
    np.testing.assert_allclose(slope(dg.logsumexp, np.array(x)), expected)
    curvature = slope(lambda t: dg.gradients(dg.logsumexp(t), t)[0] * np.array([1.0, 2.0]), np.array(x))
    assert np.isfinite(curvature).all()


@pytest.mark.parametrize(("f", "expected"), [(dg.sum, 0), (dg.prod, 1), (dg.any, 0), (dg.all, 1), (dg.logsumexp, -INF)])
def test_reductions_of_nothing_have_their_identity(f: Any, expected: Any) -> None:
    assert f(np.zeros(0)) == expected


@pytest.mark.parametrize("f", [dg.mean, dg.var, dg.std, dg.median])
def test_averages_of_nothing_are_nan_without_a_warning(f: Any) -> None:
    assert np.isnan(f(np.zeros(0)))


def test_more_degrees_of_freedom_than_elements_give_nan_or_infinity_as_in_numpy() -> None:
    assert np.isnan(dg.var(np.ones(1), ddof=1))
    assert dg.var(np.array([1.0, 2.0]), ddof=3) == np.inf


@pytest.mark.parametrize("f", [dg.max, dg.min, dg.argmax, dg.argmin, dg.ptp])
@pytest.mark.parametrize(("shape", "axis"), [((0,), None), ((0, 3), 0), ((0, 0), 1)])
def test_extremes_of_nothing_are_refused_when_built(f: Any, shape: tuple[int, ...], axis: int | None) -> None:
    with pytest.raises(ValueError, match="no elements along axis"):
        f(np.zeros(shape), axis=axis)
    with dg.Graph(), pytest.raises(ValueError, match="zero-size"):
        f(dg.zeros(shape), axis=axis)


# -- arguments ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("f", [dg.sum, dg.max, dg.argmax, dg.cumsum, dg.sort, dg.logsumexp])
@pytest.mark.parametrize("axis", [2, -3])
def test_an_axis_out_of_range_is_numpys_axis_error(f: Any, axis: int) -> None:
    with pytest.raises(np.exceptions.AxisError, match=f"axis {axis} is out of bounds for array of dimension 2"):
        f(np.ones((2, 3)), axis=axis)


def test_an_axis_named_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="duplicate"):
        dg.sum(np.ones((2, 3)), axis=(1, -1))


@pytest.mark.parametrize("k", [-1, 4])
def test_top_k_names_the_length_that_k_exceeds(k: int) -> None:
    with pytest.raises(ValueError, match=rf"between 0 and 3, the length of axis 1 of shape \[2, 3\]; got {k}"):
        dg.top_k(np.ones((2, 3)), k)


def test_top_k_of_a_scalar_is_refused() -> None:
    with pytest.raises(ValueError, match="0-d"):
        dg.top_k(1.0, 1)


def test_axes_are_canonical_attributes() -> None:
    with dg.Graph():
        total = dg.sum(dg.zeros((2, 3, 4)), axis=(-1, 0))
    assert total.op.attrs == {"axis": (0, 2), "keepdims": False}


@pytest.mark.parametrize("k", [2, 4, 20])
def test_nan_counts_as_the_largest_of_few_and_of_many(k: int) -> None:
    x = np.where(np.arange(40) % 15, np.arange(40.0), INF)
    x[[7, 30]] = np.nan
    values, indices = dg.top_k(x, k)
    np.testing.assert_array_equal(indices, [7, 30, 0, 15, *[i for i in range(39, 0, -1) if i not in (7, 15, 30)]][:k])
    np.testing.assert_array_equal(values, x[indices])
    np.testing.assert_array_equal(values, dg.top_k(x, 40)[0][:k])


# -- averages, differences ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("x", [np.full(3, 2.0), np.zeros((2, 3)), np.array([1.0])])
def test_the_gradient_of_std_at_equal_elements_is_zero(x: Any) -> None:
    np.testing.assert_array_equal(slope(dg.std, x), np.zeros_like(x))
    np.testing.assert_array_equal(dg.hessian(dg.std)(x), np.zeros(x.shape * 2))


def test_std_at_equal_elements_leaves_the_gradients_of_other_rows_alone() -> None:
    x = np.array([[1.0, 3.0], [2.0, 2.0]])
    np.testing.assert_allclose(slope(lambda x: dg.std(x, axis=1), x), [[-0.5, 0.5], [0, 0]])


@pytest.mark.parametrize("axis", [None, 0, -1, (0, 2), (2, 0), (1, 2, 0)])
def test_weights_of_an_average_are_per_element_or_per_place_along_the_axes(axis: Any) -> None:
    x = np.random.default_rng(0).normal(size=(2, 3, 4))
    axes = range(3) if axis is None else np.atleast_1d(axis)
    for shape in {x.shape, *(() if axis is None else (tuple(x.shape[i] for i in axes),))}:
        w = np.random.default_rng(1).uniform(0.1, 1, shape)
        np.testing.assert_allclose(dg.average(x, axis, w), np.average(x, axis, w))
        check_grads(lambda x, w: dg.average(x, axis, w, keepdims=True), (x, w), 2)


@pytest.mark.parametrize("axis", [None, 0])
def test_weights_that_do_not_fit_are_an_error(axis: Any) -> None:
    with pytest.raises(ValueError, match=r"weights of shape \[3\] match neither a, of shape \[2, 3\], nor its shape"):
        dg.average(np.ones((2, 3)), axis, np.ones(3))


@pytest.mark.parametrize("name", ["nansum", "nanmean"])
def test_nan_counts_for_nothing_and_has_no_gradient(name: str) -> None:
    f, x = getattr(dg, name), np.array([[1.0, np.nan, 3.0], [4.0, 5.0, np.nan]])
    np.testing.assert_array_equal(f(x, axis=0), getattr(np, name)(x, axis=0).astype(float))
    np.testing.assert_array_equal(np.isnan(slope(f, x)), False)
    np.testing.assert_array_equal(slope(f, x) == 0, np.isnan(x))
    assert f(np.array([1, 2])) == getattr(np, name)(np.array([1, 2]))
    assert f(x.astype("float32")).dtype == np.float32


def test_nanmean_of_nothing_else_is_nan() -> None:
    assert np.isnan(dg.nanmean(np.array([np.nan])))


@pytest.mark.parametrize("x", [np.array([True, True, False]), np.array([3, 1, 2], "uint8"), np.zeros((2, 0, 3))])
@pytest.mark.parametrize("n", [0, 1, 2, 5])
def test_diff_of_any_dtype_is_that_of_numpy(x: Any, n: int) -> None:
    found, expected = dg.diff(x, n, 0), np.diff(x, n, 0)
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)


def test_diff_of_negative_order_is_an_error() -> None:
    with pytest.raises(ValueError, match="order n of the difference must not be negative, got -1"):
        dg.diff(np.ones(3), -1)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_trapezoid_takes_places_along_the_axis_or_for_every_sample(axis: int) -> None:
    y = np.random.default_rng(0).normal(size=(2, 3, 4))
    for x in (np.random.default_rng(1).normal(size=y.shape[axis]), y + 1):
        np.testing.assert_allclose(dg.trapezoid(y, x, axis=axis), np.trapezoid(y, x, axis=axis))
        check_grads(lambda y, x: dg.trapezoid(y, x, axis=axis), (y, x), 2)
    np.testing.assert_allclose(dg.trapezoid(y, dx=0.5, axis=axis), np.trapezoid(y, dx=0.5, axis=axis))


# -- floats of 16 bits -------------------------------------------------------------------------------------------

SHORT = [np.dtype("float16"), np.dtype(ml_dtypes.bfloat16)]
MANY = 4096  # ones, added one by one, stay at 256 in bfloat16 and at 2048 in float16


@pytest.mark.parametrize("dtype", SHORT, ids=str)
def test_short_floats_are_added_up_in_float32(dtype: Any) -> None:
    ones = np.ones((MANY, 1), dtype)
    for made in (dg.sum(ones), dg.sum(ones, 0), dg.cumsum(ones)[-1], dg.add_n([ones] * MANY)[0], ones.T @ ones):
        assert np.all(np.asarray(made) == MANY)
    for made in (dg.mean(ones), dg.sum(dg.nn.softmax(ones, axis=0)), dg.exp(dg.logsumexp(ones - 1)) / MANY):
        np.testing.assert_allclose(np.asarray(made, float), 1, rtol=0.02)
    assert dg.unsorted_segment_sum(ones, np.zeros(MANY, int), 1) == MANY
    assert slope(lambda x: x[np.zeros(MANY, int)], ones)[0] == MANY


@pytest.mark.parametrize("dtype", SHORT, ids=str)
@pytest.mark.parametrize(
    "f",
    [
        dg.matmul, dg.dot, lambda a, b: dg.einsum("ij,jk->ki", a, b), dg.vecdot,
        lambda a, b: dg.nn.conv2d(a[None, :, :, None], b[:2, :2, None, None]),
        lambda a, b: dg.nn.leaky_relu(a), lambda a, b: dg.nn.softplus(a), lambda a, b: dg.nn.layer_norm(a),
        lambda a, b: dg.nn.softmax_cross_entropy(a, b), lambda a, b: dg.nn.avg_pool(a[None, :, :, None], 2),
    ],
)  # fmt: skip
def test_short_floats_stay_what_they_are(f: Any, dtype: Any) -> None:
    a, b = np.random.default_rng(0).uniform(-2, 2, (2, 3, 3)).astype(dtype)
    with dg.Graph():
        x = dg.constant(a)
        y = f(x, dg.constant(b))
        y, (g,) = dg.Session().run([y, dg.gradients(y, x)])
    assert (y.dtype, g.dtype) == (dtype, dtype)
    np.testing.assert_allclose(y.astype(float), f(a.astype(float), b.astype(float)), rtol=0.02, atol=0.03)


def test_nan_is_sorted_last_and_replaced_in_bfloat16_too() -> None:
    x = np.array([2, np.nan, 1], ml_dtypes.bfloat16)
    np.testing.assert_array_equal(dg.sort(x).astype(float), [1, 2, np.nan])
    np.testing.assert_array_equal(dg.argsort(x), [2, 0, 1])
    np.testing.assert_array_equal(dg.nan_to_num(x).astype(float), [2, 0, 1])
