"""Regressions: small programs with results that were once wrong, run as a user runs them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import distgrad as dg


@pytest.mark.parametrize(
    "read",
    [
        lambda y: y[0, 1],
        lambda y: dg.transpose(y)[1, 0],
        lambda y: y[0][1],
        lambda y: dg.reshape(y, (6,))[1],
        lambda y: dg.unstack(dg.unstack(y)[0])[1],
        lambda y: dg.split(dg.reshape(y, (6,)), 6)[1],
        lambda y: dg.flip(y)[-1, -2],
        lambda y: dg.broadcast_to(y[0, 1], (2,)),
    ],
)
def test_one_element_of_what_stays_inside_is_read_in_every_run(read: Callable[[Any], Any]) -> None:
    f = dg.function(lambda x: read(dg.exp(x)) * 1.5)
    for value in (0.0, 1.0):
        x = np.full((2, 3), value)
        x[0, 1] += 1
        made = f(x)
        assert isinstance(made, np.ndarray)
        np.testing.assert_allclose(made, np.broadcast_to(1.5 * np.exp(value + 1), made.shape))


def scaled(by: float, x: Any) -> Any:
    return by * x


class Slotted:
    __slots__ = ("by",)

    def __init__(self, by: float):
        self.by = by

    def __call__(self, x: Any) -> Any:
        return self.by * x


@pytest.mark.parametrize("made", [lambda by: partial(scaled, by), lambda by: lambda x: by * x, Slotted])
def test_functions_that_differ_in_what_they_give_to_an_op_have_plans_of_their_own(made: Callable[..., Any]) -> None:
    @dg.op("ReportedApply", infer=lambda x, fn: (x.shape, x.dtype), override=True)
    def apply(x: Any, *, fn: Any) -> Any:
        return fn(x)

    def run(fn: Any) -> Any:
        return dg.function(lambda x: apply(x, fn=fn))(np.ones(2))

    assert [run(made(by)).tolist() for by in (2.0, 3.0)] == [[2, 2], [3, 3]]


@pytest.mark.parametrize("options", [{}, {"granularity": 1e-12}], ids=str)
def test_a_sum_of_negative_zeros_is_negative_zero(options: Any) -> None:
    xs = [np.zeros(8) for _ in range(4)]

    @dg.function
    def f(*xs: Any) -> Any:
        return dg.reciprocal(dg.add_n([-x for x in xs]))

    with dg.Session(threads=1, **options):
        assert (f(*xs) == -np.inf).all()


def test_what_a_users_kernel_keeps_is_not_the_callers_result() -> None:
    table = np.arange(3.0)

    @dg.op("ReportedTable", infer=lambda x: (x.shape, x.dtype), override=True)
    def read(x: Any) -> Any:
        return table

    f = dg.function(lambda x: read(x))
    made = f(np.ones(3))
    made += 100
    assert f(np.ones(3)).tolist() == [0, 1, 2]


def test_what_a_users_kernel_keeps_is_not_the_variables_value() -> None:
    table, v = np.arange(3.0), dg.Variable(np.zeros(3))

    @dg.op("ReportedTable", infer=lambda x: (x.shape, x.dtype), override=True)
    def read(x: Any) -> Any:
        return table

    @dg.function
    def keep(x: Any) -> None:
        v.assign(read(x))

    keep(np.ones(3))
    table += 1
    assert v.numpy().tolist() == [0, 1, 2]


def test_labels_may_be_unsigned() -> None:
    f = dg.function(dg.nn.sparse_softmax_cross_entropy)
    np.testing.assert_allclose(f(np.zeros((2, 4), np.float32), np.array([3, 0], np.uint64)), np.log(4), rtol=1e-6)


def test_a_sum_of_arrays_of_the_highest_rank() -> None:
    x = np.ones((1,) * 63 + (8,))
    assert (dg.function(lambda x: dg.add_n([x * k for k in range(5)]) + 1)(x) == 11).all()


def test_a_small_result_does_not_keep_a_large_array() -> None:
    row = dg.function(lambda x: dg.exp(x)[0])(np.zeros((1000, 1000)))
    assert row.base is None or row.base.nbytes < 10_000


def test_a_large_array_is_one_constant_however_often_it_is_used() -> None:
    w = np.ones((100, 100))

    @dg.function
    def f(x: Any) -> Any:
        for _ in range(5):
            x = x @ w
        return x

    assert [op.type for op in f.body(np.ones((2, 100))).ops].count("Const") == 1


def test_an_array_that_was_written_into_is_another_constant() -> None:
    a = np.zeros(5000)

    @dg.function
    def f(x: Any) -> Any:
        before = x + a
        a[:] = 1
        return before, x + a

    assert [y.sum() for y in f(np.zeros(5000))] == [0, 5000]


@pytest.mark.parametrize("of", [dg.grad, dg.value_and_grad])
def test_a_derivative_has_a_plan(of: Callable[..., Any]) -> None:
    plan = of(lambda x: dg.sum(x * x)).plan(np.ones(3))
    assert str(plan).startswith("1 task of")
    assert repr(plan).startswith("<Plan of 1 tasks")
