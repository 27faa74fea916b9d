"""Rows for distgrad/ops/index.py."""

from __future__ import annotations

from typing import Any

import numpy as np

import distgrad as dg
from distgrad.ops.assignment.update import At
from distgrad.ops.index import add_slices

from .array import PICK
from .case import Case, apart, arr

I = np.array
MASK = np.array([[True, False, True], [False, False, True]])


class _Brackets:
    """K[...] is the key between the brackets."""

    def __getitem__(self, key: Any) -> Any:
        return key


K = _Brackets()


def _get(x: Any, key: Any) -> Case:
    return Case(lambda x: dg.getitem(x, key), (x,), lambda x: x[key], complex=True)


def _put(values: Any, key: Any, shape: Any) -> Case:
    return Case(lambda v: dg.scatter(v, key, shape), (values,), lambda v: scattered(v, key, shape), complex=True)


def scattered(values: Any, key: Any, shape: Any) -> Any:
    out = np.zeros(shape, values.dtype)
    np.add.at(out, key, values)
    return out


def _sum(shape: Any, *keys: Any) -> Case:
    """The sum of slices at these keys; None stands for a term of the full shape."""
    terms = tuple(arr(*np.zeros(shape)[... if key is None else key].shape, seed=i) for i, key in enumerate(keys))

    def reference(*terms: Any) -> Any:
        return sum(scattered(x, ... if key is None else key, shape) for x, key in zip(terms, keys, strict=True))

    return Case(lambda *terms: add_slices(terms, keys, shape), terms, reference, complex=True)


def added(x: Any, indices: Any, updates: Any) -> Any:
    out = np.array(x)
    np.add.at(out, indices, updates)
    return out


SLICES = [
    _get(arr(5), 2),
    _get(arr(5), -1),
    _get(arr(5), K[1:4]),
    _get(arr(5), K[::-2]),
    _get(arr(5), K[-2:0:-1]),
    _get(arr(5), K[4:1]),
    _get(arr(5), K[-100:100:3]),
    _get(arr(2, 3, 4), K[..., 1]),
    _get(arr(2, 3, 4), K[:, None, 1:, ::-1]),
    _get(arr(2, 3, 4), K[-1, ..., None]),
    _get(arr(2, 3), K[0, 1]),
    _get(arr(2, 3), K[...]),
    _get(arr(2, 3), ()),
    _get(arr(), ()),
    _get(arr(), None),
    _get(arr(0, 3), K[:, 1]),
]
ARRAYS = [
    _get(arr(5, 2), [3, 0, 3]),
    _get(arr(5), I([[1, -1], [0, 2]])),
    _get(arr(5, 2), []),
    _get(arr(0, 3), K[:, [1, 1]]),
    _get(arr(0, 3), []),
    _get(arr(2, 3), np.zeros((2, 3), bool)),
    _get(arr(3, 4), K[:, [1, 1, 0]]),
    _get(arr(3, 4), K[[0, 2], [1, -1]]),
    _get(arr(3, 4), K[[[0], [2]], [1, 3, 1]]),
    _get(arr(2, 3, 4), K[1, :, [0, 0, 3]]),
    _get(arr(2, 3, 4), K[[1, 0], :, 2]),
    _get(arr(2, 3, 4), K[:, 1, [0, 0, 3]]),
    _get(arr(2, 3, 4), K[[0, 1], None, [2, 0]]),
    _get(arr(2, 3, 4), K[::-1, [[2], [0]], 1:]),
    _get(arr(3), I(1)),
    _get(arr(2, 3), K[:, I(-1)]),
    _get(arr(2, 3), MASK),
    _get(arr(4, 2, 3), K[1:, MASK]),
    _get(arr(2, 3), K[MASK[0, :2], [0, 2]]),
    Case(lambda x, i: dg.getitem(x, K[:, i, 1:]), (arr(2, 3, 4), I([[2, 0], [-1, 2]])), lambda x, i: x[:, i, 1:]),
    Case(lambda x, i, j: dg.getitem(x, K[i, :, j]), (arr(2, 3, 4), I([1, 0]), I(2)), lambda x, i, j: x[i, :, j]),
    Case(lambda x: dg.take(x, [[4, -1], [0, 0]]), (arr(2, 3),), lambda x: np.take(x, [[4, -1], [0, 0]]), complex=True),
    Case(lambda x: dg.take(x, [1, 1], axis=-1), (arr(2, 3),), lambda x: np.take(x, [1, 1], axis=-1)),
    Case(lambda x: dg.take(x, 2, axis=1), (arr(2, 3),), lambda x: np.take(x, 2, axis=1)),
    Case(lambda x: dg.take(x, [-7, 7], 0, "wrap"), (arr(3),), lambda x: np.take(x, [-7, 7], 0, mode="wrap")),
    Case(lambda x: dg.take(x, [-7, 7], 0, "clip"), (arr(3),), lambda x: np.take(x, [-7, 7], 0, mode="clip")),
    Case(dg.take_along_axis, (arr(2, 3), I([[2, 2], [-1, 0]])), lambda x, i: np.take_along_axis(x, i, -1)),
    Case(
        lambda x, i: dg.take_along_axis(x, i, axis=1),
        (arr(2, 3, 1), I([[[2, 0]]])),
        lambda x, i: np.take_along_axis(x, i, axis=1),
    ),
    Case(lambda x, i: dg.take_along_axis(x, i, None), (arr(2, 3), I([5, 0])), lambda x, i: x.ravel()[i]),
    Case(dg.gather_nd, (arr(2, 3), I([[1, 2], [0, -1], [1, 2]])), lambda x, i: x[i[:, 0], i[:, 1]], complex=True),
    Case(lambda x: dg.gather_nd(x, [[[1]], [[0]]]), (arr(2, 3),), lambda x: x[[[1], [0]]]),
    *PICK,
]
PUT_ARRAYS = [
    _put(arr(3), ([0, 2, 0],), 4),
    _put(arr(3, 2), K[:, [1, 1]], (3, 4)),
    _put(arr(2, 3), K[[1, 0], :, 2], (2, 3, 4)),
    _put(arr(3), MASK, (2, 3)),
    _put(arr(), I(1), 3),
    Case(
        lambda i, v: dg.scatter_nd(i, v, (3, 2)),
        (I([[0], [2], [0], [-1]]), arr(4, 2)),
        lambda i, v: scattered(v, i[:, 0], (3, 2)),
        complex=True,
    ),
    Case(lambda v: dg.scatter_nd([[0, 1], [0, 1]], v, (2, 2)), (arr(2),), lambda v: np.array([[0, v.sum()], [0, 0]])),
]


