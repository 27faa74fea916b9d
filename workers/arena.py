"""Arenas: one block of memory per run of a task, in which values with disjoint lifetimes share memory.

Arenas are reused by later runs, so their memory is mapped and touched once. Results that leave a task are never in one.
"""

from __future__ import annotations

import ctypes
import weakref
from collections import deque
from functools import cache
from typing import Any

import numpy as np

from distgrad.scheduler.cost.layout import ALIGN

#: Bytes of the largest freed arrays that malloc keeps by default. It returns larger ones to the system.
MODERATE = 8 << 20
#: The options M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of glibc's malloc.h.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
#: Maximum number of idle arenas. Each concurrent run uses one.
MAX_IDLE_ARENAS = 4


class Arena:
    """Memory for one run at a time, with the arrays that tapes have bound to it."""

    def __init__(self) -> None:
        self.memory = np.empty(0, np.uint8)
        self.bound: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()

    def reserve(self, nbytes: int) -> None:
        if self.memory.size < nbytes:
            self.bound.clear()
            self.memory = np.empty(0, np.uint8)  # free the old memory before allocating the new
            raw = np.empty(nbytes + ALIGN, np.uint8)
            skip = -raw.ctypes.data % ALIGN
            self.memory = raw[skip : skip + nbytes]


class Arenas:
    """The idle arenas of a process."""

    def __init__(self) -> None:
        self._free: deque[Arena] = deque(maxlen=MAX_IDLE_ARENAS)  # its methods are atomic

    def take(self) -> Arena:
        """The arena that was used last, if one is idle."""
        try:
            return self._free.pop()
        except IndexError:
            return Arena()

    def give(self, arena: Arena) -> None:
        """Keep an arena for later runs. If there are too many, the one that was not used for longest is freed."""
        self._free.append(arena)

    def clear(self) -> None:
        """Free the memory that is kept for later runs."""
        self._free.clear()


ARENAS = Arenas()


@cache
def keep_freed_memory(largest: int = MODERATE, most: int = 256 << 20) -> None:
    """Make glibc's malloc keep freed memory: blocks of up to `largest` bytes, up to `most` bytes in total. Does nothing
    with other C libraries.

    Results are allocated in every run. Getting their memory from the system again, page by page, takes a tenth of the
    time of a small model's training step.
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:
        set_option(_TRIM_THRESHOLD, most)
        set_option(_MMAP_THRESHOLD, largest)
