"""Avoids copies: a value that is only reshaped and copied is computed directly into its target.

A Concat, a Stack, or a Reshape of a transposed array copies its inputs into parts of its result. If an input is a
matrix product, possibly transposed and reshaped, that nothing else reads, the product is computed directly into that
part of the result. Small terms of a sum are stored in the rows of one table.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import as_strided

from distgrad.registry import view_of
from distgrad.scheduler.cost.layout import ALIGN
from distgrad.scheduler.program import Step
from distgrad.types import Spec
from distgrad.workers.numpy_engine.into import INTO

Array = np.ndarray[Any, np.dtype[Any]]
#: From the array of the target to the part of it.
Path = tuple[Callable[[Array], Array], ...]

#: Op types whose kernels write into any strided array as well as into a contiguous one.
WRITERS = frozenset({"MatMul"})
#: Maximum bytes of terms of a sum that are stored in one table: calls of single additions would dominate.
SMALL_TERM = 1 << 12


class Part(NamedTuple):
    """A part of the value `target`."""

    target: int
    path: Path

    def of(self, x: Array) -> Array:
        for view in self.path:
            x = view(x)
        return x


def parts(step: Step, types: Sequence[Spec]) -> list[Part] | None:
    """For a step that only copies: the part of its result that each input becomes. None for other steps."""
    find = _PARTS.get(step.type)
    return None if find is None else [Part(step.outputs[0], (view,)) for view in find(step, types)]


def _of_reshape(step: Step, types: Sequence[Spec]) -> list[Callable[[Array], Array]]:
    return [_reshape(types[step.inputs[0]].shape)]


def _of_stack(step: Step, types: Sequence[Spec]) -> list[Callable[[Array], Array]]:
    whole = (slice(None),) * step.attrs["axis"]
    return [_item((*whole, k)) for k in range(len(step.inputs))]


def _of_concat(step: Step, types: Sequence[Spec]) -> list[Callable[[Array], Array]]:
    axis = step.attrs["axis"]
    sizes = [types[v].shape[axis] for v in step.inputs]
    whole = (slice(None),) * axis
    return [_item((*whole, slice(end - n, end))) for n, end in zip(sizes, accumulate(sizes), strict=True)]


_PARTS = {"Reshape": _of_reshape, "Stack": _of_stack, "Concat": _of_concat}


def destinations(steps: Sequence[Step], types: Sequence[Spec], gives: Sequence[int]) -> dict[int, Part]:
    """For each value that can be computed into its target: the part of the target."""
    if not any(step.type in WRITERS for step in steps):
        return {}
    made_by = {v: step for step in steps for v in step.outputs}
    uses: dict[int, int] = dict.fromkeys(gives, 2)
    for step in steps:
        for v in step.inputs:
            uses[v] = uses.get(v, 0) + 1
    found: dict[int, Part] = {}
    for step in steps:
        for v, part in zip(step.inputs, parts(step, types) or (), strict=False):
            found.update(_back(v, part, made_by, uses, types))
    return found


def _back(v: int, part: Part, made_by: Any, uses: Any, types: Sequence[Spec]) -> dict[int, Part]:
    """The product that makes a copied value, with its part; None if there is none, or nothing is copied."""
    copied = made_by[part.target].type != "Reshape"
    while uses.get(v) == 1 and (step := made_by.get(v)) is not None and not step.after:
        if step.type in WRITERS:
            return {v: part} if copied and _fits(part, types, _one_matrix(step, types)) else {}
        if step.type == "Transpose":
            copied = True
            part = Part(part.target, (*part.path, _transpose(tuple(np.argsort(step.attrs["axes"])))))
        elif step.type == "Reshape":
            part = Part(part.target, (*part.path, _reshape(types[step.inputs[0]].shape)))
        else:
            break
        (v,) = step.inputs
    return {}


def _fits(part: Part, types: Sequence[Spec], as_matrix: bool) -> bool:
    """Whether the part is a view of the target that BLAS can write to. Its rows are contiguous, as in a separate array:
    bits depend on that. If all rows are computed as one matrix, they must be stored as one."""
    try:
        view = part.of(like(types[part.target]))
        if as_matrix:
            view.reshape(math.prod(view.shape[:-1]), view.shape[-1], copy=False)
    except ValueError:  # the reshape would copy
        return False
    return view.ndim >= 2 and view.strides[-1] == view.itemsize


def _one_matrix(step: Step, types: Sequence[Spec]) -> bool:
    """Whether a product of a batch with one matrix is computed as a single product."""
    a, b = (len(types[v].shape) for v in step.inputs)
    return b == 2 < a and not step.attrs["transpose_a"]


def small_terms(steps: Sequence[Step], types: Sequence[Spec], inside: Container[int]) -> dict[int, tuple[Step, int]]:
    """Small terms of one sum that are stored in a table: for each the sum, and its index among the terms. Only values
    that stay `inside` the task."""
    placed = {s.outputs[0] for s in steps if len(s.outputs) == 1 and view_of(s.type) is None and s.type in INTO}
    found: dict[int, tuple[Step, int]] = {}
    for step in steps:
        if step.type != "AddN" or len(step.inputs) <= 3 or len(set(step.inputs)) < len(step.inputs):
            continue
        shape, dtype = types[step.outputs[0]]
        nbytes = math.prod(shape) * dtype.itemsize
        if not 0 < nbytes <= SMALL_TERM or nbytes % ALIGN:
            continue
        if all(v in placed and v not in found and v in inside for v in step.inputs):
            found.update({v: (step, k) for k, v in enumerate(step.inputs)})
    return found


def like(spec: Spec, strides: tuple[int, ...] | None = None) -> Array:
    """An array of this type without memory, to test views with."""
    return as_strided(np.empty((), spec.dtype), spec.shape, strides or contiguous(spec))


def contiguous(spec: Spec) -> tuple[int, ...]:
    """The strides of a contiguous array."""
    strides, step = [], spec.dtype.itemsize
    for n in reversed(spec.shape):
        strides.append(step)
        step *= n
    return tuple(reversed(strides))


def _reshape(shape: Any) -> Callable[[Array], Array]:
    return lambda x: x.reshape(shape, copy=False)


def _transpose(axes: Any) -> Callable[[Array], Array]:
    return lambda x: x.transpose(axes)


def _item(key: Any) -> Callable[[Array], Array]:
    return lambda x: x[key]
