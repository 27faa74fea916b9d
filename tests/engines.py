"""Helpers for tests of the NumPy engine: orders of work, tiny blocks, the reference executor, bitwise comparison."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np

import distgrad as dg
from distgrad.registry import Kind, kind_of
from distgrad.run.planner import evaluate
from distgrad.scheduler.passes.fuse import fuse
from distgrad.scheduler.passes.pipeline import PASSES, Context, improve
from distgrad.scheduler.program import Program, Step, lower
from distgrad.workers import blas, native, reference
from distgrad.workers.kernels.sharing import BlockRunner, in_turn, shared
from distgrad.workers.thread_pool import ThreadPool

Array = np.ndarray[Any, np.dtype[Any]]
#: The passes of a session before steps are fused.
UNFUSED = [each for each in PASSES if each.function is not fuse]


class Order(ThreadPool):
    """Two threads' work on one, in an order of the test's choosing: what items or blocks share by mistake differs."""

    def __init__(self, order: Callable[[int], Sequence[int]]):
        super().__init__(2)
        self._order = order

    def each(self, count: int, work: BlockRunner) -> None:
        for number in self._order(count):
            work(iter((number,)))


FORWARDS, BACKWARDS = Order(range), Order(lambda count: range(count)[::-1])
MIXED = Order(lambda count: [*range(1, count, 2), *range(0, count, 2)])


@contextmanager
def tiny_blocks(elements: int = 5) -> Iterator[None]:
    """Context in which even arrays of two elements are fused, run in blocks of about `elements` by all threads."""
    with (
        patch.multiple("distgrad.scheduler.passes.fuse", SMALL=2, LARGE=4),
        patch.multiple("distgrad.scheduler.cost.cutting", BLOCK=elements, ALONE=0),
        patch("distgrad.workers.kernels.products.PIECE_FLOPS", 1),
    ):
        yield


@contextmanager
def tiny_stretches(elements: int = 12) -> Iterator[None]:
    """Context in which threads take rows through whole stretches of steps, however few rows there are."""
    with (
        tiny_blocks(elements),
        patch("distgrad.scheduler.cost.cutting.FOLDED", 0),
        patch("distgrad.workers.kernels.products.PIECE_ROWS", 1),
        patch.multiple("distgrad.workers.numpy_engine.stretches", PIECE_FLOPS=1, LITTLE=64),
    ):
        yield


def optimized(fetches: Sequence[dg.Tensor], feeds: Sequence[dg.Tensor]) -> Program:
    """The program that a session runs, before steps are fused."""
    return improve(lower(fetches, feeds), Context(evaluate), UNFUSED)


def fused(fetches: Sequence[dg.Tensor], feeds: Sequence[dg.Tensor]) -> Program:
    return fuse(lower(fetches, feeds))


def slowly(program: Program, feeds: Sequence[Array], cpus: int = 1) -> list[Array]:
    """The fetched values, computed step by step by the reference executor on contiguous arrays."""
    values = dict(zip(program.feeds, [np.asarray(x, order="C") for x in feeds], strict=True))
    with blas.threads(1), shared(cpus, in_turn):
        for step in program.steps:
            reference.run_steps((step,), program.types, values)
            values.update({v: np.asarray(values[v], order="C") for v in step.outputs})
    return [values[v] for v in program.fetches]


def exact(program: Program, is_native: bool = False) -> bool:
    """Whether the engine computes all steps bitwise equal to their kernels: native code has its own order of sums and
    products, and its own mathematical functions."""
    return not is_native or not any(_is_rounded(step) for step in program.steps)


def _is_rounded(step: Step) -> bool:
    from distgrad.workers.native.rules import RULES

    if kind_of(step.type) in (Kind.REDUCTION, Kind.ROWWISE, Kind.CONVOLUTION):
        return True
    return step.type in RULES and RULES[step.type].slow


def sessions_are_native() -> bool:
    return not native.turned_off()


def assert_bits(found: Sequence[Any], expected: Sequence[Any]) -> None:
    for x, y in zip(found, expected, strict=True):
        assert (x.shape, x.dtype) == (y.shape, y.dtype)
        if x.tobytes() != y.tobytes():
            np.testing.assert_array_equal(x, y)  # shows the differing elements
            assert np.isnan(x).any() or not x.all(), "NaNs or zeros differ in their bits"
            np.testing.assert_array_equal(np.signbit(x), np.signbit(y))


def assert_near(found: Sequence[Any], expected: Sequence[Any], ulps: float = 64) -> None:
    """Assert equality up to `ulps` units in the last place of the largest number."""
    for x, y in zip(found, expected, strict=True):
        assert (x.shape, x.dtype) == (y.shape, y.dtype)
        if x.dtype.kind not in "fc" or not x.size:
            np.testing.assert_array_equal(x, y)
            continue
        size = np.abs(np.where(np.isfinite(y), y, 0)).max()
        np.testing.assert_allclose(x, y, rtol=0, atol=ulps * np.finfo(x.dtype).eps * max(size, 1.0))
