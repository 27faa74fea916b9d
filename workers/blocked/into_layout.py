"""Matrix products, and ops that copy, into given buffers: with the bits of their kernels."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from distgrad.workers.blocked.into_table import Array, into
from distgrad.workers.kernels.index import _native as native
from distgrad.workers.kernels.products import product

#: Every dtype that NumPy copies as it is.
_COPIED = "?bhilqBHILQefdgFDG"


@into("MatMul", fast="fdFD", overlap=False)
def matmul(out: Array, a: Array, b: Array, *, transpose_a: bool, transpose_b: bool) -> None:
    a = a.swapaxes(-1, -2) if transpose_a else a
    b = b.swapaxes(-1, -2) if transpose_b else b
    if b.ndim == 2 < a.ndim and not transpose_a:  # one large product, as the kernel does it
        a = a.reshape(math.prod(a.shape[:-1]), a.shape[-1])
        out = out.reshape(a.shape[0], out.shape[-1])
    product(a, b, out)


@into("Concat", fast=_COPIED, overlap=False)
def concat(out: Array, *xs: Array, axis: int) -> None:
    np.concatenate(xs, axis=axis, out=out)


@into("Stack", fast=_COPIED, overlap=False)
def stack(out: Array, *xs: Array, axis: int) -> None:
    np.stack(xs, axis=axis, out=out)


@into("Pad", fast=_COPIED, overlap=False)
def pad(out: Array, x: Array, *, pad_width: Any, value: Any) -> None:
    out[...] = value
    out[tuple(slice(before, before + n) for n, (before, _) in zip(x.shape, pad_width, strict=True))] = x


@into("StridedSliceGrad", fast=_COPIED, overlap=False)
def strided_slice_grad(out: Array, values: Array, *, index: Any, shape: Any) -> None:
    out[...] = 0
    out[native(index)] = values


@into("Reshape", fast=_COPIED, overlap=False)
def reshape(out: Array, x: Array, *, shape: Any) -> None:
    out.reshape(x.shape)[...] = x
