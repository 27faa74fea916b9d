"""Kernels of distgrad/ops/matrix/matmul.py and distgrad/ops/matrix/einsum.py."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from distgrad.workers.backends import extras
from distgrad.workers.kernels.products import product as matrix_product
from distgrad.workers.kernels.table import kernel


@kernel("MatMul", single=True, blas=True)
def matmul(xp: Any, a: Any, b: Any, *, transpose_a: bool, transpose_b: bool) -> Any:
    a = xp.matrix_transpose(a) if transpose_a else a
    b = xp.matrix_transpose(b) if transpose_b else b
    product = matrix_product if xp is np else extras(xp).function("matmul")
    if b.ndim == 2 < a.ndim and not transpose_a:  # one large product is faster than a batch of small ones
        rows = xp.reshape(a, (math.prod(a.shape[:-1]), a.shape[-1]))
        return xp.reshape(product(rows, b), (*a.shape[:-1], b.shape[-1]))
    return product(a, b)


# -- einsum: transpositions, sums and batched products, which BLAS computes -------------------------------------


@kernel("Einsum", single=True, blas=True)
def einsum(xp: Any, *operands: Any, equation: str) -> Any:
    inputs, output = equation.split("->")
    terms = inputs.split(",")
    wanted = "".join(dict.fromkeys(output))
    work = []
    for i, (x, term) in enumerate(zip(operands, terms, strict=True)):
        work.append(_alone(xp, x, term, wanted + "".join(terms[:i] + terms[i + 1 :])))
    made = _permuted(xp, *work[0], wanted) if len(work) == 1 else _pair(xp, *work[0], *work[1], wanted)
    return _on_diagonals(xp, made, wanted, output)


def _alone(xp: Any, x: Any, term: str, wanted: str) -> tuple[Any, str]:
    """The operand after taking diagonals and summing over labels that occur nowhere else."""
    for c in dict.fromkeys(term):
        while term.count(c) > 1:
            i = term.index(c)
            j = term.index(c, i + 1)
            term = term[:i] + term[i + 1 : j] + term[j + 1 :] + c
            x = xp.linalg.diagonal(xp.moveaxis(x, (i, j), (-2, -1)))
    summed = tuple(i for i, c in enumerate(term) if c not in wanted)
    return _sum(xp, x, summed), "".join([c for c in term if c in wanted])


def _sum(xp: Any, x: Any, axes: tuple[int, ...]) -> Any:
    if not axes:
        return x
    return xp.any(x, axis=axes) if x.dtype == xp.bool else xp.sum(x, axis=axes, dtype=x.dtype)


def _permuted(xp: Any, x: Any, term: str, order: Sequence[str]) -> Any:
    return xp.permute_dims(x, tuple(term.index(c) for c in order))


def _pair(xp: Any, x: Any, a: str, y: Any, b: str, output: str) -> Any:
    """The product of two operands, summed over common labels that are not in the output."""
    summed = [c for c in a if c in b and c not in output]
    if not summed:
        return xp.multiply(_laid_out(xp, x, a, output), _laid_out(xp, y, b, output))
    batch = [c for c in output if c in a and c in b]
    left = [c for c in output if c not in b]
    right = [c for c in output if c not in a]
    product = matrix_product if xp is np else extras(xp).function("matmul")
    made = product(_matrices(xp, x, a, batch, left, summed), _matrices(xp, y, b, batch, summed, right))
    sizes = dict(zip(a + b, (*x.shape, *y.shape), strict=True))
    order = [*batch, *left, *right]
    return _permuted(xp, xp.reshape(made, tuple(sizes[c] for c in order)), "".join(order), output)


def _laid_out(xp: Any, x: Any, term: str, output: str) -> Any:
    """x with the axes of the output in order; missing ones have size 1."""
    size = dict(zip(term, x.shape, strict=True))
    permuted = _permuted(xp, x, term, [c for c in output if c in term])
    return xp.reshape(permuted, tuple(size.get(c, 1) for c in output))


def _matrices(xp: Any, x: Any, term: str, batch: list[str], rows: list[str], columns: list[str]) -> Any:
    size = dict(zip(term, x.shape, strict=True))
    shape = (*[size[c] for c in batch], math.prod([size[c] for c in rows]), math.prod([size[c] for c in columns]))
    return _for_blas(xp, xp.reshape(_permuted(xp, x, term, [*batch, *rows, *columns]), shape))


def _for_blas(xp: Any, x: Any) -> Any:
    """A copy if NumPy would not use BLAS: neither rows nor columns of the matrices are contiguous."""
    strides = getattr(x, "strides", None)
    if strides is None or x.dtype.itemsize in strides[-2:]:
        return x
    return xp.ascontiguousarray(x)


def _on_diagonals(xp: Any, x: Any, term: str, output: str) -> Any:
    """x with each repeated label of the output along a diagonal, and zeros elsewhere."""
    for c in dict.fromkeys(output):
        for _ in range(output.count(c) - 1):
            x = xp.moveaxis(x, term.index(c), -1)[..., None]
            x = xp.where(xp.eye(x.shape[-2], dtype=xp.bool), x, xp.zeros_like(x))
            term = term.replace(c, "", 1) + c + c
    free = list(term)
    order = []
    for c in output:
        order.append(free.index(c))
        free[order[-1]] = ""
    return xp.permute_dims(x, tuple(order))
