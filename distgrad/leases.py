"""Memory for results: what a caller has dropped holds those of the next run.

Results are made anew in every run. To get their memory from the system costs as much as to fill it: it comes page by
page, zeroed. So large results lie in memory that is leased. When the last array that sees it is gone, it waits for
the next result of the same size.
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from typing import Any, NamedTuple

import numpy as np

from distgrad.types import DType, Shape

Array = np.ndarray[Any, np.dtype[Any]]

#: Smaller results are left to malloc, which keeps what it needs for them.
SMALLEST = 128 << 10
#: So many bytes wait at most.
WAITING_BYTES = 256 << 20
_LINE = 64  # of the cache


class Lease:
    """What an array in leased memory has for its base: it lives as long as anything sees the memory."""

    __slots__ = ("__array_interface__", "_home", "_memory")

    def __init__(self, home: Leases, memory: Array, shape: Shape, dtype: DType):
        self._home, self._memory = home, memory
        address = memory.ctypes.data
        data = address + -address % _LINE, False
        self.__array_interface__ = {"shape": shape, "typestr": dtype.str, "data": data, "version": 3}

    @property
    def nbytes(self) -> int:
        return self._memory.nbytes

    def __del__(self) -> None:
        self._home.take_back(self._memory)


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
        self._lock = threading.RLock()  # the collector may take back a lease while another is given
        self._waiting: OrderedDict[int, list[_Waiting]] = OrderedDict()  # by size; what came back last is last
        self._leased = self._most = self._idle = self._ever = 0

    def empty(self, shape: Shape, dtype: DType) -> Array:
        """As `np.empty`, for results of `SMALLEST` bytes or more."""
        nbytes = math.prod(shape) * dtype.itemsize
        if not nbytes or dtype.kind not in "biufc":
            return np.empty(shape, dtype)
        return np.asarray(Lease(self, self._lease(nbytes + _LINE), shape, dtype))

    def take_back(self, memory: Array) -> None:
        size = memory.nbytes
        with self._lock:
            self._leased -= size
            self._make_room(WAITING_BYTES - size)
            if size <= WAITING_BYTES:
                self._waiting.setdefault(size, []).append(_Waiting(memory, self._ever))
                self._waiting.move_to_end(size)
                self._idle += size

    def clear(self) -> None:
        """Let go of the memory that waits."""
        with self._lock:
            self._make_room(0)

    @property
    def waiting(self) -> int:
        """The bytes that wait."""
        return self._idle

    def _lease(self, size: int) -> Array:
        with self._lock:
            self._leased += size
            self._ever += size
            self._most = max(self._most, self._leased)
            found = self._waiting.get(size)
            memory = self._taken(size, -1) if found else None
            self._make_room(self._most - self._leased)
            for old in (size, next(iter(self._waiting), size)):
                self._drop_unused(old)
        if memory is not None:
            return memory
        try:
            return np.empty(size, np.uint8)
        except MemoryError:
            with self._lock:
                self._leased -= size
            raise

    def _drop_unused(self, size: int) -> None:
        """Let the oldest of this size go, if twice as much was leased since as ever was at a time."""
        found = self._waiting.get(size)
        if found and self._ever - found[0].since > 2 * self._most:
            self._taken(size, 0)

    def _make_room(self, most: int) -> None:
        """Let what has waited longest go, until no more than `most` bytes wait."""
        while self._idle > max(most, 0):
            self._taken(next(iter(self._waiting)), 0)

    def _taken(self, size: int, k: int) -> Array:
        found = self._waiting[size]
        self._idle -= size
        memory = found.pop(k).memory
        if not found:
            del self._waiting[size]
        return memory


LEASES = Leases()