def _gather(x: Any, indices: Any, axis: int) -> Case:
    return Case(
        lambda x, i: dg.gather(x, i, axis), (x, I(indices, dtype=int)), lambda x, i: np.take(x, i, axis), complex=True
    )


def _update(x: Any, key: Any, value: Any, mode: str = "set", **options: Any) -> Case:
    return Case(
        lambda x, v: getattr(At(x)[key], mode)(v),
        (x, value),
        lambda x, v: updated(x, key, v, mode),
        **options,
    )


def updated(x: Any, key: Any, value: Any, mode: str) -> Any:
    out = np.array(x)
    if mode == "set":
        out[key] = value
    else:
        getattr(np, mode).at(out, key, value)
    return out


UPDATES = [
    _update(arr(5), K[1:4], arr(3, seed=1), complex=True),
    _update(arr(5), K[::-2], arr(), complex=True),
    _update(arr(4, 3), 1, arr(3, seed=1)),
    _update(arr(4, 3), K[..., None, -1], arr(4, 1, seed=1)),
    _update(arr(2, 3), K[0, 2], arr()),
    _update(arr(), (), arr(seed=1)),
    _update(arr(2, 3), ..., arr(1, 1, 3, seed=1)),
    _update(arr(0, 3), K[:, 1], arr(0, seed=1)),
    _update(arr(4, 3), K[1:, :2], arr(3, 1, seed=1), "add", complex=True),
    _update(arr(4, 3), K[1:, :2], arr(2, seed=1), "multiply", complex=True),
    _update(arr(5), K[::2], apart(3) + 0.05, "maximum"),
    _update(arr(5), K[::2], apart(3) + 0.05, "minimum"),
    _update(arr(5), I([3, 0, 3, 3]), arr(4, seed=1), complex=True),
    _update(arr(5, 2), I([3, 0, 3, 3]), arr(4, 2, seed=1), "add", complex=True),
    _update(arr(5), I([3, 0, 3, 3]), arr(4, seed=1) + 3, "multiply", complex=True),
    _update(arr(5), I([3, 0, 3, 3]), apart(4) + 0.05, "maximum"),
    _update(arr(5), I([3, 0, 3, 3]), apart(4) + 0.05, "minimum"),
    _update(arr(2, 3, 4), K[1, :, [0, 0, 3]], arr(3, 3, seed=1)),
    _update(arr(2, 3, 4), K[:, [[0], [2]], ::2], arr(2, seed=1), "add"),
    _update(arr(2, 3), MASK, arr(3, seed=1)),
    _update(arr(2, 3), np.zeros((2, 3), bool), arr(seed=1)),
    Case(
        lambda x, i, v: At(x)[i, 1:].set(v),
        (arr(4, 3), I([2, -1, 2]), arr(3, 2, seed=1)),
        lambda x, i, v: updated(x, K[i, 1:], v, "set"),
    ),
    Case(
        lambda x, i, v: At(x)[:, i].add(v),
        (arr(4, 3), I([2, -1]), arr(2, seed=1)),
        lambda x, i, v: updated(x, K[:, i], v, "add"),
    ),
    Case(
        lambda x, i, v: At(x)[i].maximum(v),
        (arr(4), I([2, -1, 2]), apart(3) + 0.05),
        lambda x, i, v: updated(x, K[i], v, "maximum"),
    ),
]


