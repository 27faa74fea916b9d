"""`numpy.linalg` on traced arrays too."""

from __future__ import annotations

import numpy as _numpy

from distgrad.numpy.calls import lifted

__all__ = [*_numpy.linalg.__all__]
globals().update({name: lifted(getattr(_numpy.linalg, name)) for name in __all__})
