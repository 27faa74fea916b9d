"""Covariances, histograms, and other statistics of samples."""

from __future__ import annotations

import builtins
import warnings
from typing import Any

import numpy as np

from distgrad.graph import Tensor
from distgrad.ops.array import atleast_2d, concatenate, diag, linspace, reshape, squeeze, transpose
from distgrad.ops.builder import as_dtype, convert, has_tensor, promote, typed
from distgrad.ops.control import identity, ones
from distgrad.ops.guard import guard_all
from distgrad.ops.library.search import counts, searchsorted
from distgrad.ops.math import clip, conj, divide, equal, imag, logical_and, multiply, real, sqrt, subtract, where
from distgrad.ops.matrix.matmul import dot
from distgrad.ops.reduce import average, max, min, sum
from distgrad.ops.scan import diff
from distgrad.types import FLOAT, INT, DType, brief

# -- covariances -------------------------------------------------------------------------------------------------


def cov(
    m: Any,
    y: Any = None,
    rowvar: bool = True,
    bias: bool = False,
    ddof: int | None = None,
    fweights: Any = None,
    aweights: Any = None,
    *,
    dtype: Any = None,
    name: str | None = None,
) -> Tensor:
    """The covariance matrix of variables, one per row (per column unless `rowvar`), with one observation per column.

    Args:
        m: the observations.
        y: more variables, in the form of m.
        rowvar: whether each row is a variable.
        bias: divide by the number of observations N, not N - 1.
        ddof: divide by N - ddof instead.
        fweights: how often each observation occurs.
        aweights: the relative weight of each observation.
        dtype: the dtype of the result, at least float64 by default.
        name: name of the op.

    >>> cov(np.array([[0.0, 1.0, 2.0], [2.0, 1.0, 0.0]]))
    array([[ 1., -1.],
           [-1.,  1.]])
    """
    if ddof is not None and ddof != int(ddof):
        raise ValueError(f"cov: ddof must be an integer, got {brief(ddof)}")
    x = _variables(m, y, rowvar, dtype)
    if not x.shape[0]:
        return np.empty((0, 0))  # type: ignore[return-value]
    weights = _weights(x.shape[1], fweights, aweights)
    less = (0 if bias else 1) if ddof is None else int(ddof)
    off = subtract(x, average(x, 1, weights, keepdims=True))
    other = off if weights is None else multiply(off, weights)
    made = divide(dot(off, conj(transpose(other))), _degrees(x.shape[1], weights, aweights, less))
    return squeeze(made, name=name)


def _variables(m: Any, y: Any, rowvar: bool, dtype: Any) -> Any:
    """The variables as rows of one matrix of floating-point numbers."""
    given = [typed(a) for a in ((m,) if y is None else (m, y))]
    for a in given:
        if len(a.shape) > 2:
            raise ValueError(f"cov: arrays have at most two axes, got shape {list(a.shape)}")
    dtype = np.result_type(*[a.dtype for a in given], FLOAT) if dtype is None else np.dtype(dtype)
    rows = [as_dtype(atleast_2d(a), dtype) for a in given]
    rows = [transpose(x) if not rowvar and len(a.shape) == 2 else x for a, x in zip(given, rows, strict=True)]
    return rows[0] if y is None else concatenate(rows)


def _weights(count: int, fweights: Any, aweights: Any) -> Any:
    """One weight per observation; None if all are equal."""
    made = None
    for what, weights in (("fweights", fweights), ("aweights", aweights)):
        if weights is None:
            continue
        weights = typed(weights)
        if weights.shape != (count,):
            raise ValueError(f"cov: {what} must be a vector of {count} weights, got shape {list(weights.shape)}")
        weights = as_dtype(weights, FLOAT)
        made = weights if made is None else multiply(made, weights)
    return made


def _degrees(count: int, weights: Any, aweights: Any, less: int) -> Any:
    """What sums of products are divided by."""
    if weights is None:
        if count <= less:
            warnings.warn("cov: degrees of freedom <= 0", RuntimeWarning, stacklevel=4)
        return float(builtins.max(count - less, 0))
    total = sum(weights)
    if aweights is None or not less:
        return total - less
    return total - less * sum(weights * as_dtype(typed(aweights), FLOAT)) / total


