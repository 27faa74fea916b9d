"""check_numerics: which NaN and Inf are errors, and which op, feed or variable they name."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import distgrad as dg
from distgrad.workers import numerics

#: Small arrays run op by op, large ones in fused groups; what is told must not depend on it.
SIZES = [6, 200_000]
SESSIONS: list[dict[str, Any]] = [
    {},
    {"threads": 2, "cpus_per_task": 1, "granularity": 1e-9},
    {"timeout": 60},
]


@pytest.fixture(autouse=True)
def _checked() -> Iterator[None]:
    with dg.Session(check_numerics=True):
        yield


def line() -> int:
    return inspect.currentframe().f_back.f_lineno  # type: ignore[union-attr]


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("options", SESSIONS)
def test_the_first_op_its_line_and_the_ranges_of_its_inputs_are_named(options: Any, n: int) -> None:
    @dg.function
    def f(x: dg.Tensor) -> dg.Tensor:
        y = dg.sqrt(x - 2.0); at.append(line())  # noqa: E702
        return dg.exp(y * 2.0) + 1.0

    at: list[int] = []
    x = np.arange(n) * 0.001 + 1.0
    with dg.Session(check_numerics=True, **options), pytest.raises(dg.NumericsError) as info:
        f(x)
    bad, top = int((x < 2).sum()), f"{x[-1] - 2:.6g}"
    assert str(info.value) == (
        f"op 'Sqrt' (type Sqrt, at test_numerics.py:{at[0]}) produced NaN in {bad} of {n} elements, first at [0]. "
        f"Its inputs: f64[{n}] in [-1, {top}]"
    )


@pytest.mark.parametrize("n", SIZES)
def test_an_inf_is_named_where_it_began_not_where_it_became_nan(n: int) -> None:
    f = dg.function(lambda x: dg.exp(x * 1.0) - dg.exp(x * 2.0))
    with pytest.raises(dg.NumericsError, match=r"op 'Exp' .* produced Inf .*Its inputs: f64\[\d+\] in \[1000, 1000\]"):
        f(np.full(n, 1000.0))


def test_what_is_finite_is_no_error() -> None:
    assert dg.function(lambda x: dg.log(x) + 1)(np.ones(3)).tolist() == [1.0] * 3
    assert dg.function(lambda x: x + 1)(np.array([1, 2])).tolist() == [2, 3]


def test_large_numbers_whose_sum_overflows_are_no_error() -> None:
    assert dg.function(lambda x: x * 2)(np.full(4, 8e307)).tolist() == [1.6e308] * 4


@pytest.mark.parametrize("n", SIZES)
def test_a_mask_of_inf_is_no_error(n: int) -> None:
    @dg.function
    def softmax(x: dg.Tensor, mask: dg.Tensor) -> Any:
        by_constant = dg.where(x > 0, x, -np.inf)
        by_fill = dg.where(x > 0, x, dg.full((n,), -np.inf))
        return dg.nn.softmax(by_constant), dg.nn.softmax(by_fill), dg.nn.softmax(x + mask), by_constant

    x = np.linspace(-1.0, 1.0, n)
    one, two, three, masked = softmax(x, np.where(x > 0, 0.0, -np.inf))
    assert one.tolist() == two.tolist() == three.tolist()
    assert np.isneginf(masked).any()


def test_a_row_that_is_masked_altogether_is_an_error() -> None:
    f = dg.function(lambda x: dg.exp(x - dg.max(x)))
    with pytest.raises(dg.NumericsError, match=r"op 'Sub' .* produced NaN in 2 of 2 .* f64\[2\] without a finite"):
        f(np.full(2, -np.inf))


@pytest.mark.parametrize("n", SIZES)
def test_what_is_masked_before_it_reaches_a_result_is_no_error(n: int) -> None:
    x = np.linspace(-1.0, 1.0, n)
    f = dg.function(lambda x: dg.sum(dg.where(x > 0, dg.log(x), 0.0)))
    np.testing.assert_allclose(f(x), np.log(x[x > 0]).sum())


def test_what_is_masked_is_not_blamed_for_what_is_not() -> None:
    f = dg.function(lambda x: dg.where(x > 0, dg.log(x), 0.0) + dg.sqrt(x))
    with pytest.raises(dg.NumericsError, match="op 'Sqrt'"):
        f(np.array([-1.0, 1.0]))


def test_a_nan_that_reaches_only_an_assigned_value_is_an_error() -> None:
    v = dg.Variable([1.0, 1.0])

    @dg.function
    def step(x: dg.Tensor) -> dg.Tensor:
        v.assign_sub(dg.gradients(dg.sum(dg.sqrt(x * v)), v)[0])
        return dg.sum(x)

    with pytest.raises(dg.NumericsError, match=r"produced Inf in 1 of 2 elements, first at \[1\]"):
        step(np.array([1.0, 0.0]))
    assert v.numpy().tolist() == [1.0, 1.0]


def test_a_fed_nan_is_named_by_its_argument() -> None:
    f = dg.function(lambda x, data: x + dg.sum(data["rows"] * 2))
    data = {"rows": np.array([[1.0, np.nan], [2.0, 3.0]])}
    text = r"the value of 'data_rows' contains NaN in 1 of 4 elements, first at \[0, 1\]"
    with pytest.raises(dg.NumericsError, match=text):
        f(np.ones(2), data)


def test_a_fed_nan_that_is_masked_is_no_error() -> None:
    f = dg.function(lambda x: dg.where(dg.isnan(x), 0.0, x))
    assert f(np.array([1.0, np.nan])).tolist() == [1.0, 0.0]


def test_a_nan_in_a_variable_is_named_by_the_variable() -> None:
    v = dg.Variable(np.nan, name="rate")
    with pytest.raises(dg.NumericsError, match=r"variable 'rate' contains NaN$"):
        dg.function(lambda x: x * v)(np.ones(2))


def test_a_tensor_that_is_fed_by_hand_is_named() -> None:
    with dg.Graph():
        x = dg.placeholder((), name="x")
        y = x * 2
    with pytest.raises(dg.NumericsError, match=r"the value of 'x' contains NaN$"):
        dg.Session(check_numerics=True).run(y, {x: np.nan})


def test_a_constant_that_is_not_finite_is_meant() -> None:
    f = dg.function(lambda x: (x * dg.constant([np.nan, np.inf])))
    np.testing.assert_array_equal(f(np.ones(2)), [np.nan, np.inf])


def test_an_op_on_constants_is_named_though_it_could_be_computed_before_the_run() -> None:
    with pytest.raises(dg.NumericsError, match=r"op 'Log' .* produced NaN. Its inputs: f64\[\] in \[-1, -1\]"):
        dg.function(lambda x: x + dg.log(dg.constant(-1.0)))(np.ones(2))


def test_a_users_own_op_is_named() -> None:
    @dg.op("TestNumericsInverse")
    def inverse(x: Any) -> Any:
        return 1 / np.where(x == 5, 0, 1.0)

    with pytest.raises(dg.NumericsError, match=r"TestNumericsInverse, .* produced Inf in 1 of 2 .* in \[1, 5\]"):
        dg.function(lambda x: inverse(x) * 2)(np.array([1.0, 5.0], "float32"))


def test_an_op_that_was_redefined_since_is_replayed_as_it_ran() -> None:
    def roots(kernel: Any) -> Any:
        op = dg.op("NumericsTestRedefined", infer=lambda x: (x.shape, x.dtype), override=True)(lambda x: kernel(x))
        return dg.function(lambda x: op(x) * 2.0)

    with dg.Session(threads=1, check_numerics=True):
        first = roots(np.sqrt)
        first(np.ones(3))
        assert roots(np.abs)(-np.ones(3)).tolist() == [2.0] * 3
        with pytest.raises(dg.NumericsError, match=r"NumericsTestRedefined, .* produced NaN"):
            first(-np.ones(3))


def test_an_op_outside_any_graph_is_named_with_the_users_line() -> None:
    with pytest.raises(dg.NumericsError, match=rf"op type Log \(at test_numerics.py:{line() + 1}\) produced NaN in 1"):
        dg.log(np.array([1.0, -1.0]))


@pytest.mark.parametrize("dtype", ["float16", "float32", "complex64", "bfloat16"])
def test_every_floating_dtype_is_checked(dtype: str) -> None:
    if dtype == "bfloat16":
        dtype = pytest.importorskip("ml_dtypes").bfloat16
    f = dg.function(lambda x: x / (x - 1))
    with pytest.raises(dg.NumericsError, match=r"op 'Div' .* produced (NaN|Inf) in 1 of 3 elements, first at \[1\]"):
        f(np.array([0.5, 1.0, 2.0], dtype))


def test_a_kernel_that_is_not_finite_only_sometimes_is_an_error_without_an_op() -> None:
    calls: list[int] = []

    @dg.op("TestNumericsMoody", infer=lambda x: (x.shape, x.dtype))
    def moody(x: Any) -> Any:
        calls.append(1)
        return x * np.nan if len(calls) == 1 else x + 0

    with pytest.raises(dg.NumericsError, match="the run produced NaN, but not when it was repeated op by op"):
        dg.function(lambda x: moody(x) * 2)(np.ones(2))


def test_without_the_option_nothing_is_checked() -> None:
    with dg.Session():
        assert np.isnan(dg.function(lambda x: dg.log(x))(np.array(-1.0)))
        assert np.isnan(dg.log(-1.0))


def test_the_option_changes_no_bit() -> None:
    f = dg.function(lambda x: (dg.sum(dg.tanh(x) * x), dg.exp(x) @ x.T))
    x = np.random.default_rng(0).normal(size=(300, 200))
    checked = f(x)
    with dg.Session():
        assert [a.tobytes() for a in checked] == [a.tobytes() for a in f(x)]


def test_a_run_that_is_finite_is_not_run_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numerics, "_Replay", None)
    assert dg.function(lambda x: dg.exp(x) * 2)(np.zeros(2)).tolist() == [2.0, 2.0]


def test_the_error_travels() -> None:
    error = dg.NumericsError("op produced NaN")
    assert str(pickle.loads(pickle.dumps(error))) == "op produced NaN"
    assert isinstance(error, FloatingPointError)


def test_the_torch_backend_is_checked_too() -> None:
    pytest.importorskip("torch")
    f = dg.function(lambda x: dg.exp(dg.log(x)) * 2)
    with dg.Session(backend="torch", check_numerics=True):
        np.testing.assert_allclose(f(np.ones(2)), [2.0, 2.0])
        with pytest.raises(dg.NumericsError, match=r"op 'Log' .* produced NaN in 1 of 2 elements, first at \[1\]"):
            f(np.array([1.0, -1.0]))
