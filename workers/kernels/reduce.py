"""Kernels of distgrad/ops/reduce.py."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from distgrad.workers.backends import extras
from distgrad.workers.kernels.table import KERNELS, kernel

Axes = tuple[int, ...]


@kernel("Sum", single=True)
def sum(xp: Any, x: Any, *, axis: Axes, keepdims: bool) -> Any:
    return xp.sum(x, axis=axis, keepdims=keepdims, dtype=x.dtype)


@kernel("Prod", single=True)
def prod(xp: Any, x: Any, *, axis: Axes, keepdims: bool) -> Any:
    return xp.prod(x, axis=axis, keepdims=keepdims, dtype=x.dtype)


@kernel("Mean", single=True)
def mean(xp: Any, x: Any, *, axis: Axes, keepdims: bool) -> Any:
    # not xp.mean, which warns about empty slices
    return xp.sum(x, axis=axis, keepdims=keepdims, dtype=x.dtype) / math.prod(x.shape[i] for i in axis)


def _reduction(name: str) -> Any:
    def run(xp: Any, x: Any, *, axis: Any, keepdims: bool) -> Any:
        return (getattr(np, name) if xp is np else extras(xp).function(name))(x, axis=axis, keepdims=keepdims)

    return run


for _type, _name in {
    "Max": "max", "Min": "min", "Any": "any", "All": "all", "ArgMax": "argmax", "ArgMin": "argmin",
}.items():  # fmt: skip
    KERNELS[_type] = _reduction(_name)


@kernel("LogSumExp", single=True)
def logsumexp(xp: Any, x: Any, *, axis: Axes, keepdims: bool) -> Any:
    size = xp.real(x) if extras(xp).kind(x.dtype) == "c" else x
    if 0 in x.shape:
        top = xp.zeros_like(xp.sum(size, axis=axis, keepdims=True))  # the maximum of nothing is undefined
    else:
        top = xp.max(size, axis=axis, keepdims=True)
        top = xp.where(xp.isfinite(top), top, xp.zeros_like(top))  # inf - inf would be NaN
    out = xp.log(xp.sum(xp.exp(x - top), axis=axis, keepdims=True)) + top
    return out if keepdims else xp.squeeze(out, axis=axis)


@kernel("Cumsum", single=True)
def cumsum(xp: Any, x: Any, *, axis: int, reverse: bool) -> Any:
    return _running(xp, xp.cumulative_sum, x, axis, reverse)


@kernel("Cumprod", single=True)
def cumprod(xp: Any, x: Any, *, axis: int, reverse: bool) -> Any:
    return _running(xp, xp.cumulative_prod, x, axis, reverse)


def _running(xp: Any, run: Any, x: Any, axis: int, reverse: bool) -> Any:
    if not reverse:
        return run(x, axis=axis, dtype=x.dtype)
    return xp.flip(run(xp.flip(x, axis=axis), axis=axis, dtype=x.dtype), axis=axis)


@kernel("LinearScan", single=True)
def linear_scan(xp: Any, a: Any, b: Any, *, axis: int, reverse: bool) -> Any:
    """Doubling: after the step of width w, element i has the recurrence over its last 2 w elements."""
    a, b = xp.moveaxis(a, axis, 0), xp.moveaxis(b, axis, 0)
    if reverse:
        a, b = xp.flip(a, axis=0), xp.flip(b, axis=0)
    width = 1
    while width < b.shape[0]:
        b = xp.concat([b[:width, ...], b[width:, ...] + a[width:, ...] * b[:-width, ...]], axis=0)
        a = xp.concat([a[:width, ...], a[width:, ...] * a[:-width, ...]], axis=0)
        width *= 2
    return xp.moveaxis(xp.flip(b, axis=0) if reverse else b, 0, axis)


@kernel("Sort", single=True)
def sort(xp: Any, x: Any, *, axis: int) -> Any:
    return extras(xp).function("sort")(x, axis=axis)


@kernel("ArgSort")
def argsort(xp: Any, x: Any, *, axis: int) -> Any:
    return extras(xp).function("argsort")(_sortable(xp, x), axis=axis, stable=True)


def _sortable(xp: Any, x: Any) -> Any:
    """x as it can be sorted: 16-bit floats as float32, because sorting bfloat16 does not move NaNs to the end."""
    own = extras(xp)
    return own.astype(x, xp.float32) if own.is_short(x.dtype) else x


#: top_k partitions instead of sorting if k is at most the length of the axis divided by this.
_FEW = 8


@kernel("TopK")
def top_k(xp: Any, x: Any, *, k: int) -> Any:
    wide = _sortable(xp, x)
    if 0 < k <= x.shape[-1] // _FEW and 0 not in x.shape and not _has_nan(xp, wide):
        places = _largest(xp, wide, k)
        order = _descending(xp, xp.take_along_axis(wide, places, axis=-1))
        indices = xp.take_along_axis(places, order, axis=-1)
    else:
        indices = _descending(xp, wide)[..., :k]
    return xp.take_along_axis(x, indices, axis=-1), indices


def _has_nan(xp: Any, x: Any) -> bool:
    return extras(xp).kind(x.dtype) in "fc" and bool(xp.any(xp.isnan(x)))


def _descending(xp: Any, x: Any) -> Any:
    """Indices that sort in descending order; reversed twice, to keep equal elements in order."""
    order = extras(xp).function("argsort")(xp.flip(x, axis=-1), axis=-1, stable=True)
    return x.shape[-1] - 1 - xp.flip(order, axis=-1)


def _largest(xp: Any, x: Any, k: int) -> Any:
    """Indices of the k largest elements, ascending; of elements equal to the smallest of them, the first ones."""
    n = x.shape[-1]
    least = extras(xp).partition(x, n - k)[..., n - k, None]
    above, level = x > least, x == least
    free = k - xp.count_nonzero(above, axis=-1, keepdims=True)
    level &= xp.cumulative_sum(xp.astype(level, xp.uint8), axis=-1, dtype=xp.int64) <= free
    return xp.reshape(xp.nonzero(above | level)[-1], (*x.shape[:-1], k))


@kernel("SearchSorted")
def searchsorted(xp: Any, a: Any, v: Any, *, side: str) -> Any:
    own = extras(xp)
    if own.is_short(a.dtype):
        a, v = own.astype(a, xp.float32), own.astype(v, xp.float32)
    return own.function("searchsorted")(a, v, side=side)
