"""Kernels of distgrad/ops/random.py: NumPy's Philox, a keyed generator, so that the key alone decides the bits.

The last word of the counter says what a key is used for, so that drawing from a key, splitting it and folding into it
read different blocks of its stream.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from distgrad.workers.kernels.table import kernel

_SPLIT, _FOLD_IN = 1, 2
_WORD = (1 << 64) - 1


def _words(key: Any, count: int, data: int, purpose: int) -> Any:
    """Raw numbers of a key's stream that no draw uses."""
    counter = np.array([data, 0, 0, purpose], np.uint64)
    return np.random.Philox(key=np.asarray(key), counter=counter).random_raw(count)


def _generator(key: Any) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=np.asarray(key)))


@kernel("RandomKey")
def key(xp: Any, seed: Any) -> Any:
    seed = int(seed)
    return xp.asarray(np.array([seed & _WORD, (seed >> 64) & _WORD], np.uint64))


@kernel("RandomSplit")
def split(xp: Any, key: Any, *, num: int) -> Any:
    return xp.asarray(_words(key, 2 * num, 0, _SPLIT).reshape(num, 2))


@kernel("RandomFoldIn")
def fold_in(xp: Any, key: Any, data: Any) -> Any:
    return xp.asarray(_words(key, 2, int(data) & _WORD, _FOLD_IN))


def _unit(key: Any, shape: Any, dtype: Any) -> Any:
    """Uniform numbers from [0, 1)."""
    if dtype != np.float16:
        return _generator(key).random(shape, dtype)
    steps = 2**11  # rounding a float32 below 1 to float16 may give 1; a multiple of 2**-11 is exact
    return (_generator(key).integers(steps, size=shape) / steps).astype(dtype)


@kernel("StatelessRandomUniform")
def uniform(xp: Any, key: Any, *, shape: Any, dtype: Any) -> Any:
    return xp.asarray(_unit(key, shape, dtype))


@kernel("StatelessRandomNormal")
def normal(xp: Any, key: Any, *, shape: Any, dtype: Any) -> Any:
    drawn = np.asarray(_generator(key).standard_normal(shape, np.float32 if dtype == np.float16 else dtype))
    return xp.asarray(drawn.astype(dtype, copy=False))


@kernel("StatelessTruncatedNormal")
def truncated_normal(xp: Any, key: Any, *, shape: Any, dtype: Any) -> Any:
    from scipy.special import ndtr, ndtri  # late: the rest of this file does without SciPy

    low, high = ndtr(-2.0), ndtr(2.0)
    single = np.dtype(np.float32) if dtype == np.float16 else dtype
    drawn = ndtri(np.asarray(_generator(key).random(shape, single)) * single.type(high - low) + single.type(low))
    return xp.asarray(np.clip(drawn, -2, 2).astype(dtype))


@kernel("StatelessRandomUniformInt")
def randint(xp: Any, key: Any, low: Any, high: Any, *, shape: Any, dtype: Any) -> Any:
    drawn = _generator(key).integers(np.asarray(low), np.asarray(high), size=shape, dtype=dtype)
    return xp.asarray(drawn, dtype=dtype)


@kernel("StatelessCategorical")
def categorical(xp: Any, key: Any, logits: Any, *, shape: Any) -> Any:
    # the largest of logits plus Gumbel noise; minus the logarithm of an exponential variable is such noise
    wait = _generator(key).standard_exponential((*shape, logits.shape[-1]), np.result_type(logits.dtype, np.float32))
    return xp.argmax(logits - xp.log(xp.asarray(wait)), axis=-1)


@kernel("StatelessPermutation")
def permutation(xp: Any, key: Any, *, n: int) -> Any:
    return xp.asarray(_generator(key).permutation(n), dtype=xp.int64)
