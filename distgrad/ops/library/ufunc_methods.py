"""The methods of ufuncs: `np.add.outer`, `np.logaddexp.reduce`, `np.maximum.accumulate` and the like, by NumPy's names.

NumPy's names alone lead here: `distgrad` has these under the names of functions, such as `sum` and `cumsum`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np

from distgrad.graph import Tensor
from distgrad.ops import math as ops
from distgrad.ops import reduce
from distgrad.ops.array import concatenate, moveaxis, reshape
from distgrad.ops.builder import promote, typed
from distgrad.ops.index import getitem
from distgrad.ops.library import elementwise
from distgrad.types import normalize_axis

Function = Callable[..., Any]


def outer_of(f: Function) -> Function:
    """The method `outer` of a function of two arguments: f of each pair; the axes of x, then those of y."""

    def outer(x: Any, y: Any) -> Any:
        x, y = typed(x), typed(y)
        return f(reshape(x, (*x.shape, *[1] * len(y.shape))), y)

    return outer


# -- reduce ------------------------------------------------------------------------------------------------------


def _along_first(f: Function) -> Function:
    """A reduction or cumulative op with default axis 0, as for methods of ufuncs."""

    @wraps(f)  # also keeps the keywords in the signature
    def along(a: Any, axis: Any = 0, **kwargs: Any) -> Any:
        return f(a, axis=axis, **kwargs)

    return along


def _left_to_right(f: Function, combined: Function) -> Function:
    """A reduction of the first element with all others, which are combined first."""

    def reduce_(a: Any, axis: int = 0, keepdims: bool = False) -> Any:
        a = typed(a)
        place = normalize_axis(axis, len(a.shape))
        lead = (slice(None),) * place
        rest = combined(getitem(a, (*lead, slice(1, None))), axis=place, keepdims=keepdims)
        return f(getitem(a, (*lead, slice(0, 1) if keepdims else 0)), rest)

    return reduce_


def _logaddexp2(a: Any, axis: Any = 0, keepdims: bool = False) -> Any:
    (a,) = promote(np.exp2, a)
    return reduce.logsumexp(a * math.log(2), axis=axis, keepdims=keepdims) / math.log(2)


def _hypot(a: Any, axis: Any = 0, keepdims: bool = False) -> Any:
    (a,) = promote(np.sqrt, a)
    return reduce.where_nonzero(ops.sqrt, reduce.sum(ops.square(a), axis=axis, keepdims=keepdims))


def _without_nan(f: Function, g: Function) -> Function:
    """A reduction that ignores NaN: f of elements in which NaN is replaced by an extreme that loses."""

    def reduce_(a: Any, axis: Any = 0, keepdims: bool = False) -> Any:
        a = typed(a)
        if a.dtype.kind not in "f":
            return f(a, axis=axis, keepdims=keepdims)
        nan = ops.isnan(a)
        made = f(ops.where(nan, g(math.inf), a), axis=axis, keepdims=keepdims)
        return ops.where(reduce.all(nan, axis=axis, keepdims=keepdims), math.nan, made)

    return reduce_


fmax_reduce = _without_nan(reduce.max, lambda x: -x)
fmin_reduce = _without_nan(reduce.min, lambda x: x)

REDUCE: dict[str, Function] = {
    "add": _along_first(reduce.sum), "multiply": _along_first(reduce.prod), "maximum": _along_first(reduce.max),
    "minimum": _along_first(reduce.min), "logical_and": _along_first(reduce.all),
    "logical_or": _along_first(reduce.any), "logaddexp": _along_first(reduce.logsumexp), "logaddexp2": _logaddexp2,
    "hypot": _hypot, "fmax": fmax_reduce, "fmin": fmin_reduce,
    "subtract": _left_to_right(ops.subtract, reduce.sum), "divide": _left_to_right(ops.divide, reduce.prod),
}  # fmt: skip

# -- accumulate --------------------------------------------------------------------------------------------------


def _doubling(f: Function) -> Function:
    """The cumulative results of an associative function: after the step of width w, those of the last 2 w elements."""

    def accumulate(a: Any, axis: int = 0) -> Any:
        a = moveaxis(typed(a), axis, 0)
        width = 1
        while width < a.shape[0]:
            a = concatenate([a[:width], f(a[:-width], a[width:])])
            width *= 2
        return moveaxis(a, 0, axis)

    return accumulate


def _first_then(f: Function, running: Function) -> Function:
    """The first element, and f of it and the running results of all others."""

    def accumulate(a: Any, axis: int = 0) -> Any:
        a = moveaxis(typed(a), axis, 0)
        made: Tensor = concatenate([a[:1], f(a[:1], running(a[1:], axis=0))]) if a.shape[0] > 1 else a
        return moveaxis(made, 0, axis)

    return accumulate


ACCUMULATE: dict[str, Function] = {
    "add": _along_first(reduce.cumsum), "multiply": _along_first(reduce.cumprod),
    "maximum": _doubling(ops.maximum), "minimum": _doubling(ops.minimum), "logaddexp": _doubling(ops.logaddexp),
    "logaddexp2": _doubling(elementwise.logaddexp2), "fmax": _doubling(elementwise.fmax),
    "fmin": _doubling(elementwise.fmin), "hypot": _doubling(ops.hypot),
    "logical_and": _doubling(ops.logical_and), "logical_or": _doubling(ops.logical_or),
    "subtract": _first_then(ops.subtract, reduce.cumsum), "divide": _first_then(ops.divide, reduce.cumprod),
}  # fmt: skip


def methods(functions: dict[str, Function]) -> dict[str, Function]:
    """All methods by names such as 'add.reduce'. Every function with two arguments has an outer product, except those
    of matrices."""
    table = {f"{name}.reduce": f for name, f in REDUCE.items()}
    table |= {f"{name}.accumulate": f for name, f in ACCUMULATE.items()}
    for name, f in functions.items():
        ufunc = getattr(np, name, None)
        if isinstance(ufunc, np.ufunc) and (ufunc.nin, ufunc.nout, ufunc.signature) == (2, 1, None):
            table[f"{name}.outer"] = outer_of(f)
    return table
