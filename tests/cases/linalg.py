"""Rows for distgrad/ops/matrix/linalg.py, solve.py and factor.py.

Eigenvectors and singular vectors are fixed up to a phase only, so their rows compare what does not depend on it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.linalg

import distgrad as dg

from .case import Case, apart, arr


def well(*shape: int, seed: int = 0) -> Any:
    """Square matrices that are far from singular."""
    return arr(*shape, seed=seed) * 0.5 + 2.5 * np.eye(shape[-1])


def adjoint(module: Any, x: Any) -> Any:
    return module.swapaxes(module.conj(x), -1, -2)


def hermitian(module: Any, x: Any) -> Any:
    """Make a matrix Hermitian: ops that read one triangle are differentiated as functions of both."""
    return (x + adjoint(module, x)) * 0.5


def both(f: Callable[..., Any], *inputs: Any, **options: Any) -> Case:
    """One function f(module, *inputs) of distgrad and of NumPy alike."""
    return Case(lambda *xs: f(dg, *xs), inputs, lambda *xs: f(np, *xs), **{"complex": True, **options})


def linalg(function: str, *inputs: Any, **options: Any) -> Case:
    return both(lambda module, *xs: getattr(module.linalg, function)(*xs, **options), *inputs)


def norm(*shape: int, complex: bool = True, **options: Any) -> Case:
    return both(lambda module, x: module.linalg.norm(x, **options), apart(*shape), complex=complex)


def triangular(a: Any, b: Any, lower: bool, trans: Any, unit_diagonal: bool) -> Case:
    def reference(a: Any, b: Any) -> Any:
        t = np.tril(a) if lower else np.triu(a)
        if unit_diagonal:
            t = t - t * np.eye(t.shape[-1]) + np.eye(t.shape[-1])
        op = {0: t, "T": np.swapaxes(t, -1, -2), "C": adjoint(np, t)}[trans]
        return np.linalg.solve(op, b)

    return Case(
        lambda a, b: dg.linalg.triangular_solve(a, b, lower, trans, unit_diagonal), (a, b), reference, complex=True
    )


def positive(module: Any, x: Any) -> Any:
    return module.matmul(x, adjoint(module, x)) + np.eye(x.shape[-1], dtype=np.int8)


def weights(n: int) -> Any:
    """1, 2, ... in a dtype that does not promote any float."""
    return np.arange(1, n + 1, dtype=np.int8)


def spectral(module: Any, a: Any, uplo: str = "L") -> Any:
    """Eigenvalues, and a function of the eigenvectors that does not depend on phases."""
    w, v = module.linalg.eigh(hermitian(module, a), uplo)
    return w, module.matmul(v * weights(a.shape[-1]), adjoint(module, v))


def singular(module: Any, a: Any) -> Any:
    """Singular values, and functions of the singular vectors that do not depend on common phases."""
    u, s, vh = module.linalg.svd(a, full_matrices=False)
    scale = weights(s.shape[-1])
    mixed = module.matmul(u * scale, vh)
    return s, mixed, module.matmul(u * scale, adjoint(module, u)), module.matmul(adjoint(module, vh) * scale, vh)


CASES: dict[str, list[Case]] = {
    "MatrixInverse": [
        linalg("inv", well(3, 3)),
        linalg("inv", well(2, 3, 3)),
        linalg("inv", arr(0, 3, 3)),
        linalg("inv", arr(2, 0, 0)),
        linalg("matrix_power", well(2, 2, 2), n=-2),
    ],
    "MatrixSolve": [
        linalg("solve", well(3, 3), arr(3)),
        linalg("solve", well(3, 3), arr(3, 2)),
        linalg("solve", well(2, 3, 3), arr(3)),
        linalg("solve", well(2, 3, 3), arr(2, 3, 1)),
        linalg("solve", well(3, 3), arr(2, 3, 2)),
        linalg("solve", well(2, 1, 2, 2), arr(3, 2, 4)),
        linalg("solve", well(3, 3), arr(3, 0)),
        linalg("solve", arr(0, 0), arr(0, 2)),
    ],
    "MatrixTriangularSolve": [
        *[
            triangular(well(3, 3), arr(3, 2), lower, trans, unit)
            for lower in (True, False)
            for trans in (0, "T", "C")
            for unit in (True, False)
        ],
        triangular(well(3, 3), arr(3), True, 0, False),
        triangular(well(2, 3, 3), arr(3), False, "C", False),
        triangular(well(2, 1, 3, 3), arr(4, 3, 2), True, "T", False),
        *[  # more matrices than rows
            triangular(well(4, 2, 2), arr(4, 2, 3), lower, trans, unit)
            for lower in (True, False)
            for trans in (0, "T", "C")
            for unit in (True, False)
        ],
        triangular(well(3, 3), arr(3, 0), True, 0, False),
        triangular(arr(0, 3, 3), arr(0, 3, 1), True, 0, False),
        Case(
            lambda a, b: dg.linalg.triangular_solve(a, b),
            (well(3, 3), arr(3, 2)),
            lambda a, b: scipy.linalg.solve_triangular(a, b, lower=True),
        ),
    ],
    "MatrixDeterminant": [
        linalg("det", well(3, 3)),
        linalg("det", well(2, 3, 2, 2)),
        linalg("det", arr(0, 0)),
    ],
    "LogMatrixDeterminant": [
        linalg("slogdet", well(3, 3)),
        linalg("slogdet", well(2, 2, 2) * np.array([1, -1])),
        linalg("slogdet", arr(2, 0, 0)),
    ],
    "MatrixPseudoInverse": [
        linalg("pinv", well(3, 3)),
        linalg("pinv", arr(4, 2)),
        linalg("pinv", arr(2, 4)),
        linalg("pinv", arr(3, 2, 3)),
        linalg("pinv", arr(0, 3)),
    ],
    "Cholesky": [
        both(lambda module, x: module.linalg.cholesky(positive(module, x)), arr(3, 3)),
        both(lambda module, x: module.linalg.cholesky(positive(module, x)), arr(2, 2, 2)),
        both(lambda module, x: module.linalg.cholesky(hermitian(module, x)), well(3, 3) + np.eye(3)),
        both(lambda module, x: module.linalg.cholesky(positive(module, x), upper=True), arr(3, 3)),
        linalg("cholesky", arr(0, 0)),
    ],
    "SelfAdjointEigV2": [
        both(spectral, apart(3, 3)),
        both(spectral, apart(2, 3, 3)),
        both(lambda module, a: spectral(module, a, "U"), apart(3, 3)),
        both(lambda module, a: module.linalg.eigvalsh(hermitian(module, a)), apart(3, 3)),
        both(lambda module, a: module.linalg.eigvalsh(hermitian(module, a), "U"), apart(2, 3, 3)),
        linalg("eigvalsh", arr(0, 2, 2)),
    ],
    "Qr": [
        linalg("qr", arr(3, 3)),
        linalg("qr", arr(4, 2)),
        linalg("qr", arr(2, 4)),
        linalg("qr", arr(2, 3, 2)),
        linalg("qr", arr(3, 2), mode="r"),
        Case(lambda a: dg.linalg.qr(a, "complete"), (arr(4, 2),), lambda a: np.linalg.qr(a, "complete"), order=0),
        linalg("qr", arr(0, 3, 2)),
    ],
    "Svd": [
        both(singular, apart(3, 3)),
        both(singular, apart(4, 2)),
        both(singular, apart(2, 4)),
        both(singular, apart(2, 3, 2)),
        linalg("svd", apart(3, 2), compute_uv=False),
        linalg("svdvals", apart(2, 2, 3)),
        linalg("svd", arr(0, 2, 3), full_matrices=False),
        Case(lambda a: dg.linalg.svd(a), (arr(4, 2),), lambda a: np.linalg.svd(a), order=0),
        norm(3, 2, ord=2),
        norm(3, 2, ord=-2),
        norm(2, 3, 4, ord="nuc", axis=(1, 2)),
        norm(2, 3, 4, ord="nuc", axis=(2, 0), keepdims=True),
    ],
}
