"""Shapes: reshaping, permuting, broadcasting, joining and cutting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from distgrad.graph import Operation, Tensor
from distgrad.ops.builder import common, make, typed
from distgrad.registry import RegisterGradient, define
from distgrad.types import DType, Shape, Typed, as_shape, broadcast_shapes, normalize_axis, size_of, spec_of, trainable

# -- cast (defined in builder, which promotion needs) ------------------------------------------------------------


@RegisterGradient("Cast")
def _cast_grad(op: Operation, g: Tensor) -> Any:
    from distgrad.ops.builder import cast

    (x,) = op.inputs
    return cast(g, x.dtype) if trainable(x.dtype) else None


# -- reshape -----------------------------------------------------------------------------------------------------

_reshape = define("Reshape", lambda x, *, shape: (shape, x.dtype))


def reshape(a: Any, shape: Any, name: str | None = None) -> Tensor:
    """The same elements, in order, in another shape; one size may be -1.

    >>> import numpy as np
    >>> reshape(np.arange(6), (2, -1)).shape
    (2, 3)
    """
    a = typed(a)
    return make(_reshape, (a,), {"shape": _full_shape(as_shape(shape), a)}, name)


def _full_shape(shape: Shape, a: Typed) -> Shape:
    known = size_of(n for n in shape if n != -1)
    if shape.count(-1) == 1 and known > 0 and size_of(a.shape) % known == 0:
        return tuple(size_of(a.shape) // known if n == -1 else n for n in shape)
    if shape.count(-1) or known != size_of(a.shape) or any(n < 0 for n in shape):
        raise ValueError(f"cannot reshape a tensor of shape {list(a.shape)} into {list(shape)}")
    return shape


@RegisterGradient("Reshape")
def _reshape_grad(op: Operation, g: Tensor) -> Any:
    return reshape(g, op.inputs[0].shape)


# -- broadcast_to ------------------------------------------------------------------------------------------------

_broadcast_to = define("BroadcastTo", lambda x, *, shape: (shape, x.dtype), broadcasting=True)


def broadcast_to(array: Any, shape: Any, name: str | None = None) -> Tensor:
    """The array repeated along new and unit axes until it has this shape."""
    array, shape = typed(array), as_shape(shape)
    if broadcast_shapes(array.shape, shape) != shape:
        raise ValueError(f"a tensor of shape {list(array.shape)} cannot be broadcast to {list(shape)}")
    return make(_broadcast_to, (array,), {"shape": shape}, name)


@RegisterGradient("BroadcastTo")
def _broadcast_to_grad(op: Operation, g: Tensor) -> Any:
    return g  # the engine sums it to the input's shape


# -- joining -----------------------------------------------------------------------------------------------------


def _concat_infer(*xs: Typed, axis: int) -> tuple[Shape, DType]:
    first = xs[0]
    for x in xs:
        if x.shape[:axis] + x.shape[axis + 1 :] != first.shape[:axis] + first.shape[axis + 1 :]:
            raise ValueError(f"concatenate: {spec_of(first)} and {spec_of(x)} differ off axis {axis}")
    total = sum(x.shape[axis] for x in xs)
    return (*first.shape[:axis], total, *first.shape[axis + 1 :]), first.dtype


_concat = define("Concat", _concat_infer)


def concatenate(arrays: Sequence[Any], axis: int = 0, name: str | None = None) -> Tensor:
    """The arrays one after another along an existing axis."""
    xs = common(*arrays)
    return make(_concat, xs, {"axis": normalize_axis(axis, len(xs[0].shape))}, name)


def _stack_infer(*xs: Typed, axis: int) -> tuple[Shape, DType]:
    first = xs[0]
    for x in xs:
        if x.shape != first.shape:
            raise ValueError(f"stack: all shapes must be equal, got {list(first.shape)} and {list(x.shape)}")
    return (*first.shape[:axis], len(xs), *first.shape[axis:]), first.dtype


_stack = define("Stack", _stack_infer)


def stack(arrays: Sequence[Any], axis: int = 0, name: str | None = None) -> Tensor:
    """The arrays side by side along a new axis."""
    xs = common(*arrays)
    return make(_stack, xs, {"axis": normalize_axis(axis, len(xs[0].shape) + 1)}, name)



__all__ = ["broadcast_to", "concatenate", "reshape", "stack"]
