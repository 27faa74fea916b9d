"""Ops along rows, and sums, into given buffers: softmax and its losses, normalisation, reductions.

Results differ from those of the kernels in rounding. A row's bits depend on that row alone, not on the block that it is
in: its sums are taken by loops that NumPy or BLAS run row by row. The sum of columns is fixed by the block's shape.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np

from distgrad.scheduler.cost.cutting import ROW
from distgrad.workers.blocked.into_elementwise import constant, keep
from distgrad.workers.blocked.into_table import INTO, Array, Into, generic
from distgrad.workers.blocked.rows import matrix, row_length, rows, together
from distgrad.workers.kernels.nn import check_labels
from distgrad.workers.kernels.scratch import apart, scratch

_BOOL = np.dtype(bool)


def _vector(like: Array, slot: str) -> Array:
    """One number per row."""
    return scratch(like.shape[:1], like.dtype, slot)


# -- sums, products and extremes of rows -------------------------------------------------------------------------


def _sums(x: Array, out: Array) -> Array:
    """einsum has the fastest loop, of 32 partial sums; in long rows pairwise summation is worth its time."""
    return np.einsum("ij->i", x, out=out) if x.shape[1] <= 4096 else np.add.reduce(x, axis=1, out=out)


def _dots(x: Array, y: Array, out: Array) -> Array:
    """vecdot is BLAS row by row; it starts slowly for short rows, and for long ones may use threads."""
    n = x.shape[1]
    if n < 64:
        return np.einsum("ij,ij->i", x, y, out=out)
    if n <= 8192:
        return np.vecdot(x, y, out)
    t = scratch(x.shape, x.dtype, "dots")
    return np.add.reduce(np.multiply(x, y, t), axis=1, out=out)


def _tops(x: Array, out: Array, extreme: np.ufunc = np.maximum) -> Array:
    """The largest of each row. NumPy reduces short rows slowly: argmax and a gather are faster, or the transpose."""
    m, n = x.shape
    if n >= 4096:
        extreme.reduce(x, axis=1, out=out)
    elif n < 32:
        t = scratch((n, m), x.dtype, "tops")
        np.copyto(t, x.T)
        extreme.reduce(t, axis=0, out=out)
    else:
        places = x.argmax(axis=1) if extreme is np.maximum else x.argmin(axis=1)
        places += _starts(m, n)
        x.reshape(-1).take(places, out=out, mode="clip")  # never outside; another mode would copy `out`
    return out


def _starts(m: int, n: int) -> Array:
    """Where the rows begin; kept for the heights of blocks, made anew for whole arrays."""
    return _kept_starts(m, n) if m <= 1 << 14 else np.arange(m) * n


@lru_cache(maxsize=64)
def _kept_starts(m: int, n: int) -> Array:
    return np.arange(m) * n


# -- softmax and its losses --------------------------------------------------------------------------------------


def _exp_shifted(x: Array, out: Array) -> tuple[Array, Array]:
    """exp(x - top) into out; gives the tops and the sums of rows."""
    top, total = _tops(x, _vector(x, "top")), _vector(x, "total")
    np.subtract(x, top[:, None], out)
    np.exp(out, out)
    return top, _sums(out, total)


@rows("Softmax")
def softmax(out: Array, x: Array, **_: Any) -> None:
    total = _exp_shifted(x, out)[1]
    np.divide(out, total[:, None], out)  # takes the time of a product


@rows("SoftmaxGrad")
def softmax_grad(out: Array, g: Array, y: Array, **_: Any) -> None:
    dots, t = _dots(g, y, _vector(y, "total")), apart(out, y, slot="a")
    np.subtract(g, dots[:, None], t)
    np.multiply(t, y, out)


def _log_softmax(out: Array, x: Array) -> None:
    top, total, t = _tops(x, _vector(x, "top")), _vector(x, "total"), scratch(x.shape, x.dtype, "a")
    np.subtract(x, top[:, None], out)
    np.exp(out, t)
    np.log(_sums(t, total), total)
    np.subtract(out, total[:, None], out)


@rows("LogSoftmax")
def log_softmax(out: Array, x: Array, **_: Any) -> None:
    _log_softmax(out, x)


@rows("SoftmaxCrossEntropyWithLogits", reduces=True)
def softmax_cross_entropy(out: Array, logits: Array, labels: Array, **_: Any) -> None:
    t = scratch(logits.shape, logits.dtype, "b")
    _log_softmax(t, logits)
    keep(t, t, np.not_equal(labels, 0, scratch(t.shape, _BOOL, "mask")))  # 0 * -inf is 0 here
    np.subtract(constant(0, out.dtype), _dots(labels, t, out), out)  # not -0.0 for a loss of nothing


@rows("SparseSoftmaxCrossEntropyWithLogits", reduces=True)
def sparse_softmax_cross_entropy(out: Array, logits: Array, labels: Array) -> None:
    places = _label_places(labels, logits)
    top, total = _exp_shifted(logits, scratch(logits.shape, logits.dtype, "a"))
    np.subtract(logits.reshape(-1).take(places), top, top)
    np.log(total, total)
    np.subtract(total, top, out)


@rows("SparseSoftmaxCrossEntropyWithLogitsGrad", main=1)
def sparse_softmax_cross_entropy_grad(out: Array, g: Array, logits: Array, labels: Array) -> None:
    places = _label_places(labels, logits)
    _slope_of_loss(out, g, _exp_shifted(logits, out)[1], places)


@together("SparseSoftmaxCrossEntropyWithLogits", "SparseSoftmaxCrossEntropyWithLogitsGrad", main=1)
def sparse_softmax_cross_entropy_and_grad(loss: Array, out: Array, g: Array, logits: Array, labels: Array) -> None:
    places = _label_places(labels, logits)
    logits.reshape(-1).take(places, out=loss, mode="clip")  # before `out` is filled, which may be the same memory
    top, total = _exp_shifted(logits, out)
    np.subtract(loss, top, top)
    np.log(total, loss)
    np.subtract(loss, top, loss)
    _slope_of_loss(out, g, total, places)


def _slope_of_loss(out: Array, g: Array, total: Array, places: Array) -> None:
    """From exp(logits - top), with `total` the sums of its rows."""
    np.divide(g, total, total)  # g / sum first, then one product: softmax itself would be a sweep more
    np.multiply(out, total[:, None], out)
    out.reshape(-1)[places] -= g


def _label_places(labels: Array, logits: Array) -> Array:
    """Where the label of each row lies in the flat logits."""
    check_labels(np, labels, logits.shape[1])
    return labels.astype(np.int64, copy=False) + _starts(*logits.shape)


@rows("LogSumExp", reduces=True)
def logsumexp(out: Array, x: Array, **_: Any) -> None:
    top, total, t = _tops(x, _vector(x, "top")), _vector(x, "total"), scratch(x.shape, x.dtype, "a")
    top[~np.isfinite(top)] = 0  # inf - inf would be NaN
    np.subtract(x, top[:, None], t)
    np.exp(t, t)
    np.log(_sums(t, total), total)
    np.add(total, top, out)


# -- normalisation -----------------------------------------------------------------------------------------------


def _centre(x: Array, eps: float, out: Array) -> Array:
    """x minus the mean of its row into out; gives 1 / sqrt(var + eps) of each row."""
    n, mean, r = constant(x.shape[1], x.dtype), _vector(x, "mean"), _vector(x, "r")
    np.divide(_sums(x, mean), n, mean)
    np.subtract(x, mean[:, None], out)
    np.divide(_dots(out, out, r), n, r)
    np.add(r, constant(eps, x.dtype), r)
    np.sqrt(r, r)
    return np.divide(constant(1, x.dtype), r, r)


@rows("LayerNorm")
def layer_norm(out: Array, x: Array, *, axis: Any, eps: float) -> None:
    r = _centre(x, eps, out)
    np.multiply(out, r[:, None], out)


@rows("LayerNormScale", reduces=True)
def layer_norm_scale(out: Array, x: Array, *, axis: Any, eps: float) -> None:
    np.copyto(out, _centre(x, eps, scratch(x.shape, x.dtype, "a")))


@together("LayerNorm", "LayerNormScale")
def layer_norm_and_scale(out: Array, scale: Array, x: Array, *, axis: Any, eps: float) -> None:
    r = _centre(x, eps, out)
    np.copyto(scale.reshape(-1), r)  # which is no vector where a row is one number
    np.multiply(out, r[:, None], out)


@rows("LayerNormGrad")
def layer_norm_grad(out: Array, g: Array, x: Array, scale: Array | None = None, *, axis: Any, eps: float) -> None:
    """r * (g - mean(g) - c * r * r * mean(g * c)), with c the centred x: x is never divided by its deviation. Where
    the scale r is given, x is normalised already: then c * r is x."""
    n, t, means = constant(x.shape[1], x.dtype), scratch(x.shape, x.dtype, "a"), scratch((2, len(x)), x.dtype, "slope")
    c, r = (t, _centre(x, eps, t)) if scale is None else (x, scale.reshape(-1))
    mean, slope = _sums(g, means[0]), _dots(g, c, means[1])
    np.divide(means, n, means)
    for factor in (r, r) if scale is None else ():
        np.multiply(slope, factor, slope)
    np.multiply(c, slope[:, None], t)
    np.add(t, mean[:, None], t)
    np.subtract(g, t, out)
    np.multiply(out, r[:, None], out)


# -- reductions --------------------------------------------------------------------------------------------------


@rows("Max", reduces=True)
def maxima(out: Array, x: Array, **_: Any) -> None:
    _tops(x, out)


@rows("Min", reduces=True)
def minima(out: Array, x: Array, **_: Any) -> None:
    _tops(x, out, np.minimum)


def _sum(out: Array, x: Array, *, axis: tuple[int, ...], keepdims: bool) -> None:
    if out.dtype.char not in "fd" or not x.size or not axis:
        return generic("Sum", out, x, axis=axis, keepdims=keepdims)
    n = row_length(x, axis)
    if not n and axis != tuple(range(len(axis))):
        return generic("Sum", out, x, axis=axis, keepdims=keepdims)
    made = out if out.flags.c_contiguous else scratch(out.shape, out.dtype, "made")
    total = len(axis) == x.ndim
    x = matrix(x, n or out.size, 0)
    if total:
        made[...] = whole_sum(x.reshape(-1))
    else:
        (_sums if n else _column_sums)(x, made.reshape(-1))
    if made is not out:
        np.copyto(out, made)


def whole_sum(x: Array) -> Any:
    """Rows by einsum's fast loop, what they give pairwise: less error than one, half the time of the other."""
    m = x.size // ROW
    if not m:
        return np.add.reduce(x)
    parts, cut = scratch((m + 1,), x.dtype, "total"), m * ROW
    _sums(x[:cut].reshape(m, ROW), parts[:m])
    parts[m] = np.add.reduce(x[cut:]) if cut < x.size else 0
    return np.add.reduce(parts)


