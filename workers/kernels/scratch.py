"""Scratch memory that each thread reuses: touching fresh memory costs as much as filling it.

Each thread has its own slots. The contents of a slot are valid until the same thread asks for that slot again.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
DType = np.dtype[Any]
Shape = tuple[int, ...]

#: Maximum bytes of an array that a thread keeps. Larger ones are allocated each time: every thread would keep them, and
#: the cost of allocating them is relatively small. The memory that several arrays share may be larger.
SCRATCH_BYTES = 1 << 22
SEVERAL_BYTES = 1 << 25
_LINE = 64  # bytes of a cache line: a vector load that crosses two lines costs two loads
_VIEWS = 256  # views that a thread keeps before it drops all of them


class _Kept(threading.local):
    """One thread's memory by slot, with cached views of it."""

    def __init__(self) -> None:
        self.memory: dict[str, Array] = {}
        self.views: dict[Any, Array] = {}


_kept = _Kept()


def scratch(shape: Shape, dtype: DType, slot: str) -> Array:
    """An uninitialised array."""
    view = _kept.views.get((shape, dtype, slot))
    return _view(shape, dtype, slot) if view is None else view


def several(wanted: Sequence[tuple[Shape, DType]], slot: str) -> list[Array]:
    """Uninitialised arrays in one block of memory. Slots are separate from those of `scratch`."""
    sizes = [math.prod(shape) * dtype.itemsize for shape, dtype in wanted]
    spans = [-(-size // _LINE) * _LINE for size in sizes]
    memory, at, made = _memory(sum(spans), slot, SEVERAL_BYTES), 0, []
    for (shape, dtype), size, span in zip(wanted, sizes, spans, strict=True):
        made.append(memory[at : at + size].view(dtype).reshape(shape))
        at += span
    return made


def apart(out: Array, *inputs: Array, slot: str) -> Array:
    """Memory for a result while inputs are still read: `out`, unless it may share memory with an input."""
    for x in inputs:
        if np.may_share_memory(out, x):
            return scratch(out.shape, out.dtype, slot)
    return out


def _view(shape: Shape, dtype: DType, slot: str) -> Array:
    size = math.prod(shape) * dtype.itemsize
    before = _kept.memory.get(slot)
    memory = _memory(size, slot, SCRATCH_BYTES)
    if memory is not before or len(_kept.views) >= _VIEWS:
        _kept.views.clear()  # they would keep the outgrown memory alive
    view = memory[:size].view(dtype).reshape(shape)
    if size <= SCRATCH_BYTES:
        _kept.views[shape, dtype, slot] = view
    return view


def _memory(size: int, slot: str, most: int) -> Array:
    """At least this many bytes, which are kept for reuse unless they exceed `most`."""
    memory = _kept.memory.get(slot)
    if memory is None or memory.size < size:
        memory = _aligned(max(size, 1 << 16))
        if size <= most:
            _kept.memory[slot] = memory
    return memory


def _aligned(size: int) -> Array:
    raw = np.empty(size + _LINE, np.uint8)
    start = -raw.ctypes.data % _LINE
    return raw[start : start + size]
