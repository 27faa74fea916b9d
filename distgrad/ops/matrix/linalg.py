"""Linear algebra, with NumPy's names and rules: `distgrad.linalg`.

Every function accepts stacks of matrices. The functions here are composed of other ops; inverses and solvers are in
solve.py, factorizations in factor.py.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from distgrad.graph import Tensor
from distgrad.ops import array, reduce
from distgrad.ops.array import broadcast_to, eye, moveaxis, reshape
from distgrad.ops.builder import as_dtype, cast, common, typed
from distgrad.ops.control import identity
from distgrad.ops.guard import guard_all
from distgrad.ops.math import abs, imag, not_equal, power, real, sqrt, square
from distgrad.ops.matrix.factor import cholesky, eigh, eigvalsh, qr, svd, svdvals
from distgrad.ops.matrix.matmul import cross, matmul, outer, vecdot
from distgrad.ops.matrix.solve import det, inv, pinv, slogdet, solve, triangular_solve
from distgrad.types import FLOAT, brief, normalize_axes, normalize_axis, real_dtype, reduced_shape

# -- norm --------------------------------------------------------------------------------------------------------


def norm(x: Any, ord: Any = None, axis: Any = None, keepdims: bool = False, name: str | None = None) -> Tensor:
    """NumPy's norms of vectors (one axis) and matrices (two axes).

    The gradient of a norm of zeros is zero, not NaN: the smallest subgradient.

    >>> norm(np.array([3.0, 4.0]))
    array(5.)
    """
    x = _floating(x)
    if axis is None and ord is None:
        return _named(_euclidean(x, tuple(range(len(x.shape))), keepdims), name)
    axes = _norm_axes(x, ord, axis)
    if len(axes) == 1:
        return _named(_vector_norm(x, ord, axes, keepdims), name)
    made = _matrix_norm(moveaxis(x, axes, (-2, -1)), ord)
    return _named(reshape(made, reduced_shape(x.shape, axes, True)) if keepdims else made, name)


def vector_norm(
    x: Any, axis: Any = None, keepdims: bool = False, ord: Any = 2, name: str | None = None
) -> Tensor:
    """The norm of vectors along one axis, several, or all.

    >>> vector_norm(np.array([[3.0, 0.0], [0.0, 4.0]]))
    array(5.)
    """
    x = _floating(x)
    return _named(_vector_norm(x, ord, normalize_axes(axis, len(x.shape)), keepdims), name)


def matrix_norm(x: Any, keepdims: bool = False, ord: Any = "fro", name: str | None = None) -> Tensor:
    """The norm of the matrices in the last two axes.

    >>> matrix_norm(np.array([[3.0, 0.0], [0.0, 4.0]]), ord=2)
    array(4.)
    """
    return norm(x, ord, (-2, -1), keepdims, name=name)


def _floating(x: Any) -> Any:
    x = typed(x)
    return as_dtype(x, FLOAT) if x.dtype.kind in "biu" else x


def _norm_axes(x: Any, ord: Any, axis: Any) -> tuple[int, ...]:
    """The one axis of a vector norm, or the axes of rows and columns of a matrix norm."""
    ndim = len(x.shape)
    if axis is None:
        if ndim not in (1, 2):
            raise ValueError(
                f"norm: ord={brief(ord)} of an array of shape {list(x.shape)} needs axis=, one axis or two"
            )
        return tuple(range(ndim))
    axes = tuple(normalize_axis(i, ndim) for i in (axis if isinstance(axis, Sequence) else (axis,)))
    normalize_axes(axes, ndim)  # raises for duplicate axes
    if len(axes) not in (1, 2):
        raise ValueError(f"norm: axis={brief(axis)} has {len(axes)} axes; a norm takes one or two")
    return axes


def _named(x: Tensor, name: str | None) -> Tensor:
    made: Tensor = x if name is None else identity(x, name=name)
    return made


def _euclidean(x: Any, axes: tuple[int, ...], keepdims: bool) -> Tensor:
    squares = square(real(x)) + square(imag(x)) if x.dtype.kind == "c" else square(x)
    return reduce.where_nonzero(sqrt, reduce.sum(squares, axis=axes, keepdims=keepdims))


def _vector_norm(x: Any, ord: Any, axis: tuple[int, ...], keepdims: bool) -> Tensor:
    if ord is None or ord == 2:
        return _euclidean(x, axis, keepdims)
    if isinstance(ord, str) or not isinstance(ord, int | float | np.number):
        raise ValueError(f"norm: ord={brief(ord)} is not a norm of vectors (axis {axis} of shape {list(x.shape)})")
    if ord == 0:
        return reduce.sum(cast(not_equal(x, 0), real_dtype(x.dtype)), axis=axis, keepdims=keepdims)
    sizes = abs(x)
    if math.isinf(ord):
        return (reduce.max if ord > 0 else reduce.min)(sizes, axis=axis, keepdims=keepdims)
    if ord == 1:
        return reduce.sum(sizes, axis=axis, keepdims=keepdims)
    p = float(ord)
    total = reduce.sum(power(sizes, p), axis=axis, keepdims=keepdims)
    if p < 0:
        return power(total, 1 / p)  # zero only for infinite elements
    return reduce.where_nonzero(lambda t: power(t, 1 / p), total)


def _matrix_norm(x: Any, ord: Any) -> Tensor:
    """The norm of each matrix, in the last two axes."""
    if ord is None or ord in ("fro", "f"):
        return _euclidean(x, (len(x.shape) - 2, len(x.shape) - 1), False)
    if ord == "nuc":
        return reduce.sum(svdvals(x), axis=-1)
    if isinstance(ord, str) or ord not in (1, -1, 2, -2, math.inf, -math.inf):
        raise ValueError(
            f"norm: ord={brief(ord)} is not a norm of matrices (two axes of shape {list(x.shape)}); "
            f"those are None, 'fro', 'nuc', 1, -1, 2, -2, inf and -inf"
        )
    largest = reduce.max if ord > 0 else reduce.min
    if ord in (2, -2):
        return largest(svdvals(x), axis=-1)
    return largest(reduce.sum(abs(x), axis=-2 if ord in (1, -1) else -1), axis=-1)


# -- products ----------------------------------------------------------------------------------------------------


def trace(x: Any, offset: int = 0, name: str | None = None) -> Tensor:
    """The sum of a diagonal, per matrix.

    >>> trace(np.array([[1, 2], [3, 4]]))
    array(5)
    """
    x = typed(x)
    if len(x.shape) < 2:
        raise ValueError(f"trace: x must be a matrix or a stack of matrices, got shape {list(x.shape)}")
    return array.trace(x, offset, -2, -1, name=name)


def matrix_power(a: Any, n: int, name: str | None = None) -> Tensor:
    """The n-th power of square matrices, by repeated squaring; for negative n, of the inverse.

    >>> matrix_power(np.array([[1, 1], [0, 1]]), 5)
    array([[1, 5],
           [0, 1]])
    """
    a = typed(a)
    if len(a.shape) < 2 or a.shape[-1] != a.shape[-2]:
        raise np.linalg.LinAlgError(f"matrix_power: the last two axes of a must be equal, got shape {list(a.shape)}")
    try:
        n = operator.index(n)
    except TypeError:
        raise TypeError(f"matrix_power: the exponent must be an integer, got {brief(n)}") from None
    if n.bit_length() > 64:
        raise ValueError(f"matrix_power: the exponent n has more than 64 bits: {brief(n)}")
    if n == 0:
        return broadcast_to(eye(a.shape[-1], dtype=a.dtype), a.shape, name=name)
    a, n = (inv(a), -n) if n < 0 else (a, n)
    made = None
    while n:
        if n & 1:
            made = a if made is None else matmul(made, a)
        n >>= 1
        a = matmul(a, a) if n else a
    return _named(made, name)  # type: ignore[arg-type]


def multi_dot(arrays: Sequence[Any], name: str | None = None) -> Tensor:
    """The product of several matrices (the first and last may be vectors), in the order with the fewest operations.

    >>> multi_dot([np.ones((2, 100)), np.ones((100, 3)), np.ones(3)])
    array([300., 300.])
    """
    xs = common(*arrays)
    if len(xs) < 2:
        raise ValueError(f"multi_dot: at least two arrays are needed, got {len(xs)}")
    shapes = [tuple(x.shape) for x in xs]
    for i, shape in enumerate(shapes):
        if len(shape) != 2 and not (len(shape) == 1 and i in (0, len(xs) - 1)):
            raise np.linalg.LinAlgError(f"multi_dot: array {i} must be a matrix, got shape {list(shape)}")
    row, column = len(shapes[0]) == 1, len(shapes[-1]) == 1
    sizes = [1 if row else shapes[0][0], *(s[0] for s in shapes[1:]), 1 if column else shapes[-1][1]]
    return _in_order(list(xs), _best_order(sizes), name)


def _best_order(sizes: Sequence[int]) -> list[int]:
    """The best order of products of a chain of matrices of sizes[i] x sizes[i + 1], as gaps between them."""
    count = len(sizes) - 1
    best: dict[tuple[int, int], tuple[int, list[int]]] = {(i, i + 1): (0, []) for i in range(count)}
    for length in range(2, count + 1):
        for i in range(count - length + 1):
            j = i + length
            options = []
            for k in range(i + 1, j):
                (left, first), (right, second) = best[i, k], best[k, j]
                options.append((left + right + sizes[i] * sizes[k] * sizes[j], [*first, *second, k]))
            best[i, j] = min(options, key=operator.itemgetter(0))
    return best[0, count][1]


def _in_order(xs: list[Any], gaps: Sequence[int], name: str | None) -> Tensor:
    starts = list(range(len(xs)))
    for gap in gaps:
        i = starts.index(gap)
        xs[i - 1 : i + 1] = [matmul(xs[i - 1], xs[i], name=name if len(xs) == 2 else None)]
        del starts[i]
    made: Tensor = xs[0]
    return made


__all__ = [
    "cholesky", "cross", "det", "eigh", "eigvalsh", "inv", "matrix_norm", "matrix_power", "multi_dot", "norm", "outer",
    "pinv", "qr", "slogdet", "solve", "svd", "svdvals", "trace", "triangular_solve", "vecdot", "vector_norm",
]  # fmt: skip
guard_all(globals(), __all__)
