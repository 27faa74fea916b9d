"""Joining: which steps inside of a group become one, and that they compute what they did."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import distgrad as dg
from distgrad.scheduler.joined import joined
from distgrad.scheduler.passes.fuse import fuse
from distgrad.scheduler.program import FUSED, Program, Step, lower
from distgrad.workers.thread_pool import thread_pool

from ..engines import assert_bits, assert_near, slowly, tiny_blocks
from ..workers.test_blocks import run

Build = Callable[..., Sequence[dg.Tensor]]

#: What is built on x and y, which are the sine and the cosine of an array, and the steps behind these two.
JOINED: list[tuple[Build, str]] = [
    (lambda x, y: [-abs(x)], "MinusAbs"),
    (lambda x, y: [-(a := abs(x)), a], "Abs Neg"),
    (lambda x, y: [dg.exp(-abs(x)) * abs(y)], "MinusAbs Exp Abs Mul"),
    (lambda x, y: [dg.sum(x * y)], "Sum(2)"),
    (lambda x, y: [dg.mean(x * y)], "Mean(2)"),
    (lambda x, y: [dg.sum(dg.square(x))], "Sum(2)"),
    (lambda x, y: [dg.sum(x * y, axis=0)], "Mul Sum"),
    (lambda x, y: [dg.sum(z := x * y), z], "Mul Sum"),
    (lambda x, y: [dg.sum(x * 2.0)], "Mul Sum"),
    (lambda x, y: [dg.max(x * y)], "Mul Max"),
    (lambda x, y: [dg.add_n([x, -y])], "Sub"),
    (lambda x, y: [dg.add_n([-x, y])], "Sub"),
    (lambda x, y: [dg.add_n([-x, -y])], "Neg Neg AddN"),
    (lambda x, y: [dg.add_n([x, -y, y])], "AddN-010"),
    (lambda x, y: [dg.add_n([-x, y, x])], "AddN-010"),
    (lambda x, y: [dg.add_n([x, y, -x, -y])], "AddN-0011"),
    (lambda x, y: [dg.add_n([x, n := -y, n])], "AddN-011"),
    (lambda x, y: [dg.add_n([x, -y * x, y])], "Mul AddN-010"),
    (lambda x, y: [dg.add_n([x, n := -y, y]), n], "Neg AddN"),
    (lambda x, y: [dg.add_n([x, y, x])], "AddN"),
]


def group_of(make: Build, shape: tuple[int, ...], dtype: Any) -> tuple[Program, Step]:
    with dg.Graph():
        a = dg.placeholder(shape, dtype)
        program = fuse(lower(make(dg.sin(a), dg.cos(a)), [a]))
    (group,) = [step for step in program.steps if step.type == FUSED]
    return program, group


def text(step: Step) -> str:
    several = f"({len(step.inputs)})" if step.type in ("Sum", "Mean") and len(step.inputs) > 1 else ""
    minus = "-" + "".join([str(int(m)) for m in step.attrs["minus"]]) if "minus" in step.attrs else ""
    return step.type + several + minus


@pytest.mark.parametrize(("make", "expected"), JOINED)
def test_these_become_one(make: Build, expected: str) -> None:
    with tiny_blocks():
        program, group = group_of(make, (6, 7), "float32")
    body = [text(step) for step in joined(group, program.types)]
    assert " ".join([each for each in body if each not in ("Sin", "Cos")]) == expected


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("elements", [1, 5, 1000])
@pytest.mark.parametrize(("make", "expected"), JOINED)
def test_one_computes_what_several_did(make: Build, expected: str, elements: int, dtype: str) -> None:
    rng = np.random.default_rng(0)
    arrays = [rng.uniform(-2, 2, (6, 7)).astype(dtype)]
    arrays[0][0, :2] = 0.0, -0.0
    with tiny_blocks(elements):
        program, _ = group_of(make, (6, 7), dtype)
        found = run(program, arrays, thread_pool(2))
    sums = any(kind in expected for kind in ("Sum", "Mean"))
    (assert_near if sums else assert_bits)(found, slowly(program, arrays))


def test_an_input_that_is_read_later_than_before_is_not_overwritten() -> None:
    """exp(y) could be written where y was, were y not read again by the sum that the product was joined to."""

    def f(x: Any) -> Any:
        y = x @ x
        product = y * y
        raised = dg.exp(y)
        return raised @ raised, dg.sum(product)

    x = np.random.default_rng(0).uniform(-0.1, 0.1, (64, 64)).astype("float32")
    total = dg.function(f)(x)[1]
    np.testing.assert_allclose(total, np.sum((x.astype("float64") @ x) ** 2), rtol=1e-5)


def test_the_square_of_a_negative_keeps_what_it_reads() -> None:
    """merged from two negations of a value that does not lie row by row, which simplifying leaves alone"""

    def f(x: Any) -> Any:
        u, t = dg.sin(x), dg.transpose(dg.cos(x))
        return dg.add_n([u, (-t) * (-t), dg.exp(u)])

    x = np.random.default_rng(0).uniform(-1, 1, (64, 64))
    np.testing.assert_allclose(dg.function(f)(x), np.sin(x) + np.cos(x).T ** 2 + np.exp(np.sin(x)), rtol=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_sum_of_products_of_what_lies_apart_has_the_same_bits_however_it_is_cut(dtype: str) -> None:
    f = dg.function(lambda x, y: dg.sum((x * 2.0)[::2] * y))
    for seed in range(5):
        rng = np.random.default_rng(seed)
        x, y = rng.standard_normal(20_000).astype(dtype), rng.standard_normal(10_000).astype(dtype)
        found = []
        for granularity in (1e-9, 1.0):
            with dg.Session(granularity=granularity):
                found.append(f(x, y).tobytes())
        assert found[0] == found[1]


def test_signs_stay_in_complex_products() -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(-1, 2, (64, 64)) + 1j * rng.integers(-1, 2, (64, 64))

    def f(x: Any) -> Any:
        u, y = x * 1j, dg.conj(x)
        return dg.add_n([u, -y * x, u]), x * y, -x * y

    for found, expected in zip(dg.function(f)(x), f(x), strict=True):
        assert found.tobytes() == np.asarray(expected).tobytes()


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 5000), st.sampled_from(["float32", "float64"]), st.integers(0, 9))
def test_a_sum_of_products_is_as_exact_as_a_pairwise_one(n: int, dtype: str, seed: int) -> None:
    from distgrad.workers.blocked.into_rows import whole_dot

    x, y = np.random.default_rng(seed).standard_normal((2, n)).astype(dtype)
    exact = np.dot(x.astype("longdouble"), y.astype("longdouble"))
    scale = float(np.sum(np.abs(x.astype("longdouble") * y)))
    assert abs(float(whole_dot(x, y) - exact)) <= 32 * np.finfo(dtype).eps * scale
