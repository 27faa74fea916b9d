"""Cumulative sums and products, differences, slopes, and linear recurrences. Re-exported by `reduce`.

No gradient divides by a factor, so all are correct for zero factors.
"""

from __future__ import annotations

from collections.abc import Sequence
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
from distgrad.types import BOOL, INT, as_int, brief, broadcast_shapes, normalize_axes, normalize_axis, size_of


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


def gradient(f: Any, *varargs: Any, axis: Any = None, edge_order: int = 1) -> Any:
    """NumPy's `gradient`: central differences along axes, and one-sided ones at their ends.

    The samples are 1 apart, or as far as varargs say: one number, or, for each axis, a number or the coordinates.
    Not part of `distgrad` itself, where `gradients` are derivatives.

    >>> gradient(np.array([1.0, 2.0, 4.0, 7.0]))
    array([1. , 1.5, 2.5, 3. ])
    """
    f = typed(f)
    f = as_dtype(f, np.dtype(float)) if f.dtype.kind in "biu" else f
    given = range(len(f.shape)) if axis is None else axis if isinstance(axis, Sequence) else (axis,)
    axes = [normalize_axis(i, len(f.shape)) for i in given]
    normalize_axes(axes, len(f.shape))  # raises for duplicate axes
    if edge_order not in (1, 2):
        raise ValueError(f"gradient: edge_order must be 1 or 2, got {brief(edge_order)}")
    for i in axes:
        if f.shape[i] < edge_order + 1:
            raise ValueError(f"gradient: axis {i} of shape {list(f.shape)} has less than {edge_order + 1} elements")
    made = [_slope(f, h, i, edge_order) for i, h in zip(axes, _spacings(f, varargs, axes), strict=True)]
    return made[0] if len(made) == 1 else tuple(made)


def _spacings(f: Any, varargs: Any, axes: Any) -> list[Any]:
    """Per axis: one distance, or those between neighbours."""
    if len(varargs) not in (0, 1, len(axes)) or (len(varargs) == 1 < len(axes) and typed(varargs[0]).shape):
        raise ValueError(f"gradient: give no distance, one number, or one entry per axis; got {len(varargs)}")
    given = varargs * len(axes) if len(varargs) == 1 else varargs or (1.0,) * len(axes)
    return [_spacing(f, h, i) for h, i in zip(given, axes, strict=True)]


def _spacing(f: Any, h: Any, axis: int) -> Any:
    h = h if isinstance(h, int | float) else typed(h)
    if isinstance(h, int | float) or not h.shape:
        return h
    if h.shape != (f.shape[axis],):
        raise ValueError(f"gradient: coordinates of shape {list(h.shape)} do not fit axis {axis} of {list(f.shape)}")
    steps = diff(as_dtype(h, np.dtype(float)) if h.dtype.kind in "biu" else h)
    if isinstance(steps, np.ndarray) and (steps == steps[0]).all():
        return steps[0]
    return steps


def _slope(f: Any, h: Any, axis: int, order: int) -> Tensor:
    lead = (slice(None),) * axis

    def at(first: int, last: int | None) -> Any:
        return getitem(f, (*lead, slice(first, last)))

    if isinstance(h, int | float) or not h.shape:
        inner = (at(2, None) - at(0, -2)) / (2.0 * h)
        edges = _even_edges(at, h, order)
    else:
        h = reshape(h, (-1, *[1] * (len(f.shape) - axis - 1)))
        inner = _inner(at, h[:-1], h[1:])
        edges = _uneven_edges(at, h, order)
    return concatenate([edges[0], inner, edges[1]], axis)


def _inner(at: Any, before: Any, after: Any) -> Any:
    low, high = after / (before * (before + after)), before / (after * (before + after))
    return at(1, -1) * ((after - before) / (before * after)) - at(0, -2) * low + at(2, None) * high


def _even_edges(at: Any, h: Any, order: int) -> tuple[Any, Any]:
    if order == 1:
        return (at(1, 2) - at(0, 1)) / h, (at(-1, None) - at(-2, -1)) / h
    first = (2.0 * at(1, 2) - 1.5 * at(0, 1) - 0.5 * at(2, 3)) / h
    return first, (0.5 * at(-3, -2) - 2.0 * at(-2, -1) + 1.5 * at(-1, None)) / h


def _uneven_edges(at: Any, h: Any, order: int) -> tuple[Any, Any]:
    if order == 1:
        return (at(1, 2) - at(0, 1)) / h[:1], (at(-1, None) - at(-2, -1)) / h[-1:]
    a, b = h[:1], h[1:2]
    first = at(1, 2) * ((a + b) / (a * b)) - at(0, 1) * ((2.0 * a + b) / (a * (a + b)))
    first = first - at(2, 3) * (a / (b * (a + b)))
    a, b = h[-2:-1], h[-1:]
    last = at(-3, -2) * (b / (a * (a + b))) - at(-2, -1) * ((a + b) / (a * b))
    return first, last + at(-1, None) * ((2.0 * b + a) / (b * (a + b)))


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
