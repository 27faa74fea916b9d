"""Inverses, solvers and determinants: inv, solve, triangular_solve, det, slogdet, pinv. Part of `distgrad.linalg`.

Also helpers for all of linear algebra: checks of dtypes and shapes for LAPACK, and products with adjoints.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from distgrad.graph import NO_ATTRS, Operation, Tensor
from distgrad.ops.array import reshape, swapaxes, tril, triu
from distgrad.ops.builder import as_dtype, cast, common, make, make_n
from distgrad.ops.math import conj, imag
from distgrad.ops.matrix.matmul import batch_shape, matmul
from distgrad.registry import Kind, OpDef, RegisterGradient, define
from distgrad.types import FLOAT, DType, Shape, Typed, brief, real_dtype

# -- helpers -----------------------------------------------------------------------------------------------------


def lapack(what: str, *xs: Any) -> tuple[Any, ...]:
    """Cast operands to one dtype that LAPACK supports: integers become float64, as in NumPy."""
    xs = common(*xs)
    dtype = FLOAT if xs[0].dtype.kind in "biu" else xs[0].dtype
    if dtype.char not in "fdFD":
        raise TypeError(f"{what}: LAPACK does not support {dtype}; cast to float32, float64, complex64 or complex128")
    return tuple([as_dtype(x, dtype) for x in xs])


def matrices(what: str, a: Any) -> Any:
    (a,) = lapack(what, a)
    if len(a.shape) < 2:
        raise np.linalg.LinAlgError(f"{what}: a must be a matrix or a stack of matrices, got shape {list(a.shape)}")
    return a


def square_matrices(what: str, a: Any) -> Any:
    a = matrices(what, a)
    if a.shape[-1] != a.shape[-2]:
        raise np.linalg.LinAlgError(f"{what}: the last two axes of a must be equal, got shape {list(a.shape)}")
    return a


def adjoint(x: Any) -> Tensor:
    """The conjugate transpose of the last two axes."""
    return swapaxes(conj(x), -1, -2)


def product(a: Any, b: Any, adjoint_a: bool = False, adjoint_b: bool = False) -> Tensor:
    return matmul(conj(a) if adjoint_a else a, conj(b) if adjoint_b else b, adjoint_a, adjoint_b)


def per_matrix(x: Any) -> Tensor:
    """Reshape one number per matrix to scale the matrices."""
    return reshape(x, (*x.shape, 1, 1))


# -- inv ---------------------------------------------------------------------------------------------------------

_inv = define("MatrixInverse", lambda a: (a.shape, a.dtype), kind=Kind.LINALG)


def inv(a: Any, name: str | None = None) -> Tensor:
    """The inverse of each matrix. A singular one raises numpy.linalg.LinAlgError at run time.

    >>> inv(np.array([[2.0, 0.0], [0.0, 4.0]]))
    array([[0.5 , 0.  ],
           [0.  , 0.25]])
    """
    return make(_inv, (square_matrices("inv", a),), NO_ATTRS, name)


@RegisterGradient("MatrixInverse")
def _inv_grad(op: Operation, g: Tensor) -> Any:
    y = op.outputs[0]
    return -product(product(y, g, adjoint_a=True), y, adjoint_b=True)


# -- solve -------------------------------------------------------------------------------------------------------


def _solve_infer(a: Typed, b: Typed, **_: bool) -> tuple[Shape, DType]:
    return (*batch_shape("solve", a, b), *b.shape[-2:]), b.dtype


_solve = define("MatrixSolve", _solve_infer, broadcasting=True, kind=Kind.LINALG)
_triangular_solve = define("MatrixTriangularSolve", _solve_infer, broadcasting=True, kind=Kind.LINALG)


def solve(a: Any, b: Any, name: str | None = None) -> Tensor:
    """Solve a @ x = b for x. A 1-d b is a vector, any other b a stack of matrices.

    >>> solve(np.array([[2.0, 0.0], [0.0, 4.0]]), np.array([2.0, 2.0]))
    array([1. , 0.5])
    """
    return _solved("solve", _solve, a, b, {"adjoint": False}, name)


def _solved(what: str, d: OpDef, a: Any, b: Any, attrs: dict[str, bool], name: str | None) -> Tensor:
    a, b = lapack(what, a, b)
    a = square_matrices(what, a)
    vector = len(b.shape) == 1
    if not b.shape or b.shape[-1 if vector else -2] != a.shape[-1]:
        raise ValueError(f"{what}: a of shape {list(a.shape)} and b of shape {list(b.shape)} differ in their rows")
    if not vector:
        return make(d, (a, b), attrs, name)
    x = make(d, (a, reshape(b, (*b.shape, 1))), attrs)
    return reshape(x, x.shape[:-1], name=name)


def _solve_gradients(op: Operation, g: Tensor, solve_with: Callable[..., Tensor]) -> tuple[Tensor, Tensor]:
    """For x = a^-1 b: the gradient of b solves the adjoint system, and its outer product with x is that of a."""
    a, x = op.inputs[0], op.outputs[0]
    gb = solve_with(a, g, {**op.attrs, "adjoint": not op.attrs["adjoint"]})
    return -(product(x, gb, adjoint_b=True) if op.attrs["adjoint"] else product(gb, x, adjoint_b=True)), gb


@RegisterGradient("MatrixSolve")
def _solve_grad(op: Operation, g: Tensor) -> Any:
    return _solve_gradients(op, g, lambda a, b, attrs: make(_solve, (a, b), attrs))


_TRANS: dict[Any, tuple[bool, bool]] = {
    0: (False, False), "N": (False, False), 1: (True, False), "T": (True, False), 2: (True, True), "C": (True, True),
}  # fmt: skip


def triangular_solve(
    a: Any, b: Any, lower: bool = True, trans: Any = 0, unit_diagonal: bool = False, name: str | None = None
) -> Tensor:
    """Solve op(a) @ x = b for x, with a triangular a. The other triangle is not read.

    Args:
        a: square matrices; only the lower (or upper) triangle is used.
        b: a vector if 1-d, else a stack of matrices.
        lower: whether a is lower triangular.
        trans: op(a) is a itself (0 or 'N'), its transpose (1, True or 'T') or its conjugate transpose (2 or 'C').
        unit_diagonal: assume ones on the diagonal, which is not read either.

    >>> triangular_solve(np.array([[2.0, 9.0], [2.0, 1.0]]), np.array([2.0, 3.0]))
    array([1., 1.])
    """
    if trans not in _TRANS:
        raise ValueError(f"triangular_solve: trans must be 0, 1, 2, 'N', 'T' or 'C', got {brief(trans)}")
    transposed, conjugated = _TRANS[trans]
    a, b = lapack("triangular_solve", a, b)
    attrs = {"adjoint": transposed, "lower": bool(lower), "unit_diagonal": bool(unit_diagonal)}
    a = a if conjugated or not transposed else conj(a)  # the op supports only the adjoint
    return _solved("triangular_solve", _triangular_solve, a, b, attrs, name)


@RegisterGradient("MatrixTriangularSolve")
def _triangular_solve_grad(op: Operation, g: Tensor) -> Any:
    ga, gb = _solve_gradients(op, g, lambda a, b, attrs: make(_triangular_solve, (a, b), attrs))
    strict = int(op.attrs["unit_diagonal"])
    return (tril(ga, -strict) if op.attrs["lower"] else triu(ga, strict)), gb


# -- det ---------------------------------------------------------------------------------------------------------

_det = define("MatrixDeterminant", lambda a: (a.shape[:-2], a.dtype), kind=Kind.LINALG)
_slogdet = define(
    "LogMatrixDeterminant", lambda a: [(a.shape[:-2], a.dtype), (a.shape[:-2], real_dtype(a.dtype))], kind=Kind.LINALG
)


class SlogdetResult(NamedTuple):
    """Sign (or phase) and logarithm of a determinant's absolute value."""

    sign: Any
    logabsdet: Any


