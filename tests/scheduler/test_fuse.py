"""Fusion: which steps are fused, and that results do not change."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from types import FrameType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import distgrad as dg
from distgrad.scheduler.passes.fuse import LONG_ROW, MANY, fuse, role
from distgrad.scheduler.program import FUSED, Program, Step, check_program, lower

from ..engines import fused, tiny_blocks
from ..random_graphs import ALL, RandomGraph, build, random_graph
from ..step_graphs import Steps

pytestmark = pytest.mark.usefixtures("graph")
N, D = 64, 64  # enough elements to be fused


def kinds(program: Program) -> list[str]:
    """The types of the steps without constants, a group as the list of its own."""
    parts = [[inner.type for inner in step.body] if step.body else step.type for step in program.steps]
    return [part for part in parts if part != "Const"]  # type: ignore[misc]


def groups(program: Program) -> list[Step]:
    return [step for step in program.steps if step.type == FUSED]


def placeholder(*shape: int, dtype: Any = "float32") -> dg.Tensor:
    return dg.placeholder(shape, dtype)


# -- what can be fused -------------------------------------------------------------------------------------------


def test_only_what_the_workers_have_a_rule_for_is_fused() -> None:
    """x -> tanh -> exp -> * 2, where nobody can fuse exp."""
    x = placeholder(N, D)
    program = lower([dg.exp(dg.tanh(x) + 1.0) * 2.0 - 1.0], [x])
    made = fuse(program, lambda step, types: step.type != "Exp")
    assert kinds(made) == [["Tanh", "Add"], "Exp", ["Mul", "Sub"]]


def test_a_chain_of_elementwise_ops_is_one_step() -> None:
    """x -> tanh -> exp -> * 2."""
    x = placeholder(N, D)
    assert kinds(fused([dg.exp(dg.tanh(x)) * 2.0], [x])) == [["Tanh", "Exp", "Mul"]]


def test_small_arrays_are_left_alone() -> None:
    x = placeholder(7)
    assert kinds(fused([dg.exp(dg.tanh(x))], [x])) == ["Tanh", "Exp"]


def test_a_single_step_is_fused_where_the_array_is_large() -> None:
    x, y = placeholder(1 << 17), placeholder(1 << 16)
    assert kinds(fused([dg.tanh(x), dg.tanh(y)], [x, y])) == [["Tanh"], "Tanh"]


def test_steps_that_read_the_same_result_are_joined() -> None:
    """x @ x -> y;  y -> exp;  y -> tanh: y goes through the cache once."""
    x = placeholder(N, D)
    y = x @ x
    assert kinds(fused([dg.exp(y), dg.tanh(y)], [x])) == ["MatMul", ["Exp", "Tanh"]]


def test_reading_the_same_feed_is_no_reason_to_run_together() -> None:
    """x -> tanh -> exp;  x -> sin -> cos: two towers, which may run side by side."""
    x = placeholder(N, D)
    program = fused([dg.exp(dg.tanh(x)), dg.cos(dg.sin(x))], [x])
    assert kinds(program) == [["Tanh", "Exp"], ["Sin", "Cos"]]


def test_towers_that_read_the_same_array_are_not_joined() -> None:
    """c @ w -> y;  x_i @ w + y -> tanh -> exp: as towers that begin a recurrence with the same zeros."""
    w, c, *xs = placeholder(D, D), placeholder(N, D), placeholder(N, D), placeholder(N, D)
    y = c @ w
    program = fused([dg.exp(dg.tanh(x @ w + y)) for x in xs], [w, c, *xs])
    assert sorted(map(str, kinds(program))) == ["MatMul"] * 3 + ["['Add', 'Tanh', 'Exp']"] * 2


def test_towers_over_parts_of_one_feed_are_not_joined() -> None:
    """x -> x_0, x_1;  x_i + zeros -> tanh -> exp, with zeros that are no feed."""
    x, w = placeholder(2 * N, D), placeholder(N, D)
    zeros = w @ w.T
    program = fused([dg.exp(dg.tanh(part + zeros)) for part in dg.split(x, 2)], [x, w])
    assert [kind for kind in kinds(program) if len(kind) == 3] == [["Add", "Tanh", "Exp"]] * 2


def test_towers_that_share_no_input_are_not_joined_by_the_sum_of_them() -> None:
    """x -> tanh -> exp; y -> tanh -> exp; their sum."""
    x, y = placeholder(N, D), placeholder(N, D)
    total = dg.add_n([dg.exp(dg.tanh(x)), dg.exp(dg.tanh(y))])
    assert kinds(fused([total], [x, y])) == [["Tanh", "Exp"], ["Tanh", "Exp"], "AddN"]


def test_steps_that_share_nothing_are_not_joined() -> None:
    x, y = placeholder(N, D), placeholder(N, D)
    program = fused([dg.exp(dg.tanh(x)), dg.exp(dg.tanh(y))], [x, y])
    assert kinds(program) == [["Tanh", "Exp"], ["Tanh", "Exp"]]


def test_bias_gelu_and_layer_norm_are_one_group_by_rows() -> None:
    """x @ w -> + bias -> gelu -> layer norm * scale + shift."""
    x, w, b, scale, shift = (placeholder(*shape) for shape in [(N, D), (D, D), (D,), (D,), (D,)])
    y = dg.nn.layer_norm(dg.nn.gelu(x @ w + b)) * scale + shift
    program = fused([y], [x, w, b, scale, shift])
    assert kinds(program) == ["MatMul", ["Add", "Gelu", "LayerNorm", "Mul", "Add"]]
    assert (groups(program)[0].attrs["space"], groups(program)[0].attrs["split"]) == ((N, D), 1)


@pytest.mark.parametrize(
    ("mask", "split"),
    [((), 3), ((8,), 3), ((1, 1, 8, 8), 2), ((8, 8), 2), ((2, 1, 1, 8), 1), ((2, 4, 8, 8), 3), ((4, 8, 8), 1)],
)
def test_a_masked_softmax_is_one_group(mask: tuple[int, ...], split: int) -> None:
    """scores (B, H, T, T) * scale + mask -> softmax; the mask decides how many leading axes are cut."""
    x, m = placeholder(2, 4, 8, 8), placeholder(*mask)
    with tiny_blocks():
        program = fused([dg.nn.softmax(x * 0.5 + m)], [x, m])
    assert kinds(program) == [["Mul", "Add", "Softmax"]]
    assert groups(program)[0].attrs["split"] == split


@pytest.mark.parametrize(
    ("shape", "split"), [((4, 1, 16), 1), ((4, 1, 1, 1), 1), ((1, 4, 1, 16), 1), ((4, 4, 1, 16), 2), ((4, 4, 16, 1), 3)]
)
def test_an_operand_is_cut_along_all_leading_axes_or_along_none(shape: tuple[int, ...], split: int) -> None:
    """(4, 4, 16, 16) + shape: (4, 1, 16) is whole in every block of the first axis, but not of the first two."""
    x, m = placeholder(4, 4, 16, 16), placeholder(*shape)
    program = fused([dg.tanh(x) + m], [x, m])
    assert [g.attrs["split"] for g in groups(program)] == [split]


def test_sums_of_columns_at_the_end_belong_to_the_group() -> None:
    """g * (1 - y * y) -> d, and the sum of its columns, which is the gradient of a bias."""
    g, y = placeholder(N, D), placeholder(N, D)
    d = g * (1.0 - y * y)
    program = fused([d, dg.sum(d, axis=0)], [g, y])
    assert kinds(program) == [["Mul", "Sub", "Mul", "Sum"]]


def test_the_mean_of_rows_may_be_used_inside_the_group() -> None:
    """x -> mean of rows -> x - mean -> square."""
    x = placeholder(N, D)
    y = dg.square(x - dg.mean(x, axis=1, keepdims=True))
    program = fused([y], [x])
    assert kinds(program) == [["Mean", "Sub", "Square"]]
    assert groups(program)[0].attrs["split"] == 1


def test_a_sum_of_all_is_waited_for() -> None:
    """x -> exp -> e -> sum -> s;  e / s cannot be in the group that makes s."""
    x = placeholder(N, D)
    e = dg.exp(x)
    assert kinds(fused([e / dg.sum(e)], [x])) == [["Exp", "Sum"], "Div"]


def test_a_path_that_leaves_a_group_does_not_come_back() -> None:
    """x -> exp -> e -> @ w -> + e: the sum reads what a product makes of e."""
    x, w = placeholder(N, D), placeholder(D, D)
    e = dg.exp(dg.tanh(x))
    program = fused([dg.tanh(e @ w + e)], [x, w])
    assert kinds(program) == [["Tanh", "Exp"], "MatMul", ["Add", "Tanh"]]


def test_two_groups_that_read_each_others_means_become_one() -> None:
    """
    x -> exp -> a -> mean -> m;  y -> exp -> b -> mean -> n;  a - n;  b - m
    """
    x, y = placeholder(N, D), placeholder(N, D)
    a, b = dg.exp(x), dg.exp(y)
    m, n = dg.mean(a, axis=1, keepdims=True), dg.mean(b, axis=1, keepdims=True)
    (group,) = groups(fused([a - n, b - m], [x, y]))
    assert len(group.body) == 6


def test_rows_too_long_for_the_cache_are_not_fused() -> None:
    x, b = placeholder(4, LONG_ROW + 1), placeholder(LONG_ROW + 1)
    assert kinds(fused([dg.tanh(x + b)], [x, b])) == ["Add", ["Tanh"]]


def test_a_step_whose_rows_are_too_long_stays_out_of_the_group() -> None:
    """x (4, 64, 2048) -> softmax, rows of 2048 -> + (64, 2048), rows of 131072: the sum is not in the group."""
    x, b = placeholder(4, 64, 2048), placeholder(64, 2048)
    program = fused([dg.nn.softmax(dg.tanh(x)) + b], [x, b])
    assert kinds(program) == [["Tanh", "Softmax"], "Add"]


def test_16_bit_floats_are_not_fused() -> None:
    x = placeholder(N, D, dtype="float16")
    assert kinds(fused([dg.exp(dg.tanh(x))], [x])) == ["Tanh", "Exp"]


def test_devices_are_not_mixed() -> None:
    """x -> tanh on the gpu -> exp here -> sin on the gpu -> cos on the gpu."""
    x = placeholder(N, D)
    with dg.device("gpu"):
        y = dg.tanh(x)
    z = dg.exp(y)
    with dg.device("gpu"):
        w = dg.cos(dg.sin(z))
    program = fused([w], [x])
    assert kinds(program) == ["Tanh", "Exp", ["Sin", "Cos"]]
    assert [step.device for step in program.steps] == ["gpu", None, "gpu"]


def test_a_step_that_waits_stays_alone_and_waits_for_the_whole_group() -> None:
    """x -> tanh -> exp; x -> sin, after tanh."""
    x = placeholder(N, D)
    y = dg.tanh(x)
    z = dg.exp(y)
    with dg.control_dependencies([y]):
        w = dg.sin(x)
    program = fused([z, w], [x])
    assert kinds(program) == [["Tanh", "Exp"], "Sin"]
    assert program.steps[1].after == (0,)


def test_losses_take_one_label_per_row() -> None:
    x, labels = placeholder(N, D), dg.placeholder((N,), "int64")
    loss = dg.nn.sparse_softmax_cross_entropy(x * 2.0, labels)
    assert kinds(fused([loss], [x, labels])) == [["Mul", "SparseSoftmaxCrossEntropyWithLogits"]]


# -- for every program -------------------------------------------------------------------------------------------


def random_programs(max_nodes: int = 25) -> st.SearchStrategy[RandomGraph]:
    return st.composite(lambda draw: random_graph(lambda o: draw(st.sampled_from(o)), ALL, max_nodes))()


def program_of(graph: RandomGraph) -> Program:
    with dg.Graph():
        leaves = [dg.placeholder(shape, "float32") for shape in graph.leaves]
        values = build(graph, leaves)
        loss = [dg.sum(values[v]) for v in graph.ends]
        grads = [g for g in dg.gradients(loss, leaves) if isinstance(g, dg.Tensor)]
        return lower([*[values[v] for v in graph.ends], *grads], leaves)


def flat(program: Program) -> list[Step]:
    return [inner for step in program.steps for inner in step.body or (step,)]


def bare(step: Step) -> Any:
    return step.type, step.inputs, step.outputs


@settings(deadline=None, max_examples=60, derandomize=True)
@given(random_programs())
def test_every_step_is_there_once(graph: RandomGraph) -> None:
    program = program_of(graph)
    with tiny_blocks():
        made = fuse(program)
    assert Counter(map(bare_key, flat(made))) == Counter(map(bare_key, program.steps))


def bare_key(step: Step) -> str:
    return repr(bare(step))


@settings(deadline=None, max_examples=60, derandomize=True)
@given(random_programs())
def test_a_group_has_one_device_and_shapes_that_fit_its_space(graph: RandomGraph) -> None:
    with tiny_blocks():
        made = fuse(program_of(graph))
        for group in groups(made):
            parts = [role(step, made.types) for step in group.body]
            assert {part.space for part in parts if part} == {group.attrs["space"]}
            assert 0 < group.attrs["split"] <= min(part.split for part in parts if part)


@settings(deadline=None, max_examples=30, derandomize=True)
@given(random_programs(), st.randoms(use_true_random=False))
def test_barriers_hold_after_fusing(graph: RandomGraph, random: Any) -> None:
    """Some steps wait for some that come before them: each still comes after all of those."""
    program = program_of(graph)
    steps = [waiting(step, i, random) for i, step in enumerate(program.steps)]
    before = check_program(Program(**{**fields(program), "steps": tuple(steps)}))
    with tiny_blocks():
        made = check_program(fuse(before))
    place = {v: i for i, step in enumerate(made.steps) for inner in step.body or (step,) for v in inner.outputs}
    for step in before.steps:
        for j in step.after:
            assert place[before.steps[j].outputs[0]] < place[step.outputs[0]]
    assert all(max(step.after, default=-1) < i for i, step in enumerate(made.steps))


def waiting(step: Step, i: int, random: Any) -> Step:
    after = tuple(sorted({random.randrange(i) for _ in range(2)})) if i and random.random() < 0.2 else ()
    return Step(step.type, step.inputs, step.outputs, step.attrs, after, step.source, step.name, step.device)


def fields(program: Program) -> dict[str, Any]:
    return {name: getattr(program, name) for name in program.__dataclass_fields__}


# -- time --------------------------------------------------------------------------------------------------------


def calls_during(run: Any) -> int:
    """How many Python functions are called."""
    count = 0

    def note(frame: FrameType, event: str, _: Any) -> None:
        nonlocal count
        count += event == "call"

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(before)
    return count


def chain(length: int, types: Sequence[str]) -> Program:
    steps = Steps((64, 64))
    at = steps.given()
    for i in range(length):
        at = steps.add(types[i % len(types)], *[at] * (2 if types[i % len(types)] in ("MatMul", "Add") else 1))
    return steps.program(at)


@pytest.mark.parametrize("types", [["Tanh"], ["Tanh", "Exp", "MatMul"], ["Tanh", "Add"]], ids=str)
def test_fusing_takes_time_linear_in_the_steps(types: list[str]) -> None:
    short, long = chain(500, types), chain(2000, types)
    assert calls_during(lambda: fuse(long)) < 4.4 * calls_during(lambda: fuse(short))


def test_groups_that_are_joined_again_and_again_take_linear_time() -> None:
    """Many chains that meet: a binary tree of sums, whose groups are taken over level by level."""

    def tree(leaves: int) -> Program:
        steps = Steps((64, 64))
        level = [steps.add("Tanh", steps.given()) for _ in range(leaves)]
        while len(level) > 1:
            level = [steps.add("Add", *level[i : i + 2]) for i in range(0, len(level), 2)]
        return steps.program(level[0])

    short, long = tree(128), tree(1024)
    assert calls_during(lambda: fuse(long)) < 10 * calls_during(lambda: fuse(short))
    sizes = [len(g.body) for g in groups(fuse(long))]
    assert sum(sizes) > 2000
    assert max(sizes) <= MANY
