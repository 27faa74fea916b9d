"""Random numbers as pure functions of a key: the same key gives the same bits, wherever and whenever the op runs.

There is no global state. A key is two uint64 numbers; `split` and `fold_in` derive new keys. Keys are ordinary tensors,
so a `distgrad.function` that takes one draws new numbers for every key without being traced again.

>>> import distgrad as dg
>>> first, second = dg.random.split(dg.random.key(0))
>>> x, again, y = dg.random.uniform(first), dg.random.uniform(first), dg.random.uniform(second)
>>> bool(x == again), bool(x == y)
(True, False)
"""

from __future__ import annotations

from typing import Any

import numpy as np

from distgrad.graph import NO_ATTRS, Tensor
from distgrad.ops.array import moveaxis
from distgrad.ops.builder import as_dtype, convert, make, typed
from distgrad.ops.guard import guard_all
from distgrad.ops.index import take
from distgrad.ops.math import add, less, multiply
from distgrad.registry import Kind, define, no_gradient
from distgrad.types import FLOAT, INT, DType, Shape, Typed, as_shape, brief, broadcast_shapes, normalize_axis, trainable

KEY = np.dtype(np.uint64)
_WORD = (1 << 64) - 1
_FLOATS = tuple(np.dtype(t) for t in (np.float16, np.float32, np.float64))

# -- keys --------------------------------------------------------------------------------------------------------

_key = define("RandomKey", lambda seed: ((2,), KEY), kind=Kind.RANDOM)
_split = define("RandomSplit", lambda key, *, num: ((num, 2), KEY), kind=Kind.RANDOM)
_fold_in = define("RandomFoldIn", lambda key, data: ((2,), KEY), kind=Kind.RANDOM)


def key(seed: Any, name: str | None = None) -> Tensor:
    """The key of a seed: an int, or an integer tensor of shape ().

    >>> key(7)
    array([7, 0], dtype=uint64)
    """
    if _is_int(seed):
        return convert(np.array([seed & _WORD, (seed >> 64) & _WORD], KEY), name=name)
    return make(_key, (_integer_scalar("key", "seed", seed),), NO_ATTRS, name)


def split(key: Any, num: int = 2, name: str | None = None) -> Tensor:
    """`num` new keys, of shape [num, 2], independent of each other and of numbers drawn with the old key.

    >>> split(key(0), 3).shape
    (3, 2)
    """
    if not _is_int(num) or num < 0:
        raise ValueError(f"random.split: num must be a non-negative int, got {brief(num)}")
    return make(_split, (_as_key("split", key),), {"num": int(num)}, name)


def fold_in(key: Any, data: Any, name: str | None = None) -> Tensor:
    """A new key from a key and an integer, such as the number of a training step.

    >>> bool((fold_in(key(0), 1) == fold_in(key(0), 2)).all())
    False
    """
    data = np.array(int(data) & _WORD, KEY) if _is_int(data) else _integer_scalar("fold_in", "data", data)
    return make(_fold_in, (_as_key("fold_in", key), data), NO_ATTRS, name)


def _is_int(x: Any) -> bool:
    return isinstance(x, int | np.integer) and not isinstance(x, bool)


def _integer_scalar(what: str, argument: str, x: Any) -> Any:
    x = typed(x)
    if x.dtype.kind not in "iu" or x.shape != ():
        raise TypeError(f"random.{what}: {argument} must be one integer, got {x.dtype} of shape {list(x.shape)}")
    return x


def _as_key(what: str, key_or_seed: Any) -> Any:
    if _is_int(key_or_seed):
        return key(int(key_or_seed))
    made = typed(key_or_seed)
    if made.dtype.kind in "iu" and made.shape == ():
        return key(made)
    if made.dtype != KEY or made.shape != (2,):
        raise TypeError(
            f"random.{what}: key must be uint64 of shape [2] (from random.key, split or fold_in) or an int seed, "
            f"got {made.dtype} of shape {list(made.shape)}"
        )
    return made


# -- distributions -----------------------------------------------------------------------------------------------


def _draw_infer(key: Typed, *, shape: Shape, dtype: DType) -> tuple[Shape, DType]:
    return shape, dtype


def _randint_infer(key: Typed, low: Typed, high: Typed, *, shape: Shape, dtype: DType) -> tuple[Shape, DType]:
    return shape, dtype


