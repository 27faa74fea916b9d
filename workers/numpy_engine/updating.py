"""Updates of arrays that are there already, and where their parts lie in memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from distgrad.types import Spec
from distgrad.workers.backends.base_extras import combine_at
from distgrad.workers.kernels.index import _native as native
from distgrad.workers.numpy_engine.destinations import contiguous

Array = np.ndarray[Any, np.dtype[Any]]


def _update(out: Array, value: Array, *arrays: Array, index: Any, mode: str) -> Array:
    key = native(index, arrays)
    if arrays:
        return combine_at(out, key, value, mode)
    part = out[(*key, ...)]
    if mode == "set":
        part[...] = value
    else:
        getattr(np, mode)(part, value, out=part)
    return out


#: What changes an array in place, by op type: called with the array and all inputs but the first.
_UPDATES: dict[str, Callable[..., Array]] = {"Update": _update}


def update_in_place(op_type: str, attrs: Mapping[str, Any]) -> Callable[..., Array]:
    """What a step of this type does to an array that holds its first input already."""
    return partial(_UPDATES[op_type], **attrs)


def part_offset(index: Any, spec: Spec) -> int | None:
    """Where x[index] begins in the memory of a contiguous x, in bytes; None if it is empty or not contiguous."""
    offset, sizes, strides = 0, [], []
    inner = iter(contiguous(spec))
    for entry in index:
        if entry is None:
            continue
        stride = next(inner)
        if isinstance(entry, int):
            offset += entry * stride
            continue
        start, count, step = entry
        offset += start * stride
        sizes.append(count)
        strides.append(stride * step)
    expected = spec.dtype.itemsize
    for n, stride in zip(reversed(sizes), reversed(strides), strict=True):
        if n != 1 and stride != expected:
            return None
        expected *= n
    return offset if math.prod(sizes) else None
