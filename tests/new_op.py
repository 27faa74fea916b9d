"""A new elementwise op, as CONTRIBUTING.md says: a definition with its builder and gradient, and a kernel. Nothing else
in the tree knows of it."""

from __future__ import annotations

import enum
from typing import Any

import numpy as np

import distgrad as dg
from distgrad.ops.builder import make, promote
from distgrad.registry import Kind, RegisterGradient, define
from distgrad.types import DType, Shape, Typed, broadcast_shapes
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
