"""Keys: what stands between the brackets of `x[...]`, read by NumPy's rules while the graph is built.

A key made plain has per entry an int (never negative), None (a new axis), (start, count, step), or ARRAY, which stands
for the next of its index arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from distgrad.graph import Tensor
from distgrad.ops.builder import has_tensor, typed
from distgrad.types import INT, Shape, Typed, brief, broadcast_shapes

ARRAY = "array"


class Key(NamedTuple):
    """A key made plain, and the index arrays that it refers to."""

    entries: tuple[Any, ...]
    arrays: tuple[Any, ...]


def indexed_shape(index: tuple[Any, ...], arrays: Sequence[Typed]) -> Shape:
    """The shape of x[key]: the axes of index arrays come where those stand, or first if a slice stands between them.

    Beside an index array an int is one too.
    """
    places = [i for i, entry in enumerate(index) if arrays and (entry == ARRAY or isinstance(entry, int))]
    sizes = {i: 1 if e is None else e[1] for i, e in enumerate(index) if e is None or isinstance(e, tuple)}
    if not places:
        return tuple(sizes.values())
    together = places[-1] - places[0] == len(places) - 1
    first = places[0] if together else 0
    shape = _common_shape(arrays)
    return (*[n for i, n in sizes.items() if i < first], *shape, *[n for i, n in sizes.items() if i >= first])


def _common_shape(arrays: Sequence[Typed]) -> Shape:
    shape: Shape = ()
    try:
        for x in arrays:
            shape = broadcast_shapes(shape, x.shape)
    except ValueError:
        shapes = ", ".join(str(list(x.shape)) for x in arrays)
        raise IndexError(f"the index arrays' shapes {shapes} cannot be broadcast together") from None
    return shape


def parse(key: Any, shape: Shape) -> Key:
    """A key for a tensor of this shape, made plain."""
    items = _without_ellipsis([_item(k) for k in (key if isinstance(key, tuple) else (key,))], shape)
    index: list[Any] = []
    arrays: list[Any] = []
    axis = 0
    for item in items:
        if item is None:
            index.append(None)
        elif isinstance(item, slice):
            index.append(_span(item, shape[axis]))
        elif isinstance(item, int):
            index.append(_in_range(item, shape[axis], axis))
        else:
            found = _nonzero(item, shape, axis) if item.dtype.kind == "b" else (checked(item, shape[axis], axis),)
            index += [ARRAY] * len(found)
            arrays += found
        axis += _consumed(item)
    return Key(tuple(index), tuple(arrays))


def _item(k: Any) -> Any:
    """One entry as None, Ellipsis, a slice, a Python int, a tensor of integers, or an array of integers or booleans."""
    if k is None or k is Ellipsis or isinstance(k, slice):
        return k
    if isinstance(k, int | np.integer) and not isinstance(k, bool):
        return int(k)
    made = _as_array(k)
    if made.dtype.kind == "b" and isinstance(made, Tensor):
        raise TypeError(
            f"{made!r} is a boolean mask: the shape of the result would depend on data. Use where(mask, x, 0) to keep "
            f"the shape, or index with a NumPy array of booleans, whose values are known now."
        )
    if made.dtype.kind == "b" and not made.shape:
        raise IndexError(f"{brief(k)} is a boolean, not an index; use x[None] for a new axis, or where() to choose")
    if made.dtype.kind not in "iub":
        raise IndexError(
            f"only ints, slices, `...`, None and arrays of ints or booleans are valid indices, got {brief(k)}"
        )
    return made


def _as_array(k: Any) -> Any:
    if isinstance(k, list | tuple) and not has_tensor(k):
        array = np.asarray(k)  # not a constant of the graph: its values are looked at now
        return array if array.size else array.astype(INT)
    return np.asarray(k) if isinstance(k, np.generic | bool) else typed(k)


def _consumed(item: Any) -> int:
    """How many axes of x an entry speaks of."""
    if item is None or item is Ellipsis:
        return 0
    return len(item.shape) if not isinstance(item, int | slice) and item.dtype.kind == "b" else 1


def _without_ellipsis(items: list[Any], shape: Shape) -> list[Any]:
    count = sum(map(_consumed, items))
    if count > len(shape):
        raise IndexError(f"too many indices: {count} for a tensor of shape {list(shape)}, which has {len(shape)} axes")
    dots = [i for i, item in enumerate(items) if item is Ellipsis]
    if len(dots) > 1:
        raise IndexError("an index can have only one ellipsis ('...')")
    at = dots[0] if dots else len(items)
    return [*items[:at], *[slice(None)] * (len(shape) - count), *items[at + 1 :]]


def _span(s: slice, n: int) -> tuple[int, int, int]:
    if any(isinstance(part, Tensor) for part in (s.start, s.stop, s.step)):
        raise TypeError(
            f"{brief(s)} has bounds that are tensors: the shape of the result would depend on data. "
            f"For a window of fixed size, use gather(x, start + arange(size))."
        )
    span = range(*s.indices(n))
    return (span.start, len(span), span.step) if len(span) else (0, 0, 1)


def _in_range(i: int, n: int, axis: int) -> int:
    if not -n <= i < n:
        raise IndexError(f"index {i} is out of bounds for axis {axis} with size {n}")
    return i % n


def _nonzero(mask: Any, shape: Shape, axis: int) -> tuple[Any, ...]:
    covered = shape[axis : axis + mask.ndim]
    if mask.shape != covered:
        raise IndexError(f"a mask of shape {list(mask.shape)} does not fit axes {axis} and on of shape {list(covered)}")
    return tuple(mask.nonzero())


def known(x: Any) -> Any:
    """The value of an index that is fixed while the graph is built, else None."""
    if not isinstance(x, Tensor):
        return x
    return x.op.attrs["value"] if x.op.type == "Const" else None


def checked(indices: Any, n: int, axis: int) -> Any:
    """Indices known now: an error now if one is out of range, and none negative. Others are checked when they run."""
    value = known(indices)
    if value is None or not value.size:
        return indices
    low, high = int(value.min()), int(value.max())
    if not -n <= low <= high < n:
        raise IndexError(f"index {high if high >= n else low} is out of bounds for axis {axis} with size {n}")
    return indices if low >= 0 else np.where(value < 0, value.astype(INT) + n, value)
