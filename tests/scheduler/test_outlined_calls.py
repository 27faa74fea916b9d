"""Outlined calls: planned once per body, with the same bits as inlined ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import distgrad as dg
from distgrad.run import planner
from distgrad.run.planner import evaluate
from distgrad.scheduler.digest import program_digest
from distgrad.scheduler.outlined_calls import all_steps, has_outlined_calls
from distgrad.scheduler.partition.partition import partition
from distgrad.scheduler.passes.calls import expanded_program
from distgrad.scheduler.passes.pipeline import Context, improve
from distgrad.scheduler.program import CALL, LONG_BODY, MANY_CALLS, Inner, Program, lower
from distgrad.workers import reference

from ..step_graphs import this_process

RNG = np.random.default_rng(0)
WEIGHTS = {f"w{i}": RNG.normal(size=(8, 8)) for i in range(6)}
ROWS = RNG.normal(size=(2 * MANY_CALLS, 8))


def loss(weights: Any, x: Any) -> Any:
    for w in weights.values():
        x = dg.nn.layer_norm(dg.tanh(x @ w), axis=-1)
    return dg.mean(x * x)


def towers(shards: int) -> Any:
    return dg.data_parallel(dg.value_and_grad(loss), shards=shards)


def program(f: Any, *args: Any) -> tuple[Program, list[Any]]:
    traced, values = f.prepared(*args)
    return lower(traced.body.outputs, traced.body.declared, traced.body.effects), values


def calls(p: Program) -> int:
    return sum(step.type == CALL for step in p.steps)


def test_a_long_body_that_is_called_often_is_one_step_per_call() -> None:
    made, _ = program(towers(MANY_CALLS), WEIGHTS, ROWS)
    assert calls(made) == MANY_CALLS
    assert len({step.attrs["inner"] for step in made.steps if step.type == CALL}) == 1


def test_a_body_that_is_called_a_few_times_is_laid_out() -> None:
    assert not has_outlined_calls(program(towers(MANY_CALLS - 1), WEIGHTS, ROWS)[0])


def test_a_short_body_is_laid_out() -> None:
    short = dg.data_parallel(lambda x: dg.sum(dg.exp(x)), shards=MANY_CALLS)
    made, _ = program(short, ROWS)
    assert not has_outlined_calls(made)
    assert len([step for step in made.steps if step.type == "Exp"]) == MANY_CALLS < LONG_BODY


def test_outputs_that_nobody_reads_are_not_computed() -> None:
    @dg.function
    def value_alone(weights: Any, x: Any) -> Any:
        return towers(MANY_CALLS)(weights, x)[0]

    made, _ = program(value_alone, WEIGHTS, ROWS)
    assert all(step.type != "LayerNormGrad" for step in all_steps(made.steps))


def test_a_body_on_a_device_is_laid_out() -> None:
    def placed(x: Any) -> Any:
        with dg.device("worker:0"):
            for _ in range(LONG_BODY):
                x = dg.exp(dg.sin(x))
        return dg.sum(x)

    assert not has_outlined_calls(program(dg.data_parallel(placed, shards=MANY_CALLS), ROWS)[0])


def test_bits_are_those_of_the_program_laid_out() -> None:
    made, values = program(towers(MANY_CALLS), WEIGHTS, ROWS)
    whole = improve(made, Context(evaluate))
    found, _ = reference.run(whole, values, {})
    flat, _ = reference.run(expanded_program(whole), values, {})
    once, _ = reference.run(made, values, {})
    assert has_outlined_calls(whole)
    assert not has_outlined_calls(expanded_program(whole))
    for a, b, c in zip(found, flat, once, strict=True):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_allclose(a, c, rtol=1e-12)


@pytest.mark.parametrize("granularity", [None, 1e-7])
def test_the_engine_gives_the_bits_of_the_reference(granularity: float | None) -> None:
    f = towers(MANY_CALLS)
    made, values = program(f, WEIGHTS, ROWS)
    expected, _ = reference.run(improve(made, Context(evaluate)), values, {})
    with dg.Session(threads=2, cpus_per_task=1, granularity=granularity, cluster=this_process()):
        value, slopes = f(WEIGHTS, ROWS)
    for a, b in zip([value, *slopes.values()], expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-14)  # fused layer norm reorders
    with dg.Session(threads=1):
        again, others = f(WEIGHTS, ROWS)
    assert again == value
    for name, slope in slopes.items():
        np.testing.assert_array_equal(slope, others[name])


def test_where_calls_are_too_large_for_the_budget_they_are_laid_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def cut(p: Program, *rest: Any) -> Any:
        if has_outlined_calls(p):
            raise dg.BudgetError("no call fits")
        return partition(p, *rest)

    monkeypatch.setattr(planner, "partition", cut)
    with dg.Session(threads=1, memory="1 GiB"):
        plan = towers(MANY_CALLS).plan(WEIGHTS, ROWS)
    assert not has_outlined_calls(plan.program)
    assert len(plan.program.steps) > MANY_CALLS * LONG_BODY / 4


def test_an_error_inside_a_call_names_the_users_line() -> None:
    @dg.op("StampFails", override=True)
    def fails(x: Any) -> Any:
        if x.any():
            raise ArithmeticError("no such number")
        return x

    def long(x: Any) -> Any:
        for _ in range(LONG_BODY):
            x = dg.sin(x)
        return dg.sum(fails(x))  # here

    with pytest.raises(ArithmeticError, match="no such number") as info:
        dg.data_parallel(long, shards=MANY_CALLS)(ROWS)
    (note,) = info.value.__notes__
    assert "StampFails" in note
    assert "test_outlined_calls.py:" in note


def test_check_numerics_names_the_op_inside_of_a_call() -> None:
    def long(x: Any) -> Any:
        for _ in range(LONG_BODY):
            x = dg.sin(x)
        return dg.sum(dg.log(x - 2.0))

    expected = r"type Log, at test_outlined_calls\.py:"
    with pytest.raises(dg.NumericsError, match=expected), dg.Session(check_numerics=True):
        dg.data_parallel(long, shards=MANY_CALLS)(ROWS)


def test_digests_do_not_depend_on_where_the_class_of_inner_programs_is_defined(monkeypatch: pytest.MonkeyPatch) -> None:
    made, _ = program(towers(MANY_CALLS), WEIGHTS, ROWS)
    before = program_digest(made)
    monkeypatch.setattr(Inner, "__module__", "somewhere.else")
    assert program_digest(made) == before
