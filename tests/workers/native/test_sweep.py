"""Sweeps: all groups, by however many threads, with the bits of a plain run; nothing before they begin."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from distgrad.errors import UNKNOWN
from distgrad.scheduler.program import FUSED, Step
from distgrad.types import Spec
from distgrad.workers.native.compiled import CompiledGroup, compiled
from distgrad.workers.native.sweep import Sweep

F = np.dtype(np.float32)


def momentum(shape: tuple[int, ...]) -> CompiledGroup:
    """m' = m * rate + g, p' = p - m', of (m, rate, g, p)."""
    types = [Spec(shape, F), Spec((), F), *[Spec(shape, F)] * 5]
    empty = Step("Mul", (0, 1), (4,), {}, (), UNKNOWN, "mul")
    body = (empty, replace(empty, type="Add", inputs=(4, 2), outputs=(5,)))
    body += (replace(empty, type="Sub", inputs=(3, 5), outputs=(6,)),)
    attrs = {"space": shape, "split": len(shape)}
    made = compiled(Step(FUSED, (0, 1, 2, 3), (5, 6), attrs, (), UNKNOWN, "momentum", None, body), types)
    assert made is not None
    return made


def arrays(shape: tuple[int, ...]) -> list[Any]:
    rng = np.random.default_rng(len(shape))
    m, g, p = (rng.standard_normal(shape, F) for _ in range(3))
    return [m, np.array(0.9, F), g, p]


SHAPES = [(1,), (1023,), (3, 1025), (700_001,), (40, 30, 50)]


@pytest.mark.parametrize("helpers", [0, 1, 3])
def test_a_sweep_in_place_has_the_bits_of_one_into_fresh_memory(helpers: int) -> None:
    given = [arrays(shape) for shape in SHAPES]
    groups = [(momentum(shape), [*xs, xs[0], xs[3]]) for shape, xs in zip(SHAPES, given, strict=True)]
    expected = []
    for m, rate, g, p in given:
        moved = m * rate + g
        expected.append((moved, p - moved))
    sweep = Sweep(groups)
    begun = threading.Event()
    threads = [threading.Thread(target=lambda: (begun.wait(), sweep.part.run())) for _ in range(helpers)]
    for thread in threads:
        thread.start()
    begun.set()
    sweep.begin()
    for thread in threads:
        thread.join()
    for (m, _, _, p), (moved, parameter) in zip(given, expected, strict=True):
        np.testing.assert_array_equal(m, moved)
        np.testing.assert_array_equal(p, parameter)


def test_whoever_comes_before_a_sweep_or_after_it_does_nothing() -> None:
    m, rate, g, p = arrays((5000,))
    sweep = Sweep([(momentum((5000,)), [m, rate, g, p, m, p])])
    before = m.copy()
    sweep.part.run()
    np.testing.assert_array_equal(m, before)
    sweep.begin()
    after = m.copy()
    sweep.part.run()
    np.testing.assert_array_equal(m, after)
    assert not np.array_equal(before, after)


def test_a_part_keeps_no_array_alive() -> None:
    import sys

    xs = arrays((5000,))
    counts = [sys.getrefcount(x) for x in xs]
    sweep = Sweep([(momentum((5000,)), [*xs, xs[0], xs[3]])])
    part = sweep.part
    del sweep
    assert [sys.getrefcount(x) for x in xs] == counts
    part.run()


def test_an_empty_sweep_ends() -> None:
    Sweep([]).begin()
