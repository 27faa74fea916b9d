"""Rows for public functions composed of other ops, keyed by the name under `distgrad` instead of an op type."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.special

import distgrad as dg
from distgrad import linalg, nn

from . import fft, samples
from .case import Case, arr, same_name
from .math import away, flat, unary
from .matmul import einsum
from .random import KEY, philox

I = np.array
BOOLS = np.array([[True, False, True], [False, False, True]])
#: NaN only where the gradient is zero: in the middle of each row.
GAPS = np.where([False, True, False], np.nan, arr(2, 3))


def of_list(f: Any, reference: Any, *inputs: Any) -> Case:
    """A function that takes one list of arrays."""
    return Case(lambda *xs: f(xs), inputs, lambda *xs: reference(xs), complex=True)


def linspace(start: Any, stop: Any, order: int = 2, **options: Any) -> Case:
    return Case(
        lambda a, b: dg.linspace(a, b, **options),
        (start, stop),
        lambda a, b: np.linspace(a, b, **options),
        order,
        complex=order > 0,
    )


def one_hot(indices: Any, depth: int, **options: Any) -> Any:
    return (np.asarray(indices)[..., None] == np.arange(depth)).astype(options.get("dtype", float))


def hot_case(indices: Any, depth: int, **options: Any) -> Case:
    return Case(
        lambda i: dg.one_hot(i, depth, **options), (indices,), lambda i: one_hot(i, depth, **options), order=0
    )


def trapezoid(x: Any, y: Any, **options: Any) -> Case:
    return Case(
        lambda y, x: dg.trapezoid(y, x, **options), (y, x), lambda y, x: np.trapezoid(y, x, **options), complex=True
    )


def average(a: Any, weights: Any, **options: Any) -> Case:
    return Case(
        lambda a, w: dg.average(a, weights=w, **options),
        (a, weights),
        lambda a, w: np.average(a, weights=w, **options),
        complex=True,
    )


def dropped(key: Any, x: Any, rate: float) -> Any:
    return np.where(philox(key).random(x.shape, np.float32) >= rate, x / (1 - rate), 0)


def dropout(x: Any, rate: float, training: bool = True) -> Case:
    return Case(
        lambda key, x: nn.dropout(x, rate, key, training),
        (KEY, x),
        lambda key, x: dropped(key, x, rate) if training else x,
    )


def embedding(table: Any, ids: Any) -> Case:
    return Case(lambda t, i: nn.embedding(t, i), (table, I(ids, dtype=int)), lambda t, i: t[i], complex=True)


CASES: dict[str, list[Case]] = {
    **samples.COMPOSED,
    **fft.COMPOSED,
    "einsum": [
        einsum("ij->ji", arr(2, 3)),
        einsum("ba", arr(2, 3)),
        einsum("ii->i", arr(3, 3)),
        einsum("ii->i", arr(0, 0)),
        einsum("...i->i...", arr(2, 3, 4)),
        einsum("...", arr(2, 3)),
    ],
    # shapes
    "column_stack": [
        of_list(dg.column_stack, np.column_stack, arr(3), arr(3, 2), arr(3, seed=1)),
        of_list(dg.column_stack, np.column_stack, arr(), arr(1, 2)),
        of_list(dg.column_stack, np.column_stack, arr(0), arr(0, 2)),
    ],
    "dstack": [
        of_list(dg.dstack, np.dstack, arr(2, 3), arr(2, 3, 2)),
        of_list(dg.dstack, np.dstack, arr(3), arr(3, seed=1)),
        of_list(dg.dstack, np.dstack, arr(), arr(seed=1)),
        of_list(dg.dstack, np.dstack, arr(0, 3), arr(0, 3)),
    ],
    "broadcast_arrays": [
        same_name("broadcast_arrays", arr(2, 1), arr(3), arr()),
        same_name("broadcast_arrays", arr(0, 1), arr(3)),
    ],
    "rot90": [
        *[same_name("rot90", arr(2, 3), k=k) for k in (-1, 0, 1, 2, 3)],
        same_name("rot90", arr(2, 3, 4), axes=(2, -2)),
        same_name("rot90", arr(0, 3)),
    ],
    # ranges and constants
    "arange": [
        Case(lambda: dg.arange(4), (), lambda: np.arange(4), order=0),
        Case(lambda: dg.arange(1, 3, 0.5), (), lambda: np.arange(1, 3, 0.5), order=0),
        Case(lambda: dg.arange(3, 3, dtype="int8"), (), lambda: np.arange(3, 3, dtype="int8"), order=0),
    ],
    "linspace": [
        linspace(arr(), arr(seed=1), num=5),
        linspace(arr() * 0 + 2.0, arr() * 0 + 7.0, num=4),
        linspace(arr(2, 1), arr(3), num=4),
        linspace(arr(2), arr(2, seed=1), num=4, endpoint=False),
        linspace(arr(0, 2), arr(2), num=3),
        linspace(arr(), arr(seed=1), num=0),
        linspace(arr(), arr(seed=1), num=1),
        linspace(I(2), I(7), num=4, order=0),
        linspace(arr(), arr(seed=1), num=4, dtype="int64", order=0),
        Case(lambda: dg.linspace(0, 1, 4), (), lambda: np.linspace(0, 1, 4), order=0),
    ],
    "zeros": [
        Case(lambda: dg.zeros((2, 3)), (), lambda: np.zeros((2, 3)), order=0),
        Case(lambda: dg.zeros((), "int8"), (), lambda: np.zeros((), "int8"), order=0),
        Case(lambda: dg.zeros((0, 2)), (), lambda: np.zeros((0, 2)), order=0),
    ],
    "full_like": [
        Case(lambda x: dg.full_like(x, 7), (arr(2, 3),), lambda x: np.full_like(x, 7), order=0),
        Case(dg.full_like, (np.zeros((2, 3)), arr(3)), np.full_like),
        Case(dg.full_like, (np.zeros((0, 3)), arr(3)), np.full_like),
        Case(dg.full_like, (arr(), arr(seed=1)), np.full_like),
        Case(lambda x: dg.full_like(x, 2.5, "int32"), (arr(2),), lambda x: np.full_like(x, 2.5, "int32"), order=0),
    ],
    "one_hot": [
        hot_case(I([[0, 2], [-1, 3]]), 3),
        hot_case(I(1), 3, dtype="int32"),
        hot_case(np.zeros((0, 2), int), 3),
        hot_case(I([0, 0]), 0),
    ],
    # elementwise
    "positive": unary(dg.positive, np.positive),
    "deg2rad": [*unary(dg.deg2rad, np.deg2rad, complex=False), *flat(dg.deg2rad, np.deg2rad, I([90, 180]))],
    "rad2deg": [*unary(dg.rad2deg, np.rad2deg, complex=False), *flat(dg.rad2deg, np.rad2deg, I([1, 2]))],
    # reductions and differences
    "average": [
        same_name("average", arr(2, 3, 4), axis=1),
        same_name("average", arr()),
        average(arr(2, 3), arr(2, 3, low=0.5)),
        average(arr(2, 3), arr(3, low=0.5), axis=-1, keepdims=True),
        average(arr(2, 3, 4), arr(4, 2, low=0.5), axis=(2, 0)),
        average(arr(0, 3), arr(3, low=0.5), axis=1),
        average(arr(), arr(low=0.5)),
    ],
    "nansum": [
        same_name("nansum", arr(2, 3), axis=-1, keepdims=True),
        same_name("nansum", arr()),
        same_name("nansum", np.zeros((0, 3)), axis=0),
        *flat(dg.nansum, np.nansum, GAPS, I([[1, 2]])),
    ],
    "nanmean": [
        same_name("nanmean", arr(2, 3), axis=-1, keepdims=True),
        same_name("nanmean", arr()),
        same_name("nanmean", np.zeros((0, 3)), axis=1),
        *flat(dg.nanmean, np.nanmean, GAPS, I([[1, 2]])),
    ],
    "trapezoid": [
        same_name("trapezoid", arr(2, 4)),
        same_name("trapezoid", arr(3, 2), dx=0.5, axis=0),
        same_name("trapezoid", arr(1)),
        same_name("trapezoid", arr(0, 3)),
        trapezoid(arr(4), arr(2, 4)),
        trapezoid(arr(3), arr(2, 3, 4), axis=1),
        trapezoid(arr(3, 2), arr(3, 2, seed=1), axis=0),
    ],
    "diff": [
        same_name("diff", arr(2, 4)),
        same_name("diff", arr(4, 2), n=2, axis=0),
        same_name("diff", arr(3), n=0),
        same_name("diff", arr(2), n=2),
        same_name("diff", arr(0, 3)),
        same_name("diff", arr(0)),
        *flat(dg.diff, np.diff, BOOLS, I([3, 1, 4])),
    ],
    # products
    "outer": [
        same_name("outer", arr(2), arr(3)),
        same_name("outer", arr(2, 2), arr(3, 1)),
        same_name("outer", arr(), arr(3)),
        same_name("outer", arr(0), arr(3)),
        Case(linalg.outer, (I([1, 2]), arr(3)), np.linalg.outer, float32=False),
    ],
    "kron": [
        same_name("kron", arr(2, 3), arr(3, 2)),
        same_name("kron", arr(2), arr(2, 1, 3)),
        same_name("kron", arr(), arr(3)),
        same_name("kron", arr(), arr(seed=1)),
        same_name("kron", arr(0, 2), arr(2, 3)),
    ],
    "vecdot": [
        same_name("vecdot", arr(2, 3), arr(3)),
        same_name("vecdot", arr(3, 2), arr(3, 1), axis=0),
        same_name("vecdot", arr(2, 0), arr(2, 0)),
        same_name("linalg.vecdot", arr(0, 3), arr(3)),
    ],
    "cross": [
        same_name("cross", arr(3), arr(3, seed=1)),
        same_name("cross", arr(2, 1, 3), arr(4, 3)),
        same_name("cross", arr(3, 2), arr(3, 2, seed=1), axis=0),
        same_name("cross", arr(2, 3), arr(3, 2), axisb=0, axisc=0),
        same_name("cross", arr(0, 3), arr(3)),
        same_name("linalg.cross", arr(2, 3), arr(2, 3, seed=1)),
    ],
    "linalg.multi_dot": [
        of_list(linalg.multi_dot, np.linalg.multi_dot, arr(2, 3), arr(3, 4), arr(4, 2), arr(2, 3, seed=1)),
        of_list(linalg.multi_dot, np.linalg.multi_dot, arr(3), arr(3, 4), arr(4)),
        of_list(linalg.multi_dot, np.linalg.multi_dot, arr(2, 3), arr(3)),
        of_list(linalg.multi_dot, np.linalg.multi_dot, arr(2, 0), arr(0, 3), arr(3, 2)),
        of_list(linalg.multi_dot, np.linalg.multi_dot, arr(0, 2), arr(2, 3), arr(3, 2)),
    ],
    "linalg.trace": [
        same_name("linalg.trace", arr(2, 3, 4)),
        same_name("linalg.trace", arr(2, 3, 4), offset=-1),
        same_name("linalg.trace", arr(0, 3, 3)),
        same_name("linalg.trace", arr(0, 0)),
    ],
    "linalg.vector_norm": [
        same_name("linalg.vector_norm", arr(2, 3)),
        same_name("linalg.vector_norm", away(2, 3, 4), axis=(0, -1), keepdims=True),
        same_name("linalg.vector_norm", away(2, 3), axis=1, ord=1),
        same_name("linalg.vector_norm", away(2, 3), axis=0, ord=3),
        same_name("linalg.vector_norm", away(2, 3), axis=0, ord=np.inf, complex=False),
        same_name("linalg.vector_norm", np.zeros((0, 3)), axis=1, complex=False),
        same_name("linalg.vector_norm", np.zeros((3, 0)), axis=1, complex=False),
    ],
    "linalg.matrix_norm": [
        same_name("linalg.matrix_norm", arr(2, 3)),
        same_name("linalg.matrix_norm", arr(2, 3, 4), keepdims=True),
        same_name("linalg.matrix_norm", arr(2, 3, 3), ord=1, complex=False),
        same_name("linalg.matrix_norm", arr(2, 3, 3), ord="nuc", complex=False),
        same_name("linalg.matrix_norm", np.zeros((0, 2, 3)), complex=False),
    ],
    # networks
    "nn.silu": unary(nn.silu, lambda x: x * scipy.special.expit(x), complex=False),
    "nn.embedding": [
        embedding(arr(4, 2), [1, 3, 1]),
        embedding(arr(4, 2), [[1, -1], [0, 0]]),
        embedding(arr(4), 2),
        embedding(arr(4, 2), []),
        embedding(arr(4, 0), [1, 1]),
    ],
    "nn.dropout": [
        dropout(arr(4, 5), 0.25),
        dropout(arr(), 0.5),
        dropout(arr(0, 3), 0.5),
        dropout(arr(2, 3), 0.0),
        dropout(arr(2, 3), 0.5, training=False),
    ],
}
