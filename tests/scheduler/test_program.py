"""Lowering: pruning, inlining of calls, order of steps; and the checker of programs."""

from __future__ import annotations

import dataclasses
import gc
import pickle
from collections.abc import Callable

import numpy as np
import pytest

import distgrad as dg
from distgrad.errors import UNKNOWN
from distgrad.scheduler.program import Program, Step, check_program, lower
from distgrad.types import Spec
from distgrad.workers import reference

F = np.dtype("float64")


def kinds(program: Program) -> list[str]:
    return [step.type for step in program.steps]


def step_named(program: Program, name: str) -> int:
    (found,) = [i for i, step in enumerate(program.steps) if step.name == name]
    return found


# -- pruning -----------------------------------------------------------------------------------------------------


def test_only_what_is_fetched_is_kept() -> None:
    with dg.Graph():
        x = dg.placeholder(())
        y = dg.exp(x)
        dg.log(y)
    program = lower([y], [x])
    assert kinds(program) == ["Exp"]
    assert program.types == (Spec((), F), Spec((), F))
    assert (program.feeds, program.fetches) == ((0,), (1,))


def test_nothing_behind_a_fed_tensor_is_kept() -> None:
    """x -> a (fed) -> y"""
    with dg.Graph():
        x = dg.placeholder(())
        a = dg.exp(x)
        y = dg.log(a)
    assert kinds(lower([y], [a])) == ["Log"]
    assert lower([a], [a]).steps == ()


def test_steps_keep_the_order_of_creation_whatever_the_order_of_fetches() -> None:
    with dg.Graph():
        x = dg.placeholder(())
        a, b = dg.exp(x), dg.sin(x)
    assert kinds(lower([b, a], [x])) == ["Exp", "Sin"]
    assert lower([b, a], [x]).fetches == (2, 1)


def test_a_step_has_the_line_name_device_and_attributes_of_its_op() -> None:
    with dg.Graph(), dg.device("gpu"):
        x = dg.placeholder(())
        y = dg.cast(x, "float32", name="y")
    (step,) = lower([y], [x]).steps
    assert (step.name, step.device, step.source) == ("y", "gpu", y.op.source)
    assert step.attrs == {"dtype": np.dtype("float32")}


def test_an_unfed_placeholder_is_an_error() -> None:
    with dg.Graph():
        x = dg.placeholder((), name="x")
        y = dg.exp(x)
    with pytest.raises(ValueError, match=r"placeholder 'x' \(at test_program.py:\d+\) must be fed"):
        lower([y])


def test_a_program_prints_one_step_per_line() -> None:
    with dg.Graph():
        x = dg.placeholder((2,), "float32")
        y = dg.exp(x) * x
    text = str(lower([y], [x])).splitlines()
    assert text[0] == "%0 f32[2] = Feed()"
    assert text[1].startswith("%1 f32[2] = Exp(%0)  # test_program.py:")
    assert text[2].startswith("%2 f32[2] = Mul(%1, %0)  # test_program.py:")
    assert text[3] == "return %2"


def test_a_program_of_20_000_steps_survives_pickling() -> None:
    with dg.Graph():
        x = dg.placeholder(())
        y = x
        for _ in range(20_000):
            y = -y
    program = lower([y], [x])
    assert pickle.loads(pickle.dumps(program)) == program


def test_a_program_does_not_change() -> None:
    with dg.Graph():
        program = lower([dg.constant(1.0)])
    with pytest.raises(dataclasses.FrozenInstanceError):
        program.fetches = ()  # type: ignore[misc]


def test_lowering_leaves_the_garbage_collector_as_it_was() -> None:
    before = gc.get_threshold()
    with dg.Graph():
        x = dg.placeholder(())
    lower([x], [x])
    with pytest.raises(ValueError, match="must be fed"):
        lower([x])
    assert gc.get_threshold() == before


# -- order -------------------------------------------------------------------------------------------------------


def test_control_inputs_are_kept_and_waited_for() -> None:
    with dg.Graph():
        a = dg.constant(1.0, name="a")
        gate = dg.group(a, name="gate")
        with dg.control_dependencies([gate]):
            y = dg.constant(2.0, name="y")
    program = lower([y])
    assert [step.name for step in program.steps] == ["a", "gate", "y"]
    assert [step.after for step in program.steps] == [(), (0,), (1,)]


