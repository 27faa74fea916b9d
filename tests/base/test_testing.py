"""check_grads: wrong gradients that it must find, and correct ones that it must accept."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import distgrad as dg
from distgrad.testing import check_grads

X, Y = np.array([0.3, 1.2]), np.array([2.0, -1.0])
FIRST = r"^gradient of order 1, in a random direction: gradients\(\) [-\d.e]+, finite differences [-\d.e]+, with steps"
SECOND = FIRST.replace("1", "2", 1)


def with_gradient(value: Any, *derivatives: Any) -> Any:
    """A function of real arguments with these partial derivatives, right or wrong."""
    return dg.custom_gradient(lambda *xs: (value(*xs), lambda dy: [dy * d(*xs) for d in derivatives]))


# -- what it catches ---------------------------------------------------------------------------------------------


def test_a_wrong_first_derivative() -> None:
    with pytest.raises(AssertionError, match=FIRST):
        check_grads(lambda x: dg.stop_gradient(x) * x, [X])


@pytest.mark.parametrize("x", [np.array(0.7), np.array([0.7]), np.full((2, 3), 0.7)], ids=["0-d", "one", "six"])
def test_a_derivative_that_is_one_part_in_a_thousand_off(x: Any) -> None:
    with pytest.raises(AssertionError, match=FIRST):
        check_grads(with_gradient(dg.sin, lambda x: 1.001 * dg.cos(x)), [x])


def test_one_wrong_element_among_many() -> None:
    wrong = np.ones(1000)
    wrong[417] = 1.1
    with pytest.raises(AssertionError, match=FIRST):
        check_grads(with_gradient(dg.sin, lambda x: dg.cos(x) * wrong), [np.linspace(0.1, 1, 1000)])


def test_a_derivative_that_is_missing() -> None:
    with pytest.raises(AssertionError, match=r"gradients\(\) 0\.0, finite"):
        check_grads(dg.stop_gradient, [X])


def test_a_derivative_that_should_be_none() -> None:
    with pytest.raises(AssertionError, match=FIRST):
        check_grads(dg.grad_pass_through(dg.floor), [np.array([0.3, 1.4])])


def test_a_first_derivative_that_is_right_and_a_second_that_is_wrong() -> None:
    cube = with_gradient(lambda x: x**3, lambda x: 3 * dg.stop_gradient(x) ** 2)
    check_grads(cube, [X], order=1)
    with pytest.raises(AssertionError, match=SECOND):
        check_grads(cube, [X])


def test_a_third_derivative_is_looked_at_when_asked_for() -> None:
    slope = with_gradient(lambda x: 4 * x**3, lambda x: 12 * dg.stop_gradient(x) ** 2)
    power = with_gradient(lambda x: x**4, slope)
    check_grads(power, [X], order=2)
    with pytest.raises(AssertionError, match="gradient of order 3, in a random direction"):
        check_grads(power, [X], order=3)


@pytest.mark.parametrize("results", [lambda a, b: (a, b), lambda a, b: {"a": [a], "z": (b,)}], ids=["tuple", "nested"])
def test_wrong_only_in_the_second_result(results: Any) -> None:
    with pytest.raises(AssertionError, match=FIRST):
        check_grads(lambda x: results(dg.sin(x), dg.stop_gradient(x) * x), [X])


def test_wrong_only_with_respect_to_the_second_argument() -> None:
    with pytest.raises(AssertionError, match=FIRST):
        check_grads(lambda x, y: x * dg.stop_gradient(y), [X, Y])
    with pytest.raises(AssertionError, match=FIRST):
        check_grads(with_gradient(dg.multiply, lambda x, y: y, lambda x, y: -x), [X, Y])


def test_wrong_only_with_respect_to_a_small_argument_beside_a_large_one() -> None:
    call = with_gradient(black_scholes, *[_partial(i) for i in range(3)], lambda *xs: 1.01 * _partial(3)(*xs))
    with pytest.raises(AssertionError, match=FIRST):
        check_grads(call, MARKET, order=1)


def test_a_second_derivative_that_is_wrong_only_between_two_arguments() -> None:
    product = with_gradient(dg.multiply, lambda x, y: dg.stop_gradient(y), lambda x, y: dg.stop_gradient(x))
    check_grads(product, [X, Y], order=1)
    with pytest.raises(AssertionError, match=SECOND):
        check_grads(product, [X, Y])


def test_a_missing_conjugate() -> None:
    z = np.array([0.3 + 0.4j, -1.2 + 0.7j])
    check_grads(with_gradient(dg.square, lambda z: dg.conj(2 * z)), [z])
    with pytest.raises(AssertionError, match=FIRST):
        check_grads(with_gradient(dg.square, lambda z: 2 * z), [z])


def test_a_wrong_imaginary_part_alone() -> None:
    z = np.array([0.3 + 0.4j, -1.2 + 0.7j])
    with pytest.raises(AssertionError, match=FIRST):
        check_grads(lambda z: dg.real(z) + dg.stop_gradient(dg.imag(z)), [z])


def test_wrong_values_in_a_sparse_gradient() -> None:
    @dg.custom_gradient
    def rows(table: Any) -> Any:
        def grad(dy: Any) -> Any:
            return dg.IndexedSlices(dy * 2, dg.constant([1, 3, 1]), (4, 2))

        return dg.gather(table, [1, 3, 1]), grad

    with pytest.raises(AssertionError, match=FIRST):
        check_grads(rows, [np.arange(8.0).reshape(4, 2)])


def test_a_kink_nearby_is_reported_with_a_remedy() -> None:
    x = np.array([1e-4, 1.0])
    with pytest.raises(AssertionError, match=r"steps of 0\.001 of each .* A kink nearby\? Try a smaller step="):
        check_grads(dg.abs, [x])
    check_grads(dg.abs, [x], step=1e-6)


@pytest.mark.parametrize("args", [[], [3], [np.array([1, 2]), True], ["text"]], ids=["none", "int", "bool", "string"])
def test_arguments_without_derivatives_are_a_value_error(args: list[Any]) -> None:
    with pytest.raises(ValueError, match="check_grads: no argument has a float or complex dtype"):
        check_grads(lambda *xs: xs, args)


# -- what it lets pass -------------------------------------------------------------------------------------------


def test_right_derivatives_to_third_order() -> None:
    check_grads(lambda x, y: dg.sin(x) * dg.exp(y) / (x * x + 1), [X, Y], order=3)


def test_a_rule_of_one_s_own_that_is_right() -> None:
    check_grads(with_gradient(lambda x: x**3, lambda x: 3 * x**2), [X], order=3)


def test_broadcasting_constants_and_results_that_depend_on_nothing() -> None:
    check_grads(lambda x, y: (x * y, dg.floor(x), dg.zeros(3)), [np.array([[0.3], [1.2]]), Y])


def test_integer_arguments_and_results_and_none_are_left_out() -> None:
    check_grads(lambda x, i: [dg.gather(x, i) ** 2, dg.argmax(x), None, i], [X, np.array([1, 1, 0])])


def test_nested_results() -> None:
    check_grads(lambda x, y: {"b": (dg.sin(x), [x * y]), "a": dg.exp(y)}, [X, Y])


def test_sparse_gradients() -> None:
    table = np.linspace(0.1, 1.6, 8).reshape(4, 2)
    check_grads(lambda t: dg.sin(dg.gather(t, [1, 3, 1])), [table])


def test_complex_arguments_beside_real_ones() -> None:
    z = np.array([0.3 + 0.4j, -1.2 + 0.7j])
    check_grads(lambda x, z: (dg.exp(x * z), dg.abs(z) * x), [X, z])


@pytest.mark.parametrize("x", [np.array(0.0), np.zeros((2, 3)), np.zeros(0)], ids=["0-d", "zeros", "empty"])
def test_arguments_without_a_size_of_their_own(x: Any) -> None:
    check_grads(dg.exp, [x])


#: Price, strike, time and volatility.
MARKET = [np.array(100.0), np.array(95.0), np.array(0.5), np.array(0.2)]


def black_scholes(s: Any, k: Any, t: Any, sigma: Any) -> Any:
    """The value of a call option without interest."""
    width = sigma * dg.sqrt(t)
    d = dg.log(s / k) / width + width / 2
    return s * _normal(d) - k * _normal(d - width)


def _normal(d: Any) -> Any:
    return (1 + dg.erf(d / np.sqrt(2))) / 2


def _partial(i: int) -> Any:
    return lambda *xs: dg.gradients(black_scholes(*xs), xs[i])[0]


def test_arguments_of_very_different_sizes() -> None:
    check_grads(black_scholes, MARKET)


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_arguments_that_are_all_tiny_or_all_huge(scale: float) -> None:
    check_grads(lambda x: dg.sin(x / scale), [X * scale])


# -- its options -------------------------------------------------------------------------------------------------


def test_the_generator_that_is_given_chooses_the_direction() -> None:
    def message(seed: int | None) -> str:
        rng = None if seed is None else np.random.default_rng(seed)
        with pytest.raises(AssertionError) as caught:
            check_grads(lambda x: dg.stop_gradient(x) * x, [X], rng=rng)
        return str(caught.value)

    assert message(None) == message(None) == message(0) != message(1)


def test_tolerances_are_those_given() -> None:
    nearly = with_gradient(dg.sin, lambda x: 1.001 * dg.cos(x))
    check_grads(nearly, [np.array(0.7)], order=1, rtol=2e-3)
    check_grads(nearly, [np.array(0.7)], order=1, rtol=0, atol=2e-3)
    with pytest.raises(AssertionError, match=FIRST):
        check_grads(nearly, [np.array(0.7)], order=1, rtol=5e-4, atol=0)


def test_a_function_of_integers_alone_has_nothing_to_check() -> None:
    with pytest.raises(ValueError, match="check_grads: f returns nothing of a float or complex dtype"):
        check_grads(lambda x: dg.argmax(x), [np.array([1.0, 2.0])])
