"""How ops along rows enter the tables: they see their arrays as matrices of rows, and vectors with a number per row."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import numpy as np

from distgrad.workers.blocked.into_table import INTO, PAIRS, Array, Function, Into, Pair, generic
from distgrad.workers.kernels.scratch import scratch


def rows(*op_types: str, main: int = 0, reduces: bool = False) -> Callable[[Function], Function]:
    """Register `f(out, *inputs, **attrs)` for floats along the last axes, with what has the shape of the input `main`
    as a matrix of rows, and the rest (and what `reduces`) as a vector. Other axes and dtypes are left to the kernel.
    """

    def register(f: Function) -> Function:
        for op_type in op_types:
            INTO[op_type] = Into(function=_on_rows(op_type, f, main, reduces), overlap=not reduces, exact=False)
        return f

    return register


def _on_rows(op_type: str, f: Function, main: int, reduces: bool) -> Function:
    @wraps(f)
    def function(out: Array, *inputs: Array, **attrs: Any) -> None:
        x = inputs[main]
        n = row_length(x, attrs.get("axis", -1))
        if not n or out.dtype.char not in "fd" or x.dtype != out.dtype:
            return generic(op_type, out, *inputs, **attrs)
        made = out if out.flags.c_contiguous else scratch(out.shape, out.dtype, "made")
        f(made.reshape(-1) if reduces else made.reshape(-1, n), *_parts(inputs, x, n), **attrs)
        if made is not out:
            np.copyto(out, made)

    return function


def together(first: str, second: str, main: int = 0) -> Callable[[Function], Function]:
    """Register `f(first, second, *inputs of the second, **attrs)`, in the same way, for two ops along the same rows."""

    def register(f: Function) -> Function:
        PAIRS[second] = Pair(first, main, _both_on_rows(first, second, f, main))
        return f

    return register


def _both_on_rows(first: str, second: str, f: Function, main: int) -> Function:
    @wraps(f)
    def function(one: Array, two: Array, *inputs: Array, **attrs: Any) -> None:
        x = inputs[main]
        n = row_length(x, attrs.get("axis", -1))
        fast = n and one.dtype.char in "fd" and x.dtype == one.dtype == two.dtype
        if not fast or not (one.flags.c_contiguous and two.flags.c_contiguous):
            INTO[first](one, *inputs[main:], **attrs)
            return INTO[second](two, *inputs, **attrs)
        outs = [v.reshape(-1, n) if v.shape == x.shape else v.reshape(-1) for v in (one, two)]
        f(*outs, *_parts(inputs, x, n), **attrs)

    return function


def _parts(inputs: Sequence[Array], x: Array, n: int) -> list[Array]:
    return [matrix(v, n, i) if v.shape == x.shape else v.reshape(-1) for i, v in enumerate(inputs)]


def row_length(x: Array, axis: Any) -> int:
    """How many elements the given last axes have; 0 where they are not the last, or nothing is there to compute."""
    count = 1 if isinstance(axis, int) else len(axis)
    last = tuple(range(x.ndim - count, x.ndim))
    if not x.size or not count or (axis not in (-1, last[0]) if isinstance(axis, int) else axis != last):
        return 0
    return math.prod(x.shape[-count:])


def matrix(x: Array, n: int, place: int) -> Array:
    if not x.flags.c_contiguous:
        x, given = scratch(x.shape, x.dtype, f"input {place}"), x
        np.copyto(x, given)
    return x.reshape(-1, n)
