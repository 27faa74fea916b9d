"""How a kernel splits its work among the threads of its task.

A kernel cuts its work into blocks and passes them to `each`. By default they run one after another; a task with several
threads installs its thread pool with `shared`. BLAS is limited to one thread meanwhile, so that two sets of threads do
not compete for the same cores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

#: Takes block numbers from an iterator and runs those blocks.
BlockRunner = Callable[[Iterator[int]], None]


class Sharing(NamedTuple):
    threads: int
    each: Callable[[int, BlockRunner], None]


def in_turn(count: int, work: BlockRunner) -> None:
    work(iter(range(count)))


_ALONE = Sharing(1, in_turn)
_sharing: ContextVar[Sharing] = ContextVar("distgrad_sharing", default=_ALONE)


def threads() -> int:
    """Number of threads that share the blocks passed to `each`."""
    return _sharing.get().threads


def each(count: int, work: BlockRunner) -> None:
    """Run the blocks 0 to count - 1."""
    _sharing.get().each(count, work)


@contextmanager
def shared(threads: int, each: Callable[[int, BlockRunner], None]) -> Iterator[None]:
    """Kernels that run inside this context share their blocks among these threads."""
    token = _sharing.set(Sharing(threads, each))
    try:
        yield
    finally:
        _sharing.reset(token)
