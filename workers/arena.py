"""Where the values of a task lie: one arena per run, in which values that do not live at the same time share places.

An arena is kept for the next run, so its memory is mapped and touched once. What leaves a task never lies in one.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from functools import cache
from typing import Any

import numpy as np

ALIGN = 64
#: Larger arrays go back to the system when they are freed.
MODERATE = 8 << 20
#: Their numbers in glibc's malloc.h.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
#: Arenas that wait for the next run are kept up to so many: one per run that goes on at the same time.
KEPT = 4


class Layout:
    """Hands out places (offsets) of an arena and takes them back; `size` is what the arena must have.

    >>> layout = Layout()
    >>> a, b = layout.take(100), layout.take(100)
    >>> layout.give(a, 100)
    >>> layout.take(64) == a, layout.size
    (True, 256)
    """

    def __init__(self) -> None:
        self.size = 0
        self._free: list[tuple[int, int]] = []  # (offset, size), by offset, never touching each other

    def take(self, nbytes: int) -> int:
        """The smallest free place that fits; else the end grows."""
        need = _rounded(nbytes)
        fits = [(size, offset) for offset, size in self._free if size >= need]
        if fits:
            size, offset = min(fits)
            self._free.remove((offset, size))
            if size > need:
                self._insert(offset + need, size - need)
            return offset
        if self._free and sum(self._free[-1]) == self.size:  # the last place grows
            offset, _ = self._free.pop()
        else:
            offset = self.size
        self.size = offset + need
        return offset

    def give(self, offset: int, nbytes: int) -> None:
        self._insert(offset, _rounded(nbytes))

    def _insert(self, offset: int, size: int) -> None:
        at = next((i for i, (o, _) in enumerate(self._free) if o > offset), len(self._free))
        if at < len(self._free) and offset + size == self._free[at][0]:
            size += self._free.pop(at)[1]
        if at and sum(self._free[at - 1]) == offset:
            before = self._free.pop(at - 1)
            offset, size = before[0], before[1] + size
            at -= 1
        self._free.insert(at, (offset, size))


def _rounded(nbytes: int) -> int:
    return -(-max(nbytes, 1) // ALIGN) * ALIGN


class Arena:
    """Memory for one run at a time, and what the tapes that ran in it have bound to it."""

    def __init__(self) -> None:
        self.memory = np.empty(0, np.uint8)
        self.bound: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()

    def reserve(self, nbytes: int) -> None:
        if self.memory.size < nbytes:
            self.bound.clear()
            self.memory = np.empty(0, np.uint8)  # the old one goes before the new one comes
            raw = np.empty(nbytes + ALIGN, np.uint8)
            skip = -raw.ctypes.data % ALIGN
            self.memory = raw[skip : skip + nbytes]


class Arenas:
    """The arenas of a process that are not in use."""

    def __init__(self) -> None:
        self._free: list[Arena] = []
        self._lock = threading.Lock()

    def take(self) -> Arena:
        with self._lock:
            return self._free.pop() if self._free else Arena()

    def give(self, arena: Arena) -> None:
        with self._lock:
            if len(self._free) < KEPT:
                self._free.append(arena)

    def clear(self) -> None:
        """Let go of the memory that is kept for the next run."""
        with self._lock:
            self._free.clear()


ARENAS = Arenas()


@cache
def keep_freed_memory(largest: int = MODERATE, most: int = 256 << 20) -> None:
    """Have glibc's malloc keep what is freed: blocks up to `largest`, and `most` bytes in all. Elsewhere there is
    nothing to set.

    Results are made anew in every run, and to get their memory back from the system page by page costs a step of a
    small model a tenth of its time.
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:
        set_option(_TRIM_THRESHOLD, most)
        set_option(_MMAP_THRESHOLD, largest)
