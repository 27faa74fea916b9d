"""New ops, as CONTRIBUTING.md says: a definition with its builder and gradient, and a kernel each. Nothing else in the
tree knows of them. One is elementwise, one reduces axes, one works on rows."""

from __future__ import annotations

import enum
from typing import Any

import numpy as np

import distgrad as dg
from distgrad.ops.builder import make, promote, typed
from distgrad.registry import Kind, RegisterGradient, define
from distgrad.types import DType, Shape, Typed, broadcast_shapes, normalize_axes, reduced_shape
from distgrad.workers.kernels.table import kernel


class Sign(enum.Enum):
    """An attribute of a class of this module: a Ray worker that loads the op imports the module, and so its kernel."""

    SAME = 1.0
    OPPOSITE = -1.0


# -- distgrad/ops/<family>.py ------------------------------------------------------------------------------------


def _infer(x: Typed, y: Typed, *, sign: Sign) -> tuple[Shape, DType]:
    return broadcast_shapes(x.shape, y.shape), x.dtype


_copy_sign = define("TestCopySign", _infer, kind=Kind.ELEMENTWISE, broadcasting=True, rounded=True)


def copy_sign(x: Any, y: Any, sign: Sign = Sign.SAME, name: str | None = None) -> Any:
    """The magnitude of x with the sign of y, or with the opposite one."""
    x, y = promote(np.copysign, x, y, name="copy_sign")
    return make(_copy_sign, (x, y), {"sign": sign}, name)


@RegisterGradient("TestCopySign")
def _copy_sign_grad(op: dg.Operation, g: Any) -> Any:
    x, y = op.inputs
    return g * dg.sign(x) * dg.sign(y) * op.attrs["sign"].value, None


# -- workers/kernels/<family>.py ---------------------------------------------------------------------------------


@kernel("TestCopySign")
def _kernel(xp: Any, x: Any, y: Any, *, sign: Sign) -> Any:
    return xp.where(y * sign.value < 0, -xp.abs(x), xp.abs(x))


# -- a reduction -------------------------------------------------------------------------------------------------


def _reduced(x: Typed, *, axis: tuple[int, ...], keepdims: bool) -> tuple[Shape, DType]:
    return reduced_shape(x.shape, axis, keepdims), x.dtype


_sum_of_squares = define("TestSumOfSquares", _reduced, kind=Kind.REDUCTION, combine="Add")


def sum_of_squares(x: Any, axis: Any = None, keepdims: bool = False, name: str | None = None) -> Any:
    x = typed(x)
    return make(_sum_of_squares, (x,), {"axis": normalize_axes(axis, len(x.shape)), "keepdims": keepdims}, name)


@RegisterGradient("TestSumOfSquares")
def _sum_of_squares_grad(op: dg.Operation, g: Any) -> Any:
    (x,) = op.inputs
    return 2.0 * x * dg.reshape(g, reduced_shape(x.shape, op.attrs["axis"], True))


@kernel("TestSumOfSquares")
def _squares_kernel(xp: Any, x: Any, *, axis: tuple[int, ...], keepdims: bool) -> Any:
    return xp.sum(x * x, axis=axis, keepdims=keepdims)


# -- a row-wise op -----------------------------------------------------------------------------------------------

_centred = define("TestCentred", lambda x, *, axis: (x.shape, x.dtype), kind=Kind.ROWWISE)


def centred(x: Any, name: str | None = None) -> Any:
    """Rows without their mean."""
    x = typed(x)
    return make(_centred, (x,), {"axis": len(x.shape) - 1}, name)


@RegisterGradient("TestCentred")
def _centred_grad(op: dg.Operation, g: Any) -> Any:
    return centred(g)


@kernel("TestCentred")
def _centred_kernel(xp: Any, x: Any, *, axis: int) -> Any:
    return x - xp.mean(x, axis=axis, keepdims=True)
