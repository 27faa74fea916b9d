"""The table of kernels that write into given buffers, the decorator that fills it, and the memory they work in.

Only NumPy: what another array library needs, its own allocator and fuser do.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any

import numpy as np

from distgrad.workers.kernels.table import KERNELS

Array = np.ndarray[Any, np.dtype[Any]]
Function = Callable[..., None]


@dataclass(frozen=True, slots=True)
class Into:
    """How an op is computed into a buffer: as `ufunc(*inputs, out)`, or as `function(out, *inputs, **attrs)`.

    Inputs broadcast against `out` by NumPy's rules where the op's shape rule lets them.
    """

    ufunc: np.ufunc | None = None
    function: Function | None = None
    #: Whether `out` may be the memory of an input that has its shape and dtype.
    overlap: bool = True
    #: Whether the bits are those of the op's kernel. If not, a row's bits still depend on that row alone.
    exact: bool = True

    def __call__(self, out: Array, *inputs: Array, **attrs: Any) -> None:
        if self.ufunc is not None:
            self.ufunc(*inputs, out)
        elif self.function is not None:
            self.function(out, *inputs, **attrs)


INTO: dict[str, Into] = {}


def into(*op_types: str, fast: str = "fd", overlap: bool = True) -> Callable[[Function], Function]:
    """Register a function `f(out, *inputs, **attrs)` with the bits of the op's kernel.

    It is called for results with the dtype characters in `fast`; others are what the kernel makes, copied.
    """

    def register(f: Function) -> Function:
        for op_type in op_types:
            INTO[op_type] = Into(function=_for_dtypes(op_type, f, fast), overlap=overlap)
        return f

    return register


def _for_dtypes(op_type: str, f: Function, fast: str) -> Function:
    @wraps(f)
    def function(out: Array, *inputs: Array, **attrs: Any) -> None:
        if out.dtype.char in fast:
            f(out, *inputs, **attrs)
        else:
            generic(op_type, out, *inputs, **attrs)

    return function


def generic(op_type: str, out: Array, *inputs: Array, **attrs: Any) -> None:
    """The op by its kernel, copied into `out`."""
    out[...] = KERNELS[op_type](np, *inputs, **attrs)


# -- memory ------------------------------------------------------------------------------------------------------

#: Larger buffers are made anew each time: they would stay with every thread, and the cost of making them is spread.
SCRATCH_BYTES = 1 << 22
_LINE = 64  # of the cache: a vector load that crosses two lines costs two
_VIEWS = 256


class _Scratch(threading.local):
    """One thread's buffers by slot, and the views of them that were asked for."""

    def __init__(self) -> None:
        self.buffers: dict[str, Array] = {}
        self.views: dict[Any, Array] = {}


_scratch = _Scratch()


def scratch(shape: tuple[int, ...], dtype: np.dtype[Any], slot: str) -> Array:
    """An array with any content, which is the caller's until this thread asks for the same slot again."""
    view = _scratch.views.get((shape, dtype, slot))
    return _view(shape, dtype, slot) if view is None else view


def _view(shape: tuple[int, ...], dtype: np.dtype[Any], slot: str) -> Array:
    size = math.prod(shape) * dtype.itemsize
    if size > SCRATCH_BYTES:
        return np.empty(shape, dtype)
    buffer = _scratch.buffers.get(slot)
    if buffer is None or buffer.size < size or len(_scratch.views) >= _VIEWS:
        _scratch.views.clear()  # those of an outgrown buffer would keep it
    if buffer is None or buffer.size < size:
        buffer = _scratch.buffers[slot] = _aligned(max(size, 1 << 16))
    view = _scratch.views[shape, dtype, slot] = buffer[:size].view(dtype).reshape(shape)
    return view


def _aligned(size: int) -> Array:
    raw = np.empty(size + _LINE, np.uint8)
    start = -raw.ctypes.data % _LINE
    return raw[start : start + size]


def apart(out: Array, *inputs: Array, slot: str) -> Array:
    """Where a result can grow while the inputs are still read: `out` itself, unless one of them may be its memory."""
    for x in inputs:
        if np.may_share_memory(out, x):
            return scratch(out.shape, out.dtype, slot)
    return out
