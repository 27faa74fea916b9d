"""Arrays with some elements replaced: one op, Update, and the property `.at` of tensors, which builds it.

Update takes a base, a value, and the index arrays of a key; its attributes are the normalized `index` (see `key`) and
the `mode`. The result is the base with base[key] set to the value, or combined with it. An element that the key names
more than once is combined with every one of its values, in order; 'set' keeps the last.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from distgrad.graph import Operation, Tensor
from distgrad.ops.builder import as_dtype, cast, convert, make, typed
from distgrad.ops.index import getitem, scatter
from distgrad.ops.key import Key, indexed_shape, known, parse
from distgrad.ops.layout import broadcast_to, reshape
from distgrad.ops.math import conj, equal, maximum, minimum, multiply, where
from distgrad.registry import Kind, RegisterGradient, define
from distgrad.types import INT, DType, Shape, Typed, brief, broadcasts_to, size_of, spec_of

#: The function that combines what is there with a value, by mode; 'set' has none.
COMBINE: dict[str, Callable[..., Any]] = {"multiply": multiply, "minimum": minimum, "maximum": maximum}
MODES = ("set", "add", *COMBINE)


def _update_infer(base: Typed, value: Typed, *arrays: Typed, index: tuple[Any, ...], mode: str) -> tuple[Shape, DType]:
    places = indexed_shape(index, arrays)
    if value.shape != places or value.dtype != base.dtype:
        raise ValueError(f"update: a value {spec_of(value)} does not fit a key of {spec_of(base)} of shape {[*places]}")
    return base.shape, base.dtype


_update = define("Update", _update_infer, kind=Kind.SCATTER, updates=True)


def update(x: Any, key: Any, value: Any, mode: str = "set", name: str | None = None) -> Tensor:
    """A copy of x with x[key] set to a value or, by mode, combined with it: 'add', 'multiply', 'minimum', 'maximum'.

    The value is broadcast to the shape of x[key], and must have a dtype that x can hold. Positions that occur more than
    once in the key are combined with each of their values; 'set' keeps the last. `x.at[key].add(value)` is the same.

    >>> update(np.zeros(3), slice(1, 3), 5.0)
    array([0., 5., 5.])
    >>> update(np.zeros(3), [0, 2, 0], [1.0, 2.0, 3.0], "add")
    array([4., 0., 2.])
    """
    if mode not in MODES:
        raise ValueError(f"update: mode must be one of {', '.join(MODES)}, got {brief(mode)}")
    x = typed(x)
    return updated(x, parse(key, x.shape), _fitting(x, value), mode, name)


def _fitting(x: Any, value: Any) -> Any:
    """The value in the dtype of x, if NumPy would promote it to that."""
    if isinstance(value, bool | int | float | complex):
        made = np.result_type(x.dtype, value)
    else:
        value = typed(value)
        made = np.result_type(x.dtype, value.dtype)
    if made != x.dtype:
        raise TypeError(f"update: {brief(value)} has a dtype that an array of {x.dtype} cannot hold; cast it")
    return as_dtype(value, x.dtype)


def updated(x: Any, key: Key, value: Any, mode: str = "set", name: str | None = None) -> Tensor:
    """`update` with a normalized key and a value in the dtype of x."""
    places = indexed_shape(key.entries, key.arrays)
    if value.shape != places:
        value = _spread(value, places)
    if mode in COMBINE and not may_repeat(key, x.shape):
        there = make_take(x, key)
        return updated(x, key, COMBINE[mode](there, value), "set", name)
    return make(_update, (x, value, *key.arrays), {"index": key.entries, "mode": mode}, name)


def make_take(x: Any, key: Key) -> Tensor:
    """x[key] for a normalized key."""
    return getitem(x, restored(key))


def restored(key: Key) -> tuple[Any, ...]:
    """A normalized key as a key that can be parsed again."""
    arrays = iter(key.arrays)
    made: list[Any] = []
    for entry in key.entries:
        if isinstance(entry, tuple):
            start, count, step = entry
            stop = start + count * step
            made.append(slice(start, stop if stop >= 0 else None, step) if count else slice(0, 0))
        else:
            made.append(entry if entry is None or isinstance(entry, int) else next(arrays))
    return tuple(made)


def _spread(value: Any, places: Shape) -> Any:
    """The value broadcast to the shape of the key; as in NumPy, extra leading axes of size 1 do not matter."""
    shape = value.shape
    while len(shape) > len(places) and shape[0] == 1:
        shape = shape[1:]
    if not broadcasts_to(shape, places):
        raise ValueError(
            f"a value of shape {list(value.shape)} cannot be assigned to a key of shape {list(places)}: it does not "
            f"broadcast"
        )
    return broadcast_to(value if shape == value.shape else reshape(value, shape), places)


def may_repeat(key: Key, shape: Shape) -> bool:
    """Whether the key may name an element more than once."""
    if not key.arrays:
        return False
    values = [known(x) for x in key.arrays]
    if any(value is None for value in values):
        return size_of(indexed_shape(key.entries, key.arrays)) > 1
    places = np.arange(size_of(shape)).reshape(shape)[restored(Key(key.entries, tuple(values)))]
    return bool(len(np.unique(places)) < places.size)


# -- gradients ---------------------------------------------------------------------------------------------------


@RegisterGradient("Update")
def _update_grad(op: Operation, g: Tensor) -> Any:
    key = Key(op.attrs["index"], op.inputs[2:])
    return *_RULES[op.attrs["mode"]](op, g, key), *[None] * len(key.arrays)


def _set_grad(op: Operation, g: Tensor, key: Key) -> tuple[Any, Any]:
    there = make_take(g, key)
    kept = updated(g, key, _zeros(there))
    if may_repeat(key, g.shape):
        there = where(_last(key, g.shape, there.shape), there, 0)
    return kept, there


def _zeros(x: Tensor) -> Any:
    return broadcast_to(convert(np.zeros((), x.dtype)), x.shape)


def _last(key: Key, shape: Shape, places: Shape) -> Tensor:
    """Which of the values of a key stay, where later ones replace earlier ones."""
    numbers = np.arange(size_of(places), dtype=INT).reshape(places)
    owners = updated(np.full(shape, -1, INT), key, numbers)
    return equal(make_take(owners, key), numbers)


def _add_grad(op: Operation, g: Tensor, key: Key) -> tuple[Any, Any]:
    return g, make_take(g, key)


def _multiply_grad(op: Operation, g: Tensor, key: Key) -> tuple[Any, Any]:
    """Only for keys that may repeat: where one of several values is zero, the gradient of the value is NaN."""
    value = op.inputs[1]
    others = make_take(op.outputs[0], key) / value
    return updated(g, key, conj(value), "multiply"), make_take(g, key) * conj(others)


def _extreme_grad(op: Operation, g: Tensor, key: Key) -> tuple[Any, Any]:
    """The gradient goes to what won; shared equally where several did."""
    base, value = op.inputs[:2]
    won, stayed = cast(equal(value, make_take(op.outputs[0], key)), g.dtype), equal(base, op.outputs[0])
    count = scatter(won, restored(key), g.shape) + cast(stayed, g.dtype)
    share = g / maximum(count, 1)
    return where(stayed, share, 0), won * make_take(share, key)


_RULES = {
    "set": _set_grad, "add": _add_grad, "multiply": _multiply_grad, "minimum": _extreme_grad,
    "maximum": _extreme_grad,
}  # fmt: skip


# -- x.at[key].set(value) ----------------------------------------------------------------------------------------


class At:
    """`x.at`: give it a key, as in `x.at[1:3].add(2.0)`."""

    __slots__ = ("_x",)

    def __init__(self, x: Any):
        self._x = x

    def __getitem__(self, key: Any) -> Place:
        return Place(self._x, key)


class Place:
    """`x.at[key]`: its methods return a copy of x with x[key] replaced by, or combined with, a value."""

    __slots__ = ("_key", "_x")

    def __init__(self, x: Any, key: Any):
        self._x, self._key = x, key

    def get(self) -> Any:
        """x[key]."""
        return getitem(self._x, self._key)

    def _made(self, value: Any, mode: str) -> Any:
        x, mask = typed(self._x), mask_of(self._key)
        if mask is None:
            return update(x, self._key, value, mode)
        value = _fitting(x, value)
        mask = aligned(mask, x.shape)
        if not broadcasts_to(value.shape, x.shape[len(mask_of(self._key).shape) :]):
            raise ValueError(
                f"x.at[mask].{mode}: a value of shape {list(value.shape)} does not broadcast to the elements of "
                f"{spec_of(x)} that a mask selects, of which the number depends on data"
            )
        return where(mask, value if mode == "set" else (COMBINE.get(mode) or _plus)(x, value), x)

    def set(self, value: Any) -> Any:
        """A copy of x in which x[key] is the value."""
        return self._made(value, "set")

    def add(self, value: Any) -> Any:
        """A copy of x with the value added to x[key]; positions that occur several times in the key are added up."""
        return self._made(value, "add")

    def multiply(self, value: Any) -> Any:
        """A copy of x with x[key] multiplied by the value."""
        return self._made(value, "multiply")

    def minimum(self, value: Any) -> Any:
        """A copy of x with x[key] at most the value."""
        return self._made(value, "minimum")

    def maximum(self, value: Any) -> Any:
        """A copy of x with x[key] at least the value."""
        return self._made(value, "maximum")

    min, max = minimum, maximum


def _plus(x: Any, value: Any) -> Any:
    return x + value


def mask_of(key: Any) -> Any:
    """The boolean tensor that a key consists of, if it does."""
    if isinstance(key, tuple) and len(key) == 1:
        (key,) = key
    return key if isinstance(key, Tensor) and key.dtype.kind == "b" else None


def aligned(mask: Any, shape: Shape) -> Any:
    """A mask of the leading axes of an array, with axes of size 1 for the others."""
    if mask.shape != shape[: len(mask.shape)]:
        raise IndexError(f"a mask of shape {list(mask.shape)} does not match an array of shape {list(shape)}")
    rest = len(shape) - len(mask.shape)
    return reshape(mask, (*mask.shape, *[1] * rest)) if rest else mask
