"""Kernels of distgrad/ops/index.py. Duplicates are added in order, so bits are reproducible."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from distgrad.workers.backends import extras
from distgrad.workers.kernels.table import kernel

#: Minimum elements of a row for rows to be added one by one.
_LONG_ROW = 64


def _native(index: Any, arrays: Any = ()) -> Any:
    """The key as the array's own indexing takes it."""
    rest = iter(arrays)
    return tuple(next(rest) if e == "array" else _slice(*e) if isinstance(e, tuple) else e for e in index)


def _slice(start: int, count: int, step: int) -> slice:
    if not count:
        return slice(0, 0)
    stop = start + (count - 1) * step + (1 if step > 0 else -1)  # not beyond the end: undefined in the standard
    return slice(start, stop if stop >= 0 else None, step)


def add_at(xp: Any, flat: Any, places: Any, values: Any) -> Any:
    """Add values, in order, to a vector that the caller allocated. NumPy is fast for vectors only."""
    return extras(xp).add_at(flat, xp.reshape(places, (-1,)), xp.reshape(values, (-1,)))


def in_range(xp: Any, indices: Any, size: int, axis: int = 0) -> Any:
    """Indices as non-negative int64; IndexError when one is out of range."""
    indices = xp.astype(indices, xp.int64)
    bad = indices[(indices < -size) | (indices >= size)]
    if bad.shape[0]:
        raise IndexError(f"index {int(bad[0])} is out of bounds for axis {axis} with size {size}")
    return xp.where(indices < 0, indices + size, indices)


def add_rows(xp: Any, out: Any, indices: Any, rows: Any) -> Any:
    """Add rows[i] to out[indices[i]], for a contiguous `out` that the caller allocated."""
    width = math.prod(out.shape[1:])
    if xp is np and width >= _LONG_ROW:
        return _add_long_rows(out, in_range(xp, indices, out.shape[0]), rows)
    places = xp.reshape(in_range(xp, indices, out.shape[0]), (-1, 1)) * width + xp.arange(width)
    return xp.reshape(add_at(xp, xp.reshape(out, (-1,)), places, rows), out.shape)


def _add_long_rows(out: Any, indices: Any, rows: Any) -> Any:
    """One addition per row; NumPy's scatter-add costs more per element."""
    places = out.reshape(out.shape[0], -1)
    for i, row in zip(indices.reshape(-1).tolist(), rows.reshape(indices.size, -1), strict=True):
        place = places[i]
        np.add(place, row, place)
    return out


@kernel("StridedSlice")
def strided_slice(xp: Any, x: Any, *, index: Any) -> Any:
    return extras(xp).get(x, _native(index))


@kernel("StridedSliceGrad")
def strided_slice_grad(xp: Any, values: Any, *, index: Any, shape: Any) -> Any:
    return extras(xp).put(xp.zeros(shape, dtype=values.dtype), _native(index), values)  # slices have no duplicates


@kernel("AddSlices", single=True)
def add_slices(xp: Any, *terms: Any, indexes: Any, shape: Any) -> Any:
    """Bit for bit the AddN of the terms, each slice padded with zeros to this shape."""
    more = extras(xp)
    out = xp.zeros(shape, dtype=terms[0].dtype)
    shared = _shared_places(indexes, shape) if more.kind(out.dtype) in "fc" else None
    if shared is not None:
        out = more.put(out, shared, -more.get(out, shared))  # no zeros are added there, which would turn -0.0 to 0.0
    for term, index in zip(terms, indexes, strict=True):
        if index is None:
            out += term
        else:
            out = more.put(out, _native(index), more.get(out, _native(index)) + term)
    return out


def _shared_places(indexes: Any, shape: Any) -> Any:
    """The key of the intersection of all slices; None if it is empty."""
    shared = [range(n) for n in shape]
    for index in indexes:
        for axis, entry in enumerate([] if index is None else [e for e in index if e is not None]):
            shared[axis] = _intersection(shared[axis], _range(entry))
        if not all(shared):
            return None
    return tuple(slice(r.start, r[-1] + 1, r.step) for r in shared)


def _range(entry: Any) -> range:
    start, count, step = entry if isinstance(entry, tuple) else (entry, 1, 1)
    places = range(start, start + count * step, step)
    return places if step > 0 else places[::-1]


def _intersection(a: range, b: range) -> range:
    if a.step == b.step == 1:
        return range(max(a.start, b.start), min(a.stop, b.stop))
    both = [i for i in a if i in b]
    return range(both[0], both[-1] + 1, both[1] - both[0] if len(both) > 1 else 1) if both else range(0)


@kernel("AdvancedIndex")
def advanced_index(xp: Any, x: Any, *arrays: Any, index: Any) -> Any:
    return extras(xp).get(x, _native(index, arrays))


@kernel("AdvancedIndexGrad", single=True)
def advanced_index_grad(xp: Any, values: Any, *arrays: Any, index: Any, shape: Any) -> Any:
    out = xp.zeros(math.prod(shape), dtype=values.dtype)
    return xp.reshape(add_at(xp, out, _places(xp, shape, _native(index, arrays)), values), shape)


def _places(xp: Any, shape: Any, key: Any) -> Any:
    """The memory offsets of the elements of x[key], computed per axis, without an array as large as x."""
    places: Any = 0
    for axis, n in enumerate(shape):
        stride, after = math.prod(shape[axis + 1 :]), len(shape) - axis - 1
        coordinates = xp.reshape(xp.arange(n) * stride, (-1,) + (1,) * after)
        places = places + extras(xp).get(xp.broadcast_to(coordinates, shape), key)
    return places


@kernel("Gather")
def gather(xp: Any, params: Any, indices: Any, *, axis: int) -> Any:
    rows = xp.take(params, xp.reshape(indices, (-1,)), axis=axis)  # the standard's take requires a vector
    return xp.reshape(rows, (*params.shape[:axis], *indices.shape, *params.shape[axis + 1 :]))


@kernel("ScatterAdd", single=True)
def scatter_add(xp: Any, x: Any, indices: Any, updates: Any) -> Any:
    out = xp.empty(x.shape, dtype=x.dtype)  # not a copy, which might not be contiguous
    out[...] = x
    return add_rows(xp, out, indices, updates)


@kernel("Update")
def update(xp: Any, base: Any, value: Any, *arrays: Any, index: Any, mode: str) -> Any:
    more = extras(xp)
    out = xp.asarray(base, copy=True)
    key = _native(index, arrays)
    if arrays:
        return more.combine_at(out, key, value, mode)
    if mode != "set":
        value = more.function(mode)(more.get(out, key), value)
    return more.put(out, key, value)
