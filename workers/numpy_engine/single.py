"""One op on arrays, outside any task: with the bits that it has as a step of a task."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from distgrad.errors import UNKNOWN
from distgrad.registry import OpDef
from distgrad.scheduler.program import Step
from distgrad.types import DType, Shape, Spec
from distgrad.workers import reference
from distgrad.workers.thread_pool import thread_pool

Array = np.ndarray[Any, np.dtype[Any]]


def compute(
    definition: OpDef,
    inputs: Sequence[Array],
    attrs: Mapping[str, Any],
    specs: Sequence[tuple[Shape, DType]],
    native: bool,
) -> list[Array]:
    """The results of an op. With `native`, mathematical functions and convolutions are those of native code; arithmetic
    has the same bits everywhere, so NumPy does it."""
    if native and definition.kernel is None and len(specs) == 1:
        types = tuple([Spec(x.shape, x.dtype) for x in inputs])
        run = _function(definition.type, types, Spec(*specs[0]), tuple(attrs.items()))
        if run is not None:
            return [_filled(run, inputs, *specs[0])]
        large = _large(definition.type, types, Spec(*specs[0]), tuple(attrs.items()))
        if large is not None:
            return [large(*inputs, np.empty(*specs[0]))]
    return reference.apply(definition, inputs, attrs, specs)


def _filled(run: Callable[..., Array], inputs: Sequence[Array], shape: Shape, dtype: DType) -> Array:
    size = math.prod(shape)
    whole = [x if x.size in (1, size) else np.broadcast_to(x, shape) for x in inputs]
    return run(*[np.ascontiguousarray(x) for x in whole], np.empty(shape, dtype))


@lru_cache(maxsize=1024)
def _function(
    type: str, inputs: tuple[Spec, ...], made: Spec, attrs: tuple[tuple[str, Any], ...]
) -> Callable[..., Array] | None:
    """A mathematical function as native code; None for all other ops."""
    from distgrad.workers.native.rules import RULES  # late: llvmlite is large
    from distgrad.workers.native.small import small_step

    if type not in RULES or not RULES[type].slow:
        return None
    size = math.prod(made.shape)
    whole = [x if math.prod(x.shape) in (1, size) else Spec(made.shape, x.dtype) for x in inputs]
    step = Step(type, tuple(range(len(inputs))), (len(inputs),), dict(attrs), (), UNKNOWN, type)
    return small_step(step, [*whole, made])


@lru_cache(maxsize=1024)
def _large(
    type: str, inputs: tuple[Spec, ...], made: Spec, attrs: tuple[tuple[str, Any], ...]
) -> Callable[..., Array] | None:
    """An op that is native code of its own, as a task with one cpu computes it; None for all other ops."""
    from distgrad.workers.native.kernels.steps import native_step

    step = Step(type, tuple(range(len(inputs))), (len(inputs),), dict(attrs), (), UNKNOWN, type)
    return native_step(step, [*inputs, made], thread_pool(1))
