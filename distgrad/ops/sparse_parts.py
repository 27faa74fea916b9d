"""Sparse gradients through `concatenate`: each of the joined arrays gets its rows, and stays sparse."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from distgrad.ops.arithmetic import greater_equal, less, logical_and, where
from distgrad.ops.builder import convert
from distgrad.ops.control import zeros
from distgrad.ops.index import getitem
from distgrad.ops.indexed_slices import IndexedSlices
from distgrad.ops.key import known
from distgrad.ops.layout import ravel, reshape, split
from distgrad.types import Shape, size_of


def parts(g: IndexedSlices, shapes: Sequence[Shape], axis: int) -> list[IndexedSlices]:
    """The gradients of arrays of these shapes, joined along an axis, from the gradient of the whole."""
    ends = [*accumulate(shape[axis] for shape in shapes)]
    if axis == 0:
        starts = [0, *ends[:-1]]
        return [_rows(g, start, shape) for start, shape in zip(starts, shapes, strict=True)]
    cut = split(g.values, ends[:-1], axis - 1 + len(g.indices.shape))
    return [IndexedSlices(values, g.indices, shape) for values, shape in zip(cut, shapes, strict=True)]


def _rows(g: IndexedSlices, start: int, shape: Shape) -> IndexedSlices:
    """The rows of g that belong to an array of this shape, which begins at row `start`."""
    indices, values = ravel(g.indices), reshape(g.values, (size_of(g.indices.shape), *shape[1:]))
    fixed = known(g.indices)
    if fixed is None and shape[0]:
        return _masked(values, indices, start, shape)
    if fixed is None:
        return IndexedSlices(zeros(shape, g.dtype), zeros((0,), indices.dtype), shape)
    rows = fixed.ravel()
    own = np.flatnonzero((rows >= start) & (rows < start + shape[0]))
    return IndexedSlices(getitem(values, own), convert(rows[own] - start), shape)


def _masked(values: Any, indices: Any, start: int, shape: Shape) -> IndexedSlices:
    """With indices that are known only when the graph runs, other arrays' rows become zeros: shapes are static."""
    own = logical_and(greater_equal(indices, start), less(indices, start + shape[0]))
    kept = where(reshape(own, (-1, *[1] * (len(shape) - 1))), values, 0)
    return IndexedSlices(kept, where(own, indices - start, 0), shape)
