"""A crew: the threads that share the blocks of one fused step.

Blocks are handed out one by one, so a thread that the system holds up takes fewer. Which thread runs a block changes no
bit: what blocks make is put together by their number.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterator
from functools import cache
from queue import SimpleQueue

import numpy as np

#: Takes the numbers of blocks from the iterator and runs them.
Work = Callable[[Iterator[int]], None]


_crews: weakref.WeakSet[Crew] = weakref.WeakSet()


class Crew:
    """`size` threads, of which the caller is one. The others start with the first work and end with the crew."""

    def __init__(self, size: int):
        self.size = size
        self._begin()
        _crews.add(self)

    def _begin(self) -> None:
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._busy = threading.Lock()
        self._started = 0

    def each(self, count: int, work: Work) -> None:
        """Run the blocks 0 to count - 1; alone where there is one block or thread, or where the crew is at work."""
        if self.size == 1 or count == 1 or self._busy.locked():
            work(iter(range(count)))
            return
        with self._busy:  # of two that come at the same moment one waits
            self._together(count, work)

    def _together(self, count: int, work: Work) -> None:
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
            threading.Thread(target=_serve, args=(self._jobs,), name="distgrad-crew", daemon=True).start()
            self._started += 1  # after: an interrupt in between leaves one thread too many, not one too few

    def close(self) -> None:
        for _ in range(self._started):
            self._jobs.put(None)
        self._started = 0

    __del__ = close


class _Job:
    """Work under way. The next() of a range is one step under the interpreter's lock, so threads can share it."""

    def __init__(self, count: int, work: Work):
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
def crew(size: int) -> Crew:
    """The process's crew of this size."""
    return Crew(size)


def _after_fork() -> None:
    """A process that was forked has all the crews, but none of their threads."""
    for each in _crews:
        each._begin()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _serve(jobs: SimpleQueue[_Job | None]) -> None:
    with np.errstate(all="ignore"):  # NumPy keeps it per thread
        while (job := jobs.get()) is not None:
            job.run()
            del job  # an idle thread keeps nothing alive
