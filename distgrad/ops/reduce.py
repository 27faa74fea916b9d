"""Reductions along axes, with NumPy's signatures. Re-exports `scan` and `sort`.

The attribute `axis` of the ops is a sorted tuple of non-negative ints.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from distgrad.graph import Operation, Tensor
from distgrad.ops.array import broadcast_to, reshape, transpose
from distgrad.ops.builder import as_dtype, make, promote, typed
from distgrad.ops.guard import guard_all
from distgrad.ops.index import getitem
from distgrad.ops.math import conj, divide, equal, exp, isclose, isnan, logical_not, real, sqrt, square, subtract, where
from distgrad.ops.scan import accumulated, cumprod, cumsum, diff, flat, linear_scan, others
from distgrad.ops.sort import argpartition, argsort, partition, sort, top_k
from distgrad.registry import Kind, OpDef, RegisterGradient, define, no_gradient
from distgrad.types import (
    BOOL,
    FLOAT,
    INT,
    DType,
    Shape,
    Typed,
    brief,
    normalize_axes,
    normalize_axis,
    reduced_shape,
    size_of,
    trainable,
)


def _reduce(d: OpDef, a: Any, axis: Any, keepdims: bool, name: str | None) -> Tensor:
    return make(d, (a,), {"axis": normalize_axes(axis, len(a.shape)), "keepdims": bool(keepdims)}, name)


def _reduce_infer(x: Typed, *, axis: tuple[int, ...], keepdims: bool) -> tuple[Shape, DType]:
    return reduced_shape(x.shape, axis, keepdims), x.dtype


def _nonempty(what: str, infer: Callable[..., tuple[Shape, DType]]) -> Callable[..., tuple[Shape, DType]]:
    """Wrap the shape rule of a reduction that is undefined for an empty axis."""

    def check(x: Typed, *, axis: Any, keepdims: bool) -> tuple[Shape, DType]:
        axes = normalize_axes(axis, len(x.shape))
        if not _count(x, axes):
            raise ValueError(
                f"{what}: a tensor of shape {list(x.shape)} has no elements along axis {axes}: "
                f"zero-size array to a reduction which has no identity"
            )
        return infer(x, axis=axis, keepdims=keepdims)

    return check


def _count(x: Typed, axes: tuple[int, ...]) -> int:
    return size_of(x.shape[i] for i in axes)


def _floating(a: Any, dtype: Any = None) -> Any:
    """Cast an operand of mean or variance: to the given dtype, or from integers and booleans to float64."""
    a = typed(a)
    if dtype is not None:
        return as_dtype(a, np.dtype(dtype))
    return as_dtype(a, FLOAT) if a.dtype.kind in "biu" else a


def _kept(op: Operation, reduced: Tensor) -> Tensor:
    """The output of a reduction, or its gradient, with the reduced axes as axes of size 1."""
    return reshape(reduced, reduced_shape(op.inputs[0].shape, op.attrs["axis"], True))


def _spread(op: Operation, g: Tensor) -> Tensor:
    """A reduced gradient, broadcast along the reduced axes."""
    return broadcast_to(_kept(op, g), op.inputs[0].shape)


# -- sum, mean, variance -----------------------------------------------------------------------------------------

_sum = define("Sum", _reduce_infer, kind=Kind.REDUCTION, combine="Add")
_mean = define("Mean", _reduce_infer, kind=Kind.REDUCTION, combine="Add")


def sum(a: Any, axis: Any = None, dtype: Any = None, keepdims: bool = False, name: str | None = None) -> Tensor:
    """The sum along axes; small integers and booleans are summed as 64-bit integers.

    >>> sum(np.array([[1.0, 2.0], [3.0, 4.0]]), axis=0)
    array([4., 6.])
    """
    return _reduce(_sum, accumulated(a, dtype), axis, keepdims, name)


@RegisterGradient("Sum")
def _sum_grad(op: Operation, g: Tensor) -> Any:
    return _spread(op, g)


def mean(a: Any, axis: Any = None, dtype: Any = None, keepdims: bool = False, name: str | None = None) -> Tensor:
    """The mean along axes; integers are averaged in float64.

    >>> mean(np.array([1, 2, 4]))
    array(2.33333333)
    """
    return _reduce(_mean, _floating(a, dtype), axis, keepdims, name)


@RegisterGradient("Mean")
def _mean_grad(op: Operation, g: Tensor) -> Any:
    return _spread(op, g / _count(op.inputs[0], op.attrs["axis"]))


def var(
    a: Any, axis: Any = None, dtype: Any = None, ddof: float = 0, keepdims: bool = False, name: str | None = None
) -> Tensor:
    """The variance along axes: the mean of |a - mean|**2, with `ddof` subtracted from the count.

    >>> var(np.array([1.0, 2.0, 3.0]), ddof=1)
    array(1.)
    """
    a = _floating(a, dtype)
    axes = normalize_axes(axis, len(a.shape))
    off = subtract(a, mean(a, axes, keepdims=True))
    squares = real(off * conj(off)) if a.dtype.kind == "c" else square(off)
    return divide(sum(squares, axes, keepdims=keepdims), builtins.max(_count(a, axes) - ddof, 0), name=name)


def std(
    a: Any, axis: Any = None, dtype: Any = None, ddof: float = 0, keepdims: bool = False, name: str | None = None
) -> Tensor:
    """The standard deviation along axes, the square root of `var`.

    If all elements are equal, the gradient is zero, not NaN: the smallest subgradient, as for a norm.

    >>> std(np.array([1.0, 3.0]))
    array(1.)
    """
    return where_nonzero(sqrt, var(a, axis, dtype, ddof, keepdims), name)


def where_nonzero(f: Callable[[Any], Tensor], x: Any, name: str | None = None) -> Tensor:
    """f(x), but zero with derivative zero where x is zero and the derivative of f is infinite."""
    zero = equal(x, 0)
    return where(zero, 0, f(where(zero, 1, x)), name=name)


def average(a: Any, axis: Any = None, weights: Any = None, keepdims: bool = False, name: str | None = None) -> Tensor:
    """The weighted mean along axes.

    Weights have the shape of a, or the shape of a along `axis`.

    >>> average(np.array([1.0, 4.0]), weights=np.array([2.0, 1.0]))
    array(2.)
    """
    if weights is None:
        return mean(a, axis, keepdims=keepdims, name=name)
    a, weights = promote(np.true_divide, a, weights)
    if weights.shape != a.shape:
        weights = _spread_weights(a, weights, axis)
    total = sum(weights, axis, keepdims=keepdims)
    return divide(sum(a * weights, axis, keepdims=keepdims), total, name=name)


def _spread_weights(a: Typed, weights: Any, axis: Any) -> Tensor:
    given = () if axis is None else tuple(axis) if isinstance(axis, Sequence) else (axis,)
    axes = [normalize_axis(i, len(a.shape)) for i in given]
    if axis is None or weights.shape != tuple(a.shape[i] for i in axes):
        raise ValueError(
            f"average: weights of shape {list(weights.shape)} match neither a, of shape {list(a.shape)}, nor its shape "
            f"along axis={brief(axis)}"
        )
    ordered = transpose(weights, sorted(range(len(axes)), key=axes.__getitem__))
    return broadcast_to(reshape(ordered, [n if i in axes else 1 for i, n in enumerate(a.shape)]), a.shape)


def nansum(a: Any, axis: Any = None, dtype: Any = None, keepdims: bool = False, name: str | None = None) -> Tensor:
    """The sum along axes, ignoring NaN.

    >>> nansum(np.array([1.0, np.nan, 2.0]))
    array(3.)
    """
    a = typed(a)
    return sum(where(isnan(a), 0, a) if trainable(a.dtype) else a, axis, dtype, keepdims, name=name)


def nanmean(a: Any, axis: Any = None, dtype: Any = None, keepdims: bool = False, name: str | None = None) -> Tensor:
    """The mean along axes, ignoring NaN; NaN if all elements are NaN.

    >>> nanmean(np.array([1.0, np.nan, 2.0]))
    array(1.5)
    """
    a = _floating(a, dtype)
    count = sum(as_dtype(logical_not(isnan(a)), a.dtype), axis, keepdims=keepdims)
    return divide(nansum(a, axis, keepdims=keepdims), count, name=name)


def trapezoid(y: Any, x: Any = None, dx: Any = 1.0, axis: int = -1, name: str | None = None) -> Tensor:
    """Integrate along an axis with the trapezoidal rule, for samples at x or with spacing dx.

    >>> trapezoid(np.array([1.0, 2.0, 3.0]))
    array(4.)
    """
    y = typed(y)
    place = normalize_axis(axis, len(y.shape))
    width = dx if x is None else diff(x, axis=-1 if len(typed(x).shape) == 1 else axis)
    if x is not None and len(width.shape) == 1:
        width = reshape(width, [-1 if i == place else 1 for i in range(len(y.shape))])
    lead = (slice(None),) * place
    heights = getitem(y, (*lead, slice(1, None))) + getitem(y, (*lead, slice(None, -1)))
    return sum(width * heights / 2.0, place, name=name)


# -- maximum and minimum -----------------------------------------------------------------------------------------

_max = define("Max", _nonempty("max", _reduce_infer), kind=Kind.REDUCTION, combine="Maximum")
_min = define("Min", _nonempty("min", _reduce_infer), kind=Kind.REDUCTION, combine="Minimum")


def max(a: Any, axis: Any = None, keepdims: bool = False, name: str | None = None) -> Tensor:
    """The maximum along axes; equal elements share the gradient.

    >>> max(np.array([[1, 5], [7, 3]]), axis=1)
    array([5, 7])
    """
    return _reduce(_max, typed(a), axis, keepdims, name)


def min(a: Any, axis: Any = None, keepdims: bool = False, name: str | None = None) -> Tensor:
    """The minimum along axes; equal elements share the gradient.

    >>> min(np.array([[1, 5], [7, 3]]), axis=1)
    array([1, 3])
    """
    return _reduce(_min, typed(a), axis, keepdims, name)


@RegisterGradient("Max")
@RegisterGradient("Min")
def _extreme_grad(op: Operation, g: Tensor) -> Any:
    chosen = as_dtype(equal(op.inputs[0], _kept(op, op.outputs[0])), g.dtype)
    return chosen * (_kept(op, g) / sum(chosen, op.attrs["axis"], keepdims=True))


def ptp(a: Any, axis: Any = None, keepdims: bool = False, name: str | None = None) -> Tensor:
    """Maximum minus minimum along axes.

    >>> ptp(np.array([1.0, 7.0, 3.0]))
    array(6.)
    """
    a = typed(a)
    return subtract(max(a, axis, keepdims), min(a, axis, keepdims), name=name)


def _position_infer(x: Typed, *, axis: int, keepdims: bool) -> tuple[Shape, DType]:
    return reduced_shape(x.shape, (axis,), keepdims), INT


_argmax = define("ArgMax", _nonempty("argmax", _position_infer), kind=Kind.REDUCTION)
_argmin = define("ArgMin", _nonempty("argmin", _position_infer), kind=Kind.REDUCTION)


def argmax(a: Any, axis: int | None = None, keepdims: bool = False, name: str | None = None) -> Tensor:
    """The index of the first maximum along an axis; with axis None, in the flattened tensor.

    >>> argmax(np.array([1, 7, 7]))
    array(1)
    """
    return _position(_argmax, typed(a), axis, keepdims, name)


def argmin(a: Any, axis: int | None = None, keepdims: bool = False, name: str | None = None) -> Tensor:
    """The index of the first minimum along an axis; with axis None, in the flattened tensor.

    >>> argmin(np.array([[4, 1], [0, 3]]), axis=1)
    array([1, 0])
    """
    return _position(_argmin, typed(a), axis, keepdims, name)


def _position(d: OpDef, a: Any, axis: int | None, keepdims: bool, name: str | None) -> Tensor:
    if axis is not None:
        return make(d, (a,), {"axis": normalize_axis(axis, len(a.shape)), "keepdims": bool(keepdims)}, name)
    found = make(d, (flat(a),), {"axis": 0, "keepdims": False}, name)
    return reshape(found, (1,) * len(a.shape)) if keepdims else found


# -- truth -------------------------------------------------------------------------------------------------------

_any = define("Any", _reduce_infer, kind=Kind.REDUCTION)
_all = define("All", _reduce_infer, kind=Kind.REDUCTION)


def any(a: Any, axis: Any = None, keepdims: bool = False, name: str | None = None) -> Tensor:
    """Whether any element along axes is nonzero.

    >>> any(np.array([[0, 2], [0, 0]]), axis=1)
    array([ True, False])
    """
    return _reduce(_any, as_dtype(typed(a), BOOL), axis, keepdims, name)


def all(a: Any, axis: Any = None, keepdims: bool = False, name: str | None = None) -> Tensor:
    """Whether all elements along axes are nonzero.

    >>> all(np.array([[1, 2], [0, 1]]), axis=1)
    array([ True, False])
    """
    return _reduce(_all, as_dtype(typed(a), BOOL), axis, keepdims, name)


for _type in ("ArgMax", "ArgMin", "Any", "All"):
    no_gradient(_type)


def count_nonzero(a: Any, axis: Any = None, keepdims: bool = False, name: str | None = None) -> Tensor:
    """The number of nonzero elements along axes.

    >>> count_nonzero(np.array([0.0, 2.0, 3.0]))
    array(2)
    """
    return sum(as_dtype(typed(a), BOOL), axis, keepdims=keepdims, name=name)


def allclose(
    a: Any, b: Any, rtol: Any = 1e-5, atol: Any = 1e-8, equal_nan: bool = False, name: str | None = None
) -> Tensor:
    """Whether `isclose` is true for all elements.

    >>> allclose(np.array([1.0, 2.0]), np.array([1.0, 2.0 + 1e-9]))
    array(True)
    """
    return all(isclose(a, b, rtol, atol, equal_nan), name=name)


# -- log-sum-exp -------------------------------------------------------------------------------------------------

_logsumexp = define("LogSumExp", _reduce_infer, kind=Kind.REDUCTION)


def logsumexp(a: Any, axis: Any = None, keepdims: bool = False, name: str | None = None) -> Tensor:
    """log(sum(exp(a))) along axes without overflow; -inf if all elements are -inf, or there are none.

    >>> logsumexp(np.array([1000.0, 1000.0]))
    array(1000.69314718)
    """
    (a,) = promote(np.exp, a)
    return _reduce(_logsumexp, a, axis, keepdims, name)


@RegisterGradient("LogSumExp")
def _logsumexp_grad(op: Operation, g: Tensor) -> Any:
    total = _kept(op, op.outputs[0])
    total = where(equal(total, -math.inf), 0, total)  # all are -inf: zero gradients, not NaN
    return _kept(op, g) * conj(exp(op.inputs[0] - total))


# -- products ----------------------------------------------------------------------------------------------------

_prod = define("Prod", _reduce_infer, kind=Kind.REDUCTION)


def prod(a: Any, axis: Any = None, dtype: Any = None, keepdims: bool = False, name: str | None = None) -> Tensor:
    """The product along axes; small integers and booleans are multiplied as 64-bit integers.

    >>> prod(np.array([2.0, 3.0, 4.0]))
    array(24.)
    """
    return _reduce(_prod, accumulated(a, dtype), axis, keepdims, name)


@RegisterGradient("Prod")
def _prod_grad(op: Operation, g: Tensor) -> Any:
    (x,), axes = op.inputs, op.attrs["axis"]
    if len(axes) == 1:
        return _kept(op, g) * conj(others(x, axes[0]))
    order = (*(i for i in range(len(x.shape)) if i not in axes), *axes)
    rows = transpose(x, order)
    kept = rows.shape[: len(order) - len(axes)]
    rest = reshape(others(reshape(rows, (*kept, _count(x, axes))), len(kept)), rows.shape)
    return _kept(op, g) * conj(transpose(rest, tuple(order.index(i) for i in range(len(order)))))


# -- order -------------------------------------------------------------------------------------------------------


def median(a: Any, axis: int | None = None, keepdims: bool = False, name: str | None = None) -> Tensor:
    """The median along an axis; NaN if any element is NaN.

    >>> median(np.array([3.0, 1.0, 2.0, 9.0]))
    array(2.5)
    """
    a = _floating(a)
    ordered = sort(a, axis)
    place = 0 if axis is None else normalize_axis(axis, len(a.shape))
    n = ordered.shape[place]
    lead = (slice(None),) * place
    middle = mean(getitem(ordered, (*lead, slice(builtins.max(n - 1, 0) // 2, n // 2 + 1))), place, keepdims=True)
    if n:
        last = getitem(ordered, (*lead, slice(n - 1, n)))  # NaN is sorted last
        middle = where(isnan(last), last, middle)
    return reshape(middle, reduced_shape(a.shape, normalize_axes(axis, len(a.shape)), keepdims), name=name)


amax, amin = max, min

__all__ = [
    "all", "allclose", "amax", "amin", "any", "argmax", "argmin", "argpartition", "argsort", "average",
    "count_nonzero", "cumprod", "cumsum", "diff", "linear_scan", "logsumexp", "max", "mean", "median", "min", "nanmean",
    "nansum", "partition", "prod", "ptp", "sort", "std", "sum", "top_k", "trapezoid", "var",
]  # fmt: skip
guard_all(globals(), __all__)
