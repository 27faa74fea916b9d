"""NumPy's own matrix products by address, for native code that calls them without Python.

NumPy's wheels bring OpenBLAS as a library of their own, beside that of SciPy: bits would differ with any other. Where
the functions are not found, or do not give the bits of `np.matmul`, products are computed through NumPy.
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from distgrad.types import DType
from distgrad.workers.blas import libraries

#: Names of the function in OpenBLAS' builds, with the bits of its integers; `{}` stands for the letter of the dtype.
NAMES = (("scipy_cblas_{}gemm64_", 64), ("cblas_{}gemm64_", 64), ("scipy_cblas_{}gemm", 32), ("cblas_{}gemm", 32))
_LETTERS = {"f": "s", "d": "d"}
#: CBLAS' numbers for: rows are contiguous; a matrix is taken as it is; it is transposed.
ROWS, PLAIN, TRANSPOSED = 101, 111, 112


class Gemm(NamedTuple):
    """The address of a function, and the bits of its integers."""

    address: int
    bits: int


@cache
def gemm(dtype: DType) -> Gemm | None:
    """The function that NumPy multiplies matrices of this dtype with; None where it is not known."""
    letter = _LETTERS.get(dtype.char)
    found = None if letter is None else _found(letter)
    return found if found is not None and _has_bits_of_numpy(found, dtype) else None


def _found(letter: str) -> Gemm | None:
    for path in [str(lib.filepath) for lib in libraries()]:
        if not _is_numpys(Path(path)):
            continue
        library = ctypes.CDLL(path)
        for name, bits in NAMES:
            function = getattr(library, name.format(letter), None)
            if function is not None:
                return Gemm(ctypes.cast(function, ctypes.c_void_p).value or 0, bits)
    return None


def _is_numpys(path: Path) -> bool:
    """Whether a library is the one that NumPy's wheel brings."""
    package = Path(np.__file__).resolve().parent
    return package.with_name("numpy.libs") in path.resolve().parents or package in path.resolve().parents


def _has_bits_of_numpy(found: Gemm, dtype: DType) -> bool:
    """Whether the function gives the bits of `np.matmul` for one product."""
    integer = ctypes.c_int64 if found.bits == 64 else ctypes.c_int32
    real = ctypes.c_float if dtype.char == "f" else ctypes.c_double
    sizes, matrix = [ctypes.c_int32] * 3 + [integer] * 3, [ctypes.c_void_p, integer]
    function = ctypes.CFUNCTYPE(None, *sizes, real, *matrix, *matrix, real, *matrix)(found.address)
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(shape).astype(dtype) for shape in ((37, 53), (53, 29)))
    made = np.full((37, 29), np.nan, dtype)
    (m, n), k = made.shape, a.shape[1]
    function(ROWS, PLAIN, PLAIN, m, n, k, 1, _at(a), k, _at(b), n, 0, _at(made), n)
    return bool((made == np.matmul(a, b)).all())


def _at(x: Any) -> int:
    return int(x.__array_interface__["data"][0])
