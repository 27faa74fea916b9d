"""Changes of layout: reshape, transpose, broadcast, join and split.

Depends only on the builder, so that reductions, indexing and gradients can use it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from distgrad.graph import Operation, Tensor
from distgrad.ops.builder import cast, check_parts, common, make, make_n, typed
from distgrad.ops.guard import guard_all
from distgrad.ops.indexed_slices import IndexedSlices
from distgrad.registry import Kind, RegisterGradient, View, define
from distgrad.types import (
    MAX_DIMS,
    DType,
    Shape,
    Typed,
    as_int,
    as_shape,
    brief,
    broadcast_shapes,
    normalize_axes,
    normalize_axis,
    size_of,
    spec_of,
    trainable,
)

# -- cast (defined in builder, for promotion) --------------------------------------------------------------------


@RegisterGradient("Cast")
def _cast_grad(op: Operation, g: Tensor) -> Any:
    (x,) = op.inputs
    return cast(g, x.dtype) if trainable(x.dtype) else None


# -- reshape -----------------------------------------------------------------------------------------------------

_reshape = define("Reshape", lambda x, *, shape: (shape, x.dtype), kind=Kind.LAYOUT, view=View.FLAT)


def reshape(a: Any, shape: Any, order: str = "C", name: str | None = None) -> Tensor:
    """Reshape, keeping the order of the elements; one size may be -1.

    >>> reshape(np.arange(6), (2, -1)).shape
    (2, 3)
    """
    if order != "C":
        raise ValueError(f"reshape: order must be 'C', got {brief(order)}; transpose a for another order")
    a = typed(a)
    return make(_reshape, (a,), {"shape": _full_shape(as_shape(shape), a)}, name)


def _full_shape(shape: Shape, a: Typed) -> Shape:
    known = size_of(n for n in shape if n != -1)
    if shape.count(-1) == 1 and known > 0 and size_of(a.shape) % known == 0:
        shape = tuple(size_of(a.shape) // known if n == -1 else n for n in shape)
    if size_of(shape) != size_of(a.shape) or any(n < 0 for n in shape):
        raise ValueError(f"reshape: cannot reshape a tensor of shape {list(a.shape)} into {list(shape)}")
    return shape


@RegisterGradient("Reshape")
def _reshape_grad(op: Operation, g: Tensor) -> Any:
    return reshape(g, op.inputs[0].shape)


def ravel(a: Any, name: str | None = None) -> Tensor:
    """Flatten to a vector.

    >>> ravel([[1, 2], [3, 4]])
    array([1, 2, 3, 4])
    """
    return reshape(a, -1, name=name)


def expand_dims(a: Any, axis: int | Sequence[int], name: str | None = None) -> Tensor:
    """Insert axes of size 1 at these positions of the result.

    >>> expand_dims(np.zeros(3), (0, -1)).shape
    (1, 3, 1)
    """
    a = typed(a)
    added = len(axis) if isinstance(axis, Sequence) else 1
    if added > MAX_DIMS:
        raise ValueError(f"expand_dims: there are at most {MAX_DIMS} axes, got {added:,}")
    ndim = len(a.shape) + added
    axes = normalize_axes(axis, ndim)
    sizes = iter(a.shape)
    return reshape(a, [1 if i in axes else next(sizes) for i in range(ndim)], name=name)


def squeeze(a: Any, axis: int | Sequence[int] | None = None, name: str | None = None) -> Tensor:
    """Remove axes of size 1: the given ones, or all.

    >>> squeeze(np.zeros((1, 3, 1)), axis=0).shape
    (3, 1)
    """
    a = typed(a)
    ones = tuple(i for i, n in enumerate(a.shape) if n == 1)
    axes = ones if axis is None else normalize_axes(axis, len(a.shape))
    for i in axes:
        if a.shape[i] != 1:
            raise ValueError(f"squeeze: axis {i} of shape {list(a.shape)} has size {a.shape[i]}, not 1")
    return reshape(a, [n for i, n in enumerate(a.shape) if i not in axes], name=name)


def atleast_1d(*arys: Any) -> Any:
    """View 0-d arrays as vectors; others are unchanged. Several arguments give a tuple.

    >>> atleast_1d(3.0)
    array([3.])
    """
    return _at_least(1, arys)


def atleast_2d(*arys: Any) -> Any:
    """View 0-d arrays and vectors as matrices of one row; others are unchanged. Several arguments give a tuple.

    >>> atleast_2d([1, 2]).shape
    (1, 2)
    """
    return _at_least(2, arys)


def _at_least(ndim: int, arrays: Sequence[Any]) -> Any:
    made = []
    for x in map(typed, arrays):
        missing = ndim - len(x.shape)
        made.append(x if missing <= 0 else reshape(x, (1,) * missing + x.shape))
    return made[0] if len(made) == 1 else tuple(made)


# -- transpose ---------------------------------------------------------------------------------------------------

_transpose = define(
    "Transpose", lambda x, *, axes: (tuple([x.shape[i] for i in axes]), x.dtype), kind=Kind.LAYOUT, view=View.STRIDED
)


def transpose(a: Any, axes: Sequence[int] | None = None, name: str | None = None) -> Tensor:
    """Permute the axes, by default in reverse order: axis i of the result is axis axes[i] of a.

    >>> transpose(np.zeros((2, 3, 4)), (1, 2, 0)).shape
    (3, 4, 2)
    """
    a = typed(a)
    ndim = len(a.shape)
    order = tuple(reversed(range(ndim))) if axes is None else tuple(normalize_axis(i, ndim) for i in axes)
    if sorted(order) != list(range(ndim)):
        raise ValueError(f"transpose: axes {brief(axes)} must name each axis of shape {list(a.shape)} once")
    return make(_transpose, (a,), {"axes": order}, name)


@RegisterGradient("Transpose")
def _transpose_grad(op: Operation, g: Tensor) -> Any:
    axes = op.attrs["axes"]
    return transpose(g, sorted(range(len(axes)), key=axes.__getitem__))


def permute_dims(a: Any, axes: Sequence[int] | None = None, name: str | None = None) -> Tensor:
    """Permute the axes: the name of `transpose` in the Array API.

    >>> permute_dims(np.zeros((2, 3)), (1, 0)).shape
    (3, 2)
    """
    return transpose(a, axes, name=name)


def swapaxes(a: Any, axis1: int, axis2: int, name: str | None = None) -> Tensor:
    """Exchange two axes.

    >>> swapaxes(np.zeros((2, 3, 4)), 0, -1).shape
    (4, 3, 2)
    """
    a = typed(a)
    axes = list(range(len(a.shape)))
    i, j = normalize_axis(axis1, len(axes)), normalize_axis(axis2, len(axes))
    axes[i], axes[j] = j, i
    return transpose(a, axes, name=name)


def moveaxis(a: Any, source: int | Sequence[int], destination: int | Sequence[int], name: str | None = None) -> Tensor:
    """Move axes to new positions; the others keep their order.

    >>> moveaxis(np.zeros((2, 3, 4)), 0, -1).shape
    (3, 4, 2)
    """
    a = typed(a)
    ndim = len(a.shape)
    given = [axis if isinstance(axis, Sequence) else (axis,) for axis in (source, destination)]
    sources, places = ([normalize_axis(i, ndim) for i in axes] for axes in given)
    if len(sources) != len(places) or len({*sources}) != len(sources) or len({*places}) != len(places):
        raise ValueError(
            f"moveaxis: source {brief(source)} and destination {brief(destination)} must be equally many distinct axes"
        )
    order = [i for i in range(ndim) if i not in sources]
    for place, axis in sorted(zip(places, sources, strict=True)):
        order.insert(place, axis)
    return transpose(a, order, name=name)


# -- broadcast_to ------------------------------------------------------------------------------------------------

_broadcast_to = define(
    "BroadcastTo", lambda x, *, shape: (shape, x.dtype), broadcasting=True, kind=Kind.LAYOUT, view=View.STRIDED
)


def broadcast_to(array: Any, shape: Any, name: str | None = None) -> Tensor:
    """Broadcast an array to this shape.

    >>> broadcast_to([1, 2], (2, 2))
    array([[1, 2],
           [1, 2]])
    """
    array, shape = typed(array), as_shape(shape)
    if len(array.shape) > len(shape) or broadcast_shapes(array.shape, shape) != shape:
        raise ValueError(f"broadcast_to: a tensor of shape {list(array.shape)} cannot be broadcast to {list(shape)}")
    return make(_broadcast_to, (array,), {"shape": shape}, name)


@RegisterGradient("BroadcastTo")
def _broadcast_to_grad(op: Operation, g: Tensor) -> Any:
    return g  # `gradients` sums it to the input's shape


# -- joining -----------------------------------------------------------------------------------------------------


def _concat_infer(*xs: Typed, axis: int) -> tuple[Shape, DType]:
    first = xs[0].shape
    around = first[:axis], first[axis + 1 :]
    for x in xs:
        if len(x.shape) != len(first) or (x.shape[:axis], x.shape[axis + 1 :]) != around:
            raise ValueError(f"concatenate: {spec_of(xs[0])} and {spec_of(x)} differ in axes other than {axis}")
    return (*around[0], sum(x.shape[axis] for x in xs), *around[1]), xs[0].dtype


_concat = define("Concat", _concat_infer, kind=Kind.LAYOUT)


def concatenate(arrays: Sequence[Any], axis: int | None = 0, name: str | None = None) -> Tensor:
    """Join arrays along an existing axis; with axis None they are flattened first.

    >>> concatenate([[1, 2], [3]])
    array([1, 2, 3])
    """
    xs = arrays_to_join("concatenate", arrays)
    if axis is None:
        xs, axis = tuple([ravel(x) for x in xs]), 0
    if not xs[0].shape:
        raise ValueError("concatenate: 0-d arrays have no axis to join along; use stack, or axis=None")
    return make(_concat, xs, {"axis": normalize_axis(axis, len(xs[0].shape))}, name)


def arrays_to_join(what: str, arrays: Sequence[Any]) -> tuple[Any, ...]:
    """The arguments of a function that joins arrays, checked and cast to a common dtype."""
    if not isinstance(arrays, Sequence | np.ndarray | Tensor) and not hasattr(arrays, "__tensor__"):
        raise TypeError(f"{what}: takes a sequence of arrays, got {brief(arrays)}")
    if isinstance(arrays, str | bytes) or not (isinstance(arrays, Sequence) or arrays.shape):
        raise TypeError(f"{what}: takes a sequence of arrays, got {brief(arrays)}")
    if len(arrays) == 0:
        raise ValueError(f"{what}: need at least one array")
    check_parts(what, len(arrays))
    return common(*arrays)


@RegisterGradient("Concat")
def _concat_grad(op: Operation, g: Any) -> Any:
    axis = op.attrs["axis"]
    if isinstance(g, IndexedSlices):
        from distgrad.ops.index import sparse_parts  # which imports this module

        return sparse_parts(g, [x.shape for x in op.inputs], axis)
    return _cut(g, tuple([x.shape[axis] for x in op.inputs]), axis)


def _stack_infer(*xs: Typed, axis: int) -> tuple[Shape, DType]:
    first = xs[0]
    for x in xs:
        if x.shape != first.shape:
            raise ValueError(f"stack: all shapes must be equal, got {list(first.shape)} and {list(x.shape)}")
    return (*first.shape[:axis], len(xs), *first.shape[axis:]), first.dtype


_stack = define("Stack", _stack_infer, kind=Kind.LAYOUT)


def stack(arrays: Sequence[Any], axis: int = 0, name: str | None = None) -> Tensor:
    """Join arrays along a new axis.

    >>> stack([[1, 2], [3, 4]], axis=-1)
    array([[1, 3],
           [2, 4]])
    """
    xs = arrays_to_join("stack", arrays)
    return make(_stack, xs, {"axis": normalize_axis(axis, len(xs[0].shape) + 1)}, name)


@RegisterGradient("Stack")
def _stack_grad(op: Operation, g: Tensor) -> Any:
    return unstack(g, op.attrs["axis"])


def hstack(tup: Sequence[Any], name: str | None = None) -> Tensor:
    """Join arrays horizontally: along axis 1, or axis 0 for vectors.

    >>> hstack([[1, 2], 3])
    array([1, 2, 3])
    """
    xs = [atleast_1d(x) for x in arrays_to_join("hstack", tup)]
    return concatenate(xs, 0 if len(xs[0].shape) == 1 else 1, name=name)


def vstack(tup: Sequence[Any], name: str | None = None) -> Tensor:
    """Join arrays vertically, along axis 0; vectors become rows.

    >>> vstack([[1, 2], [3, 4]]).shape
    (2, 2)
    """
    return concatenate([atleast_2d(x) for x in arrays_to_join("vstack", tup)], name=name)


# -- splitting ---------------------------------------------------------------------------------------------------


def _split_infer(x: Typed, *, sizes: tuple[int, ...], axis: int) -> list[tuple[Shape, DType]]:
    return [((*x.shape[:axis], n, *x.shape[axis + 1 :]), x.dtype) for n in sizes]


_split = define("Split", _split_infer, kind=Kind.LAYOUT, view=View.PART)


def _cut(x: Any, sizes: tuple[int, ...], axis: int, name: str | None = None) -> list[Tensor]:
    return make_n(_split, (x,), {"sizes": sizes, "axis": axis}, name)


def split(ary: Any, indices_or_sections: int | Sequence[int], axis: int = 0, name: str | None = None) -> list[Tensor]:
    """Split into equal parts (an int) or before these indices. The parts are outputs of one op.

    >>> split(np.arange(6), [1, 4])
    [array([0]), array([1, 2, 3]), array([4, 5])]
    """
    ary = typed(ary)
    axis = normalize_axis(axis, len(ary.shape))
    parts: Any = indices_or_sections
    if _is_int(parts) and parts > 0 and ary.shape[axis] % parts:
        raise ValueError(
            f"split: axis {axis} of shape {list(ary.shape)} cannot be split into {brief(parts)} equal parts; use "
            f"array_split"
        )
    return _cut(ary, _part_sizes("split", parts, ary.shape[axis]), axis, name)


def array_split(
    ary: Any, indices_or_sections: int | Sequence[int], axis: int = 0, name: str | None = None
) -> list[Tensor]:
    """Like `split`, but the parts may differ: the first ones are larger by one.

    >>> array_split(np.arange(5), 2)
    [array([0, 1, 2]), array([3, 4])]
    """
    ary = typed(ary)
    axis = normalize_axis(axis, len(ary.shape))
    return _cut(ary, _part_sizes("array_split", indices_or_sections, ary.shape[axis]), axis, name)


def _part_sizes(what: str, parts: Any, size: int) -> tuple[int, ...]:
    if _is_int(parts):
        if parts <= 0:
            raise ValueError(f"{what}: the number of sections must be larger than 0, got {parts}")
        check_parts(what, parts, size)
        return tuple(size // int(parts) + (i < size % int(parts)) for i in range(int(parts)))
    if not (isinstance(parts, Sequence) or (isinstance(parts, np.ndarray) and parts.ndim == 1)):
        raise TypeError(f"{what}: indices_or_sections must be an int or a sequence of ints, got {brief(parts)}")
    check_parts(what, len(parts), size)
    places = [slice(as_int(what, "an index", i)).indices(size)[1] for i in parts]
    sizes = tuple(stop - start for start, stop in pairwise([0, *places, size]))
    if any(n < 0 for n in sizes):
        raise ValueError(f"{what}: indices {brief(parts)} must not decrease")
    return sizes


def _is_int(x: Any) -> bool:
    return isinstance(x, int | np.integer)


@RegisterGradient("Split")
def _split_grad(op: Operation, *gs: Tensor) -> Any:
    return concatenate(gs, op.attrs["axis"])


def _unstack_infer(x: Typed, *, axis: int) -> list[tuple[Shape, DType]]:
    return [((*x.shape[:axis], *x.shape[axis + 1 :]), x.dtype)] * x.shape[axis]


_unstack = define("Unstack", _unstack_infer, kind=Kind.LAYOUT, view=View.PART)


def unstack(x: Any, axis: int = 0, name: str | None = None) -> list[Tensor]:
    """The slices of x along an axis, as the outputs of one op.

    >>> unstack(np.array([[1, 2], [3, 4]]), axis=1)
    [array([1, 3]), array([2, 4])]
    """
    x = typed(x)
    axis = normalize_axis(axis, len(x.shape))
    check_parts("unstack", x.shape[axis], 0 if isinstance(x, Tensor) else x.shape[axis])
    return make_n(_unstack, (x,), {"axis": axis}, name)


@RegisterGradient("Unstack")
def _unstack_grad(op: Operation, *gs: Tensor) -> Any:
    return stack(gs, op.attrs["axis"])


__all__ = [
    "array_split", "atleast_1d", "atleast_2d", "broadcast_to", "concatenate", "expand_dims", "hstack", "moveaxis",
    "permute_dims", "ravel", "reshape", "split", "squeeze", "stack", "swapaxes", "transpose", "unstack", "vstack",
]  # fmt: skip
guard_all(globals(), __all__)
