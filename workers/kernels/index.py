"""Kernels of distgrad/ops/index.py. What falls on one place is added in the order of the values: same bits always."""

from __future__ import annotations

import math
from typing import Any

from distgrad.workers.kernels.table import kernel


def _native(index: Any, arrays: Any = ()) -> Any:
    """The key that the array itself takes."""
    rest = iter(arrays)
    return tuple(next(rest) if e == "array" else _slice(*e) if isinstance(e, tuple) else e for e in index)


def _slice(start: int, count: int, step: int) -> slice:
    stop = start + count * step
    return slice(start, stop if stop >= 0 else None, step)


def add_at(xp: Any, flat: Any, places: Any, values: Any) -> None:
    """Add values in order to a vector that the caller made. Not in the standard; fast in NumPy for vectors only."""
    xp.add.at(flat, xp.reshape(places, -1), xp.reshape(values, -1))


def in_range(xp: Any, indices: Any, size: int, axis: int = 0) -> Any:
    """Indices as non-negative int64; IndexError when one is out of range."""
    indices = xp.astype(indices, xp.int64)
    bad = indices[(indices < -size) | (indices >= size)]
    if bad.size:
        raise IndexError(f"index {int(bad[0])} is out of bounds for axis {axis} with size {size}")
    return xp.where(indices < 0, indices + size, indices)


def add_rows(xp: Any, out: Any, indices: Any, rows: Any) -> Any:
    """Add rows[i] to out[indices[i]], for a contiguous `out` that the caller made."""
    width = math.prod(out.shape[1:])
    places = xp.reshape(in_range(xp, indices, out.shape[0]), (-1, 1)) * width + xp.arange(width)
    add_at(xp, xp.reshape(out, -1), places, rows)
    return out


@kernel("StridedSlice")
def strided_slice(xp: Any, x: Any, *, index: Any) -> Any:
    return x[_native(index)]


@kernel("StridedSliceGrad")
def strided_slice_grad(xp: Any, values: Any, *, index: Any, shape: Any) -> Any:
    out = xp.zeros(shape, dtype=values.dtype)
    out[_native(index)] = values  # slices name no place twice
    return out


@kernel("AdvancedIndex")
def advanced_index(xp: Any, x: Any, *arrays: Any, index: Any) -> Any:
    return x[_native(index, arrays)]


@kernel("AdvancedIndexGrad", single=True)
def advanced_index_grad(xp: Any, values: Any, *arrays: Any, index: Any, shape: Any) -> Any:
    out = xp.zeros(math.prod(shape), dtype=values.dtype)
    add_at(xp, out, _places(xp, shape, _native(index, arrays)), values)
    return xp.reshape(out, shape)


def _places(xp: Any, shape: Any, key: Any) -> Any:
    """Where in memory the elements of x[key] lie, axis by axis: nothing as large as x itself is made."""
    places: Any = 0
    for axis, n in enumerate(shape):
        stride, after = math.prod(shape[axis + 1 :]), len(shape) - axis - 1
        coordinates = xp.reshape(xp.arange(n) * stride, (-1,) + (1,) * after)
        places = places + xp.broadcast_to(coordinates, shape)[key]
    return places


@kernel("Gather")
def gather(xp: Any, params: Any, indices: Any, *, axis: int) -> Any:
    rows = xp.take(params, xp.reshape(indices, -1), axis=axis)  # the standard's take wants a vector
    return xp.reshape(rows, (*params.shape[:axis], *indices.shape, *params.shape[axis + 1 :]))


@kernel("ScatterAdd", single=True)
def scatter_add(xp: Any, x: Any, indices: Any, updates: Any) -> Any:
    out = xp.empty(x.shape, dtype=x.dtype)  # not a copy, which might keep another memory order than add_rows needs
    out[...] = x
    return add_rows(xp, out, indices, updates)
