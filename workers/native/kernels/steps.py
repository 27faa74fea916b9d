"""Steps that are not fused and run as native code nonetheless: a line per op."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from distgrad.scheduler.program import Step
from distgrad.types import Spec
from distgrad.workers.native.kernels.conv import convolution
from distgrad.workers.native.kernels.scatter import scatter
from distgrad.workers.thread_pool import ThreadPool

Array = np.ndarray[Any, np.dtype[Any]]
#: Called with the inputs, then the result, which it fills and returns; all of them are contiguous.
Run = Callable[..., Array]

MAKERS: dict[str, Callable[[Step, Sequence[Spec], ThreadPool], Run | None]] = {
    "Conv2D": convolution,
    "Conv2DBackpropInput": convolution,
    "Conv2DBackpropFilter": convolution,
    "UnsortedSegmentSum": scatter,
    "ScatterAdd": scatter,
    "AdvancedIndexGrad": scatter,
}


def native_step(step: Step, types: Sequence[Spec], pool: ThreadPool) -> Run | None:
    """A step as native code; None where there is none for it or its types."""
    make = MAKERS.get(step.type)
    run = None if make is None else make(step, types, pool)
    return None if run is None else partial(_in_order, run)


def _in_order(run: Run, *arrays: Array) -> Array:
    """Native code reads and writes arrays of plain layout: others are copied."""
    *inputs, out = arrays
    made = run(*[np.require(x, None, ["C", "A"]) for x in inputs], np.require(out, None, ["C", "A"]))
    if made is not out:
        np.copyto(out, made)
    return out
