"""`numpy.random` outside traces; inside one its numbers would be drawn once and recorded as constants."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as _numpy

from distgrad.graph import FuncGraph, current_graph

__all__ = [*_numpy.random.__all__]


def _refusing(name: str, f: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(f)
    def call(*args: Any, **kwargs: Any) -> Any:
        if isinstance(current_graph(), FuncGraph):
            raise TypeError(
                f"numpy.random.{name} in a function that is traced would draw once, and every call would see the same "
                f"numbers. Draw outside and pass the array as an argument, or pass a key and use distgrad.random, as "
                f"in distgrad.random.normal(key, shape)."
            )
        return f(*args, **kwargs)

    return call


for _name in __all__:
    _own = getattr(_numpy.random, _name)
    globals()[_name] = _own if isinstance(_own, type) or not callable(_own) else _refusing(_name, _own)
