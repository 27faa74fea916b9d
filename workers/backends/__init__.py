"""Array backends: the namespaces that kernels run on, and for each one what the Python Array API standard leaves out.

A kernel gets a namespace `xp`. What the standard lacks it takes from `extras(xp)`. NumPy itself is a backend; the other
libraries are imported when their backend is first asked for.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from distgrad.workers.backends.extras import Array, Extras
from distgrad.workers.backends.numpy import NumpyExtras


@dataclass(frozen=True)
class Backend:
    """One array library: its namespace, and the way in and out.

    >>> b = backend("numpy")
    >>> b.to_numpy(b.xp.exp(b.to_device(np.zeros(2))))
    array([1., 1.])
    """

    name: str
    xp: Any
    extras: Extras

    def to_device(self, x: Array) -> Any:
        """A NumPy array as one of this library, on the device where it makes new arrays. May share memory with x."""
        return self.extras.from_numpy(x)

    def to_numpy(self, x: Any) -> Array:
        """The values as a NumPy array that is the caller's alone."""
        return np.array(self.extras.to_numpy(x))


def _numpy() -> Backend:
    return Backend("numpy", np, extras(np))


def _strict() -> Backend:
    import array_api_strict

    return Backend("array-api-strict", array_api_strict, Extras(array_api_strict))


def _torch() -> Backend:
    import array_api_compat.torch as xp

    from distgrad.workers.arena import keep_freed_memory
    from distgrad.workers.backends.torch import TorchExtras

    keep_freed_memory(32 << 20, 1 << 30)  # torch has no arena: all of a step comes from malloc, whose most this is
    return Backend("torch", xp, TorchExtras(xp))


_MAKERS: dict[str, Callable[[], Backend]] = {"numpy": _numpy, "torch": _torch, "array-api-strict": _strict}
_REMEDY = {
    "torch": "install it as https://pytorch.org says for your GPU",
    "array-api-strict": "pip install array-api-strict",
}


@cache
def backend(name: str) -> Backend:
    """The backend of this name: 'numpy', 'torch' or 'array-api-strict' (a NumPy that refuses all but the standard)."""
    if name not in _MAKERS:
        known = ", ".join(map(repr, _MAKERS))
        raise ValueError(f"there is no array backend {name!r}; the known ones are {known}")
    try:
        made = _MAKERS[name]()
    except ModuleNotFoundError as e:
        raise ImportError(f"the array backend {name!r} needs a package that is not there ({e}): {_REMEDY[name]}") from e
    _EXTRAS[made.xp] = made.extras
    return made


class _Tables(dict[Any, Extras]):
    """Extras by namespace."""

    def __missing__(self, xp: Any) -> Extras:
        for name in _MAKERS:
            if name.replace("-", "_") in sys.modules and backend(name).xp is xp:
                return backend(name).extras
        raise ValueError(f"{xp!r} is not the namespace of an array backend: take that of backend(name).xp")


_EXTRAS = _Tables({np: NumpyExtras(np)})
#: What a namespace has beyond the standard. The dict's own method: it is called in kernels that take a microsecond.
extras: Callable[[Any], Extras] = _EXTRAS.__getitem__

__all__ = ["Array", "Backend", "Extras", "backend", "extras"]
