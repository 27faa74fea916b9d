"""The pool: every block is run once, errors arrive, and whatever happened, the next work finds it ready."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator

import numpy as np
import pytest

from distgrad.workers.kernels.sharing import BlockRunner
from distgrad.workers.thread_pool import ThreadPool, thread_pool

SIZES = [1, 2, 4]


@pytest.fixture
def four() -> Iterator[ThreadPool]:
    made = ThreadPool(4)
    yield made
    made.close()


def collecting(into: list[int]) -> BlockRunner:
    return lambda numbers: into.extend(numbers)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("count", [0, 1, 2, 3, 100])
def test_every_block_is_run_once(size: int, count: int) -> None:
    done: list[int] = []
    thread_pool(size).each(count, collecting(done))
    assert sorted(done) == list(range(count))


def meeting(parties: int, done: list[str]) -> BlockRunner:
    """A runner that ends only when this many threads run it at the same time."""
    barrier = threading.Barrier(parties, timeout=60)

    def work(numbers: Iterator[int]) -> None:
        for _ in numbers:
            barrier.wait()
            done.append(threading.current_thread().name)

    return work


def test_all_threads_take_part_and_the_caller_is_one_of_them(four: ThreadPool) -> None:
    done: list[str] = []
    four.each(4, meeting(4, done))
    assert len(done) == 4
    assert threading.current_thread().name in done


def test_no_more_threads_are_woken_up_than_there_are_blocks(four: ThreadPool) -> None:
    before = set(threading.enumerate())
    four.each(2, meeting(2, []))
    assert len(set(threading.enumerate()) - before) == 1


def test_an_error_of_another_thread_arrives(four: ThreadPool) -> None:
    here, barrier = threading.get_ident(), threading.Barrier(4, timeout=60)

    def work(numbers: Iterator[int]) -> None:
        for _ in numbers:
            barrier.wait()
            if threading.get_ident() != here:
                raise ZeroDivisionError("of a helper")

    with pytest.raises(ZeroDivisionError, match="of a helper"):
        four.each(4, work)


def failing(error: BaseException) -> BlockRunner:
    here = threading.get_ident()

    def work(numbers: Iterator[int]) -> None:
        for _ in numbers:
            if threading.get_ident() == here:
                raise error

    return work


def test_after_an_error_no_further_block_is_begun(four: ThreadPool) -> None:
    done: list[int] = []

    def work(numbers: Iterator[int]) -> None:
        for n in numbers:
            done.append(n)
            raise ValueError("stop")

    with pytest.raises(ValueError, match="stop"):
        four.each(10**6, work)
    assert len(done) <= 4


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt()], ids=repr)
def test_after_an_error_of_the_caller_nobody_is_at_work_and_the_pool_is_ready(
    four: ThreadPool, error: BaseException
) -> None:
    with pytest.raises(type(error)):
        four.each(100, failing(error))
    done: list[str] = []
    four.each(4, meeting(4, done))
    assert len(done) == 4


def test_work_inside_of_work_is_done_alone(four: ThreadPool) -> None:
    inner: list[tuple[int, int]] = []

    def outer(numbers: Iterator[int]) -> None:
        for n in numbers:
            four.each(3, lambda more, n=n: inner.extend((n, m) for m in more))

    four.each(4, outer)
    assert sorted(inner) == [(n, m) for n in range(4) for m in range(3)]


def test_a_second_caller_works_alone_while_the_pool_is_busy(four: ThreadPool) -> None:
    begun, end = threading.Event(), threading.Event()

    def long(numbers: Iterator[int]) -> None:
        for _ in numbers:
            begun.set()
            assert end.wait(60)

    first = threading.Thread(target=four.each, args=(4, long))
    first.start()
    assert begun.wait(60)
    names: list[str] = []
    four.each(5, lambda numbers: names.extend(threading.current_thread().name for _ in numbers))
    end.set()
    first.join()
    assert names == [threading.current_thread().name] * 5


def test_other_threads_warn_of_nothing_either(four: ThreadPool) -> None:
    barrier = threading.Barrier(4, timeout=60)
    settings: list[set[str]] = []

    def work(numbers: Iterator[int]) -> None:
        for _ in numbers:
            barrier.wait()
            np.divide(np.ones(3), np.zeros(3))
            settings.append(set(np.geterr().values()))

    with np.errstate(all="ignore"):
        four.each(4, work)
    assert settings == [{"ignore"}] * 4


def test_a_pool_that_is_gone_leaves_no_thread() -> None:
    before = set(threading.enumerate())
    made = ThreadPool(3)
    made.each(3, meeting(3, []))
    started = set(threading.enumerate()) - before
    assert len(started) == 2
    del made
    for thread in started:
        thread.join(60)
    assert not any(thread.is_alive() for thread in started)


def test_there_is_one_pool_of_a_size() -> None:
    assert thread_pool(2) is thread_pool(2)


def test_waiting_threads_keep_nothing_alive(four: ThreadPool) -> None:
    class Held: ...

    held = Held()
    gone = weakref.ref(held)

    def work(numbers: Iterator[int], held: Held = held) -> None:
        barrier.wait()
        list(numbers)

    barrier = threading.Barrier(4, timeout=60)
    four.each(4, work)
    del work, held
    for _ in range(1000):  # a helper lets go of its job right after it has said that it is done
        if gone() is None:
            break
        four.each(4, lambda numbers: list(numbers) and None)
    assert gone() is None
