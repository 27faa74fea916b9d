"""The kernel table and the decorator that fills it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

Kernel = Callable[..., Any]
K = TypeVar("K", bound=Kernel)

KERNELS: dict[str, Kernel] = {}


def kernel(*op_types: str) -> Callable[[K], K]:
    """Register a function `kernel(xp, *inputs, **attrs)` for one or more op types; a tuple is several outputs."""

    def register(f: K) -> K:
        for op_type in op_types:
            if op_type in KERNELS:
                raise KeyError(f"two kernels for op type {op_type!r}")
            KERNELS[op_type] = f
        return f

    return register
