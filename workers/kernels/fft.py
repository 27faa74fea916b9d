"""Kernels of distgrad/ops/library/fft.py."""

from __future__ import annotations

from typing import Any

import numpy as np

from distgrad.workers.backends import extras
from distgrad.workers.kernels.table import kernel


def _each(name: str) -> Any:
    """One axis after the other, the last one first, as NumPy does it."""

    def run(xp: Any, x: Any, *, axes: tuple[int, ...], norm: str) -> Any:
        x = _complex(xp, x)
        for axis in reversed(axes):
            x = getattr(xp.fft, name)(x, axis=axis, norm=norm)
        return x

    return run


def _complex(xp: Any, x: Any) -> Any:
    """NumPy transforms real numbers as such, which takes half the time; the standard does not."""
    own = extras(xp)
    if xp is np or own.kind(x.dtype) == "c":
        return x
    short = own.kind(x.dtype) == "f" and own.itemsize(x.dtype) <= 4
    return own.astype(x, xp.complex64 if short else xp.complex128)


kernel("FFTND")(_each("fft"))
kernel("IFFTND")(_each("ifft"))


@kernel("RFFT")
def rfft(xp: Any, x: Any, *, axis: int, norm: str) -> Any:
    own = extras(xp)
    wide = own.astype(x, xp.float32) if own.is_short(x.dtype) else x
    return xp.fft.rfft(wide, axis=axis, norm=norm)


@kernel("IRFFT")
def irfft(xp: Any, x: Any, *, axis: int, n: int, norm: str) -> Any:
    return xp.fft.irfft(x, n=n, axis=axis, norm=norm)
