"""Reductions, running products and sorting beyond the op table: ties, zeros, empty axes, dtypes, errors."""

from __future__ import annotations

from typing import Any

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


def test_running_products_have_third_derivatives_where_factors_are_zero() -> None:
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