def whole_dot(x: Array, y: Array) -> Any:
    """The sum of the products: rows by BLAS, which gives none so short to a second thread, what they give pairwise."""
    m = x.size // ROW
    parts, cut = scratch((m + 1,), x.dtype, "total"), m * ROW
    np.vecdot(x[:cut].reshape(m, ROW), y[:cut].reshape(m, ROW), parts[:m])
    parts[m] = np.vecdot(x[cut:], y[cut:]) if cut < x.size else 0
    return np.add.reduce(parts)


def _column_sums(x: Array, out: Array) -> Array:
    """Not by BLAS, which is twice as fast: its bits depend on how many threads it has, and here nobody sets that."""
    return np.add.reduce(x, axis=0, out=out)


def _mean(out: Array, x: Array, *, axis: tuple[int, ...], keepdims: bool) -> None:
    if out.dtype.char not in "fd" or not x.size:
        return generic("Mean", out, x, axis=axis, keepdims=keepdims)
    _sum(out, x, axis=axis, keepdims=keepdims)
    np.divide(out, constant(math.prod(x.shape[i] for i in axis), out.dtype), out)


INTO["Sum"] = Into(function=_sum, exact=False, overlap=False)
INTO["Mean"] = Into(function=_mean, exact=False, overlap=False)
