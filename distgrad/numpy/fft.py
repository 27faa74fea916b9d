"""`numpy.fft` on traced arrays too."""

from __future__ import annotations

import numpy as _numpy

from distgrad.numpy.calls import lifted

__all__ = [*_numpy.fft.__all__]
globals().update({name: lifted(getattr(_numpy.fft, name)) for name in __all__})
