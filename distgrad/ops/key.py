"""Parsing of keys, as in `x[key]`, by NumPy's rules while the graph is built.

Each entry of a normalized key is a non-negative int, None (a new axis), (start, count, step), or ARRAY, which refers to
the next index array.
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
    """A normalized key, and its index arrays."""

    entries: tuple[Any, ...]
    arrays: tuple[Any, ...]


def indexed_shape(index: tuple[Any, ...], arrays: Sequence[Typed]) -> Shape:
    """The shape of x[key]. The axes of index arrays replace the indexed ones, or come first if a slice separates them.

    Next to an index array, an int counts as an index array.
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
    """Normalize a key for a tensor of this shape."""
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
    """Convert an entry to None, Ellipsis, a slice, an int, an integer tensor, or an integer or boolean array."""
    if k is None or k is Ellipsis or isinstance(k, slice):
        return k
    if isinstance(k, int | np.integer) and not isinstance(k, bool):
        return int(k)
    made = _as_array(k)
    if made.dtype.kind == "b" and isinstance(made, Tensor):
        raise TypeError(
            f"{made!r} is a boolean mask: the shape of the result would depend on data. Use where(mask, x, 0) to keep "
            f"the shape, or index with a NumPy array of booleans."
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
        array = np.asarray(k)  # not a constant of the graph: its values are needed now
        return array if array.size else array.astype(INT)
    return np.asarray(k) if isinstance(k, np.generic | bool) else typed(k)


def _consumed(item: Any) -> int:
    """The number of axes of x that an entry indexes."""
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
        raise IndexError(f"a mask of shape {list(mask.shape)} does not match axes of shape {list(covered)}")
    return tuple(mask.nonzero())


def known(x: Any) -> Any:
    """The value of an index if it is static, else None."""
    if not isinstance(x, Tensor):
        return x
    return x.op.attrs["value"] if x.op.type == "Const" else None


def checked(indices: Any, n: int, axis: int) -> Any:
    """Check the range of static indices and make them non-negative. Other indices are checked at run time."""
    value = known(indices)
    if value is None or not value.size:
        return indices
    low, high = int(value.min()), int(value.max())
    if not -n <= low <= high < n:
        raise IndexError(f"index {high if high >= n else low} is out of bounds for axis {axis} with size {n}")
    return indices if low >= 0 else np.where(value < 0, value.astype(INT) + n, value)
