"""Rows for distgrad/ops/library/fft.py."""

from __future__ import annotations

from typing import Any

import numpy as np

from .case import Case, arr, same_name

NORMS = (None, "backward", "ortho", "forward")
Z = arr(3, 4) + 1j * arr(3, 4, seed=1)


def half(n: int, *more: int, seed: int = 0) -> Any:
    return arr(*more, n, seed=seed) + 1j * arr(*more, n, seed=seed + 1)


def both(name: str, x: Any, **options: Any) -> Case:
    """Of real numbers and, unless it takes real ones only, complex ones."""
    return same_name(
        f"fft.{name}", x, complex=not name.startswith(("rfft", "ihfft")) and x.dtype.kind != "c", **options
    )


def several(name: str) -> list[Case]:
    return [
        both(name, arr(2, 3, 4), axes=(0, 2)),
        both(name, arr(2, 3, 4), s=(4, 2), axes=(1, -1), norm="ortho"),
        both(name, arr(3, 4), axes=(1, 0)),
        both(name, arr(3, 4), s=(3, 5), axes=(0, 0), norm="forward"),
    ]


CASES: dict[str, list[Case]] = {
    "FFTND": [
        *[both("fft", arr(n), norm=norm) for n in (1, 4, 5) for norm in NORMS],
        both("fft", arr(2, 5), n=3),
        both("fft", arr(5, 2), n=8, axis=0),
        both("fft", arr(0, 3)),
        both("fft", Z),
        both("fft2", arr(2, 3, 4)),
        *several("fftn"),
        *several("rfftn"),
        both("rfft2", arr(2, 3, 5), s=(2, 4)),
    ],
    "IFFTND": [
        *[both("ifft", arr(n), norm=norm) for n in (4, 5) for norm in NORMS],
        both("ifft", Z, n=5, axis=0),
        both("ifft2", arr(2, 3, 4)),
        *several("ifftn"),
        *several("irfftn"),
        both("irfft2", half(3, 2, 4)),
    ],
    "RFFT": [
        *[both("rfft", arr(n), norm=norm) for n in (1, 4, 5) for norm in NORMS],
        both("rfft", arr(5, 2), n=4, axis=0),
        *[both("ihfft", arr(n), norm=norm) for n in (4, 5) for norm in NORMS],
        both("rfftn", arr(5), axes=(0,)),
    ],
    "IRFFT": [
        *[both("irfft", half(3), n=n, norm=norm) for n in (4, 5) for norm in NORMS],
        both("irfft", arr(4)),
        both("irfft", half(2, 3), n=7, axis=0),
        both("irfft", half(4), n=3),
        *[both("hfft", half(3), n=n, norm=norm) for n in (4, 5) for norm in NORMS],
    ],
}
COMPOSED = {
    "fft.fftshift": [
        both("fftshift", arr(5)),
        both("fftshift", arr(3, 4), axes=1),
        both("fftshift", arr(2, 3, 4), axes=(0, 2)),
    ],
    "fft.ifftshift": [both("ifftshift", arr(5)), both("ifftshift", arr(3, 4)), both("ifftshift", np.zeros((0, 3)))],
}
