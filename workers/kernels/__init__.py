"""The kernels of ops: a table from op type to a function `kernel(xp, *inputs, **attrs)`.

`xp` is the array namespace (NumPy, or anything that follows the Python Array API). One file per family, mirroring
`distgrad/ops/`; importing this package fills the table.
"""

from __future__ import annotations

from distgrad.workers.kernels import array, control, conv, fft, files, index, linalg, math, matmul, nn, random, reduce
from distgrad.workers.kernels.table import KERNELS, KERNELS_OF, kernel, lookup

__all__ = [
    "KERNELS", "KERNELS_OF", "array", "control", "conv", "fft", "files", "index", "kernel", "linalg", "lookup", "math",
    "matmul", "nn", "random", "reduce",
]  # fmt: skip
