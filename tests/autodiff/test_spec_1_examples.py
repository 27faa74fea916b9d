"""The examples of the tf.gradients page, as they read there, with dg. for tf."""

from __future__ import annotations

import numpy as np

import distgrad as dg


def test_partial_derivatives() -> None:
    @dg.function
    def example():  # type: ignore[no-untyped-def]
        a = dg.constant(0.)
        b = 2 * a
        return dg.gradients(a + b, [a, b], stop_gradients=[a, b])

    assert example() == [1.0, 1.0]


def test_total_derivatives() -> None:
    @dg.function
    def example():  # type: ignore[no-untyped-def]
        a = dg.constant(0.)
        b = 2 * a
        return dg.gradients(a + b, [a, b])

    assert example() == [3.0, 1.0]


def test_partial_derivatives_by_stop_gradient() -> None:
    @dg.function
    def example():  # type: ignore[no-untyped-def]
        a = dg.stop_gradient(dg.constant(0.))
        b = dg.stop_gradient(2 * a)
        return dg.gradients(a + b, [a, b])

    assert example() == [1.0, 1.0]


def test_unconnected_gradients() -> None:
    @dg.function
    def example(use_zero):  # type: ignore[no-untyped-def]
        a = dg.ones([1, 2])
        b = dg.ones([3, 1])
        if use_zero:
            return dg.gradients([b], [a], unconnected_gradients='zero')
        else:
            return dg.gradients([b], [a], unconnected_gradients='none')

    assert example(False) == [None]
    (zeros,) = example(True)
    np.testing.assert_array_equal(zeros, [[0.0, 0.0]])


def test_weights_and_biases() -> None:
    @dg.function
    def example():  # type: ignore[no-untyped-def]
        Ws = dg.constant(0.)
        bs = 2 * Ws
        cost = Ws + bs  # This is just an example. Please ignore the formulas.
        g = dg.gradients(cost, [Ws, bs])
        dCost_dW, dCost_db = g
        return dCost_dW, dCost_db

    assert example() == (3.0, 1.0)
