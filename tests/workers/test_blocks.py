"""Groups on tapes: a fused step gives the same whatever the blocks and whoever runs them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import distgrad as dg
from distgrad.scheduler.passes.fuse import fuse
from distgrad.scheduler.program import FUSED, Program, lower
from distgrad.workers import native
from distgrad.workers.numpy_engine.tape import Tape
from distgrad.workers.thread_pool import ThreadPool, thread_pool

from ..engines import Array, assert_bits, assert_near, slowly, tiny_blocks

if native.unusable():
    pytest.skip(f"native code: {native.unusable()}", allow_module_level=True)

Shape = tuple[int, ...]
Build = Callable[..., Sequence[dg.Tensor]]
HEIGHTS = [1, 3, 5, 1000]


def some(shape: Shape, seed: int = 0, dtype: Any = np.float32) -> Array:
    return np.random.default_rng([seed, *shape]).uniform(-2, 2, shape).astype(dtype)


def one_group(make: Build, arrays: Sequence[Array]) -> Program:
    """What is built of minus the first of these arrays and of the others, which must become one fused step."""
    with dg.Graph():
        xs = [dg.placeholder(x.shape, x.dtype) for x in arrays]
        program = fuse(lower(make(dg.negative(xs[0]), *xs[1:]), xs))
    assert [step.type for step in program.steps if step.type != "Const"] == [FUSED]
    return program


def run(program: Program, arrays: Sequence[Array], pool: ThreadPool) -> list[Array]:
    tape = Tape(program.steps, program.types, program.feeds, program.fetches, pool, native=True)
    tape.run([np.flip(x) for x in arrays])  # what a run leaves behind must not show in the next
    return tape.run(arrays)


def assert_same_in_all_blocks(make: Build, *arrays: Array) -> None:
    """For groups that add up nothing across blocks: the same bits in blocks of any height."""
    found = []
    for elements in HEIGHTS:
        with tiny_blocks(elements):
            program = one_group(make, arrays)
            found.append(run(program, arrays, thread_pool(1)))
    for each in found:
        assert_bits(each, found[0])
    assert_near(found[0], slowly(program, arrays))


def assert_near_in_all_blocks(make: Build, *arrays: Array) -> None:
    for elements in HEIGHTS:
        with tiny_blocks(elements):
            program = one_group(make, arrays)
            assert_near(run(program, arrays, thread_pool(1)), slowly(program, arrays))


# -- broadcasting ------------------------------------------------------------------------------------------------

SPACE = (2, 3, 4, 5)
OPERANDS: list[Shape] = [
    (),
    (1,),
    (5,),
    (4, 1),
    (4, 5),
    (1, 1, 4, 5),
    (3, 1, 1),
    (3, 4, 5),
    (2, 1, 1, 1),
    (2, 1, 1, 5),
    (2, 1, 4, 5),
    (2, 3, 1, 1),
    (2, 3, 1, 5),
    (2, 3, 4, 1),
    (1, 3, 1, 5),
    (1, 1, 1, 1),
    SPACE,
]


@pytest.mark.parametrize("operand", OPERANDS, ids=str)
def test_operands_broadcast(operand: Shape) -> None:
    def make(x: Any, y: Any) -> list[Any]:
        return [dg.tanh(x * y) + y, y - x]

    assert_same_in_all_blocks(make, some(SPACE), some(operand, 1))


@st.composite
def spaces(draw: st.DrawFn) -> tuple[Shape, ...]:
    """A space of at least two elements, and two shapes that broadcast to it."""
    space = (*draw(st.lists(st.sampled_from([1, 2, 3]), max_size=3)), draw(st.sampled_from([2, 3])))
    parts = [tuple(draw(st.sampled_from([1, n])) for n in space)[draw(st.integers(0, len(space))) :] for _ in range(2)]
    return space, *parts


@settings(deadline=None, max_examples=60, derandomize=True)
@given(shapes=spaces())
def test_operands_broadcast_in_any_space(shapes: tuple[Shape, ...]) -> None:
    arrays = [some(shape, i) for i, shape in enumerate(shapes)]
    for elements in (1, 4):
        with tiny_blocks(elements), dg.Graph():
            x, y, z = xs = [dg.placeholder(a.shape, a.dtype) for a in arrays]
            fetches = [dg.tanh(x * y + z), dg.exp(x - z) * y]
            found = dg.Session(threads=2, native=False).run(fetches, dict(zip(xs, arrays, strict=True)))
            assert_bits(found, slowly(lower(fetches, xs), arrays))


@pytest.mark.parametrize("elements", HEIGHTS)
def test_one_array_may_be_cut_in_one_step_and_whole_in_another(elements: int) -> None:
    """A row of as many numbers as there are rows: added to each row, and the gradient of the loss of each row."""
    arrays = [some((5, 5)), some((5,), 1), np.array([4, 0, 2, 1, 3])]
    with tiny_blocks(elements), dg.Graph():
        x, row, labels = xs = [dg.placeholder(a.shape, a.dtype) for a in arrays]
        loss = dg.nn.sparse_softmax_cross_entropy(x + row, labels)
        fetches = [loss, *dg.gradients(loss, [x], row)]
        found = dg.Session().run(fetches, dict(zip(xs, arrays, strict=True)))
        assert_near(found, slowly(lower(fetches, xs), arrays))


# -- rows --------------------------------------------------------------------------------------------------------

BY_ROWS: dict[str, Callable[[Any], list[Any]]] = {
    "softmax": lambda x: [dg.nn.softmax(x * 2.0)],
    "log_softmax": lambda x: [dg.nn.log_softmax(x) - x],
    "layer_norm": lambda x: [dg.nn.layer_norm(dg.tanh(x))],
    "mean": lambda x: [x - dg.mean(x, axis=-1, keepdims=True)],
    "moments": lambda x: [dg.square(x - dg.mean(x, axis=-1, keepdims=True)), dg.mean(x * x, axis=-1, keepdims=True)],
    "max": lambda x: [x / dg.max(dg.abs(x), axis=-1, keepdims=True)],
    "min": lambda x: [dg.min(x * 2.0, axis=-1), dg.exp(x)],
    "sum": lambda x: [dg.sum(dg.exp(x), axis=-1), dg.tanh(x)],
    "last two": lambda x: [dg.tanh(x) - dg.mean(x, axis=(-2, -1), keepdims=True)],
    "middle": lambda x: [dg.tanh(x) - dg.sum(x, axis=-2, keepdims=True)],
}


@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (7, 2, 3), (1, 4, 9), (5, 1, 3), (3, 2, 1)], ids=str)
@pytest.mark.parametrize("name", BY_ROWS)
def test_rows_are_computed_whole(name: str, shape: Shape) -> None:
    assert_same_in_all_blocks(BY_ROWS[name], some(shape))


@pytest.mark.parametrize("name", BY_ROWS)
def test_gradients_of_what_is_computed_by_rows(name: str) -> None:
    """Through a session: a gradient may be several groups."""
    value = some((6, 2, 5), dtype=np.float64)
    with dg.Graph():
        x = dg.placeholder(value.shape)
        grads = dg.gradients([dg.sum(dg.sin(y)) for y in BY_ROWS[name](x)], [x])
        expected = slowly(lower(grads, [x]), [value])
    for elements, options in itertools.product((1, 7), ({"threads": 1}, {"threads": 3})):
        with tiny_blocks(elements), dg.Graph():
            x = dg.placeholder(value.shape)
            grads = dg.gradients([dg.sum(dg.sin(y)) for y in BY_ROWS[name](x)], [x])
            assert_near(dg.Session(**options).run(grads, {x: value}), expected, ulps=512)


@pytest.mark.parametrize("shape", [(5, 4), (2, 3, 4)], ids=str)
def test_losses_have_one_label_and_one_result_per_row(shape: Shape) -> None:
    def make(x: Any, labels: Any) -> list[Any]:
        return [dg.nn.sparse_softmax_cross_entropy(x * 2.0, labels)]

    labels = np.random.default_rng(0).integers(0, 4, shape[:-1])
    assert_same_in_all_blocks(make, some(shape), labels)


# -- sums over blocks --------------------------------------------------------------------------------------------

FOLDS = {"sum": dg.sum, "mean": dg.mean, "max": dg.max, "min": dg.min}
AXES: list[Any] = [None, 0, (0, 1), (0, 2), (0, 1, 2)]


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("axis", AXES, ids=str)
@pytest.mark.parametrize("name", FOLDS)
def test_blocks_are_put_together(name: str, axis: Any, keepdims: bool) -> None:
    def make(x: Any) -> list[Any]:
        y = dg.tanh(x)
        return [y, FOLDS[name](y, axis=axis, keepdims=keepdims), FOLDS[name](x, axis=axis)]

    assert_near_in_all_blocks(make, some((7, 3, 4)))


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int32", "int64", "uint64", "float64", "complex64"])
@pytest.mark.parametrize("name", ["sum", "max", "min", "mean"])
def test_blocks_of_any_dtype_are_put_together(name: str, dtype: str) -> None:
    value = np.arange(-14, 14).reshape(7, 4).astype(dtype)
    with tiny_blocks(3), dg.Graph():
        x = dg.placeholder(value.shape, dtype)
        found = dg.Session().run([FOLDS[name](x, axis=0), FOLDS[name](x)], {x: value})
    expected = [np.asarray(getattr(np, name)(value, axis=axis)) for axis in (0, None)]
    assert_near(found, expected)


@pytest.mark.parametrize("name", ["max", "min", "sum"])
def test_a_nan_in_any_block_is_kept(name: str) -> None:
    for at in range(7):
        value = np.arange(7.0)
        value[at] = np.nan
        with tiny_blocks(2), dg.Graph():
            x = dg.placeholder((7,))
            assert np.isnan(dg.Session().run(FOLDS[name](x * 2.0), {x: value}))


def test_blocks_are_added_in_their_order() -> None:
    """1e8 + 1 - 1e8 in float32: the order decides."""
    value = np.array([1, 1e8, 1, -1e8, 1, 1e8, -1e8, 1], np.float32)
    with tiny_blocks(1):
        program = one_group(lambda x: [dg.sum(x), dg.tanh(x)], [value])
        expected = np.add.reduce(-value)
        for size in (1, 2, 4):
            for _ in range(10):
                assert run(program, [value], thread_pool(size))[0] == expected


# -- threads -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("elements", [1, 4])
@pytest.mark.parametrize("size", [2, 3, 8])
def test_the_number_of_threads_changes_no_bit(size: int, elements: int) -> None:
    def make(x: Any, b: Any) -> list[Any]:
        y = dg.nn.softmax(dg.exp(x) + b)
        return [y, dg.sum(y * x, axis=0), dg.mean(y, axis=1, keepdims=True), dg.sum(x)]

    arrays = [some((13, 5)), some((5,), 1)]
    with tiny_blocks(elements):
        program = one_group(make, arrays)
        alone = run(program, arrays, thread_pool(1))
        for _ in range(20):
            assert_bits(run(program, arrays, thread_pool(size)), alone)


def test_a_group_is_run_by_one_thread_where_there_is_little_to_do() -> None:
    class Refuses(ThreadPool):
        def each(self, count: int, work: Any) -> None:
            raise AssertionError("woken up for nothing")

    value = some((64, 64))
    program = one_group(lambda x: [dg.tanh(x) * 2.0], [value])
    assert_near(run(program, [value], Refuses(4)), slowly(program, [value]))


# -- edges -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 6, 7, 9])
def test_the_last_block_may_be_shorter(rows: int) -> None:
    with tiny_blocks(12):  # three rows
        value = some((rows, 4))
        program = one_group(lambda x: [dg.nn.softmax(x) * 2.0, dg.sum(x, axis=0)], [value])
        assert_near(run(program, [value], thread_pool(2)), slowly(program, [value]))


def test_inputs_are_not_changed() -> None:
    value = some((6, 4))
    before = value.copy()
    with tiny_blocks():
        program = one_group(lambda x: [dg.exp(dg.tanh(dg.negative(x)))], [value])
        run(program, [value], thread_pool(2))
    assert_bits([value], [before])


@pytest.mark.parametrize("layout", [np.asfortranarray, lambda x: x[::-1].copy()[::-1]], ids=["columns", "backwards"])
def test_inputs_may_be_views(layout: Any) -> None:
    value = some((6, 4))
    with tiny_blocks():
        program = one_group(lambda x: [dg.nn.softmax(dg.tanh(x))], [value])
        assert_bits(run(program, [layout(value)], thread_pool(2)), run(program, [value], thread_pool(1)))


def test_values_inside_share_buffers_without_harm() -> None:
    """Twenty values that die at different times; some are read long after they were made."""

    def make(x: Any) -> list[Any]:
        values = [x]
        for i in range(20):
            values.append(dg.tanh(values[-1]) if i % 3 else values[-1] * values[i // 2] + values[i // 3])
        return [values[-1], values[7] - values[11]]

    assert_same_in_all_blocks(make, some((9, 4)))


def test_results_that_are_smaller_than_the_space_inside_a_group() -> None:
    def make(x: Any, y: Any) -> list[Any]:
        a, b = dg.exp(x), dg.exp(y)
        m, n = dg.mean(a, axis=1, keepdims=True), dg.mean(b, axis=1, keepdims=True)
        return [a - n, b - m]

    assert_same_in_all_blocks(make, some((5, 4)), some((5, 4), 1))
