"""Small steps: kernels for any length, and rows of them walked by one native loop, with the bits of fused groups."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import distgrad as dg
from distgrad.workers import native

if native.unusable():
    pytest.skip(f"native code: {native.unusable()}", allow_module_level=True)

from distgrad.workers.native.direct import builtins
from distgrad.workers.numpy_engine.tape import Tape
from distgrad.workers.thread_pool import thread_pool

from ...engines import Array, assert_bits


def tape_of(make: Any, arrays: list[Array]) -> tuple[Tape, Any]:
    """The tape of a program that nothing was fused in."""
    from distgrad.scheduler.program import lower

    with dg.Graph():
        xs = [dg.placeholder(x.shape, x.dtype) for x in arrays]
        program = lower(make(*xs), xs)
    tape = Tape(program.steps, program.types, program.feeds, program.fetches, thread_pool(1), native=True)
    return tape, program


def walks(tape: Tape) -> int:
    return sum(call.run is builtins().walk for call in tape.calls)


def chain(x: Any, y: Any) -> list[Any]:
    for _ in range(20):
        x = np.tanh(x * 1.5 + y) - y / (x * x + 1.0)
    return [x, np.exp(x)]


def test_many_small_steps_are_one_call() -> None:
    arrays = [np.linspace(-1, 1, 16, dtype=np.float32), np.float32(0.25).reshape(())]
    tape, _ = tape_of(chain, arrays)
    assert walks(tape) == 1
    assert len(tape.calls) < 8


@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 100, 2047])
def test_small_steps_have_the_bits_of_a_fused_group(length: int) -> None:
    rng = np.random.default_rng(length)
    x, y = (rng.uniform(-2, 2, 4096).astype(np.float32) for _ in range(2))
    fused = dg.function(lambda a, b: chain(a, b))(x, y)
    tape, _ = tape_of(chain, [x[:length], y[:length]])
    assert_bits(tape.run([x[:length].copy(), y[:length].copy()]), [made[:length] for made in fused])


def test_runs_do_not_share_what_they_return() -> None:
    arrays = [np.linspace(-1, 1, 16, dtype=np.float32), np.float32(0.25).reshape(())]
    tape, _ = tape_of(chain, arrays)
    first = tape.run(arrays)
    kept = [x.copy() for x in first]
    tape.run([x + 1 for x in arrays])
    assert_bits(first, kept)


def test_other_arrays_are_read_where_they_are() -> None:
    """Arrays that are given, and those that are returned, lie somewhere else in each run."""
    tape, _ = tape_of(chain, [np.zeros(16, np.float32), np.zeros((), np.float32)])
    for seed in range(10):
        rng = np.random.default_rng(seed)
        given = [rng.normal(size=16).astype(np.float32), np.asarray(rng.normal(), np.float32)]
        again = [x.copy() for x in given]
        assert_bits(tape.run(given), tape.run(again))


def test_strided_and_empty_arrays_are_computed_too() -> None:
    def strided(x: Any) -> list[Any]:
        return [np.tanh(x.T) * x.T + 1.0, np.exp(x[:0]) * 2.0]

    x = np.random.default_rng(0).normal(size=(5, 7)).astype(np.float32)
    tape, _ = tape_of(strided, [x])
    made, nothing = tape.run([x])
    expected = np.tanh(x.T) * x.T + 1.0
    np.testing.assert_allclose(made, expected, rtol=1e-6)
    assert nothing.shape == (0, 7)


def several(*terms: Any) -> Any:
    """One addition after another, in distgrad as in NumPy."""
    return dg.add_n(terms) if any(isinstance(x, dg.Tensor) for x in terms) else sum(terms[1:], terms[0])


CHOICES = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "m": np.maximum,
    "n": np.minimum,
    "s": lambda a, b: np.where(a > b, a, b),
    "t": lambda a, b: several(a * b, a + b, b - a, a * b + a),
}


@settings(max_examples=60, deadline=None, derandomize=True)
@given(data=st.data())
def test_random_rows_of_steps_equal_the_same_steps_one_at_a_time(data: st.DataObject) -> None:
    """Walking is only a faster way to call the kernels."""
    length = data.draw(st.integers(1, 40), "length")
    dtype = data.draw(st.sampled_from([np.float32, np.float64, np.int32, np.int64]), "dtype")
    number = st.integers(0, 99)
    picks = data.draw(st.lists(st.tuples(st.sampled_from("+-*mnst"), number, number), max_size=40))
    outs = data.draw(st.lists(st.integers(0, 99), min_size=1, max_size=3))

    def build(x: Any, y: Any) -> list[Any]:
        made = [x, y]
        for op, i, j in picks:
            a, b = made[i % len(made)], made[j % len(made)]
            made.append(CHOICES[op](a, b))
        return [made[-1 - k % len(made)] + dtype(1) for k in outs]

    rng = np.random.default_rng(length)
    x = rng.integers(-3, 4, length).astype(dtype)
    y = rng.integers(-3, 4, data.draw(st.sampled_from([(length,), (1,), ()]))).astype(dtype)
    with np.errstate(all="ignore"):
        expected = build(x, y)
    tape, _ = tape_of(build, [x, y])
    for _ in range(2):
        assert_bits(tape.run([x, y]), [np.asarray(e) for e in expected])


def test_a_sum_of_many_terms_does_not_end_a_walk() -> None:
    tape, _ = tape_of(lambda x: [dg.add_n([x * float(k) for k in range(30)]) + 1.0], [np.zeros(16, np.float32)])
    assert walks(tape) == 1


@pytest.mark.parametrize("shape", [(3, 4), (4, 4), (1, 5)])
def test_constants_may_lie_in_memory_as_they_like(shape: tuple[int, ...]) -> None:
    c = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    x = np.ones(shape, np.float32)
    for other in (np.asfortranarray(c), np.repeat(c, 2, axis=1)[:, ::2]):
        found = dg.function(lambda x, other=other: x * other + 1.0)(x)
        np.testing.assert_array_equal(found, c + 1)


@pytest.mark.parametrize("axis", [0, 1])
def test_what_is_put_together_of_small_steps_is_copied_after_them(axis: int) -> None:
    """The result leaves the task, so each run makes views of its parts, and fills them with what the steps make."""
    x = np.arange(6.0).reshape(2, 3)

    def build(x: Any) -> list[Any]:
        return [dg.concatenate([x, x * 2 + 1], axis=axis), dg.stack([x - 1, x * x], axis=axis)]

    tape, _ = tape_of(build, [x])
    for y in (x, x + 1):
        expected = [np.concatenate([y, y * 2 + 1], axis), np.stack([y - 1, y * y], axis)]
        assert_bits(tape.run([y]), expected)
