"""Reductions along axes, and running sums."""

from __future__ import annotations

from typing import Any

from distgrad.graph import Operation, Tensor
from distgrad.ops.array import broadcast_to, reshape
from distgrad.ops.builder import make, typed
from distgrad.registry import RegisterGradient, define
from distgrad.types import DType, Shape, Typed, normalize_axes, reduced_shape


def _reduce_infer(x: Typed, *, axis: tuple[int, ...], keepdims: bool) -> tuple[Shape, DType]:
    return reduced_shape(x.shape, axis, keepdims), x.dtype


_sum = define("Sum", _reduce_infer)


def sum(a: Any, axis: Any = None, keepdims: bool = False, name: str | None = None) -> Tensor:
    """The sum along axes."""
    a = typed(a)
    return make(_sum, (a,), {"axis": normalize_axes(axis, len(a.shape)), "keepdims": bool(keepdims)}, name)


def _spread(op: Operation, g: Tensor) -> Tensor:
    """A reduced gradient laid out along the axes that were reduced."""
    (x,) = op.inputs
    return broadcast_to(reshape(g, reduced_shape(x.shape, op.attrs["axis"], True)), x.shape)


@RegisterGradient("Sum")
def _sum_grad(op: Operation, g: Tensor) -> Any:
    return _spread(op, g)


__all__ = ["sum"]