def test_what_a_needed_step_waits_for_is_needed() -> None:
    v = dg.Variable(1.0, name="v")
    with dg.Graph(), dg.control_dependencies([v.assign(2.0)]):
        y = dg.constant(3.0)
    program = lower([y])
    assert [key for key, _ in program.writes] == [v.key]


def test_a_call_waits_with_all_of_its_body() -> None:
    """a, then f(x) = exp(x) * 2 as one call, then b: the order holds across the borders of the body."""
    f = dg.function(lambda x: dg.exp(x, name="inner") * 2)
    with dg.Graph():
        a = dg.constant(1.0, name="a")
        x = dg.constant(2.0, name="x")
        with dg.control_dependencies([a]):
            y = f(x)
        with dg.control_dependencies([y]):
            b = dg.constant(3.0, name="b")
    program = lower([b])
    assert step_named(program, "a") in program.steps[step_named(program, "inner")].after
    (waited,) = program.steps[step_named(program, "b")].after
    assert program.steps[waited].type == "Mul"


def test_reads_and_assigns_are_in_the_order_of_building() -> None:
    v = dg.Variable(1.0)
    with dg.Graph():
        before, assigned, after = v.read(), v.assign(5.0), v.read()
    program = lower([after, before], effects=[assigned.op])
    assert kinds(program) == ["Const"]
    assert program.fetches == (program.writes[0][1], program.reads[0][1])
    values, writes = reference.run(program, [], {v.key: np.array(1.0)})
    assert values == [5.0, 1.0]
    assert writes == {v.key: 5.0}


def test_an_assign_nobody_asked_for_is_pruned() -> None:
    v = dg.Variable(1.0)
    with dg.Graph():
        v.assign(5.0)
        after = v.read()
    program = lower([after])
    assert (kinds(program), program.writes) == ([], ())


# -- calls -------------------------------------------------------------------------------------------------------


def test_calls_are_laid_out_in_place() -> None:
    g = dg.function(lambda x: dg.exp(x))
    f = dg.function(lambda x: g(dg.sin(x)) + g(x))
    with dg.Graph():
        x = dg.placeholder(())
        y = f(x)
    program = lower([y], [x])
    assert kinds(program) == ["Sin", "Exp", "Exp", "Add"]
    (value,), _ = reference.run(program, [np.array(0.5)], {})
    assert value == np.exp(np.sin(0.5)) + np.exp(0.5)


def test_what_a_body_captured_is_handed_in() -> None:
    with dg.Graph():
        k = dg.placeholder(())
        x = dg.placeholder(())
        y = dg.function(lambda x: x * k)(x)
    program = lower([y], [x, k])
    assert kinds(program) == ["Mul"]
    assert program.steps[0].inputs == (0, 1)


def test_a_result_of_a_call_that_nobody_reads_is_pruned() -> None:
    with dg.Graph():
        x = dg.placeholder(())
        used, _ = dg.function(lambda x: (dg.exp(x), dg.log(x)))(x)
    assert kinds(lower([used], [x])) == ["Exp"]


def test_a_body_that_returns_its_argument_makes_no_step() -> None:
    with dg.Graph():
        x = dg.placeholder(())
        (y,) = dg.function(lambda x: [x])(x)
    program = lower([y], [x])
    assert program.steps == ()
    assert program.fetches == program.feeds


def test_calls_nested_2_000_deep_are_laid_out_without_recursion() -> None:
    from distgrad.graph import FuncGraph
    from distgrad.tracing.function import call

    inner: FuncGraph | None = None
    for depth in range(2_000):
        with FuncGraph(f"f{depth}") as body:
            x = dg.placeholder(())
            body.declared.append(x)
            body.outputs = [-x] if inner is None else call(inner, [x])
        inner = body
    with dg.Graph():
        x = dg.placeholder(())
        (y,) = call(body, [x])
    assert kinds(lower([y], [x])) == ["Neg"]


# -- the checker -------------------------------------------------------------------------------------------------


def program(*steps: Step, types: int = 3, feeds: tuple[int, ...] = (0,), fetches: tuple[int, ...] = ()) -> Program:
    return Program(steps, (Spec((), F),) * types, feeds, fetches)


def step(inputs: tuple[int, ...], outputs: tuple[int, ...], after: tuple[int, ...] = (), type: str = "Exp") -> Step:
    return Step(type, inputs, outputs, {}, after, UNKNOWN, "s")


