"""Kernels of distgrad/ops/matrix/linalg.py, solve.py and factor.py: LAPACK, through the namespace's linalg."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

from distgrad.workers.backends import extras
from distgrad.workers.kernels.table import kernel


def _adjoint(xp: Any, a: Any) -> Any:
    a = xp.matrix_transpose(a)
    return xp.conj(a) if extras(xp).kind(a.dtype) == "c" else a


@kernel("MatrixInverse", blas=True)
def inv(xp: Any, a: Any) -> Any:
    return xp.linalg.inv(a)


@kernel("MatrixPseudoInverse", blas=True)
def pinv(xp: Any, a: Any, *, rcond: float) -> Any:
    return xp.linalg.pinv(a, rtol=rcond)


@kernel("MatrixSolve", blas=True)
def solve(xp: Any, a: Any, b: Any, *, adjoint: bool) -> Any:
    return xp.linalg.solve(_adjoint(xp, a) if adjoint else a, b)


@kernel("MatrixTriangularSolve", blas=True)
def triangular_solve(xp: Any, a: Any, b: Any, *, adjoint: bool, lower: bool, unit_diagonal: bool) -> Any:
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a = xp.broadcast_to(a, (*batch, *a.shape[-2:]))
    b = xp.broadcast_to(b, (*batch, *b.shape[-2:]))
    if math.prod(batch) > a.shape[-1]:  # more matrices than rows: loop over rows instead
        return _substituted(xp, _adjoint(xp, a) if adjoint else a, b, lower != adjoint, unit_diagonal)
    made = xp.empty(b.shape, dtype=b.dtype)
    if 0 not in b.shape:
        for i in itertools.product(*map(range, batch)):
            one = (*i, ...)
            made[one] = extras(xp).solve_triangular(a[one], b[one], adjoint, lower, unit_diagonal)
    return made


def _substituted(xp: Any, a: Any, b: Any, lower: bool, unit_diagonal: bool) -> Any:
    """Solve a batch of triangular systems together, row by row."""
    n = a.shape[-1]
    diagonal = xp.linalg.diagonal(a)
    if not unit_diagonal and xp.any(diagonal == 0):
        raise np.linalg.LinAlgError("singular matrix: a triangular one with a zero on its diagonal")
    made = xp.empty(b.shape, dtype=b.dtype)
    for i in range(n) if lower else range(n - 1, -1, -1):
        known = slice(0, i) if lower else slice(i + 1, n)
        row = b[..., i, :] - xp.matmul(a[..., i, None, known], made[..., known, :])[..., 0, :]
        made[..., i, :] = row if unit_diagonal else row / diagonal[..., i, None]
    return made


@kernel("MatrixDeterminant", blas=True)
def det(xp: Any, a: Any) -> Any:
    return xp.linalg.det(a)


@kernel("LogMatrixDeterminant", blas=True)
def slogdet(xp: Any, a: Any) -> Any:
    return tuple(xp.linalg.slogdet(a))


@kernel("Cholesky", blas=True)
def cholesky(xp: Any, a: Any) -> Any:
    return xp.linalg.cholesky(a)


@kernel("SelfAdjointEigV2", blas=True)
def eigh(xp: Any, a: Any, *, compute_v: bool, lower: bool) -> Any:
    if not lower and xp is not np:
        a = _adjoint(xp, a)  # the standard reads the lower triangle
    triangle = {"UPLO": "L" if lower else "U"} if xp is np else {}  # which decides the signs of the vectors
    return tuple(xp.linalg.eigh(a, **triangle)) if compute_v else xp.linalg.eigvalsh(a, **triangle)


@kernel("Qr", blas=True)
def qr(xp: Any, a: Any, *, full_matrices: bool) -> Any:
    return tuple(xp.linalg.qr(a, mode="complete" if full_matrices else "reduced"))


@kernel("Svd", blas=True)
def svd(xp: Any, a: Any, *, full_matrices: bool, compute_uv: bool) -> Any:
    return tuple(xp.linalg.svd(a, full_matrices=full_matrices)) if compute_uv else xp.linalg.svdvals(a)
