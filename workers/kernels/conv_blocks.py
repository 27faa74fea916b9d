"""What convolutions on NumPy arrays share: cutting into blocks, the threads that run them, and memory to work in.

A block is some images, or some rows of one image, whose copies stay in the cache. Blocks are cut by shapes alone and
what they add up is added in their order, so neither the number of threads nor their order changes a bit.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
Range = tuple[int, int]
#: The images and the rows of the result that a block makes.
Block = tuple[Range, Range]
#: Takes the numbers of blocks from the iterator and runs them.
Work = Callable[[Iterator[int]], None]

#: The memory that a block works in: at most this, and less where blocks would be too few to share among threads.
BLOCK_BYTES = 4 << 20
FEWEST_BLOCKS = 8
SMALLEST_BYTES = 1 << 18
#: A thread keeps this much of its memory for the next block: to touch fresh memory costs as much as to fill it.
KEPT_BYTES = 16 << 20


def in_turn(count: int, work: Work) -> None:
    work(iter(range(count)))


#: Runs the blocks 0 to count - 1. Who has threads to share them sets it, and gives BLAS one thread meanwhile.
each: ContextVar[Callable[[int, Work], None]] = ContextVar("each", default=in_turn)


def run(blocks: Sequence[Block], make: Callable[[int, Block], None]) -> None:
    """Call `make(number, block)` for every block, on the threads of whoever runs this."""

    def work(numbers: Iterator[int]) -> None:
        for i in numbers:
            make(i, blocks[i])

    each.get()(len(blocks), work)


def cut(images: int, rows: int, row_bytes: int) -> list[Block]:
    """Blocks of whole images; where one image is too much, of rows of it. `row_bytes` is what one row works in."""
    image_bytes = max(rows * row_bytes, 1)
    limit = min(BLOCK_BYTES, max(images * image_bytes // FEWEST_BLOCKS, SMALLEST_BYTES))
    if image_bytes <= limit:
        return [(part, (0, rows)) for part in _ranges(images, limit // image_bytes)]
    parts = _ranges(rows, max(limit // row_bytes, 1))
    return [((n, n + 1), part) for n in range(images) for part in parts]


def _ranges(n: int, most: int) -> list[Range]:
    """0 to n in ranges of nearly equal length, none longer than `most`."""
    count = -(-n // most)
    return [(i * n // count, (i + 1) * n // count) for i in range(count)]


def total(blocks: Sequence[Block], shape: Sequence[int], dtype: Any, make: Callable[[Block, Array], None]) -> Array:
    """The sum of what `make(block, out)` writes for each block. A few sums grow side by side, then they are added."""
    lanes = [blocks[start:stop] for start, stop in _ranges(len(blocks), -(-len(blocks) // FEWEST_BLOCKS))]
    sums = np.empty((len(lanes), *shape), dtype)

    def work(numbers: Iterator[int]) -> None:
        for i in numbers:
            first, *others = lanes[i]
            make(first, sums[i])
            term = np.empty(shape, dtype) if others else sums[i]
            for block in others:
                make(block, term)
                np.add(sums[i], term, out=sums[i])

    each.get()(len(lanes), work)
    for term in sums[1:]:
        np.add(sums[0], term, out=sums[0])
    return sums[0]


# -- memory ------------------------------------------------------------------------------------------------------------

_LOCAL = threading.local()


def scratch(dtype: Any, *sizes: int) -> list[Array]:
    """Flat arrays of so many elements each, with anything in them, until this thread asks again."""
    spans = [-(-size * dtype.itemsize // 64) * 64 for size in sizes]
    memory = getattr(_LOCAL, "memory", None)
    if memory is None or memory.size < sum(spans):
        memory = np.empty(sum(spans), np.uint8)
        if memory.size <= KEPT_BYTES:
            _LOCAL.memory = memory
    starts = [sum(spans[:i]) for i in range(len(spans))]
    return [memory[at : at + size * dtype.itemsize].view(dtype) for at, size in zip(starts, sizes, strict=True)]


def shaped(flat: Array, shape: Sequence[int]) -> Array:
    """The beginning of a flat array as one of this shape."""
    return flat[: math.prod(shape)].reshape(shape)


def framed(x: Array, images: Range, rows: Range, cols: Range, memory: Array) -> Array:
    """x[images, rows, cols] with zeros where the ranges reach outside of it. A view of x where they do not."""
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
    """The part of a range that lies in 0 to n; empty, but between the same ends, where none does."""
    start = min(max(wanted[0], 0), max(wanted[1], 0), n)
    return start, max(min(wanted[1], n), start)
