"""Summing the gradients that reach one tensor: all at once or as a tree, per device, dense or sparse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from distgrad.graph import Tensor
from distgrad.ops.builder import cast, make
from distgrad.ops.control import ADD_N
from distgrad.ops.indexed_slices import IndexedSlices, densify
from distgrad.ops.layout import concatenate
from distgrad.types import INT, brief

Term = Tensor | IndexedSlices


class AggregationMethod:
    """How several gradients of one tensor are summed: all at once, or as a balanced tree of pairs.

    >>> import distgrad as dg
    >>> with dg.Graph() as graph:
    ...     x = dg.constant(1.0)
    ...     g = dg.gradients(x + x + x + x, x, aggregation_method=dg.AggregationMethod.EXPERIMENTAL_TREE)
    >>> [op.type for op in graph.ops].count("AddN")
    3
    """

    ADD_N = 0
    DEFAULT = ADD_N
    EXPERIMENTAL_TREE = 1
    EXPERIMENTAL_ACCUMULATE_N = 2


def summing(method: Any) -> Callable[[list[Term], Tensor], Term]:
    if method is None or method == AggregationMethod.ADD_N:
        return _add_all
    if method in (AggregationMethod.EXPERIMENTAL_TREE, AggregationMethod.EXPERIMENTAL_ACCUMULATE_N):
        return _add_tree
    raise ValueError(
        f"unknown aggregation_method {brief(method)}: "
        f"use AggregationMethod.ADD_N, EXPERIMENTAL_TREE or EXPERIMENTAL_ACCUMULATE_N"
    )


def _add_all(terms: list[Term], t: Tensor) -> Term:
    if any(isinstance(g, IndexedSlices) for g in terms):
        return _add_sparse(terms, t)
    devices = {g.device for g in terms}
    if len(devices) == 1:
        return make(ADD_N, tuple(terms))
    parts = []
    for device in sorted(devices, key=str):
        same = tuple(g for g in terms if g.device == device)
        with t.graph.device(device):
            parts.append(same[0] if len(same) == 1 else make(ADD_N, same))
    return make(ADD_N, tuple(parts))


def _add_tree(terms: list[Term], t: Tensor) -> Term:
    if any(isinstance(g, IndexedSlices) for g in terms):
        return _add_sparse(terms, t)
    t.graph._scope = t.graph.scope_name(f"{t.op.name}_gradient_sum")
    while len(terms) > 1:
        pairs = [tuple(terms[i : i + 2]) for i in range(0, len(terms), 2)]
        terms = [pair[0] if len(pair) == 1 else make(ADD_N, pair) for pair in pairs]
    return terms[0]


def _add_sparse(terms: list[Term], t: Tensor) -> Term:
    """Sparse terms alone stay sparse: their rows are concatenated. One dense term makes the sum dense."""
    sparse = [g for g in terms if isinstance(g, IndexedSlices)]
    if len(sparse) < len(terms):
        missing = next((g for g in sparse if g.dense_shape is None), None)
        if missing is not None:
            raise TypeError(f"cannot add {missing!r} to a dense gradient of {t!r}: it has no dense_shape")
        return _add_all([densify(g) if isinstance(g, IndexedSlices) else g for g in terms], t)
    indices = [g.indices for g in sparse]
    if len({i.dtype for i in indices}) > 1:
        indices = [cast(i, INT) for i in indices]
    return IndexedSlices(concatenate([g.values for g in sparse]), concatenate(indices), sparse[0].dense_shape)
