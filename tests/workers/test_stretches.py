"""Stretches: rows go through many steps at once, and no bit tells in which order, on which thread, or if they did."""

from __future__ import annotations

import itertools
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import distgrad as dg
from distgrad.scheduler.passes.fuse import fuse
from distgrad.scheduler.program import FUSED, Program
from distgrad.workers import native
from distgrad.workers.calls import StepFailed, copied
from distgrad.workers.fused_run import FusedRun
from distgrad.workers.kernels.sharing import BlockRunner
from distgrad.workers.numpy_engine import stretches
from distgrad.workers.numpy_engine.region import Bound, Part, Region
from distgrad.workers.numpy_engine.tape import Tape
from distgrad.workers.task_monitor import Clock, Stopped, TaskMonitor
from distgrad.workers.thread_pool import ThreadPool, thread_pool

from ..engines import BACKWARDS, FORWARDS, MIXED, Array, assert_bits, optimized, tiny_stretches

if native.unusable():
    pytest.skip(f"native code: {native.unusable()}", allow_module_level=True)

LEAD, ROWS, WIDTH, HEADS = 8, 6, 4, 2


def compiled(program: Program, threads: ThreadPool) -> Tape:
    return Tape(program.steps, program.types, program.given, program.wanted, threads, native=True)


def played(tape: Tape) -> list[Region]:
    return [call.run for call in tape.calls if isinstance(call.run, Region)]


def own(region: Region) -> list[Part]:
    """Products of their own."""
    return [part for part in region.parts if part.cut is None]


def inside(region: Region) -> list[Part]:
    """What items go through."""
    return [part for part in region.parts if part.cut is not None]


def run(tape: Tape, feeds: Sequence[Array]) -> list[Array]:
    with np.errstate(all="ignore"):
        return tape.run(feeds)


def plain(program: Program) -> Tape:
    """Without stretches: each step is shared by itself."""
    with patch.object(stretches, "HELD", -1):
        tape = compiled(program, FORWARDS)
    assert not [region for region in played(tape) if len(inside(region)) > 1]
    return tape


def check(program: Program, feeds: Sequence[Array]) -> list[Region]:
    expected = run(plain(program), feeds)
    found: list[Region] = []
    for threads in (FORWARDS, BACKWARDS, MIXED, thread_pool(2)):
        tape = compiled(program, threads)
        for _ in range(2):  # what a run left in the arena must not show in the next
            assert_bits(run(tape, feeds), expected)
        found = played(tape)
    return found


# -- models ------------------------------------------------------------------------------------------------------


