"""Diagonals and triangles of matrices, batched. Re-exported by `array`."""

from __future__ import annotations

from typing import Any

from distgrad.graph import Operation, Tensor
from distgrad.ops.builder import make, same, typed
from distgrad.ops.guard import guard_all
from distgrad.ops.layout import broadcast_to, moveaxis
from distgrad.registry import Kind, RegisterGradient, View, define
from distgrad.types import Shape, as_int, normalize_axis


def diagonal_size(shape: Shape, offset: int) -> int:
    rows, columns = shape
    return max(0, min(rows + min(offset, 0), columns - max(offset, 0)))


MATRIX_DIAG = define("MatrixDiag", lambda x, *, shape, offset: ((*x.shape[:-1], *shape), x.dtype), kind=Kind.LAYOUT)
_diag_part = define(
    "MatrixDiagPart",
    lambda x, *, offset: ((*x.shape[:-2], diagonal_size(x.shape[-2:], offset)), x.dtype),
    kind=Kind.LAYOUT,
    view=View.PART,
)


def diag(v: Any, k: int = 0, name: str | None = None) -> Tensor:
    """The matrix with the vector v on its k-th diagonal, or the k-th diagonal of the matrix v.

    >>> diag([1, 2])
    array([[1, 0],
           [0, 2]])
    """
    v, k = typed(v), as_int("diag", "k", k)
    if len(v.shape) == 1:
        n = v.shape[0] + abs(k)
        return make(MATRIX_DIAG, (v,), {"shape": (n, n), "offset": k}, name)
    if len(v.shape) == 2:
        return diagonal(v, k, name=name)
    raise ValueError(f"diag: v must be a vector or a matrix, got shape {list(v.shape)}; use diagonal for batches")


def diagonal(a: Any, offset: int = 0, axis1: int = 0, axis2: int = 1, name: str | None = None) -> Tensor:
    """A diagonal of the matrices in two axes, as the last axis of the result.

    >>> diagonal([[1, 2], [3, 4]])
    array([1, 4])
    """
    a = typed(a)
    ndim = len(a.shape)
    if ndim < 2:
        raise ValueError(f"diagonal: a must have at least 2 axes, got shape {list(a.shape)}")
    axes = normalize_axis(axis1, ndim), normalize_axis(axis2, ndim)
    if axes[0] == axes[1]:
        raise ValueError(f"diagonal: axis1 and axis2 must differ, both are {axes[0]}")
    if axes != (ndim - 2, ndim - 1):
        a = moveaxis(a, axes, (-2, -1))
    return make(_diag_part, (a,), {"offset": as_int("diagonal", "offset", offset)}, name)


@RegisterGradient("MatrixDiag")
def _matrix_diag_grad(op: Operation, g: Tensor) -> Any:
    return diagonal(g, op.attrs["offset"], -2, -1)


@RegisterGradient("MatrixDiagPart")
def _matrix_diag_part_grad(op: Operation, g: Tensor) -> Any:
    return make(MATRIX_DIAG, (g,), {"shape": op.inputs[0].shape[-2:], "offset": op.attrs["offset"]})


def trace(a: Any, offset: int = 0, axis1: int = 0, axis2: int = 1, name: str | None = None) -> Tensor:
    """The sum of a diagonal.

    >>> float(trace([[1.0, 2.0], [3.0, 4.0]]))
    5.0
    """
    from distgrad.ops.reduce import sum as reduce_sum  # which imports this module

    return reduce_sum(diagonal(a, offset, axis1, axis2), axis=-1, name=name)


_tril = define("Tril", same, kind=Kind.LAYOUT)
_triu = define("Triu", same, kind=Kind.LAYOUT)


def tril(m: Any, k: int = 0, name: str | None = None) -> Tensor:
    """The lower triangle of the last two axes: zeros above the k-th diagonal.

    >>> tril([[1, 2], [3, 4]])
    array([[1, 0],
           [3, 4]])
    """
    return make(_tril, (_matrix(m, "tril"),), {"k": as_int("tril", "k", k)}, name)


def triu(m: Any, k: int = 0, name: str | None = None) -> Tensor:
    """The upper triangle of the last two axes: zeros below the k-th diagonal.

    >>> triu([[1, 2], [3, 4]])
    array([[1, 2],
           [0, 4]])
    """
    return make(_triu, (_matrix(m, "triu"),), {"k": as_int("triu", "k", k)}, name)


def _matrix(m: Any, what: str) -> Any:
    m = typed(m)
    if not m.shape:
        raise ValueError(f"{what}: m must have at least 1 axis, got a 0-d array")
    return broadcast_to(m, m.shape * 2) if len(m.shape) == 1 else m


@RegisterGradient("Tril")
def _tril_grad(op: Operation, g: Tensor) -> Any:
    return tril(g, op.attrs["k"])


@RegisterGradient("Triu")
def _triu_grad(op: Operation, g: Tensor) -> Any:
    return triu(g, op.attrs["k"])


__all__ = ["diag", "diagonal", "trace", "tril", "triu"]
guard_all(globals(), __all__)
