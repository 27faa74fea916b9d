"""Repeating, padding, reversing and filling arrays; ranges and grids.

Changes of layout (reshape, transpose, concatenate, split, ...) are in `layout`, diagonals and triangles in `diagonal`;
both are re-exported here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from distgrad.graph import Operation, Tensor
from distgrad.ops.arithmetic import floor
from distgrad.ops.builder import as_array, as_dtype, cast, check_fits, convert, has_tensor, make, promote, same, typed
from distgrad.ops.control import full, identity, ones, zeros
from distgrad.ops.diagonal import MATRIX_DIAG, diag, diagonal, diagonal_size, trace, tril, triu
from distgrad.ops.guard import guard_all
from distgrad.ops.index import getitem
from distgrad.ops.layout import (
    array_split,
    arrays_to_join,
    atleast_1d,
    atleast_2d,
    broadcast_to,
    concatenate,
    expand_dims,
    hstack,
    moveaxis,
    permute_dims,
    ravel,
    reshape,
    split,
    squeeze,
    stack,
    swapaxes,
    transpose,
    unstack,
    vstack,
)
from distgrad.registry import Kind, RegisterGradient, View, define
from distgrad.types import MAX_DIMS, DType, Shape, Typed, as_int, brief, checked_shape, normalize_axes, normalize_axis

Pairs = tuple[tuple[Any, Any], ...]

# -- joining -----------------------------------------------------------------------------------------------------


def column_stack(tup: Sequence[Any], name: str | None = None) -> Tensor:
    """Stack vectors as the columns of a matrix; matrices are joined along axis 1.

    >>> column_stack([[1, 2], [3, 4]])
    array([[1, 3],
           [2, 4]])
    """
    xs = arrays_to_join("column_stack", tup)
    return concatenate([reshape(x, (-1, 1)) if len(x.shape) < 2 else x for x in xs], 1, name=name)


def dstack(tup: Sequence[Any], name: str | None = None) -> Tensor:
    """Stack arrays along the third axis.

    >>> dstack([[1, 2], [3, 4]]).shape
    (1, 2, 2)
    """
    xs = [atleast_2d(x) for x in arrays_to_join("dstack", tup)]
    return concatenate([expand_dims(x, -1) if len(x.shape) == 2 else x for x in xs], 2, name=name)


def broadcast_arrays(*args: Any) -> tuple[Tensor, ...]:
    """Broadcast the arrays to their common shape.

    >>> broadcast_arrays([[1], [2]], [3, 4])[1]
    array([[3, 4],
           [3, 4]])
    """
    xs = [typed(x) for x in args]
    shape = np.broadcast_shapes(*[x.shape for x in xs])
    return tuple([broadcast_to(x, shape) for x in xs])


# -- repeating: broadcast along a new axis, then merge it into its neighbour -------------------------------------


def tile(A: Any, reps: int | Sequence[int], name: str | None = None) -> Tensor:
    """Repeat A as a whole, reps[i] times along axis i.

    >>> tile([1, 2], (2, 2))
    array([[1, 2, 1, 2],
           [1, 2, 1, 2]])
    """
    a = typed(A)
    given = reps if isinstance(reps, Sequence) or (isinstance(reps, np.ndarray) and reps.ndim) else (reps,)
    if len(given) > MAX_DIMS:
        raise ValueError(f"tile: reps has at most {MAX_DIMS} entries, one per axis; got {len(given):,}")
    counts = [as_int("tile", "reps", n) for n in given]
    if any(n < 0 for n in counts):
        raise ValueError(f"tile: reps must not be negative, got {brief(reps)}")
    ndim = max(len(counts), len(a.shape))
    counts, shape = [1] * (ndim - len(counts)) + counts, (1,) * (ndim - len(a.shape)) + a.shape
    pairs = list(zip(counts, shape, strict=True))
    wide = broadcast_to(reshape(a, [n for size in shape for n in (1, size)]), [n for pair in pairs for n in pair])
    return identity(reshape(wide, [count * size for count, size in pairs]), name=name)  # type: ignore[no-any-return]  # not a view


def repeat(a: Any, repeats: int | Sequence[int], axis: int | None = None, name: str | None = None) -> Tensor:
    """Repeat each element, or each slice along an axis; with axis None the array is flattened first.

    >>> repeat([1, 2], 2), repeat([1, 2], [1, 3])
    (array([1, 1, 2, 2]), array([1, 2, 2, 2]))
    """
    if isinstance(repeats, Tensor):
        raise TypeError("repeat: repeats must be Python ints: as a tensor, the result's shape would depend on data")
    a = ravel(a) if axis is None else typed(a)
    axis = normalize_axis(0 if axis is None else axis, len(a.shape))
    counts = as_array(repeats)
    if (counts.dtype.kind not in "iu" and counts.size) or counts.ndim > 1:
        raise TypeError(f"repeat: repeats must be an int or a sequence of ints, got {brief(repeats)}")
    if (counts < 0).any():
        raise ValueError(f"repeat: repeats must not be negative, got {brief(repeats)}")
    if counts.size != 1:
        return _repeat_unevenly(a, counts, axis, name)
    before, n, after = a.shape[:axis], a.shape[axis], a.shape[axis + 1 :]
    count = int(counts.item())
    wide = broadcast_to(reshape(a, (*before, n, 1, *after)), (*before, n, count, *after))
    return identity(reshape(wide, (*before, n * count, *after)), name=name)  # type: ignore[no-any-return]  # not a view


def _repeat_unevenly(a: Any, counts: Any, axis: int, name: str | None) -> Tensor:
    n = a.shape[axis]
    if counts.shape != (n,):
        raise ValueError(f"repeat: {counts.size} repeats for axis {axis} of size {n} in shape {list(a.shape)}")
    check_fits("repeat", (sum(counts.tolist()),), np.dtype(np.int64))
    return _pick(a, np.repeat(np.arange(n), counts.astype(np.int64)), axis, name)


def _pick(a: Any, indices: Any, axis: int, name: str | None = None) -> Tensor:
    return getitem(a, (slice(None),) * axis + (indices,), name=name)


# -- padding -----------------------------------------------------------------------------------------------------


def _pad_infer(x: Typed, *, pad_width: Pairs, value: Any) -> tuple[Shape, DType]:
    return tuple([before + n + after for n, (before, after) in zip(x.shape, pad_width, strict=True)]), x.dtype


_pad = define("Pad", _pad_infer, kind=Kind.LAYOUT)


def pad(
    array: Any, pad_width: Any, mode: str = "constant", constant_values: Any = 0, name: str | None = None
) -> Tensor:
    """Pad an array at the ends of its axes.

    Args:
        array: the array to pad.
        pad_width: an int, (before, after), ((before, after), ...) per axis, or a dict of axis to one of the first two.
        mode: 'constant', 'edge' (repeats the last element), 'reflect' or 'symmetric' (mirrors without or with the last
            element), or 'wrap' (continues from the other end).
        constant_values: for 'constant', a number, or numbers per end and axis like pad_width.
        name: name of the op.

    >>> pad([1, 2, 3], (1, 2)), pad([1, 2, 3], 2, "reflect")
    (array([0, 1, 2, 3, 0, 0]), array([3, 2, 1, 2, 3, 2, 1]))
    """
    a = typed(array)
    widths = _pad_widths(pad_width, len(a.shape))
    if mode == "constant":
        return _pad_constant(a, widths, constant_values, name)
    if mode not in ("edge", "reflect", "symmetric", "wrap"):
        raise ValueError(f"pad: mode {brief(mode)} is not one of 'constant', 'edge', 'reflect', 'symmetric', 'wrap'")
    for axis, width in enumerate(widths):
        if width == (0, 0):
            continue
        if a.shape[axis] == 0:
            raise ValueError(f"pad: axis {axis} of shape {list(a.shape)} is empty: mode {mode!r} has nothing to copy")
        check_fits("pad", (a.shape[axis] + sum(width),), np.dtype(np.int64))
        a = _pick(a, np.pad(np.arange(a.shape[axis]), width, mode=mode), axis)  # type: ignore[call-overload]
    return identity(a, name=name)  # type: ignore[no-any-return]


def _pad_constant(a: Any, widths: Pairs, values: Any, name: str | None) -> Tensor:
    """One op if all values are equal; otherwise one per end, later axes outermost as in NumPy."""
    numbers = _pairs(np.asarray(values).astype(a.dtype), len(a.shape), "constant_values")
    if len({*[n for pair in numbers for n in pair]}) <= 1:
        value = numbers[0][0] if numbers else 0
        return make(_pad, (a,), {"pad_width": widths, "value": value}, name)
    for axis, (before, after) in enumerate(widths):
        for width, value in zip(((before, 0), (0, after)), numbers[axis], strict=True):
            only = tuple(width if i == axis else (0, 0) for i in range(len(widths)))
            a = make(_pad, (a,), {"pad_width": only, "value": value})
    return identity(a, name=name)  # type: ignore[no-any-return]


def _pad_widths(pad_width: Any, ndim: int) -> Pairs:
    if isinstance(pad_width, Mapping):
        by_axis = {normalize_axis(axis, ndim): width for axis, width in pad_width.items()}
        pad_width = [_pairs(np.asarray(by_axis.get(i, 0)), 1, "pad_width")[0] for i in range(ndim)]
    widths = as_array(pad_width)
    if widths.dtype.kind not in "iu" and widths.size:
        raise TypeError(f"pad: pad_width must be made of ints, got {brief(pad_width)}")
    if (widths < 0).any():
        raise ValueError(f"pad: pad_width must not be negative, got {brief(pad_width)}; slice to make an array smaller")
    return _pairs(widths, ndim, "pad_width")


def _pairs(values: Any, ndim: int, what: str) -> Pairs:
    try:
        return tuple((before, after) for before, after in np.broadcast_to(values, (ndim, 2)).tolist())
    except ValueError:
        raise ValueError(
            f"pad: {what} of shape {list(values.shape)} does not fit {ndim} axes; "
            f"give one number, (before, after), or one such pair per axis"
        ) from None


@RegisterGradient("Pad")
def _pad_grad(op: Operation, g: Tensor) -> Any:
    (x,) = op.inputs
    starts = [before for before, _ in op.attrs["pad_width"]]
    return getitem(g, tuple(slice(start, start + n) for start, n in zip(starts, x.shape, strict=True)))


# -- reversing and rolling ---------------------------------------------------------------------------------------

_reverse = define("Reverse", same, kind=Kind.LAYOUT, view=View.STRIDED)
_roll = define("Roll", same, kind=Kind.LAYOUT)


def flip(m: Any, axis: int | Sequence[int] | None = None, name: str | None = None) -> Tensor:
    """Reverse the elements along these axes, by default along all.

    >>> flip([1, 2, 3])
    array([3, 2, 1])
    """
    m = typed(m)
    return make(_reverse, (m,), {"axis": normalize_axes(axis, len(m.shape))}, name)


@RegisterGradient("Reverse")
def _reverse_grad(op: Operation, g: Tensor) -> Any:
    return flip(g, op.attrs["axis"])


def flipud(m: Any, name: str | None = None) -> Tensor:
    """Reverse the order of the rows.

    >>> flipud([[1, 2], [3, 4]])
    array([[3, 4],
           [1, 2]])
    """
    return flip(m, 0, name=name)


def fliplr(m: Any, name: str | None = None) -> Tensor:
    """Reverse the order of the columns.

    >>> fliplr([[1, 2], [3, 4]])
    array([[2, 1],
           [4, 3]])
    """
    return flip(m, 1, name=name)


def rot90(m: Any, k: int = 1, axes: Sequence[int] = (0, 1), name: str | None = None) -> Tensor:
    """Rotate by k times 90 degrees in the plane of two axes, from the first towards the second.

    >>> rot90([[1, 2], [3, 4]])
    array([[2, 4],
           [1, 3]])
    """
    m = typed(m)
    plane = [normalize_axis(i, len(m.shape)) for i in axes]
    if len(plane) != 2 or plane[0] == plane[1]:
        raise ValueError(f"rot90: axes must be two different axes, got {brief(axes)}")
    (first, second), turns = plane, as_int("rot90", "k", k) % 4
    if turns % 2 == 0:
        return flip(m, plane if turns else (), name=name)
    return flip(swapaxes(m, first, second), first if turns == 1 else second, name=name)


def roll(
    a: Any, shift: int | Sequence[int], axis: int | Sequence[int] | None = None, name: str | None = None
) -> Tensor:
    """Shift elements cyclically along axes; with axis None the array is rolled as if it were flattened.

    >>> roll([1, 2, 3, 4], 1)
    array([4, 1, 2, 3])
    """
    a = typed(a)
    if axis is None:
        return reshape(roll(ravel(a), shift, 0), a.shape, name=name)
    shifts, axes = np.broadcast_arrays(as_array(shift), as_array(axis))
    if shifts.ndim > 1 or (shifts.dtype.kind not in "iu" and shifts.size):
        raise TypeError(f"roll: shift {brief(shift)} and axis {brief(axis)} must be ints or equally long sequences")
    attrs = {
        "shift": tuple(shifts.ravel().tolist()),
        "axis": tuple([normalize_axis(i, len(a.shape)) for i in axes.ravel().tolist()]),
    }
    return make(_roll, (a,), attrs, name)


@RegisterGradient("Roll")
def _roll_grad(op: Operation, g: Tensor) -> Any:
    return roll(g, [-n for n in op.attrs["shift"]], op.attrs["axis"])


# -- ranges and grids --------------------------------------------------------------------------------------------


def arange(start: Any, stop: Any = None, step: Any = None, dtype: Any = None, name: str | None = None) -> Tensor:
    """The numbers from start (0 if only one is given) up to but excluding stop.

    >>> arange(3), arange(1, 2, 0.5)
    (array([0, 1, 2]), array([1. , 1.5]))
    """
    _static("arange", start=start, stop=stop, step=step)
    _check_range(start, stop, step)
    return convert(np.arange(start, stop, step, dtype=dtype), name=name)


def _check_range(start: Any, stop: Any, step: Any) -> None:
    """Check that a range has numeric, finite bounds and fits into memory."""
    for argument, value in {"start": start, "stop": stop, "step": step}.items():
        if value is not None and (not isinstance(value, int | float | np.number) or np.ndim(value)):
            raise TypeError(f"arange: {argument} must be a number, got {brief(value)}")
    if start is None:
        raise TypeError("arange: start must be a number, got None")
    begin, end, by = (0, start, step) if stop is None else (start, stop, step)
    if by == 0:
        raise ValueError("arange: step must not be 0")
    count = (end - begin) / (1 if by is None else by)
    if not math.isfinite(count):
        raise ValueError(f"arange: the range from {begin} to {end} by {by} is infinite")
    check_fits("arange", (max(0, math.ceil(count)),), np.dtype(np.int64))


def linspace(
    start: Any, stop: Any, num: int = 50, endpoint: bool = True, dtype: Any = None, name: str | None = None
) -> Tensor:
    """`num` evenly spaced numbers from start to stop, along a new first axis. Differentiable in start and stop.

    >>> linspace(0, 1, 3)
    array([0. , 0.5, 1. ])
    """
    _static("linspace", num=num)
    num = as_int("linspace", "num", num)
    if num < 0:
        raise ValueError(f"linspace: num must not be negative, got {num}")
    check_fits("linspace", (num,), np.dtype(np.float64))
    if not has_tensor((start, stop)):
        return convert(np.linspace(start, stop, num, endpoint=endpoint, dtype=dtype), name=name)
    start, stop = promote(np.true_divide, start, stop)
    delta, parts = stop - start, num - 1 if endpoint else num
    steps = np.arange(num).astype(start.dtype).reshape(-1, *[1] * len(delta.shape))
    made = steps * (delta / parts if parts > 0 else delta) + start  # bit for bit NumPy's arithmetic
    if endpoint and num > 1:
        made = concatenate([made[:-1], broadcast_to(stop, (1, *delta.shape))])
    if dtype is not None and np.dtype(dtype).kind in "iu":
        made = floor(made)
    return cast(made, made.dtype if dtype is None else dtype, name=name)


def full_like(a: Any, fill_value: Any, dtype: Any = None, name: str | None = None) -> Tensor:
    """A tensor of the shape (and, unless given, dtype) of a, filled with a value that is broadcast to it.

    >>> full_like([1, 2], 7)
    array([7, 7])
    """
    a = typed(a)
    dtype = a.dtype if dtype is None else np.dtype(dtype)
    if isinstance(fill_value, int | float | complex):
        return full(a.shape, fill_value, dtype, name=name)
    return identity(broadcast_to(as_dtype(typed(fill_value), dtype), a.shape), name=name)  # type: ignore[no-any-return]


def _static(what: str, **numbers: Any) -> None:
    for name, value in numbers.items():
        if isinstance(value, Tensor):
            raise TypeError(f"{what}: {name} must be a Python number: as a tensor, the result would depend on data")


def eye(N: int, M: int | None = None, k: int = 0, dtype: Any = float, name: str | None = None) -> Tensor:
    """An N by M matrix with ones on its k-th diagonal and zeros elsewhere.

    >>> eye(2)
    array([[1., 0.],
           [0., 1.]])
    """
    _static("eye", N=N, M=M, k=k)
    shape = checked_shape((as_int("eye", "N", N), as_int("eye", "M", N if M is None else M)))
    k, dtype = as_int("eye", "k", k), np.dtype(dtype)
    check_fits("eye", shape, dtype)
    size = diagonal_size(shape, k)
    if not size:
        return zeros(shape, dtype, name=name)
    return make(MATRIX_DIAG, (ones(size, dtype),), {"shape": shape, "offset": k}, name)


def meshgrid(*xi: Any, sparse: bool = False, indexing: str = "xy") -> tuple[Tensor, ...]:
    """Coordinate arrays of a grid, from the coordinates along its axes; indexing is 'xy' or 'ij'.

    >>> [x.shape for x in meshgrid([1, 2, 3], [4, 5])]
    [(2, 3), (2, 3)]
    """
    if indexing not in ("xy", "ij"):
        raise ValueError(f"meshgrid: indexing must be 'xy' or 'ij', got {brief(indexing)}")
    vectors = [ravel(x) for x in xi]
    axes = list(range(len(vectors)))
    if indexing == "xy" and len(vectors) > 1:
        axes[:2] = 1, 0
    grids = [expand_dims(x, [i for i in axes if i != axis]) for x, axis in zip(vectors, axes, strict=True)]
    shape = np.broadcast_shapes(*[x.shape for x in grids])
    return tuple([identity(x if sparse else broadcast_to(x, shape)) for x in grids])  # copies, as in NumPy


__all__ = [
    "arange", "array_split", "atleast_1d", "atleast_2d", "broadcast_arrays", "broadcast_to", "column_stack",
    "concatenate", "diag", "diagonal", "dstack", "expand_dims", "eye", "flip", "fliplr", "flipud", "full_like",
    "hstack", "linspace", "meshgrid", "moveaxis", "pad", "permute_dims", "ravel", "repeat", "reshape", "roll", "rot90",
    "split", "squeeze", "stack", "swapaxes", "tile", "trace", "transpose", "tril", "triu", "unstack", "vstack",
]  # fmt: skip
guard_all(globals(), __all__)