def block(x: Any, w: Any, up: Any, down: Any, out: Any) -> Any:
    """Attention and two layers behind it, with norms."""
    n, rows, width = x.shape
    q, k, v = dg.unstack(dg.transpose(dg.reshape(x @ w, (n, rows, 3, HEADS, width // HEADS)), (2, 0, 3, 1, 4)), axis=0)
    weights = dg.nn.softmax(q @ dg.swapaxes(k, -1, -2) * 0.5)
    x = x + dg.reshape(dg.transpose(weights @ v, (0, 2, 1, 3)), (n, rows, width)) @ out
    return x + dg.nn.gelu(dg.nn.layer_norm(x) @ up) @ down


SHAPES = ((WIDTH, 3 * WIDTH), (WIDTH, 3 * WIDTH), (3 * WIDTH, WIDTH), (WIDTH, WIDTH))


def some(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng([seed, *shape]).uniform(-1, 1, shape)


def lowered(build: Callable[..., Any], *shapes: Any, dtype: str = "float64") -> Program:
    with dg.Graph().as_default():
        feeds = [dg.placeholder(shape, dtype) for shape in shapes]
        made = build(*feeds)
        return fuse(optimized(made if isinstance(made, list) else [made], feeds))


def model(x: Any, *weights: Any) -> list[Any]:
    y = block(block(x, *weights), *weights)
    return [y, *dg.gradients(dg.sum(y * y), [x, *weights])]


def test_a_model_and_its_gradients_have_the_bits_of_single_steps() -> None:
    with tiny_stretches():
        program = lowered(model, (LEAD, ROWS, WIDTH), *SHAPES)
        found = check(program, [some(*shape) for shape in ((LEAD, ROWS, WIDTH), *SHAPES)])
    assert max(len(inside(region)) for region in found) > 20
    assert sum(len(own(region)) for region in found) > 4


def test_threads_meet_rarely() -> None:
    """A model of the size from which on it pays, without making anything smaller."""
    shapes = [(8, 128, 64), (64, 192), (64, 512), (512, 64), (64, 64)]
    program = lowered(model, *shapes, dtype="float32")
    tape = compiled(program, thread_pool(2))
    products = [step for step in program.steps if step.type == "MatMul"]

    def meetings(calls: Sequence[Any]) -> int:
        shared = [call for call in calls if isinstance(call.run, Region | FusedRun) or call.step in products]
        return len([call for call in shared if call.args])

    assert len(products) > 20
    assert meetings(tape.calls) < meetings(plain(program).calls) / 3
    feeds = [some(*shape).astype("float32") for shape in shapes]
    assert_bits(run(tape, feeds), run(plain(program), feeds))


def test_a_model_needs_no_python_inside_of_its_stretches() -> None:
    """Copies into parts of a stack and of a concatenation, and transposed ones, are native code too."""
    shapes = [(8, 128, 64), (64, 192), (64, 512), (512, 64), (64, 64)]
    tape = compiled(lowered(model, *shapes, dtype="float32"), thread_pool(2))
    called: list[str] = []
    in_python = Bound._in_python

    def noted(self: Bound, k: int, number: int) -> Any:
        called.append(str(self._region.parts[k].step))
        return in_python(self, k, number)

    with patch.object(Bound, "_in_python", noted):
        run(tape, [some(*shape).astype("float32") for shape in shapes])
    assert not called


def test_products_that_threads_do_not_share_have_their_bits_beside_those_that_they_do() -> None:
    """Cut into items, the few columns would be computed by other code of BLAS."""
    shapes = [(8, 128, 64), (64, 256), (256, 64), (256, 12)]

    def two(x: Any, up: Any, down: Any, few: Any) -> list[Any]:
        hidden = dg.tanh(x @ up)
        return [hidden @ few, hidden @ down]

    program = lowered(two, *shapes, dtype="float32")
    feeds = [some(*shape).astype("float32") for shape in shapes]
    assert found_in(program) == [["MatMul", "Tanh", "MatMul"]]
    assert_bits(run(compiled(program, thread_pool(2)), feeds), run(plain(program), feeds))


def steps_of(tape: Tape) -> list[Any]:
    """The steps of a tape in their order, with those of stretches one by one."""
    found: list[Any] = []
    for call in tape.calls:
        if isinstance(call.run, Region):
            found += [part.step for part in call.run.parts]
        else:
            found.append(call.step)
    return [step for step in found if step is not None]


def test_who_looks_on_sees_each_step_of_a_stretch_with_the_same_bits() -> None:
    with tiny_stretches():
        program = lowered(model, (LEAD, ROWS, WIDTH), *SHAPES)
        tape = compiled(program, thread_pool(2))
        feeds = [some(*shape) for shape in ((LEAD, ROWS, WIDTH), *SHAPES)]
        seen: list[Any] = []

        class Looks(TaskMonitor):
            def inside(self, step: Any) -> None:
                seen.append(step)

            def divide(self, spent: Any) -> None:
                seen.extend([step for step, seconds in spent if seconds > 0])

        with np.errstate(all="ignore"):
            assert_bits(tape.run(feeds, Looks()), run(tape, feeds))
    assert {id(step) for step in seen if step is not None} >= {id(step) for step in steps_of(tape)}


def test_the_time_of_a_stretch_is_divided_among_its_steps() -> None:
    with tiny_stretches():
        program = lowered(model, (LEAD, ROWS, WIDTH), *SHAPES)
        tape, clock = compiled(program, thread_pool(2)), Clock()
        start = time.perf_counter()
        tape.run([some(*shape) for shape in ((LEAD, ROWS, WIDTH), *SHAPES)], clock)
        ops = clock.ops()
    assert sum(op.seconds for op in ops) <= time.perf_counter() - start
    assert {"MatMul"} < {op.op for op in ops}
    assert min(op.seconds for op in ops if op.op == "MatMul") > 0


def test_a_stretch_that_is_told_to_stop_does() -> None:
    with tiny_stretches():
        program = lowered(model, (LEAD, ROWS, WIDTH), *SHAPES)
        tape, over = compiled(program, thread_pool(2)), threading.Event()

        class Ends(TaskMonitor):
            def inside(self, step: Any) -> None:
                if step is not None and step.type in (FUSED, "MatMul"):
                    over.set()
                super().inside(step)

        with pytest.raises(StepFailed) as raised:
            tape.run([some(*shape) for shape in ((LEAD, ROWS, WIDTH), *SHAPES)], Ends(over))
    assert isinstance(raised.value.__cause__, Stopped)


def test_one_thread_has_no_stretches() -> None:
    with tiny_stretches():
        assert not played(compiled(lowered(model, (LEAD, ROWS, WIDTH), *SHAPES), thread_pool(1)))


# -- random programs ---------------------------------------------------------------------------------------------

Choose = Callable[[Sequence[Any]], Any]


def _rows(xs: list[Any], choose: Choose) -> Any:
    return choose([x for x in xs if x.shape[0] == LEAD and len(x.shape) == 3])


def _product(xs: list[Any], weights: Any, choose: Choose) -> Any:
    x = _rows(xs, choose)
    return x @ weights(x.shape[-1], choose((2, 4, 5)))


def _batch(xs: list[Any], weights: Any, choose: Choose) -> Any:
    x, y = _rows(xs, choose), _rows(xs, choose)
    return x @ dg.transpose(y, (0, 2, 1)) if x.shape[2] == y.shape[2] else dg.transpose(x, (0, 2, 1)) @ x


def _with_bias(xs: list[Any], weights: Any, choose: Choose) -> Any:
    x = _rows(xs, choose)
    return dg.tanh(x + weights(x.shape[-1])) * choose((0.5, x, dg.sigmoid(x)))


def _norm(xs: list[Any], weights: Any, choose: Choose) -> Any:
    return choose((dg.nn.layer_norm, dg.nn.softmax, dg.nn.gelu))(_rows(xs, choose))


def _over_all_rows(xs: list[Any], weights: Any, choose: Choose) -> Any:
    x = _rows(xs, choose)
    return x * choose((dg.sum, dg.mean, dg.max))(x, axis=choose(((0, 1), (0,))), keepdims=True)


def _over_columns(xs: list[Any], weights: Any, choose: Choose) -> Any:
    return _rows(xs, choose) - dg.mean(_rows(xs, choose), axis=choose((1, 2)), keepdims=True)[:, :1, :1]


def _mixed(xs: list[Any], weights: Any, choose: Choose) -> Any:
    """Items that read rows of others."""
    x = _rows(xs, choose)
    move = choose((partial(dg.flip, axis=0), partial(dg.gather, indices=[*range(1, LEAD), 0]), lambda y: y[::-1]))
    return x + move(x * 0.5)


def _weighed(xs: list[Any], weights: Any, choose: Choose) -> Any:
    """What the gradient of a weight is: all rows of one times all rows of another; and used again."""
    x, y = _rows(xs, choose), _rows(xs, choose)
    if x.shape[1] != y.shape[1]:
        y = x
    across = dg.transpose(dg.reshape(x, (-1, x.shape[-1]))) @ dg.reshape(y, (-1, y.shape[-1]))
    return x @ across * 0.1


def _heads(xs: list[Any], weights: Any, choose: Choose) -> Any:
    x = _rows(xs, choose)
    n, rows, width = x.shape
    if width % 2:
        return dg.concatenate([x, x * 2], axis=choose((1, 2)))
    split = dg.transpose(dg.reshape(x, (n, rows, 2, width // 2)), (0, 2, 1, 3))
    mixed = dg.nn.softmax(split @ dg.swapaxes(split, -1, -2)) @ split
    return dg.reshape(dg.transpose(mixed, (0, 2, 1, 3)), (n, rows, width))


def _stacked(xs: list[Any], weights: Any, choose: Choose) -> Any:
    x = _rows(xs, choose)
    y = dg.stack([x @ weights(x.shape[-1], x.shape[-1]), x, dg.exp(-x * x)], axis=choose((1, 2)))
    return dg.reshape(y, (LEAD, -1, x.shape[-1]))[:, choose((0, 1)) :: 2]


def _turned(xs: list[Any], weights: Any, choose: Choose) -> Any:
    """Through a layout in which another axis comes first."""
    x = _rows(xs, choose)
    return dg.transpose(dg.tanh(dg.transpose(x, (1, 0, 2)) @ weights(x.shape[-1], x.shape[-1])), (1, 0, 2)) + x


def _shuffled(xs: list[Any], weights: Any, choose: Choose) -> Any:
    """The first axis has its length again, but not its rows."""
    x = _rows(xs, choose)
    return x * dg.transpose(dg.reshape(x, (x.shape[1], LEAD, x.shape[2])), (1, 0, 2))


def _halved(xs: list[Any], weights: Any, choose: Choose) -> Any:
    x = _rows(xs, choose)
    return dg.concatenate([x[: LEAD // 2] * 2, x[LEAD // 2 :]], axis=0)


PIECES = (
    _product, _product, _batch, _with_bias, _with_bias, _norm, _over_all_rows, _over_columns, _mixed, _weighed, _heads,
    _stacked, _turned, _shuffled, _halved,
)  # fmt: skip


@st.composite
def programs(draw: st.DrawFn) -> tuple[Program, list[Array]]:
    choose: Choose = lambda options: draw(st.sampled_from(options))  # noqa: E731
    feeds, arrays = [], []

    def weights(*shape: int) -> Any:
        feeds.append(dg.placeholder(shape, "float64"))
        arrays.append(some(*shape, seed=len(arrays)))
        return feeds[-1]

    with dg.Graph().as_default():
        xs = [weights(LEAD, 4, 4), weights(LEAD, 5, 4), weights(LEAD, LEAD, 2)]
        for _ in range(draw(st.integers(2, 8))):
            x = choose(PIECES)(xs, weights, choose)
            if np.prod(x.shape) < 2000:
                xs.append(x)
        ends = [x for x in xs[3:] if draw(st.booleans())] or [xs[-1]]
        wanted = [g for g in dg.gradients([dg.sum(dg.tanh(x)) for x in ends], feeds) if g is not None]
        return fuse(optimized([*ends, *wanted], feeds)), arrays


@pytest.mark.parametrize(("held", "little"), [(0, 0), (0, 256), (500, 64), (1 << 20, 256)])
@settings(deadline=None, max_examples=50, derandomize=True)
@given(data=st.data())
def test_random_programs_have_the_bits_of_single_steps(held: int, little: int, data: st.DataObject) -> None:
    with tiny_stretches(), patch.multiple(stretches, HELD=held, LITTLE=little):
        check(*data.draw(programs()))


def test_random_programs_have_stretches() -> None:
    """Else the test above would say nothing."""
    found = []

    @settings(deadline=None, max_examples=40, derandomize=True, database=None)
    @given(program=programs())
    def look(program: tuple[Program, list[Array]]) -> None:
        found.append(played(compiled(program[0], thread_pool(2))))

    with tiny_stretches():
        look()
    assert sum(bool(region) for region in found) > len(found) / 2
    assert any(own(region) and inside(region) for each in found for region in each)


# -- memory ------------------------------------------------------------------------------------------------------


def test_what_items_read_in_other_parts_is_not_overwritten() -> None:
    """A square lies there before the stretch; each item reads a column of it, and then could have its row."""

    def columns(x: Any, w: Any) -> Any:
        square = dg.pad(x, ((0, 0), (1, 1), (0, 0)))
        return dg.transpose(square, (1, 0, 2)) @ w + dg.exp(square) @ w

    with tiny_stretches():
        assert check(lowered(columns, (LEAD, LEAD - 2, 4), (4, 4)), [some(LEAD, LEAD - 2, 4), some(4, 4)])


def test_what_is_laid_out_in_order_stays_until_the_end() -> None:
    """The copy of an item is smaller than what is made next: in its memory that would lie where other copies do."""

    def wider(x: Any, w: Any, v: Any) -> Any:
        columns = dg.transpose(dg.reshape(dg.tanh(x @ w), (LEAD, 3, 2, 2)), (0, 2, 3, 1))
        return [dg.tanh(columns @ dg.reshape(v, (3, 40))) * 2, dg.sum(columns, axis=(1, 2))]

    with tiny_stretches():
        program = lowered(wider, (LEAD, 3, 4), (4, 4), (3, 40))
        assert check(program, [some(LEAD, 3, 4), some(4, 4), some(3, 40)])


@pytest.mark.parametrize("layers", [4, 40])
def test_memory_does_not_grow_with_the_steps_of_a_stretch(layers: int) -> None:
    """Neither where results cannot lie in the place of what they are made of, nor where products wait."""

    def views(x: Any, w: Any) -> Any:
        n, width = x.shape
        for _ in range(layers):
            x = dg.nn.softmax(dg.reshape(dg.nn.softmax(dg.reshape(x, (n, 2, width // 2))), (n, width)))
        return dg.sum(x @ w, axis=0)

    def grams(x: Any, w: Any) -> Any:
        made = []
        for _ in range(layers):
            x = x @ w
            made.append(dg.transpose(x) @ dg.tanh(x))
        return made

    for build in (views, grams):
        program = lowered(build, (16384, 64), (64, 64), dtype="float32")
        alone = plain(program).nbytes
        assert compiled(program, thread_pool(2)).nbytes <= alone + stretches.LEAST_HELD + (4 << 20)


def test_what_a_copy_was_made_of_is_let_go() -> None:
    """A reshape of something transposed is a copy, not a view: its source does not live as long as it does."""

    def turned(x: Any) -> Any:
        for _ in range(40):
            x = dg.tanh(dg.reshape(dg.transpose(x), x.shape)) * 0.5
        return dg.sum(x)

    program = lowered(turned, (512, 256))
    assert compiled(program, thread_pool(1)).nbytes <= 4 * 512 * 256 * 8


def test_a_square_matrix_times_itself_is_read_in_rows_and_whole() -> None:
    with tiny_stretches():
        check(lowered(lambda x, w: dg.tanh((x @ w) @ (x @ w)) @ w, (LEAD, LEAD), (LEAD, LEAD)), [some(8, 8)] * 2)
        check(lowered(lambda x, w: dg.tanh(x @ x) @ w, (LEAD, LEAD), (LEAD, LEAD)), [some(8, 8)] * 2)


# -- what is found -----------------------------------------------------------------------------------------------


def found_in(program: Program) -> list[list[str]]:
    """The types of the steps of each stretch; in brackets what is shared in pieces."""
    return [
        [*[f"[{_name(part.step)}]" for part in own(region)], *[_name(part.step) for part in inside(region)]]
        for region in played(compiled(program, FORWARDS))
    ]


def _name(step: Any) -> str:
    if step is None:
        return "copy"
    return "+".join(inner.type for inner in step.body) if step.type == FUSED else str(step.type)


def layers(x: Any, w: Any, b: Any, v: Any) -> Any:
    return dg.tanh(x @ w + b) @ v


LAYERS = ((LEAD, 4, 4), (4, 4), (4,), (4, 4))


def test_products_and_what_is_between_them_are_one_stretch() -> None:
    with tiny_stretches():
        assert found_in(lowered(layers, *LAYERS)) == [["MatMul", "Add+Tanh", "MatMul"]]


def test_gradients_of_weights_are_done_with_the_next_stretch() -> None:
    """The whole backward pass is one stretch where nothing is held too long; else its products go with the next one."""

    def gradients(*args: Any) -> list[Any]:
        return dg.gradients(dg.sum(layers(*args) ** 2), list(args))

    with tiny_stretches():
        program = lowered(gradients, *LAYERS)
        found = found_in(program)
        assert [name for each in found for name in each].count("[MatMul]") == 2
        with patch.object(stretches, "HELD", 3000):
            more = found_in(program)
    assert found[-1] == ["[MatMul]", "[MatMul]"]
    assert any("[MatMul]" in each and each[-1] != "[MatMul]" for each in more)


def test_what_reads_the_gradient_of_a_weight_waits_for_it() -> None:
    def gradients(x: Any, *weights: Any) -> list[Any]:
        return [dg.exp(dg.sum(dg.exp(g))) for g in dg.gradients(dg.sum(layers(x, *weights) ** 2), [*weights])]

    for held, little in itertools.product(range(0, 4000, 500), (64, 256)):
        with tiny_stretches(), patch.multiple(stretches, HELD=held, LITTLE=little):
            check(lowered(gradients, *LAYERS), [some(*shape) for shape in LAYERS])


@pytest.mark.parametrize("rows", [3, 6, 7])
def test_rows_that_cannot_be_cut_evenly_are_in_no_stretch(rows: int) -> None:
    """Six rows can be cut for two threads, one item for each; seven and three cannot."""
    with tiny_stretches():
        found = found_in(lowered(layers, (rows, 4), *LAYERS[1:]))
    assert bool(found) == (rows == 6)


def test_a_step_that_mixes_rows_ends_a_stretch() -> None:
    with tiny_stretches():
        found = found_in(lowered(lambda x, w, b, v: layers(dg.flip(layers(x, w, b, v), 0) * 2, w, b, v), *LAYERS))
    assert found == [["MatMul", "Add+Tanh", "MatMul"], ["copy", "Mul", "MatMul", "Add+Tanh", "MatMul"]]


def test_gates_are_kept() -> None:
    """What must follow another op is in no stretch: those before it are done."""

    def gated(x: Any, w: Any, b: Any, v: Any) -> Any:
        y = layers(x, w, b, v)
        with dg.control_dependencies([y]):
            z = dg.identity(x) @ w
        return [layers(z, w, b, v), y]

    with tiny_stretches():
        program = lowered(gated, *LAYERS)
        check(program, [some(*shape) for shape in LAYERS])
        order = steps_of(compiled(program, FORWARDS))
    gates = [step for step in program.steps if step.after and step in order]
    assert gates
    for gate in gates:
        assert max(order.index(program.steps[i]) for i in gate.after) < order.index(gate)


def test_products_of_other_dtypes_are_in_no_stretch() -> None:
    with tiny_stretches(), dg.Graph().as_default():
        x, w = dg.placeholder((LEAD, 4), "int64"), dg.placeholder((4, 4), "int64")
        program = fuse(optimized([dg.abs(x @ w) @ w], [x, w]))
        assert not played(compiled(program, FORWARDS))


def test_products_that_are_copied_to_their_place_are_not_put_off() -> None:
    """Of 16 bits, beside a stretch: what they cut into pieces is not yet what they give."""
    with tiny_stretches(), dg.Graph().as_default():
        feeds = [dg.placeholder(shape, "float32") for shape in LAYERS]
        halves = [dg.placeholder((16, 16), "float16") for _ in range(3)]
        made = dg.gradients(dg.sum(layers(*feeds) ** 2), feeds)
        program = fuse(optimized([*made, halves[0] @ halves[1], halves[1] @ halves[2]], [*feeds, *halves]))
        arrays = [*[some(*shape).astype("float32") for shape in LAYERS], *[some(16, 16).astype("float16")] * 3]
        assert check(program, arrays)


def test_fused_complex_steps_are_in_no_stretch() -> None:
    """NumPy computes the last complex products of an array by other code, so they must end where they do alone."""
    with tiny_stretches():
        assert found_in(lowered(lambda x, w: dg.square(x @ w) * x @ w, (LEAD, 4), (4, 4)))
        assert not found_in(lowered(lambda x, w: dg.square(x @ w) * x @ w, (LEAD, 4), (4, 4), dtype="complex64"))


def test_few_rows_are_one_item_for_each_thread() -> None:
    """512 rows are too few for two: products are cut into as many pieces as there are threads."""
    program = lowered(layers, (512, 64), (64, 512), (512,), (512, 64), dtype="float32")
    tape = compiled(program, thread_pool(2))
    assert [len(region.items) for region in played(tape)] == [2]


# -- errors ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [0, LEAD * 4 - 1])
def test_an_error_names_the_step_in_which_it_happened(bad: int) -> None:
    """A label that there is not, in the first item or the last: neither is the first step of the stretch to blame."""

    def loss(x: Any, w: Any, b: Any, v: Any, labels: Any) -> Any:
        return dg.nn.sparse_softmax_cross_entropy(layers(x, w, b, v), labels)

    with tiny_stretches():
        with dg.Graph().as_default():
            feeds = [dg.placeholder(shape, "float64") for shape in LAYERS] + [dg.placeholder((LEAD, 4), "int64")]
            program = fuse(optimized([loss(*feeds)], feeds))
        tape = compiled(program, thread_pool(2))
        (region,) = played(tape)
        assert len(inside(region)) == 4
        labels = np.zeros((LEAD, 4), np.int64)
        labels.flat[bad] = 9
        with pytest.raises(StepFailed) as failed:
            run(tape, [*[some(*shape) for shape in LAYERS], labels])
    assert failed.value.step is not None
    assert "CrossEntropy" in _name(failed.value.step)


def test_of_two_steps_that_fail_the_first_is_told_of_with_its_own_words() -> None:
    """The second fails in the first item, before the first does in the last one."""

    @dg.function
    def two(x: Any, w: Any, v: Any, a: Any, b: Any) -> Any:
        y = dg.tanh(x @ w) @ v
        first = dg.nn.sparse_softmax_cross_entropy(y, a)
        z = dg.tanh(dg.tanh(y) * dg.expand_dims(first, 1) @ w)
        return first, dg.nn.sparse_softmax_cross_entropy(z, b)

    a, b = np.zeros(2048, np.int64), np.zeros(2048, np.int64)
    a[-1], b[0] = 1000, 2000
    args = [some(*shape).astype("float32") for shape in ((2048, 64), (64, 128), (128, 64))]
    with dg.Session(threads=2), pytest.raises(ValueError, match="classes from 0 to 63, got values from 0 to 1000") as e:
        two(*args, a, b)
    assert "f32[2048,64]" in e.value.__notes__[0]


def test_labels_that_a_stretch_makes_are_checked_before_they_are_used() -> None:
    def loss(x: Any, w: Any, b: Any, v: Any) -> Any:
        made = layers(x, w, b, v)
        return dg.nn.sparse_softmax_cross_entropy(made, dg.cast(dg.sum(made, axis=-1) * 0 + 9, "int64"))

    with tiny_stretches():
        tape = compiled(lowered(loss, *LAYERS), thread_pool(2))
        with pytest.raises(StepFailed) as failed:
            run(tape, [some(*shape) for shape in LAYERS])
    assert "CrossEntropy" in _name(failed.value.step)


def test_labels_that_a_stretch_copies_are_checked_where_they_come_from() -> None:
    """They lie in columns, so that the stretch copies them before they are used."""

    def loss(x: Any, w: Any, b: Any, v: Any, labels: Any) -> Any:
        return dg.nn.sparse_softmax_cross_entropy(layers(x, w, b, v), dg.transpose(labels))

    with tiny_stretches(), dg.Graph().as_default():
        feeds = [*[dg.placeholder(shape, "float64") for shape in LAYERS], dg.placeholder((4, LEAD), "int64")]
        program = fuse(optimized([loss(*feeds)], feeds))
        tape = compiled(program, thread_pool(2))
        (region,) = played(tape)
        assert any(part.run is copied for part in region.parts)
        arrays = [*[some(*shape) for shape in LAYERS], np.ones((4, LEAD), np.int64)]
        assert_bits(run(tape, arrays), run(plain(program), arrays))
        arrays[-1][2, 3] = 9
        with pytest.raises(StepFailed):
            run(tape, arrays)


def test_what_has_no_native_function_runs_in_python() -> None:
    """Products of complex numbers: NumPy computes them, for each item."""
    with tiny_stretches():
        program = lowered(lambda x, w, v: (x @ w) @ v, (LEAD, 4), (4, 4), (4, 4), dtype="complex128")
        assert check(program, [some(LEAD, 4) + 1j, some(4, 4) - 2j, some(4, 4) * 1j])


def test_a_part_that_fails_in_python_ends_the_stretch() -> None:
    with tiny_stretches():
        program = lowered(lambda x, w, v: (x @ w) @ v, (LEAD, 4), (4, 4), (4, 4), dtype="complex128")
        tape = compiled(program, thread_pool(2))
        feeds = [some(*shape).astype("complex128") for shape in ((LEAD, 4), (4, 4), (4, 4))]
        full = patch("distgrad.workers.kernels.products.multiply", side_effect=MemoryError("none left"))
        with full, pytest.raises(StepFailed) as failed:
            run(tape, feeds)
        assert isinstance(failed.value.__cause__, MemoryError)
        assert_bits(run(tape, feeds), run(plain(program), feeds))


def test_an_interrupt_of_a_part_that_runs_in_python_is_not_lost() -> None:
    with tiny_stretches():
        program = lowered(lambda x, w, v: (x @ w) @ v, (LEAD, 4), (4, 4), (4, 4), dtype="complex128")
        tape = compiled(program, thread_pool(2))
        feeds = [some(*shape).astype("complex128") for shape in ((LEAD, 4), (4, 4), (4, 4))]
        interrupted = patch("distgrad.workers.kernels.products.multiply", side_effect=KeyboardInterrupt)
        with interrupted, pytest.raises(KeyboardInterrupt):
            run(tape, feeds)
        assert_bits(run(tape, feeds), run(plain(program), feeds))


def test_an_interrupt_while_others_work_stops_them_and_keeps_their_arrays() -> None:
    """The caller has done its share, and waits for a thread that is inside of a row."""

    class Waits(ThreadPool):
        def each(self, count: int, work: BlockRunner) -> None:
            self.work = work
            raise KeyboardInterrupt

    with tiny_stretches():
        threads = Waits(2)
        tape = compiled(lowered(layers, *LAYERS), threads)
        with pytest.raises(KeyboardInterrupt):
            run(tape, [some(*shape) for shape in LAYERS])
        threads.work(iter([0]))  # the thread goes on: it finds its arrays, and that it has to stop


def test_an_array_times_its_own_transpose_has_numpys_bits() -> None:
    """NumPy multiplies such matrices in another way, also where one array is given twice."""

    def square(x: Any, y: Any) -> list[Any]:
        z = dg.tanh(x)
        return [dg.nn.softmax(x @ dg.swapaxes(y, -1, -2)), dg.exp(z @ dg.swapaxes(z, -1, -2))]

    x = some(LEAD, 33, 33).astype("float32")
    with tiny_stretches():
        program = lowered(square, x.shape, x.shape, dtype="float32")
        tape = compiled(program, thread_pool(2))
        assert played(tape)
        for y in (some(*x.shape, seed=1).astype("float32"), x, x.copy()):
            assert_bits(run(tape, [x, y]), run(plain(program), [x, y]))


def test_nothing_that_a_run_was_given_is_kept() -> None:
    with tiny_stretches():
        tape = compiled(lowered(layers, *LAYERS), thread_pool(2))
        feeds = [some(*shape) for shape in LAYERS]
        before = [sys.getrefcount(x) for x in feeds]
        made = run(tape, feeds)
    assert played(tape)
    assert [sys.getrefcount(x) for x in feeds] == before
    fresh = [some(1)]
    assert sys.getrefcount(made[0]) == sys.getrefcount(fresh[0])


def test_an_interrupt_ends_a_stretch() -> None:
    class Interrupted(ThreadPool):
        def each(self, count: int, work: BlockRunner) -> None:
            def numbers() -> Iterator[int]:
                yield 0
                raise KeyboardInterrupt

            work(numbers())

    with tiny_stretches():
        tape = compiled(lowered(layers, *LAYERS), Interrupted(2))
        with pytest.raises(KeyboardInterrupt):
            run(tape, [some(*shape) for shape in LAYERS])