_uniform = define("StatelessRandomUniform", _draw_infer, kind=Kind.RANDOM)
_normal = define("StatelessRandomNormal", _draw_infer, kind=Kind.RANDOM)
_truncated_normal = define("StatelessTruncatedNormal", _draw_infer, kind=Kind.RANDOM)
_randint = define("StatelessRandomUniformInt", _randint_infer, kind=Kind.RANDOM)
_categorical = define("StatelessCategorical", lambda key, logits, *, shape: (shape, INT), kind=Kind.RANDOM)
_permutation = define("StatelessPermutation", lambda key, *, n: ((n,), INT), kind=Kind.RANDOM)

for _type in (
    "RandomKey", "RandomSplit", "RandomFoldIn", "StatelessRandomUniform", "StatelessRandomNormal",
    "StatelessTruncatedNormal", "StatelessRandomUniformInt", "StatelessCategorical", "StatelessPermutation",
):  # fmt: skip
    no_gradient(_type)


def uniform(
    key: Any, shape: Any = None, dtype: Any = FLOAT, minval: Any = 0.0, maxval: Any = 1.0, name: str | None = None
) -> Tensor:
    """Uniform numbers from [minval, maxval), differentiable in the bounds.

    Rounding may give maxval if the dtype has few numbers between the bounds, like float16 between 1000 and 1001.
    The default shape is that of the broadcast bounds.

    >>> uniform(key(0), (2, 3), "float32").dtype
    dtype('float32')
    """
    dtype, minval, maxval = _parameters("uniform", dtype, minval, maxval)
    attrs = {"shape": _shape("uniform", shape, minval=minval, maxval=maxval), "dtype": dtype}
    if _is_number(minval, 0) and _is_number(maxval, 1):
        return make(_uniform, (_as_key("uniform", key),), attrs, name)
    draw = make(_uniform, (_as_key("uniform", key),), attrs)
    return add(multiply(draw, maxval - minval), minval, name=name)


def normal(
    key: Any, shape: Any = None, dtype: Any = FLOAT, mean: Any = 0.0, stddev: Any = 1.0, name: str | None = None
) -> Tensor:
    """Normally distributed numbers, differentiable in mean and stddev.

    The default shape is that of mean and stddev, broadcast together.

    >>> normal(key(0), mean=np.zeros(3)).shape
    (3,)
    """
    return _normal_like(_normal, "normal", key, shape, dtype, mean, stddev, name)


def truncated_normal(
    key: Any, shape: Any = None, dtype: Any = FLOAT, mean: Any = 0.0, stddev: Any = 1.0, name: str | None = None
) -> Tensor:
    """Normally distributed numbers within two standard deviations of the mean.

    >>> bool((abs(truncated_normal(key(0), 1000)) <= 2).all())
    True
    """
    return _normal_like(_truncated_normal, "truncated_normal", key, shape, dtype, mean, stddev, name)


def _normal_like(
    definition: Any, what: str, key: Any, shape: Any, dtype: Any, mean: Any, stddev: Any, name: str | None
) -> Tensor:
    dtype, mean, stddev = _parameters(what, dtype, mean, stddev)
    attrs = {"shape": _shape(what, shape, mean=mean, stddev=stddev), "dtype": dtype}
    scaled, shifted = not _is_number(stddev, 1), not _is_number(mean, 0)
    draw = make(definition, (_as_key(what, key),), attrs, None if scaled or shifted else name)
    if scaled:
        draw = multiply(draw, stddev, name=None if shifted else name)
    return add(draw, mean, name=name) if shifted else draw


def bernoulli(key: Any, p: Any = 0.5, shape: Any = None, name: str | None = None) -> Tensor:
    """Booleans that are True with probability p; the default shape is that of p.

    >>> bernoulli(key(0), [0.0, 1.0])
    array([False,  True])
    """
    p = typed(p)
    if p.dtype.kind == "c" or not (trainable(p.dtype) or p.dtype.kind in "iub"):
        raise TypeError(f"random.bernoulli: p must be real numbers between 0 and 1, got dtype {p.dtype}")
    p = p if p.dtype in _FLOATS else as_dtype(p, FLOAT)
    return less(uniform(key, _shape("bernoulli", shape, p=p), p.dtype), p, name=name)


def randint(key: Any, shape: Any, minval: Any, maxval: Any, dtype: Any = INT, name: str | None = None) -> Tensor:
    """Uniform integers from [minval, maxval); the bounds may be tensors.

    >>> randint(key(0), 3, 5, 6)
    array([5, 5, 5])
    """
    dtype = np.dtype(dtype)
    if dtype.kind not in "iu":
        raise TypeError(f"random.randint: dtype must be an integer dtype, got {dtype}; for floats use random.uniform")
    if _is_int(minval) and _is_int(maxval):
        _check_bounds(int(minval), int(maxval), dtype)
    low, high = _bound("minval", minval), _bound("maxval", maxval)
    attrs = {"shape": _shape("randint", shape, minval=low, maxval=high), "dtype": dtype}
    return make(_randint, (_as_key("randint", key), low, high), attrs, name)


