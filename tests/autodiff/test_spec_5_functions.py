"""Sections 5.3 and 5.4 of the gradient semantics: functions, higher order and Hessians."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import distgrad as dg
from distgrad.graph import check_graph, current_graph, outside

from ..support import assert_values, f32, new_ops, run, types, unregistered

pytestmark = pytest.mark.usefixtures("graph")

G = dg.gradients
A = np.array([[1.0, 2.0], [3.0, 4.0]], np.float32)


def bodies(graph: dg.Graph) -> list[Any]:
    return [op.attrs["body"] for op in graph.ops if op.type == "Call"]


# -- 5.1 and 5.2 control flow: Python's own ---------------------------------------------------------------------


def test_5_01_a_tensor_cannot_decide_which_branch_is_built() -> None:
    x = f32(3.0)
    with pytest.raises(TypeError, match=r"has no truth value while the graph is built\. Use distgrad\.where"):
        _ = x * x if x > 1 else x


def test_5_03_where_computes_both_branches_so_nan_leaks_from_the_other_one() -> None:
    x = f32(0.0)
    assert np.isnan(run(G(dg.where(x > 0, dg.sqrt(x), 3 * x), x)[0]))
    safe = dg.where(x > 0, x, 1)
    assert_values(G(dg.where(x > 0, dg.sqrt(safe), 3 * x), x), [3.0])


@pytest.mark.parametrize(("count", "expected"), [(3, [12.0, 1024.0]), (0, [None, 1.0])])
def test_5_05_python_loops_are_unrolled(count: int, expected: list[float | None]) -> None:
    x = f32(2.0)
    product, power = f32(1.0), x
    for _ in range(count):
        product, power = product * x, power * power
    assert_values([*G(product, x), *G(power, x)], expected)


# -- 5.3 functions -----------------------------------------------------------------------------------------------


@dg.function
def cube(x: Any) -> Any:
    return x * x * x


def test_5_11_the_gradient_of_a_call_equals_the_inlined_gradient() -> None:
    x = f32([0.3, -1.2])

    def model(x: Any) -> Any:
        return dg.sum(dg.sin(x) * dg.exp(x) / (x * x + 1))

    (called,), (inlined,) = G(dg.function(model)(x), x), G(model(x), x)
    np.testing.assert_array_equal(*run([called, inlined]))


def test_5_11_a_call_can_be_differentiated_repeatedly() -> None:
    x = f32(2.0)
    y = cube(x)
    for expected in (12.0, 12.0, 6.0):
        (y,) = G(y, x)
        assert_values([y], [expected])


def test_5_11_call_ops_appear_and_the_body_is_not_copied_into_the_graph(graph: dg.Graph) -> None:
    x = f32(2.0)
    y = cube(x)
    with new_ops(graph) as added:
        G(y, x)
    assert types(graph).count("Call") == 2
    assert [op.type for op in added] == ["Fill", "Call"]


def test_5_11_the_gradient_body_is_built_once_per_body(graph: dg.Graph) -> None:
    x = f32(2.0)
    y, z = cube(x), cube(x + 1)
    G(y, x)
    G(z, x)
    first, second, grad_first, grad_second = bodies(graph)
    assert first is second
    assert grad_first is grad_second


def test_5_11_ops_in_a_gradient_body_keep_the_lines_devices_and_overrides_of_the_forward_ops(graph: dg.Graph) -> None:
    @dg.RegisterGradient("TestTenfoldExp")
    def rule(op: Any, g: Any) -> Any:
        return g * 10

    @dg.function
    def f(x: Any) -> Any:
        body = current_graph()
        assert body is not None
        with body.device("worker:0"), body.gradient_override_map({"Exp": "TestTenfoldExp"}):
            return dg.exp(x)

    x = f32(2.0)
    y = f(x)
    found = G(y, x)
    assert_values(found, [10.0])
    forward, backward = bodies(graph)
    (exp,), (copy,) = ([op for op in body.ops if op.type == "Exp"] for body in (forward, backward))
    assert (copy.source, copy.device, copy.gradient) == (exp.source, "worker:0", "TestTenfoldExp")
    assert exp.source.filename == __file__


def test_5_11_control_dependencies_in_a_body_are_kept_in_the_gradient_body(graph: dg.Graph) -> None:
    @dg.function
    def f(x: Any) -> Any:
        with dg.control_dependencies([dg.exp(x, name="first")]):
            return dg.sin(x, name="second")

    x = f32(2.0)
    assert_values(G(f(x), x), [np.cos(2.0)])
    backward = bodies(graph)[1]
    assert [c.name for c in backward.get_operation_by_name("second").control_inputs] == ["first"]
    check_graph(backward)


def test_5_11_sparse_gradients_stay_sparse_through_a_call() -> None:
    @dg.function
    def look_up(table: Any, rows: Any) -> Any:
        return dg.gather(table, rows)

    table = f32(np.ones((4, 2)))
    (g,) = G(look_up(table, dg.constant([1, 1])), table)
    assert isinstance(g, dg.IndexedSlices)
    assert_values([g], [[[0, 0], [2, 2], [0, 0], [0, 0]]])


def test_5_11_a_sparse_gradient_may_arrive_at_a_call() -> None:
    table = f32(np.ones((3, 2)))
    (g,) = G(dg.gather(cube(table), dg.constant([2])), table)
    assert_values([g], [[[0, 0], [0, 0], [3, 3]]])


def test_5_11_custom_gradients_in_a_body_may_close_over_its_tensors_and_over_outer_ones() -> None:
    factor = f32(5.0)

    @dg.custom_gradient
    def odd(x: Any) -> Any:
        inner = x * 1
        return x * x, lambda dy: dy * inner * factor

    f = dg.function(lambda x: odd(x) * 2)
    x = f32(3.0)
    (first,) = G(f(x), x)
    (second,) = G(first, x)
    assert_values([first, second], [30.0, 10.0])
    nested = dg.function(lambda x: f(x) * 1)
    assert_values(G(nested(x), x), [30.0])


def test_5_11_a_custom_gradient_in_a_function_in_a_function_reaches_outer_tensors_of_both() -> None:
    k = f32(5.0)

    @dg.function
    def outer(x: Any) -> Any:
        m = x + 1

        @dg.custom_gradient
        def odd(x: Any) -> Any:
            return x * x, lambda dy: dy * m * k

        return dg.function(lambda x: odd(x))(x)

    x = f32(3.0)
    assert_values(G(outer(x), [x]), [20.0])


def test_5_11_a_function_called_by_a_custom_gradient_in_a_function() -> None:
    @dg.custom_gradient
    def odd(x: Any) -> Any:
        inner = x * 1
        return x * x, lambda dy: dg.function(lambda dy: dy * inner)(dy)

    x = f32(3.0)
    (first,) = G(dg.function(lambda x: odd(x) * 2)(x), x)
    assert_values([first, *G(first, x)], [6.0, 2.0])


def test_5_11_recompute_grad_works_in_a_function() -> None:
    f = dg.function(lambda x: dg.recompute_grad(lambda x: dg.exp(x * x))(x))
    x = f32(0.5)
    assert_values(G(f(x), x), [np.exp(0.25)])


def test_5_11_variables_read_in_a_custom_gradient_of_a_function() -> None:
    v = dg.Variable(np.float32(7.0), trainable=False)
    other = dg.Variable(np.float32(2.0), trainable=False)

    @dg.custom_gradient
    def odd(x: Any) -> Any:
        return x * v, lambda dy: dy * v * other

    x = f32(3.0)
    assert_values(G(dg.function(lambda x: odd(x))(x), x), [14.0])


def test_5_11_calls_pass_finite_differences_to_order_three() -> None:
    inner = dg.function(lambda x: dg.sin(x) * x)
    outer = dg.function(lambda x, y: inner(x) * inner(y) + inner(x * y))
    with outside():
        dg.testing.check_grads(outer, [np.array([0.3, 0.4]), np.array([1.2, 0.7])], order=3)


def test_5_12_an_unused_output_gives_zeros_and_integers_give_none() -> None:
    @dg.function
    def f(x: Any, z: Any) -> Any:
        return x * x, dg.cast(x, "int32"), 3 * z

    x, z = f32(2.0), f32(3.0)
    a, b, _ = f(x, z)
    assert_values(G(a, [x, z]), [4.0, 0.0])
    assert G(dg.cast(b, "float32"), [x, z]) == [None, None]


def test_5_12_an_argument_that_no_output_needs_gets_none() -> None:
    x, z = f32(2.0), f32(3.0)
    f = dg.function(lambda x, z: x * x)
    assert_values(G(f(x, z), [x, z]), [4.0, None])
    assert_values(G(f(x, z), [x, z], unconnected_gradients="zero"), [4.0, 0.0])


def test_5_12_a_body_of_stop_gradient_alone_gives_none(graph: dg.Graph) -> None:
    x = f32(2.0)
    y = dg.function(lambda x: dg.stop_gradient(x))(x)
    with new_ops(graph) as added:
        assert G(y, x) == [None]
    assert "Call" not in [op.type for op in added]


def test_5_13_captured_tensors_are_differentiable_inputs() -> None:
    k, x = f32(7.0), f32(2.0)
    assert_values(G(dg.function(lambda x: x * k)(x), [x, k]), [7.0, 2.0])


def test_5_13_gradients_with_respect_to_captured_tensors_inside_a_function() -> None:
    k, x = f32(7.0), f32(2.0)
    f = dg.function(lambda x: G(x * k, k)[0])
    assert_values([f(x)], [2.0])


def test_5_13_an_array_has_no_identity_so_each_use_of_one_is_a_constant() -> None:
    k = np.array([7.0, 8.0])
    f = dg.function(lambda x: G(x * k, [x, k]))
    with outside():
        found = f(np.array([2.0, 3.0]))
    np.testing.assert_array_equal(found[0], k)
    assert found[1] is None


def test_5_13_gradients_with_respect_to_variables_inside_a_function() -> None:
    v = dg.Variable(np.float32(7.0))
    x = f32(2.0)
    f = dg.function(lambda x: G(x * v, v)[0])
    assert_values([f(x)], [2.0])
    assert_values(G(dg.function(lambda x: x * v * v)(x), [x, v]), [49.0, 28.0])


def test_5_13_inner_in_outer() -> None:
    x1, x2 = f32(1.0), f32(2.0)

    @dg.function
    def outer() -> Any:
        @dg.function
        def inner() -> Any:
            return dg.identity(x1), dg.identity(x2), dg.identity(x1 * x2), x1

        return inner()

    assert_values(G(list(outer()), [x1, x2]), [4.0, 2.0])


def test_5_13_gradients_in_an_inner_function_of_what_the_outer_one_captured() -> None:
    x1, x2 = f32(1.0), f32(2.0)

    @dg.function
    def outer() -> Any:
        @dg.function
        def inner() -> Any:
            return G([dg.identity(x1), dg.identity(x2), dg.identity(x1 * x2), x1], [x1, x2])

        return inner()

    assert_values(outer(), [4.0, 2.0])


def test_5_14_an_unregistered_op_in_the_body_is_a_lookup_error() -> None:
    x = f32(2.0)
    y = dg.function(lambda x: unregistered(x))(x)
    with pytest.raises(LookupError, match=r"'TestUnregistered'.*support\.py"):
        G(y, x)


def test_functions_nested_twenty_deep_differentiate() -> None:
    x = f32(0.5)

    def nested(depth: int) -> Any:
        return dg.function(lambda x: dg.sin(nested(depth - 1)(x)) if depth else x)

    y, z = nested(20)(x), x
    for _ in range(20):
        z = dg.sin(z)
    np.testing.assert_allclose(*run([G(y, x)[0], G(z, x)[0]]), rtol=1e-6)


# -- 5.4 higher order and Hessians -------------------------------------------------------------------------------


def test_5_15_gradients_of_gradients() -> None:
    x, z = f32(2.0), f32(5.0)
    y = x * x * x * x
    for expected in (32.0, 48.0, 48.0):
        (y,) = G(y, x)
        assert_values([y], [expected])
    (mixed,) = G(G(x * x * z, x)[0], z)
    assert_values([mixed], [4.0])


def test_5_15_the_second_gradient_of_a_linear_function_is_none() -> None:
    x = f32(2.0)
    assert G(G(3 * x, x)[0], x) == [None]


def test_5_16_the_hessian_of_a_quadratic_form() -> None:
    x = f32([1.0, -1.0])
    assert_values(dg.hessians(dg.sum(x * dg.matmul(f32(A), x)), x), [[[2, 5], [5, 8]]])


def test_5_16_a_hessian_has_the_shape_of_x_twice() -> None:
    x = f32(np.ones((2, 3)))
    (h,) = dg.hessians(dg.sum(x * x * x), x)
    assert h.shape == (2, 3, 2, 3)
    assert run(dg.sum(h)) == 36
    assert_values(dg.hessians(x[0, 0] ** 3, x[0, 0]), [0.0])


def test_5_16_scalars_non_scalar_ys_and_empty_xs() -> None:
    x = f32(2.0)
    assert_values(dg.hessians(x * x * x, x), [12.0])
    v = f32([1.0, 2.0])
    assert_values(dg.hessians(v * v * v, v), [[[6, 0], [0, 12]]])
    e = f32(np.ones(0))
    (h,) = dg.hessians(dg.sum(e * e), e)
    assert h.shape == (0, 0)


def test_5_16_only_the_diagonal_blocks_and_ys_are_summed() -> None:
    x, z = f32(2.0), f32([1.0, 3.0])
    found = dg.hessians([x * x * dg.sum(z), z * z], [x, z])
    assert_values(found, [8.0, [[2, 0], [0, 2]]])


def test_5_17_linear_and_unconnected_ys_give_zeros() -> None:
    x, z = f32([2.0, 1.0]), f32([1.0])
    assert_values(dg.hessians(dg.sum(3 * x), [x, z]), [np.zeros((2, 2)), [[0.0]]])


def test_5_18_hessian_vector_products() -> None:
    x, z, v = f32([1.0, -1.0]), f32(1.0), f32([1.0, 0.0])
    y = dg.sum(x * dg.matmul(f32(A), x))
    assert_values(dg.hessian_vector_product(y, x, v), [[2, 5]])
    assert_values(dg.hessian_vector_product(y, [x, z], [v, z]), [[2, 5], None])
    with pytest.raises(ValueError, match="same length, got 1 and 2"):
        dg.hessian_vector_product(y, [x], [v, v])


def test_5_19_ties_of_max_are_shared_equally() -> None:
    x = f32([3.0, 3.0, 1.0])
    assert_values(G(dg.max(x), x), [[0.5, 0.5, 0.0]])


@pytest.mark.parametrize("f", [dg.maximum, dg.minimum])
def test_5_19_ties_of_maximum_and_minimum_go_to_the_first(f: Any) -> None:
    a, b = f32(2.0), f32(2.0)
    assert_values(G(f(a, b), [a, b]), [1.0, 0.0])


def test_5_19_relu_and_abs_have_slope_zero_at_zero() -> None:
    x = f32(0.0)
    assert_values(G(dg.nn.relu(x), x), [0.0])
    assert_values(G(dg.abs(x), x), [0.0])
