"""The cost model: every op type has a rule, and predictions follow the hardware."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import distgrad as dg
from distgrad import nest
from distgrad.errors import here
from distgrad.registry import OPS, Kind
from distgrad.scheduler.cluster import Machine, local_cluster
from distgrad.scheduler.cost.cutting import BLOCK, PIECE_FLOPS
from distgrad.scheduler.cost.rates import Cost, CostModel
from distgrad.scheduler.cost.step_costs import needs_of, prices
from distgrad.scheduler.cost.work import Attrs, Rule, Specs, Work, nothing, plain
from distgrad.scheduler.cost.work_products import TILE_SWEEPS, product
from distgrad.scheduler.cost.work_table import BY_KIND, WORK, rule_of
from distgrad.scheduler.execution import PLAIN
from distgrad.scheduler.passes.fuse import fuse
from distgrad.scheduler.plan import Options
from distgrad.scheduler.program import FUSED, Program, Step, lower
from distgrad.types import Spec

from ..cases import all_cases

MACHINE = Machine()


def step_cost(step: Step, types: Sequence[Spec], machine: Machine, cpus: int = 1) -> Cost:
    return CostModel(machine, cpus).cost(step, types)
F32, F64 = np.dtype("float32"), np.dtype("float64")


def program(build: Callable[..., Any], *shapes: tuple[int, ...], dtype: Any = F32) -> Program:
    with dg.Graph():
        feeds = [dg.placeholder(shape, dtype) for shape in shapes]
        return lower([build(*feeds)], feeds)


def last(build: Callable[..., Any], *shapes: tuple[int, ...], dtype: Any = F32, cpus: int = 1) -> Cost:
    """The cost of the last step of what is built on such arrays."""
    made = program(build, *shapes, dtype=dtype)
    return step_cost(made.steps[-1], made.types, MACHINE, cpus)


def step(op_type: str, inputs: int, outputs: int, **attrs: Any) -> Step:
    made = tuple(range(inputs, inputs + outputs))
    return Step(op_type, tuple(range(inputs)), made, attrs, (), here(), op_type.lower())


# -- the table ---------------------------------------------------------------------------------------------------


def test_rows_are_of_op_types_and_kinds_cover_the_rest() -> None:
    built_in = {name for name, op in OPS.items() if op.kernel is None and not name.startswith(("Doc", "Test"))}
    assert WORK.keys() <= built_in
    assert [name for name in sorted(built_in) if rule_of(name) is plain] == []


def test_no_row_repeats_what_its_kind_says() -> None:
    out, spec = Spec((7, 6), F32), Spec((7, 6), np.dtype(np.float64))
    same = [
        name
        for name in WORK
        if OPS[name].kind is Kind.ELEMENTWISE
        and WORK[name].count((spec,) * 3, (out,), {}) == BY_KIND[Kind.ELEMENTWISE].count((spec,) * 3, (out,), {})
    ]
    assert same == []


def test_a_rule_sees_no_attribute_that_it_does_not_name() -> None:
    """So the costs that are remembered by those attributes are right."""

    def count(ins: Specs, outs: Specs, attrs: Attrs) -> Work:
        assert attrs == {"axis": 1}
        return Work()

    Rule(count, ("axis",)).work((), (), {"axis": 1, "index": 2})


@pytest.mark.parametrize("op_type", sorted(all_cases()))
def test_every_row_of_the_op_table_has_a_price(op_type: str) -> None:
    model = CostModel(MACHINE, cpus=2)
    for case in all_cases()[op_type]:
        with dg.Graph():
            feeds = [dg.placeholder(np.shape(x), np.asarray(x).dtype) for x in case.inputs]
            made = lower([t for t in nest.flatten(case.build(*feeds)) if t is not None], feeds)
        costs = [model.cost(each, made.types) for each in made.steps]
        assert all(0 <= number < 1e9 for cost in costs for number in cost)


@pytest.mark.parametrize(
    ("build", "shapes"),
    [
        (lambda a, b: a @ b, [(0, 3), (3, 0)]),
        (lambda a, b: dg.einsum("ab,bc->ac", a, b), [(0, 3), (3, 0)]),
        (lambda x, w: dg.nn.conv2d(x, w), [(0, 4, 4, 2), (3, 3, 2, 2)]),
        (lambda x: dg.nn.max_pool(x, 2), [(0, 4, 4, 2)]),
        (dg.nn.softmax, [(0, 0)]),
        (lambda x: dg.sum(x, axis=-1), [(3, 0)]),
        (lambda x: dg.sort(x, axis=-1), [(3, 0)]),
        (lambda x: dg.cumsum(x, axis=0), [(0,)]),
        (dg.linalg.inv, [(0, 0)]),
        (dg.linalg.inv, [(0, 3, 3)]),
    ],
)
def test_a_step_on_no_elements_costs_its_calls(build: Any, shapes: list[tuple[int, ...]]) -> None:
    assert 0 < last(build, *shapes).seconds < 50 * MACHINE.kernel_seconds


def test_a_users_own_op_costs_its_bytes_and_elements() -> None:
    cost = step_cost(step("Mine", 1, 1), [Spec((1 << 24,), F32)] * 2, MACHINE)
    assert cost.bytes == 2 * 4 << 24
    assert cost.seconds > cost.bytes / MACHINE.cache_bandwidth


# -- products ----------------------------------------------------------------------------------------------------


def test_a_large_product_runs_at_the_rate_of_the_machine() -> None:
    cost = last(lambda a, b: a @ b, (2048, 2048), (2048, 2048))
    assert cost.flops == 2 * 2048**3
    assert cost.seconds == pytest.approx(cost.flops / MACHINE.gemm_flops, rel=0.05)


def test_float64_products_have_their_own_rate() -> None:
    cost = last(lambda a, b: a @ b, (2048, 2048), (2048, 2048), dtype=F64)
    assert cost.seconds == pytest.approx(cost.flops / MACHINE.gemm_flops64, rel=0.05)


def test_a_thin_product_has_half_the_rate_where_the_machine_says_so() -> None:
    thin = int(MACHINE.gemm_half)
    cost = last(lambda a, b: a @ b, (512, 512), (512, thin))
    assert cost.seconds == pytest.approx(2 * cost.flops / MACHINE.gemm_flops, rel=0.2)


def test_transposed_operands_are_the_same_product() -> None:
    plainly = last(lambda a, b: a @ b, (96, 32), (32, 64))
    turned = last(lambda a, b: dg.matmul(a, b, transpose_a=True, transpose_b=True), (32, 96), (64, 32))
    assert plainly == turned


def test_a_batch_against_one_matrix_is_one_product_with_more_rows() -> None:
    assert last(lambda a, b: a @ b, (8, 128, 256), (256, 768)) == last(lambda a, b: a @ b, (1024, 256), (256, 768))


def test_einsum_is_the_product_that_its_labels_say() -> None:
    cost = last(lambda a, b: dg.einsum("bhqd,bhkd->bhqk", a, b), (8, 4, 128, 64), (8, 4, 100, 64))
    assert cost.flops == 2 * 8 * 4 * 128 * 64 * 100


def convolutions(size: int, channels: int, made: int) -> dict[str, Work]:
    """The work of a convolution of eight images of 32 x 32, and of its gradients, by op type."""
    with dg.Graph():
        x, w = dg.placeholder((8, 32, 32, channels), F32), dg.placeholder((size, size, channels, made), F32)
        y = dg.nn.conv2d(x, w, padding="SAME")
        found = lower([y, *dg.gradients(y, [x, w])], [x, w])
    model = CostModel(MACHINE)
    return {s.type: model.work(s, found.types) for s in found.steps if s.type.startswith("Conv2D")}


def test_a_convolution_is_a_product_and_copies_of_its_windows() -> None:
    work = convolutions(5, 16, 32)["Conv2D"]
    assert [p.flops for p in work.products] == [2 * 8 * 32 * 32 * 25 * 16 * 32]
    assert work.elementwise == TILE_SWEEPS * 8 * 32 * 32 * 25 * 16


def test_the_gradients_of_a_convolution_have_its_flops() -> None:
    works = convolutions(5, 16, 32)
    assert len(works) == 3
    assert len({p.flops for work in works.values() for p in work.products}) == 1


def test_windows_of_three_by_three_over_many_channels_save_products() -> None:
    for work in convolutions(3, 64, 64).values():
        assert [p.flops for p in work.products] == [2 * 8 * 32 * 32 * 9 * 64 * 64 * 16 / 36]


def test_threads_share_the_blocks_of_a_convolution() -> None:
    work = convolutions(3, 64, 64)["Conv2D"]
    alone, shared = (CostModel(MACHINE, cpus).terms(work) for cpus in (1, 2))
    assert shared.elements == pytest.approx(alone.elements / 2)
    assert shared.seconds < alone.seconds / 1.5


def test_more_cpus_make_a_large_product_faster_and_a_tiny_one_not() -> None:
    def cost(n: int, cpus: int) -> float:
        return last(lambda a, b: a @ b, (n, n), (n, n), cpus=cpus).seconds

    assert cost(1024, 4) < cost(1024, 1) / 2.5
    assert cost(16, 4) == pytest.approx(cost(16, 1), rel=0.1)


def test_factorisations_grow_with_the_cube() -> None:
    small, large = (last(dg.linalg.inv, (n, n)).flops for n in (100, 200))
    assert large == 8 * small


# -- elements ----------------------------------------------------------------------------------------------------


def test_views_cost_a_fraction_of_a_call() -> None:
    cost = last(lambda x: dg.reshape(x, (1000, 4000)), (4000, 1000))
    assert 0 < cost.seconds < MACHINE.kernel_seconds


def test_constants_cost_nothing() -> None:
    assert last(lambda: dg.constant(np.ones(1000))).seconds == 0


def test_what_never_becomes_a_step_costs_nothing() -> None:
    assert rule_of("Call") is rule_of("ReadVariable") is nothing


@pytest.mark.parametrize(
    ("cheaper", "dearer"),
    [
        (lambda x: x + x, dg.exp),
        (dg.exp, dg.arctan),
        (dg.nn.relu, dg.nn.softmax),
        (lambda x: dg.sum(x, axis=0), lambda x: dg.logsumexp(x, axis=0)),
        (lambda x: x + 1.0, lambda x: dg.cumsum(x, axis=0)),
        (lambda x: dg.sort(x, axis=-1), lambda x: dg.argsort(x, axis=-1)),
    ],
)
def test_dearer_functions_cost_more(cheaper: Any, dearer: Any) -> None:
    assert last(cheaper, (400, 500)).seconds < last(dearer, (400, 500)).seconds


def test_twice_the_elements_cost_about_twice() -> None:
    one, two = (last(dg.tanh, (n, 1000)).seconds for n in (1000, 2000))
    assert two == pytest.approx(2 * one, rel=0.1)


def test_a_small_step_costs_its_call() -> None:
    assert last(lambda x: x + x, (16,)).seconds == pytest.approx(MACHINE.native_seconds, rel=0.1)
    assert last(lambda x: dg.sort(x), (16,)).seconds > MACHINE.kernel_seconds


def test_beyond_the_cache_a_cheap_step_costs_its_bytes() -> None:
    cost = last(lambda x: x + x, (1 << 26,))
    assert cost.seconds == pytest.approx(cost.bytes / MACHINE.memory_bandwidth_one, rel=0.05)


def test_sums_of_short_rows_cost_more_than_sums_of_long_ones() -> None:
    short, long = last(lambda x: dg.sum(x, axis=-1), (10_000, 10)), last(lambda x: dg.sum(x, axis=-1), (10, 10_000))
    assert short.seconds > 3 * long.seconds


def test_gathering_does_not_read_the_whole_table() -> None:
    small, large = (last(lambda t: dg.take(t, np.arange(8), axis=0), (n, 64)).bytes for n in (100, 100_000))
    assert small == large


# -- groups ------------------------------------------------------------------------------------------------------


def chain(x: Any) -> Any:
    return dg.tanh(x * 2.0 + x) * dg.exp(x)


def group(n: int, cpus: int = 1) -> Cost:
    """All steps of the chain as one."""
    made = program(chain, (n // 1000, 1000))
    body = tuple(s for s in made.steps if s.inputs)
    inside = {v for s in body for v in s.outputs}
    inputs = tuple(dict.fromkeys(v for s in body for v in s.inputs if v not in inside))
    attrs = {"space": (n // 1000, 1000), "split": 2}
    fused = Step(FUSED, inputs, made.fetches, attrs, (), here(), "chain", None, body)
    return step_cost(fused, made.types, MACHINE, cpus)


def test_a_group_moves_only_what_enters_and_leaves_it() -> None:
    assert group(4_000_000).bytes == pytest.approx(2 * 4 * 4_000_000, rel=1e-3)


def test_a_group_costs_less_than_its_steps_alone() -> None:
    made = program(chain, (4000, 1000))
    assert group(4_000_000).seconds < sum(step_cost(s, made.types, MACHINE).seconds for s in made.steps)


def test_a_large_group_is_spread_over_the_cpus() -> None:
    assert group(16_000_000, cpus=4).seconds < group(16_000_000).seconds / 2.5


def test_waking_each_thread_for_a_group_costs_time() -> None:
    slow = replace(MACHINE, spread_seconds=1.0)
    made = program(chain, (4000, 1000))
    (fused,) = [s for s in fuse(made).steps if s.body]
    assert step_cost(fused, made.types, slow, cpus=4).seconds == pytest.approx(4, rel=0.01)


def test_a_group_is_priced_by_the_rates_of_native_code() -> None:
    made = program(lambda x: dg.exp(dg.tanh(x)), (4000, 1000))
    (fused,) = [s for s in fuse(made).steps if s.body]
    fast = replace(MACHINE, native_transcendental=1e3)
    assert step_cost(fused, made.types, fast).seconds == pytest.approx(2.5 * 4e6 / 1e3, rel=0.01)
    plain = CostModel(fast, 1, PLAIN).cost(fused, made.types)
    assert plain.seconds == pytest.approx(2.5 * 4e6 / MACHINE.transcendental, rel=0.5)


def test_a_group_of_one_block_stays_on_one_thread() -> None:
    n = BLOCK // 1000 * 1000
    assert group(n, cpus=4) == group(n)


def test_results_that_leave_cost_the_memory_that_they_are_the_first_to_touch() -> None:
    cluster = local_cluster(1, 1 << 30)
    made = program(dg.tanh, (1000, 1000))
    (price,) = prices(made, cluster, needs_of(made, cluster, Options()))
    fresh = 4e6 / cluster.machine.fresh_bandwidth
    assert price.seconds == pytest.approx(step_cost(made.steps[0], made.types, cluster.machine).seconds + fresh)


# -- the model itself --------------------------------------------------------------------------------------------


def test_attributes_that_decide_the_work_are_not_forgotten() -> None:
    types = [Spec((1000, 1000), F32), Spec((1000,), F32)]
    model = CostModel(MACHINE)
    rows, columns = (model.cost(step("Sum", 1, 1, axis=(axis,), keepdims=False), types) for axis in (1, 0))
    assert rows.seconds != columns.seconds


def test_a_hundred_thousand_steps_are_priced_in_a_fraction_of_a_second() -> None:
    made = program(lambda x: dg.tanh(x * 2.0) + x, (16,))
    model = CostModel(MACHINE)
    steps = made.steps * (20_000 // len(made.steps))
    best = math.inf
    for _ in range(5):
        start = time.perf_counter()
        for each in steps:
            model.cost(each, made.types)
        best = min(best, time.perf_counter() - start)
    assert best / len(steps) < 10e-6  # about 1 µs on a quiet machine


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
def test_products_of_all_dtypes_are_priced_as_shared_at_the_size_at_which_they_are_cut(dtype: str) -> None:
    """A smaller one is not cut: two threads take as long as one."""
    k = PIECE_FLOPS // 64**2
    for depth, cut in ((k, True), (k - 1, False)):
        work = product(64, depth, 64, 1, np.dtype(dtype))
        alone, two = (CostModel(MACHINE, cpus).terms(work).products for cpus in (1, 2))
        assert (two < alone) is cut
