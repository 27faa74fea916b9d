"""Functions on shapes that are made of those of `layout`: appending, splitting along fixed axes, inserting, blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from distgrad.graph import Tensor
from distgrad.ops.array import diag
from distgrad.ops.builder import as_dtype, common, has_tensor, typed
from distgrad.ops.control import identity
from distgrad.ops.guard import guard_all
from distgrad.ops.index import getitem
from distgrad.ops.layout import atleast_1d, broadcast_to, concatenate, moveaxis, ravel, reshape, split, transpose
from distgrad.ops.math import power
from distgrad.types import as_int, brief, normalize_axis

# -- axes --------------------------------------------------------------------------------------------------------


def atleast_3d(*arys: Any) -> Any:
    """View arrays with three axes or more: vectors as (1, n, 1), matrices as (m, n, 1). Several arguments give a tuple.

    >>> atleast_3d([1, 2]).shape
    (1, 2, 1)
    """
    made = [_three_axes(typed(x)) for x in arys]
    return made[0] if len(made) == 1 else tuple(made)


def _three_axes(x: Any) -> Any:
    shapes = {0: (1, 1, 1), 1: (1, *x.shape, 1), 2: (*x.shape, 1)}
    return reshape(x, shapes[len(x.shape)]) if len(x.shape) < 3 else x


def rollaxis(a: Any, axis: int, start: int = 0, name: str | None = None) -> Tensor:
    """Move an axis before the one at position `start`; `moveaxis` is easier to read.

    >>> rollaxis(np.zeros((2, 3, 4)), 2).shape
    (4, 2, 3)
    """
    a = typed(a)
    ndim = len(a.shape)
    axis, start = normalize_axis(axis, ndim), as_int("rollaxis", "start", start)
    if not -ndim <= start <= ndim:
        raise ValueError(f"rollaxis: start must be between {-ndim} and {ndim}, got {start}")
    start += ndim if start < 0 else 0
    order = [i for i in range(ndim) if i != axis]
    order.insert(start - (axis < start), axis)
    return transpose(a, order, name=name)


# -- joining -----------------------------------------------------------------------------------------------------


def append(arr: Any, values: Any, axis: int | None = None, name: str | None = None) -> Tensor:
    """Join values to the end of an array along an axis; with axis None, both are flattened first.

    >>> append([1, 2], [[3], [4]])
    array([1, 2, 3, 4])
    """
    return concatenate([typed(arr), typed(values)], axis, name=name)


def insert(arr: Any, obj: Any, values: Any, axis: int | None = None, name: str | None = None) -> Tensor:
    """Insert values before these static indices along an axis; with axis None, into the flattened array.

    >>> insert([1, 2, 3], [1, 3], [10, 20])
    array([ 1, 10,  2,  3, 20])
    """
    a, place, before = _along("insert", arr, obj, axis)
    values = as_dtype(typed(values), a.dtype)
    values = reshape(values, (1,) * (len(a.shape) - len(values.shape)) + tuple(values.shape))
    if before.ndim == 0:
        values = moveaxis(values, 0, place)
    count = values.shape[place] if before.size == 1 else before.size
    new = broadcast_to(values, (*a.shape[:place], count, *a.shape[place + 1 :]))
    keys = np.concatenate(
        [np.arange(a.shape[place]) + 0.5, np.resize(before, count)]
    )  # an element follows what is before
    return _take(concatenate([a, new], place), np.argsort(keys, kind="stable"), place, name)


def delete(arr: Any, obj: Any, axis: int | None = None, name: str | None = None) -> Tensor:
    """Leave out the slices at these static indices along an axis; with axis None, of the flattened array.

    >>> delete([1, 2, 3, 4], [0, -1])
    array([2, 3])
    """
    if isinstance(obj, np.ndarray | list) and np.asarray(obj).dtype == bool:
        obj = np.flatnonzero(obj)
    a, place, left_out = _along("delete", arr, obj, axis)
    return _take(a, np.setdiff1d(np.arange(a.shape[place]), left_out), place, name)


def _along(what: str, arr: Any, obj: Any, axis: int | None) -> tuple[Any, int, Any]:
    """The array and axis, and the indices as non-negative integers."""
    if has_tensor(obj):
        raise TypeError(f"{what}: obj must be static indices: as a tensor, the result's shape would depend on data")
    a = ravel(arr) if axis is None else typed(arr)
    place = normalize_axis(0 if axis is None else axis, len(a.shape))
    n = a.shape[place]
    indices = np.arange(n)[obj] if isinstance(obj, slice) else np.asarray(obj)
    if indices.size and (indices.dtype.kind not in "iu" or (indices < -n).any() or (indices > n).any()):
        raise IndexError(f"{what}: indices {brief(obj)} do not fit axis {place} of size {n}")
    return a, place, np.where(indices < 0, indices + n, indices).astype(np.int64)


def _take(a: Any, places: Any, axis: int, name: str | None) -> Tensor:
    return getitem(a, (slice(None),) * axis + (places,), name=name)


def block(arrays: Any, name: str | None = None) -> Tensor:
    """Join nested lists of arrays: the innermost lists along the last axis, those around them along the one before.

    >>> block([[np.eye(1), np.zeros((1, 1))], [np.ones((1, 2))]])
    array([[1., 0.],
           [1., 1.]])
    """
    depth = _depth(arrays)
    leaves = list(_leaves(arrays))
    ndim = max(depth, *[len(x.shape) for x in leaves])
    made = _joined(arrays, iter(common(*leaves)), depth, ndim)
    whole: Tensor = identity(made, name=name) if name is not None else made
    return whole


def _depth(arrays: Any) -> int:
    if not isinstance(arrays, list):
        return 0
    depths = {_depth(item) for item in arrays}
    if len(depths) != 1:
        raise ValueError(f"block: lists must be nested equally deep and not be empty, got {brief(arrays)}")
    return 1 + depths.pop()


def _leaves(arrays: Any) -> Any:
    if isinstance(arrays, list):
        for item in arrays:
            yield from _leaves(item)
    else:
        yield typed(arrays)


def _joined(arrays: Any, leaves: Any, depth: int, ndim: int) -> Any:
    if not isinstance(arrays, list):
        x = next(leaves)
        return reshape(x, (1,) * (ndim - len(x.shape)) + tuple(x.shape))
    return concatenate([_joined(item, leaves, depth - 1, ndim) for item in arrays], -depth)


# -- splitting ---------------------------------------------------------------------------------------------------


def hsplit(ary: Any, indices_or_sections: int | Sequence[int]) -> list[Tensor]:
    """Split horizontally: along axis 1, or axis 0 of a vector.

    >>> [x.shape for x in hsplit(np.zeros((2, 4)), 2)]
    [(2, 2), (2, 2)]
    """
    ary = _axes("hsplit", ary, 1)
    return split(ary, indices_or_sections, 1 if len(ary.shape) > 1 else 0)


def vsplit(ary: Any, indices_or_sections: int | Sequence[int]) -> list[Tensor]:
    """Split vertically, along axis 0.

    >>> [x.shape for x in vsplit(np.zeros((2, 4)), 2)]
    [(1, 4), (1, 4)]
    """
    return split(_axes("vsplit", ary, 2), indices_or_sections, 0)


def dsplit(ary: Any, indices_or_sections: int | Sequence[int]) -> list[Tensor]:
    """Split along the third axis.

    >>> [x.shape for x in dsplit(np.zeros((1, 2, 4)), [1])]
    [(1, 2, 1), (1, 2, 3)]
    """
    return split(_axes("dsplit", ary, 3), indices_or_sections, 2)


def _axes(what: str, ary: Any, ndim: int) -> Any:
    ary = typed(ary)
    if len(ary.shape) < ndim:
        raise ValueError(f"{what}: an array with {ndim} axes or more is needed, got shape {list(ary.shape)}")
    return ary


# -- matrices ----------------------------------------------------------------------------------------------------


def diagflat(v: Any, k: int = 0, name: str | None = None) -> Tensor:
    """A matrix with the flattened elements of v on its k-th diagonal.

    >>> diagflat([[1, 2]])
    array([[1, 0],
           [0, 2]])
    """
    return diag(ravel(v), k, name=name)


def vander(x: Any, N: int | None = None, increasing: bool = False, name: str | None = None) -> Tensor:
    """The matrix of the powers of x, one column per power, the highest first unless `increasing`.

    >>> vander([2, 3])
    array([[2, 1],
           [3, 1]])
    """
    x = atleast_1d(x)
    if len(x.shape) != 1:
        raise ValueError(f"vander: x must be a vector, got shape {list(x.shape)}")
    count = x.shape[0] if N is None else as_int("vander", "N", N)
    powers = np.arange(count) if increasing else np.arange(count)[::-1]
    x = as_dtype(x, np.result_type(x.dtype, np.int64))
    return power(reshape(x, (-1, 1)), as_dtype(powers, x.dtype), name=name)


__all__ = [
    "append", "atleast_3d", "block", "delete", "diagflat", "dsplit", "hsplit", "insert", "rollaxis", "vander", "vsplit",
]  # fmt: skip
guard_all(globals(), __all__)
