"""Rows for distgrad/ops/reduce.py, distgrad/ops/scan.py and distgrad/ops/sort.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.special

import distgrad as dg

from .case import Case, apart, arr

INTS = np.array([[-3, 0, 2], [7, 5, -1]])
BOOLS = np.array([[True, False, True], [True, True, True]])
EMPTY = np.zeros((2, 0, 3))
INF = np.inf
#: Every way to name axes of a (2, 3, 4) array.
AXES: Sequence[dict[str, Any]] = (
    {},
    {"axis": 1},
    {"axis": -1, "keepdims": True},
    {"axis": (0, 2)},
    {"axis": (-1, 0), "keepdims": True},
    {"axis": None, "keepdims": True},
    {"axis": ()},
)


def case(f: Any, reference: Any, x: Any, options: dict[str, Any], **more: Any) -> Case:
    return Case(lambda x: f(x, **options), (x,), lambda x: reference(x, **options), **more)


def over_axes(f: Any, reference: Any, make: Any = arr, **more: Any) -> list[Case]:
    """A reduction along every kind of axes, and of a 0-d array."""
    rows = [case(f, reference, make(2, 3, 4), options, **more) for options in AXES]
    return [*rows, case(f, reference, make(), {}, **more)]


def empty(f: Any, reference: Any, order: int = 2) -> list[Case]:
    """A reduction of an empty axis, and one with an empty result."""
    return [case(f, reference, EMPTY, {"axis": axis}, order=order) for axis in (None, 1, 2)]


def along(f: Any, reference: Any, make: Any = arr, axes: Any = (None, 0, 1, -1), **more: Any) -> list[Case]:
    """A function along one axis, or of the flattened array."""
    rows = [case(f, reference, make(2, 3, 4), {"axis": axis}, **more) for axis in axes]
    return [*rows, case(f, reference, EMPTY, {"axis": 2}, **more), case(f, reference, EMPTY, {"axis": 1}, **more)]


def flat(f: Any, reference: Any, *inputs: Any, **options: Any) -> list[Case]:
    return [case(f, reference, x, options, order=0) for x in inputs]


def positive(*shape: int) -> Any:
    return arr(*shape, low=0.3)


def with_zeros(zeros: int) -> Any:
    """A (2, 5) array with this many zeros in its first row."""
    x = arr(2, 5, low=0.5)
    x[0, [1, 3, 4][:zeros]] = 0
    return x


def scan(a: Any, b: Any, axis: int = -1, reverse: bool = False) -> Any:
    """A linear recurrence, one step at a time."""
    a, b = (np.moveaxis(x, axis, 0) for x in np.broadcast_arrays(a, b))
    if reverse:
        a, b = a[::-1], b[::-1]
    out = np.zeros(b.shape, np.result_type(a, b))
    for i in range(len(b)):
        out[i] = b[i] + (a[i] * out[i - 1] if i else 0)
    return np.moveaxis(out[::-1] if reverse else out, 0, axis)


def top(x: Any, k: int, axis: int = -1) -> Any:
    order = np.moveaxis(np.argsort(-x, axis, stable=True), axis, 0)[:k]
    indices = np.moveaxis(order, 0, axis)
    return np.take_along_axis(x, indices, axis), indices


CASES: dict[str, list[Case]] = {
    "Sum": [
        *over_axes(dg.sum, np.sum, complex=True),
        *empty(dg.sum, np.sum),
        *flat(dg.sum, np.sum, INTS, BOOLS, INTS.astype("int8"), INTS.astype("uint8"), axis=0),
        *flat(dg.sum, np.sum, INTS, BOOLS, dtype="float32"),
        *[case(dg.var, np.var, arr(2, 3, 4), {"axis": axis, "ddof": 1}, complex=True) for axis in (None, 1, (0, -1))],
        *[case(dg.std, np.std, arr(2, 3, 4), {"axis": axis, "keepdims": True}) for axis in (None, 1, (0, -1))],
        *flat(dg.var, np.var, INTS, BOOLS, axis=1),
        *flat(dg.count_nonzero, np.count_nonzero, INTS, BOOLS, arr(2, 3), axis=1, keepdims=True),
    ],
    "Mean": [
        *over_axes(dg.mean, np.mean, complex=True),
        case(dg.mean, np.mean, EMPTY, {"axis": 0}),
        case(dg.mean, lambda x, axis: np.full((2, 3), np.nan), EMPTY, {"axis": 1}, order=0),
        *flat(dg.mean, np.mean, INTS, BOOLS, axis=0),
        *flat(dg.mean, np.mean, INTS, dtype="float32"),
    ],
    "Prod": [
        *over_axes(dg.prod, np.prod, complex=True),
        *empty(dg.prod, np.prod),
        *[case(dg.prod, np.prod, with_zeros(n), {"axis": axis}) for n in (1, 2, 3) for axis in (1, None)],
        case(dg.prod, np.prod, with_zeros(1), {"axis": 1, "keepdims": True}, complex=True),
        *flat(dg.prod, np.prod, INTS, BOOLS, INTS.astype("int8"), axis=0),
    ],
    "Max": [
        *over_axes(dg.max, np.max, apart),
        *flat(dg.max, np.max, INTS, BOOLS, axis=1),
        case(dg.amax, np.amax, EMPTY, {"axis": 0}),
        case(dg.ptp, np.ptp, apart(2, 3), {"axis": 1}),
    ],
    "Min": [
        *over_axes(dg.min, np.min, apart),
        *flat(dg.min, np.min, INTS, BOOLS, np.array([[1.0, np.nan]]), axis=1),
        case(dg.amin, np.amin, EMPTY, {"axis": 0}),
    ],
    "ArgMax": [
        *flat(dg.argmax, np.argmax, arr(2, 3, 4), np.array([1, 3, 3]), arr(), BOOLS),
        *flat(dg.argmax, np.argmax, arr(2, 3, 4), EMPTY, axis=-1),
        *flat(dg.argmax, np.argmax, arr(2, 3, 4), axis=1, keepdims=True),
        *flat(dg.argmax, np.argmax, arr(2, 3, 4), keepdims=True),
    ],
    "ArgMin": [
        *flat(dg.argmin, np.argmin, arr(2, 3, 4), np.array([3, 1, 1]), arr(), BOOLS),
        *flat(dg.argmin, np.argmin, arr(2, 3, 4), EMPTY, axis=-1),
    ],
    "Any": [
        *flat(dg.any, np.any, INTS, arr(2, 3), arr(), np.array(False), EMPTY, ~BOOLS),
        *flat(dg.any, np.any, INTS, ~BOOLS, axis=0),
    ],
    "All": [
        *flat(dg.all, np.all, INTS, arr(2, 3), arr(), np.array(False), EMPTY, BOOLS),
        *flat(dg.all, np.all, INTS, BOOLS, axis=(0, 1), keepdims=True),
        Case(dg.allclose, (arr(3), arr(3) + 1e-9), np.allclose, order=0),
    ],
    "LogSumExp": [
        *over_axes(dg.logsumexp, scipy.special.logsumexp, complex=True),
        case(dg.logsumexp, scipy.special.logsumexp, np.array([[1.0, 2.0, 3.0]] * 2) * 300, {"axis": 1}),
        *flat(dg.logsumexp, scipy.special.logsumexp, np.array([[1.0, -INF], [-INF, -INF], [INF, 1.0]]), INTS, axis=1),
        case(dg.logsumexp, lambda x, axis: np.full((2, 3), -INF), EMPTY, {"axis": 1}, order=0),
        case(dg.logsumexp, scipy.special.logsumexp, EMPTY, {"axis": 0}),
    ],
    "Cumsum": [
        *along(dg.cumsum, np.cumsum, complex=True),
        case(dg.cumsum, np.cumsum, arr(), {}),
        *flat(dg.cumsum, np.cumsum, BOOLS, INTS.astype("int8"), axis=0),
    ],
    "Cumprod": [
        *along(dg.cumprod, np.cumprod, complex=True),
        *[case(dg.cumprod, np.cumprod, with_zeros(n), {"axis": axis}) for n in (1, 2, 3) for axis in (1, 0)],
        *flat(dg.cumprod, np.cumprod, INTS.astype("int8"), axis=0),
    ],
    "LinearScan": [
        Case(dg.linear_scan, (arr(7), arr(7, seed=1)), scan, complex=True),
        Case(lambda a, b: dg.linear_scan(a, b, 1, True), (arr(2, 5, 3), arr(3)), lambda a, b: scan(a, b, 1, True)),
        Case(lambda a, b: dg.linear_scan(a, b, axis=0), (arr(), arr(6, 2)), lambda a, b: scan(a, b, 0)),
        Case(dg.linear_scan, (np.array([2.0, 0.0, 3.0, 0.0]), arr(4)), scan),
        Case(dg.linear_scan, (np.zeros((2, 0)), np.zeros((2, 0))), scan),
    ],
    "Sort": [
        *along(dg.sort, np.sort, apart),
        *flat(dg.sort, np.sort, INTS, BOOLS, np.array([2.0, np.nan, 1.0])),
        *[case(dg.median, np.median, apart(2, 3, 4), {"axis": axis, "keepdims": True}) for axis in (None, 1, -1)],
        *flat(dg.median, np.median, INTS, np.array([[1.0, np.nan], [2.0, 4.0]]), axis=1),
    ],
    "ArgSort": [
        *along(dg.argsort, lambda x, axis: np.argsort(x, axis, stable=True), apart, order=0),
        *flat(dg.argsort, lambda x: np.argsort(x, stable=True), np.array([1, 0, 1, 0])),
    ],
    "TopK": [
        case(dg.top_k, top, apart(2, 3, 4), {"k": 2}),
        case(dg.top_k, top, apart(2, 3, 4), {"k": 3, "axis": 1}),
        case(dg.top_k, top, apart(5), {"k": 5}),
        case(dg.top_k, top, apart(5), {"k": 0}),
        case(dg.top_k, top, np.zeros((0, 3)), {"k": 2}),
        *flat(dg.top_k, top, np.array([1, 3, 0, 3, 1]), k=4),
        case(dg.top_k, top, apart(2, 32), {"k": 3}),  # few of many: not all are sorted
        *flat(dg.top_k, top, np.arange(120).reshape(3, 40) % 7, k=4),
        *flat(dg.top_k, top, np.full((2, 20), -np.inf), k=2),
    ],
}
