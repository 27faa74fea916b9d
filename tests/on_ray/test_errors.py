"""Errors on Ray: the user's own errors, raised once; tasks that hang or cannot be placed; NaNs."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import distgrad as dg
from distgrad.errors import TaskFailed

pytestmark = pytest.mark.ray

X = np.ones((3,))


def same(x: Any) -> Any:
    return x.shape, x.dtype


def own_op(kernel: Callable[..., Any], infer: Any = same) -> Any:
    """An op of a type that no other test has."""
    own_op.count += 1  # type: ignore[attr-defined]
    return dg.op(f"RayTestError{own_op.count}", infer=infer)(kernel)  # type: ignore[attr-defined]


own_op.count = 0  # type: ignore[attr-defined]


def noting(path: Path, then: Callable[[Any], Any]) -> Any:
    """An op that leaves a mark in a file at each call."""

    def kernel(x: Any) -> Any:
        with open(path, "a") as file:
            file.write("x")
        return then(x)

    return own_op(kernel)


class Awkward(Exception):
    """Pickle makes bytes of it that it cannot read: __init__ wants other arguments."""

    def __init__(self, what: str, where: int):
        super().__init__(f"{what} at {where}")
        self.where = where


class Locked(Exception):
    """Pickle makes nothing of it: it holds a lock."""

    def __init__(self, text: str):
        super().__init__(text)
        self.lock = threading.Lock()


def _raise(error: BaseException) -> Any:
    raise error


# -- the user's own ----------------------------------------------------------------------------------------------


def test_an_error_of_a_kernel_is_raised_as_it_was_with_its_place_and_is_not_tried_again(
    session: dg.Session, tmp_path: Path
) -> None:
    calls = tmp_path / "calls"
    failing = noting(calls, lambda x: _raise(KeyError("lost")))
    f = dg.function(lambda x: failing(x) * 2)
    with pytest.raises(KeyError, match="lost") as info:
        f(X)
    assert calls.read_text() == "x"
    (note,) = info.value.__notes__
    assert note.startswith("distgrad: in op 'RayTestError")
    assert "test_errors.py:" in note
    assert "on inputs (f64[3])" in note
    assert "raise error" in str(info.value.__cause__)
    assert "in kernel" in str(info.value.__cause__)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Awkward("broken", 7), "broken at 7"),
        (lambda: Locked("stuck"), "stuck"),
        (lambda: StopIteration(4), "4"),
        (lambda: TimeoutError("own"), "own"),
    ],
    ids=["awkward", "locked", "stop", "timeout"],
)
def test_errors_of_all_kinds_keep_their_type_and_text(session: dg.Session, make: Any, text: str) -> None:
    failing = own_op(lambda x: _raise(make()))
    with pytest.raises(type(make())) as info:
        dg.function(lambda x: failing(x))(X)
    assert str(info.value) == text
    assert "in kernel" not in str(info.value)
    assert "test_errors.py" in str(info.value.__cause__)


def test_what_of_an_error_can_travel_comes_along(session: dg.Session) -> None:
    failing = own_op(lambda x: _raise(Awkward("broken", 7)))
    with pytest.raises(Awkward) as info:
        dg.function(lambda x: failing(x))(X)
    assert info.value.where == 7
    assert "distgrad: in op" in info.value.__notes__[0]


def test_a_failed_call_in_many_tasks_leaves_variables_and_the_session_as_they_were(fine: dg.Session) -> None:
    failing = own_op(lambda x: _raise(ValueError("no")) if x[0] > 1 else x + 0)
    v, w = dg.Variable(np.zeros(3)), dg.Variable(np.zeros(3))

    @dg.function
    def step(x: Any) -> Any:
        v.assign_add(x)
        w.assign_add(dg.exp(failing(x)))
        return dg.sum(w * v) + dg.sum(dg.tanh(failing(x * 1)))

    step(X)
    before = v.numpy(), w.numpy()
    with pytest.raises(ValueError, match="no"):
        step(2 * X)
    for found, expected in zip((v.numpy(), w.numpy()), before, strict=True):
        np.testing.assert_array_equal(found, expected)
    step(X)
    np.testing.assert_array_equal(v.numpy(), 2 * X)


# -- what distgrad finds itself ----------------------------------------------------------------------------------


def test_check_numerics_names_op_and_line(ray_session: dg.Session) -> None:
    v = dg.Variable(np.zeros(3))

    @dg.function
    def step(x: Any) -> Any:
        v.assign_add(x)
        return dg.exp(dg.sqrt(x)) + 1

    with dg.Session("ray", check_numerics=True, granularity=1e-9):
        step(X)
        with pytest.raises(dg.NumericsError, match=r"op 'Sqrt' \(type Sqrt, at .*test_errors.py:\d+\) produced NaN"):
            step(-X)
    np.testing.assert_array_equal(v.numpy(), X)


def test_a_timeout_names_tasks_ops_and_lines_in_time(ray_session: dg.Session) -> None:
    forever = own_op(lambda x: time.sleep(600) or x)
    v = dg.Variable(np.zeros(3))

    @dg.function
    def step(x: Any) -> Any:
        v.assign_add(x)
        return dg.exp(forever(x)) * 2

    begun = time.monotonic()
    with dg.Session("ray", timeout=1, granularity=1e-9), pytest.raises(TimeoutError) as info:
        step(X)
    assert 1 <= time.monotonic() - begun < 15
    text = str(info.value)
    assert "stopped after its timeout of 1 s" in text
    assert "RayTestError" in text
    assert "test_errors.py:" in text
    assert "'Exp'" in text
    assert "a worker to finish it" in text
    np.testing.assert_array_equal(v.numpy(), 0 * X)


def test_after_a_timeout_the_workers_are_free_again(ray_session: dg.Session) -> None:
    """Both workers hang; what runs next has them again."""
    forever = own_op(lambda x: time.sleep(600) or x)
    with dg.Session("ray", timeout=1, granularity=1e-9), pytest.raises(TimeoutError):
        dg.function(lambda x: [forever(x), forever(x + 1), forever(x + 2)])(X)
    with dg.Session("ray", timeout=60):
        np.testing.assert_array_equal(dg.function(lambda x: x * 2)(X), 2 * X)


def test_a_gpu_that_is_not_there_is_refused_before_anything_runs(session: dg.Session, tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    noted = noting(calls, lambda x: x + 0)

    @dg.function
    def f(x: Any) -> Any:
        y = noted(x)
        with dg.device("gpu"):
            return dg.exp(y)

    with pytest.raises(dg.DeviceError, match=r"asks for device 'gpu', but no worker has a GPU") as info:
        f(X)
    assert "Cluster 'ray' has 2 workers, 2 cpus, no GPUs" in str(info.value)
    assert not calls.exists()


def test_a_process_that_dies_each_time_is_given_up_after_so_many_attempts(
    ray_session: dg.Session, tmp_path: Path
) -> None:
    calls = tmp_path / "calls"
    dying = noting(calls, lambda x: os._exit(1))
    v = dg.Variable(np.zeros(3))

    @dg.function
    def step(x: Any) -> Any:
        v.assign_add(x)
        return dying(x)

    with dg.Session("ray", attempts=2, timeout=120), pytest.raises(TaskFailed, match="failed 2 times") as info:
        step(X)
    assert calls.read_text() == "xx"
    assert "RayTestError" in str(info.value)
    assert "Variables are unchanged" in str(info.value)
    np.testing.assert_array_equal(v.numpy(), 0 * X)
