"""Sorting and top-k. Re-exported by `reduce`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from distgrad.graph import Operation, Tensor
from distgrad.ops.array import moveaxis
from distgrad.ops.builder import make, make_n, same, typed
from distgrad.ops.guard import guard_all
from distgrad.ops.index import along, scatter
from distgrad.ops.scan import flat
from distgrad.registry import Kind, RegisterGradient, define, no_gradient
from distgrad.types import INT, DType, Shape, Typed, as_int, brief, normalize_axis

_sort = define("Sort", same, kind=Kind.SCAN)
_argsort = define("ArgSort", lambda x, *, axis: (x.shape, INT), kind=Kind.SCAN)
no_gradient("ArgSort")


def sort(a: Any, axis: int | None = -1, name: str | None = None) -> Tensor:
    """Sort in ascending order along an axis; with axis None, sort the flattened tensor.

    >>> sort(np.array([3.0, 1.0, 2.0]))
    array([1., 2., 3.])
    """
    a = typed(a)
    a, axis = (flat(a), 0) if axis is None else (a, normalize_axis(axis, len(a.shape)))
    return make(_sort, (a,), {"axis": axis}, name)


def argsort(a: Any, axis: int | None = -1, name: str | None = None) -> Tensor:
    """The indices that would sort along an axis; equal elements keep their order.

    >>> argsort(np.array([3.0, 1.0, 2.0]))
    array([1, 2, 0])
    """
    a = typed(a)
    a, axis = (flat(a), 0) if axis is None else (a, normalize_axis(axis, len(a.shape)))
    return make(_argsort, (a,), {"axis": axis}, name)


def partition(a: Any, kth: int | Sequence[int], axis: int | None = -1, name: str | None = None) -> Tensor:
    """a with the elements at kth in their sorted places, smaller ones before and larger ones after them: sorted.

    >>> partition(np.array([3.0, 1.0, 2.0]), 1)
    array([1., 2., 3.])
    """
    return sort(*_checked_kth("partition", a, kth, axis), name=name)


def argpartition(a: Any, kth: int | Sequence[int], axis: int | None = -1, name: str | None = None) -> Tensor:
    """The indices that would partition along an axis: those that would sort.

    >>> argpartition(np.array([3.0, 1.0, 2.0]), 1)
    array([1, 2, 0])
    """
    return argsort(*_checked_kth("argpartition", a, kth, axis), name=name)


def _checked_kth(what: str, a: Any, kth: int | Sequence[int], axis: int | None) -> tuple[Any, int]:
    a = typed(a)
    a, axis = (flat(a), 0) if axis is None else (a, normalize_axis(axis, len(a.shape)))
    for k in (kth if isinstance(kth, Sequence | np.ndarray) else (kth,)):
        if not -a.shape[axis] <= as_int(what, "kth", k) < a.shape[axis]:
            raise ValueError(f"{what}: kth={brief(k)} is out of bounds for axis {axis} of shape {list(a.shape)}")
    return a, axis


@RegisterGradient("Sort")
def _sort_grad(op: Operation, g: Tensor) -> Any:
    (x,), axis = op.inputs, op.attrs["axis"]
    return scatter(g, along(x.shape, argsort(x, axis), axis), x.shape)


def _top_k_infer(x: Typed, *, k: int) -> list[tuple[Shape, DType]]:
    shape = (*x.shape[:-1], k)
    return [(shape, x.dtype), (shape, INT)]


_top_k = define("TopK", _top_k_infer, kind=Kind.SCAN)


def top_k(a: Any, k: int, axis: int = -1, name: str | None = None) -> tuple[Tensor, Tensor]:
    """The k largest elements along an axis, in descending order, and their indices. Ties keep their order.

    >>> top_k(np.array([3.0, 1.0, 4.0]), 2)
    (array([4., 3.]), array([2, 0]))
    """
    a = typed(a)
    if not a.shape:
        raise ValueError("top_k: a 0-d tensor has no axis")
    axis, k = normalize_axis(axis, len(a.shape)), as_int("top_k", "k", k)
    if not 0 <= k <= a.shape[axis]:
        length = f"{a.shape[axis]}, the length of axis {axis} of shape {list(a.shape)}"
        raise ValueError(f"top_k: k must be between 0 and {length}; got {k}")
    last = axis == len(a.shape) - 1
    values, indices = make_n(_top_k, (a if last else moveaxis(a, axis, -1),), {"k": k}, name)
    return (values, indices) if last else (moveaxis(values, -1, axis), moveaxis(indices, -1, axis))


@RegisterGradient("TopK")
def _top_k_grad(op: Operation, g: Tensor, _: Any) -> Any:
    shape = op.inputs[0].shape
    rows = np.ix_(*[np.arange(n) for n in (*shape[:-1], 1)])[:-1]
    return scatter(g, (*rows, op.outputs[1]), shape)


__all__ = ["argpartition", "argsort", "partition", "sort", "top_k"]
guard_all(globals(), __all__)
