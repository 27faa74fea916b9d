"""The kernel table and the decorator that fills it."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

Kernel = Callable[..., Any]
K = TypeVar("K", bound=Kernel)

KERNELS: dict[str, Kernel] = {}


def kernel(*op_types: str, single: bool = False) -> Callable[[K], K]:
    """Register a function `kernel(xp, *inputs, **attrs)` for one or more op types; a tuple is several outputs.

    With `single`, an op whose first input has floats of 16 bits is computed in float32 and rounded once: a sum of ones
    in bfloat16 would stay at 256, in float16 at 2048.
    """

    def register(f: K) -> K:
        for op_type in op_types:
            if op_type in KERNELS:
                raise KeyError(f"two kernels for op type {op_type!r}")
            KERNELS[op_type] = _in_single(f) if single else f
        return f

    return register


def is_short(dtype: Any) -> bool:
    """Whether this is float16 or bfloat16, which NumPy itself does not know as a float."""
    return bool(dtype.itemsize == 2 and dtype.kind in "fV")


def _in_single(run: Kernel) -> Kernel:
    @wraps(run)
    def wide(xp: Any, *inputs: Any, **attrs: Any) -> Any:
        short = inputs[0].dtype
        if not is_short(short):
            return run(xp, *inputs, **attrs)
        made = run(xp, *[x.astype(xp.float32) if x.dtype == short else x for x in inputs], **attrs)
        return made.astype(short)

    return wide
