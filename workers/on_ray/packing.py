"""Packs several arrays into one object of the store.

Large arrays are sent as they are, without a copy. Many small ones share one buffer, because the overhead per array
exceeds its bytes. If the total is tiny, all are pickled to bytes, which Ray stores without further work.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

#: Total bytes up to which arrays are pickled; bytes below which an array is small.
TINY_BYTES = 16 << 10
SMALL_BYTES = 64 << 10
#: Number of small arrays from which on they share a buffer.
MANY_ARRAYS = 8
_LINE = 64  # bytes of a cache line, to which arrays of a shared buffer are aligned


class Packed:
    """Many arrays as one object. `layout` has, for each, its place in the buffer or its index among the large ones."""

    __slots__ = ("buffer", "large", "layout")

    def __init__(self, buffer: Array, layout: list[Any], large: list[Array]):
        self.buffer, self.layout, self.large = buffer, layout, large

    def __reduce__(self) -> Any:
        return Packed, (self.buffer, self.layout, self.large)

    def __getitem__(self, i: int) -> Array:
        where = self.layout[i]
        if isinstance(where, int):
            return self.large[where]
        start, shape, dtype = where
        stop = start + dtype.itemsize * int(np.prod(shape, dtype=np.int64))
        made: Array = self.buffer[start:stop].view(dtype).reshape(shape)
        return made


def pack(arrays: Sequence[Array]) -> bytes | list[Array] | Packed:
    """Pack arrays into one object; `opened` is the inverse.

    >>> opened(pack([np.arange(3), np.zeros((2, 2))] * 5))[2]
    array([0, 1, 2])
    """
    arrays = [np.asarray(x, order="C") for x in arrays]
    if sum([x.nbytes for x in arrays]) <= TINY_BYTES:
        return pickle.dumps(arrays, protocol=5)
    if sum([x.nbytes < SMALL_BYTES for x in arrays]) < MANY_ARRAYS:
        return arrays
    layout: list[Any] = []
    large: list[Array] = []
    size = 0
    for x in arrays:
        if x.nbytes < SMALL_BYTES:
            layout.append((size, x.shape, x.dtype))
            size += -(-x.nbytes // _LINE) * _LINE
        else:
            layout.append(len(large))
            large.append(x)
    packed = Packed(np.empty(size, np.uint8), layout, large)
    for i, x in enumerate(arrays):
        if x.nbytes < SMALL_BYTES:
            packed[i][...] = x
    return packed


def opened(packed: Any) -> Any:
    """The packed arrays: `[i]` of the result is the i-th one."""
    return pickle.loads(packed) if type(packed) is bytes else packed
