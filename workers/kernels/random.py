"""Kernels of distgrad/ops/random.py: NumPy's Philox, a keyed generator. The bits depend on the key alone.

The last word of the counter says what a key is used for, so that drawing from a key, splitting it and folding into it
read different blocks of its stream.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from distgrad.workers.backends import Array, extras
from distgrad.workers.kernels.table import kernel

_SPLIT, _FOLD_IN = 1, 2
_WORD = (1 << 64) - 1


def _words(xp: Any, key: Any, count: int, data: int, purpose: int) -> Array:
    """Raw numbers from a part of a key's stream that draws do not use."""
    counter = np.array([data, 0, 0, purpose], np.uint64)
    return np.random.Philox(key=extras(xp).to_numpy(key), counter=counter).random_raw(count)


def _generator(xp: Any, key: Any) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=extras(xp).to_numpy(key)))


def _made(xp: Any, drawn: Any, dtype: Any) -> Any:
    """Numbers drawn by NumPy as an array of the namespace: the same on every backend."""
    return extras(xp).from_numpy(np.asarray(drawn, dtype))


@kernel("RandomKey")
def key(xp: Any, seed: Any) -> Any:
    seed = int(seed)
    return _made(xp, [seed & _WORD, (seed >> 64) & _WORD], np.uint64)


@kernel("RandomSplit")
def split(xp: Any, key: Any, *, num: int) -> Any:
    return _made(xp, _words(xp, key, 2 * num, 0, _SPLIT).reshape(num, 2), np.uint64)


@kernel("RandomFoldIn")
def fold_in(xp: Any, key: Any, data: Any) -> Any:
    return _made(xp, _words(xp, key, 2, int(data) & _WORD, _FOLD_IN), np.uint64)


def _unit(xp: Any, key: Any, shape: Any, dtype: Any) -> Any:
    """Uniform numbers from [0, 1)."""
    if dtype != np.float16:
        return _generator(xp, key).random(shape, dtype)
    steps = 2**11  # rounding a float32 below 1 to float16 may give 1; a multiple of 2**-11 is exact
    return (_generator(xp, key).integers(steps, size=shape) / steps).astype(dtype)


@kernel("StatelessRandomUniform")
def uniform(xp: Any, key: Any, *, shape: Any, dtype: Any) -> Any:
    return _made(xp, _unit(xp, key, shape, dtype), dtype)


@kernel("StatelessRandomNormal")
def normal(xp: Any, key: Any, *, shape: Any, dtype: Any) -> Any:
    return _made(xp, _generator(xp, key).standard_normal(shape, np.float32 if dtype == np.float16 else dtype), dtype)


@kernel("StatelessTruncatedNormal")
def truncated_normal(xp: Any, key: Any, *, shape: Any, dtype: Any) -> Any:
    from scipy.special import ndtr, ndtri  # late: only this function needs SciPy

    low, high = ndtr(-2.0), ndtr(2.0)
    single = np.dtype(np.float32) if dtype == np.float16 else dtype
    drawn = ndtri(np.asarray(_generator(xp, key).random(shape, single)) * single.type(high - low) + single.type(low))
    return _made(xp, np.clip(drawn, -2, 2), dtype)


@kernel("StatelessRandomUniformInt")
def randint(xp: Any, key: Any, low: Any, high: Any, *, shape: Any, dtype: Any) -> Any:
    bounds = extras(xp).to_numpy(low), extras(xp).to_numpy(high)
    return _made(xp, _generator(xp, key).integers(*bounds, size=shape, dtype=dtype), dtype)


@kernel("StatelessCategorical")
def categorical(xp: Any, key: Any, logits: Any, *, shape: Any) -> Any:
    # the argmax of logits plus Gumbel noise, which is -log of an exponential variable
    logits = extras(xp).to_numpy(logits)
    dtype = np.result_type(logits.dtype, np.float32)
    wait = _generator(xp, key).standard_exponential((*shape, logits.shape[-1]), dtype)
    return _made(xp, np.argmax(logits - np.log(wait), axis=-1), np.int64)


@kernel("StatelessPermutation")
def permutation(xp: Any, key: Any, *, n: int) -> Any:
    return _made(xp, _generator(xp, key).permutation(n), np.int64)
