"""What happens to arguments that a traced function assigns to: function(writes=)."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import distgrad as dg


def step(state: Any, rate: Any) -> Any:
    state["x"][1:] += rate
    return np.sum(state["x"])


def new() -> dict[str, Any]:
    return {"x": np.arange(3.0), "y": np.zeros(2)}


def test_copy_leaves_the_callers_array_and_warns_once_with_the_line() -> None:
    f, state = dg.function(step), new()
    with pytest.warns(UserWarning, match=r"assigns to its argument state\['x'\] \(first at .*test_writes\.py:\d+\)"):
        assert f(state, 2.0) == 7.0
    np.testing.assert_array_equal(state["x"], [0, 1, 2])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        f(state, 3.0)


def test_return_appends_the_new_values() -> None:
    total, x = dg.function(step, writes="return")(new(), 2.0)
    assert total == 7.0
    np.testing.assert_array_equal(x, [0, 3, 4])


def test_return_of_a_function_without_a_result() -> None:
    @dg.function(writes="return")
    def f(a: Any, b: Any) -> None:
        a *= 2
        b[0] = a[0]

    a, b = f(np.ones(2), np.zeros(2))
    np.testing.assert_array_equal(a, [2, 2])
    np.testing.assert_array_equal(b, [2, 0])


def test_back_copies_into_the_callers_arrays() -> None:
    f, state = dg.function(step, writes="back"), new()
    assert f(state, 2.0) == 7.0
    assert f(state, 1.0) == 9.0
    np.testing.assert_array_equal(state["x"], [0, 4, 5])
    np.testing.assert_array_equal(state["y"], [0, 0])


def test_back_writes_nothing_if_the_call_fails() -> None:
    @dg.op("FailsAtRun", infer=lambda x: (x.shape, x.dtype), override=True)
    def fails(x: Any) -> Any:
        raise RuntimeError("no")

    @dg.function(writes="back")
    def f(a: Any, b: Any) -> Any:
        a[0] = 1.0
        b[0] = fails(a)[0]

    a, b = np.zeros(2), np.zeros(2)
    with pytest.raises(RuntimeError, match="no"):
        f(a, b)
    assert not a.any()
    assert not b.any()


def test_back_in_a_trace_assigns_to_the_callers_array() -> None:
    f = dg.function(lambda a: step({"x": a}, 1.0), writes="back")

    @dg.function
    def g(x: Any) -> Any:
        y = x * 2
        f(y)
        return y

    np.testing.assert_array_equal(g(np.arange(3.0)), [0, 3, 5])


def test_arguments_that_share_memory_are_refused() -> None:
    f = dg.function(lambda a, b: step({"x": a}, b[0]), writes="back")
    x = np.arange(4.0)
    with pytest.raises(ValueError, match="shares memory with argument 1: in NumPy both would change"):
        f(x[:3], x[1:])


def test_back_needs_an_array_that_can_be_written() -> None:
    x = np.arange(3.0)
    x.flags.writeable = False
    with pytest.raises(ValueError, match="pass a writable array"):
        dg.function(lambda a: step({"x": a}, 1.0), writes="back")(x)


def test_a_reshaped_argument_must_be_contiguous() -> None:
    @dg.function(writes="return")
    def f(a: Any) -> Any:
        a.reshape(-1)[0] = 7.0
        return a

    assert f(np.zeros((2, 3)))[0][0, 0] == 7.0
    with pytest.raises(ValueError, match="ascontiguousarray"):
        f(np.zeros((3, 2)).T)


def test_other_modes_are_refused() -> None:
    with pytest.raises(ValueError, match="writes must be 'copy', 'return' or 'back', got 'no'"):
        dg.function(step, writes="no")
