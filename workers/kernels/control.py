"""Kernels of distgrad/ops/control.py and distgrad/ops/indexed_slices.py."""

from __future__ import annotations

import math
from typing import Any

from distgrad.workers.backends import extras
from distgrad.workers.kernels.index import add_rows
from distgrad.workers.kernels.table import kernel


@kernel("Const")
def const(xp: Any, *, value: Any) -> Any:
    """Contiguous, as the values that tasks hand on are: bits depend on it, and native code relies on it."""
    value = value.view() if value.flags.c_contiguous else value.copy()
    value.flags.writeable = False  # constants of an unpickled program are writeable
    return extras(xp).from_numpy(value)


@kernel("Fill")
def fill(xp: Any, *, shape: Any, dtype: Any, value: Any) -> Any:
    wanted = extras(xp).dtype(dtype)
    return xp.zeros(shape, dtype=wanted) if dtype.kind in "SU" else xp.full(shape, value, dtype=wanted)


@kernel("Size")
def size(xp: Any, x: Any) -> Any:
    return xp.asarray(math.prod(x.shape), dtype=xp.int64)


@kernel("Rank")
def rank(xp: Any, x: Any) -> Any:
    return xp.asarray(x.ndim, dtype=xp.int64)


@kernel("Shape")
def shape(xp: Any, x: Any) -> Any:
    return xp.asarray(x.shape, dtype=xp.int64)


@kernel("ZerosLike")
def zeros_like(xp: Any, x: Any, *, dtype: Any) -> Any:
    return xp.zeros_like(x, dtype=extras(xp).dtype(dtype))


@kernel("OnesLike")
def ones_like(xp: Any, x: Any, *, dtype: Any) -> Any:
    return xp.ones_like(x, dtype=extras(xp).dtype(dtype))


@kernel("Identity", "StopGradient")
def identity(xp: Any, x: Any) -> Any:
    return x


@kernel("PreventGradient")
def prevent_gradient(xp: Any, x: Any, *, message: str) -> Any:
    return x


@kernel("IdentityN")
def identity_n(xp: Any, *xs: Any) -> Any:
    return xs


@kernel("NoOp")
def no_op(xp: Any) -> Any:
    return ()


@kernel("AddN", single=True)
def add_n(xp: Any, *xs: Any) -> Any:
    total = xs[0]
    for x in xs[1:]:
        total = total + x
    return total


@kernel("UnsortedSegmentSum", single=True)
def unsorted_segment_sum(xp: Any, values: Any, indices: Any, *, num_segments: int) -> Any:
    return add_rows(xp, xp.zeros((num_segments, *values.shape[indices.ndim :]), dtype=values.dtype), indices, values)
