"""A tape: places that are used again never change a value that is still read, however many views look at it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import distgrad as dg
from distgrad.scheduler.passes.fuse import fuse
from distgrad.scheduler.program import Program, lower
from distgrad.workers.arena import ARENAS
from distgrad.workers.numpy_engine.destinations import destinations
from distgrad.workers.numpy_engine.tape import Tape
from distgrad.workers.thread_pool import thread_pool

from ..engines import Array, assert_bits, assert_near, exact, optimized, slowly, tiny_blocks
from ..random_graphs import (
    SHAPES,
    Option,
    RandomGraph,
    RandomOp,
    Shape,
    build,
    each,
    keep,
    one,
    pairs,
    random_graph,
    reduced,
    unit,
)


def tape(program: Program, size: int = 1) -> Tape:
    """The whole program as one task."""
    return Tape(program.steps, program.types, program.given, program.wanted, thread_pool(size))


def run(program: Program, feeds: Sequence[Array], size: int = 1) -> list[Array]:
    with np.errstate(all="ignore"):
        return tape(program, size).run(feeds)


def some(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng([seed, *shape]).uniform(-1, 1, shape)


# -- random programs full of views -------------------------------------------------------------------------------


def permuted(shapes: Sequence[Shape]) -> Iterator[Option]:
    for v, shape in enumerate(shapes):
        for axes in list(itertools.permutations(range(len(shape))))[1:] if 2 <= len(shape) <= 3 else ():
            yield (v,), {"axes": axes}, (tuple(shape[i] for i in axes),)


def sliced(shapes: Sequence[Shape]) -> Iterator[Option]:
    for v, shape in enumerate(shapes):
        for axis, n in enumerate(shape):
            for part in ((None, None, -1), (1, None, 1), (0, n - 1, 1), (None, None, 2)):
                if count := len(range(n)[slice(*part)]):
                    yield (v,), {"axis": axis, "part": part}, ((*shape[:axis], count, *shape[axis + 1 :]),)


def broadcast(shapes: Sequence[Shape]) -> Iterator[Option]:
    for v, shape in enumerate(shapes):
        if len(shape) < 3:
            yield (v,), {"shape": (2, *shape)}, ((2, *shape),)


def reshaped(shapes: Sequence[Shape]) -> Iterator[Option]:
    for v, shape in enumerate(shapes):
        size = int(np.prod(shape))
        for target in {(size,), (2, size // 2), (size // 2, 2), (1, size), (size, 1)} - {shape}:
            if np.prod(target) == size:
                yield (v,), {"shape": target}, (target,)


def halved(shapes: Sequence[Shape]) -> Iterator[Option]:
    for v, shape in enumerate(shapes):
        for axis, n in enumerate(shape):
            if n % 2 == 0:
                yield (v,), {"axis": axis}, ((*shape[:axis], n // 2, *shape[axis + 1 :]),) * 2


def unstacked(shapes: Sequence[Shape]) -> Iterator[Option]:
    for v, shape in enumerate(shapes):
        for axis, n in enumerate(shape):
            if 1 < n < 4:
                yield (v,), {"axis": axis}, ((*shape[:axis], *shape[axis + 1 :]),) * n


def products(shapes: Sequence[Shape]) -> Iterator[Option]:
    matrices = [(v, shape) for v, shape in enumerate(shapes) if 2 <= len(shape) <= 3]
    for (a, left), (b, right) in itertools.product(matrices, matrices):
        if left[-1] == right[-2] and (2 in (len(left), len(right)) or left[0] == right[0]):
            yield (a, b), {}, ((*(left[:-2] or right[:-2]), left[-2], right[-1]),)


def joined(shapes: Sequence[Shape]) -> Iterator[Option]:
    for (a, left), (b, right) in itertools.product(enumerate(shapes), enumerate(shapes)):
        for axis in range(len(left) if len(left) == len(right) else 0):
            rest = [(*shape[:axis], *shape[axis + 1 :]) for shape in (left, right)]
            if rest[0] == rest[1] and left[axis] + right[axis] <= 8:
                yield (a, b), {"axis": axis}, ((*left[:axis], left[axis] + right[axis], *left[axis + 1 :]),)


def stacked(shapes: Sequence[Shape]) -> Iterator[Option]:
    for (a, left), (b, right) in itertools.product(enumerate(shapes), enumerate(shapes)):
        for axis in range(len(left) + 1 if left == right and len(left) < 3 else 0):
            yield (a, b), {"axis": axis}, ((*left[:axis], 2, *left[axis:]),)


def along(shapes: Sequence[Shape]) -> Iterator[Option]:
    for v, shape in enumerate(shapes):
        for axis in range(len(shape)):
            yield (v,), {"axis": axis}, (shape,)


def part_of(xs: Sequence[Any], attrs: Any) -> list[Any]:
    return [xs[0][(slice(None),) * attrs["axis"] + (slice(*attrs["part"]),)]]


OPS: dict[str, RandomOp] = {
    "Transpose": RandomOp(permuted, keep, one(dg.transpose)),
    "Slice": RandomOp(sliced, keep, part_of),
    "BroadcastTo": RandomOp(broadcast, keep, one(dg.broadcast_to)),
    "Reshape": RandomOp(reshaped, keep, one(dg.reshape)),
    "Split": RandomOp(halved, keep, lambda xs, attrs: dg.split(xs[0], 2, **attrs)),
    "Unstack": RandomOp(unstacked, keep, lambda xs, attrs: dg.unstack(xs[0], **attrs)),
    "MatMul": RandomOp(products, lambda x, y: 6 * x * y, one(dg.matmul)),
    "Concat": RandomOp(joined, keep, lambda xs, attrs: [dg.concatenate(list(xs), **attrs)]),
    "Stack": RandomOp(stacked, keep, lambda xs, attrs: [dg.stack(list(xs), **attrs)]),
    "Tanh": RandomOp(each, unit, one(dg.tanh)),
    "Neg": RandomOp(each, keep, one(dg.negative)),
    "Add": RandomOp(pairs, lambda x, y: x + y, one(dg.add)),
    "Mul": RandomOp(pairs, lambda x, y: x * y, one(dg.multiply)),
    "Where": RandomOp(pairs, keep, one(lambda x, y: dg.where(x > y, x, y))),
    "Round": RandomOp(each, lambda x: x + 1, one(lambda x: dg.cast(dg.cast(x, "int32"), x.dtype))),
    "CumSum": RandomOp(along, lambda x: 6 * x, one(dg.cumsum)),
    "Sum": RandomOp(reduced, lambda x: 6 * x, one(dg.sum)),
    "Mean": RandomOp(reduced, keep, one(dg.mean)),
    "Max": RandomOp(reduced, keep, one(dg.max)),
    "Prod": RandomOp(reduced, lambda x: max(x, 1) ** 6, one(dg.prod)),
    "Softmax": RandomOp(along, unit, one(dg.nn.softmax)),
}
LEAVES: tuple[Shape, ...] = ((4,), (2, 3), (3, 4), (4, 4), (2, 3, 4), (4, 1), (2, 1, 4))


@st.composite
def graphs(draw: st.DrawFn) -> RandomGraph:
    return random_graph(lambda options: draw(st.sampled_from(LEAVES if options is SHAPES else options)), OPS, 25)


def built(graph: RandomGraph) -> tuple[list[dg.Tensor], list[dg.Tensor]]:
    leaves = [dg.placeholder(shape, "float32") for shape in graph.leaves]
    values = build(graph, leaves, {name: op.build for name, op in OPS.items()})
    return leaves, [values[v] for v in dict.fromkeys((*graph.ends, *range(0, len(values), 5)))]


@pytest.mark.parametrize("elements", [None, 1, 6])
@settings(deadline=None, max_examples=50, derandomize=True)
@given(graph=graphs())
def test_programs_full_of_views_are_computed_as_by_the_slow_executor(elements: int | None, graph: RandomGraph) -> None:
    with dg.Graph():
        leaves, fetches = built(graph)
        program = optimized(fetches, leaves)
    feeds = graph.leaf_values(dtype=np.float32)
    if elements is None:
        found = run(program, feeds)
    else:
        with tiny_blocks(elements):
            found = run(fuse(program), feeds)
    (assert_bits if exact(program) else assert_near)(found, slowly(program, feeds))


@settings(deadline=None, max_examples=30, derandomize=True)
@given(graph=graphs())
def test_results_of_a_run_stay_as_they_are_when_the_tape_runs_again(graph: RandomGraph) -> None:
    with tiny_blocks(), dg.Graph():
        leaves, fetches = built(graph)
        made = tape(fuse(optimized(fetches, leaves)))
    feeds = graph.leaf_values(dtype=np.float32)
    first = made.run(feeds)
    kept, others = [x.copy() for x in first], [x / 2 for x in feeds]
    made.run(others)
    assert_bits(first, kept)
    assert_bits(made.run(feeds), first)
    assert_bits(feeds, graph.leaf_values(dtype=np.float32))


# -- places that are used again ----------------------------------------------------------------------------------

Build = Callable[[dg.Tensor], Sequence[dg.Tensor]]


def assert_runs(make: Build, *shape: int, elements: int = 4) -> None:
    """What is built of one placeholder comes out right, fused in small blocks and not fused at all."""
    value = some(*shape)
    with dg.Graph():
        x = dg.placeholder(shape)
        program = lower(make(x), [x])
    expected = slowly(program, [value])
    assert_near(run(program, [value]), expected)
    with tiny_blocks(elements):
        made = fuse(program)
        for size in (1, 3):
            assert_near(run(made, [value], size), expected)


def test_a_chain_needs_one_place() -> None:
    with dg.Graph():
        x = y = dg.placeholder((100,))
        for _ in range(10):
            y = dg.cumsum(dg.tanh(y))
        assert tape(lower([y], [x])).nbytes <= 2 * 832


def test_a_view_keeps_the_place_of_what_it_looks_at() -> None:
    def build(x: dg.Tensor) -> list[dg.Tensor]:
        y = dg.tanh(x)
        parts = [y[1:], dg.transpose(y), dg.reshape(y, (12,)), *dg.split(y, 2, axis=1)]
        later = [dg.exp(dg.cumsum(x + float(i))) for i in range(4)]  # would take the place of y
        return [dg.cumsum(p) + dg.sum(later[i % 4]) for i, p in enumerate(parts)]

    assert_runs(build, 3, 4)


def test_an_input_that_is_read_twice_is_not_overwritten_too_early() -> None:
    """y + y.T in the place of y would read what is written."""

    def build(x: dg.Tensor) -> list[dg.Tensor]:
        y = dg.tanh(x)
        return [dg.cumsum(y + dg.transpose(y)), dg.cumsum(dg.tanh(x * 2.0) * x[:, ::-1])]

    assert_runs(build, 4, 4)


@pytest.mark.parametrize(
    "reduce",
    [
        lambda z: dg.sum(z, axis=1),
        lambda z: dg.max(z, axis=1),
        lambda z: dg.mean(z, axis=0),
        lambda z: dg.sum(z, axis=0, keepdims=True),
        lambda z: dg.nn.sparse_softmax_cross_entropy(z, np.arange(6)),
    ],
)
def test_a_row_that_every_block_reads_is_not_overwritten_by_what_has_one_number_per_row(reduce: Any) -> None:
    """The bias and the sums of rows have the same shape, and the bias dies here: but later blocks read all of it."""

    def build(x: dg.Tensor) -> list[dg.Tensor]:
        bias = dg.tanh(x[0])
        return [dg.cumsum(reduce(x * 2.0 + bias), axis=0)]

    assert_runs(build, 6, 6)


def test_a_column_of_which_each_block_reads_its_part_may_be_overwritten() -> None:
    def build(x: dg.Tensor) -> list[dg.Tensor]:
        column = dg.tanh(x[:, :1])
        return [dg.cumsum(dg.mean(x * column, axis=1, keepdims=True), axis=0)]

    assert_runs(build, 6, 6)


@pytest.mark.parametrize("terms", ["yzy", "yzz", "yzyzx", "yyyy"])
def test_a_sum_does_not_overwrite_a_term_that_comes_again(terms: str) -> None:
    """y + z + y in the place of y would add y + z a second time."""

    def build(x: dg.Tensor) -> list[dg.Tensor]:
        named = {"x": x, "y": x @ x, "z": dg.transpose(x) @ x}
        return [dg.cumsum(dg.add_n([named[name] for name in terms]), axis=0)]

    assert_runs(build, 4, 4)


def test_outputs_of_a_group_take_each_input_only_once() -> None:
    def build(x: dg.Tensor) -> list[dg.Tensor]:
        y = x @ x
        a, b = dg.tanh(y), dg.exp(y)
        return [dg.cumsum(a), dg.cumsum(b), dg.cumsum(a * b)]

    assert_runs(build, 4, 4)


def test_what_is_fetched_twice_or_never_computed_comes_out_too() -> None:
    with dg.Graph():
        x, c = dg.placeholder((3,)), dg.constant(np.arange(3.0))
        y = dg.exp(x)
        fetches = [y, y, x, x, c, c, y[1:], dg.reshape(y, (3, 1))]
        value = some(3)
        assert_bits(run(lower(fetches, [x]), [value]), slowly(lower(fetches, [x]), [value]))


def test_nothing_that_leaves_lies_in_the_arena() -> None:
    ARENAS.clear()
    with dg.Graph():
        x = dg.placeholder((4, 4))
        y = dg.tanh(x)
        fetches = [y, y[1:], dg.transpose(dg.exp(y)), dg.concatenate([y @ y, y], axis=1), dg.cumsum(y * 2.0)]
        found = run(lower(fetches, [x]), [some(4, 4)])
    arena = ARENAS.take()
    assert arena.memory.size
    assert not any(np.shares_memory(r, arena.memory) for r in found)


def test_an_arena_is_not_used_again_after_a_run_that_failed() -> None:
    """Somebody may still write into it."""
    ARENAS.clear()
    with dg.Graph():
        x, labels = dg.placeholder((4, 4)), dg.placeholder((4,), "int64")
        loss = dg.nn.sparse_softmax_cross_entropy(dg.tanh(x) * 2.0, labels)
        with pytest.raises(ValueError, match="labels must be classes"):
            dg.Session().run(loss, {x: some(4, 4), labels: np.full(4, 9)})
    assert not ARENAS.take().memory.size


# -- results that are made at their target -----------------------------------------------------------------------

TARGETS: dict[str, Callable[[dg.Tensor, dg.Tensor], dg.Tensor]] = {
    "below each other": lambda p, q: dg.concatenate([p, q], axis=-2),
    "side by side": lambda p, q: dg.concatenate([p, q], axis=-1),
    "stacked": lambda p, q: dg.stack([p, q], axis=0),
    "stacked inside": lambda p, q: dg.stack([q, p], axis=1),
    "stacked behind": lambda p, q: dg.stack([p, q], axis=-1),
    "transposed": lambda p, q: dg.reshape(dg.transpose(p), (-1,)),
    "heads put together": lambda p, q: dg.reshape(dg.transpose(dg.reshape(p, (-1, 2, 2, 3)), (0, 2, 1, 3)), (-1, 6)),
    "not alone": lambda p, q: dg.concatenate([p, p, q], axis=-1),
}
PRODUCTS: dict[str, tuple[Shape, Shape]] = {
    "matrices": ((4, 5), (5, 6)),
    "many with one": ((4, 2, 5), (5, 6)),
    "many": ((4, 2, 5), (4, 5, 6)),
    "four axes": ((2, 2, 2, 5), (2, 2, 5, 6)),
    "row": ((2, 5), (5, 6)),
    "large": ((64, 70), (70, 96)),
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("product", PRODUCTS)
def test_a_product_has_the_same_bits_at_its_target(product: str, target: str) -> None:
    left, right = PRODUCTS[product]
    with dg.Graph():
        a, b = dg.placeholder(left), dg.placeholder(right)
        fetches = [TARGETS[target](a @ b, dg.tanh(a @ b)), dg.cumsum(TARGETS[target](a @ b, a @ b), axis=0)]
        program, feeds = lower(fetches, [a, b]), [some(*left), some(*right)]
    with np.errstate(all="ignore"):
        assert_bits(run(program, feeds), slowly(program, feeds))


def test_products_are_made_where_they_are_put_together() -> None:
    """x @ v and x @ w, side by side: neither is copied."""
    with dg.Graph():
        x, v, w = (dg.placeholder((4, 4)) for _ in range(3))
        program = lower([dg.concatenate([x @ v, x @ w], axis=1)], [x, v, w])
    assert len(destinations(program.steps, program.types, program.wanted)) == 2


def test_a_product_that_is_wanted_itself_is_not_made_elsewhere() -> None:
    with dg.Graph():
        x = dg.placeholder((4, 4))
        y = x @ x
        program = lower([dg.concatenate([y, x], axis=1), y], [x])
    assert destinations(program.steps, program.types, program.wanted) == {}


def test_empty_arrays_have_places_too() -> None:
    def build(x: dg.Tensor) -> list[dg.Tensor]:
        y = dg.tanh(x)
        return [dg.cumsum(y * 2.0), dg.transpose(y) @ y, dg.concatenate([y @ dg.transpose(y), y @ dg.transpose(y)])]

    assert_runs(build, 0, 3)
    assert_runs(build, 3, 0)