def fused(inputs: tuple[int, ...], outputs: tuple[int, ...], *body: Step) -> Step:
    return Step("Fused", inputs, outputs, {}, (), UNKNOWN, "f", body=body)


BROKEN: dict[str, Callable[[], Program]] = {
    r"step 0 \('s'\) has unknown op type 'Nope'": lambda: program(step((0,), (1,), type="Nope")),
    r"step 0 \('s'\) reads value 1 before anything made it": lambda: program(step((1,), (2,))),
    r"step 1 \('s'\) makes value 1, which is out of range or made": lambda: program(step((0,), (1,)), step((0,), (1,))),
    r"step 0 \('s'\) makes value 3, which is out of range": lambda: program(step((0,), (3,))),
    r"step 0 \('s'\) makes value 0, which is out of range or made": lambda: program(step((0,), (0,))),
    r"step 0 \('s'\) waits for a step that does not come before it": lambda: program(step((0,), (1,), after=(0,))),
    "value 2 is fetched or written but nothing makes it": lambda: program(step((0,), (1,)), fetches=(2,)),
    "value 5 is fed or read but has no type: there are 3 values": lambda: program(feeds=(5,)),
    "a variable is read twice: v, v": lambda: dataclasses.replace(program(), reads=(("v", 1), ("v", 2))),
    "a variable is written twice: v, v": lambda: dataclasses.replace(program(), writes=(("v", 0), ("v", 0))),
    r"step 0 \('f'\): inside, step 's' reads value 2 before anything made it": lambda: program(
        fused((0,), (1,), step((2,), (1,)))
    ),
    r"step 0 \('f'\): inside, step 's' makes value 1, which is out of range or made": lambda: program(
        fused((0,), (1,), step((0,), (1,)), step((0,), (1,)))
    ),
    r"step 0 \('f'\) gives value 2, which nothing inside makes": lambda: program(fused((0,), (2,), step((0,), (1,)))),
    r"step 0 \('f'\) is Fused and has no steps inside": lambda: program(fused((0,), (1,))),
}


@pytest.mark.parametrize("message", BROKEN)
def test_the_checker_finds(message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_program(BROKEN[message]())


def test_the_checker_gives_back_a_sound_program() -> None:
    sound = program(step((0,), (1,)), step((1,), (2,), after=(0,)), fetches=(2, 0))
    assert check_program(sound) is sound


# -- the reference executor --------------------------------------------------------------------------------------


def test_the_executor_changes_neither_state_nor_feeds() -> None:
    v = dg.Variable([1.0, 2.0])
    with dg.Graph():
        x = dg.placeholder((2,))
        y = v.assign_add(x)
    state, feed = {v.key: np.array([1.0, 2.0])}, np.array([1.0, 1.0])
    values, writes = reference.run(lower([y], [x]), [feed], state)
    np.testing.assert_array_equal(values[0], [2.0, 3.0])
    np.testing.assert_array_equal(writes[v.key], [2.0, 3.0])
    np.testing.assert_array_equal(state[v.key], [1.0, 2.0])
    np.testing.assert_array_equal(feed, [1.0, 1.0])


# -- what a call carries into its body ---------------------------------------------------------------------------


def test_an_argument_passed_through_a_call_waits_as_the_call_does() -> None:
    v = dg.Variable(0.0)
    with dg.Graph():
        set_ = v.assign(5.0)
        x = dg.constant(1.0)
        with dg.control_dependencies([set_]):
            y = dg.function(lambda x: x)(x)
    assert dg.Session().run(y) == 1.0
    assert v.numpy() == 5.0


def test_a_body_that_waits_for_its_argument_waits_for_what_made_it() -> None:
    v = dg.Variable(0.0)

    @dg.function
    def f(t: dg.Tensor) -> dg.Tensor:
        with dg.control_dependencies([t]):
            return dg.constant(1.0) * 2

    with dg.Graph():
        y = f(v.assign(5.0))
    assert dg.Session().run(y) == 2.0
    assert v.numpy() == 5.0


def test_the_device_of_a_call_is_that_of_its_steps() -> None:
    f = dg.function(lambda x: dg.sin(x))
    with dg.Graph():
        x = dg.constant(1.0)
        with dg.device("gpu"):
            y = f(x)
        (g,) = dg.gradients(y, x)
    devices = {step.type: step.device for step in lower([y, g]).steps}
    assert (devices["Sin"], devices["Cos"]) == ("gpu", "gpu")
