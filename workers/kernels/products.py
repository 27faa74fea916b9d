"""Matrix products of NumPy arrays, split into pieces for threads. Each piece is one BLAS call on one thread.

BLAS could use threads itself, but they wait for each other by spinning: on busy cores, or next to our own threads, a
product can take ten times as long.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np

from distgrad.types import broadcast_shapes
from distgrad.workers.kernels.sharing import each, threads

Array = np.ndarray[Any, np.dtype[Any]]

#: Minimum flops per piece: smaller ones end before a second thread has begun.
PIECE_FLOPS = 4 << 20
#: Rows per piece if all pieces are equal. The split changes bits: BLAS has different code for the last few rows.
PIECE_ROWS = 256
#: Rows and columns of a BLAS tile.
TILE = 16


def product(a: Array, b: Array, out: Array | None = None) -> Array:
    """a @ b for arrays of at least two axes."""
    count = threads()
    if count == 1 or not _worth_splitting(a, b):
        return multiply(a, b, out)
    shape = (*broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1])
    made: Array = np.empty(shape, np.result_type(a, b)) if out is None else out
    found = split(_for_blas(a), _for_blas(b), made, count)

    def work(numbers: Iterator[int]) -> None:
        for i in numbers:
            multiply(*found[i])

    each(len(found), work)
    return made


def multiply(a: Array, b: Array, out: Array | None = None) -> Array:
    """The same by one call of NumPy."""
    made: Array = np.matmul(_for_blas(a), _for_blas(b), out=out)
    return made


def split(a: Array, b: Array, out: Array, count: int) -> list[tuple[Array, Array, Array]]:
    """The pieces that threads share, each of them two operands and a part of the result; one where it is too small."""
    if not _worth_splitting(a, b):
        return [(a, b, out)]
    axis = _axis(out.shape, count)
    parts = _parts(out.shape, axis, count)
    return [(_part(a, out, axis, part, 1), _part(b, out, axis, part, 2), _cut(out, axis, part)) for part in parts]


def _worth_splitting(a: Array, b: Array) -> bool:
    flops = 2 * math.prod(broadcast_shapes(a.shape[:-2], b.shape[:-2])) * a.shape[-2] * b.shape[-1] * a.shape[-1]
    return a.dtype.kind in "fc" and flops >= 2 * PIECE_FLOPS


def even_pieces(rows: int, count: int) -> int:
    """Number of equal pieces that `count` threads split these rows into; 0 if there are too few or no equal split. BLAS
    packs the second matrix again for each piece, so threads get two pieces each only if these are large.

    >>> even_pieces(1024, 2), even_pieces(512, 2), even_pieces(256, 2)
    (4, 2, 0)
    """
    return next((n for n in (2 * count, count) if rows >= n * PIECE_ROWS and rows % n == 0), 0)


def _axis(shape: tuple[int, ...], count: int) -> int:
    """How to split: along a batch with enough products, else along many rows, else along the longer side of the
    matrices."""
    for axis, n in enumerate(shape[:-2]):
        if n >= count:
            return axis
    if even_pieces(shape[-2], count):
        return len(shape) - 2
    return len(shape) - 2 if shape[-2] >= shape[-1] else len(shape) - 1


def _parts(shape: tuple[int, ...], axis: int, count: int) -> tuple[slice, ...]:
    even = even_pieces(shape[axis], count) if axis == len(shape) - 2 else 0
    if even:
        size = shape[axis] // even
        return tuple([slice(i * size, (i + 1) * size) for i in range(even)])
    return pieces(shape[axis], count, TILE if axis >= len(shape) - 2 else 1)


@lru_cache(maxsize=1024)
def pieces(n: int, count: int, tile: int) -> tuple[slice, ...]:
    """A long and a short piece for each of `count` threads, all of whole tiles but for the last. The long ones come
    first: a thread that the system holds up, or that woke up late, leaves the short ones to the others.

    >>> pieces(1024, 2, 16)
    (slice(0, 384, None), slice(384, 768, None), slice(768, 896, None), slice(896, 1024, None))
    >>> pieces(5, 2, 1)
    (slice(0, 3, None), slice(3, 5, None))
    """
    long = 3 * n // (4 * count * tile) * tile
    short = _tiles((n - count * long) / count, tile)
    if long < 3 * short // 2:  # too few tiles: one piece per thread
        long, short = _tiles(n / count, tile), 0
    ends = [min((i + 1) * long, n) for i in range(count)]
    while ends[-1] < n:
        ends.append(min(ends[-1] + short, n))
    starts = [0, *ends[:-1]]
    return tuple([slice(start, end) for start, end in zip(starts, ends, strict=True) if start < end])


def _tiles(n: float, tile: int) -> int:
    return math.ceil(n / tile) * tile


def _part(x: Array, out: Array, axis: int, part: slice, side: int) -> Array:
    """The operand for a piece of the result: the same slice, if it has that axis."""
    own = axis - out.ndim + x.ndim
    if axis >= out.ndim - 2:
        return _cut(x, own, part) if axis == out.ndim - 3 + side else x
    return _cut(x, own, part) if own >= 0 and x.shape[own] > 1 else x


def _cut(x: Array, axis: int, part: slice) -> Array:
    return x[(slice(None),) * axis + (part,)]


def _for_blas(x: Array) -> Array:
    """A copy if NumPy would not use BLAS: neither rows nor columns of the matrices are contiguous."""
    return x if x.itemsize in x.strides[-2:] or x.size < 2 else np.ascontiguousarray(x)