def _check_bounds(low: int, high: int, dtype: DType) -> None:
    info = np.iinfo(dtype)
    if not info.min <= low < high <= min(int(info.max) + 1, _WORD):  # the largest integer of NumPy
        raise ValueError(
            f"random.randint: minval must be below maxval, both within {dtype} ({info.min} to {info.max}); "
            f"got minval={low}, maxval={high}"
        )


def _bound(argument: str, x: Any) -> Any:
    x = typed(x)
    if x.dtype.kind not in "iu":
        raise TypeError(f"random.randint: {argument} must be integers, got dtype {x.dtype}")
    return x


def categorical(key: Any, logits: Any, axis: int = -1, shape: Any = None, name: str | None = None) -> Tensor:
    """Draw class indices with probabilities softmax(logits) along an axis.

    By default one draw per row of logits; a shape must end in the shape of the rows.

    >>> categorical(key(0), np.array([-np.inf, 0.0]), shape=(3,))
    array([1, 1, 1])
    """
    logits = typed(logits)
    logits = logits if logits.dtype in _FLOATS else as_dtype(logits, FLOAT)
    axis = normalize_axis(axis, len(logits.shape))
    if axis != len(logits.shape) - 1:
        logits = moveaxis(logits, axis, -1)
    rows = logits.shape[:-1]
    shape = rows if shape is None else as_shape(shape)
    if logits.shape[-1] == 0:
        raise ValueError(f"random.categorical: logits {list(logits.shape)} have no class to draw along axis {axis}")
    if shape[len(shape) - len(rows) :] != rows:
        raise ValueError(
            f"random.categorical: shape {list(shape)} must end in the shape of the rows of logits, {list(rows)}"
        )
    return make(_categorical, (_as_key("categorical", key), logits), {"shape": shape}, name)


def permutation(key: Any, x: Any, axis: int = 0, name: str | None = None) -> Tensor:
    """Shuffle the slices of x along an axis; for an int n, shuffle range(n).

    >>> sorted(permutation(key(0), 4).tolist())
    [0, 1, 2, 3]
    """
    if _is_int(x):
        if x < 0:
            raise ValueError(f"random.permutation: x must be a tensor or a non-negative int, got {brief(x)}")
        return make(_permutation, (_as_key("permutation", key),), {"n": int(x)}, name)
    x = typed(x)
    axis = normalize_axis(axis, len(x.shape))
    order = make(_permutation, (_as_key("permutation", key),), {"n": x.shape[axis]})
    return take(x, order, axis=axis, name=name)


# -- arguments ---------------------------------------------------------------------------------------------------


def _parameters(what: str, dtype: Any, *values: Any) -> tuple[Any, ...]:
    """The dtype of the draw, and its parameters in that dtype; Python numbers are unchanged."""
    dtype = np.dtype(dtype)
    if dtype not in _FLOATS:
        hint = "; for integers use random.randint" if dtype.kind in "iu" else ""
        raise TypeError(f"random.{what}: dtype must be float16, float32 or float64, got {dtype}{hint}")
    return dtype, *[v if type(v) in (int, float) else as_dtype(typed(v), dtype) for v in values]


def _is_number(x: Any, number: int) -> bool:
    return type(x) in (int, float) and x == number


def _shape(what: str, shape: Any, **parameters: Any) -> Shape:
    """The shape of the result, to which every parameter must broadcast."""
    full: Shape = () if shape is None else as_shape(shape)
    if any(n < 0 for n in full):
        raise ValueError(f"random.{what}: shape must not be negative, got {list(full)}")
    for argument, p in parameters.items():
        given = getattr(p, "shape", ())
        try:
            broadcast = broadcast_shapes(full, given)
        except ValueError:
            broadcast = None
        if broadcast is None or (shape is not None and broadcast != full):
            raise ValueError(f"random.{what}: {argument} of shape {list(given)} does not broadcast to {list(full)}")
        full = broadcast
    return full


__all__ = [
    "bernoulli", "categorical", "fold_in", "key", "normal", "permutation", "randint", "split", "truncated_normal",
    "uniform",
]  # fmt: skip
guard_all(globals(), __all__)
