"""ThreadPool: threads that share the blocks of one step.

Each thread takes the next block when it is free, so a slow thread takes fewer. Results do not depend on which thread
runs a block: partial results are combined in the order of block numbers.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from functools import cache, partial
from queue import SimpleQueue
from typing import Protocol

import numpy as np

from distgrad.workers.kernels.sharing import BlockRunner

_pools: weakref.WeakSet[ThreadPool] = weakref.WeakSet()


class ThreadPool:
    """`size` threads, one of which is the caller. The others start on first use and end with the pool."""

    def __init__(self, size: int):
        self.size = size
        self._begin()
        _pools.add(self)

    def _begin(self) -> None:
        self._jobs: SimpleQueue[Runs | None] = SimpleQueue()
        self._busy = threading.Lock()
        self._started = 0

    def each(self, count: int, work: BlockRunner) -> None:
        """Run blocks 0 to count - 1; in the caller alone if there is one block or thread, or the pool is busy."""
        if self.size == 1 or count == 1 or self._busy.locked():
            work(iter(range(count)))
            return
        with self._busy:  # two callers may arrive at the same moment; one waits
            self._together(count, work)

    def invitations(self, job: Runs) -> list[Callable[[], None]]:
        """Calls, of C functions alone, that each make one of the other threads run a job when it is free."""
        self._start(self.size - 1)
        return [partial(self._jobs.put, job)] * (self.size - 1)

    def _together(self, count: int, work: BlockRunner) -> None:
        helpers = min(self.size, count) - 1
        job = _Job(count, work)
        self._start(helpers)
        for _ in range(helpers):
            self._jobs.put(job)
        try:
            work(job.numbers)
        except BaseException:
            job.stop()
            raise
        finally:
            job.join(helpers)
        if job.error is not None:
            raise job.error

    def _start(self, helpers: int) -> None:
        while self._started < helpers:
            threading.Thread(target=_serve, args=(self._jobs,), name="distgrad-worker-thread", daemon=True).start()
            self._started += 1  # after: an interrupt in between leaves one thread too many, not one too few

    def close(self) -> None:
        for _ in range(self._started):
            self._jobs.put(None)
        self._started = 0

    __del__ = close


class Runs(Protocol):
    """What a thread of the pool can be given."""

    @property
    def run(self) -> Callable[[], None]: ...


class _Job:
    """One call of `each` in progress. Threads can share the iterator: next() of a range is atomic under the GIL."""

    def __init__(self, count: int, work: BlockRunner):
        self.numbers = iter(range(count))
        self.error: BaseException | None = None
        self._work = work
        self._done: SimpleQueue[None] = SimpleQueue()

    def run(self) -> None:
        try:
            self._work(self.numbers)
        except BaseException as e:
            self.error = e
            self.stop()
        finally:
            self._done.put(None)

    def stop(self) -> None:
        for _ in self.numbers:
            pass

    def join(self, helpers: int) -> None:
        for _ in range(helpers):
            self._done.get()


@cache
def thread_pool(size: int) -> ThreadPool:
    """The process-wide pool of this size."""
    return ThreadPool(size)


def _after_fork() -> None:
    """A forked process inherits the pools but none of their threads."""
    for each in _pools:
        each._begin()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _serve(jobs: SimpleQueue[Runs | None]) -> None:
    with np.errstate(all="ignore"):  # NumPy keeps it per thread
        while (job := jobs.get()) is not None:
            job.run()
            del job  # an idle thread keeps nothing alive
