"""Ops that write into given arrays, with the bits of their kernels. Results of all others are what kernels allocate.

Only NumPy: other array libraries have allocators of their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from itertools import accumulate
from typing import Any

import numpy as np

from distgrad.workers.kernels.index import _native as native
from distgrad.workers.kernels.math import NAMED
from distgrad.workers.kernels.products import product
from distgrad.workers.kernels.table import KERNELS

Array = np.ndarray[Any, np.dtype[Any]]
Function = Callable[..., None]
Pairs = list[tuple[Array, Array]]

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


def matrices(out: Array, a: Array, b: Array, *, transpose_a: bool, transpose_b: bool) -> tuple[Array, Array, Array]:
    """The matrices that are multiplied, and where their product goes."""
    a = a.swapaxes(-1, -2) if transpose_a else a
    b = b.swapaxes(-1, -2) if transpose_b else b
    if b.ndim == 2 < a.ndim and not transpose_a:  # one large product, as the kernel does it
        a = a.reshape(math.prod(a.shape[:-1]), a.shape[-1])
        out = out.reshape(a.shape[0], out.shape[-1])
    return a, b, out


@into("MatMul", dtypes="fdFD")
def matmul(out: Array, a: Array, b: Array, *, transpose_a: bool, transpose_b: bool) -> None:
    product(*matrices(out, a, b, transpose_a=transpose_a, transpose_b=transpose_b))


# -- copies: for each input, where it goes and what of it ----------------------------------------------------------


def _whole(out: Array, x: Array, **_: Any) -> Pairs:
    return [(out, x)]


def _side_by_side(out: Array, *xs: Array, axis: int) -> Pairs:
    ends = list(accumulate([x.shape[axis] for x in xs]))
    starts = [0, *ends]
    whole = (slice(None),) * axis
    return [(out[(*whole, slice(start, end))], x) for start, end, x in zip(starts, ends, xs, strict=False)]


def _stacked(out: Array, *xs: Array, axis: int) -> Pairs:
    whole: tuple[Any, ...] = (slice(None),) * axis
    return [(out[(*whole, k, ...)], x) for k, x in enumerate(xs)]


def _reshaped(out: Array, x: Array, *, shape: Any) -> Pairs:
    return [(out.reshape(x.shape, copy=False), x)]


#: Of ops that only rearrange their inputs.
COPIES: dict[str, Callable[..., Pairs]] = {
    "Identity": _whole,
    "StopGradient": _whole,
    "PreventGradient": _whole,
    "Concat": _side_by_side,
    "Stack": _stacked,
    "Reshape": _reshaped,
}


def _copies(pairs: Callable[..., Pairs]) -> Function:
    def copy(out: Array, *xs: Array, **attrs: Any) -> None:
        for place, x in pairs(out, *xs, **attrs):
            np.copyto(place, x)

    return copy


for _type, _found in COPIES.items():
    into(_type, overlap=_found is _whole)(_copies(_found))


@into("BroadcastTo", overlap=True)
def broadcast_to(out: Array, x: Array, **_: Any) -> None:
    np.copyto(out, x)


@into("Pad")
def pad(out: Array, x: Array, *, pad_width: Any, value: Any) -> None:
    out[...] = value
    out[tuple(slice(before, before + n) for n, (before, _) in zip(x.shape, pad_width, strict=True))] = x


@into("StridedSliceGrad")
def strided_slice_grad(out: Array, values: Array, *, index: Any, shape: Any) -> None:
    out[...] = 0
    out[native(index)] = values


@into("AddN", dtypes="?bhilqBHILQfdFD")
def add_n(out: Array, *xs: Array) -> None:
    """One addition after another, as the kernel does it."""
    np.copyto(out, xs[0])
    for x in xs[1:]:
        np.add(out, x, out)
