"""Factorizations: cholesky, eigh, qr, svd. Part of `distgrad.linalg`.

Gradients are valid where the factors are smooth: full rank, distinct eigenvalues or singular values. For equal values,
gradients through the values alone are correct, and those through the vectors do not exist and are not finite.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from distgrad.graph import NO_ATTRS, Operation, Tensor
from distgrad.ops.array import concatenate, diagonal, eye, reshape, split, tril, triu
from distgrad.ops.builder import make, make_n
from distgrad.ops.math import conj, reciprocal, square
from distgrad.ops.matrix.solve import adjoint, matrices, product, square_matrices, triangular_solve
from distgrad.registry import Kind, RegisterGradient, define
from distgrad.types import DType, Shape, Typed, brief, real_dtype


class EighResult(NamedTuple):
    """Eigenvalues in ascending order, and eigenvectors as columns."""

    eigenvalues: Any
    eigenvectors: Any


class QRResult(NamedTuple):
    """Orthonormal columns, and an upper triangular matrix."""

    Q: Any
    R: Any


class SVDResult(NamedTuple):
    """Singular vectors as columns of U and rows of Vh, and singular values in descending order."""

    U: Any
    S: Any
    Vh: Any


def _symmetrized(x: Tensor) -> Tensor:
    return (x + adjoint(x)) * 0.5


def _row(x: Any) -> Tensor:
    """Reshape vectors to scale the columns of matrices."""
    return reshape(x, (*x.shape[:-1], 1, x.shape[-1]))


def _column(x: Any) -> Tensor:
    return reshape(x, (*x.shape, 1))


def _inverse_gaps(x: Any) -> Tensor:
    """1 / (x_j - x_i), and zero on the diagonal."""
    unit = eye(x.shape[-1], dtype=x.dtype)
    return reciprocal(_row(x) - _column(x) + unit) - unit


def _unused(g: Tensor) -> bool:
    """Whether the output with this gradient is unused: then there is no division by gaps between equal values."""
    return g.op.type == "Fill" and g.op.attrs["value"] == 0


# -- cholesky ----------------------------------------------------------------------------------------------------

_cholesky = define("Cholesky", lambda a: (a.shape, a.dtype), kind=Kind.LINALG)


def cholesky(a: Any, upper: bool = False, name: str | None = None) -> Tensor:
    """The lower triangular l with l @ l^H = a, or its adjoint if `upper`. Only that triangle of a is read.

    The gradient is Hermitian, shared by both triangles. A matrix that is not positive definite raises
    numpy.linalg.LinAlgError at run time.

    >>> cholesky([[4.0, 2.0], [2.0, 2.0]])
    array([[2., 0.],
           [1., 1.]])
    """
    a = square_matrices("cholesky", a)
    if upper:
        return adjoint(make(_cholesky, (adjoint(a),), NO_ATTRS, name))
    return make(_cholesky, (a,), NO_ATTRS, name)


@RegisterGradient("Cholesky")
def _cholesky_grad(op: Operation, g: Tensor) -> Any:
    l = op.outputs[0]
    half = _halved(product(l, g, adjoint_a=True))
    left = triangular_solve(l, half, trans="C")
    return _symmetrized(triangular_solve(l, adjoint(left), trans="C"))


def _halved(x: Any) -> Tensor:
    """The lower triangle, with half of the diagonal."""
    return (tril(x) + tril(x, -1)) * 0.5


# -- eigh --------------------------------------------------------------------------------------------------------


def _eigh_infer(a: Typed, *, compute_v: bool, lower: bool) -> list[tuple[Shape, DType]]:
    values = (a.shape[:-1], real_dtype(a.dtype))
    return [values, (a.shape, a.dtype)] if compute_v else [values]


_eigh = define("SelfAdjointEigV2", _eigh_infer, kind=Kind.LINALG)


def eigh(a: Any, UPLO: str = "L", name: str | None = None) -> EighResult:
    """Eigenvalues (ascending) and eigenvectors of Hermitian matrices; only the triangle UPLO is read, so that only its
    elements have a gradient.

    Both are differentiable; gradients of eigenvectors require distinct eigenvalues, and a function that does not depend
    on the arbitrary phases of the vectors.

    >>> eigh([[3.0, 0.0], [0.0, 1.0]]).eigenvalues
    array([1., 3.])
    """
    return EighResult(*make_n(_eigh, (square_matrices("eigh", a),), _triangle("eigh", UPLO, True), name))


def eigvalsh(a: Any, UPLO: str = "L", name: str | None = None) -> Tensor:
    """The eigenvalues of Hermitian matrices, in ascending order.

    >>> eigvalsh([[3.0, 0.0], [0.0, 1.0]])
    array([1., 3.])
    """
    return make_n(_eigh, (square_matrices("eigvalsh", a),), _triangle("eigvalsh", UPLO, False), name)[0]


def _triangle(what: str, uplo: str, compute_v: bool) -> dict[str, bool]:
    if str(uplo).upper() not in ("L", "U"):
        raise ValueError(f"{what}: UPLO must be 'L' or 'U', got {brief(uplo)}")
    return {"compute_v": compute_v, "lower": uplo.upper() == "L"}


@RegisterGradient("SelfAdjointEigV2")
def _eigh_grad(op: Operation, g_values: Tensor, g_vectors: Tensor | None = None) -> Any:
    lower = op.attrs["lower"]
    w, v = op.outputs if op.attrs["compute_v"] else eigh(op.inputs[0], "L" if lower else "U")
    columns = v * _row(g_values)
    if g_vectors is not None and not _unused(g_vectors):
        columns = columns + product(v, product(v, g_vectors, adjoint_a=True) * _inverse_gaps(w))
    spread = product(columns, v, adjoint_b=True)
    read = _halved(spread + adjoint(spread))  # an element of the triangle stands for two of the matrix
    return read if lower else adjoint(read)


# -- qr ----------------------------------------------------------------------------------------------------------


def _qr_infer(a: Typed, *, full_matrices: bool) -> list[tuple[Shape, DType]]:
    *batch, m, n = a.shape
    k = m if full_matrices else n
    return [((*batch, m, k), a.dtype), ((*batch, k, n), a.dtype)]


_qr = define("Qr", _qr_infer, kind=Kind.LINALG)  # rows >= columns


def qr(a: Any, mode: str = "reduced", name: str | None = None) -> Any:
    """q with orthonormal columns and upper triangular r with q @ r = a; mode 'r' returns r alone.

    Gradients require full rank. mode='complete' has a gradient only if it equals 'reduced'.

    >>> q, r = qr([[0.0, 2.0], [1.0, 0.0]])
    >>> (q @ r).round(6)
    array([[0., 2.],
           [1., 0.]])
    """
    if mode not in ("reduced", "complete", "r"):
        raise ValueError(f"qr: mode must be 'reduced', 'complete' or 'r', got {brief(mode)}")
    a = matrices("qr", a)
    m, n = a.shape[-2:]
    if m >= n:
        result = QRResult(*make_n(_qr, (a,), {"full_matrices": mode == "complete" and m > n}, name))
    else:  # the first m columns determine q
        left, right = split(a, [m], axis=-1)
        q, r = make_n(_qr, (left,), {"full_matrices": False}, name)
        result = QRResult(q, concatenate([r, product(q, right, adjoint_a=True)], axis=-1))
    return result.R if mode == "r" else result


@RegisterGradient("Qr")
def _qr_grad(op: Operation, gq: Tensor, gr: Tensor) -> Any:
    if op.attrs["full_matrices"]:
        raise LookupError(
            f"qr with mode='complete' has no gradient for matrices of shape {list(op.inputs[0].shape)} "
            f"(op {op.name!r}, at {op.source}): the columns beyond the rank are arbitrary. Use mode='reduced'."
        )
    q, r = op.outputs
    upper = product(gr, r, adjoint_b=True) - product(q, gq, adjoint_a=True)
    upper = (triu(upper) + triu(upper, 1)) * 0.5
    turned = gq + product(q, upper + adjoint(upper))
    return adjoint(triangular_solve(r, adjoint(turned), lower=False))


# -- svd ---------------------------------------------------------------------------------------------------------


def _svd_infer(a: Typed, *, full_matrices: bool, compute_uv: bool) -> list[tuple[Shape, DType]]:
    *batch, m, n = a.shape
    k = m if m < n else n
    values = ((*batch, k), real_dtype(a.dtype))
    if not compute_uv:
        return [values]
    rows, columns = (m, n) if full_matrices else (k, k)
    return [((*batch, m, rows), a.dtype), values, ((*batch, columns, n), a.dtype)]


_svd = define("Svd", _svd_infer, kind=Kind.LINALG)


def svd(a: Any, full_matrices: bool = True, compute_uv: bool = True, name: str | None = None) -> Any:
    """Singular vectors and values: a = (u * s) @ vh with full_matrices=False; compute_uv=False returns s alone.

    Gradients require distinct nonzero singular values, and a function that does not depend on the arbitrary phases of
    the vectors. With full_matrices=True, the vectors of non-square matrices have no gradient.

    >>> svd([[1.0, 0.0], [0.0, 3.0]]).S
    array([3., 1.])
    """
    a = matrices("svd", a)
    full = bool(full_matrices and compute_uv and a.shape[-1] != a.shape[-2])
    made = make_n(_svd, (a,), {"full_matrices": full, "compute_uv": bool(compute_uv)}, name)
    return SVDResult(*made) if compute_uv else made[0]


def svdvals(x: Any, name: str | None = None) -> Tensor:
    """The singular values, in descending order.

    >>> svdvals([[1.0, 0.0], [0.0, 3.0]])
    array([3., 1.])
    """
    made: Tensor = svd(x, compute_uv=False, name=name)
    return made


@RegisterGradient("Svd")
def _svd_grad(op: Operation, *gs: Tensor) -> Any:
    (a,) = op.inputs
    if not op.attrs["compute_uv"]:
        u, _, vh = svd(a, full_matrices=False)
        return product(u * _row(gs[0]), vh)
    if op.attrs["full_matrices"]:
        raise LookupError(
            f"svd with full_matrices=True has no gradient for matrices of shape {list(a.shape)} (op {op.name!r}, at "
            f"{op.source}): the vectors beyond the rank are arbitrary. Use full_matrices=False."
        )
    if _unused(gs[0]) and _unused(gs[2]):
        u, _, vh = op.outputs
        return product(u * _row(gs[1]), vh)
    return _svd_gradient(*op.outputs, *gs)


def _svd_gradient(u: Tensor, s: Tensor, vh: Tensor, gu: Tensor, gs: Tensor, gvh: Tensor) -> Tensor:
    gaps, inverse = _inverse_gaps(square(s)), reciprocal(s)
    left, right = product(u, gu, adjoint_a=True), product(vh, gvh, adjoint_b=True)
    middle = (left - adjoint(left)) * gaps * _row(s) + (right - adjoint(right)) * gaps * _column(s)
    scale = gs
    if u.dtype.kind == "c":  # the common phase of a pair of vectors is arbitrary, a difference is not
        phase = diagonal(left, 0, -2, -1)
        scale = gs + (phase - conj(phase)) * (inverse * 0.5)
    columns = u * _row(scale) + product(u, middle)
    if u.shape[-2] > u.shape[-1]:
        columns = columns + _off(gu * _row(inverse), u)
    total = product(columns, vh)
    if vh.shape[-1] > vh.shape[-2]:
        total = total + product(u, adjoint(_off(adjoint(gvh * _column(inverse)), adjoint(vh))))
    return total


def _off(x: Tensor, basis: Tensor) -> Tensor:
    """The part of the columns of x orthogonal to an orthonormal basis."""
    return x - product(basis, product(basis, x, adjoint_a=True))
