"""The rows of the op table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import distgrad as dg


@dataclass(frozen=True)
class Case:
    """One use of one op: builder, inputs, and the expected result."""

    #: Builds the op from tensors (graph) or arrays (eager), through the public API.
    build: Callable[..., Any]
    #: float64 (or complex128, integer, boolean) arrays; the floating ones are also run in the other dtypes.
    inputs: tuple[Any, ...]
    #: The same in NumPy or SciPy, on arrays.
    reference: Callable[..., Any] | None
    #: Up to which order gradients are compared with finite differences; 0 where there is no gradient.
    order: int = 2
    #: float32 is checked against float64 unless this is False (random numbers, eigenvectors).
    float32: bool = True
    #: Also run with the floating inputs made complex.
    complex: bool = False
    #: Tolerance of the values against the reference, in float64.
    rtol: float = 1e-12
    #: Tolerance of the gradients against finite differences.
    grad_rtol: float = 1e-5


def arr(*shape: int, low: float = -2.0, high: float = 2.0, seed: int = 0) -> Any:
    """Random float64 numbers, the same in every run and different for every shape and seed."""
    return np.random.default_rng([seed, *shape]).uniform(low, high, shape)


def apart(*shape: int, seed: int = 0) -> Any:
    """Random numbers that differ from each other by at least 0.1, so that max, sort and top_k are smooth there."""
    rng = np.random.default_rng([seed, *shape])
    count = int(np.prod(shape, dtype=int))
    return (rng.permutation(count) * 0.25 - count * 0.11 + rng.uniform(0, 0.1, count)).reshape(shape)


def same_name(
    name: str, *inputs: Any, complex: bool = True, order: int = 2, float32: bool = True, **options: Any
) -> Case:
    """A function against NumPy's of the same name, in the namespace of the same name."""
    space, _, function = name.rpartition(".")

    def run(module: Any) -> Callable[..., Any]:
        return lambda *xs: getattr(getattr(module, space) if space else module, function)(*xs, **options)

    return Case(run(dg), inputs, run(np), order, float32, complex=complex)
