"""Rows for distgrad/ops/random.py: what NumPy's Philox gives for the same key; see test_ops_random.py for the rest."""

from __future__ import annotations

from typing import Any

import numpy as np

from distgrad import random

from .case import Case, arr

KEY = np.array([5, 7], np.uint64)


def philox(key: Any) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=key))


def words(key: Any, count: int, data: int, purpose: int) -> Any:
    return np.random.Philox(key=key, counter=np.array([data, 0, 0, purpose], np.uint64)).random_raw(count)


CASES = {
    "RandomKey": [Case(random.key, (np.array(-3),), lambda seed: np.array([2**64 - 3, 2**64 - 1], np.uint64), order=0)],
    "RandomSplit": [
        Case(random.split, (KEY,), lambda key: words(key, 4, 0, 1).reshape(2, 2), order=0),
        Case(lambda key: random.split(key, 0), (KEY,), lambda key: np.zeros((0, 2), np.uint64), order=0),
    ],
    "RandomFoldIn": [Case(random.fold_in, (KEY, np.array(9)), lambda key, data: words(key, 2, 9, 2), order=0)],
    "StatelessRandomUniform": [
        Case(lambda key: random.uniform(key, (2, 3)), (KEY,), lambda key: philox(key).random((2, 3)), order=0),
        Case(lambda key: random.uniform(key, 4, "f4"), (KEY,), lambda key: philox(key).random(4, np.float32), order=0),
        Case(lambda key: random.uniform(key), (KEY,), lambda key: philox(key).random(), order=0),
        Case(lambda key: random.uniform(key, (0, 2)), (KEY,), lambda key: np.zeros((0, 2)), order=0),
        Case(
            lambda key, low, high: random.uniform(key, (2, 3), minval=low, maxval=high),
            (KEY, arr(3), arr(2, 1)),
            lambda key, low, high: philox(key).random((2, 3)) * (high - low) + low,
            float32=False,
        ),
        Case(
            random.bernoulli,
            (KEY, arr(9, low=0, high=1)),
            lambda key, p: philox(key).random(9) < p,
            order=0,
            float32=False,
        ),
    ],
    "StatelessRandomNormal": [
        Case(lambda key: random.normal(key, (2, 3)), (KEY,), lambda key: philox(key).standard_normal((2, 3)), order=0),
        Case(
            lambda key, mean, stddev: random.normal(key, (2, 3), mean=mean, stddev=stddev),
            (KEY, arr(3), arr(2, 1)),
            lambda key, mean, stddev: philox(key).standard_normal((2, 3)) * stddev + mean,
            float32=False,
        ),
    ],
    "StatelessTruncatedNormal": [
        Case(lambda key: random.truncated_normal(key, (2, 3)), (KEY,), None, order=0),
        Case(lambda key, mean: random.truncated_normal(key, mean=mean), (KEY, arr(3)), None, float32=False),
    ],
    "StatelessRandomUniformInt": [
        Case(lambda key: random.randint(key, (6,), -4, 9), (KEY,), lambda key: philox(key).integers(-4, 9, 6), order=0),
        Case(
            lambda key, high: random.randint(key, (2, 3), 0, high, "int32"),
            (KEY, np.array([1, 10, 100])),
            lambda key, high: philox(key).integers(0, high, (2, 3), np.int32),
            order=0,
        ),
    ],
    "StatelessCategorical": [
        Case(random.categorical, (KEY, arr(5, 3)), None, order=0, float32=False),
        Case(lambda key, x: random.categorical(key, x, 0, (4, 3)), (KEY, arr(5, 3)), None, order=0, float32=False),
    ],
    "StatelessPermutation": [
        Case(lambda key: random.permutation(key, 6), (KEY,), lambda key: philox(key).permutation(6), order=0),
        Case(
            lambda key, x: random.permutation(key, x, axis=-1),
            (KEY, arr(2, 4)),
            lambda key, x: x[:, philox(key).permutation(4)],
        ),
    ],
}
