"""Memory for results: what a caller has dropped holds those of the next run.

Results are made anew in every run. To get their memory from the system costs as much as to fill it: it comes page by
page, zeroed. So large results lie in memory that is leased. When the last array that sees it is gone, it waits for
the next result of the same size. Such arrays are like others, but cannot be resized, and once they are marked
read-only they stay so.
"""

from __future__ import annotations

import math
import os
import threading
import weakref
from collections import OrderedDict, deque
from typing import Any, NamedTuple

import numpy as np

from distgrad.types import DType, Shape

Array = np.ndarray[Any, np.dtype[Any]]

#: Smaller results are left to malloc, which keeps what it needs for them.
SMALLEST = 128 << 10
#: So many bytes are leased at most; what goes beyond has memory of its own.
MOST_BYTES = 256 << 20
_LINE = 64  # of the cache


class Lease:
    """What an array in leased memory has for its base: it lives as long as anything sees the memory."""

    __slots__ = ("__array_interface__", "__weakref__", "_memory")

    def __init__(self, memory: Array, shape: Shape, dtype: DType):
        self._memory = memory
        address = memory.ctypes.data
        data = address + -address % _LINE, False
        self.__array_interface__ = {"shape": shape, "typestr": dtype.str, "data": data, "version": 3}

    @property
    def nbytes(self) -> int:
        return self._memory.nbytes


class _End(weakref.ref[Lease]):
    """Is called back when a lease is gone. The callback is a function in C: there is no moment at which an interrupt or
    the collector could come between."""

    __slots__ = ("memory",)
    memory: Array


class _Waiting(NamedTuple):
    memory: Array
    since: int  # the bytes that had been leased by then, ever


class Leases:
    """Leased memory of one process. Together with what waits it is never more than was leased at some time, so it adds
    nothing to the most that a process needs; and what nobody has asked for in a while goes back to the system.

    >>> leases = Leases()
    >>> a = leases.empty((512, 1024), np.dtype("f4"))
    >>> place = a.ctypes.data
    >>> del a
    >>> leases.empty((1024, 512), np.dtype("f4")).ctypes.data == place
    True
    """

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._ended: deque[_End] = deque()
        self._ends: dict[int, _End] = {}  # of the leases that are not known to be over, by id: they must live
        self._waiting: OrderedDict[int, list[_Waiting]] = OrderedDict()  # by size; what came back last is last
        self._leased = self._most = self._idle = self._ever = 0

    def empty(self, shape: Shape, dtype: DType) -> Array:
        """As `np.empty`, for results of `SMALLEST` bytes or more."""
        nbytes = math.prod(shape) * dtype.itemsize
        memory = self._lease(nbytes + _LINE) if nbytes and dtype.kind in "biufc" else None
        if memory is None:
            return np.empty(shape, dtype)
        lease = Lease(memory, shape, dtype)
        end = _End(lease, self._ended.append)
        end.memory = memory
        self._ends[id(end)] = end
        return np.asarray(lease)

    def clear(self) -> None:
        """Let go of the memory that waits."""
        if not self._lock.locked():
            with self._lock:
                self._take_back()
                self._make_room(0)

    @property
    def waiting(self) -> int:
        """The bytes that wait."""
        with self._lock:
            self._take_back()
            return self._idle

    def _lease(self, size: int) -> Array | None:
        if self._lock.locked():  # by another thread for a moment; or by this one, in the middle of which it collects
            return None
        with self._lock:
            self._take_back()
            if self._leased + size > MOST_BYTES:
                return None
            memory = self._taken(size, -1) if size in self._waiting else None
            self._make_room(max(self._most, self._leased + size) - self._leased - size)
            for old in (size, next(iter(self._waiting), size)):
                self._drop_unused(old)
            if memory is None:
                memory = np.empty(size, np.uint8)
            self._leased += size
            self._ever += size
            self._most = max(self._most, self._leased)
            return memory

    def _take_back(self) -> None:
        """What leases that are over had. An interrupt may come between any two of these lines: then some of it is lost,
        or is not counted right until there is a moment without any lease."""
        for _ in range(len(self._ended)):
            end = self._ended[0]
            if self._ends.pop(id(end), None) is not None:
                size = end.memory.nbytes
                self._waiting.setdefault(size, []).append(_Waiting(end.memory, self._ever))
                self._waiting.move_to_end(size)
                self._leased -= size
                self._idle += size
            self._ended.popleft()
        if not self._ends:
            self._leased, self._idle = 0, sum([size * len(found) for size, found in self._waiting.items()])

    def _drop_unused(self, size: int) -> None:
        """Let the oldest of this size go, if twice as much was leased since as ever was at a time."""
        found = self._waiting.get(size)
        if found and self._ever - found[0].since > 2 * self._most:
            self._taken(size, 0)

    def _make_room(self, most: int) -> None:
        """Let what has waited longest go, until no more than `most` bytes wait."""
        while self._idle > most and self._waiting:
            self._taken(next(iter(self._waiting)), 0)

    def _taken(self, size: int, k: int) -> Array | None:
        """The memory of this size at a place of its list; None where an interrupt has left the list empty."""
        found = self._waiting[size]
        memory = found.pop(k).memory if found else None
        self._idle -= 0 if memory is None else size
        if not found:
            del self._waiting[size]
        return memory


LEASES = Leases()

if hasattr(os, "register_at_fork"):
    # Another thread may have had the lock. What was leased stays so for good in the child.
    os.register_at_fork(after_in_child=LEASES._begin)
