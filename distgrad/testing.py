"""Check gradients against finite differences, of built-in and user-defined ops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from distgrad import nest
from distgrad.autodiff.gradients import gradients
from distgrad.ops.builder import as_array, convert
from distgrad.ops.control import add_n
from distgrad.ops.indexed_slices import IndexedSlices
from distgrad.ops.math import conj, real
from distgrad.ops.reduce import sum as reduce_sum
from distgrad.tracing.function import function
from distgrad.types import as_int, brief, trainable

# Central differences of fourth order: weights of f(x + k h v), k = -2..2 without 0.
_STENCIL = ((-2, 1 / 12), (-1, -2 / 3), (1, 2 / 3), (2, -1 / 12))


#: Maximum order: each derivative has a graph several times larger than the one before.
_MAX_ORDER = 8


def check_grads(
    f: Callable[..., Any],
    args: Sequence[Any],
    order: int = 2,
    *,
    rng: np.random.Generator | None = None,
    step: float = 1e-3,
    rtol: float = 1e-5,
    atol: float = 1e-7,
) -> None:
    """Compare the gradients of f at `args`, up to `order`, with finite differences in a random direction.

    f takes tensors, one per entry of `args`, and returns tensors (nested or not); integer arguments and results are
    ignored. Use float64 arguments: finite differences of float32 are too inaccurate. Each argument is moved by `step`
    times its largest element; f must be smooth in that range. Raises AssertionError if the two differ.

    >>> import distgrad as dg
    >>> check_grads(lambda x: dg.sin(x) * x, [np.array([0.3, 1.2])])
    """
    rng = np.random.default_rng(0) if rng is None else rng
    _check_arguments(f, args, rng, step=step, rtol=rtol, atol=atol)
    order = as_int("check_grads", "order", order)
    if not 0 <= order <= _MAX_ORDER:
        raise ValueError(f"check_grads: order must be between 0 and {_MAX_ORDER}, got {order}")
    arrays = [as_array(a) for a in args]
    moving = [i for i, a in enumerate(arrays) if trainable(a.dtype)]
    if not moving:
        raise ValueError("check_grads: no argument has a float or complex dtype, so there is nothing to differentiate")
    for n in range(1, order + 1):
        scalar = _weighted(f, rng)
        derivative = _derivative(scalar, moving)
        _compare(scalar, derivative, arrays, moving, rng, f"gradient of order {n}", step, rtol, atol)
        f = derivative


def _check_arguments(f: Any, args: Any, rng: Any, **numbers: Any) -> None:
    if not callable(f):
        raise TypeError(f"check_grads: f must be a function, got {brief(f)}")
    if not isinstance(args, list | tuple):
        raise TypeError(f"check_grads: args must be a list of the arguments of f, got {brief(args)}")
    if not isinstance(rng, np.random.Generator):
        raise TypeError(f"check_grads: rng must be a numpy.random.Generator, got {brief(rng)}")
    for name, value in numbers.items():
        if not isinstance(value, int | float | np.number) or not 0 <= value < np.inf or (name, value) == ("step", 0):
            raise ValueError(f"check_grads: {name} must be a positive number, got {brief(value)}")


def _weighted(f: Callable[..., Any], rng: np.random.Generator) -> Callable[..., Any]:
    """The sum of all results of f, weighted by fixed random numbers: a scalar function of every element."""
    weights: list[Any] = []

    def scalar(*args: Any) -> Any:
        results = [convert(y) for y in nest.flatten(f(*args)) if y is not None]
        results = [y for y in results if trainable(y.dtype)]
        if not results:
            raise ValueError("check_grads: f returns nothing of a float or complex dtype, so there is nothing to check")
        if not weights:
            weights.extend(random_like(y, rng) for y in results)
        return add_n([real(reduce_sum(y * conj(w))) for y, w in zip(results, weights, strict=True)])

    return scalar


def random_like(x: Any, rng: np.random.Generator) -> Any:
    """Random numbers of x's shape and dtype, with magnitudes between 0.5 and 1.5."""
    value = rng.uniform(0.5, 1.5, x.shape) * rng.choice([-1.0, 1.0], x.shape)
    if x.dtype.kind == "c":
        value = value * np.exp(1j * rng.uniform(0, 6, x.shape))
    return np.asarray(value, x.dtype)


def _derivative(scalar: Callable[..., Any], moving: Sequence[int]) -> Callable[..., Any]:
    def derivative(*args: Any) -> list[Any]:
        args = tuple(convert(a) for a in args)
        found = gradients(scalar(*args), [args[i] for i in moving], unconnected_gradients="zero")
        return [convert(g) if isinstance(g, IndexedSlices) else g for g in found]

    return derivative


def _compare(
    scalar: Callable[..., Any],
    derivative: Callable[..., Any],
    arrays: Sequence[Any],
    moving: Sequence[int],
    rng: np.random.Generator,
    what: str,
    step: float,
    rtol: float,
    atol: float,
) -> None:
    run = function(scalar)
    direction = {i: random_like(arrays[i], rng) * _scale(arrays[i]) for i in moving}

    def along(t: float) -> Any:
        return run(*[a + t * direction[i] if i in direction else a for i, a in enumerate(arrays)])

    numeric = float(sum(weight * along(k * step) for k, weight in _STENCIL) / step)
    found = function(derivative)(*arrays)
    exact = float(sum(np.sum(np.conj(g) * direction[i]).real for g, i in zip(found, moving, strict=True)))
    if not np.isclose(exact, numeric, rtol=rtol, atol=atol * max(1.0, abs(numeric))):
        raise AssertionError(
            f"{what}, in a random direction: gradients() {exact!r}, finite differences {numeric!r}, with steps of "
            f"{step:g} of each argument's size. A kink nearby? Try a smaller step=, with a larger rtol=."
        )


def _scale(x: Any) -> float:
    """Steps are relative to the magnitude of each argument, such as a rate of 0.2 and a price of 100."""
    return float(np.abs(x).max(initial=0.0)) or 1.0
