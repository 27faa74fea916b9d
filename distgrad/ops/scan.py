"""Cumulative sums and products, differences, and linear recurrences. Re-exported by `reduce`.

No gradient divides by a factor, so all are correct for zero factors.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from distgrad.graph import Operation, Tensor
from distgrad.ops.array import broadcast_to, concatenate, reshape
from distgrad.ops.builder import as_dtype, make, promote, same, typed
from distgrad.ops.control import full, identity
from distgrad.ops.guard import guard_all
from distgrad.ops.index import getitem
from distgrad.ops.math import conj, multiply, not_equal, subtract
from distgrad.registry import Kind, OpDef, RegisterGradient, define
from distgrad.types import BOOL, INT, as_int, broadcast_shapes, normalize_axis, size_of


def accumulated(a: Any, dtype: Any) -> Any:
    """Cast an operand of a sum or product: to the given dtype, or, as in NumPy, from small integers to 64 bits."""
    a = typed(a)
    if dtype is not None:
        return as_dtype(a, np.dtype(dtype))
    if a.dtype.kind not in "biu":
        return a
    return as_dtype(a, np.dtype(np.uint64) if a.dtype.kind == "u" else INT)


def flat(a: Any) -> Any:
    """a as a vector."""
    return a if len(a.shape) == 1 else reshape(a, (size_of(a.shape),))


# -- sums --------------------------------------------------------------------------------------------------------

_cumsum = define("Cumsum", same, kind=Kind.SCAN)


def cumsum(a: Any, axis: int | None = None, dtype: Any = None, name: str | None = None) -> Tensor:
    """The cumulative sum along an axis; with axis None, of the flattened tensor.

    >>> cumsum(np.array([1.0, 2.0, 4.0]))
    array([1., 3., 7.])
    """
    return _running(_cumsum, accumulated(a, dtype), axis, False, name)


def _running(d: OpDef, a: Any, axis: int | None, reverse: bool, name: str | None = None) -> Tensor:
    a, axis = (flat(a), 0) if axis is None else (a, normalize_axis(axis, len(a.shape)))
    return make(d, (a,), {"axis": axis, "reverse": reverse}, name)


@RegisterGradient("Cumsum")
def _cumsum_grad(op: Operation, g: Tensor) -> Any:
    return _running(_cumsum, g, op.attrs["axis"], not op.attrs["reverse"])


def diff(a: Any, n: int = 1, axis: int = -1, name: str | None = None) -> Tensor:
    """The n-th difference along an axis, which becomes shorter by n; for booleans, whether neighbours differ.

    >>> diff(np.array([1.0, 3.0, 7.0]))
    array([2., 4.])
    """
    a, n = typed(a), as_int("diff", "n", n)
    if n < 0:
        raise ValueError(f"diff: the order n of the difference must not be negative, got {n}")
    lead = (slice(None),) * normalize_axis(axis, len(a.shape))
    apart = not_equal if a.dtype == BOOL else subtract
    if n >= a.shape[len(lead)]:  # the result is empty
        return getitem(a, (*lead, slice(0, 0)), name=name)
    for _ in range(n):
        a = apart(getitem(a, (*lead, slice(1, None))), getitem(a, (*lead, slice(None, -1))))
    return a if name is None else identity(a, name=name)  # type: ignore[no-any-return]


# -- linear recurrences ------------------------------------------------------------------------------------------

_linear_scan = define("LinearScan", same, kind=Kind.SCAN)


def linear_scan(a: Any, b: Any, axis: int = -1, reverse: bool = False, name: str | None = None) -> Tensor:
    """The linear recurrence s[i] = a[i] * s[i - 1] + b[i] along an axis, from zero; `reverse` runs it from the end.

    Discounted sums, moving averages and gradients of cumulative products are such recurrences.

    >>> linear_scan(0.5, np.array([1.0, 1.0, 1.0]))
    array([1.  , 1.5 , 1.75])
    """
    a, b = promote(np.multiply, a, b)
    shape = broadcast_shapes(a.shape, b.shape)
    a, b = (x if x.shape == shape else broadcast_to(x, shape) for x in (a, b))
    return make(_linear_scan, (a, b), {"axis": normalize_axis(axis, len(shape)), "reverse": bool(reverse)}, name)


@RegisterGradient("LinearScan")
def _linear_scan_grad(op: Operation, g: Tensor) -> Any:
    axis, reverse = op.attrs["axis"], op.attrs["reverse"]
    back = linear_scan(_shifted(conj(op.inputs[0]), axis, not reverse), g, axis, not reverse)
    return back * conj(_shifted(op.outputs[0], axis, reverse)), back


def _shifted(x: Any, axis: int, reverse: bool, fill: int = 0) -> Any:
    """Shift x by one element along an axis, towards its start if `reverse`, and insert `fill`."""
    n = x.shape[axis]
    if n == 0:
        return x
    edge = full((*x.shape[:axis], 1, *x.shape[axis + 1 :]), fill, x.dtype)
    rest = getitem(x, (slice(None),) * axis + (slice(1, None) if reverse else slice(0, n - 1),))
    return concatenate([rest, edge] if reverse else [edge, rest], axis)


# -- products ----------------------------------------------------------------------------------------------------

_cumprod = define("Cumprod", same, kind=Kind.SCAN)


def cumprod(a: Any, axis: int | None = None, dtype: Any = None, name: str | None = None) -> Tensor:
    """The cumulative product along an axis; with axis None, of the flattened tensor.

    >>> cumprod(np.array([2.0, 3.0, 4.0]))
    array([ 2.,  6., 24.])
    """
    return _running(_cumprod, accumulated(a, dtype), axis, False, name)


@RegisterGradient("Cumprod")
def _cumprod_grad(op: Operation, g: Tensor) -> Any:
    axis, reverse = op.attrs["axis"], op.attrs["reverse"]
    before = _shifted(op.outputs[0], axis, reverse, 1)
    return conj(before) * linear_scan(_shifted(conj(op.inputs[0]), axis, not reverse), g, axis, not reverse)


def others(x: Tensor, axis: int) -> Tensor:
    """For each element the product of all others along the axis: the product before it times that after it."""
    before, after = (_shifted(_running(_cumprod, x, axis, reverse), axis, reverse, 1) for reverse in (False, True))
    return multiply(before, after)


__all__ = ["cumprod", "cumsum", "diff", "linear_scan"]
guard_all(globals(), __all__)
