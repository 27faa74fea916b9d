"""Values that a user may give by mistake."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np

import distgrad as dg


class Odd:
    """An object whose every conversion fails."""

    def __repr__(self) -> str:
        raise ValueError("no repr")

    def __len__(self) -> int:
        return -1


class Liar:
    """An object that looks like an array."""

    shape, dtype, ndim, size = "shape", "dtype", None, -1


def deep(levels: int = 2000) -> Any:
    tree: Any = 1.0
    for _ in range(levels):
        tree = [tree]
    return tree


def cyclic() -> Any:
    tree: Any = [1.0]
    tree.append(tree)
    return tree


def elsewhere() -> Any:
    with dg.Graph():
        return dg.constant([1.0, 2.0, 3.0])


def of_a_trace() -> Any:
    kept = []
    dg.function(lambda x: kept.append(x) or x)(np.ones(3))
    return kept[0]


def handle() -> Any:
    return dg.Session().submit(dg.function(lambda x: x), np.ones(3))


VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 2, 3, 64, -(2**31), 2**31, 2**40, 10**9, 2**63, 2**64, 10**30, -(10**18), 0.0, -0.0,
    0.5, 1.5, -1.5, 1e308, float("nan"), float("inf"), 1j, "", "x", "w\ud800", "a" * 300, "\0", "../x", "float32",
    "1", b"", b"x", ..., NotImplemented, (), [], {}, set(), {1}, frozenset(), [None], [[]], [1, [2, 3]], [1, "a"],
    (0, 0), (0, 1), (1, 0), (-1,), [10**9], (2**40, 2**40), (10**18,), {"a": 1}, {1: 2}, {None: None}, range(3),
    range(10**12), slice(None), slice(0, 10**12, -1), slice("a", None), int, float, object, Odd, dict, len, print, np,
    np.float32, np.dtype("f4"), np.dtype([("a", "f4")]), np.dtype("O"), np.dtype("M8[s]"), np.int8(3), np.float16(2),
    np.bool_(True), np.str_("a"), np.datetime64("2020-01-01"),
]  # fmt: skip

MAKERS: list[Callable[[], Any]] = [
    Odd, Liar, deep, cyclic, elsewhere, of_a_trace, handle, object, lambda: (i for i in range(3)),
    lambda: iter([1.0]), lambda: lambda x: x, lambda: lambda *a, **k: None, lambda: np.array(1.0),
    lambda: np.zeros(0), lambda: np.zeros((0, 3)), lambda: np.ones(3), lambda: np.ones((2, 3), "f4"),
    lambda: np.ones((3, 3)), lambda: np.ones((2, 2, 2, 2)), lambda: np.arange(3), lambda: np.arange(3, dtype="u1"),
    lambda: np.array([True, False, True]), lambda: np.ones(3, complex), lambda: np.array(["a", "b"]),
    lambda: np.array([b"a"]), lambda: np.array([None, 1], object), lambda: np.zeros(3, [("a", "f4"), ("b", "i4")]),
    lambda: np.array(["2020-01-01"], "M8[s]"), lambda: np.ones(3, ">f4"),
    lambda: np.ma.array([1.0, 2.0, 3.0], mask=[0, 1, 0]), lambda: np.ones((1,) * 40), lambda: np.full(3, np.nan),
    lambda: np.ones(6)[::2], lambda: dg.Variable(np.ones(3)), lambda: dg.Variable(1), dg.Graph,
    lambda: dg.IndexedSlices(np.ones((2, 3)), np.array([0, 1]), (3, 3)), lambda: dg.Session(),
    lambda: dg.function(lambda x: x), lambda: dg.Defun()(lambda x: x), lambda: [np.ones(3), np.ones(2)],
    lambda: {"x": np.ones(3)}, lambda: [elsewhere(), None], lambda: memoryview(b"abc"), lambda: bytearray(b"abc"),
    lambda: Exception("x"),
]  # fmt: skip


def some(rng: random.Random) -> Any:
    return rng.choice(VALUES) if rng.random() < 0.55 else rng.choice(MAKERS)()
