"""Result buffers: reused once nobody refers to them, never before, and never more of them than the peak needed."""

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
from distgrad.result_buffers import MIN_BUFFER_BYTES, RESULT_BUFFERS, BufferPool, ResultBuffer

F = np.dtype("float32")
MB = 1 << 18  # numbers that take a megabyte


def where(x: Any) -> int:
    return int(x.ctypes.data)


def test_a_dropped_buffer_is_reused_and_a_referenced_one_is_not() -> None:
    pool = BufferPool()
    a, b = pool.empty((MB,), F), pool.empty((MB,), F)
    place = where(a)
    del a
    c = pool.empty((MB,), F)
    assert where(c) == place != where(b)
    assert not np.shares_memory(c, b)


@pytest.mark.parametrize("see", [lambda a: a[3:5], lambda a: a.reshape(-1, 2).T[1], memoryview, lambda a: a.view("i4")])
def test_a_view_keeps_the_memory(see: Any) -> None:
    pool = BufferPool()
    a = pool.empty((MB,), F)
    a[:] = 7
    view = see(a)
    before = np.array(view)
    del a
    pool.empty((MB,), F)[:] = 9
    np.testing.assert_array_equal(np.asarray(view), before)


def test_arrays_in_buffers_are_like_others() -> None:
    a = BufferPool().empty((3, MB), F)
    assert type(a) is np.ndarray
    assert a.flags.carray  # in rows, aligned, writeable
    assert (a.shape, a.dtype, where(a) % 64) == ((3, MB), F, 0)
    a[:] = 2
    assert pickle.loads(pickle.dumps(a)).tobytes() == a.tobytes()


@pytest.mark.parametrize("dtype", ["S4", "U2", "O", [("a", "i4")]])
def test_dtypes_other_than_numbers_are_left_to_numpy(dtype: Any) -> None:
    assert BufferPool().empty((MB,), np.dtype(dtype)).flags.owndata


def test_free_buffers_never_exceed_the_peak_in_use() -> None:
    pool = BufferPool()
    for k in range(1, 20):
        pool.empty((k * MB,), F)
        assert pool.free_bytes <= 19 * (4 * MB + 64)
    several = [pool.empty((MB + k,), F) for k in range(10)]
    assert pool.free_bytes + sum(x.nbytes for x in several) <= 20 * (4 * MB + 64)


def test_unused_buffers_go_back_to_the_system() -> None:
    pool = BufferPool()
    both = [pool.empty((MB,), F) for _ in range(2)]
    del both
    assert pool.free_bytes > 7 * MB
    for _ in range(8):
        pool.empty((MB,), F)
    assert pool.free_bytes < 5 * MB
    pool.clear()
    assert not pool.free_bytes


def test_results_beyond_the_limit_are_allocated_by_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("distgrad.result_buffers.MAX_BUFFER_BYTES", 10 * MB)
    pool = BufferPool()
    several = [pool.empty((MB,), F) for _ in range(5)]
    assert [x.flags.owndata for x in several] == [False, False, True, True, True]
    del several
    assert pool.free_bytes <= 10 * MB


def test_a_failed_allocation_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("distgrad.result_buffers.MAX_BUFFER_BYTES", 1 << 60)
    pool = BufferPool()
    with pytest.raises(MemoryError):
        pool.empty((1 << 50,), F)
    assert pool._used == 0


def test_a_finalizer_may_allocate_in_the_middle_of_an_allocation(monkeypatch: pytest.MonkeyPatch) -> None:
    pool, made = BufferPool(), []

    class Late:
        def __init__(self) -> None:
            self.me, self.held = self, pool.empty((MB,), F)

        def __del__(self) -> None:
            made.append(pool.empty((MB,), F))
            pool.clear()

    def collecting(self: BufferPool, most: int) -> None:
        Late()
        gc.collect(0)

    monkeypatch.setattr(BufferPool, "_make_room", collecting)
    for k in range(5):
        pool.empty((MB,), F)[:] = k
    assert len(made) == 5


