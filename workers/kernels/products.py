"""Matrix products on NumPy arrays, cut into one piece per thread. Each piece is BLAS on one thread.

BLAS could use threads itself. Its threads, though, wait for each other at full speed: on cores that others use too, or
beside threads of our own, a product can take ten times as long.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from distgrad.types import broadcast_shapes
from distgrad.workers.kernels.sharing import each, threads

Array = np.ndarray[Any, np.dtype[Any]]

#: A piece of fewer multiplications and additions ends before a second thread has begun.
PIECE_FLOPS = 4 << 20


def product(a: Array, b: Array, out: Array | None = None) -> Array:
    """a @ b for arrays of at least two axes."""
    a, b = _for_blas(a), _for_blas(b)
    count = threads()
    if count == 1 or a.dtype.kind not in "fc":
        return np.matmul(a, b, out=out)
    batch = broadcast_shapes(a.shape[:-2], b.shape[:-2])
    shape = (*batch, a.shape[-2], b.shape[-1])
    if 2 * math.prod(shape) * a.shape[-1] < 2 * PIECE_FLOPS:
        return np.matmul(a, b, out=out)
    made: Array = np.empty(shape, np.result_type(a, b)) if out is None else out
    _in_pieces(a, b, made, _axis(shape, count), count)
    return made


def _axis(shape: tuple[int, ...], count: int) -> int:
    """Where to cut: through a batch that has enough products, else through the longer side of the matrices."""
    for axis, n in enumerate(shape[:-2]):
        if n >= count:
            return axis
    return len(shape) - 2 if shape[-2] >= shape[-1] else len(shape) - 1


def _in_pieces(a: Array, b: Array, out: Array, axis: int, count: int) -> None:
    size = -(-out.shape[axis] // count)
    if axis >= out.ndim - 2:
        size = -(-size // 16) * 16  # whole tiles of BLAS

    def work(numbers: Iterator[int]) -> None:
        for i in numbers:
            part = slice(i * size, (i + 1) * size)
            np.matmul(_part(a, out, axis, part, 1), _part(b, out, axis, part, 2), out=_cut(out, axis, part))

    each(-(-out.shape[axis] // size), work)


def _part(x: Array, out: Array, axis: int, part: slice, side: int) -> Array:
    """The operand that belongs to a piece of the result: the same part of it where it has that axis."""
    own = axis - out.ndim + x.ndim
    if axis >= out.ndim - 2:
        return _cut(x, own, part) if axis == out.ndim - 3 + side else x
    return _cut(x, own, part) if own >= 0 and x.shape[own] > 1 else x


def _cut(x: Array, axis: int, part: slice) -> Array:
    return x[(slice(None),) * axis + (part,)]


def _for_blas(x: Array) -> Array:
    """A copy where NumPy would leave BLAS: neither rows nor columns of the matrices are contiguous."""
    return x if x.itemsize in x.strides[-2:] or x.size < 2 else np.ascontiguousarray(x)
