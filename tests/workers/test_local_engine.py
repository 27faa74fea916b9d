"""The local engine: what a result's bits do not depend on, and what a result never shares memory with."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import distgrad as dg
from distgrad import nest
from distgrad.scheduler.program import Program
from distgrad.workers.kernels.table import USES_BLAS

from ..cases.case import Case
from ..engines import Array, assert_bits, assert_near, exact, optimized, sessions_are_native, slowly, tiny_blocks
from ..ops.test_op_table import as_dtype, rows
from ..random_graphs import ALL, RandomGraph, build, random_graph

#: One task; as many tasks as steps, two at a time; a few tasks, one after another.
SAME_BITS = [
    {"threads": 1, "cpus_per_task": 1},
    {"threads": 2, "cpus_per_task": 1, "granularity": 1e-12},
    {"threads": 4, "cpus_per_task": 1, "granularity": 1e-5, "in_order": True},
]
#: Two threads share every group, and products are cut in two.
SHARED = {"threads": 2, "cpus_per_task": 2}


def uses_blas(program: Program) -> bool:
    return not USES_BLAS.isdisjoint(step.type for step in program.steps)


def assert_same_everywhere(fetches: Sequence[dg.Tensor], feeds: Sequence[dg.Tensor], values: Sequence[Array]) -> None:
    """The bits of the slow executor, or nearly, and the same ones however the program is cut and run."""
    program = optimized(fetches, feeds)
    first, *others, both = [
        dg.Session(**each).run(fetches, dict(zip(feeds, values, strict=True))) for each in (*SAME_BITS, SHARED)
    ]
    for found in others:
        assert_bits(found, first)
    same = assert_bits if exact(program, sessions_are_native()) else assert_near
    same(first, slowly(program, values))
    same(both, slowly(program, values, cpus=2))
    if not uses_blas(program):
        assert_bits(both, first)


def with_gradients(case: Case, xs: Sequence[dg.Tensor]) -> list[dg.Tensor]:
    """What the row builds, and the gradients in a random direction."""
    made = nest.flatten(case.build(*xs))
    moving = [x for x in xs if x.dtype.kind in "fc"]
    if not case.order or not moving:
        return made
    rng = np.random.default_rng(1)
    floating = [y for y in made if y.dtype.kind in "fc"]
    terms = [dg.sum(dg.real(y * rng.uniform(-1, 1, y.shape).astype(dg.real(y).dtype))) for y in floating]
    grads = dg.gradients(terms, moving, unconnected_gradients="zero")
    return [*made, *[dg.identity(dg.add(g, 0.0)) for g in grads]]


@pytest.mark.parametrize("case", rows())
def test_bits_depend_neither_on_tasks_nor_on_threads(case: Case) -> None:
    inputs = [as_dtype(x, np.float32 if case.float32 else np.float64) for x in case.inputs]
    with tiny_blocks(), dg.Graph():
        xs = [dg.placeholder(x.shape, x.dtype) for x in inputs]
        assert_same_everywhere(with_gradients(case, xs), xs, inputs)


@pytest.mark.parametrize("cpus", [1, 2, 3])
@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((256, 784), (784, 1024)),
        ((1024, 256), (256, 256)),
        ((8, 128, 64), (64, 64)),
        ((4, 8, 96, 64), (4, 8, 64, 96)),
        ((1, 1000), (1000, 1000)),
        ((37, 410), (410, 530)),
    ],
)
def test_large_products_have_the_bits_of_the_reference_at_the_same_cpus(a: Any, b: Any, cpus: int) -> None:
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in (a, b)]
    with dg.Graph():
        x, y = (dg.placeholder(shape, np.float32) for shape in (a, b))
        fetches = [x @ y, *dg.gradients(x @ y, [x, y], x @ y)]
        program = optimized(fetches, [x, y])
    expected = slowly(program, arrays, cpus)
    for options in ({}, {"granularity": 1e-12}, {"in_order": True}):
        session = dg.Session(threads=2 * cpus, cpus_per_task=cpus, **options)
        assert_bits(session.run(fetches, dict(zip([x, y], arrays, strict=True))), expected)


@st.composite
def graphs(draw: st.DrawFn) -> RandomGraph:
    return random_graph(lambda options: draw(st.sampled_from(options)), ALL, max_nodes=20)


@pytest.mark.parametrize("elements", [1, 4, 1000])
@settings(deadline=None, max_examples=25, derandomize=True)
@given(graph=graphs())
def test_so_it_is_with_random_graphs_and_their_gradients(elements: int, graph: RandomGraph) -> None:
    with tiny_blocks(elements), dg.Graph():
        xs = [dg.placeholder(shape, "float32") for shape in graph.leaves]
        values = build(graph, xs)
        grads = dg.gradients([dg.sum(values[v]) for v in graph.ends], xs, unconnected_gradients="zero")
        fetches = [*values, *[dg.add(g, 0.0) for g in grads]]
        assert_same_everywhere(fetches, xs, graph.leaf_values(dtype=np.float32))


# -- how values lie in memory ------------------------------------------------------------------------------------

X = np.random.default_rng(5).normal(size=(5, 7, 9))

#: Sums and products of views of something that the program makes: a task that is given the view gets it row by row.
OF_VIEWS: dict[str, Callable[[dg.Tensor], dg.Tensor]] = {
    "sum": lambda x: dg.sum(dg.transpose(x, (2, 1, 0)), axis=1),
    "mean": lambda x: dg.mean(dg.transpose(x, (2, 1, 0)), axis=(0, 2)),
    "prod": lambda x: dg.prod(dg.transpose(x, (1, 2, 0)), axis=(0, 2)),
    "logsumexp": lambda x: dg.logsumexp(x[:, ::-1, ::2], axis=1),
    "softmax": lambda x: dg.nn.softmax(dg.transpose(x, (2, 0, 1)), axis=0),
    "einsum": lambda x: dg.einsum("abc,abd->cd", dg.transpose(x, (1, 0, 2)), dg.transpose(x, (1, 0, 2))),
    "matmul": lambda x: dg.transpose(x, (2, 0, 1)) @ x[0],
    "a matrix with gaps": lambda x: x[0, :, ::2] @ x[1, :5, :1],
    "a row times a part": lambda x: x[0, :1, :7] @ x[1, :, 1:3],
    "reversed": lambda x: dg.flip(x[0], 0)[:, :5] @ x[:, 1, :1],
    "cumsum": lambda x: dg.cumsum(dg.transpose(x, (2, 1, 0)), axis=1),
    "norm": lambda x: dg.linalg.norm(dg.transpose(x, (2, 1, 0)), axis=1),
}


@pytest.mark.parametrize("elements", [4, 1 << 16])
@pytest.mark.parametrize("name", OF_VIEWS)
def test_bits_do_not_depend_on_whether_a_view_comes_from_another_task(name: str, elements: int) -> None:
    with tiny_blocks(elements), dg.Graph():
        x = dg.placeholder(X.shape)
        y = OF_VIEWS[name](dg.cumsum(x, axis=0))
        assert_same_everywhere([y], [x], [X])


FEEDS: dict[str, Callable[[Array], Array]] = {
    "Fortran order": np.asfortranarray,
    "backwards": lambda x: x[::-1, ::-1].copy()[::-1, ::-1],
    "with gaps": lambda x: np.repeat(x, 2, axis=1)[:, ::2],
    "read-only": lambda x: np.frombuffer(x.tobytes(), x.dtype).reshape(x.shape),
    "other byte order": lambda x: x.astype(x.dtype.newbyteorder()),
    "unaligned": lambda x: np.frombuffer(b"?" + x.tobytes(), x.dtype, offset=1).reshape(x.shape),
}


@pytest.mark.parametrize("layout", FEEDS)
@pytest.mark.parametrize("blocks", [1, 1000])
def test_how_a_feed_lies_in_memory_changes_nothing(layout: str, blocks: int) -> None:
    value = X[0]
    with tiny_blocks(blocks), dg.Graph():
        x = dg.placeholder(value.shape)
        ys = [x, dg.nn.softmax(x * 2.0), dg.sum(x, axis=0), dg.transpose(x) @ x, x[::2], dg.prod(x, axis=0)]
        expected, fed = dg.Session().run(ys, {x: value}), FEEDS[layout](value)
        before = fed.tobytes()
        found = dg.Session().run(ys, {x: fed})
    assert_bits(found, expected)
    assert fed.tobytes() == before


def test_a_feed_of_one_number_again_and_again() -> None:
    with tiny_blocks(), dg.Graph():
        x = dg.placeholder((4, 3))
        y = dg.sum(dg.exp(x), axis=0)
        zero_strides = np.broadcast_to(np.float64(1.5), (4, 3))
        assert_bits([dg.Session().run(y, {x: zero_strides})], [dg.Session().run(y, {x: zero_strides.copy()})])


# -- whose memory ------------------------------------------------------------------------------------------------


def assert_apart(*arrays: Array) -> None:
    for i, x in enumerate(arrays):
        assert not any(np.shares_memory(x, y) for y in arrays[:i])


@pytest.mark.parametrize("options", [*SAME_BITS, SHARED], ids=str)
def test_results_share_no_memory(options: dict[str, Any]) -> None:
    """Not with feeds, constants or variables, not with each other, and not with what the next run gives."""
    variable = dg.Variable(np.arange(6.0).reshape(2, 3))
    with tiny_blocks(), dg.Graph():
        x, c = dg.placeholder((2, 3)), dg.constant(np.ones((2, 3)))
        y, v = dg.exp(x), variable.read()
        views = [t for z in (x, c, y, v) for t in (z, z, z[:1], z.T, dg.reshape(z, (6,)), *dg.split(z, 3, 1))]
        fed, session = np.zeros((2, 3)), dg.Session(**options)
        first = session.run(views, {x: fed})
        kept = [r.copy() for r in first]
        second = session.run(views, {x: fed + 1})
    assert_apart(fed, variable.numpy(), *first, *second)
    assert_bits(first, kept)
    assert all(r.flags.writeable for r in first)


def test_writing_into_results_changes_no_constant_and_no_variable() -> None:
    variable = dg.Variable(np.ones(3))

    @dg.function
    def f(x: Any) -> Any:
        variable.assign(dg.exp(x))
        c = dg.constant(np.ones(3))
        return variable.read(), dg.reshape(variable.read(), (3, 1)), variable.read()[:2], c, c[::2]

    for result in f(np.zeros(3)):
        result[...] = 7
    np.testing.assert_array_equal(variable.numpy(), np.ones(3))
    np.testing.assert_array_equal(f(np.zeros(3))[3], np.ones(3))


def test_a_variable_keeps_nothing_that_was_fed() -> None:
    variable = dg.Variable(np.zeros(3))

    @dg.function
    def f(x: Any) -> None:
        variable.assign(x)

    fed = np.ones(3)
    f(fed)
    fed[...] = 7
    np.testing.assert_array_equal(variable.numpy(), np.ones(3))


# -- threads and processes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [*SAME_BITS, SHARED], ids=str)
def test_threads_may_run_the_same_function_at_once(options: dict[str, Any]) -> None:
    with tiny_blocks(16):

        @dg.function
        def f(x: Any, w: Any) -> Any:
            h = dg.nn.softmax(dg.tanh(x @ w) * 2.0 + x)
            return h, dg.sum(h * x, axis=0), dg.concatenate([x @ w, dg.transpose(h)], axis=1)

        rng = np.random.default_rng(0)
        arguments = [(rng.normal(size=(8, 8)), rng.normal(size=(8, 8))) for _ in range(4)]

        def work(argument: Any) -> list[list[Array]]:
            with dg.Session(**options):
                return [list(f(*argument)) for _ in range(15)]

        with dg.Session(**options):
            expected = [list(f(*argument)) for argument in arguments]
        with ThreadPoolExecutor(4) as pool:
            for found, once in zip(pool.map(work, arguments), expected, strict=True):
                for results in found:
                    assert_bits(results, once)


def test_threads_do_not_become_more_with_every_session() -> None:
    def run() -> None:
        with tiny_blocks(), dg.Graph():
            x = dg.placeholder((4, 4))
            ys = [dg.exp(x) @ x, dg.tanh(x) @ x]
            for options in (*SAME_BITS, SHARED):
                dg.Session(**options).run(ys, {x: np.ones((4, 4))})

    run()
    before = threading.active_count()
    for _ in range(10):
        run()
    assert threading.active_count() <= before


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("options", [SAME_BITS[1], SHARED], ids=str)
def test_a_forked_process_runs_too(options: dict[str, Any]) -> None:
    """It has the plans and what is compiled, but none of the threads."""
    with tiny_blocks(), dg.Graph():
        x = dg.placeholder((4, 4))
        ys, session = [dg.exp(x) * 2.0, dg.tanh(x) @ x], dg.Session(**options)
        expected = session.run(ys, {x: np.ones((4, 4))})
        child = os.fork()
        if not child:
            found = session.run(ys, {x: np.ones((4, 4))})
            os._exit(int([r.tobytes() for r in found] != [r.tobytes() for r in expected]))
    assert ended(child) == 0


def ended(child: int, seconds: float = 60) -> int:
    """How a process ended; it is killed when it takes too long."""
    timer = threading.Timer(seconds, os.kill, (child, 9))
    timer.start()
    try:
        return os.waitpid(child, 0)[1]
    finally:
        timer.cancel()
