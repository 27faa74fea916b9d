"""Discrete Fourier transforms, with NumPy's names and rules: `distgrad.fft`.

Four ops act on the shape that they are given; builders cut or pad the input to the length of the transform. Each op is
the gradient of another: that of a transform is the conjugate transform, normalised the other way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from distgrad.graph import Operation, Tensor
from distgrad.ops.array import pad, roll
from distgrad.ops.builder import as_dtype, cast, make, typed
from distgrad.ops.control import identity
from distgrad.ops.guard import guard_all
from distgrad.ops.index import getitem
from distgrad.ops.math import conj
from distgrad.registry import Kind, OpDef, RegisterGradient, define
from distgrad.types import DType, Shape, Typed, as_int, brief, normalize_axis, real_dtype

#: The normalisation of a transform -> that of its adjoint.
_SWAPPED = {"backward": "forward", "ortho": "ortho", "forward": "backward"}


def _complex(dtype: DType) -> DType:
    """The dtype of a transform: in double precision, except for short floats."""
    if dtype.kind == "c":
        return dtype
    return np.dtype(np.complex64 if dtype.kind == "f" and dtype.itemsize <= 4 else np.complex128)


def _full_infer(x: Typed, *, axes: tuple[int, ...], norm: str) -> tuple[Shape, DType]:
    return x.shape, _complex(x.dtype)


def _half_infer(x: Typed, *, axis: int, norm: str) -> tuple[Shape, DType]:
    return _resized(x.shape, axis, x.shape[axis] // 2 + 1), _complex(x.dtype)


def _real_infer(x: Typed, *, axis: int, n: int, norm: str) -> tuple[Shape, DType]:
    return _resized(x.shape, axis, n), real_dtype(x.dtype)


def _resized(shape: Shape, axis: int, n: int) -> Shape:
    return (*shape[:axis], n, *shape[axis + 1 :])


_fft = define("FFTND", _full_infer, kind=Kind.LINALG)
_ifft = define("IFFTND", _full_infer, kind=Kind.LINALG)
_rfft = define("RFFT", _half_infer, kind=Kind.LINALG)
_irfft = define("IRFFT", _real_infer, kind=Kind.LINALG)

# -- gradients ---------------------------------------------------------------------------------------------------


@RegisterGradient("FFTND")
def _fft_grad(op: Operation, g: Tensor) -> Any:
    return _adjoint(_ifft, op, g)


@RegisterGradient("IFFTND")
def _ifft_grad(op: Operation, g: Tensor) -> Any:
    return _adjoint(_fft, op, g)


def _adjoint(d: OpDef, op: Operation, g: Tensor) -> Tensor:
    made = make(d, (g,), {"axes": op.attrs["axes"], "norm": _SWAPPED[op.attrs["norm"]]})
    return cast(made, op.inputs[0].dtype)


@RegisterGradient("RFFT")
def _rfft_grad(op: Operation, g: Tensor) -> Any:
    (x,), axis = op.inputs, op.attrs["axis"]
    n = x.shape[axis]
    attrs = {"axis": axis, "n": n, "norm": _SWAPPED[op.attrs["norm"]]}
    return make(_irfft, (g / _counted(n, axis, g),), attrs)


@RegisterGradient("IRFFT")
def _irfft_grad(op: Operation, g: Tensor) -> Any:
    axis = op.attrs["axis"]
    made = make(_rfft, (g,), {"axis": axis, "norm": _SWAPPED[op.attrs["norm"]]})
    return made * _counted(op.attrs["n"], axis, made)


def _counted(n: int, axis: int, x: Tensor) -> Any:
    """How often each frequency of half a spectrum occurs in the whole: twice, but for 0 and, if n is even, n / 2."""
    counts = np.full(n // 2 + 1, 2.0)
    counts[[0, -1] if n % 2 == 0 else [0]] = 1
    return counts.astype(real_dtype(x.dtype)).reshape(-1, *[1] * (len(x.shape) - axis - 1))


# -- arguments ---------------------------------------------------------------------------------------------------


def _norm(what: str, norm: Any) -> str:
    if norm is None:
        return "backward"
    if norm not in _SWAPPED:
        raise ValueError(f"{what}: norm must be 'backward', 'ortho' or 'forward', got {brief(norm)}")
    return str(norm)


def _length(what: str, n: Any, size: int) -> int:
    points: int = size if n is None else as_int(what, "n", n)
    if points < 1:
        raise ValueError(f"{what}: a transform has at least one point, got {points}")
    return points


def _fitted(x: Any, axis: int, n: int) -> Any:
    """x cut off, or padded with zeros, at the end of an axis."""
    size = x.shape[axis]
    if n < size:
        return getitem(x, (slice(None),) * axis + (slice(0, n),))
    return x if n == size else pad(x, [(0, n - size if i == axis else 0) for i in range(len(x.shape))])


def _sizes(what: str, x: Any, s: Any, axes: Any) -> list[tuple[int, int]]:
    """The axes with the length of their transforms; -1 and None stand for that of the input."""
    ndim = len(x.shape)
    if axes is None:
        axes = range(ndim) if s is None else range(ndim - len(s), ndim)
    given = [normalize_axis(i, ndim) for i in (axes if isinstance(axes, Sequence | range | np.ndarray) else [axes])]
    lengths = [None] * len(given) if s is None else list(s)
    if len(lengths) != len(given):
        raise ValueError(f"{what}: s={brief(s)} and axes={brief(axes)} must have the same length")
    lengths = [None if n is not None and n == -1 else n for n in lengths]
    return [(i, _length(what, n, x.shape[i])) for i, n in zip(given, lengths, strict=True)]


def _transform(d: OpDef, a: Any, sizes: list[tuple[int, int]], norm: str, name: str | None) -> Any:
    """One op for axes that differ; an axis that is named twice is transformed twice, the last one first."""
    axes = [axis for axis, _ in sizes]
    if len(set(axes)) < len(axes):
        for one in reversed(sizes):
            a = _transform(d, a, [one], norm, None)
        return identity(a, name=name)
    for axis, n in sizes:
        a = _fitted(a, axis, n)
    if not sizes:
        return as_dtype(a, _complex(a.dtype))
    return make(d, (a,), {"axes": tuple(axes), "norm": norm}, name)


# -- transforms along one axis -----------------------------------------------------------------------------------


def fft(a: Any, n: int | None = None, axis: int = -1, norm: str | None = None, name: str | None = None) -> Tensor:
    """The discrete Fourier transform along an axis, of n points: the input is cut off or padded with zeros.

    >>> fft(np.array([1.0, 0.0, 0.0]))
    array([1.+0.j, 1.+0.j, 1.+0.j])
    """
    return fftn(a, None if n is None else (n,), (axis,), norm, name=name)


def ifft(a: Any, n: int | None = None, axis: int = -1, norm: str | None = None, name: str | None = None) -> Tensor:
    """The inverse of `fft`.

    >>> ifft(np.array([3.0, 0.0, 0.0]))
    array([1.+0.j, 1.+0.j, 1.+0.j])
    """
    return ifftn(a, None if n is None else (n,), (axis,), norm, name=name)


def rfft(a: Any, n: int | None = None, axis: int = -1, norm: str | None = None, name: str | None = None) -> Tensor:
    """The first half of the spectrum of real numbers, n // 2 + 1 points; the others are their conjugates.

    >>> rfft(np.array([1.0, 0.0, 0.0]))
    array([1.+0.j, 1.+0.j])
    """
    a = _real("rfft", a)
    axis = normalize_axis(axis, len(a.shape))
    a = _fitted(a, axis, _length("rfft", n, a.shape[axis]))
    return make(_rfft, (a,), {"axis": axis, "norm": _norm("rfft", norm)}, name)


def irfft(a: Any, n: int | None = None, axis: int = -1, norm: str | None = None, name: str | None = None) -> Tensor:
    """The inverse of `rfft`: n real numbers, by default an even number of them.

    >>> irfft(np.array([1.0, 1.0]), 3)
    array([1., 0., 0.])
    """
    a = typed(a)
    axis = normalize_axis(axis, len(a.shape))
    n = _length("irfft", n, 2 * (a.shape[axis] - 1))
    short = a.dtype if a.dtype.itemsize == 2 and a.dtype.kind == "f" else None
    a = _fitted(as_dtype(a, _complex(a.dtype)), axis, n // 2 + 1)
    made = make(_irfft, (a,), {"axis": axis, "n": n, "norm": _norm("irfft", norm)}, name)
    return made if short is None else cast(made, short)


def hfft(a: Any, n: int | None = None, axis: int = -1, norm: str | None = None, name: str | None = None) -> Tensor:
    """The spectrum, which is real, of numbers of which half are given, as the others are their conjugates.

    >>> hfft(np.array([1.0, 1.0]), 3)
    array([3., 0., 0.])
    """
    return irfft(conj(a), n, axis, _SWAPPED[_norm("hfft", norm)], name=name)


def ihfft(a: Any, n: int | None = None, axis: int = -1, norm: str | None = None, name: str | None = None) -> Tensor:
    """The inverse of `hfft`.

    >>> ihfft(np.array([3.0, 0.0, 0.0]))
    array([1.-0.j, 1.-0.j])
    """
    return conj(rfft(a, n, axis, _SWAPPED[_norm("ihfft", norm)]), name=name)


def _real(what: str, a: Any) -> Any:
    a = typed(a)
    if a.dtype.kind == "c":
        raise TypeError(f"{what}: takes real numbers, got {a.dtype}; use fft, or pass real(a)")
    return a if a.dtype.kind == "f" else as_dtype(a, np.dtype(float))


# -- transforms along several axes -------------------------------------------------------------------------------


def fftn(a: Any, s: Any = None, axes: Any = None, norm: str | None = None, name: str | None = None) -> Tensor:
    """The Fourier transform along several axes, by default all, of s points along each.

    >>> fftn(np.array([[1.0, 0.0]]))
    array([[1.+0.j, 1.+0.j]])
    """
    a = typed(a)
    return _transform(_fft, a, _sizes("fft", a, s, axes), _norm("fft", norm), name)  # type: ignore[no-any-return]


def ifftn(a: Any, s: Any = None, axes: Any = None, norm: str | None = None, name: str | None = None) -> Tensor:
    """The inverse of `fftn`.

    >>> ifftn(np.array([[2.0, 0.0]]))
    array([[1.+0.j, 1.+0.j]])
    """
    a = typed(a)
    return _transform(_ifft, a, _sizes("ifft", a, s, axes), _norm("ifft", norm), name)  # type: ignore[no-any-return]


def rfftn(a: Any, s: Any = None, axes: Any = None, norm: str | None = None, name: str | None = None) -> Tensor:
    """The Fourier transform of real numbers along several axes, with half of the spectrum along the last of them.

    >>> rfftn(np.ones((2, 3))).shape
    (2, 2)
    """
    a = _real("rfftn", a)
    *others, (axis, n) = _sizes("rfftn", a, s, axes)
    half = rfft(a, n, axis, norm, name=None if others else name)
    return _transform(_fft, half, others, _norm("rfftn", norm), name) if others else half


def irfftn(a: Any, s: Any = None, axes: Any = None, norm: str | None = None, name: str | None = None) -> Tensor:
    """The inverse of `rfftn`.

    >>> irfftn(np.ones((1, 2)))
    array([[1., 0.]])
    """
    a = typed(a)
    *others, (axis, n) = _sizes("irfftn", a, s, axes)
    last = None if s is None or s[-1] in (None, -1) else n
    whole = _transform(_ifft, a, others[::-1], _norm("irfftn", norm), None) if others else a
    return irfft(whole, last, axis, norm, name=name)


def fft2(a: Any, s: Any = None, axes: Any = (-2, -1), norm: str | None = None, name: str | None = None) -> Tensor:
    """The Fourier transform along two axes, by default the last ones.

    >>> fft2(np.ones((2, 2)))
    array([[4.+0.j, 0.+0.j],
           [0.+0.j, 0.+0.j]])
    """
    return fftn(a, s, axes, norm, name=name)


def ifft2(a: Any, s: Any = None, axes: Any = (-2, -1), norm: str | None = None, name: str | None = None) -> Tensor:
    """The inverse of `fft2`.

    >>> ifft2(np.ones((2, 2)))
    array([[1.+0.j, 0.+0.j],
           [0.+0.j, 0.+0.j]])
    """
    return ifftn(a, s, axes, norm, name=name)


def rfft2(a: Any, s: Any = None, axes: Any = (-2, -1), norm: str | None = None, name: str | None = None) -> Tensor:
    """The Fourier transform of real numbers along two axes, by default the last ones.

    >>> rfft2(np.ones((2, 3))).shape
    (2, 2)
    """
    return rfftn(a, s, axes, norm, name=name)


def irfft2(a: Any, s: Any = None, axes: Any = (-2, -1), norm: str | None = None, name: str | None = None) -> Tensor:
    """The inverse of `rfft2`.

    >>> irfft2(np.ones((1, 2)))
    array([[1., 0.]])
    """
    return irfftn(a, s, axes, norm, name=name)


# -- order of frequencies ----------------------------------------------------------------------------------------


def fftshift(x: Any, axes: Any = None, name: str | None = None) -> Tensor:
    """Move frequency zero to the middle.

    >>> fftshift([0, 1, 2, -2, -1])
    array([-2, -1,  0,  1,  2])
    """
    return _shifted(x, axes, 1, name)


def ifftshift(x: Any, axes: Any = None, name: str | None = None) -> Tensor:
    """The inverse of `fftshift`.

    >>> ifftshift([-2, -1, 0, 1, 2])
    array([ 0,  1,  2, -2, -1])
    """
    return _shifted(x, axes, -1, name)


def _shifted(x: Any, axes: Any, sign: int, name: str | None) -> Tensor:
    x = typed(x)
    given = range(len(x.shape)) if axes is None else axes if isinstance(axes, Sequence) else (axes,)
    places = [normalize_axis(i, len(x.shape)) for i in given]
    return roll(x, [sign * (x.shape[i] // 2) for i in places], places, name=name)


__all__ = [
    "fft", "fft2", "fftn", "fftshift", "hfft", "ifft", "ifft2", "ifftn", "ifftshift", "ihfft", "irfft", "irfft2",
    "irfftn", "rfft", "rfft2", "rfftn",
]  # fmt: skip
guard_all(globals(), __all__)
