"""The table of array backends. To add one, write a folder with a row in it, and enter the row here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from distgrad.workers.backends.backend import Backend
from distgrad.workers.backends.base_extras import Extras
from distgrad.workers.backends.numpy import NUMPY
from distgrad.workers.backends.strict import STRICT
from distgrad.workers.backends.torch import TORCH

BACKENDS: dict[str, Backend] = {row.name: row for row in (NUMPY, TORCH, STRICT)}


def backend(name: str) -> Backend:
    """The backend of this name, loaded: "numpy", "torch" or "array-api-strict" (NumPy, restricted to the standard).

    Raises ValueError if there is no such backend, ImportError if its package is not installed.
    """
    if name not in BACKENDS:
        known = ", ".join(map(repr, BACKENDS))
        raise ValueError(f"there is no array backend {name!r}; the known ones are {known}")
    row = BACKENDS[name]
    _EXTRAS[row.xp] = row.extras
    return row


def gpu_backend(name: str) -> Backend:
    """The backend for GPU tasks of a session with this backend: the same if it runs on GPUs, or the first that does.
    It is not loaded: the library may be installed on GPU nodes alone."""
    return next(row for row in (BACKENDS[name], *BACKENDS.values()) if row.gpus is not None)


def package_versions() -> dict[str, Callable[[], str]]:
    """For each package that some backend depends on: a function that returns its version."""
    return {name: version for row in BACKENDS.values() for name, version in row.packages.items()}


class _ByNamespace(dict[Any, Extras]):
    def __missing__(self, xp: Any) -> Extras:
        raise ValueError(f"{xp!r} is not the namespace of an array backend: use backend(name).xp")


_EXTRAS = _ByNamespace({np: NUMPY.extras})
#: What a namespace has beyond the standard. A dict's own method, because kernels that take a microsecond call it.
extras: Callable[[Any], Extras] = _EXTRAS.__getitem__
