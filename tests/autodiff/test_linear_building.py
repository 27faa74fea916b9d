"""Building a graph takes linear time: the cost of a call does not depend on the size of the graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import distgrad as dg

from ..counting import steps
from ..support import f32


def custom_gradients_over_an_ever_longer_tensor(count: int) -> None:
    v = dg.Variable(np.float32(1.0), name="v")
    y = v * f32(2.0)
    for _ in range(count):
        held = y

        @dg.custom_gradient
        def f(x: Any, held: Any = None) -> Any:
            return x * held, lambda dy, variables=(): (dy, [None])

        y = f(y, held=held)


def custom_gradients_in_functions(count: int) -> None:
    v = dg.Variable(np.float32(1.0), name="v")
    y = v * f32(2.0)
    for _ in range(count):
        held = y

        @dg.function
        @dg.custom_gradient
        def f(x: Any) -> Any:
            return x * held, lambda dy, variables=(): (dy, [None])  # noqa: B023

        y = f(y)


def functions_of_one_name(count: int) -> None:
    x = f32(1.0)
    for _ in range(count):
        dg.Defun()(lambda x: x * 2)(x)


def recomputed_blocks_with_explicit_reads(count: int) -> None:
    v = dg.Variable(np.float32(1.0), name="v", trainable=False)
    x = y = f32(1.0)
    for _ in range(count):
        y = dg.recompute_grad(lambda x: x * v.read())(y)
    dg.gradients(y, x)


@pytest.mark.parametrize(
    "build",
    [
        custom_gradients_over_an_ever_longer_tensor,
        custom_gradients_in_functions,
        functions_of_one_name,
        recomputed_blocks_with_explicit_reads,
    ],
)
def test_building_is_linear(build: Callable[[int], None]) -> None:
    def cost(count: int) -> int:
        with dg.Graph():
            return steps(lambda: build(count))

    cost(2)  # warm up caches
    assert cost(160) < 4.8 * cost(40)
