"""How a kernel shares its work among the threads of the task that runs it.

A kernel cuts its work into blocks and hands them to `each`. Alone, they run one after another; a task with several
threads brings its crew. BLAS itself has one thread meanwhile: two kinds of threads on the same cores would wait for
each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

#: Takes the numbers of blocks from the iterator and runs them.
Work = Callable[[Iterator[int]], None]


class Sharing(NamedTuple):
    threads: int
    each: Callable[[int, Work], None]


def in_turn(count: int, work: Work) -> None:
    work(iter(range(count)))


_ALONE = Sharing(1, in_turn)
_sharing: ContextVar[Sharing] = ContextVar("distgrad_sharing", default=_ALONE)


def threads() -> int:
    """How many threads share what is handed to `each`."""
    return _sharing.get().threads


def each(count: int, work: Work) -> None:
    """Run the blocks 0 to count - 1."""
    _sharing.get().each(count, work)


@contextmanager
def shared(threads: int, each: Callable[[int, Work], None]) -> Iterator[None]:
    """Inside, kernels share their work among these threads."""
    token = _sharing.set(Sharing(threads, each))
    try:
        yield
    finally:
        _sharing.reset(token)
