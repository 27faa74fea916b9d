"""Leases: memory of results is used again when nobody has them, never before, and never more of it than was needed."""

from __future__ import annotations

import gc
import os
import pickle
import signal
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest

import distgrad as dg
from distgrad.result_buffers import LEASES, SMALLEST, Lease, Leases

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


def test_what_goes_beyond_the_most_has_memory_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("distgrad.result_buffers.MOST_BYTES", 10 * MB)
    leases = Leases()
    several = [leases.empty((MB,), F) for _ in range(5)]
    assert [x.flags.owndata for x in several] == [False, False, True, True, True]
    del several
    assert leases.waiting <= 10 * MB


def test_what_does_not_fit_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("distgrad.result_buffers.MOST_BYTES", 1 << 60)
    leases = Leases()
    with pytest.raises(MemoryError):
        leases.empty((1 << 50,), F)
    assert leases._leased == 0


def test_what_the_collector_finds_may_lease_in_the_middle_of_a_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    leases, made = Leases(), []

    class Late:
        def __init__(self) -> None:
            self.me, self.held = self, leases.empty((MB,), F)

        def __del__(self) -> None:
            made.append(leases.empty((MB,), F))
            leases.clear()

    def collecting(self: Leases, most: int) -> None:
        Late()
        gc.collect(0)

    monkeypatch.setattr(Leases, "_make_room", collecting)
    for k in range(5):
        leases.empty((MB,), F)[:] = k
    assert len(made) == 5


def test_no_interrupt_is_lost_while_results_are_dropped() -> None:
    leases, sent, caught = Leases(), 0, 0

    class Interrupt(BaseException):
        pass

    def interrupt(*_: object) -> None:
        nonlocal sent
        sent += 1
        raise Interrupt

    before = signal.signal(signal.SIGPROF, interrupt)
    try:
        while sent < 200:
            try:
                signal.setitimer(signal.ITIMER_PROF, 1e-4)
                while True:
                    several = [leases.empty((SMALLEST,), np.dtype("u1")) for _ in range(4)]
                    del several
            except Interrupt:
                caught += 1
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
    assert caught == sent
    gc.collect()
    leases.clear()
    assert (leases._leased, leases.waiting) == (0, 0)
    assert leases.empty((MB,), F).nbytes == 4 * MB


FORKS = """
import os, threading
import numpy as np
from distgrad.result_buffers import LEASES

def lease():
    while True:
        LEASES.empty((1 << 20,), np.dtype("u1"))[0] = 1

threading.Thread(target=lease, daemon=True).start()
for _ in range(20):
    child = os.fork()
    if not child:
        for _ in range(5):
            LEASES.empty((1 << 20,), np.dtype("u1"))[:] = 2
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
print("done")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_process_that_is_forked_in_the_middle_of_a_lease_can_lease() -> None:
    command = [sys.executable, "-W", "ignore", "-c", FORKS]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "done\n"


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
    assert leases.waiting <= 4 * (MB // 2 + 64)
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
