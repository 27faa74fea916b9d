"""Ops that write into given arrays, with the bits of their kernels. Results of all others are what kernels allocate.

Only NumPy: other array libraries have allocators of their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any

import numpy as np

from distgrad.workers.kernels.index import _native as native
from distgrad.workers.kernels.math import NAMED
from distgrad.workers.kernels.products import product
from distgrad.workers.kernels.table import KERNELS

Array = np.ndarray[Any, np.dtype[Any]]
Function = Callable[..., None]

#: Every dtype that NumPy copies as it is.
_COPIED = "?bhilqBHILQefdgFDG"


@dataclass(frozen=True, slots=True)
class Into:
    """How an op is computed into an array: as `ufunc(*inputs, out)`, or as `function(out, *inputs, **attrs)`.

    Inputs broadcast against `out` by NumPy's rules where the op's shape rule lets them.
    """

    ufunc: np.ufunc | None = None
    function: Function | None = None
    #: Whether `out` may be the memory of an input that has its shape and dtype.
    overlap: bool = True

    def __call__(self, out: Array, *inputs: Array, **attrs: Any) -> None:
        if self.ufunc is not None:
            self.ufunc(*inputs, out)
        elif self.function is not None:
            self.function(out, *inputs, **attrs)


INTO: dict[str, Into] = {
    type: Into(ufunc=ufunc)
    for type, name in NAMED.items()
    if isinstance(ufunc := getattr(np, name), np.ufunc)
    and ufunc not in (np.maximum, np.minimum)  # NumPy deprecates their positional out
}


def into(*op_types: str, dtypes: str = _COPIED, overlap: bool = False) -> Callable[[Function], Function]:
    """Register a function `f(out, *inputs, **attrs)` for results of these dtypes, given by their characters; others are
    what the kernel makes, copied."""

    def register(f: Function) -> Function:
        for op_type in op_types:
            INTO[op_type] = Into(function=_for_dtypes(op_type, f, dtypes), overlap=overlap)
        return f

    return register


def _for_dtypes(op_type: str, f: Function, dtypes: str) -> Function:
    @wraps(f)
    def function(out: Array, *inputs: Array, **attrs: Any) -> None:
        if out.dtype.char in dtypes:
            f(out, *inputs, **attrs)
        else:
            out[...] = KERNELS[op_type](np, *inputs, **attrs)

    return function


@into("Identity", "StopGradient", "PreventGradient", "BroadcastTo", overlap=True)
def copy(out: Array, x: Array, **_: Any) -> None:
    np.copyto(out, x)


@into("MatMul", dtypes="fdFD")
def matmul(out: Array, a: Array, b: Array, *, transpose_a: bool, transpose_b: bool) -> None:
    a = a.swapaxes(-1, -2) if transpose_a else a
    b = b.swapaxes(-1, -2) if transpose_b else b
    if b.ndim == 2 < a.ndim and not transpose_a:  # one large product, as the kernel does it
        a = a.reshape(math.prod(a.shape[:-1]), a.shape[-1])
        out = out.reshape(a.shape[0], out.shape[-1])
    product(a, b, out)


@into("Concat")
def concat(out: Array, *xs: Array, axis: int) -> None:
    np.concatenate(xs, axis=axis, out=out)


@into("Stack")
def stack(out: Array, *xs: Array, axis: int) -> None:
    np.stack(xs, axis=axis, out=out)


@into("Pad")
def pad(out: Array, x: Array, *, pad_width: Any, value: Any) -> None:
    out[...] = value
    out[tuple(slice(before, before + n) for n, (before, _) in zip(x.shape, pad_width, strict=True))] = x


@into("StridedSliceGrad")
def strided_slice_grad(out: Array, values: Array, *, index: Any, shape: Any) -> None:
    out[...] = 0
    out[native(index)] = values


@into("Reshape")
def reshape(out: Array, x: Array, *, shape: Any) -> None:
    out.reshape(x.shape)[...] = x


@into("AddN", dtypes="?bhilqBHILQfdFD")
def add_n(out: Array, *xs: Array) -> None:
    """One addition after another, as the kernel does it."""
    np.copyto(out, xs[0])
    for x in xs[1:]:
        np.add(out, x, out)
