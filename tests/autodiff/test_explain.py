"""explain_gradient: each reason for None, with the user's line."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

import distgrad as dg
from distgrad.autodiff import explain

from ..counting import steps
from ..support import f32, unregistered

pytestmark = pytest.mark.usefixtures("graph")


def line(offset: int = 0) -> str:
    """This file and the line of the caller, moved by offset."""
    frame = inspect.currentframe()
    assert frame is not None
    assert frame.f_back is not None
    return f"test_explain.py:{frame.f_back.f_lineno + offset}"


def check(y: Any, x: Any, reason: str, *texts: str) -> explain.Cut:
    """One cut, for this reason, with these texts; and gradients() agrees, and the graph is left alone."""
    count = len(y.graph.ops)
    why = dg.explain_gradient(y, x)
    assert len(y.graph.ops) == count
    assert not why.connected
    (cut,) = why.cuts
    assert cut.reason == reason
    for text in texts:
        assert text in str(why)
    if reason not in (explain.UNREGISTERED, explain.FAILED):
        assert "is None:" in str(why)
        assert dg.gradients(y, x) == [None]
    return cut


def test_a_connected_gradient_names_the_ops_that_carry_it() -> None:
    x = f32(2.0, name="x")
    y = dg.exp(dg.sin(x) * x, name="y")
    why = dg.explain_gradient(y, x)
    assert why.connected
    assert why.cuts == ()
    assert why.types == {"Sin": 1, "Mul": 1, "Exp": 1}
    assert why.ops == ("Sin", "Mul", "y")
    assert str(why) == "the gradient of 'y' with respect to 'x' flows through 3 ops (1 Sin, 1 Mul, 1 Exp)."


def test_y_is_x() -> None:
    x = f32(2.0)
    assert dg.explain_gradient(x, x).connected


def test_stop_gradient() -> None:
    x = f32(2.0)
    s = dg.stop_gradient(x * x, name="frozen")
    where = line(-1)
    cut = check(s * 2, x, explain.STOP, "op 'frozen' (StopGradient, at " + where)
    assert (cut.op, cut.type, str(cut.source)) == ("frozen", "StopGradient", where)


def test_an_op_declared_without_gradient() -> None:
    x = f32(2.0)
    y = dg.floor(x) * 3
    check(y, x, explain.NO_GRADIENT, f"(Floor, at {line(-1)}) is declared not differentiable with no_gradient()")


def test_integers_are_blamed_on_the_op_that_made_them() -> None:
    x = f32(2.0)
    i = dg.cast(x, "int32")
    where = line(-1)
    y = dg.cast((i + 1) * 2, "float32") * 3
    check(y, x, explain.INTEGER, f"(Cast, at {where}) returns int32")
    check(i, x, explain.INTEGER, where)


def test_comparisons_make_booleans() -> None:
    x = f32(2.0)
    y = dg.where(x > 1, 2.0, 3.0)
    check(y, x, explain.INTEGER, f"(Greater, at {line(-1)}) returns bool")


def test_an_integer_x() -> None:
    x = dg.constant(3, name="count")
    check(dg.cast(x, "float32") * 2, x, explain.INTEGER, "x, op 'count' (Const, at test_explain.py:", "is int64")


def test_a_gradient_function_that_returns_none() -> None:
    @dg.custom_gradient
    def half(x: Any, y: Any) -> Any:
        return x * y, lambda g: (None, g)

    x, z = f32(2.0), f32(3.0)
    y = half(x, z)
    where = line(-1)
    check(y, x, explain.RETURNED_NONE, "returned None for input", where)
    assert dg.explain_gradient(y, z).connected
    assert dg.explain_gradient(y, z).cuts == ()


def test_assign_returns_a_value_without_gradient() -> None:
    v = dg.Variable(1.0, name="v")
    x = dg.constant(2.0)
    y = v.assign(x * 2) * 3
    check(y, x, explain.ASSIGN, f"(Assign, at {line(-1)}) sets a variable")


def test_a_value_that_went_through_a_variable() -> None:
    v = dg.Variable(1.0, name="v")
    x = dg.constant(2.0)
    v.assign(x * 2)
    where = line(-1)
    y = v * 3
    check(y, x, explain.ASSIGN, where, line(-1), "reads; gradients do not flow through stored values")


def test_a_control_dependency_alone() -> None:
    x, z = f32(2.0), f32(3.0)
    with dg.control_dependencies([x * 2]):
        waiting = dg.exp(z)
    where = line(-1)
    check(waiting + 1, x, explain.CONTROL, f"(Exp, at {where}) only waits for op 'Mul'", "reads nothing from it")


def test_no_path_at_all() -> None:
    x, z = f32(2.0, name="x"), f32(3.0)
    y = dg.exp(z, name="y")
    check(y, x, explain.NO_PATH, f"y, op 'y' (Exp, at {line(-1)}), is not computed from x, op 'x'")


def test_a_slice_taken_later_is_another_tensor() -> None:
    x = f32([2.0, 3.0], name="x")
    y = dg.sum(x * x)
    check(y, dg.identity(x, name="copy"), explain.NO_PATH, "both are computed from 'x'", "with respect to 'x'")


def test_x_is_no_tensor_or_a_variable_that_is_not_read() -> None:
    y = f32(2.0) * 2
    why = dg.explain_gradient(y, 3.0)
    assert "3.0 is not a tensor: each use of an array or number makes a new constant" in str(why)
    v = dg.Variable(1.0, name="v")
    assert "'v' is not read in the graph of y" in str(dg.explain_gradient(y, v))
    with dg.Graph():
        other = f32(1.0)
    assert "belongs to a different graph" in str(dg.explain_gradient(y, other))
    with pytest.raises(TypeError, match="y must be a tensor, got 3"):
        dg.explain_gradient(3, y)


def test_variables() -> None:
    v = dg.Variable(1.0, name="v")
    assert dg.explain_gradient(v * 2, v).types == {"ReadVariable": 1, "Mul": 1}
    check(dg.stop_gradient(v * 2), v, explain.STOP)


def test_an_unregistered_op_and_a_rule_that_fails() -> None:
    x = f32(2.0)
    text = "no gradient is registered under 'TestUnregistered'"
    check(unregistered(x) * 2, x, explain.UNREGISTERED, text, "is an error")
    y = dg.prevent_gradient(x, "not here")
    check(y, x, explain.FAILED, f"(PreventGradient, at {line(-1)})", "LookupError", "not here")


def test_several_paths_are_cut_in_several_places() -> None:
    x = f32(2.0)
    y = dg.stop_gradient(x) + dg.floor(x) + dg.cast(dg.cast(x, "int32"), "float32")
    reasons = {cut.reason for cut in dg.explain_gradient(y, x).cuts}
    assert reasons == {explain.STOP, explain.NO_GRADIENT, explain.INTEGER}
    why = dg.explain_gradient(y + x, x)
    assert why.connected
    assert "; other paths are cut:\n  - " in str(why)


def test_a_cut_behind_another_cut_is_not_reported() -> None:
    x = f32(2.0)
    check(dg.stop_gradient(dg.floor(x) * 2), x, explain.STOP)


def test_the_reason_in_the_body_of_a_function() -> None:
    x = f32(2.0)

    @dg.function
    def inner(x: Any) -> Any:
        return dg.stop_gradient(x * 2)

    where = line(-2)
    f = dg.function(lambda x: inner(x) * 2)
    check(f(x), x, explain.STOP, where)


def test_a_function_that_does_not_use_its_argument() -> None:
    x, z = f32(2.0), f32(3.0)
    y = dg.function(lambda x, z: z * 2)(x, z)
    check(y, x, explain.NO_PATH, f"(Call, at {line(-1)}) does not use its input 0")


def test_captured_tensors_inside_a_function() -> None:
    x, z = f32(2.0), f32(3.0)
    seen: list[Any] = []

    @dg.function
    def f(z: Any) -> Any:
        y = dg.stop_gradient(x) * z
        seen.extend([dg.explain_gradient(y, x), dg.explain_gradient(y, z)])
        return y

    f(z)
    assert [why.connected for why in seen] == [False, True]


def test_a_chain_that_leaves_the_function_through_a_capture() -> None:
    x, a = f32(2.0, name="x"), f32(3.0)
    z = x * 2
    seen: list[Any] = []

    @dg.function
    def f(a: Any) -> Any:
        y = a * z
        seen.extend([dg.explain_gradient(y, x), dg.explain_gradient(dg.stop_gradient(z) * a, x)])
        assert dg.gradients(y, x)[0] is not None
        return y

    y = f(a)
    assert [why.connected for why in seen] == [True, False]
    assert [cut.reason for cut in seen[1].cuts] == [explain.STOP]
    assert dg.explain_gradient(y, x).types == {"Mul": 1, "Call": 1}
    assert dg.explain_gradient(y, a).connected


def test_an_assign_in_the_graph_around_a_function() -> None:
    x, v = f32(2.0), dg.Variable(np.float32(1.0), name="v")
    v.assign(x)
    seen: list[Any] = []

    @dg.function
    def f(a: Any) -> Any:
        seen.append(dg.explain_gradient(a * v, x))
        return a * v

    f(f32(1.0))
    assert [cut.reason for cut in seen[0].cuts] == [explain.ASSIGN]


# -- errors ------------------------------------------------------------------------------------------------------


def test_an_unregistered_op_is_an_error_though_another_path_carries_a_gradient() -> None:
    x = f32(2.0)
    y = unregistered(x) + x
    check(y, x, explain.UNREGISTERED, "is an error:")
    with pytest.raises(LookupError, match="no gradient is registered"):
        dg.gradients(y, x)


def test_a_rule_that_returns_another_shape_is_an_error() -> None:
    @dg.custom_gradient
    def f(x: Any) -> Any:
        return x * 1, lambda dy: dg.ones((3,), "float32")

    x = f32([1.0, 2.0])
    y = f(x) + x
    check(y, x, explain.FAILED, "is an error:", "has shape [3]")
    with pytest.raises(ValueError, match=r"has shape \[3\]"):
        dg.gradients(y, x)


@pytest.mark.parametrize("returned", ["text", (1.0, 2.0), [None, None]])
def test_a_rule_that_returns_no_gradient_at_all_is_an_error(returned: Any) -> None:
    x = f32([1.0, 2.0])
    y = dg.identity(x)
    y.op.gradient = lambda op, g: returned
    check(y + x, x, explain.FAILED, "is an error:")
    with pytest.raises((TypeError, ValueError), match="gradient"):
        dg.gradients(y, x)


def test_an_unregistered_op_behind_an_integer_is_no_error() -> None:
    x = f32(2.0)
    check(unregistered(dg.cast(dg.cast(x, "int32"), "float32")), x, explain.INTEGER, "returns int32")


# -- cost --------------------------------------------------------------------------------------------------------


def test_long_chains_take_linear_time() -> None:
    short, long = (steps_to_explain(count) for count in (200, 2000))
    assert long < 12 * short


def steps_to_explain(count: int) -> int:
    x = f32(2.0)
    y = x
    for _ in range(count):
        y = dg.identity(y)
    return steps(lambda: dg.explain_gradient(y, x))
