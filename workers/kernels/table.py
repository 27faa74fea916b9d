"""The kernel tables and the decorator that fills them."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from distgrad.workers.backends import extras

Kernel = Callable[..., Any]
K = TypeVar("K", bound=Kernel)

#: Kernels that run on every array namespace.
KERNELS: dict[str, Kernel] = {}
#: Op types whose kernels call BLAS or LAPACK.
USES_BLAS: set[str] = set()
#: By backend: kernels for one array library alone.
KERNELS_OF: dict[str, dict[str, Kernel]] = {}


def lookup(backend: str, op_type: str) -> Kernel:
    """The kernel of an op type on this backend: its own if there is one, else the generic one."""
    return KERNELS_OF.get(backend, {}).get(op_type) or KERNELS[op_type]


def kernel(*op_types: str, single: bool = False, blas: bool = False, backend: str | None = None) -> Callable[[K], K]:
    """Register a function `kernel(xp, *inputs, **attrs)` for one or more op types; a tuple is several outputs.

    With `single`, an op whose first input has floats of 16 bits is computed in float32 and rounded once: a sum of ones
    in bfloat16 would stay at 256, in float16 at 2048. With `blas`, it calls BLAS or LAPACK on NumPy arrays. With
    `backend`, it is the kernel of that one alone.
    """
    table = KERNELS if backend is None else KERNELS_OF.setdefault(backend, {})

    def register(f: K) -> K:
        for op_type in op_types:
            if op_type in table:
                raise KeyError(f"two kernels for op type {op_type!r}")
            table[op_type] = _in_single(f) if single else f
        if blas:
            USES_BLAS.update(op_types)
        return f

    return register


def _in_single(run: Kernel) -> Kernel:
    @wraps(run)
    def wide(xp: Any, *inputs: Any, **attrs: Any) -> Any:
        short, own = inputs[0].dtype, extras(xp)
        if not own.is_short(short):
            return run(xp, *inputs, **attrs)
        made = run(xp, *[own.astype(x, xp.float32) if x.dtype == short else x for x in inputs], **attrs)
        return own.astype(made, short)

    return wide
