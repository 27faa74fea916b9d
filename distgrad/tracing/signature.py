"""The signature of a call: what decides which trace it runs.

Every call comes through `look` once, before anything else is known of its arguments, so it is written for speed.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from distgrad import nest
from distgrad.graph import Tensor
from distgrad.tracing.variables import Variable
from distgrad.types import native, spec_of

#: Number of parts of a signature at which the arguments are checked for cycles.
MANY_PARTS = 10_000


#: The structure of arguments, the shapes and dtypes of arrays, and the values of everything else. It is flat, however
#: deep the structure, because Python compares nested tuples recursively.
Key = tuple[Any, ...]


class _Keywords(dict[str, Any]):
    """Keyword arguments, which are not the same as a dict in the last position."""


def look(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Key, list[Any], bool]:
    """The key of a call; what becomes a tensor, in the order of `nest.flatten`; whether that is only plain arrays."""
    parts: list[Any] = []
    arrays: list[Any] = []
    plain = True
    limit: float = MANY_PARTS
    stack = [*args, _Keywords(kwargs)] if kwargs else [*args]
    stack.reverse()
    while stack:
        x = stack.pop()
        if type(x) is np.ndarray:
            arrays.append(x)
            parts += (x.shape, x.dtype)
            continue
        if isinstance(x, list | tuple):
            parts.append((type(x), len(x)))
            stack += reversed(x)
        elif isinstance(x, dict):
            keys = nest.sorted_keys(x)
            parts.append((type(x), *keys))
            stack += [x[key] for key in reversed(keys)]
        elif is_array(x):
            plain = False
            arrays.append(x)
            parts += spec_of(x if hasattr(x, "dtype") else np.asarray(x))
        elif dataclasses.is_dataclass(x) and not isinstance(x, type):
            names = nest.field_names(x)
            parts.append((type(x), *names))
            stack += [getattr(x, name) for name in reversed(names)]
        else:  # floats by their repr, because 0.0 == -0.0 and nan != nan
            parts.append((type(x), repr(x) if isinstance(x, float | complex) else x))
        if len(parts) >= limit:
            nest.flatten((args, kwargs))  # raises if they contain themselves
            limit = math.inf
    return tuple(parts), arrays, plain


def native_key(key: Key) -> Key:
    """The key of the same arguments in native byte order."""
    return tuple([native(part) if isinstance(part, np.dtype) else part for part in key])


def is_array(x: Any) -> bool:
    """Whether an argument becomes a tensor. Everything else, including variables, is part of the signature."""
    if isinstance(x, Tensor | np.ndarray | np.generic):
        return True
    return hasattr(x, "__array__") and not isinstance(x, type | Variable)


def hashable(x: Any) -> bool:
    try:
        hash(x)
    except TypeError:
        return False
    return True
