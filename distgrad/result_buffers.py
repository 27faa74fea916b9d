"""A pool of buffers for large results, reused from one run to the next.

Every run allocates new results. Memory fresh from the system arrives page by page, zeroed, which costs as much as
filling it. So large results live in pooled buffers: once the last array that refers to a buffer is gone, it is free for
the next result of the same size. Such arrays behave like any other, but cannot be resized, and once marked read-only
they stay so.
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

#: Bytes. Smaller results are left to malloc, which reuses their memory by itself.
MIN_BUFFER_BYTES = 128 << 10
#: Maximum bytes of buffers in use; results beyond that are allocated by NumPy.
MAX_BUFFER_BYTES = 256 << 20
_LINE = 64  # bytes of a cache line


class ResultBuffer:
    """The base of an array in pooled memory: it lives as long as any array or view refers to the memory."""

    __slots__ = ("__array_interface__", "__weakref__", "_memory")

    def __init__(self, memory: Array, shape: Shape, dtype: DType):
        self._memory = memory
        address = memory.ctypes.data
        data = address + -address % _LINE, False
        self.__array_interface__ = {"shape": shape, "typestr": dtype.str, "data": data, "version": 3}

    @property
    def nbytes(self) -> int:
        return self._memory.nbytes


class _Released(weakref.ref[ResultBuffer]):
    """Reports that a buffer is gone. The callback is a C function, so neither an interrupt nor the garbage collector
    can come in between."""

    __slots__ = ("memory",)
    memory: Array


class _Free(NamedTuple):
    memory: Array
    since: int  # total bytes handed out up to then


class BufferPool:
    """The pool of one process. Buffers in use and free ones together never exceed the peak of those in use, so the pool
    does not raise the peak memory of a process; buffers that are not reused for a while go back to the system.

    >>> pool = BufferPool()
    >>> a = pool.empty((512, 1024), np.dtype("f4"))
    >>> place = a.ctypes.data
    >>> del a
    >>> pool.empty((1024, 512), np.dtype("f4")).ctypes.data == place
    True
    """

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._released: deque[_Released] = deque()
        self._refs: dict[int, _Released] = {}  # of buffers that may be in use, by id: they must stay alive
        self._free: OrderedDict[int, list[_Free]] = OrderedDict()  # by size; the last freed is last
        self._used = self._peak = self._free_bytes = self._total = 0

    def empty(self, shape: Shape, dtype: DType) -> Array:
        """Like `np.empty`, for results of `MIN_BUFFER_BYTES` bytes or more."""
        nbytes = math.prod(shape) * dtype.itemsize
        memory = self._acquire(nbytes + _LINE) if nbytes and dtype.kind in "biufc" else None
        if memory is None:
            return np.empty(shape, dtype)
        buffer = ResultBuffer(memory, shape, dtype)
        ref = _Released(buffer, self._released.append)
        ref.memory = memory
        self._refs[id(ref)] = ref
        return np.asarray(buffer)

    def clear(self) -> None:
        """Give free buffers back to the system."""
        if not self._lock.locked():
            with self._lock:
                self._reclaim()
                self._make_room(0)

    @property
    def free_bytes(self) -> int:
        """Bytes of free buffers."""
        with self._lock:
            self._reclaim()
            return self._free_bytes

    def _acquire(self, size: int) -> Array | None:
        if self._lock.locked():  # by another thread for a moment, or by this one if the garbage collector runs
            return None
        with self._lock:
            self._reclaim()
            if self._used + size > MAX_BUFFER_BYTES:
                return None
            memory = self._take(size, -1) if size in self._free else None
            self._make_room(max(self._peak, self._used + size) - self._used - size)
            for old in (size, next(iter(self._free), size)):
                self._drop_unused(old)
            if memory is None:
                memory = np.empty(size, np.uint8)
            self._used += size
            self._total += size
            self._peak = max(self._peak, self._used)
            return memory

    def _reclaim(self) -> None:
        """Collect the buffers that are no longer in use. An interrupt may come between any two of these lines: then a
        buffer is lost, or miscounted until no buffer is in use."""
        for _ in range(len(self._released)):
            ref = self._released[0]
            if self._refs.pop(id(ref), None) is not None:
                size = ref.memory.nbytes
                self._free.setdefault(size, []).append(_Free(ref.memory, self._total))
                self._free.move_to_end(size)
                self._used -= size
                self._free_bytes += size
            self._released.popleft()
        if not self._refs:
            self._used, self._free_bytes = 0, sum([size * len(found) for size, found in self._free.items()])

    def _drop_unused(self, size: int) -> None:
        """Release the oldest buffer of this size if, since it was freed, twice the peak was handed out."""
        found = self._free.get(size)
        if found and self._total - found[0].since > 2 * self._peak:
            self._take(size, 0)

    def _make_room(self, most: int) -> None:
        """Release buffers, the longest unused first, until at most `most` bytes are free."""
        while self._free_bytes > most and self._free:
            self._take(next(iter(self._free)), 0)

    def _take(self, size: int, k: int) -> Array | None:
        """Take buffer `k` of this size; None if an interrupt left the list empty."""
        found = self._free[size]
        memory = found.pop(k).memory if found else None
        self._free_bytes -= 0 if memory is None else size
        if not found:
            del self._free[size]
        return memory


RESULT_BUFFERS = BufferPool()

if hasattr(os, "register_at_fork"):
    # Another thread may have held the lock. Buffers in use are never reused in the child.
    os.register_at_fork(after_in_child=RESULT_BUFFERS._reset)
