"""Elementwise math beyond the op table: dtype rules, conventions at points without a derivative, and errors."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import distgrad as dg
from distgrad.testing import check_grads

DTYPES = ("bool", "int8", "uint8", "int32", "int64", "float16", "float32", "float64", "complex64")
OPERANDS = {**{name: np.ones(2, name) for name in DTYPES}, **{repr(s): s for s in (True, 1, 1.0, 1j)}}
BINARY = ("add", "multiply", "divide", "power", "floor_divide", "maximum", "less", "equal", "logical_and", "hypot")
UNARY = ("exp", "sqrt", "negative", "abs", "floor", "rint", "square", "sign", "isnan", "logical_not", "deg2rad", "cbrt")


def dtype_or_error(f: Any, *args: Any) -> Any:
    try:
        return f(*args).dtype
    except TypeError:
        return TypeError


def in_graph(f: Any) -> Any:
    """f on tensors; Python numbers are unchanged."""

    def build(*args: Any) -> Any:
        with dg.Graph():
            return f(*[dg.constant(x) if isinstance(x, np.ndarray) else x for x in args])

    return build


def slopes(f: Any, *args: Any) -> list[Any]:
    """The gradients of the sum of f with respect to each argument."""
    with dg.Graph():
        xs = [dg.constant(x) for x in args]
        found = dg.gradients(f(*xs), xs)
    return dg.Session().run(found)  # type: ignore[no-any-return]


# -- dtypes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize("where", ["graph", "eager"])
def test_two_dtypes_promote_as_in_numpy(name: str, where: str) -> None:
    ours, numpys = getattr(dg, name), getattr(np, name)
    ours = in_graph(ours) if where == "graph" else ours
    for (a, x), (b, y) in itertools.product(OPERANDS.items(), repeat=2):
        assert dtype_or_error(ours, x, y) == dtype_or_error(numpys, x, y), f"{name}({a}, {b})"


@pytest.mark.parametrize("name", UNARY)
@pytest.mark.parametrize("where", ["graph", "eager"])
def test_one_dtype_is_promoted_as_in_numpy(name: str, where: str) -> None:
    ours, numpys = getattr(dg, name), getattr(np, name)
    ours = in_graph(ours) if where == "graph" else ours
    for a, x in OPERANDS.items():
        assert dtype_or_error(ours, x) == dtype_or_error(numpys, x), f"{name}({a})"


@pytest.mark.parametrize("name", BINARY)
def test_what_runs_has_the_dtype_that_was_built(name: str) -> None:
    ours = getattr(dg, name)
    for x, y in itertools.product(OPERANDS.values(), repeat=2):
        built = dtype_or_error(in_graph(ours), x, y)
        if built is not TypeError:
            assert ours(x, y).dtype == built


@pytest.mark.parametrize("f", [dg.erf, dg.erfc, dg.lgamma, dg.digamma, dg.sigmoid, lambda x: dg.polygamma(1, x)])
@pytest.mark.parametrize("dtype", [name for name in DTYPES if name != "complex64"])
def test_special_functions_follow_the_rules_of_exp(f: Any, dtype: str) -> None:
    x = np.ones(2, dtype)
    assert f(x).dtype == in_graph(f)(x).dtype == np.exp(x).dtype


@pytest.mark.parametrize(("dtype", "number"), [("int8", 128), ("int8", -129), ("uint8", -1), ("int32", 2**31)])
@pytest.mark.parametrize("f", [dg.add, dg.multiply, dg.maximum])
def test_a_python_int_that_does_not_fit_is_an_overflow_error(f: Any, dtype: str, number: int) -> None:
    x = np.ones(2, dtype)
    for build in (f, in_graph(f)):
        with pytest.raises(OverflowError, match="out of bounds"):
            build(x, number)


@pytest.mark.parametrize(("dtype", "number"), [("int8", 300), ("uint8", -1), ("int64", 2**70), ("int64", -(2**70))])
@pytest.mark.parametrize("name", ["less", "less_equal", "greater", "greater_equal", "equal", "not_equal"])
def test_a_comparison_takes_any_python_int(name: str, dtype: str, number: int) -> None:
    x = np.array([0, 5, 127], dtype)
    np.testing.assert_array_equal(getattr(dg, name)(x, number), getattr(np, name)(x, number))
    np.testing.assert_array_equal(getattr(dg, name)(number, x), getattr(np, name)(number, x))


@pytest.mark.parametrize("f", [dg.add, dg.subtract, dg.multiply, dg.divide, dg.power, dg.maximum, dg.arctan2])
def test_each_gradient_has_the_dtype_of_its_input(f: Any) -> None:
    for a, b in itertools.product(("float16", "float32", "float64"), repeat=2):
        gx, gy = slopes(f, np.array([1.5, 2.0], a), np.array(0.5, b))
        assert (gx.dtype, gx.shape, gy.dtype, gy.shape) == (a, (2,), b, ())


def test_a_real_factor_of_a_complex_product_gets_a_real_gradient() -> None:
    gx, gz = slopes(lambda x, z: dg.real(x * z), np.float32(2), np.complex64(3 + 4j))
    assert (gx.dtype, gz.dtype) == ("float32", "complex64")
    assert (gx, gz) == (3, 2)


def test_integers_get_no_gradient() -> None:
    with dg.Graph():
        x, n = dg.constant([1.0, 2.0]), dg.constant([3, 4])
        gx, gn = dg.gradients(x * n, [x, n])
    assert gn is None
    np.testing.assert_array_equal(dg.Session().run(gx), [3.0, 4.0])


# -- conventions -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("f", [dg.abs, dg.sign, dg.square, lambda x: dg.hypot(x, x), lambda x: dg.sinc(x)])
def test_the_slope_at_zero_is_zero(f: Any) -> None:
    np.testing.assert_array_equal(slopes(f, np.array([0.0, -0.0])), [[0.0, 0.0]])


def test_the_modulus_of_complex_zero_is_flat() -> None:
    np.testing.assert_array_equal(slopes(dg.abs, np.array([0j])), [[0j]])
    np.testing.assert_array_equal(slopes(lambda x: dg.real(dg.sign(x)), np.array([0j])), [[0j]])


@pytest.mark.parametrize("f", [dg.maximum, dg.minimum])
def test_a_tie_gives_its_gradient_to_the_first(f: Any) -> None:
    np.testing.assert_array_equal(slopes(f, np.ones(2), np.ones(2)), [[1.0, 1.0], [0.0, 0.0]])


def test_clip_passes_gradients_up_to_its_bounds() -> None:
    x = np.array([-1.0, 0.0, 0.5, 1.0, 2.0])
    np.testing.assert_array_equal(slopes(lambda x: dg.clip(x, 0, 1), x), [[0.0, 1.0, 1.0, 1.0, 0.0]])


def test_logaddexp_shares_the_gradient_of_equal_terms() -> None:
    np.testing.assert_allclose(slopes(dg.logaddexp, np.ones(2), np.ones(2)), np.full((2, 2), 0.5))


def test_logaddexp_of_nothing_but_minus_infinity_is_flat() -> None:
    x = np.array([-np.inf, 1.0])
    np.testing.assert_allclose(slopes(dg.logaddexp, x, np.full(2, -np.inf)), [[0.0, 1.0], [0.0, 0.0]])


@pytest.mark.parametrize(
    ("x", "y", "expected"),
    [(0.0, 0.0, (0, 0)), (0.0, 1.0, (1, 0)), (0.0, 2.5, (0, 0)), (-2.0, 3.0, (12, 0)), (2.0, 0.0, (0, np.log(2)))],
)
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_powers_at_zero_and_below(x: float, y: float, expected: tuple[float, float], dtype: str) -> None:
    found = slopes(lambda x, y: dg.real(dg.power(x, y)), np.array(x, dtype), np.array(y, dtype))
    assert found[0] == pytest.approx(expected[0])
    if dtype == "float64" or x >= 0:  # the logarithm of a negative number is complex, and then it counts
        assert found[1] == pytest.approx(expected[1])


def test_the_mixed_derivative_of_a_power_is_right_at_exponent_zero() -> None:
    check_grads(dg.power, [np.array([0.7, 2.0]), np.array([0.0, 0.0])], order=2)


@pytest.mark.parametrize("number", [2, 2.0])
def test_a_second_power_is_recorded_as_a_square(number: float) -> None:
    with dg.Graph() as graph:
        x = dg.placeholder((2,))
        y = x**number
    assert y.op.type == "Square"
    assert [op.type for op in graph.ops] == ["Placeholder", "Square"]


def test_the_tails_of_sigmoid_keep_their_digits() -> None:
    x = np.array([-700.0, -40.0])
    np.testing.assert_allclose(dg.log(dg.sigmoid(x)), x, rtol=1e-12)
    assert dg.sigmoid(np.float16(-12)) > 0


def test_rounding_takes_and_gives_no_gradient() -> None:
    with dg.Graph():
        x = dg.constant([0.4, 1.6])
        assert dg.gradients([dg.floor(x), dg.ceil(x), dg.round(x), dg.trunc(x), dg.floor_divide(x, 2)], x) == [None]


def test_bits_of_booleans_are_their_logic() -> None:
    x, y = np.array([True, True, False]), np.array([True, False, False])
    for name in ("and", "or", "xor"):
        np.testing.assert_array_equal(getattr(dg, f"bitwise_{name}")(x, y), getattr(dg, f"logical_{name}")(x, y))
    np.testing.assert_array_equal(dg.invert(x), dg.logical_not(x))


@pytest.mark.parametrize(
    ("name", "same"),
    [
        ("absolute", "abs"), ("true_divide", "divide"), ("mod", "remainder"), ("pow", "power"), ("conjugate", "conj"),
        ("acos", "arccos"), ("atan2", "arctan2"), ("degrees", "rad2deg"), ("fix", "trunc"), ("bitwise_not", "invert"),
    ],
)  # fmt: skip
def test_numpys_other_names_are_the_same_functions(name: str, same: str) -> None:
    assert getattr(dg, name) is getattr(dg, same)


def test_positive_is_plus() -> None:
    np.testing.assert_array_equal(dg.positive(np.array([-1.0, 2.0])), [-1.0, 2.0])


# -- errors ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("f", [dg.add, dg.less, dg.logical_and, lambda x, y: dg.where(True, x, y)])
def test_shapes_that_do_not_broadcast_are_both_named(f: Any) -> None:
    for build in (f, in_graph(f)):
        with pytest.raises(ValueError, match=r"\[2, 3\] and \[4\] cannot be broadcast"):
            build(np.ones((2, 3)), np.ones(4))


def test_where_without_choices_is_refused_because_its_shape_depends_on_data() -> None:
    with pytest.raises(TypeError, match="shape that depends on data"):
        dg.where(np.array([True, False]))


@pytest.mark.parametrize("f", [dg.floor, dg.erf, dg.cbrt, dg.lgamma, lambda x: dg.remainder(x, x)])
def test_functions_of_real_numbers_refuse_complex_ones_when_built(f: Any) -> None:
    for build in (f, in_graph(f)):
        with pytest.raises(TypeError):
            build(np.ones(2, complex))


def test_bitwise_functions_refuse_floats() -> None:
    with pytest.raises(TypeError, match="integers and booleans, not float64"):
        in_graph(dg.bitwise_and)(np.ones(2), np.ones(2))


def test_polygamma_refuses_a_negative_order() -> None:
    with pytest.raises(ValueError, match="must not be negative, got -1"):
        dg.polygamma(-1, 1.0)


def test_integers_to_negative_powers_are_refused_as_in_numpy() -> None:
    with pytest.raises(ValueError, match="negative integer powers"):
        dg.power(np.array([2]), -1)


def test_nan_to_num_of_integers_is_what_it_was() -> None:
    assert dg.nan_to_num(np.array([1, 2])).tolist() == [1, 2]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_sinc_has_finite_gradients_where_its_square_overflows(dtype: str) -> None:
    x = np.array([np.sqrt(np.finfo(dtype).max) * 100.5], dtype)
    f = dg.grad(lambda x: dg.sum(dg.sinc(x)))
    assert np.isfinite(f(x)).all()
    assert np.isfinite(dg.grad(lambda x: dg.sum(f(x)))(x)).all()


@pytest.mark.parametrize("f", [dg.sqrt, dg.log2, dg.erf, dg.nn.elu, dg.std, lambda x: 2 * x + 0.5])
def test_python_numbers_adapt_to_bfloat16_in_values_and_gradients(f: Callable[..., Any]) -> None:
    short = np.dtype(ml_dtypes.bfloat16)
    with dg.Graph():
        x = dg.constant(np.array([0.5, 2.0], short))
        (g,) = dg.gradients(f(x), x)
    assert g.dtype == short
    assert dg.Session().run(g).dtype == short


@pytest.mark.parametrize("n", [7, 5000])
def test_log1p_in_single_precision_at_the_ends_of_its_range_and_between(n: int) -> None:
    """Alone and in blocks; with and without NaN."""
    for ends in ([], [-1.0, np.inf, np.nan, -2.0, -np.inf, 0.0, -0.0]):
        inside = np.geomspace(1e-30, 1e30, n - len(ends)) * np.resize([1.0, -1e-31, 1.0], n - len(ends))
        x = np.array([*ends, *inside], "float32")
        with np.errstate(all="ignore"):
            exact = np.log1p(x.astype("float64")).astype("float32")
            for f in (dg.log1p, dg.function(lambda x: dg.log1p(x) * 1.0)):
                found = f(x)
                finite = np.isfinite(exact)
                np.testing.assert_array_equal(found[~finite], exact[~finite])
                np.testing.assert_array_almost_equal_nulp(found[finite], exact[finite], 4)


@pytest.mark.parametrize("f", [dg.divide, lambda x, y: dg.tan(x / y)])
def test_second_derivatives_do_not_go_through_the_result_where_tensorflows_do_not(f: Callable[..., Any]) -> None:
    with dg.Graph():
        x, y = dg.constant(3.0), dg.constant(2.0)
        result = f(x, y)
        slopes = dg.gradients(result, [x, y])
        assert dg.gradients(slopes, [result]) == [None]


def test_the_gradient_of_a_quotient_divides_once_more_than_the_quotient() -> None:
    with dg.Graph():
        x, y = dg.constant(3.0), dg.constant(2.0)
        gx, gy = dg.gradients(x / y, [x, y])
        assert dg.Session().run([gx, gy, *dg.gradients(gy, [x, y])]) == [0.5, -0.75, -0.25, 0.75]
