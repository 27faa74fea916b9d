"""Indexing: NumPy's `x[...]`, gather and scatter.

`x[...]` is one op: StridedSlice, or AdvancedIndex with index arrays. Its gradient is the op that adds values into zeros
at the same positions, and the two are each other's gradients. `gather` along axis 0 has a sparse gradient. The
attribute `index` of these ops is a normalized key; see `key`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from distgrad.graph import Operation, Tensor
from distgrad.ops.builder import cast, check_fits, common, convert, make, typed
from distgrad.ops.control import zeros
from distgrad.ops.guard import guard_all
from distgrad.ops.indexed_slices import SEGMENT_SUM, IndexedSlices
from distgrad.ops.key import Key, checked, indexed_shape, known, parse
from distgrad.ops.layout import broadcast_to, expand_dims, moveaxis, ravel, reshape, split, unstack
from distgrad.ops.math import clip, equal, greater_equal, less, logical_and, remainder, where
from distgrad.registry import Kind, RegisterGradient, View, define
from distgrad.types import INT, DType, Shape, Typed, as_int, as_shape, brief, normalize_axis, size_of

# -- the ops -----------------------------------------------------------------------------------------------------


def _index_infer(x: Typed, *arrays: Typed, index: tuple[Any, ...]) -> tuple[Shape, DType]:
    return indexed_shape(index, arrays), x.dtype


def _scatter_infer(values: Typed, *arrays: Typed, index: tuple[Any, ...], shape: Shape) -> tuple[Shape, DType]:
    places = indexed_shape(index, arrays)
    if values.shape != places:
        raise ValueError(f"scatter: values of shape {list(values.shape)} do not fit a key of shape {list(places)}")
    return shape, values.dtype


def _add_slices_infer(*terms: Typed, indexes: tuple[Any, ...], shape: Shape) -> tuple[Shape, DType]:
    for term, index in zip(terms, indexes, strict=True):
        wanted = shape if index is None else indexed_shape(index, ())
        if term.shape != wanted:
            raise ValueError(f"add_slices: a term has shape {list(term.shape)}, expected {list(wanted)}")
    return shape, terms[0].dtype


_slice = define("StridedSlice", _index_infer, kind=Kind.LAYOUT, view=View.PART)
_slice_grad = define("StridedSliceGrad", _scatter_infer, kind=Kind.LAYOUT)
_add_slices = define("AddSlices", _add_slices_infer, kind=Kind.SCATTER)
_index = define("AdvancedIndex", _index_infer, kind=Kind.GATHER)
_index_grad = define("AdvancedIndexGrad", _scatter_infer, kind=Kind.SCATTER)


def getitem(x: Any, key: Any, name: str | None = None) -> Tensor:
    """x[key], by NumPy's rules: ints, slices, `...`, None, integer arrays or tensors, and boolean arrays.

    Boolean tensors are an error: the shape of the result would depend on data.

    >>> getitem(np.arange(6).reshape(2, 3), (slice(None), [0, -1]))
    array([[0, 2],
           [3, 5]])
    """
    x = typed(x)
    return _take(x, parse(key, x.shape), name)


def scatter(values: Any, key: Any, shape: Any, name: str | None = None) -> Tensor:
    """Zeros of this shape with values added at [key]; duplicate positions add up. The transpose of `getitem`.

    >>> scatter([1, 2, 3], ([0, 2, 0],), 4)
    array([4, 0, 2, 0])
    """
    shape = as_shape(shape)
    plain, values = parse(key, shape), typed(values)
    wanted = indexed_shape(plain.entries, plain.arrays)
    if values.shape != wanted:
        values = broadcast_to(values, wanted)
    return _put(values, plain, shape, name)


def _take(x: Any, key: Key, name: str | None = None) -> Tensor:
    return make(_index if key.arrays else _slice, (x, *key.arrays), {"index": key.entries}, name)


def _put(values: Any, key: Key, shape: Shape, name: str | None = None) -> Tensor:
    attrs = {"index": key.entries, "shape": shape}
    return make(_index_grad if key.arrays else _slice_grad, (values, *key.arrays), attrs, name)


def _key_of(op: Operation) -> Key:
    return Key(op.attrs["index"], op.inputs[1:])


@RegisterGradient("StridedSlice")
@RegisterGradient("AdvancedIndex")
def _take_grad(op: Operation, g: Tensor) -> Any:
    return _put(g, _key_of(op), op.inputs[0].shape), *[None] * (len(op.inputs) - 1)


@RegisterGradient("StridedSliceGrad")
@RegisterGradient("AdvancedIndexGrad")
def _put_grad(op: Operation, g: Tensor) -> Any:
    return _take(g, _key_of(op)), *[None] * (len(op.inputs) - 1)


def add_slices(terms: Sequence[Any], keys: Sequence[Any], shape: Any, name: str | None = None) -> Tensor:
    """The sum, in order, of terms that have the full shape (key None) or belong at x[key].

    Sums gradients of slices without a full-size array for each; lowering creates it from these.

    >>> add_slices([[1.0, 2.0], 10.0], [slice(1, 3), 2], 4)
    array([ 0.,  1., 12.,  0.])
    """
    shape = as_shape(shape)
    indexes = tuple([None if key is None else parse(key, shape).entries for key in keys])
    return make(_add_slices, common(*terms), {"indexes": indexes, "shape": shape}, name)


@RegisterGradient("AddSlices")
def _add_slices_grad(op: Operation, g: Tensor) -> Any:
    return [g if index is None else _take(g, Key(index, ())) for index in op.attrs["indexes"]]


# -- gather ------------------------------------------------------------------------------------------------------


def _integers(indices: Any, what: str) -> Any:
    if isinstance(indices, list | tuple) and len(indices) == 0:
        return np.zeros(0, INT)
    indices = typed(indices)
    if indices.dtype.kind not in "iu":
        raise TypeError(f"{what}: indices must be integers, got dtype {indices.dtype}")
    return indices


def _gather_infer(params: Typed, indices: Typed, *, axis: int) -> tuple[Shape, DType]:
    return (*params.shape[:axis], *indices.shape, *params.shape[axis + 1 :]), params.dtype


_gather = define("Gather", _gather_infer, kind=Kind.GATHER)


def gather(params: Any, indices: Any, axis: int = 0, name: str | None = None) -> Tensor:
    """The slices of params at these indices along an axis. Along axis 0 the gradient is an `IndexedSlices`.

    >>> gather(np.array([[1.0, 2.0], [3.0, 4.0]]), [1, 1, 0])
    array([[3., 4.],
           [3., 4.],
           [1., 2.]])
    """
    params, indices = typed(params), _integers(indices, "gather")
    if not params.shape:
        raise ValueError("gather: params is 0-d and has no axis to gather along")
    axis = normalize_axis(axis, len(params.shape))
    return make(_gather, (params, checked(indices, params.shape[axis], axis)), {"axis": axis}, name)


@RegisterGradient("Gather")
def _gather_grad(op: Operation, g: Tensor) -> Any:
    params, indices = op.inputs
    axis, shape = op.attrs["axis"], params.shape
    k = len(indices.shape)
    rest = shape[:axis] + shape[axis + 1 :]
    rows = reshape(moveaxis(g, range(axis, axis + k), range(k)) if axis else g, (size_of(indices.shape), *rest))
    flat = _flat_indices(indices, shape[axis])
    if axis == 0:
        return IndexedSlices(rows, flat, shape), None
    return moveaxis(unsorted_segment_sum(rows, flat, shape[axis]), 0, axis), None


def _flat_indices(indices: Tensor, n: int) -> Tensor:
    """Indices as a vector; static ones stay static."""
    value = known(indices)
    if value is not None and value.ndim != 1:
        return convert(value.ravel())
    return indices if value is not None else ravel(_not_negative(indices, n))


def _not_negative(indices: Tensor, n: int) -> Tensor:
    """Make indices non-negative, so that sparse gradients can be merged by index. Static ones already are."""
    if indices.dtype.kind == "u":
        return indices
    wide = indices if n <= np.iinfo(indices.dtype).max else cast(indices, INT)
    return where(wide < 0, wide + n, wide)


def sparse_parts(g: IndexedSlices, shapes: Sequence[Shape], axis: int) -> list[IndexedSlices]:
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


def take(a: Any, indices: Any, axis: int | None = None, mode: str = "raise", name: str | None = None) -> Tensor:
    """The elements of a at these indices along an axis; with axis None, of the flattened array. The gradient is dense.

    Mode 'wrap' takes indices modulo the size; 'clip' limits them to the valid range.

    >>> take([10, 20, 30], [[0, -1]])
    array([[10, 30]])
    """
    a = ravel(a) if axis is None else typed(a)
    indices = _integers(indices, "take")
    axis = normalize_axis(0 if axis is None else axis, len(a.shape))
    if mode == "wrap":
        indices = remainder(indices, a.shape[axis])
    elif mode == "clip":
        indices = clip(indices, 0, a.shape[axis] - 1)
    elif mode != "raise":
        raise ValueError(f"take: mode must be 'raise', 'wrap' or 'clip', got {brief(mode)}")
    return getitem(a, (slice(None),) * axis + (indices,), name=name)


def take_along_axis(arr: Any, indices: Any, axis: int | None = -1, name: str | None = None) -> Tensor:
    """Elements at separate indices for each 1-d slice along the axis; the other axes broadcast.

    >>> take_along_axis([[10, 30, 20]], [[1, 2]])
    array([[30, 20]])
    """
    arr, indices = typed(arr) if axis is not None else ravel(arr), _integers(indices, "take_along_axis")
    ndim = len(arr.shape)
    axis = normalize_axis(0 if axis is None else axis, ndim)
    if len(indices.shape) != ndim:
        raise ValueError(
            f"take_along_axis: indices of shape {list(indices.shape)} must have the same number of axes as arr, "
            f"which has shape {list(arr.shape)}"
        )
    return getitem(arr, along(arr.shape, indices, axis), name=name)


def along(shape: Shape, indices: Any, axis: int) -> tuple[Any, ...]:
    """The key that `take_along_axis` passes to `getitem`, for a tensor of this shape."""
    places = [np.arange(n).reshape(-1, *[1] * (len(shape) - i - 1)) for i, n in enumerate(shape)]
    return tuple(indices if i == axis else place for i, place in enumerate(places))


def gather_nd(params: Any, indices: Any, name: str | None = None) -> Tensor:
    """The elements or slices of params at the coordinates in the last axis of indices.

    >>> gather_nd([[1, 2], [3, 4]], [[0, 1], [1, 0]])
    array([2, 3])
    """
    return getitem(params, tuple(_points(indices, "gather_nd")), name=name)


def _points(indices: Any, what: str) -> list[Tensor]:
    indices = _integers(indices, what)
    if not indices.shape:
        raise ValueError(f"{what}: indices must have at least 1 axis; the last one holds coordinates")
    value = known(indices)
    return unstack(indices, axis=-1) if value is None else [*np.moveaxis(value, -1, 0)]


# -- scatter -----------------------------------------------------------------------------------------------------


def scatter_nd(indices: Any, updates: Any, shape: Any, name: str | None = None) -> Tensor:
    """Zeros of this shape with updates added at the coordinates in the last axis of indices.

    >>> scatter_nd([[0], [2], [0]], [1.0, 2.0, 3.0], 3)
    array([4., 0., 2.])
    """
    return scatter(updates, tuple(_points(indices, "scatter_nd")), shape, name=name)


def unsorted_segment_sum(data: Any, segment_ids: Any, num_segments: int, name: str | None = None) -> Tensor:
    """Sum the rows of data with equal segment ids, in order.

    >>> unsorted_segment_sum([1.0, 2.0, 3.0], [1, 0, 1], 3)
    array([2., 4., 0.])
    """
    ids = _integers(segment_ids, "unsorted_segment_sum")
    n = as_int("unsorted_segment_sum", "num_segments", num_segments)
    return make(SEGMENT_SUM, (typed(data), checked(ids, n, 0)), {"num_segments": n}, name)


@RegisterGradient("UnsortedSegmentSum")
def _unsorted_segment_sum_grad(op: Operation, g: Tensor) -> Any:
    return gather(g, op.inputs[1]), None


_scatter_add = define("ScatterAdd", lambda x, indices, updates: (x.shape, x.dtype), kind=Kind.SCATTER)


def scatter_add(x: Any, indices: Any, updates: Any, name: str | None = None) -> Tensor:
    """A copy of x with updates added to its rows at these indices, in order.

    >>> scatter_add(np.zeros(3), [0, 2, 0], [1.0, 2.0, 3.0])
    array([4., 0., 2.])
    """
    (x, updates), indices = common(x, updates), _integers(indices, "scatter_add")
    if not x.shape:
        raise ValueError("scatter_add: x is 0-d and has no rows")
    wanted = indices.shape + x.shape[1:]
    if updates.shape != wanted:
        updates = broadcast_to(updates, wanted)
    return make(_scatter_add, (x, checked(indices, x.shape[0], 0), updates), name=name)


@RegisterGradient("ScatterAdd")
def _scatter_add_grad(op: Operation, g: Tensor) -> Any:
    return g, None, gather(g, op.inputs[1])


def one_hot(indices: Any, depth: int, dtype: Any = float, name: str | None = None) -> Tensor:
    """1 at the index and 0 elsewhere, along a new last axis of size depth; all zeros for an index out of range.

    >>> one_hot([1, -1], 3)
    array([[0., 1., 0.],
           [0., 0., 0.]])
    """
    indices = _integers(indices, "one_hot")
    depth = as_int("one_hot", "depth", depth)
    check_fits("one_hot", (max(0, depth),), np.dtype(np.int64))
    return cast(equal(expand_dims(indices, -1), np.arange(depth)), dtype, name=name)


__all__ = [
    "gather", "gather_nd", "getitem", "one_hot", "scatter", "scatter_add", "scatter_nd", "take", "take_along_axis",
    "unsorted_segment_sum",
]  # fmt: skip
guard_all(globals(), __all__, {*__all__} - {"one_hot"})
