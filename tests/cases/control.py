"""Rows for distgrad/ops/control.py."""

from __future__ import annotations

import numpy as np

import distgrad as dg

from .case import Case, arr

CASES = {
    "Const": [Case(lambda: dg.constant([1.0, 2.0]), (), lambda: np.array([1.0, 2.0]), order=0)],
    "Fill": [
        Case(lambda: dg.full((2, 3), 2.5), (), lambda: np.full((2, 3), 2.5), order=0),
        Case(lambda: dg.ones(2, "int32"), (), lambda: np.ones(2, np.int32), order=0),
    ],
    "Size": [Case(dg.size, (arr(2, 3),), lambda x: np.int64(6), order=0)],
    "Rank": [Case(dg.rank, (arr(2, 3),), lambda x: np.int64(2), order=0)],
    "Shape": [Case(dg.shape, (arr(2, 3),), lambda x: np.array([2, 3]), order=0)],
    "ZerosLike": [Case(dg.zeros_like, (arr(2, 3),), np.zeros_like, order=0)],
    "OnesLike": [Case(dg.ones_like, (arr(2, 3),), np.ones_like, order=0)],
    "Identity": [Case(dg.identity, (arr(2, 3),), lambda x: x, complex=True)],
    "IdentityN": [Case(lambda x, y: dg.identity_n([x, y]), (arr(2), arr(3)), lambda x, y: (x, y))],
    "StopGradient": [Case(dg.stop_gradient, (arr(3),), lambda x: x, order=0)],
    "PreventGradient": [Case(lambda x: dg.prevent_gradient(x, "no"), (arr(3),), lambda x: x, order=0)],
    "AddN": [
        Case(lambda *xs: dg.add_n(xs), (arr(2), arr(2, seed=1), arr(2, seed=2)), lambda *xs: sum(xs), complex=True),
        Case(lambda x: dg.add_n([x]), (arr(0, 3),), lambda x: x),
    ],
}
