"""array-api-strict: NumPy restricted to the Array API standard. Tests run kernels on it to keep them portable."""

from __future__ import annotations

from typing import Any

from distgrad.workers.backends.backend import Backend
from distgrad.workers.backends.base_extras import Extras


def _load() -> tuple[Any, Extras]:
    import array_api_strict

    return array_api_strict, Extras(array_api_strict)


STRICT = Backend("array-api-strict", _load, "pip install array-api-strict")
