"""Chains of updates run in place: the bits of the reference executor, and bytes in proportion to what is assigned.

Only operations that are exact or correctly rounded, so that native code has the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import distgrad as dg
from distgrad.ops.assignment.update import update
from distgrad.run.planner import evaluate
from distgrad.scheduler.cost.memory import value_bytes
from distgrad.scheduler.overwriting import Overwriting, overwriting
from distgrad.scheduler.passes.pipeline import Context, improve
from distgrad.scheduler.program import Program, lower
from distgrad.workers import reference
from distgrad.workers.numpy_engine.tape import Tape
from distgrad.workers.thread_pool import thread_pool

Array = np.ndarray[Any, np.dtype[Any]]
Build = Callable[[Any], Sequence[Any]]


def program_of(build: Build, shape: tuple[int, ...], gradients: bool = True) -> Program:
    with dg.Graph():
        x = dg.placeholder(shape)
        fetches = list(build(x))
        if gradients:
            fetches += dg.gradients(dg.sum(fetches[0] * fetches[0]), x)
        return lower(fetches, [x])


def found_in(program: Program) -> Overwriting:
    return overwriting(program.steps, value_bytes(program.types), program.wanted)


def on_tape(program: Program, x: Array, native: bool, threads: int = 1) -> list[Array]:
    tape = Tape(program.steps, program.types, program.feeds, program.fetches, thread_pool(threads), native)
    first = [y.copy() for y in tape.run([x])]
    again = tape.run([x])
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    return again


def check(build: Build, shape: tuple[int, ...], gradients: bool = True) -> Program:
    """The program, after comparing all ways of running it."""
    plain = program_of(build, shape, gradients)
    improved = improve(plain, Context(evaluate))
    x = np.random.default_rng(0).normal(size=shape)
    given = x.copy()
    for program in (plain, improved):
        expected, _ = reference.run(program, [x], {})
        for native in (False, True):
            made = on_tape(program, x, native)
            assert all(np.array_equal(a, b) for a, b in zip(made, expected, strict=True))
    assert np.array_equal(x, given)
    return improved


def recurrence(n: int) -> Build:
    def build(x: Any) -> Sequence[Any]:
        y = x
        for i in range(1, n):
            y = update(y, i, 0.3 * y[i - 1] * y[i - 1] + x[i])
        return [y]

    return build


def gauss_seidel(n: int, sweeps: int = 2) -> Build:
    def build(x: Any) -> Sequence[Any]:
        y = x
        for _ in range(sweeps):
            for i in range(1, n - 1):
                y = update(y, i, 0.5 * (y[i - 1] + y[i + 1]) + 0.1 * x[i])
        return [y]

    return build


@pytest.mark.parametrize("build", [recurrence, gauss_seidel])
def test_assignments_in_a_loop_are_in_place_forward_and_backward(build: Callable[[int], Build]) -> None:
    program = check(build(40), (40,))
    found = found_in(program)
    updates = [step for step in program.steps if step.type == "Update"]
    assert found.whole == {}
    assert len(updates) - len(found.in_place) <= 2  # the first of each chain copies what is not its own


@pytest.mark.parametrize("build", [recurrence, gauss_seidel])
def test_memory_grows_with_what_is_assigned(build: Callable[[int], Build]) -> None:
    bytes_of = {}
    for n in (50, 100, 200):
        x = np.ones(n)
        step = dg.value_and_grad(lambda x, n=n: dg.sum(build(n)(x)[0]))
        bytes_of[n] = step.plan(x).predictions.peak_bytes
    assert bytes_of[200] / bytes_of[100] < 2.2
    assert bytes_of[100] / bytes_of[50] < 2.2


def test_time_is_predicted_by_what_is_assigned() -> None:
    def seconds(n: int) -> float:
        step = dg.function(lambda x: update(update(x * 2.0, 1, 5.0), 2, 3.0))
        return (
            step.plan(np.ones(n)).predictions.seconds
            - dg.function(lambda x: x * 2.0).plan(np.ones(n)).predictions.seconds
        )

    assert seconds(1_000_000) < 2 * seconds(1_000)


def test_an_old_version_that_is_read_later_is_copied() -> None:
    def build(x: Any) -> Sequence[Any]:
        y = dg.square(x)
        z = update(y, 0, 1.0)
        return [z, dg.square(y)]

    found = found_in(check(build, (5,)))
    (reader,) = found.whole.values()
    assert reader is not None
    assert reader.type == "Square"


def test_old_versions_can_be_results() -> None:
    def build(x: Any) -> Sequence[Any]:
        a = dg.square(x)
        b = update(a, 1, 2.0)
        c = update(b, 2, 3.0)
        return [c, a, b, a[1:3], b[::-1]]

    check(build, (4,))


def test_a_part_of_the_old_version_that_is_read_later_is_a_copy() -> None:
    def build(x: Any) -> Sequence[Any]:
        y = dg.square(x)
        part = y[1:4]
        return [update(y, 2, part[0]), part * 2.0]

    found = found_in(check(build, (8,), gradients=False))
    assert len(found.copied) == 1
    assert not found.whole


def test_what_is_assigned_may_be_a_part_of_the_array_itself() -> None:
    def build(x: Any) -> Sequence[Any]:
        y = dg.square(x)
        y = update(y, slice(1, None), y[:-1])
        y = update(y, slice(0, 4), y[3::-1])
        return [update(y, slice(None), y)]

    check(build, (7,))


def test_rows_of_a_matrix() -> None:
    def build(a: Any) -> Sequence[Any]:
        m = a
        for k in range(4):
            for i in range(k + 1, 4):
                m = update(m, (i, slice(k, None)), m[i, k:] - m[i, k] / m[k, k] * m[k, k:])
        return [m]

    check(build, (4, 4))


def test_keys_of_arrays_and_other_modes() -> None:
    def build(x: Any) -> Sequence[Any]:
        y = dg.square(x)
        y = update(y, [0, 2, 0], x[:3], "add")
        y = update(y, [1, 1], x[:2])
        for mode in ("multiply", "minimum", "maximum"):
            y = update(y, [4, 3], x[3:], mode)
        return [y]

    check(build, (5,))


def test_large_arrays_that_threads_share() -> None:
    def build(x: Any) -> Sequence[Any]:
        y = x * 2.0 + 1.0
        for i in range(3):
            y = update(y, (slice(i, 60), slice(1, -1)), y[i:60, 2:] * y[i:60, :-2])
            y = y * 0.5 - x
        return [y]

    program = program_of(build, (64, 4096))
    improved = improve(program, Context(evaluate))
    x = np.random.default_rng(1).normal(size=(64, 4096))
    (expected, grad), _ = reference.run(improved, [x], {})
    for native in (False, True):
        made = on_tape(improved, x, native, threads=2)
        assert np.array_equal(made[0], expected)
        assert np.array_equal(made[1], grad)


def test_the_plan_names_the_line_that_reads_an_old_version() -> None:
    @dg.function
    def f(x: Any) -> Any:
        y = dg.square(x)
        z = update(y, 0, 1.0)  # copies
        return z, dg.sqrt(y)  # reads

    lines = Path(__file__).read_text().splitlines()
    copies, reads = (i for i, line in enumerate(lines, 1) if line.endswith(("# copies", "# reads")))
    text = f.plan(np.ones(1000)).explain()
    name = Path(__file__).name
    assert f"copies      {name}:{copies} copies 7.8 KiB, because Sqrt at {name}:{reads} reads what it replaces" in text


def test_a_fed_array_is_never_written_to() -> None:
    check(lambda x: [update(x, 0, 1.0)], (3,))
    check(lambda x: [update(x[1:], 0, 1.0)], (3,))
    check(lambda x: [update(dg.reshape(x, (3,)), 0, 1.0)], (3, 1))


KEYS = [0, -1, slice(None), slice(1, 4), slice(None, None, 2), slice(None, None, -1), slice(2, 2), [0, 3, 0]]
KEYS += [(..., None), (3,)]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_random_programs_of_updates_and_views(data: st.DataObject) -> None:
    draw = data.draw

    def build(x: Any) -> Sequence[Any]:
        arrays = [x, x * 0.1]
        for _ in range(draw(st.integers(1, 8))):
            base = draw(st.sampled_from(arrays))
            key = draw(st.sampled_from(KEYS))
            other = draw(st.sampled_from(arrays))
            match draw(st.integers(0, 4)):
                case 0:
                    made = dg.square(base) + other
                case 1:
                    made = base[::-1] * other
                case 2:
                    made = update(base, key, dg.sum(other[1:3]))
                case 3:
                    made = update(base, key, other[key], draw(st.sampled_from(["set", "add"])))
                case _:
                    made = update(base, draw(st.integers(0, 4)), other[draw(st.integers(0, 4))], "add")
            arrays.append(made)
        return [arrays[-1], *draw(st.lists(st.sampled_from(arrays), max_size=2))]

    check(build, (5,))


def test_gradients_of_chains_agree_with_differences() -> None:
    dg.testing.check_grads(lambda x: dg.sum(dg.sin(gauss_seidel(5)(x)[0])), [np.linspace(0.1, 1, 5)], order=2)


def test_sums_of_16_bits_are_rounded_once() -> None:
    """One after another, thirty ones would leave 2048 as it is."""
    with dg.Graph():
        x = dg.placeholder((200,), "float16")
        total = dg.add_n([x, *[dg.scatter(x[i : i + 1] * 0 + 1, slice(3, 4), (200,)) for i in range(30)]])
    assert dg.Session().run(total, {x: np.full(200, 2048, "float16")})[3] == 2078
