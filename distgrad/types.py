"""Shapes and dtypes. Knows NumPy's dtypes and nothing else of distgrad."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import numpy as np

Shape = tuple[int, ...]
DType = np.dtype[Any]

#: Maximum number of axes of a NumPy array.
MAX_DIMS = 64

FLOAT = np.dtype(np.float64)
INT = np.dtype(np.int64)
BOOL = np.dtype(np.bool_)

_SHORT = {"float": "f", "int": "i", "uint": "u", "complex": "c"}


class Typed(Protocol):
    """Anything with a static shape and dtype: a Tensor, a NumPy array, a Spec."""

    @property
    def shape(self) -> Shape: ...
    @property
    def dtype(self) -> DType: ...


class Spec(NamedTuple):
    """The static type of one value.

    >>> print(Spec((8, 3), np.dtype("float32")))
    f32[8,3]
    """

    shape: Shape
    dtype: DType

    def __str__(self) -> str:
        return type_text(self.shape, self.dtype)


def spec_of(x: Typed) -> Spec:
    """The type of a value, in native byte order."""
    return Spec(tuple(x.shape), native(x.dtype))


def native(dtype: DType) -> DType:
    return dtype if dtype.isnative else dtype.newbyteorder("=")


@lru_cache(maxsize=4096)
def type_text(shape: Shape, dtype: DType) -> str:
    """How a type is printed: `f32[8,3]`."""
    return f"{short_dtype(dtype)}[{','.join(map(str, shape))}]"


def short_dtype(dtype: DType) -> str:
    """`f32` for float32, `i64` for int64; the full name if there is no short one."""
    name = dtype.name
    head = name.rstrip("0123456789")
    return _SHORT[head] + name[len(head) :] if head in _SHORT else name


def trainable(dtype: DType) -> bool:
    """Whether gradients flow through values of this dtype: floats (bfloat16 too) and complex numbers.

    >>> trainable(np.dtype("float16")), trainable(np.dtype("int32"))
    (True, False)
    """
    return dtype.kind in "fc" or dtype.name == "bfloat16"


def real_dtype(dtype: DType) -> DType:
    """The dtype of the real part: float32 for complex64, itself for anything real."""
    return np.empty(0, dtype).real.dtype if dtype.kind == "c" else dtype


def brief(x: Any, most: int = 120) -> str:
    """An argument as shown in errors: its repr, truncated if long, or its type if the repr fails.

    >>> brief([1, 2]), brief("a" * 9, 5)
    ('[1, 2]', "'a...")
    """
    try:
        text = repr(x)
    except Exception:  # any repr may fail: a user-defined one, or one of something huge or deeply nested
        text = f"a {type(x).__name__}"
    return text if len(text) <= most else text[: most - 3] + "..."


def size_of(shape: Iterable[int]) -> int:
    return math.prod(shape)


def as_shape(shape: Any) -> Shape:
    """A shape argument as NumPy takes it: an int or a sequence of ints.

    >>> as_shape(3), as_shape([2, np.int64(1)])
    ((3,), (2, 1))
    """
    items = shape if isinstance(shape, Sequence) or (isinstance(shape, np.ndarray) and shape.ndim) else (shape,)
    if len(items) > MAX_DIMS:
        raise ValueError(f"a shape has at most {MAX_DIMS} sizes, got {len(items):,}")
    try:
        return tuple(int(n.__index__()) for n in items)
    except (AttributeError, TypeError):
        raise TypeError(f"a shape must be an int or a sequence of ints, got {brief(shape)}") from None


def checked_shape(shape: Any) -> Shape:
    """The shape of a new tensor: no size may be negative.

    >>> checked_shape([2, 3])
    (2, 3)
    """
    made = as_shape(shape)
    if any(n < 0 for n in made):
        raise ValueError(f"a shape must not be negative, got {list(made)}")
    return made


def as_int(what: str, argument: str, x: Any) -> int:
    """An argument that must be an int.

    >>> as_int("eye", "N", np.int8(3))
    3
    """
    try:
        return int(operator.index(x))
    except TypeError:
        raise TypeError(f"{what}: {argument} must be an int, got {brief(x)}") from None


def dtype_from(what: str, dtype: Any) -> DType:
    """A dtype argument; errors name the function, which those of NumPy do not.

    >>> dtype_from("cast", "float32")
    dtype('float32')
    """
    try:
        made: DType = np.dtype(dtype)
        return made
    except Exception as e:  # NumPy parses structured dtypes, and fails in many ways
        raise TypeError(f"{what}: {brief(dtype)} is not a dtype ({e})") from None


def normalize_axis(axis: int, ndim: int) -> int:
    """The axis as a non-negative int; NumPy's AxisError if it is out of range.

    >>> normalize_axis(-1, 3)
    2
    """
    try:
        axis = operator.index(axis)
    except TypeError:
        raise TypeError(f"an axis must be an int, got {brief(axis)}") from None
    if not -ndim <= axis < ndim:
        raise np.exceptions.AxisError(axis, ndim)
    return axis % ndim


def normalize_axes(axis: int | Sequence[int] | None, ndim: int) -> tuple[int, ...]:
    """The axes of a reduction, sorted; None means all of them."""
    if axis is None:
        return tuple(range(ndim))
    if isinstance(axis, Sequence) and len(axis) > MAX_DIMS:
        raise ValueError(f"there are at most {MAX_DIMS} axes, got {len(axis):,}")
    axes = tuple(normalize_axis(a, ndim) for a in axis) if isinstance(axis, Sequence) else (normalize_axis(axis, ndim),)
    if len(set(axes)) != len(axes):
        raise ValueError(f"duplicate value in axis {axis!r}")
    return tuple(sorted(axes))


def reduced_shape(shape: Shape, axes: Sequence[int], keepdims: bool) -> Shape:
    if keepdims:
        return tuple(1 if i in axes else n for i, n in enumerate(shape))
    return tuple(n for i, n in enumerate(shape) if i not in axes)


def broadcast_shapes(a: Shape, b: Shape) -> Shape:
    """The broadcast shape of two operands. In plain Python for speed: it runs for every op that is built.

    >>> broadcast_shapes((3, 1), (4,))
    (3, 4)
    """
    if a == b:
        return a
    longer, shorter = (b, a) if len(a) < len(b) else (a, b)
    out = list(longer)
    offset = len(longer) - len(shorter)
    for i, n in enumerate(shorter, offset):
        m = out[i]
        if m == 1:
            out[i] = n
        elif n != m and n != 1:
            raise ValueError(f"shapes {list(a)} and {list(b)} cannot be broadcast together")
    return tuple(out)


def broadcasts_to(shape: Shape, larger: Shape) -> bool:
    """Whether `shape` broadcasts to `larger`.

    >>> broadcasts_to((3, 1), (2, 3, 4)), broadcasts_to((2,), (3,))
    (True, False)
    """
    extra = len(larger) - len(shape)
    return extra >= 0 and all(n in (1, m) for n, m in zip(shape, larger[extra:], strict=True))
