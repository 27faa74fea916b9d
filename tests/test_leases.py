"""Leases: memory of results is used again when nobody has them, never before, and never more of it than was needed."""

from __future__ import annotations

import gc
import pickle
import threading
from typing import Any

import numpy as np
import pytest

import distgrad as dg
from distgrad.leases import LEASES, SMALLEST, Lease, Leases

F = np.dtype("float32")
MB = 1 << 18  # numbers that take a megabyte


def where(x: Any) -> int:
    return int(x.ctypes.data)


def test_what_is_dropped_is_used_again_and_what_is_not_is_not() -> None:
    leases = Leases()
    a, b = leases.empty((MB,), F), leases.empty((MB,), F)
    place = where(a)
    del a
    c = leases.empty((MB,), F)
    assert where(c) == place != where(b)
    assert not np.shares_memory(c, b)


@pytest.mark.parametrize("see", [lambda a: a[3:5], lambda a: a.reshape(-1, 2).T[1], memoryview, lambda a: a.view("i4")])
def test_a_view_keeps_the_memory(see: Any) -> None:
    leases = Leases()
    a = leases.empty((MB,), F)
    a[:] = 7
    view = see(a)
    before = np.array(view)
    del a
    leases.empty((MB,), F)[:] = 9
    np.testing.assert_array_equal(np.asarray(view), before)


def test_leased_arrays_are_like_others() -> None:
    a = Leases().empty((3, MB), F)
    assert type(a) is np.ndarray
    assert a.flags.carray  # in rows, aligned, writeable
    assert (a.shape, a.dtype, where(a) % 64) == ((3, MB), F, 0)
    a[:] = 2
    assert pickle.loads(pickle.dumps(a)).tobytes() == a.tobytes()


@pytest.mark.parametrize("dtype", ["S4", "U2", "O", [("a", "i4")]])
def test_what_is_no_number_is_left_to_numpy(dtype: Any) -> None:
    assert Leases().empty((MB,), np.dtype(dtype)).flags.owndata


def test_no_more_waits_than_was_leased_at_a_time() -> None:
    leases = Leases()
    for k in range(1, 20):
        leases.empty((k * MB,), F)
        assert leases.waiting <= 19 * (4 * MB + 64)
    several = [leases.empty((MB + k,), F) for k in range(10)]
    assert leases.waiting + sum(x.nbytes for x in several) <= 20 * (4 * MB + 64)


def test_what_nobody_asks_for_goes_back() -> None:
    leases = Leases()
    both = [leases.empty((MB,), F) for _ in range(2)]
    del both
    assert leases.waiting > 7 * MB
    for _ in range(8):
        leases.empty((MB,), F)
    assert leases.waiting < 5 * MB
    leases.clear()
    assert not leases.waiting


def test_at_most_so_much_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("distgrad.leases.WAITING_BYTES", 10 * MB)
    leases = Leases()
    several = [leases.empty((MB,), F) for _ in range(5)]
    large = leases.empty((5 * MB,), F)
    del several, large
    assert leases.waiting <= 10 * MB


def test_what_does_not_fit_is_not_counted() -> None:
    leases = Leases()
    with pytest.raises(MemoryError):
        leases.empty((1 << 50,), F)
    assert leases._leased == 0


def test_the_collector_may_take_back_a_lease_while_another_is_given() -> None:
    leases = Leases()

    class Cycle:
        def __init__(self) -> None:
            self.me, self.held = self, leases.empty((MB,), F)

    class Collecting(dict[int, Any]):
        def get(self, *args: Any) -> Any:
            gc.collect(0)
            return super().get(*args)

    leases._waiting = Collecting()  # type: ignore[assignment]
    leases._waiting.move_to_end = lambda size: None
    for _ in range(5):
        Cycle()
        leases.empty((MB,), F)[:] = 1


def test_threads_never_get_the_same_memory() -> None:
    leases, wrong = Leases(), []

    def work(number: int) -> None:
        for _ in range(200):
            a = leases.empty((MB // 8,), F)
            a[:64] = number
            a[-64:] = number
            if not ((a[:64] == number).all() and (a[-64:] == number).all()):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert leases._leased == 0


# -- through sessions --------------------------------------------------------------------------------------------


def test_results_of_runs_do_not_share_memory_while_somebody_has_them() -> None:
    f = dg.function(lambda x: (dg.exp(x), dg.sin(x)))
    x = np.random.default_rng(0).standard_normal(SMALLEST).astype("float32")
    first = f(x)
    kept = [np.array(y) for y in first]
    second = f(x + 1)
    assert not any(np.shares_memory(a, b) for a in first for b in second)
    np.testing.assert_array_equal(first[0], kept[0])
    assert isinstance(first[0].base, Lease)


def test_the_memory_of_results_is_used_by_the_next_run() -> None:
    f = dg.function(dg.exp)
    x = np.ones(SMALLEST, "float32")
    place = where(f(x))
    assert [where(f(x)) for _ in range(3)] == [place] * 3


def test_a_variable_keeps_a_new_value_without_a_copy() -> None:
    v = dg.Variable(np.zeros(SMALLEST, "float32"))

    @dg.function
    def step() -> Any:
        v.assign(dg.exp(v))
        return dg.sum(v)

    step()
    assert isinstance(v._value.base, Lease)
    assert not v._value.flags.writeable
    before = v.numpy()
    step()
    step()
    np.testing.assert_array_equal(before, np.ones(SMALLEST, "float32"))


def test_a_value_that_is_assigned_and_returned_is_not_shared() -> None:
    v = dg.Variable(np.zeros(SMALLEST, "float32"))

    @dg.function
    def step() -> Any:
        y = dg.exp(v)
        v.assign(y)
        return y

    y = step()
    y[:] = 77
    np.testing.assert_array_equal(v.numpy(), np.ones(SMALLEST, "float32"))


def test_small_results_own_their_memory() -> None:
    assert dg.function(dg.exp)(np.ones(8, "float32")).flags.owndata
    assert LEASES.empty((0, 5), F).flags.owndata


def test_a_session_that_is_closed_keeps_no_memory_for_the_next_run() -> None:
    x = np.ones(SMALLEST, "float32")
    with dg.Session():
        dg.function(dg.exp)(x)
        assert LEASES.waiting
    assert not LEASES.waiting