CASES: dict[str, list[Case]] = {
    "StridedSlice": SLICES,
    "StridedSliceGrad": [
        _put(arr(2), K[::-3], 5),
        _put(arr(2, 1, 3), K[:, None, 1:], (2, 4)),
        _put(arr(), -1, 3),
        _put(arr(), (), ()),
    ],
    "AddSlices": [
        _sum((4, 2), K[0], K[2], K[1:3]),
        _sum((4, 2), None, K[::-2], None, K[:, 1], K[1:, None]),
        _sum((5,), K[1:], K[:-1]),
        _sum((6,), K[::2], K[::3], K[4:0]),
        _sum((), (), None),
    ],
    "AdvancedIndex": ARRAYS,
    "AdvancedIndexGrad": PUT_ARRAYS,
    "Gather": [
        _gather(arr(4, 2), [1, 3, 1], 0),
        _gather(arr(4, 2), [[1, -1], [0, 0]], 0),
        _gather(arr(4), 2, 0),
        _gather(arr(4, 2), [], 0),
        _gather(arr(2, 4), [1, 3, 1], -1),
        _gather(arr(2, 4, 3), [[1, -1], [0, 0]], 1),
        _gather(arr(2, 4, 3), -1, 1),
        _gather(arr(0, 2), [1, 1], 1),
        Case(lambda x: dg.gather(x, [1, -1]), (arr(4, 2),), lambda x: x[[1, -1]]),
    ],
    "UnsortedSegmentSum": [
        Case(
            lambda v, i: dg.unsorted_segment_sum(v, i, 4),
            (arr(3, 2), I([1, 3, 1])),
            lambda v, i: scattered(v, i, (4, 2)),
            complex=True,
        ),
        Case(
            lambda v, i: dg.unsorted_segment_sum(v, i, 2),
            (arr(2, 2), I([[1, 0], [1, 1]])),
            lambda v, i: scattered(v, i, 2),
        ),
        Case(lambda v: dg.unsorted_segment_sum(v, [], 3), (arr(0, 2),), lambda v: np.zeros((3, 2))),
    ],
    "Update": UPDATES,
    "ScatterAdd": [
        Case(dg.scatter_add, (arr(4, 2), I([1, 3, -3]), arr(3, 2)), added, complex=True),
        Case(lambda x, u: dg.scatter_add(x, [[0], [2]], u), (arr(3), arr(1)), lambda x, u: added(x, [[0], [2]], u)),
        Case(
            lambda x, u: dg.scatter_add(dg.transpose(x), [0, 0], u),
            (arr(2, 3), arr(2, 2)),
            lambda x, u: added(x.T, [0, 0], u),
        ),
        Case(lambda x, u: dg.scatter_add(x, [], u), (arr(3), arr(0)), lambda x, u: x),
    ],
}
