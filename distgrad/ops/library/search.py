"""Searching sorted values: positions, counts per bin, and linear interpolation."""

from __future__ import annotations

from typing import Any

import numpy as np

from distgrad.graph import Tensor
from distgrad.ops.array import concatenate, ravel
from distgrad.ops.builder import as_dtype, common, has_tensor, make, typed
from distgrad.ops.control import ones, zeros
from distgrad.ops.guard import guard_all
from distgrad.ops.index import getitem, unsorted_segment_sum
from distgrad.ops.math import abs, clip, equal, isfinite, logical_or, remainder, subtract, where
from distgrad.ops.sort import argsort
from distgrad.registry import Kind, define, no_gradient
from distgrad.types import FLOAT, INT, DType, Shape, Typed, as_int, brief

# -- positions ---------------------------------------------------------------------------------------------------


def _search_infer(a: Typed, v: Typed, *, side: str) -> tuple[Shape, DType]:
    return v.shape, INT


_search = define("SearchSorted", _search_infer, kind=Kind.GATHER)
no_gradient("SearchSorted")


def searchsorted(a: Any, v: Any, side: str = "left", sorter: Any = None, name: str | None = None) -> Tensor:
    """The positions at which v would be inserted into a sorted vector, before ('left') or after equal elements.

    >>> searchsorted([1.0, 2.0, 3.0], [2.0, 9.0])
    array([1, 3])
    """
    if side not in ("left", "right"):
        raise ValueError(f"searchsorted: side must be 'left' or 'right', got {brief(side)}")
    a, v = common(typed(a), typed(v))
    if len(a.shape) != 1:
        raise ValueError(f"searchsorted: a must be a vector, got shape {list(a.shape)}")
    if sorter is not None:
        a = getitem(a, typed(sorter))
    return make(_search, (a, v), {"side": side}, name)


def digitize(x: Any, bins: Any, right: bool = False, name: str | None = None) -> Tensor:
    """The number of the bin of each element: bins[i - 1] <= x < bins[i]; with `right`, bins[i - 1] < x <= bins[i].

    Bins that are known must be monotonic, increasing or decreasing; those that are tensors are taken for increasing.

    >>> digitize([0.2, 6.4, 3.0], [0.0, 1.0, 2.5, 4.0])
    array([1, 4, 3])
    """
    x, bins = typed(x), typed(bins)
    side = "left" if right else "right"
    if isinstance(bins, Tensor):
        return searchsorted(bins, x, side, name=name)
    steps = np.diff(bins)
    if not ((steps >= 0).all() or (steps <= 0).all()):
        raise ValueError("digitize: bins must increase or decrease monotonically")
    if (steps >= 0).all():
        return searchsorted(bins, x, side, name=name)
    return subtract(len(bins), searchsorted(bins[::-1], x, side), name=name)


# -- counts ------------------------------------------------------------------------------------------------------


def bincount(x: Any, weights: Any = None, minlength: int = 0, length: int | None = None) -> Tensor:
    """How often each of the integers 0, 1, ... occurs in a vector, or the sums of the weights at them.

    The result has `length` elements, by default `minlength`: shapes are static. Larger integers are not counted.

    >>> bincount([0, 1, 1, 3], length=4)
    array([1, 2, 0, 1])
    """
    x = typed(x)
    if len(x.shape) != 1 or x.dtype.kind not in "iu":
        raise TypeError(f"bincount: x must be a vector of integers, got {x.dtype} of shape {list(x.shape)}")
    if length is None and not isinstance(x, Tensor):
        minlength = max(minlength, int(x.max(initial=-1)) + 1)
    count = as_int("bincount", "length", minlength if length is None else length)
    if count <= 0 and isinstance(x, Tensor):
        raise ValueError("bincount: give minlength=, the length of the result: shapes are static")
    terms = ones(x.shape, INT) if weights is None else as_dtype(typed(weights), FLOAT)
    return counts(terms, x, (x >= 0) & (x < count), count)


def counts(terms: Any, bins: Any, kept: Any, count: int) -> Tensor:
    """The sum of the kept terms of each bin."""
    terms = where(kept, terms, 0)
    if not count:
        return zeros((0,), terms.dtype)
    return unsorted_segment_sum(ravel(terms), ravel(where(kept, bins, 0)), count)


# -- interpolation -----------------------------------------------------------------------------------------------


def interp(
    x: Any, xp: Any, fp: Any, left: Any = None, right: Any = None, period: Any = None, name: str | None = None
) -> Tensor:
    """Linear interpolation at x of the points (xp, fp), for increasing xp. Differentiable in x, xp and fp.

    Outside the points the result is `left` and `right`, by default the first and the last of fp; with a period, x and
    xp are taken modulo it, and need no order.

    >>> interp([0.5, 4.0], [0.0, 1.0, 2.0], [0.0, 10.0, 30.0])
    array([ 5., 30.])
    """
    x, xp = (as_dtype(typed(a), FLOAT) for a in (x, xp))
    fp = typed(fp)
    fp = as_dtype(fp, np.dtype(complex) if fp.dtype.kind == "c" else FLOAT)
    if len(xp.shape) != 1 or xp.shape != fp.shape or not xp.shape[0]:
        raise ValueError(
            f"interp: xp and fp must be vectors of one length, and not empty; got shapes {list(xp.shape)} and "
            f"{list(fp.shape)}"
        )
    if period is not None:
        x, xp, fp = _periodic(x, xp, fp, period)
        left = right = None
    made = _between(x, xp, fp)
    if left is not None:
        made = where(x < xp[0], left, made)
    if right is not None:
        made = where(x > xp[-1], right, made)
    return where(x != x, x, made, name=name)


def _periodic(x: Any, xp: Any, fp: Any, period: Any) -> tuple[Any, Any, Any]:
    """The points in one period, in order, with one more at both ends."""
    if not has_tensor(period) and period == 0:
        raise ValueError("interp: period must not be 0")
    period = abs(as_dtype(typed(period), FLOAT))
    x, xp = remainder(x, period), remainder(xp, period)
    order = argsort(xp)
    xp, fp = getitem(xp, order), getitem(fp, order)
    xp = concatenate([xp[-1:] - period, xp, xp[:1] + period])
    return x, xp, concatenate([fp[-1:], fp, fp[:1]])


def _between(x: Any, xp: Any, fp: Any) -> Any:
    """The line through the points on both sides of x; constant outside."""
    n = xp.shape[0]
    if n == 1:
        return fp[0] + as_dtype(where(isfinite(x), 0 * x, 0), fp.dtype)
    i = clip(searchsorted(xp, x, "right") - 1, 0, n - 2)
    x0, y0 = getitem(xp, i), getitem(fp, i)
    width, rise = getitem(xp, i + 1) - x0, getitem(fp, i + 1) - y0
    step = where(equal(width, 0), 1, width)
    made = rise / step * (x - x0) + y0
    outside = logical_or(x < xp[0], x >= xp[n - 1])
    return where(outside, where(x < xp[0], fp[0], fp[n - 1]), made)


__all__ = ["bincount", "digitize", "interp", "searchsorted"]
guard_all(globals(), __all__)
