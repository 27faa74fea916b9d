"""Probes: digests of results on fixed inputs, which differ between different kernels. They take a few milliseconds.

They supplement what libraries report about themselves. Equal digests do not prove that two libraries are equal, but
different digests prove that they differ.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

#: Elements per array: several of the widest vectors, and a remainder.
_COUNT = 77
_FLOATS = ("f4", "f8")
_ALL = ("f4", "f8", "c8", "c16")
#: Rows, depth and columns of products: small ones, long sums, edges of blocks, a vector on either side.
_PRODUCTS = ((3, 5, 2), (17, 300, 9), (64, 64, 64), (1, 129, 33), (33, 129, 1), (37, 70, 101))

#: Functions of the C library. Variants with and without fused multiply-add differ in one result of a thousand, which
#: takes thousands of results to see.
_LIBM: tuple[Callable[[float], float], ...] = (
    math.sin, math.cos, math.exp, math.expm1, math.sinh, math.cosh, math.erfc, math.gamma, math.atan, math.log1p,
)  # fmt: skip
#: Arguments of each function: enough to meet that one result, at a cost of milliseconds.
_ARGUMENTS = 2500
_UNARY: tuple[Any, ...] = (
    np.sin, np.cos, np.tan, np.exp, np.exp2, np.expm1, np.log1p, np.log, np.log2, np.log10, np.sqrt, np.cbrt, np.arctan,
    np.sinh, np.cosh, np.tanh, np.arcsinh, np.arcsin, np.arccos, np.arctanh, np.reciprocal,
)  # fmt: skip
_COMPLEX: tuple[Any, ...] = (np.sin, np.exp, np.log, np.sqrt, np.tanh, np.square, np.reciprocal, np.absolute)
_BINARY: tuple[Any, ...] = (np.power, np.arctan2, np.hypot, np.divide, np.multiply, np.logaddexp, np.fmod)


def numbers(count: int, dtype: str = "f8", seed: int = 1) -> Array:
    """Numbers in (0, 1) that are exact in float32, hence the same on every machine."""
    drawn = (np.arange(seed, seed + count, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(40)
    x = (drawn.astype(np.float64) + 0.5) * 2.0**-24
    made: Array = x.astype(dtype)
    return made if made.dtype.kind == "f" else (made + 1j * made[::-1]).astype(dtype)


def libm() -> str:
    """Digest of the C library's functions, called through Python's `math`."""
    xs = (numbers(_ARGUMENTS) * 8.0).tolist()
    found = [value for f in _LIBM for value in map(f, xs)]
    found += [math.pow(x, 1.7) for x in xs]
    return digest([np.array(found)])


def loops() -> str:
    """Digest of NumPy's own loops: elementwise functions and sums."""
    return digest(_loops())


def _loops() -> Iterable[Array]:
    for dtype in _FLOATS:
        x, y = numbers(_COUNT, dtype), numbers(_COUNT, dtype, 1000)
        yield from [f(x) for f in _UNARY]
        yield from [f(x * 9, y) for f in _BINARY]
        yield np.sin(x * np.asarray(1e4, dtype))
    yield np.exp(numbers(_COUNT, "f2"))
    for dtype in _ALL[2:]:
        z = numbers(_COUNT, dtype)
        yield from [f(z) for f in _COMPLEX]
        yield z * z[::-1]
        yield z / z[::-1]
    for dtype in _ALL:
        table = numbers(39 * _COUNT, dtype).reshape(39, _COUNT)
        yield from (table.sum(), table.sum(0), table.sum(1), table.var(0), np.einsum("ij,ij->i", table, table))
        yield from (np.cumsum(table, 1), table.prod(1), np.add.reduceat(table[0], [0, 30]))


def products() -> str:
    """Digest of BLAS and LAPACK."""
    return digest(_products())


def _products() -> Iterable[Array]:
    for dtype in _ALL:
        for m, k, n in _PRODUCTS:
            a, b = numbers(m * k, dtype).reshape(m, k) - 0.5, numbers(k * n, dtype, 99).reshape(k, n) - 0.5
            yield a @ b
            yield a.T.copy().T @ b.T.copy().T
            yield a @ a.T
            yield np.dot(a[0], b[:, 0])
        square = numbers(24 * 24, dtype).reshape(24, 24)
        solid = square @ square.conj().T + 24 * np.eye(24, dtype=dtype)
        yield from (np.linalg.inv(solid), np.linalg.cholesky(solid), np.linalg.qr(square)[1])
        yield from (np.linalg.eigvalsh(solid), np.linalg.svd(square, compute_uv=False))


def digest(results: Iterable[Any]) -> str:
    """Digest of the bytes of all results. All NaNs count as equal, whatever their payload."""
    hasher = hashlib.sha256()
    for x in results:
        hasher.update(np.where(np.isnan(x), np.zeros_like(x), x).tobytes())
    return hasher.hexdigest()[:16]


PROBES: dict[str, Callable[[], str]] = {"libm": libm, "loops": loops, "products": products}
