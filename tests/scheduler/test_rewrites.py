"""Peephole rules as tables of programs before and after; and that every bit is preserved."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import distgrad as dg
from distgrad.errors import UNKNOWN
from distgrad.registry import OPS
from distgrad.scheduler.passes import algebra, aliases, constants
from distgrad.scheduler.passes.equal import merge_equal
from distgrad.scheduler.passes.pipeline import Context, improve
from distgrad.scheduler.passes.rewrite import FOLDED_BYTES, Rewriter
from distgrad.scheduler.program import Program, Step, lower
from distgrad.types import Spec
from distgrad.workers import reference

from ..engines import UNFUSED

pytestmark = pytest.mark.usefixtures("graph")

Pass = Callable[[Program], Program]
#: Numbers that an inexact rewrite would change.
X = np.array([[-0.0, 1.5, np.nan], [np.inf, -2.0, 5e-324]])


def evaluate(step: Step, arrays: Sequence[Any], specs: Sequence[Spec]) -> list[Any]:
    return reference.apply(OPS[step.type], arrays, step.attrs, specs)


def alias(program: Program) -> Program:
    return Rewriter(program, [aliases.ALIASES]).run()


def absorbed(program: Program) -> Program:
    return Rewriter(program, [algebra.ALGEBRA]).run()


def folded(program: Program) -> Program:
    return Rewriter(program, [constants.CONSTANTS], evaluate).run()


def optimized(program: Program) -> Program:
    return improve(program, Context(evaluate), UNFUSED)


def kinds(program: Program) -> list[str]:
    return [step.type for step in program.steps]


def assert_same_bits(before: Program, after: Program, *feeds: Any) -> None:
    plain, less = (reference.run(p, feeds, {})[0] for p in (before, after))
    assert [(x.shape, x.dtype, x.tobytes()) for x in less] == [(x.shape, x.dtype, x.tobytes()) for x in plain]


def check(run: Pass, build: Callable[[dg.Tensor], Any], expected: str, feed: Any = X) -> Program:
    """A pass makes these kinds of steps of what is built on x, and no other bits."""
    x = dg.placeholder(feed.shape, feed.dtype)
    made = build(x)
    before = lower(made if isinstance(made, list) else [made], [x])
    after = run(before)
    assert " ".join(kinds(after)) == expected
    assert_same_bits(before, after, feed)
    return after


# -- alias -------------------------------------------------------------------------------------------------------------

ALIASES: list[tuple[Callable[[dg.Tensor], Any], str]] = [
    (lambda x: dg.identity(dg.sin(x)), "Sin"),
    (lambda x: dg.sin(dg.stop_gradient(x)), "Sin"),
    (lambda x: dg.prevent_gradient(dg.identity(x)), ""),
    (lambda x: dg.identity_n([dg.sin(x), x]), "Sin"),
    (lambda x: dg.reshape(dg.sin(x), (2, 3)), "Sin"),
    (lambda x: dg.reshape(x, (3, 2)), "Reshape"),
    (lambda x: dg.transpose(dg.sin(x), (0, 1)), "Sin"),
    (lambda x: dg.transpose(x), "Transpose"),
    (lambda x: dg.cast(dg.sin(x), "float64", name="same"), "Sin"),
    (lambda x: dg.cast(x, "float32"), "Cast"),
    (lambda x: dg.broadcast_to(x, (2, 3)), ""),
    (lambda x: dg.broadcast_to(x, (1, 2, 3)), "BroadcastTo"),
    (lambda x: dg.add_n([dg.sin(x)]), "Sin"),
    (lambda x: dg.concatenate([dg.sin(x)], 1), "Sin"),
    (lambda x: x[:, :], ""),
    (lambda x: x[:, ::-1], "StridedSlice"),
    (lambda x: x[:, None], "StridedSlice"),
    (lambda x: dg.max(dg.reshape(x, (2, 1, 3)), axis=1), "Reshape Reshape"),
    (lambda x: dg.min(dg.reshape(x, (2, 1, 3)), axis=1, keepdims=True), "Reshape"),
    (lambda x: dg.max(x, axis=1), "Max"),
]


@pytest.mark.parametrize(("build", "expected"), ALIASES)
def test_alias_drops_what_only_passes_on(build: Any, expected: str) -> None:
    check(alias, build, expected)


@pytest.mark.parametrize(("dtype", "expected"), [("int64", "Reshape Reshape"), ("float64", "Reshape Sum")])
def test_a_sum_over_one_element_is_a_reshape_where_minus_zero_is_no_number(dtype: str, expected: str) -> None:
    feed = np.array([[-0.0], [2.0]]).astype(dtype)
    check(alias, lambda x: dg.sum(dg.reshape(x, (2, 1, 1)), axis=1), expected, feed)


def test_a_copy_of_what_does_not_lie_row_by_row_stays() -> None:
    check(alias, lambda x: dg.cast(dg.transpose(x), "float64", name="copy"), "Transpose Cast")


def test_what_is_fetched_may_be_what_was_fed() -> None:
    program = check(alias, lambda x: dg.identity(x), "")
    assert program.fetches == program.feeds


def test_what_waits_for_an_identity_waits_for_what_made_its_value() -> None:
    """exp -> identity <~ y"""
    x = dg.placeholder(())
    with dg.control_dependencies([dg.identity(dg.exp(x))]):
        y = dg.sin(x)
    program = alias(lower([y], [x]))
    assert [(step.type, step.after) for step in program.steps] == [("Exp", ()), ("Sin", (0,))]


def test_what_waits_for_an_identity_of_an_input_goes_on_waiting() -> None:
    """x -> identity <~ y: without the identity there would be nothing to wait for"""
    x = dg.placeholder(())
    with dg.control_dependencies([dg.identity(x)]):
        y = dg.sin(x)
    assert [(s.type, s.after) for s in optimized(lower([y], [x])).steps] == [("Identity", ()), ("Sin", (0,))]


def test_an_identity_that_waits_stays() -> None:
    """a <~ gate <~ identity(x)"""
    x = dg.placeholder(())
    gated = dg.tuple([x, dg.exp(x)])
    program = optimized(lower(gated, [x]))
    assert kinds(program) == ["Exp", "NoOp", "Identity", "Identity"]
    assert [step.after for step in program.steps] == [(), (0,), (1,), (1,)]


def test_places_are_counted_anew_behind_what_is_dropped() -> None:
    x = dg.placeholder(())
    a = dg.exp(dg.identity(dg.identity(x)), name="a")
    with dg.control_dependencies([a]):
        y = dg.sin(dg.identity(x), name="y")
    z = dg.cos(y, name="z")
    program = alias(lower([z], [x]))
    assert [step.name for step in program.steps] == ["a", "Identity_2", "y", "z"]
    assert [step.after for step in program.steps] == [(), (0,), (0,), ()]


# -- fold --------------------------------------------------------------------------------------------------------------

HALF = np.array([[0.5], [2.0]])
FOLDS: list[tuple[Callable[[dg.Tensor], Any], str]] = [
    (lambda x: dg.exp(dg.constant([1.0, 2.0])), "Const"),
    (lambda x: x + dg.exp(dg.constant(HALF)) * 2, "Const Add"),
    (lambda x: dg.split(dg.constant([1.0, 2.0]), 2)[1] * x, "Const Mul"),
    (lambda x: dg.constant(X).T, "Const"),
    (lambda x: x * dg.ones((2, 3)), ""),
    (lambda x: dg.ones((2, 3)) * dg.sin(x), "Sin"),
    (lambda x: dg.sin(x) / dg.ones((2, 3)), "Sin"),
    (lambda x: dg.ones((2, 3)) / x, "Const Div"),
    (lambda x: x[:1] * dg.ones((2, 3)), "StridedSlice Fill Mul"),
    (lambda x: x * dg.full((2, 3), 0.5), "Const Mul"),
    (lambda x: x + dg.zeros((2, 3)), "Const Add"),
    (lambda x: dg.where(x > 0, x, dg.zeros((2, 3))), "Const Greater Const Select"),
    (lambda x: x + dg.broadcast_to(x[0], (2, 3)), "StridedSlice Add"),
    (lambda x: dg.power(x, dg.broadcast_to(x[:, :1], (2, 3))), "StridedSlice Pow"),
    (lambda x: dg.power(x, dg.full((2, 3), 3.0)), "Fill Pow"),
    (lambda x: dg.broadcast_to(x[0], (2, 3)) * dg.broadcast_to(x[:, :1], (2, 3)),
     "StridedSlice StridedSlice BroadcastTo Mul"),
    (lambda x: -(dg.full((2, 3), 2.0) * 0.25), "Fill"),
    (lambda x: dg.full((2, 3), 0.0) / dg.full((2, 3), 0.0), "Fill Const Div"),
    (lambda x: dg.reshape(dg.ones((200, 3)), (3, 200)), "Fill"),
    (lambda x: dg.zeros_like(dg.exp(x)) * x, "Const Mul"),
    (lambda x: dg.ones_like(dg.exp(x)) * x, ""),
    (lambda x: dg.zeros_like(dg.transpose(x)), "Transpose ZerosLike"),
    (lambda x: [dg.size(x), dg.rank(dg.exp(x)), dg.shape(dg.exp(x))], "Const Const Const"),
    (lambda x: dg.sum(dg.broadcast_to(dg.constant(2.0), (2, 3))) * x, "Const BroadcastTo Sum Mul"),
]  # fmt: skip


@pytest.mark.parametrize(("build", "expected"), FOLDS)
def test_fold_computes_what_is_known(build: Any, expected: str) -> None:
    check(folded, build, expected)


@pytest.mark.parametrize("dtype", ["float16", "float32", "int32", "complex64"])
def test_numbers_keep_the_dtype(dtype: str) -> None:
    feed = np.array([[1, 2, 3]]).astype(dtype)
    check(folded, lambda x: x + dg.full((1, 3), 2, dtype), "Const Add", feed)


def test_one_times_a_complex_number_is_computed() -> None:
    """inf * 1 is inf + nan i"""
    check(folded, lambda x: x * dg.ones((1,), "complex128"), "Const Mul", np.array([complex(np.inf, 1)]))


def test_an_array_of_one_number_stays_beside_one_that_does_not_lie_row_by_row() -> None:
    check(folded, lambda x: dg.transpose(x) * dg.full((3, 2), 0.5), "Transpose Fill Mul")


def test_a_value_that_is_larger_than_it_is_worth_is_not_folded() -> None:
    n = FOLDED_BYTES // 8
    check(folded, lambda x: dg.exp(dg.constant(np.zeros(n))), "Const Exp")
    key = dg.random.key(1)
    check(folded, lambda x: dg.random.normal(key, (n + 1,)), "Const StatelessRandomNormal")


def test_a_large_constant_is_laid_out_otherwise_once() -> None:
    large = np.zeros((FOLDED_BYTES // 8, 2))
    check(folded, lambda x: dg.cast(dg.transpose(dg.constant(large)), "float32"), "Const")
    check(folded, lambda x: dg.exp(dg.constant(large)), "Const Exp")


def test_what_would_lie_otherwise_after_a_journey_is_not_folded() -> None:
    check(folded, lambda x: dg.constant(X)[:, ::2], "Const StridedSlice")


def test_a_users_own_op_is_not_folded() -> None:
    calls = []

    @dg.op("TestFoldedOp", infer=lambda x: (x.shape, x.dtype), override=True)
    def mine(x: Any) -> Any:
        calls.append(x)
        return x

    assert kinds(folded(lower([mine(dg.constant(1.0))]))) == ["Const", "TestFoldedOp"]
    assert calls == []


def test_what_cannot_be_computed_fails_in_the_run() -> None:
    x = dg.constant(np.zeros((2, 2)))
    program = folded(lower([dg.linalg.inv(x)]))
    assert kinds(program) == ["Const", "MatrixInverse"]
    with pytest.raises(np.linalg.LinAlgError):
        reference.run(program, [], {})


def test_a_constant_that_waits_is_not_known_before() -> None:
    x = dg.placeholder(())
    with dg.control_dependencies([dg.exp(x)]):
        late = dg.constant(2.0)
    assert kinds(optimized(lower([late * 3], [x]))) == ["Exp", "Const", "Const", "Mul"]


def test_what_waits_for_a_folded_step_goes_on_waiting() -> None:
    x = dg.placeholder(())
    with dg.control_dependencies([dg.exp(dg.constant(1.0))]):
        y = dg.sin(x)
    program = optimized(lower([y], [x]))
    assert [(step.type, step.after) for step in program.steps] == [("Const", ()), ("Sin", (0,))]


def test_an_op_that_runs_for_its_own_sake_stays() -> None:
    """fetched as an operation: nobody reads what it makes"""
    x = dg.placeholder((2,))
    y = dg.sin(dg.identity(x))
    program = optimized(lower([dg.ones_like(y)], [x], [dg.cos(dg.identity(x)).op]))
    assert kinds(program) == ["Fill", "Cos"]


# -- absorbed ----------------------------------------------------------------------------------------------------------

SIMPLER: list[tuple[Callable[[dg.Tensor], Any], str]] = [
    (lambda x: dg.negative(dg.negative(x)), ""),
    (lambda x: dg.negative(dg.negative(dg.transpose(x))), "Transpose Neg Neg"),
    (lambda x: dg.reshape(dg.reshape(x, (3, 2)), (6,)), "Reshape"),
    (lambda x: dg.reshape(dg.reshape(dg.transpose(x), (6,)), (2, 3)), "Transpose Reshape Reshape"),
    (lambda x: dg.transpose(dg.transpose(x)), ""),
    (lambda x: dg.transpose(dg.transpose(dg.reshape(x, (1, 2, 3))), (1, 0, 2)), "Reshape Transpose"),
    (lambda x: dg.concatenate(dg.split(x, 3, axis=1), axis=1), ""),
    (lambda x: dg.concatenate(dg.split(x, 3, axis=1)[::-1], axis=1), "Split Concat"),
    (lambda x: dg.concatenate(dg.split(x, 2, axis=0), axis=1), "Split Concat"),
    (lambda x: dg.stack(dg.unstack(x, axis=1), axis=1), ""),
    (lambda x: dg.stack(dg.unstack(x, axis=1), axis=0), "Unstack Stack"),
    (lambda x: dg.where(dg.constant(True), dg.sin(x), x), "Sin"),
    (lambda x: dg.where(dg.zeros((2, 3), bool), x, dg.sin(x)), "Sin"),
    (lambda x: dg.where(dg.constant(True), x[0], x), "Const StridedSlice Select"),
    (lambda x: dg.transpose(x) @ x, "MatMul"),
    (lambda x: dg.matmul(dg.transpose(x), dg.transpose(x), transpose_a=True), "MatMul"),
]


@pytest.mark.parametrize(("build", "expected"), SIMPLER)
def test_simplify_lets_steps_absorb_each_other(build: Any, expected: str) -> None:
    check(absorbed, build, expected)


# The sign of a NaN is all that may change.
SIGNED = np.array([[-0.0, 1.5, 0.0], [np.inf, -2.0, 5e-324]])
SIGNS: list[tuple[Callable[[dg.Tensor], Any], str]] = [
    (lambda x: x * x, "Square"),
    (lambda x: dg.negative(x) * dg.negative(dg.exp(x)), "Exp Mul"),
    (lambda x: dg.negative(x) / dg.negative(dg.exp(x)), "Exp Div"),
    (lambda x: dg.negative(x) * x, "Square Neg"),
    (lambda x: x * dg.negative(x), "Square Neg"),
    (lambda x: dg.negative(x) * dg.negative(x), "Square"),
    (lambda x: dg.negative(x) / x, "Neg Div"),
    (lambda x: dg.exp(x) + dg.negative(x), "Exp Sub"),
    (lambda x: dg.negative(x) + dg.exp(x), "Exp Sub"),
    (lambda x: dg.exp(x) - dg.negative(x), "Exp Add"),
    (lambda x: dg.negative(x) - dg.exp(x), "Neg Exp Sub"),
    (lambda x: dg.negative(x) + dg.negative(dg.exp(x)), "Neg Exp Sub"),
    (lambda x: dg.exp(x) + dg.negative(dg.transpose(x)).reshape(2, 3), "Exp Transpose Neg Reshape Add"),
    (lambda x: dg.negative(t := dg.transpose(x)) * t, "Transpose Neg Mul"),
]


@pytest.mark.parametrize(("build", "expected"), SIGNS)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_signs_are_taken_out_where_no_bit_depends_on_them(build: Any, expected: str, dtype: str) -> None:
    check(absorbed, build, expected, SIGNED.astype(dtype))


@pytest.mark.parametrize("dtype", ["int32", "uint8"])
def test_signs_of_integers_are_taken_out_too(dtype: str) -> None:
    check(absorbed, lambda x: [dg.negative(x) * x, x + dg.negative(x)], "Square Neg Sub", np.array([0, 3, 200], dtype))


def test_signs_of_complex_numbers_stay() -> None:
    """-(a - a) is not -a + a: their zeros have different signs."""
    check(absorbed, lambda x: dg.negative(x) * x, "Neg Mul", np.array([1 + 1j, 2 - 0j]))


PRODUCTS: list[tuple[Callable[[dg.Tensor, dg.Tensor], Any], str]] = [
    (lambda x, y: [x * y, dg.negative(x) * y], "Mul Neg"),
    (lambda x, y: [x * y, y * dg.negative(x)], "Mul Neg"),
    (lambda x, y: [x * y, x * y, dg.negative(x) * y, x * dg.negative(y)], "Mul Neg"),
    (lambda x, y: [x * y, dg.negative(x) * y, dg.negative(x)], "Mul Neg Neg"),
    (lambda x, y: [dg.negative(x) * y, x * y], "Neg Mul Mul"),
    (lambda x, y: [x * dg.sin(y), dg.negative(x) * y], "Sin Mul Neg Mul"),
]


@pytest.mark.parametrize(("build", "expected"), PRODUCTS)
def test_a_product_that_is_there_but_for_its_sign_is_computed_once(build: Any, expected: str) -> None:
    x, y = dg.placeholder((2, 3), "float64"), dg.placeholder((2, 3), "float64")
    before = lower(build(x, y), [x, y])
    after = merge_equal(before)
    assert " ".join(kinds(after)) == expected
    assert_same_bits(before, after, SIGNED, SIGNED[:, ::-1].copy())


def test_a_complex_product_that_is_there_but_for_its_sign_is_computed_twice() -> None:
    x, y = dg.placeholder((1,), "complex64"), dg.placeholder((1,), "complex64")
    before = lower([x * y, dg.negative(x) * y], [x, y])
    after = merge_equal(before)
    assert kinds(after) == ["Mul", "Neg", "Mul"]
    one = np.array([1 + 1j], "complex64")
    assert_same_bits(before, after, one, one)


def test_a_negation_that_waits_goes_on_waiting() -> None:
    x, y = dg.placeholder((2, 3)), dg.placeholder((2, 3))
    first, product = dg.exp(x), x * y
    with dg.control_dependencies([first]):
        negative = dg.negative(x)
    after = merge_equal(lower([first, product, negative * y], [x, y]))
    assert kinds(after) == ["Exp", "Mul", "Neg", "Mul"]
    assert [step.after for step in after.steps] == [(), (), (0,), ()]


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64"])
@pytest.mark.parametrize("shape", [(3, 5), (64, 96), (1, 40), (2, 3, 5), (2, 2, 33, 17)])
def test_a_transpose_into_a_matmul_keeps_every_bit(shape: tuple[int, ...], dtype: str) -> None:
    rng = np.random.default_rng(0)
    feed = rng.standard_normal(shape).astype(dtype)
    swap = (*range(len(shape) - 2), len(shape) - 1, len(shape) - 2)
    check(absorbed, lambda x: [dg.transpose(x, swap) @ x, x @ dg.transpose(x, swap)], "MatMul MatMul", feed)


def test_the_transpose_of_a_batch_that_meets_one_matrix_stays() -> None:
    """Transposed by a flag, it would be multiplied matrix by matrix instead of as one."""
    feed = np.random.default_rng(0).standard_normal((4, 3, 5))
    check(absorbed, lambda x: dg.transpose(x, (0, 2, 1)) @ x[0], "Transpose StridedSlice MatMul", feed)
    check(absorbed, lambda x: x @ dg.transpose(x[0]), "StridedSlice MatMul", feed)


# -- programs as they are ----------------------------------------------------------------------------------------------


def test_a_program_without_anything_to_rewrite_is_given_back() -> None:
    x = dg.placeholder((2,))
    program = lower([dg.sin(x) * x], [x])
    assert all(run(program) is program for run in (alias, folded, absorbed, optimized))


def test_what_is_written_is_what_the_steps_left_make() -> None:
    step = Step("Identity", (0,), (1,), {}, (), UNKNOWN, "same")
    program = Program((step,), (Spec((), np.dtype(float)),) * 2, (), (), (("v", 0),), (("w", 1),))
    assert alias(program) == replace(program, steps=(), writes=(("w", 0),))
