"""Packing: several arrays as one object of the store. Large ones travel as they are, without a copy; many small ones
together in one buffer, because each array of its own costs more than its bytes; and what is tiny altogether as bytes,
which Ray hands on as they are."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

#: Arrays with so few bytes altogether are tiny. Those below so many bytes are small.
TINY = 16 << 10
SMALL = 64 << 10
#: So many small ones are worth a buffer.
MANY = 8
_LINE = 64


class Packed:
    """What `pack` makes of many arrays: for each its place in the buffer, or its number among the large ones."""

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
    """One object, for `opened`.

    >>> opened(pack([np.arange(3), np.zeros((2, 2))] * 5))[2]
    array([0, 1, 2])
    """
    arrays = [np.asarray(x, order="C") for x in arrays]
    if sum([x.nbytes for x in arrays]) <= TINY:
        return pickle.dumps(arrays, protocol=5)
    if sum([x.nbytes < SMALL for x in arrays]) < MANY:
        return arrays
    layout: list[Any] = []
    large: list[Array] = []
    size = 0
    for x in arrays:
        if x.nbytes < SMALL:
            layout.append((size, x.shape, x.dtype))
            size += -(-x.nbytes // _LINE) * _LINE
        else:
            layout.append(len(large))
            large.append(x)
    packed = Packed(np.empty(size, np.uint8), layout, large)
    for i, x in enumerate(arrays):
        if x.nbytes < SMALL:
            packed[i][...] = x
    return packed


def opened(packed: Any) -> Any:
    """What was packed: `[i]` of it is the i-th array."""
    return pickle.loads(packed) if type(packed) is bytes else packed
