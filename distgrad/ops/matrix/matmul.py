"""Matrix products: matmul, dot, tensordot and the like. Re-exports `einsum`.

MatMul is a batched matrix product with transposes as flags, so that its gradients are MatMuls too and no transposes are
recorded.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from distgrad.graph import Operation, Tensor
from distgrad.ops.array import moveaxis, reshape, stack, unstack
from distgrad.ops.builder import common, make, promote
from distgrad.ops.guard import guard_all
from distgrad.ops.math import conj, multiply
from distgrad.ops.matrix.einsum import einsum, label, sum_product
from distgrad.registry import Kind, RegisterGradient, define
from distgrad.types import DType, Shape, Typed, as_int, brief, broadcast_shapes, normalize_axis, size_of

# -- matmul ------------------------------------------------------------------------------------------------------


def _matmul_infer(a: Typed, b: Typed, *, transpose_a: bool, transpose_b: bool) -> tuple[Shape, DType]:
    *batch_a, m, k = a.shape
    *batch_b, l, n = b.shape
    if transpose_a:
        m, k = k, m
    if transpose_b:
        l, n = n, l
    if k != l:
        flags = f" (transpose_a={transpose_a}, transpose_b={transpose_b})" if transpose_a or transpose_b else ""
        raise ValueError(
            f"matmul: shapes {list(a.shape)} and {list(b.shape)}{flags} do not match: a has {k} columns, "
            f"but b has {l} rows"
        )
    return (*(batch_a if batch_a == batch_b else batch_shape("matmul", a, b)), m, n), a.dtype


def batch_shape(what: str, a: Typed, b: Typed) -> Shape:
    """The common shape of all axes but the last two."""
    try:
        return broadcast_shapes(tuple(a.shape[:-2]), tuple(b.shape[:-2]))
    except ValueError:
        raise ValueError(
            f"{what}: the leading axes of shapes {list(a.shape)} and {list(b.shape)} cannot be broadcast together"
        ) from None


_matmul = define("MatMul", _matmul_infer, broadcasting=True, kind=Kind.PRODUCT)


def matmul(a: Any, b: Any, transpose_a: bool = False, transpose_b: bool = False, name: str | None = None) -> Tensor:
    """The matrix product, like NumPy's `a @ b`: leading axes are batches and broadcast, a 1-d operand is a vector.

    The flags transpose the last two axes of an operand without a copy.

    >>> matmul(np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([1.0, 10.0]))
    array([21., 43.])
    """
    a, b = promote(np.multiply, a, b)  # np.matmul has no loop for bfloat16
    if len(a.shape) > 1 and len(b.shape) > 1:
        return _product(a, b, bool(transpose_a), bool(transpose_b), name)
    if not a.shape or not b.shape:
        raise ValueError(
            f"matmul: shapes {list(a.shape)} and {list(b.shape)}: each operand needs at least one axis; "
            f"use multiply for a product with a scalar"
        )
    return _vector_product(a, b, bool(transpose_a), bool(transpose_b), name)


def _product(a: Any, b: Any, transpose_a: bool, transpose_b: bool, name: str | None = None) -> Tensor:
    return make(_matmul, (a, b), {"transpose_a": transpose_a, "transpose_b": transpose_b}, name)


def _vector_product(a: Any, b: Any, transpose_a: bool, transpose_b: bool, name: str | None) -> Tensor:
    """Treat a 1-d operand as a row (a) or a column (b), and drop the added axis from the result."""
    row, column = len(a.shape) == 1, len(b.shape) == 1
    if (row and transpose_a) or (column and transpose_b):
        raise ValueError(f"matmul: shapes {list(a.shape)} and {list(b.shape)}: a vector has no axes to transpose")
    if a.shape[-2 if transpose_a else -1] != b.shape[-1 if column or transpose_b else -2]:
        raise ValueError(f"matmul: shapes {list(a.shape)} and {list(b.shape)} do not match: the summed axes differ")
    made = _product(
        reshape(a, (1, *a.shape)) if row else a, reshape(b, (*b.shape, 1)) if column else b, transpose_a, transpose_b
    )
    batch, (m, n) = made.shape[:-2], made.shape[-2:]
    return reshape(made, (*batch, *(() if row else (m,)), *(() if column else (n,))), name=name)


@RegisterGradient("MatMul")
def _matmul_grad(op: Operation, g: Tensor) -> Any:
    a, b = op.inputs
    ta, tb = op.attrs["transpose_a"], op.attrs["transpose_b"]
    ga = _product(conj(b), g, tb, True) if ta else _product(g, conj(b), False, not tb)
    if len(b.shape) == 2 < len(a.shape) and not ta:  # one large product instead of a batch that is summed
        a, g = _rows(a), _rows(g)
    gb = _product(g, conj(a), True, ta) if tb else _product(conj(a), g, not ta, False)
    return ga, gb


def _rows(x: Any) -> Tensor:
    return reshape(x, (size_of(x.shape[:-1]), x.shape[-1]))


# -- other products ----------------------------------------------------------------------------------------------


def dot(a: Any, b: Any, name: str | None = None) -> Tensor:
    """NumPy's dot: the product with a scalar, of vectors or of matrices; otherwise sums over the last axis of a and the
    second to last of b.

    >>> dot(np.array([1.0, 2.0]), np.array([3.0, 4.0]))
    array(11.)
    """
    a, b = common(a, b)
    if not a.shape or not b.shape:
        return multiply(a, b, name=name)
    return matmul(a, b, name=name) if len(b.shape) <= 2 else tensordot(a, b, (-1, -2), name=name)


def vdot(a: Any, b: Any, name: str | None = None) -> Tensor:
    """The dot product of two vectors, the first conjugated; arrays are flattened.

    >>> vdot(np.array([1j]), np.array([1j]))
    array(1.+0.j)
    """
    a, b = common(a, b)
    if size_of(a.shape) != size_of(b.shape):
        raise ValueError(f"vdot: shapes {list(a.shape)} and {list(b.shape)} have different numbers of elements")
    return matmul(_flat(conj(a)), _flat(b), name=name)


def inner(a: Any, b: Any, name: str | None = None) -> Tensor:
    """The sum over the last axes of both operands; with a scalar, the product.

    >>> inner(np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([1.0, 1.0]))
    array([3., 7.])
    """
    a, b = common(a, b)
    if not a.shape or not b.shape:
        return multiply(a, b, name=name)
    if a.shape[-1] != b.shape[-1]:
        raise ValueError(f"inner: the last axes of shapes {list(a.shape)} and {list(b.shape)} differ in size")
    if len(b.shape) == 1:
        return matmul(a, b, name=name)
    return matmul(a, b, transpose_b=True, name=name) if len(b.shape) == 2 else tensordot(a, b, (-1, -1), name=name)


def vecdot(x1: Any, x2: Any, axis: int = -1, name: str | None = None) -> Tensor:
    """The dot products of vectors along an axis, the first conjugated; the other axes broadcast.

    >>> vecdot(np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([1.0, 10.0]))
    array([21., 43.])
    """
    a, b = (x if axis == -1 else moveaxis(x, axis, -1) for x in common(x1, x2))
    if not a.shape or not b.shape or a.shape[-1] != b.shape[-1]:
        raise ValueError(f"vecdot: axis {axis} of shapes {list(a.shape)} and {list(b.shape)} differs in size")
    return einsum("...i,...i->...", conj(a), b, name=name)


def cross(
    a: Any, b: Any, axisa: int = -1, axisb: int = -1, axisc: int = -1, axis: int | None = None, name: str | None = None
) -> Tensor:
    """The cross product of 3-element vectors along an axis; the other axes broadcast.

    >>> cross(np.array([1, 0, 0]), np.array([0, 1, 0]))
    array([0, 0, 1])
    """
    axisa, axisb, axisc = (axisa, axisb, axisc) if axis is None else (axis, axis, axis)
    a, b = promote(np.multiply, a, b)
    a, b = moveaxis(a, axisa, -1), moveaxis(b, axisb, -1)
    if a.shape[-1] != 3 or b.shape[-1] != 3:
        raise ValueError(f"cross: vectors have 3 elements, not {a.shape[-1]} (axisa={axisa}), {b.shape[-1]} ({axisb=})")
    (a1, a2, a3), (b1, b2, b3) = unstack(a, -1), unstack(b, -1)
    made = stack([a2 * b3 - a3 * b2, a3 * b1 - a1 * b3, a1 * b2 - a2 * b1], -1)
    return moveaxis(made, -1, axisc, name=name)


def outer(a: Any, b: Any, name: str | None = None) -> Tensor:
    """The outer product of two vectors; arrays are flattened.

    >>> outer(np.array([1, 2]), np.array([3, 4]))
    array([[3, 4],
           [6, 8]])
    """
    a, b = common(a, b)
    return multiply(reshape(a, (size_of(a.shape), 1)), _flat(b), name=name)


def _flat(x: Any) -> Tensor:
    return reshape(x, (size_of(x.shape),))


def kron(a: Any, b: Any, name: str | None = None) -> Tensor:
    """The Kronecker product: blocks of b scaled by the elements of a.

    >>> kron(np.array([1, 10]), np.array([1, 2]))
    array([ 1,  2, 10, 20])
    """
    a, b = common(a, b)
    ndim = max(len(a.shape), len(b.shape))
    rows = (1,) * (ndim - len(a.shape)) + tuple(a.shape)
    columns = (1,) * (ndim - len(b.shape)) + tuple(b.shape)
    spread = multiply(
        reshape(a, tuple(n for m in rows for n in (m, 1))), reshape(b, tuple(n for m in columns for n in (1, m)))
    )
    return reshape(spread, tuple(m * n for m, n in zip(rows, columns, strict=True)), name=name)


def tensordot(a: Any, b: Any, axes: Any = 2, name: str | None = None) -> Tensor:
    """Sum products over axes: the last `axes` of a and the first of b, or a pair of sequences of axes.

    >>> tensordot(np.ones((2, 3, 4)), np.ones((4, 3, 5)), axes=([1, 2], [1, 0])).shape
    (2, 5)
    """
    a, b = common(a, b)
    axes_a, axes_b = _tensordot_axes(axes, len(a.shape), len(b.shape))
    if [a.shape[i] for i in axes_a] != [b.shape[i] for i in axes_b]:
        raise ValueError(
            f"tensordot: axes {axes_a} of shape {list(a.shape)} and axes {axes_b} of shape {list(b.shape)} differ in "
            f"number or size"
        )
    left, right = range(len(a.shape)), [len(a.shape) + i for i in range(len(b.shape))]
    for i, j in zip(axes_a, axes_b, strict=True):
        right[j] = i
    kept = [*(i for i in left if i not in axes_a), *(j for j in right if j >= len(a.shape))]
    return sum_product([_term(left), _term(right)], _term(kept), (a, b), name)


def _term(labels: Iterable[int]) -> str:
    return "".join(map(label, labels))


def _tensordot_axes(axes: Any, ndim_a: int, ndim_b: int) -> tuple[list[int], list[int]]:
    if isinstance(axes, Sequence) or (isinstance(axes, np.ndarray) and axes.ndim):
        if len(axes) != 2:
            raise ValueError(f"tensordot: axes must be an int or a pair of axes, one per operand; got {brief(axes)}")
        chosen_a, chosen_b = (list(x) if isinstance(x, list | tuple | range | np.ndarray) else [x] for x in axes)
    else:
        count = as_int("tensordot", "axes", axes)
        if not 0 <= count <= min(ndim_a, ndim_b):
            raise ValueError(f"tensordot: axes={count}, but the operands have {ndim_a} and {ndim_b} axes")
        chosen_a, chosen_b = list(range(ndim_a - count, ndim_a)), list(range(count))
    made = [normalize_axis(x, ndim_a) for x in chosen_a], [normalize_axis(x, ndim_b) for x in chosen_b]
    if any(len(set(m)) < len(m) for m in made):
        raise ValueError(f"tensordot: an axis is named twice in axes={brief(axes)}")
    return made


__all__ = ["cross", "dot", "einsum", "inner", "kron", "matmul", "outer", "tensordot", "vdot", "vecdot"]
guard_all(globals(), __all__)
