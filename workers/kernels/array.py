"""Kernels of distgrad/ops/array.py."""

from __future__ import annotations

from typing import Any

from distgrad.workers.kernels.table import kernel


@kernel("Reshape")
def reshape(xp: Any, x: Any, *, shape: Any) -> Any:
    return xp.reshape(x, shape)


@kernel("BroadcastTo")
def broadcast_to(xp: Any, x: Any, *, shape: Any) -> Any:
    return xp.broadcast_to(x, shape)


@kernel("Concat")
def concat(xp: Any, *xs: Any, axis: int) -> Any:
    return xp.concat(xs, axis=axis)


@kernel("Stack")
def stack(xp: Any, *xs: Any, axis: int) -> Any:
    return xp.stack(xs, axis=axis)
