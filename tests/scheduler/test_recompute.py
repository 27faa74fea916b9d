"""Recomputing: cheap values are computed again where they are read, with the same bits, and where that frees memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import distgrad as dg
from distgrad.scheduler.cost.memory import Liveness, value_bytes
from distgrad.scheduler.cost.work_table import element_work
from distgrad.scheduler.passes.fuse import fuse
from distgrad.scheduler.passes.pipeline import PASSES, Context, improve
from distgrad.scheduler.passes.recompute import MANY, recompute
from distgrad.scheduler.program import FUSED, Program, check_program, lower
from distgrad.workers import native, reference

from ..engines import Array, assert_bits, optimized

N, D = 64, 64


@pytest.fixture(autouse=True)
def graph() -> Iterator[None]:
    with dg.Graph():
        yield


def placeholder(*shape: int) -> dg.Tensor:
    return dg.placeholder(shape, "float32")


def kept(program: Program) -> list[list[str]]:
    """What each group gives, as op types."""
    makers = [{inner.outputs[0]: inner.type for inner in step.body} for step in program.steps]
    return [
        [made[v] for v in step.outputs]
        for step, made in zip(program.steps, makers, strict=True)
        if step.type == FUSED
    ]  # fmt: skip


def both(fetches: Sequence[Any], feeds: Sequence[Any]) -> tuple[Program, Program]:
    fused = fuse(optimized(fetches, feeds))
    return fused, check_program(recompute(fused, element_work))


def run(program: Program, arrays: Sequence[Array]) -> list[Array]:
    with np.errstate(all="ignore"):
        return reference.run(program, arrays, {})[0]


def some(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng([seed, *shape]).uniform(-1, 1, shape).astype("float32")


def peak(program: Program) -> int:
    types = program.types
    return Liveness(program.steps, value_bytes(types), types, program.wanted).run()[0]


def gelu(x: Any) -> Any:
    return 0.5 * x * (1 + np.tanh(0.8 * (x + 0.044715 * x * x * x)))


def test_a_gelu_written_in_numpy_keeps_its_input_and_the_tanh() -> None:
    x, w, v = placeholder(N, D), placeholder(D, D), placeholder(D, D)
    y = gelu(x @ w + 1.0) @ v
    fused, made = both(dg.gradients(dg.sum(y * y), [x, w, v]), [x, w, v])
    assert sorted(kept(made)[0]) == ["Add", "Mul", "Tanh"]  # Mul is its result
    assert len(kept(fused)[0]) > 4
    assert peak(made) < 0.8 * peak(fused)
    arrays = [some(N, D), some(D, D, seed=1), some(D, D, seed=2)]
    assert_bits(run(made, arrays), run(fused, arrays))


def test_what_takes_long_is_kept() -> None:
    """x -> tanh -> @ w -> * tanh."""
    x, w = placeholder(N, D), placeholder(D, D)
    y = dg.tanh(x)
    fused, made = both([dg.exp(y @ w) * y], [x, w])
    assert made == fused


def test_a_value_that_is_read_as_a_whole_is_kept() -> None:
    """2 y is read by a product, too."""
    x, w = placeholder(N, D), placeholder(D, D)
    y = x @ w
    doubled = 2 * y + 1
    fused, made = both([dg.exp(doubled @ w) * doubled * y], [x, w])
    assert made == fused


def test_results_are_kept() -> None:
    x, w = placeholder(N, D), placeholder(D, D)
    doubled = 2 * (x @ w) + 1
    fused, made = both([doubled, dg.exp(w @ x) * doubled], [x, w])
    assert made == fused


def test_nothing_large_is_kept_longer_for_it() -> None:
    """y would have to live until 2 y + 1 is read, which is as large."""
    x, w = placeholder(N, D), placeholder(D, D)
    y = x @ w
    doubled = 2 * y + 1
    z = dg.exp(doubled) @ w
    fused, made = both([z * doubled], [x, w])
    assert made == fused


def test_a_small_value_may_be_kept_for_it() -> None:
    """x - mean(x), from x, which is given, and the mean of each row."""
    x, w = placeholder(N, D), placeholder(D, D)
    centred = x - dg.mean(x, axis=1, keepdims=True)
    fused, made = both([dg.exp(centred @ w) * centred], [x, w])
    assert kept(fused)[0] == ["Sub"]
    assert kept(made)[-1] == ["Mul"]
    assert_bits(run(made, [some(N, D), some(D, D)]), run(fused, [some(N, D), some(D, D)]))


def test_loops_of_other_devices_and_shapes_take_nothing() -> None:
    x, w = placeholder(N, D), placeholder(D, D)
    y = x @ w
    with dg.device("worker:0"):
        doubled = 2 * y + 1
        first = dg.exp(doubled) * y
    with dg.device("worker:1"):
        second = dg.tanh(first @ w) * doubled * y
    fused, made = both([second], [x, w])
    assert made == fused


def test_a_group_takes_a_limited_number_of_steps() -> None:
    x, w = placeholder(N, D), placeholder(D, D)
    y = x @ w
    values = [y * (k + 0.5) - 1.0 for k in range(MANY // 2)]
    late = dg.exp(dg.tanh(dg.add_n(values)) @ w)
    for value in values:
        late = late * value
    fused, made = both([late + y], [x, w])
    assert made != fused
    assert max(len(step.body) for step in made.steps) <= max(MANY, max(len(step.body) for step in fused.steps))


@pytest.mark.parametrize("count", [8, 13, 16, 23])
def test_groups_that_become_too_long_leave_values_where_they_are(count: int) -> None:
    """Each value is a few steps from a tanh that is kept instead of all of them, until the reader is full."""
    x, w = placeholder(N, D), placeholder(D, D)
    u = dg.tanh(x)
    values = [u * (k + 1.5) * (u - (k + 0.5)) for k in range(count)]
    t = dg.sin(u)
    for value in values:
        t = t - value
    z = t @ w
    for value in values:
        z = z * value
    fused, made = both([z], [x, w])  # checked
    arrays = [some(N, D), some(D, D)]
    assert_bits(run(made, arrays), run(fused, arrays))


def test_rows_of_two_axes_take_nothing_that_repeats_along_one_of_them() -> None:
    """Native code has no loop that reads part of a row again and again."""
    x, w, g = placeholder(8, 16, 32), placeholder(32, 32), placeholder(32)
    v = (x @ w) * g
    fused, made = both([dg.sum(dg.exp(v @ w) * v * (x @ w), axis=(1, 2)), x @ w], [x, w, g])
    assert [step for step in made.steps if "Sum" in [i.type for i in step.body]] == [
        step for step in fused.steps if "Sum" in [i.type for i in step.body]
    ]


def test_without_loops_nothing_is_computed_twice() -> None:
    x, w = placeholder(N, D), placeholder(D, D)
    y = gelu(x @ w + 1.0) @ w
    program = lower(dg.gradients(dg.sum(y * y), [x, w]), [x, w])
    with_loops, without = (
        improve(
            program,
            Context(_unused, element_work=work),
            [each for each in PASSES if each.name in ("fuse", "recompute")],
        )
        for work in (element_work, None)
    )
    assert without == fuse(program) != with_loops


def _unused(*_: Any) -> Any:
    raise AssertionError


def test_new_values_of_variables_are_updated_in_place_as_before() -> None:
    """Their groups read what the first phase makes, and take in nothing."""
    w = dg.Variable(some(N, D), name="w")
    x = placeholder(N, D)
    y = x @ w
    doubled = 2 * y + 1
    z = dg.exp(doubled @ x) * y
    w.assign_sub(0.1 * doubled * z)
    program = lower([z], [x])
    context = Context(_unused, element_work=element_work)
    passes = [each for each in PASSES if each.name in ("updates", "fuse", "recompute")]
    made, fused = improve(program, context, passes), improve(program, context, passes[:-1])
    writers = [step for step in made.steps if {v for _, v in made.writes} & set(step.outputs)]
    assert writers == [step for step in fused.steps if {v for _, v in fused.writes} & set(step.outputs)]


# -- random programs ---------------------------------------------------------------------------------------------

Choose = Callable[[Sequence[Any]], Any]


STEPS: tuple[Callable[[Any, Any, Any, Any], Any], ...] = (
    lambda x, y, w, b: x * y,
    lambda x, y, w, b: x * x,
    lambda x, y, w, b: x - 0.5 * y,
    lambda x, y, w, b: x + b,
    lambda x, y, w, b: dg.where(x > y, x, 0.25),
    lambda x, y, w, b: dg.tanh(x),
    lambda x, y, w, b: x @ w * 0.1,
    lambda x, y, w, b: x / (1.5 + dg.abs(y)),
    lambda x, y, w, b: x - dg.mean(y, axis=1, keepdims=True),
    lambda x, y, w, b: dg.nn.softmax(x),
)


@st.composite
def programs(draw: st.DrawFn) -> tuple[list[Any], list[Any]]:
    choose: Choose = lambda options: draw(st.sampled_from(options))  # noqa: E731
    feeds = [placeholder(N, D), placeholder(D, D), placeholder(D)]
    xs = [feeds[0], feeds[0] @ feeds[1]]
    for _ in range(draw(st.integers(4, 14))):
        x, y = choose(xs[-6:]), choose(xs)
        xs.append(choose(STEPS)(x, y, *feeds[1:]))
    loss = dg.sum(dg.add_n([dg.tanh(x) for x in xs[-3:]]))
    return [loss, *[g for g in dg.gradients(loss, feeds) if g is not None]], feeds


@settings(deadline=None, max_examples=60, derandomize=True)
@given(data=st.data())
def test_random_programs_keep_their_bits_and_need_no_more_memory(data: st.DataObject) -> None:
    with dg.Graph():
        fetches, feeds = data.draw(programs())
        fused, made = both(fetches, feeds)
    arrays = [some(*x.shape, seed=k) for k, x in enumerate(feeds)]
    assert_bits(run(made, arrays), run(fused, arrays))
    assert peak(made) <= peak(fused) * 1.05


def test_the_engine_computes_the_same_bits() -> None:
    """With native code, whose groups have other shapes of loops."""
    if native.unusable():
        pytest.skip(native.unusable())
    from distgrad.workers.numpy_engine.tape import Tape
    from distgrad.workers.thread_pool import thread_pool

    x, w, v = placeholder(N, D), placeholder(D, D), placeholder(D, D)
    centred = x @ w - dg.mean(x @ w, axis=1, keepdims=True)
    y = gelu(centred / dg.sqrt(dg.mean(centred * centred, axis=1, keepdims=True) + 1e-5)) @ v
    fused, made = both(dg.gradients(dg.sum(y * y), [x, w, v]), [x, w, v])
    assert made != fused
    arrays = [some(N, D), some(D, D, seed=1), some(D, D, seed=2)]
    results = [
        Tape(each.steps, each.types, each.given, each.wanted, thread_pool(2), native=True).run(arrays)
        for each in (fused, made)
    ]
    assert_bits(*results)
