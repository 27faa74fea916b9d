"""Variables: values, reads and assigns outside graphs, in hand-built graphs and in functions."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import distgrad as dg

from ..support import run


def test_a_variable_takes_arrays_numbers_lists_and_functions() -> None:
    for initial in (np.array([1.0, 2.0]), [1.0, 2.0], lambda: [1.0, 2.0], lambda: dg.add([1.0, 1.0], [0.0, 1.0])):
        np.testing.assert_array_equal(dg.Variable(initial).numpy(), [1.0, 2.0])


def test_a_function_of_the_initial_value_computes_at_once_also_inside_a_graph() -> None:
    with dg.Graph() as graph:
        v = dg.Variable(lambda: dg.exp(np.zeros(2)))
    assert graph.ops == []
    np.testing.assert_array_equal(v.numpy(), [1.0, 1.0])


def test_dtype_converts_the_initial_value() -> None:
    v = dg.Variable([1, 2], dtype="float32")
    assert (v.shape, v.dtype) == ((2,), np.dtype("float32"))
    assert repr(v) == "<Variable 'Variable' f32[2] = [1. 2.]>"
    with dg.Graph():  # where the value may have changed before anything runs
        assert repr(v) == "<Variable 'Variable' f32[2]>"


def test_a_tensor_is_no_initial_value() -> None:
    with dg.Graph(), pytest.raises(TypeError, match=r"initial value .* is a tensor, which has no value yet. Pass"):
        dg.Variable(dg.constant(1.0))


def test_a_variable_shares_no_memory_with_anybody() -> None:
    source = np.array([1.0, 2.0])
    v = dg.Variable(source)
    source[0] = 7.0
    v.numpy()[0] = 7.0
    v.read()[0] = 7.0  # type: ignore[index]
    with dg.Graph():
        fetched = run([v, v.read(), dg.identity(v)])
    for array in fetched:
        array[0] = 7.0
    v.assign(source)[0] = 8.0  # type: ignore[index]
    source[0] = 9.0
    np.testing.assert_array_equal(v.numpy(), [7.0, 2.0])


def test_variables_are_told_apart_by_identity_not_by_name() -> None:
    a, b = dg.Variable(1.0, name="v"), dg.Variable(2.0, name="v")
    assert a != b
    assert a.key != b.key
    with dg.Graph():
        assert run([a * 1, b * 1]) == [1.0, 2.0]


def test_outside_any_graph_a_variable_computes_like_an_array() -> None:
    v = dg.Variable([1.0, 2.0])
    np.testing.assert_array_equal(v * v + 1, [2.0, 5.0])
    np.testing.assert_array_equal(2 - v, [1.0, 0.0])
    np.testing.assert_array_equal(np.asarray(v), [1.0, 2.0])
    np.testing.assert_allclose(dg.exp(v), np.exp([1.0, 2.0]), rtol=1e-15)


def test_assigns_outside_any_graph_happen_at_once_and_give_the_new_value() -> None:
    v = dg.Variable([1.0, 2.0])
    np.testing.assert_array_equal(v.assign([3, 4]), [3.0, 4.0])
    np.testing.assert_array_equal(v.assign_add([1.0, 1.0]), [4.0, 5.0])
    np.testing.assert_array_equal(v.assign_sub(1.0), [3.0, 4.0])
    assert v.dtype == np.float64


@pytest.mark.parametrize("bad", [[1.0], 1.0, np.ones((2, 2))])
def test_an_assigned_value_must_have_the_shape(bad: object) -> None:
    v = dg.Variable([1.0, 2.0], name="v")
    with pytest.raises(ValueError, match=r"'v' f64\[2\] = .*> cannot be assigned a value of f64\[.*\]: shape and"):
        v.assign(bad)
    with dg.Graph(), pytest.raises(ValueError, match="shape and dtype are fixed"):
        v.assign(bad)


@pytest.mark.parametrize("value", [np.array([1.0, 2.0]), np.array([1, 2]), [1j, 2j]])
def test_an_assigned_array_must_have_the_dtype(value: object) -> None:
    v = dg.Variable([1.0, 2.0], dtype="float32")
    with pytest.raises(ValueError, match=r"shape and dtype are fixed; cast it with .astype\('float32'\)"):
        v.assign(value)
    with dg.Graph(), pytest.raises(ValueError, match=r"cast it with .astype\('float32'\)"):
        v.assign(value)


def test_assigned_python_numbers_adapt_to_the_dtype() -> None:
    v = dg.Variable([1.0, 2.0], dtype="float32")
    v.assign([3, 4.5])
    assert v.numpy().tolist() == [3.0, 4.5]
    assert v.dtype == np.float32


@pytest.mark.parametrize(
    ("change", "remedy"),
    [
        (operator.iadd, r"use assign_add\(x\)"),
        (operator.isub, r"use assign_sub\(x\)"),
        (operator.imul, r"use assign\(variable \* x\)"),
    ],
)
def test_a_variable_is_not_changed_in_place(change: Callable[..., object], remedy: str) -> None:
    with pytest.raises(TypeError, match=remedy):
        change(dg.Variable(1.0), 2.0)


def test_an_element_of_a_variable_is_not_assigned() -> None:
    with pytest.raises(TypeError, match=r"cannot be written in place: build the new value and call assign"):
        dg.Variable([1.0])[0] = 2.0


def test_a_variable_has_no_array_while_a_graph_is_built() -> None:
    v = dg.Variable([1.0])
    assert np.asarray(v).tolist() == [1.0]
    with dg.Graph(), pytest.raises(TypeError, match=r"no array inside a graph.*take .numpy\(\)"):
        np.asarray(v)


def test_variables_are_equal_to_themselves_alone() -> None:
    v, w = dg.Variable(1.0), dg.Variable(1.0)
    assert v == v
    assert v != w
    assert {v: 1, w: 2}[w] == 2


def test_an_assigned_tensor_must_have_the_dtype() -> None:
    v = dg.Variable([1.0, 2.0])
    with dg.Graph(), pytest.raises(ValueError, match=r"cannot be assigned a value of f32\[2\]"):
        v.assign(dg.ones(2, "float32"))


def test_one_handle_stands_for_a_variable_in_a_graph_outside_every_scope() -> None:
    v = dg.Variable(1.0, name="weights")
    with dg.Graph() as graph, dg.name_scope("s"), dg.control_dependencies([dg.constant(1.0)]):
        v.read()
        v.read()
    (handle,) = [op for op in graph.ops if op.type == "VarHandle"]
    assert handle.name == "weights"
    assert handle.control_inputs == ()
    assert [op.name for op in graph.ops if op.type == "ReadVariable"] == ["s/weights/read", "s/weights/read_1"]


def test_reads_are_shared_until_an_assign() -> None:
    v = dg.Variable(1.0)
    with dg.Graph() as graph:
        v * v
        v.assign(2.0)
        v * v
    assert [op.type for op in graph.ops].count("ReadVariable") == 2


def test_under_control_dependencies_a_variable_is_read_anew() -> None:
    v = dg.Variable(1.0)
    with dg.Graph():
        before = v * 1
        with dg.control_dependencies([v.assign(5.0)]):
            after = v * 1
        assert run([before, after]) == [1.0, 5.0]


def test_a_graph_assigns_only_when_the_op_runs() -> None:
    v = dg.Variable(1.0)
    with dg.Graph():
        doubled = v.assign(v * 2)
        assert v.numpy() == 1.0
        assert run(v * 1) == 1.0
        for expected in (2.0, 4.0):
            assert run(doubled) == expected
            assert v.numpy() == expected


def test_reads_and_assigns_that_run_together_keep_the_order_of_building() -> None:
    v = dg.Variable(1.0)
    with dg.Graph():
        first = v.read()
        v1 = v.assign_add(1.0)
        second = v.read()
        v2 = v.assign_add(10.0)
        third = v.read()
        assert run([third, v2, second, v1, first]) == [12.0, 12.0, 2.0, 2.0, 1.0]


def test_functions_assign_at_every_call_in_program_order() -> None:
    v = dg.Variable(1.0)

    @dg.function
    def step(x: dg.Tensor) -> tuple[object, object]:
        before = v * 1
        v.assign_add(x)
        return before, v * 1

    assert step(np.array(2.0)) == (1.0, 3.0)
    assert step(np.array(2.0)) == (3.0, 5.0)
    assert v.numpy() == 5.0


def test_a_function_called_in_a_function_may_assign() -> None:
    v = dg.Variable(1.0)

    @dg.function
    def inner(x: dg.Tensor) -> dg.Tensor:
        return v.assign_add(x)

    @dg.function
    def outer(x: dg.Tensor) -> dg.Tensor:
        inner(x)
        return inner(x) * 10

    assert outer(np.array(1.0)) == 30.0
    assert v.numpy() == 3.0


def test_a_function_called_in_a_function_reads_what_was_assigned_before() -> None:
    v = dg.Variable(1.0)

    @dg.function
    def value() -> object:
        return v * 1

    @dg.function
    def outer() -> tuple[object, object]:
        before = value()
        v.assign(7.0)
        return before, value()

    assert outer() == (1.0, 7.0)


@pytest.mark.parametrize("use", [lambda v: v * v, lambda v: dg.square(v), lambda v: v.read() * v])
def test_gradients_reach_a_variable_in_a_function(use: Callable[[dg.Variable], dg.Tensor]) -> None:
    v = dg.Variable([1.0, 2.0])

    @dg.function
    def slope() -> object:
        return dg.gradients(use(v), v)

    np.testing.assert_array_equal(slope()[0], [2.0, 4.0])


def test_a_gradient_step_trains() -> None:
    w = dg.Variable([0.0, 0.0])

    @dg.function
    def step(x: dg.Tensor, y: dg.Tensor) -> dg.Tensor:
        loss = dg.sum((dg.sum(x * w, axis=1) - y) ** 2)
        w.assign_sub(0.1 * dg.gradients(loss, w)[0])
        return loss

    x = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    losses = [float(step(x, x @ np.array([2.0, -1.0]))) for _ in range(50)]
    assert losses[-1] < 1e-6 < losses[0]
    np.testing.assert_allclose(w.numpy(), [2.0, -1.0], atol=1e-3)


def test_a_handle_has_no_place_outside_a_graph() -> None:
    with pytest.raises(RuntimeError, match="has no handle outside a graph"):
        dg.Variable(1.0).__handle__()


def test_a_read_under_control_dependencies_is_not_everyones() -> None:
    v, w = dg.Variable(1.0), dg.Variable(0.0)
    with dg.Graph():
        with dg.control_dependencies([w.assign(5.0)]):
            v * 1
        z = v + 1
    assert run(z) == 2.0
    assert w.numpy() == 0.0


def test_a_shared_read_is_in_no_scope_and_on_no_device() -> None:
    v = dg.Variable(1.0, name="v")
    with dg.Graph(), dg.device("gpu"), dg.name_scope("s"):
        y = v * 2
    read = y.op.inputs[0].op
    assert (read.type, read.name, read.device) == ("ReadVariable", "v/read", None)


def test_a_name_that_graphs_do_not_take_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="'a b' is not a valid name"):
        dg.Variable(1.0, name="a b")


@pytest.mark.parametrize(("assign", "expected"), [("assign_add", [1.0, 13.0, 2.0]), ("assign_sub", [1.0, -11.0, 2.0])])
def test_a_sparse_delta_changes_its_rows_alone(assign: str, expected: list[float]) -> None:
    v = dg.Variable([1.0, 1.0, 2.0])

    @dg.function
    def change() -> Any:
        delta = dg.IndexedSlices(dg.constant([7.0, 5.0]), dg.constant([1, 1]), (3,))
        return getattr(v, assign)(delta)

    assert change().tolist() == v.numpy().tolist() == expected
    assert "ScatterAdd" in [op.type for op in change.body().ops]


def test_tensors_in_a_list_and_sparse_gradients_are_assigned_in_a_graph() -> None:
    v = dg.Variable([1.0, 2.0])
    with dg.Graph():
        x = dg.constant(3.0)
        run(v.assign([x, 2 * x]))
        assert v.numpy().tolist() == [3.0, 6.0]
        run(v.assign(dg.IndexedSlices(dg.constant([7.0]), dg.constant([1]), (2,))))
        assert v.numpy().tolist() == [0.0, 7.0]
