"""Sparse gradients: some rows of a tensor that is zero everywhere else."""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

from distgrad.graph import Graph, Tensor
from distgrad.ops.builder import make
from distgrad.registry import Kind, define
from distgrad.types import DType, Shape, Typed, as_shape, brief, checked_shape, size_of

#: Elements; densifying a larger tensor warns, as large embeddings often run out of memory this way.
LARGE_SIZE = 100_000_000


class IndexedSlicesValue(NamedTuple):
    """The value of an IndexedSlices after a run. NumPy's functions see the dense array.

    >>> import numpy as np
    >>> np.add(IndexedSlicesValue(np.array([1.0, 2.0]), np.array([2, 2]), (3,)), 10)
    array([10., 10., 13.])
    """

    values: Any
    indices: Any
    dense_shape: Shape | None

    def dense(self) -> Any:
        """The dense array; rows with equal indices are added."""
        if self.dense_shape is None:
            raise ValueError("an IndexedSlicesValue without dense_shape cannot be converted to a dense array")
        return densify(IndexedSlices(*self))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        dense = self.dense()
        return dense if dtype is None else dense.astype(dtype)


class IndexedSlices:
    """Rows `values[i]` at `indices[i]` of a tensor of shape `dense_shape`; rows with equal indices add up.

    Ops that need a dense tensor convert it, which requires `dense_shape`.

    >>> import distgrad as dg
    >>> with dg.Graph():
    ...     table = dg.ones((1000, 2))
    ...     (g,) = dg.gradients(dg.gather(table, [3, 3]), table)
    >>> g.dense_shape, g.values.shape
    ((1000, 2), (2, 2))
    """

    __slots__ = ("dense_shape", "indices", "values")

    def __init__(self, values: Tensor, indices: Tensor, dense_shape: Shape | None = None):
        for what, x in (("values", values), ("indices", indices)):
            if not isinstance(getattr(x, "shape", None), tuple) or not hasattr(x, "dtype"):
                raise TypeError(f"IndexedSlices: {what} must be a tensor or an array, got {brief(x)}")
        self.values = values
        self.indices = indices
        self.dense_shape = None if dense_shape is None else checked_shape(dense_shape)
        rows = len(indices.shape)
        if values.shape[:rows] != indices.shape or not self.fits(self.dense_shape):
            raise ValueError(
                f"IndexedSlices: values of shape {list(values.shape)} at indices of shape {list(indices.shape)} are "
                f"not rows of a tensor of shape {'?' if self.dense_shape is None else list(self.dense_shape)}"
            )

    def fits(self, shape: Shape | None) -> bool:
        """Whether the values are rows of a tensor of this shape."""
        if shape is not None:
            shape = as_shape(shape)
        return shape is None or (bool(shape) and self.values.shape[len(self.indices.shape) :] == shape[1:])

    @property
    def dtype(self) -> DType:
        return self.values.dtype

    @property
    def shape(self) -> Shape:
        if self.dense_shape is None:
            raise ValueError(
                f"{self!r} has no dense_shape, so it cannot be converted to a dense tensor. "
                f"Pass dense_shape= to IndexedSlices()."
            )
        return self.dense_shape

    @property
    def op(self) -> Any:
        return self.values.op

    @property
    def graph(self) -> Graph:
        return self.values.graph

    @property
    def name(self) -> str:
        return self.values.name

    @property
    def device(self) -> str | None:
        return self.values.device

    def with_values(self, values: Tensor) -> IndexedSlices:
        return IndexedSlices(values, self.indices, self.dense_shape)

    def __tensor__(self) -> Tensor:
        return densify(self)

    def __neg__(self) -> IndexedSlices:
        return self.with_values(-self.values)

    def __repr__(self) -> str:
        return f"IndexedSlices(values={self.values!r}, indices={self.indices!r}, dense_shape={self.dense_shape})"


def _segment_sum_infer(values: Typed, indices: Typed, *, num_segments: int) -> tuple[Shape, DType]:
    if values.shape[: len(indices.shape)] != indices.shape:
        raise ValueError(f"unsorted_segment_sum: {list(values.shape)} must begin with the shape {list(indices.shape)}")
    return (num_segments, *values.shape[len(indices.shape) :]), values.dtype


SEGMENT_SUM = define("UnsortedSegmentSum", _segment_sum_infer, kind=Kind.SCATTER)


def densify(slices: IndexedSlices, name: str | None = None) -> Tensor:
    """Convert to a dense tensor; rows with equal indices are added in order."""
    shape = slices.shape
    if size_of(shape) >= LARGE_SIZE:
        warnings.warn(
            f"converting sparse IndexedSlices to a dense tensor of shape {shape} "
            f"({size_of(shape) * slices.dtype.itemsize:,} bytes): this may consume a large amount of memory. "
            f"Keep the gradient sparse, or apply it row by row.",
            stacklevel=2,
        )
    return make(SEGMENT_SUM, (slices.values, slices.indices), {"num_segments": shape[0]}, name)