def corrcoef(x: Any, y: Any = None, rowvar: bool = True, *, dtype: Any = None, name: str | None = None) -> Tensor:
    """The correlation coefficients of variables, one per row (per column unless `rowvar`).

    >>> corrcoef(np.array([[0.0, 1.0, 2.0], [2.0, 1.0, 0.0]]))
    array([[ 1., -1.],
           [-1.,  1.]])
    """
    c = cov(x, y, rowvar, dtype=dtype)
    if not c.shape:
        return divide(c, c, name=name)
    width = sqrt(real(diag(c)))
    c = c / reshape(width, (-1, 1)) / width
    if c.dtype.kind == "c":
        return identity(clip(real(c), -1, 1) + 1j * clip(imag(c), -1, 1), name=name)  # type: ignore[no-any-return]
    return clip(c, -1, 1, name=name)


# -- histograms --------------------------------------------------------------------------------------------------


def histogram(
    a: Any, bins: Any = 10, range: Any = None, density: bool | None = None, weights: Any = None
) -> tuple[Tensor, Tensor]:
    """The number of elements in each bin, and the edges of the bins.

    Counts have a gradient with respect to the weights alone; a density also with respect to the edges.

    Args:
        a: the elements; its shape does not matter.
        bins: the number of equally wide bins, or their edges. The last bin contains both of its edges.
        range: (first, last) edge of equally wide bins, by default the smallest and largest element.
        density: give the density, with integral 1, instead of counts.
        weights: what each element adds, by default 1.

    >>> histogram(np.array([1.0, 2.0, 1.0]), bins=[0, 1, 2, 3])
    (array([0, 2, 1]), array([0, 1, 2, 3]))
    """
    a = typed(a)
    edges = histogram_bin_edges(a, bins, range)
    count = edges.shape[0] - 1
    terms = ones(a.shape, INT) if weights is None else typed(weights)
    if terms.shape != a.shape:
        raise ValueError(f"histogram: weights of shape {list(terms.shape)} do not match a of shape {list(a.shape)}")
    inside = logical_and(a >= edges[0], a <= edges[count])
    place = searchsorted(edges, a, "right") - 1
    made = counts(terms, where(equal(place, count), count - 1, place), inside, count)
    if not density:
        return made, edges
    made, width = promote(np.true_divide, made, diff(edges))
    return made / width / sum(made), edges


def histogram_bin_edges(a: Any, bins: Any = 10, range: Any = None, weights: Any = None) -> Tensor:
    """The edges of the bins of `histogram`.

    >>> histogram_bin_edges(np.array([0.0, 4.0]), 4)
    array([0., 1., 2., 3., 4.])
    """
    if isinstance(bins, str):
        raise TypeError(f"histogram: with bins={bins!r} the number of bins depends on data; give a number, or edges")
    if np.ndim(bins) if not has_tensor(bins) else typed(bins).shape:
        return convert(_edges(typed(bins)))
    count = _number(bins)
    a = typed(a)
    dtype = a.dtype if a.dtype.kind == "f" else FLOAT
    if range is None:
        return linspace(*_ends(a, dtype), count + 1, dtype=dtype)
    first, last = range
    if not has_tensor((first, last)):
        if first > last:
            raise ValueError(f"histogram: the largest edge must not be below the smallest, got range={brief(range)}")
        first, last = (first - 0.5, last + 0.5) if first == last else (first, last)
    return linspace(first, last, count + 1, dtype=dtype)


def _edges(bins: Any) -> Any:
    if len(bins.shape) != 1:
        raise ValueError(f"histogram: bins must be a number or a vector of edges, got shape {list(bins.shape)}")
    if not isinstance(bins, Tensor) and (np.diff(bins) < 0).any():
        raise ValueError("histogram: edges must increase monotonically")
    return bins


def _number(bins: Any) -> int:
    if has_tensor(bins):
        raise TypeError(
            "histogram: the number of bins must be a Python int: as a tensor, the shape would depend on data"
        )
    if bins != int(bins) or bins < 1:
        raise ValueError(f"histogram: the number of bins must be a positive integer, got {brief(bins)}")
    return int(bins)


def _ends(a: Any, dtype: DType) -> tuple[Any, Any]:
    """The smallest and the largest element; for equal ones, half a unit around them."""
    if 0 in a.shape:
        return 0.0, 1.0
    first, last = as_dtype(min(a), dtype), as_dtype(max(a), dtype)
    around = where(equal(first, last), 0.5, 0.0)
    return first - around, last + around


__all__ = ["corrcoef", "cov", "histogram", "histogram_bin_edges"]
guard_all(globals(), __all__)
