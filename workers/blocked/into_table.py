"""The table of kernels that write into given buffers, and the decorator that fills it.

Only NumPy: what another array library needs, its own allocator and fuser do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any

import numpy as np

from distgrad.registry import OPS, Kind
from distgrad.workers.kernels.table import KERNELS

Array = np.ndarray[Any, np.dtype[Any]]
Function = Callable[..., None]


@dataclass(frozen=True, slots=True)
class Into:
    """How an op is computed into a buffer: as `ufunc(*inputs, out)`, or as `function(out, *inputs, **attrs)`.

    Inputs broadcast against `out` by NumPy's rules where the op's shape rule lets them.
    """

    ufunc: np.ufunc | None = None
    function: Function | None = None
    #: Whether `out` may be the memory of an input that has its shape and dtype.
    overlap: bool = True
    #: Whether the bits are those of the op's kernel. If not, a row's bits still depend on that row alone.
    exact: bool = True

    def __call__(self, out: Array, *inputs: Array, **attrs: Any) -> None:
        if self.ufunc is not None:
            self.ufunc(*inputs, out)
        elif self.function is not None:
            self.function(out, *inputs, **attrs)


@dataclass(frozen=True, slots=True)
class Pair:
    """How an op is computed together with another one, `first`, that reads the same but for this one's `own` inputs:
    as `function(out of the first, out, *inputs, **attrs)`, with the bits that each has by itself."""

    first: str
    own: int
    function: Function


INTO: dict[str, Into] = {}
#: Not ops, but what steps inside of a fused one are joined to.
JOINED: dict[str, Into] = {}
#: By the op type that comes second; both must have the same attributes.
PAIRS: dict[str, Pair] = {}


def into_of(op_type: str) -> Into | None:
    """How an op, or what ops are joined to, is computed into a buffer; None where its kernel makes the array."""
    return INTO.get(op_type) or JOINED.get(op_type) or _by_kernel(op_type)


def _by_kernel(op_type: str) -> Into | None:
    """An op that can be fused and has no function here is computed by its kernel, and the result copied."""
    definition = OPS.get(op_type)
    if definition is None or definition.kernel is not None:
        return None
    elementwise = definition.kind is Kind.ELEMENTWISE
    if not elementwise and definition.kind is not Kind.ROWWISE and definition.combine is None:
        return None
    return Into(function=partial(generic, op_type), overlap=elementwise, exact=definition.combine is None)


def into(*op_types: str, fast: str = "fd", overlap: bool = True) -> Callable[[Function], Function]:
    """Register a function `f(out, *inputs, **attrs)` with the bits of the op's kernel.

    It is called for results with the dtype characters in `fast`; others are what the kernel makes, copied.
    """

    def register(f: Function) -> Function:
        for op_type in op_types:
            INTO[op_type] = Into(function=_for_dtypes(op_type, f, fast), overlap=overlap)
        return f

    return register


def _for_dtypes(op_type: str, f: Function, fast: str) -> Function:
    @wraps(f)
    def function(out: Array, *inputs: Array, **attrs: Any) -> None:
        if out.dtype.char in fast:
            f(out, *inputs, **attrs)
        else:
            generic(op_type, out, *inputs, **attrs)

    return function


def generic(op_type: str, out: Array, *inputs: Array, **attrs: Any) -> None:
    """The op by its kernel, copied into `out`."""
    out[...] = KERNELS[op_type](np, *inputs, **attrs)
