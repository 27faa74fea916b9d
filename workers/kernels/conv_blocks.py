"""Shared by convolutions on NumPy arrays: splitting into blocks, running them on threads, and scratch memory.

A block is some images, or some rows of one image, and its copies stay in the cache. The blocks depend on shapes alone,
and their sums are added in order, so neither the number of threads nor their order changes any bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from distgrad.workers.kernels.scratch import several
from distgrad.workers.kernels.sharing import each

Array = np.ndarray[Any, np.dtype[Any]]
Range = tuple[int, int]
#: The images and the rows of the result that a block computes.
Block = tuple[Range, Range]
T = TypeVar("T")

#: Bytes of scratch memory per block. It should stay in cache, but calls must be long, because threads wait for the GIL
#: after each one. Work below the second number of bytes runs on one thread.
BLOCK_BYTES = 10 << 20
ALONE_BYTES = 1 << 19
#: Maximum number of partial sums, and of their bytes in total (at least two sums are used).
LANES = 8
SUMS_BYTES = 32 << 20


class Extent(NamedTuple):
    """The space that is split into blocks: images, rows per image, and bytes of scratch memory per row."""

    images: int
    rows: int
    row_bytes: int


def run(extent: Extent, make: Callable[[Block], None]) -> None:
    """Call `make` for every block, on the threads of the task."""
    blocks = cut(extent)

    def work(numbers: Iterator[int]) -> None:
        for i in numbers:
            make(blocks[i])

    each(len(blocks), work)


def total(extent: Extent, shape: Sequence[int], dtype: Any, make: Callable[[Block, Array], None]) -> Array:
    """The sum of the arrays that `make(block, out)` writes. Blocks add to a few partial sums, which are then added."""
    sum_bytes = math.prod(shape) * dtype.itemsize
    blocks = cut(extent, sum_bytes)
    lanes = _parts(blocks, min(LANES, max(SUMS_BYTES // sum_bytes, 2)))
    sums = [np.empty(shape, dtype) for _ in lanes]

    def work(numbers: Iterator[int]) -> None:
        for i in numbers:
            first, *others = lanes[i]
            make(first, sums[i])
            term = np.empty(shape, dtype) if others else sums[i]
            for block in others:
                make(block, term)
                np.add(sums[i], term, out=sums[i])

    each(len(lanes), work)
    for term in sums[1:]:
        np.add(sums[0], term, out=sums[0])
    return sums[0]


def cut(extent: Extent, sum_bytes: int = 0) -> list[Block]:
    """Blocks of whole images; if these are too few or too large, of rows of an image.

    Blocks that compute terms of a sum of `sum_bytes` are larger than that; otherwise adding would cost more than
    multiplying.
    """
    images, rows = range(extent.images), range(extent.rows)
    work = len(images) * len(rows) * extent.row_bytes
    count = -(-work // max(BLOCK_BYTES, 2 * sum_bytes))
    if work >= ALONE_BYTES:
        count += count % 2  # so that two threads finish together
    within = -(-count // len(images))
    return [(_ends(some), _ends(part)) for some in _parts(images, count) for part in _parts(rows, within)]


def _parts(items: Sequence[T], count: int) -> list[Sequence[T]]:
    """Split into `count` ranges of nearly equal length, in order; fewer if there are fewer items."""
    count = min(count, len(items))
    return [items[i * len(items) // count : (i + 1) * len(items) // count] for i in range(count)]


def _ends(part: Sequence[int]) -> Range:
    return part[0], part[-1] + 1


# -- memory ------------------------------------------------------------------------------------------------------------


def pieces(dtype: Any, *sizes: int) -> list[Array]:
    """Uninitialised flat arrays of these sizes, valid until this thread calls it again."""
    return several([((size,), dtype) for size in sizes], "windows")


def shaped(flat: Array, shape: Sequence[int]) -> Array:
    """The beginning of a flat array, reshaped."""
    return flat[: math.prod(shape)].reshape(shape)


def framed(x: Array, images: Range, rows: Range, cols: Range, memory: Array) -> Array:
    """x[images, rows, cols], padded with zeros where the ranges exceed x. A view if they do not."""
    (top, bottom), (left, right) = _inside(rows, x.shape[1]), _inside(cols, x.shape[2])
    seen = x[slice(*images), top:bottom, left:right]
    if (top, bottom) == rows and (left, right) == cols:
        return seen
    made = shaped(memory, (images[1] - images[0], rows[1] - rows[0], cols[1] - cols[0], x.shape[3]))
    top, bottom, left, right = top - rows[0], bottom - rows[0], left - cols[0], right - cols[0]
    made[:, :top] = made[:, bottom:] = 0
    made[:, top:bottom, :left] = made[:, top:bottom, right:] = 0
    made[:, top:bottom, left:right] = seen
    return made


def _inside(wanted: Range, n: int) -> Range:
    """The part of a range within 0 to n; an empty range within the same bounds if there is none."""
    start = min(max(wanted[0], 0), max(wanted[1], 0), n)
    return start, max(min(wanted[1], n), start)
