"""Which elements of an array a view of it shows, found out by NumPy itself on arrays without content.

The *shadow* of an array is a NumPy array of its shape, of which only the address and the strides matter: what an op
does to them, the same function of NumPy does to the shadow. So whether NumPy would copy is not decided here. A `Place`
is what that gives: offset, shape and strides, in elements of the array that owns the memory (the root). Reading and
writing a place builds ops on the root's value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import as_strided

from distgrad.graph import Tensor
from distgrad.ops.assignment.update import restored, updated
from distgrad.ops.index import getitem
from distgrad.ops.key import Key
from distgrad.ops.layout import reshape, transpose
from distgrad.types import INT, Shape, size_of

Array = np.ndarray[Any, np.dtype[Any]]
Shadow = Callable[[Array, int, Mapping[str, Any]], Array | None]


def _split(x: Array, i: int, attrs: Mapping[str, Any]) -> Array:
    start = sum(attrs["sizes"][:i])
    part: Array = x[(slice(None),) * attrs["axis"] + (slice(start, start + attrs["sizes"][i]),)]
    return part


def _reshape(x: Array, i: int, attrs: Mapping[str, Any]) -> Array | None:
    try:
        return np.reshape(x, attrs["shape"], copy=False)
    except ValueError:  # NumPy would copy
        return None


def _same(x: Array, i: int, attrs: Mapping[str, Any]) -> Array:
    return x


#: What output i of an op does to the shadow of its first input; None where NumPy copies.
SHADOWS: dict[str, Shadow] = {
    "StridedSlice": lambda x, i, attrs: x[(*restored(Key(attrs["index"], ())), ...)],
    "Transpose": lambda x, i, attrs: x.transpose(attrs["axes"]),
    "Reverse": lambda x, i, attrs: np.flip(x, attrs["axis"]),
    "Reshape": _reshape,
    "BroadcastTo": lambda x, i, attrs: np.broadcast_to(x, attrs["shape"]),
    "Split": _split,
    "Unstack": lambda x, i, attrs: np.moveaxis(x, attrs["axis"], 0)[i, ...],
    "MatrixDiagPart": lambda x, i, attrs: np.diagonal(x, attrs["offset"], -2, -1),
    "Real": _same,
    "Imag": _same,
}


def blank(shape: Shape) -> Array:
    """The shadow of an array of its own: one byte for each element, never touched."""
    return np.empty(shape, np.uint8)


class Place(NamedTuple):
    """Elements of a root, by offset, shape and strides."""

    offset: int
    shape: Shape
    strides: tuple[int, ...]


def place_of(shadow: Array, root: Array) -> Place:
    """The place of a shadow in its root, which is contiguous."""
    size = root.itemsize
    start = (shadow.__array_interface__["data"][0] - root.__array_interface__["data"][0]) // size
    return Place(start, shadow.shape, tuple([s // size for s in shadow.strides]))


def same_place(a: Array, b: Array) -> bool:
    return (
        a.shape == b.shape and a.strides == b.strides and a.__array_interface__["data"] == b.__array_interface__["data"]
    )


class _Cut(NamedTuple):
    """A place as a basic key of an array of some shape: a key, and the axes of the place in the order of the key's."""

    entries: tuple[Any, ...]
    axes: tuple[int, ...]


def _cut(place: Place, shape: Shape) -> _Cut | None:
    """The basic key that gives a place of a contiguous array of this shape, if one does."""
    weights = [size_of(shape[i + 1 :]) for i in range(len(shape))]
    entries: list[Any] = [place.offset // w % n for w, n in zip(weights, shape, strict=True)]
    used: dict[int, int] = {}
    for axis, (count, stride) in enumerate(zip(place.shape, place.strides, strict=True)):
        if count == 1:
            continue
        found = _axis(shape, weights, entries, count, stride)
        if found is None:
            return None
        i, step = found
        entries[i] = (entries[i], count, step)
        used[i] = axis
    return _Cut(tuple(entries), tuple([used[i] for i in sorted(used)]))


def _axis(shape: Shape, weights: list[int], entries: list[Any], count: int, stride: int) -> tuple[int, int] | None:
    """The axis of the array along which this many steps of a stride lead, and the step in it."""
    for i, (n, w) in enumerate(zip(shape, weights, strict=True)):
        if n == 1 or not stride or stride % w or isinstance(entries[i], tuple):
            continue
        step = stride // w
        if 0 <= entries[i] + step * (count - 1) < n:
            return i, step
    return None


def _contiguous(place: Place) -> bool:
    weights = [size_of(place.shape[i + 1 :]) for i in range(len(place.shape))]
    return all(n == 1 or s == w for n, s, w in zip(place.shape, place.strides, weights, strict=True))


def _indices(place: Place, size: int) -> Array:
    """The place as indices of the flat root."""
    numbers = np.arange(size, dtype=INT)
    strides = tuple(s * numbers.itemsize for s in place.strides)
    return np.array(as_strided(numbers[place.offset :], place.shape, strides))


def _flat(place: Place) -> Place:
    return Place(place.offset, (size_of(place.shape),), (1,))


def whole(place: Place, shape: Shape) -> bool:
    return place.offset == 0 and place.shape == shape and _contiguous(place)


def read(root: Tensor, place: Place) -> Tensor:
    """The elements of a place, as a tensor of its shape."""
    if whole(place, root.shape):
        return root
    if not size_of(place.shape):
        return getitem(reshape(root, -1), np.zeros(place.shape, INT))
    cut = _cut(place, root.shape)
    if cut is not None:
        made = getitem(root, restored(Key(cut.entries, ())))
        order = tuple(sorted(range(len(cut.axes)), key=cut.axes.__getitem__))
        if order != tuple(range(len(order))):
            made = transpose(made, order)
        return made if made.shape == place.shape else reshape(made, place.shape)
    flat = reshape(root, -1)
    if _contiguous(place):
        return reshape(read(flat, _flat(place)), place.shape)
    return getitem(flat, _indices(place, flat.shape[0]))


def write(root: Tensor, place: Place, value: Any, mode: str = "set") -> Tensor:
    """The root with a value at a place; the value has the shape of the place, or none."""
    if not size_of(place.shape):
        return root
    cut = _cut(place, root.shape)
    if cut is not None:
        key = Key(cut.entries, ())
        return updated(root, key, _turned(value, place.shape, cut.axes), mode)
    flat = reshape(root, -1)
    if _contiguous(place):
        value = reshape(value, -1) if value.shape else value
        made = write(flat, _flat(place), value, mode)
    else:
        key = Key(("array",), (_indices(place, flat.shape[0]),))
        made = updated(flat, key, value, mode)
    return reshape(made, root.shape)


def _turned(value: Any, shape: Shape, axes: tuple[int, ...]) -> Any:
    """A value of a place's shape with the axes in the order of the key's."""
    if not value.shape:
        return value
    if len(axes) < len(shape):
        value = reshape(value, [n for n in shape if n != 1])
    kept = sorted(axes)
    order = [kept.index(axis) for axis in axes]
    return value if order == sorted(order) else transpose(value, order)
