"""Kernels of distgrad/ops/reduce.py."""

from __future__ import annotations

from typing import Any

from distgrad.workers.kernels.table import kernel


@kernel("Sum")
def sum(xp: Any, x: Any, *, axis: Any, keepdims: bool) -> Any:
    return xp.sum(x, axis=axis, keepdims=keepdims, dtype=x.dtype)