def det(a: Any, name: str | None = None) -> Tensor:
    """The determinant of each matrix. The gradient needs the inverse, and raises LinAlgError for a singular matrix.

    >>> det(np.array([[2.0, 0.0], [0.0, 4.0]]))
    array(8.)
    """
    return make(_det, (square_matrices("det", a),), NO_ATTRS, name)


@RegisterGradient("MatrixDeterminant")
def _det_grad(op: Operation, g: Tensor) -> Any:
    return per_matrix(g * conj(op.outputs[0])) * adjoint(inv(op.inputs[0]))


def slogdet(a: Any, name: str | None = None) -> SlogdetResult:
    """Sign (phase for complex matrices) and log(abs(det)), without overflow or underflow.

    >>> slogdet(np.array([[0.0, 1.0], [1.0, 0.0]]))
    SlogdetResult(sign=array(-1.), logabsdet=array(0.))
    """
    return SlogdetResult(*make_n(_slogdet, (square_matrices("slogdet", a),), NO_ATTRS, name))


@RegisterGradient("LogMatrixDeterminant")
def _slogdet_grad(op: Operation, g_sign: Tensor, g_log: Tensor) -> Any:
    (a,) = op.inputs
    scale = cast(g_log, a.dtype)
    if a.dtype.kind == "c":  # the phase changes with imag(trace(a^-1 da)); a real sign is constant
        scale = scale - 1j * imag(conj(g_sign) * op.outputs[0])
    return per_matrix(scale) * adjoint(inv(a))


# -- pinv --------------------------------------------------------------------------------------------------------

_pinv = define(
    "MatrixPseudoInverse", lambda a, *, rcond: ((*a.shape[:-2], a.shape[-1], a.shape[-2]), a.dtype), kind=Kind.LINALG
)


def pinv(a: Any, rcond: float = 1e-15, name: str | None = None) -> Tensor:
    """The Moore-Penrose inverse; singular values below rcond times the largest are treated as zero.

    The gradient assumes constant rank: the function is discontinuous where the rank changes.

    >>> pinv(np.array([[2.0], [0.0]]))
    array([[0.5, 0. ]])
    """
    return make(_pinv, (matrices("pinv", a),), {"rcond": float(rcond)}, name)


@RegisterGradient("MatrixPseudoInverse")
def _pinv_grad(op: Operation, g: Tensor) -> Any:
    # Golub and Pereyra, 1973: dp = -p da p + p p* da* (1 - a p) + (1 - p a) da* p* p
    (a,), (p,) = op.inputs, op.outputs
    inverse = -product(product(p, g, adjoint_a=True), p, adjoint_b=True)
    left = product(g, product(p, p, adjoint_b=True), adjoint_a=True)
    right = product(product(p, p, adjoint_a=True), g, adjoint_b=True)
    return inverse + (left - product(a, product(p, left))) + (right - product(product(right, p), a))