def test_no_interrupt_is_lost_while_results_are_dropped() -> None:
    pool, sent, caught = BufferPool(), 0, 0

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
                    several = [pool.empty((MIN_BUFFER_BYTES,), np.dtype("u1")) for _ in range(4)]
                    del several
            except Interrupt:
                caught += 1
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
    assert caught == sent
    gc.collect()
    pool.clear()
    assert (pool._used, pool.free_bytes) == (0, 0)
    assert pool.empty((MB,), F).nbytes == 4 * MB


FORKS = """
import os, threading
import numpy as np
from distgrad.result_buffers import RESULT_BUFFERS

def allocate():
    while True:
        RESULT_BUFFERS.empty((1 << 20,), np.dtype("u1"))[0] = 1

threading.Thread(target=allocate, daemon=True).start()
for _ in range(20):
    child = os.fork()
    if not child:
        for _ in range(5):
            RESULT_BUFFERS.empty((1 << 20,), np.dtype("u1"))[:] = 2
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
print("done")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_process_forked_in_the_middle_of_an_allocation_can_allocate() -> None:
    command = [sys.executable, "-W", "ignore", "-c", FORKS]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "done\n"


def test_threads_never_get_the_same_memory() -> None:
    pool, wrong = BufferPool(), []

    def work(number: int) -> None:
        for _ in range(200):
            a = pool.empty((MB // 8,), F)
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
    assert pool.free_bytes <= 4 * (MB // 2 + 64)
    assert pool._used == 0


# -- through sessions --------------------------------------------------------------------------------------------


def test_results_of_runs_do_not_share_memory_while_somebody_has_them() -> None:
    f = dg.function(lambda x: (dg.exp(x), dg.sin(x)))
    x = np.random.default_rng(0).standard_normal(MIN_BUFFER_BYTES).astype("float32")
    first = f(x)
    kept = [np.array(y) for y in first]
    second = f(x + 1)
    assert not any(np.shares_memory(a, b) for a in first for b in second)
    np.testing.assert_array_equal(first[0], kept[0])
    assert isinstance(first[0].base, ResultBuffer)


def test_the_memory_of_results_is_used_by_the_next_run() -> None:
    f = dg.function(dg.exp)
    x = np.ones(MIN_BUFFER_BYTES, "float32")
    place = where(f(x))
    assert [where(f(x)) for _ in range(3)] == [place] * 3


def test_a_variable_keeps_a_new_value_without_a_copy() -> None:
    v = dg.Variable(np.zeros(MIN_BUFFER_BYTES, "float32"))

    @dg.function
    def step() -> Any:
        v.assign(dg.exp(v))
        return dg.sum(v)

    step()
    assert isinstance(v._value.base, ResultBuffer)
    assert not v._value.flags.writeable
    before = v.numpy()
    step()
    step()
    np.testing.assert_array_equal(before, np.ones(MIN_BUFFER_BYTES, "float32"))


def test_a_value_that_is_assigned_and_returned_is_not_shared() -> None:
    v = dg.Variable(np.zeros(MIN_BUFFER_BYTES, "float32"))

    @dg.function
    def step() -> Any:
        y = dg.exp(v)
        v.assign(y)
        return y

    y = step()
    y[:] = 77
    np.testing.assert_array_equal(v.numpy(), np.ones(MIN_BUFFER_BYTES, "float32"))


def test_small_results_own_their_memory() -> None:
    assert dg.function(dg.exp)(np.ones(8, "float32")).flags.owndata
    assert RESULT_BUFFERS.empty((0, 5), F).flags.owndata


def test_a_session_that_is_closed_keeps_no_memory_for_the_next_run() -> None:
    x = np.ones(MIN_BUFFER_BYTES, "float32")
    with dg.Session():
        dg.function(dg.exp)(x)
        assert RESULT_BUFFERS.free_bytes
    assert not RESULT_BUFFERS.free_bytes
