"""Kernels of distgrad/ops/layout.py and distgrad/ops/array.py."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import numpy as np

from distgrad.workers.kernels.table import kernel


@kernel("Reshape")
def reshape(xp: Any, x: Any, *, shape: Any) -> Any:
    return xp.reshape(x, shape)


@kernel("Transpose")
def transpose(xp: Any, x: Any, *, axes: Any) -> Any:
    return xp.permute_dims(x, axes)


@kernel("BroadcastTo")
def broadcast_to(xp: Any, x: Any, *, shape: Any) -> Any:
    return xp.broadcast_to(x, shape)


@kernel("Concat")
def concat(xp: Any, *xs: Any, axis: int) -> Any:
    return xp.concat(xs, axis=axis)


@kernel("Stack")
def stack(xp: Any, *xs: Any, axis: int) -> Any:
    return xp.stack(xs, axis=axis)


@kernel("Split")
def split(xp: Any, x: Any, *, sizes: Any, axis: int) -> Any:
    whole = (slice(None),) * axis
    return tuple(x[(*whole, slice(stop - n, stop), ...)] for n, stop in zip(sizes, accumulate(sizes), strict=True))


@kernel("Unstack")
def unstack(xp: Any, x: Any, *, axis: int) -> Any:
    rows = xp.moveaxis(x, axis, 0)
    return tuple(rows[i, ...] for i in range(x.shape[axis]))


@kernel("Reverse")
def reverse(xp: Any, x: Any, *, axis: Any) -> Any:
    return xp.flip(x, axis=axis)


@kernel("Roll")
def roll(xp: Any, x: Any, *, shift: Any, axis: Any) -> Any:
    return xp.roll(x, shift, axis=axis)


@kernel("Pad")
def pad(xp: Any, x: Any, *, pad_width: Any, value: Any) -> Any:
    shape = tuple(before + n + after for n, (before, after) in zip(x.shape, pad_width, strict=True))
    if xp is not np and isinstance(value, np.generic):  # the standard fills with Python numbers only
        value = value.item()
    out = xp.full(shape, value, dtype=x.dtype)
    out[tuple(slice(before, before + n) for n, (before, _) in zip(x.shape, pad_width, strict=True))] = x
    return out


@kernel("MatrixDiag")
def matrix_diag(xp: Any, x: Any, *, shape: Any, offset: int) -> Any:
    (rows, columns), n = shape, x.shape[-1]
    out = xp.zeros((*x.shape[:-1], rows * columns), dtype=x.dtype)
    start, step = max(-offset, 0) * columns + max(offset, 0), columns + 1
    if n:
        out[..., start : start + (n - 1) * step + 1 : step] = x
    return xp.reshape(out, (*x.shape[:-1], rows, columns))


@kernel("MatrixDiagPart")
def matrix_diag_part(xp: Any, x: Any, *, offset: int) -> Any:
    return xp.linalg.diagonal(x, offset=offset)


@kernel("Tril")
def tril(xp: Any, x: Any, *, k: int) -> Any:
    return xp.tril(x, k=k)


@kernel("Triu")
def triu(xp: Any, x: Any, *, k: int) -> Any:
    return xp.triu(x, k=k)
