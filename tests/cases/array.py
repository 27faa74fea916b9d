"""Rows for distgrad/ops/layout.py and distgrad/ops/array.py."""

from __future__ import annotations

from typing import Any

import numpy as np

import distgrad as dg

from .case import Case, arr


def _both(name: str, *inputs: Any, **options: Any) -> Case:
    """A row whose builder and reference have the same name and take the same options."""
    return Case(
        lambda *xs: getattr(dg, name)(*xs, **options),
        inputs,
        lambda *xs: getattr(np, name)(*xs, **options),
        complex=True,
    )


def _of_list(name: str, *inputs: Any, **options: Any) -> Case:
    """The same for a function that takes one list of arrays."""
    return Case(
        lambda *xs: getattr(dg, name)(xs, **options),
        inputs,
        lambda *xs: getattr(np, name)(xs, **options),
        complex=True,
    )


RESHAPE = [
    _both("reshape", arr(2, 6), shape=(3, -1)),
    _both("reshape", arr(0, 3), shape=(3, 0, 2)),
    _both("reshape", arr(), shape=(1, 1)),
    _both("ravel", arr(2, 3)),
    _both("expand_dims", arr(2, 3), axis=(0, -1)),
    _both("expand_dims", arr(), axis=0),
    _both("squeeze", arr(1, 3, 1)),
    _both("squeeze", arr(1, 3, 1), axis=-1),
    _both("squeeze", arr(1, 1), axis=(0, 1)),
    _both("atleast_1d", arr()),
    _both("atleast_2d", arr(3)),
]
TRANSPOSE = [
    _both("transpose", arr(2, 3, 4)),
    _both("transpose", arr(2, 3, 4), axes=(1, -1, 0)),
    _both("transpose", arr()),
    _both("permute_dims", arr(2, 0, 4), axes=(2, 0, 1)),
    _both("swapaxes", arr(2, 3, 4), axis1=0, axis2=-1),
    _both("moveaxis", arr(2, 3, 4), source=0, destination=-1),
    _both("moveaxis", arr(2, 3, 4, 5), source=(0, -1), destination=(2, 0)),
]
BROADCAST = [
    _both("broadcast_to", arr(3, 1), shape=(2, 3, 4)),
    _both("broadcast_to", arr(), shape=(2, 2)),
    _both("broadcast_to", arr(1, 2), shape=(0, 2)),
    _both("tile", arr(2, 3), reps=(2, 1, 3)),
    _both("tile", arr(2, 3), reps=2),
    _both("tile", arr(), reps=3),
    _both("tile", arr(2), reps=(0, 2)),
    _both("repeat", arr(2, 3), repeats=2),
    _both("repeat", arr(2, 3), repeats=3, axis=-1),
    _both("repeat", arr(2, 3), repeats=[2], axis=0),
    _both("repeat", arr(2, 0), repeats=2, axis=0),
    _both("repeat", arr(2), repeats=0),
    _both("meshgrid", arr(2), arr(3), arr(2, seed=1)),
    _both("meshgrid", arr(2), arr(3), indexing="ij"),
]
CONCAT = [
    _of_list("concatenate", arr(2, 3), arr(1, 3), arr(0, 3)),
    _of_list("concatenate", arr(2, 3), arr(2, 1), axis=-1),
    _of_list("concatenate", arr(2, 3), arr(), axis=None),
    _of_list("concatenate", arr(4)),
    _of_list("hstack", arr(2), arr(), arr(3)),
    _of_list("hstack", arr(2, 3), arr(2, 1)),
    _of_list("vstack", arr(3), arr(2, 3)),
    Case(lambda *xs: dg.concatenate(xs), (arr(2), np.arange(3)), lambda *xs: np.concatenate(xs), float32=False),
]
STACK = [
    _of_list("stack", arr(2, 3), arr(2, 3, seed=1)),
    _of_list("stack", arr(2, 3), arr(2, 3, seed=1), arr(2, 3, seed=2), axis=-1),
    _of_list("stack", arr(), arr(seed=1)),
    _of_list("stack", arr(0)),
]
SPLIT = [
    _both("split", arr(6, 2), indices_or_sections=3),
    _both("split", arr(2, 6), indices_or_sections=[1, 4, 4], axis=-1),
    _both("split", arr(5), indices_or_sections=[-2, 9]),
    _both("split", arr(3), indices_or_sections=[]),
    _both("split", arr(0, 3), indices_or_sections=[1], axis=1),
    _both("split", arr(0), indices_or_sections=2),
    _both("array_split", arr(7), indices_or_sections=3),
    _both("array_split", arr(2), indices_or_sections=3),
]
UNSTACK = [
    Case(dg.unstack, (arr(3, 2),), lambda x: tuple(x), complex=True),
    Case(lambda x: dg.unstack(x, axis=-1), (arr(2, 3),), lambda x: tuple(x.T), complex=True),
    Case(dg.unstack, (arr(2),), lambda x: tuple(x)),
    Case(dg.unstack, (arr(2, 0),), lambda x: tuple(x)),
]
REVERSE = [
    _both("flip", arr(2, 3)),
    _both("flip", arr(2, 3), axis=-1),
    _both("flip", arr(2, 3, 2), axis=(0, 2)),
    _both("flip", arr()),
    _both("flipud", arr(3, 2)),
    _both("fliplr", arr(3, 0)),
]
ROLL = [
    _both("roll", arr(2, 3), shift=2),
    _both("roll", arr(2, 3), shift=-4, axis=-1),
    _both("roll", arr(2, 3), shift=(1, 2), axis=(0, 1)),
    _both("roll", arr(5), shift=(1, 2), axis=0),
    _both("roll", arr(0), shift=1),
]
PAD = [
    _both("pad", arr(2, 3), pad_width=1),
    _both("pad", arr(2, 3), pad_width=(1, 2), constant_values=3.5),
    _both("pad", arr(2, 3), pad_width=((0, 2), (1, 0)), constant_values=((1.0, 2.0), (3.0, 4.0))),
    _both("pad", arr(2, 3), pad_width=((1,), (2,)), constant_values=(-1.0, 1.0)),
    _both("pad", arr(0, 3), pad_width=1),
    _both("pad", arr(), pad_width=1),
]
# Their ops are those of indexing; the rows stand here because the functions do.
PICK = [
    _both("pad", arr(3, 4), pad_width=((1, 2), (3, 0)), mode="reflect"),
    _both("pad", arr(3), pad_width=7, mode="reflect"),
    _both("pad", arr(3, 4), pad_width=((1, 2), (3, 0)), mode="edge"),
    _both("pad", arr(3), pad_width=(5, 1), mode="symmetric"),
    _both("pad", arr(3, 2), pad_width=(4, 1), mode="wrap"),
    _both("pad", arr(1, 2), pad_width=((2, 1), (0, 0)), mode="reflect"),
    _both("repeat", arr(3, 2), repeats=[0, 2, 1], axis=0),
    _both("repeat", arr(2, 2), repeats=[1, 0, 3, 1]),
]
DIAG = [_both("diag", arr(3)), _both("diag", arr(3), k=2), _both("diag", arr(2), k=-1), _both("diag", arr(0), k=1)]
DIAGONAL = [
    _both("diag", arr(3, 4)),
    _both("diag", arr(3, 4), k=-2),
    _both("diag", arr(3, 4), k=7),
    _both("diagonal", arr(2, 3, 4), offset=1, axis1=-1, axis2=0),
    _both("diagonal", arr(2, 3, 4), offset=-1),
    _both("diagonal", arr(0, 3)),
    _both("diagonal", arr(0, 2, 3), axis1=1, axis2=2),
    _both("trace", arr(0, 3)),
    _both("trace", arr(3, 3)),
    _both("trace", arr(2, 3, 4), offset=1, axis1=1, axis2=2),
]
TRIANGLES = [(arr(3, 4), 0), (arr(2, 3, 3), -1), (arr(3), 1), (arr(0, 2), 0)]

CASES: dict[str, list[Case]] = {
    "Reshape": RESHAPE,
    "Transpose": TRANSPOSE,
    "BroadcastTo": BROADCAST,
    "Concat": CONCAT,
    "Stack": STACK,
    "Split": SPLIT,
    "Unstack": UNSTACK,
    "Reverse": REVERSE,
    "Roll": ROLL,
    "Pad": PAD,
    "MatrixDiag": [
        *DIAG,
        Case(lambda: dg.eye(3, 4, -1), (), lambda: np.eye(3, 4, -1), order=0),
        Case(lambda: dg.eye(2, dtype="int32"), (), lambda: np.eye(2, dtype="int32"), order=0),
    ],
    "MatrixDiagPart": DIAGONAL,
    "Tril": [_both("tril", x, k=k) for x, k in TRIANGLES],
    "Triu": [_both("triu", x, k=k) for x, k in TRIANGLES],
}
