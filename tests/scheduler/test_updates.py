"""Which updates form a group, which of them are made in place, and what `check_updates` refuses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import distgrad as dg
from distgrad.scheduler import updates as reasons
from distgrad.scheduler.passes.updates import MOST, updates
from distgrad.scheduler.program import FUSED, Program, Step, lower
from distgrad.scheduler.updates import Updates, check_updates, first_phase, second_phase

SHAPE = (64, 64)


def variable(name: str, shape: tuple[int, ...] = SHAPE) -> dg.Variable:
    return dg.Variable(np.ones(shape, np.float32), name=name)


def program_of(build: Callable[[Any], Any]) -> Program:
    """The program of a function of one array, whose results are fetched, with its updates grouped."""
    with dg.Graph():
        x = dg.placeholder(SHAPE, np.float32)
        made = build(x)
        fetches = [] if made is None else [made]
        assigns = [op for op in x.graph.ops if op.type == "Assign"]
    return updates(lower(fetches, [x], assigns))


def only(assigned: Any) -> None:
    """Nothing is fetched."""


def names(keys: Any) -> list[str]:
    return sorted(key.rpartition("#")[0] for key in keys)


def found(build: Callable[[Any], Any], has_code: Callable[[Step], bool] = lambda step: True) -> Updates:
    program = program_of(build)
    return check_updates(program, second_phase(program, "", has_code))


def why(build: Callable[[Any], Any], name: str = "a") -> str:
    return {key.rpartition("#")[0]: reason for key, reason in found(build).two_versions}[name]


def adam(p: dg.Variable, m: dg.Variable, v: dg.Variable, g: Any) -> None:
    m.assign(0.9 * m + 0.1 * g)
    v.assign(0.99 * v + 0.01 * g * g)
    p.assign_sub(0.01 * m / (np.sqrt(v) + 1e-8))


# -- groups ------------------------------------------------------------------------------------------------------------


def test_adam_is_one_step_that_reads_every_array_once() -> None:
    p, m, v = map(variable, "pmv")
    program = program_of(lambda x: adam(p, m, v, x @ x))
    (fused,) = [step for step in program.steps if step.type == FUSED]
    assert len(fused.outputs) == 3
    assert sum(program.types[u].shape == SHAPE for u in fused.inputs) == 4


def test_parameters_that_share_only_the_rate_are_in_groups_of_their_own() -> None:
    a, b = variable("a"), variable("b")

    def build(x: Any) -> None:
        rate = dg.sum(x)
        a.assign_sub(rate * (x @ x))
        b.assign_sub(rate * (x @ x.T))

    assert len(found(build).steps) == 2


def test_variables_moved_by_the_same_array_are_moved_in_one_sweep() -> None:
    a, b = variable("a"), variable("b")

    def build(x: Any) -> None:
        g = x @ x
        a.assign_add(g)
        b.assign_sub(g)

    assert len(found(build).steps) == 1


def test_a_group_of_more_steps_than_compile_quickly_is_left_to_fusion() -> None:
    a = variable("a")

    def build(x: Any) -> None:
        y = x @ x
        for i in range(MOST + 1):
            y = y * (i + 2.0) + x
        a.assign_add(y)

    assert all(step.type != FUSED for step in program_of(build).steps)


def test_a_step_that_a_result_needs_is_in_the_first_phase() -> None:
    """x @ x -> tanh -> a, and tanh -> sum: the update alone comes later."""
    a = variable("a")

    def build(x: Any) -> Any:
        y = np.tanh(x @ x)
        a.assign_add(y)
        return dg.sum(y)

    program = program_of(build)
    (last,) = found(build).steps
    assert [inner.type for inner in program.steps[last].body] == ["Add"]


def test_arrays_that_are_added_first_do_not_all_live_until_the_second_phase() -> None:
    a = variable("a")

    def build(x: Any) -> None:
        a.assign_sub(0.1 * (x @ x + x @ x.T))

    (last,) = found(build).steps
    program = program_of(build)
    assert sum(program.types[v].shape == SHAPE for v in program.steps[last].inputs) == 2


# -- in place or not ---------------------------------------------------------------------------------------------------


def test_parameter_and_moments_are_updated_in_place() -> None:
    p, m, v = map(variable, "pmv")
    made = found(lambda x: adam(p, m, v, x))
    assert (names(made.in_place), made.two_versions) == (["m", "p", "v"], ())


def test_a_new_value_that_is_fetched_keeps_two_versions() -> None:
    a = variable("a")
    assert why(lambda x: a.assign_add(x)) == reasons.FETCHED


def test_a_new_value_that_the_call_computes_with_keeps_two_versions() -> None:
    a = variable("a")
    assert why(lambda x: a.assign_add(x) @ x) == reasons.NOT_ELEMENTWISE  # a step of its own, in the first phase


def test_a_value_assigned_to_two_variables_keeps_two_versions() -> None:
    a, b = variable("a"), variable("b")

    def build(x: Any) -> None:
        b.assign(a.assign_add(x))

    assert set(dict(found(build).two_versions).values()) <= {reasons.TWICE, reasons.NOT_ELEMENTWISE}


def test_an_assignment_that_does_not_read_the_old_value_keeps_two_versions() -> None:
    a = variable("a")
    assert why(lambda x: only(a.assign(np.tanh(x)))) == reasons.NOT_ELEMENTWISE


def test_a_small_variable_keeps_two_versions() -> None:
    a = variable("a", (3,))
    assert why(lambda x: only(a.assign_add(dg.sum(x, axis=0)[:3]))) == reasons.TOO_SMALL


def test_an_old_value_that_another_update_reads_keeps_two_versions() -> None:
    """The row is broadcast to another shape, so that the two updates are not one sweep."""
    a, b = variable("a", (4096,)), variable("b", (2, 4096))

    def build(x: Any) -> None:
        old = a.read()
        a.assign_add(dg.reshape(x, (4096,)))
        b.assign(b * old)

    made = found(build)
    assert (names(made.in_place), made.two_versions[0][1]) == (["b"], reasons.READ)


def test_a_view_of_the_old_value_in_its_own_update_keeps_two_versions() -> None:
    a = variable("a")
    assert why(lambda x: only(a.assign_add(dg.transpose(a.read()) * x))) == reasons.READ


def test_an_update_with_a_users_op_keeps_two_versions() -> None:
    a = variable("a")
    assert why(lambda x: only(a.assign(halved(a)))) == reasons.NOT_ELEMENTWISE


@dg.op("HalvedForUpdates", infer=lambda x: (x.shape, x.dtype))
def halved(x: Any) -> Any:
    return x / 2


def test_an_update_without_native_code_keeps_two_versions() -> None:
    a = variable("a")
    made = found(lambda x: only(a.assign_add(x)), has_code=lambda step: False)
    assert (made.steps, [w for _, w in made.two_versions]) == ((), [reasons.NO_CODE])


def test_a_reason_against_the_phase_is_that_of_every_variable() -> None:
    a = variable("a")
    program = program_of(lambda x: only(a.assign_add(x)))
    assert [w for _, w in second_phase(program, "no", lambda step: True).two_versions] == ["no"]


def test_the_first_phase_gives_what_the_second_one_reads() -> None:
    a = variable("a")
    program = program_of(lambda x: only(a.assign_sub(0.1 * (x @ x))))
    made = second_phase(program, "", lambda step: True)
    steps, gives = first_phase(program, made, range(len(program.steps)), [v for _, v in program.writes])
    product = next(step.outputs[0] for step in program.steps if step.type == "MatMul")
    assert set(made.steps).isdisjoint(steps)
    assert product in gives


# -- the checker -------------------------------------------------------------------------------------------------------


def broken(name: str) -> tuple[Program, Updates]:
    a, b = variable("a"), variable("b")

    def build(x: Any) -> None:
        a.assign_sub(0.1 * (x @ x))
        b.assign_sub(0.1 * (x @ x.T))

    program = program_of(build)
    good = second_phase(program, "", lambda step: True)
    one, other = (program.steps[i] for i in good.steps)
    reads, steps = dict(program.reads), list(program.steps)
    if name == "a variable is missing":
        return program, replace(good, in_place=good.in_place[:1])
    if name == "not in the second phase":
        return program, replace(good, steps=good.steps[:1])
    if name == "fetched":
        return replace(program, fetches=one.outputs), good
    if name == "not elementwise":
        steps[good.steps[0]] = replace(one, attrs=one.attrs | {"space": (1, *SHAPE)})
        return replace(program, steps=tuple(steps)), good
    assert name == "read by another"
    steps[good.steps[1]] = replace(other, inputs=(*other.inputs, reads[good.in_place[0]]))
    return replace(program, steps=tuple(steps)), good


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a variable is missing", "updates name"),
        ("not in the second phase", "no step of the second phase makes it"),
        ("fetched", "more than variables depends on it"),
        ("not elementwise", "is not elementwise"),
        ("read by another", "another update reads its old value"),
    ],
)
def test_the_checker_refuses(name: str, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        check_updates(*broken(name))


# -- what the plan says ------------------------------------------------------------------------------------------------


def test_a_plan_names_the_variables_and_the_reasons() -> None:
    large, small = variable("large"), variable("small", (3,))

    @dg.function
    def step(x: Any) -> Any:
        large.assign_sub(0.1 * (x @ x))
        small.assign_add(x[0, :3])
        return dg.sum(x)

    with dg.Session(native=True):
        text = step.plan(np.ones(SHAPE, np.float32)).explain()
    assert "updates     in place: large" in text
    assert f"in two versions, because {reasons.TOO_SMALL}: small" in text
    assert "while others hold all variables" in text


@pytest.mark.parametrize(
    ("options", "text"), [({"check_numerics": True}, "check_numerics"), ({"native": False}, "without native code")]
)
def test_a_plan_says_why_nothing_is_updated_in_place(options: Any, text: str) -> None:
    a = variable("a")
    step = dg.function(lambda x: (a.assign_sub(x), dg.sum(x))[1])
    with dg.Session(**options):
        plan = step.plan(np.ones(SHAPE, np.float32))
    assert not plan.updates.steps
    assert text in plan.explain()


def test_the_predicted_peak_in_place_is_below_that_with_all_variables_held() -> None:
    p, m, v = map(variable, "pmv")
    step = dg.function(lambda x: adam(p, m, v, x @ x) or dg.sum(x))
    with dg.Session(native=True):
        predicted = step.plan(np.ones(SHAPE, np.float32)).predictions
    assert predicted.held_peak_bytes - predicted.peak_bytes == 3 * 64 * 64 * 4
