"""Sections 1.3 to 1.5 of the gradient semantics: overlaps, what stops gradients, and integers."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Sequence

import numpy as np
import pytest

import distgrad as dg
from distgrad.ops.builder import make, same
from distgrad.registry import define

from ..support import assert_values, f32, run

pytestmark = pytest.mark.usefixtures("graph")

G = dg.gradients


# -- 1.3 overlaps and duplicates ---------------------------------------------------------------------------------


def test_1_23_y_that_is_x_gives_ones_like_x() -> None:
    assert_values(G(x := f32([3.0, 4.0]), x), [[1.0, 1.0]])


def test_1_23_also_for_an_integer_x() -> None:
    k = dg.constant(3, dtype="int32")
    (one,) = run(G(k, k))
    assert one == 1
    assert one.dtype == np.int32


def test_1_24_ys_and_xs_may_overlap() -> None:
    x = f32(3.0)
    y = x * x
    assert_values(G([x, y], [x]), [7.0])
    assert_values(G(y, [x, y]), [6.0, 1.0])


def test_1_24_derivatives_along_a_chain_are_total() -> None:
    x = f32(3.0)
    y = 2 * x
    z = 5 * y
    assert_values(G([y, z], [x, y, z]), [12.0, 6.0, 1.0])


def test_1_25_duplicate_xs_get_the_same_tensor() -> None:
    x = f32(3.0)
    first, second = G(x * x, [x, x])
    assert first is second
    assert_values([first, second], [6.0, 6.0])


def test_1_26_duplicate_ys_add_up() -> None:
    x = f32(3.0)
    y = x * x
    assert_values(G([y, y], x), [12.0])
    assert_values(G([y, y], x, grad_ys=[2.0, None]), [18.0])
    assert_values(G([x, x], [x], grad_ys=[2.0, 5.0]), [7.0])


def test_1_27_ys_that_depend_on_each_other_add_up() -> None:
    x = f32(3.0)
    y = x * x
    y1 = y * y
    y2 = y1 * y1
    assert_values(G([y, y2], x), [17502.0])
    assert_values(G(y + y2, x), [17502.0])


def test_1_28_x_must_be_on_the_path() -> None:
    x = f32([3.0, 4.0])
    y = x * x
    assert_values(G(y, [x[0], x]), [None, [6.0, 8.0]])


def test_1_29_diamond() -> None:
    """x -> a, b -> a*b"""
    x = f32(2.0)
    a, b = 3 * x, 5 * x
    assert_values(G(a * b, [x, a, b]), [60.0, 10.0, 6.0])


def test_1_30_multi_output_producers_are_handled_per_output() -> None:
    a, b = dg.split(f32([1.0, 2.0]), 2)
    assert_values(G(a * a, [a]), [[2.0]])
    assert G(a * a, [b]) == [None]
    assert_values(G(a * a, [a, b]), [[2.0], None])
    assert_values(G(a * a, [a, b], unconnected_gradients="zero"), [[2.0], [0.0]])


def test_1_30_an_output_that_ys_do_not_use_is_none_also_when_another_x_lies_upstream() -> None:
    """TensorFlow then gives the zeros that it fills in for the gradient function of the op."""
    x = f32([1.0, 2.0])
    a, b = dg.split(x, 2)
    assert_values(G(a * a, [x, b]), [[2.0, 0.0], None])


def test_1_31_feeding_an_intermediate_is_honoured_by_the_gradient() -> None:
    x = f32(2.0)
    a = 3 * x
    assert_values(G(a * a, [x, a]), [60.0, 20.0], {a: 10.0})


# -- 1.4 stop_gradients, stop_gradient, prevent_gradient ---------------------------------------------------------


def test_1_32_stop_gradients_makes_total_derivatives_partial() -> None:
    x = f32(1.0)
    y = 2 * x
    z = x + y
    assert_values(G(z, [x, y]), [3.0, 1.0])
    assert_values(G(z, [x, y], stop_gradients=[x, y]), [1.0, 1.0])
    assert_values(G(z, [x, y], stop_gradients=y), [1.0, 1.0])
    assert_values(G(z, [x, y], stop_gradients=x), [3.0, 1.0])


def test_1_33_stopping_at_y_leaves_only_y() -> None:
    x = f32(3.0)
    y = x * x
    assert G(y, x, stop_gradients=y) == [None]
    assert_values(G(y, [x, y], stop_gradients=y), [None, 1.0])
    assert_values(G(y, x, stop_gradients=y, unconnected_gradients="zero"), [0.0])


def test_1_33_a_stopped_tensor_still_reports_its_own_gradient() -> None:
    x = f32(2.0)
    m = 3 * x
    y = m * m + x
    assert_values(G(y, [x, m], stop_gradients=[m]), [1.0, 12.0])
    assert_values(G(y, [x, m]), [37.0, 12.0])


def test_1_34_unrelated_duplicate_and_int_stops_are_harmless() -> None:
    x = f32(3.0)
    unrelated, k = f32(1.0) * 2, dg.constant(3)
    assert_values(G(x * x, x, stop_gradients=[unrelated, unrelated, k]), [6.0])


@pytest.mark.parametrize("bad", [1.0, [None], [1.0], "x", object()])
def test_1_34_other_stops_are_a_type_error_that_names_the_argument(bad: object) -> None:
    x = f32(3.0)
    with pytest.raises(TypeError, match="gradients: stop_gradients must be a tensor or a list of tensors, got"):
        G(x * x, x, stop_gradients=bad)


def test_1_34_a_stop_of_another_graph_is_a_value_error() -> None:
    x = f32(3.0)
    with dg.Graph():
        foreign = f32(1.0)
    with pytest.raises(ValueError, match="belong to different graphs"):
        G(x * x, x, stop_gradients=foreign)


def test_1_34_a_variable_can_be_stopped() -> None:
    v = dg.Variable(np.float32(3.0))
    w = dg.Variable(np.float32(2.0))
    assert_values(G(v * w, [v, w], stop_gradients=[v]), [2.0, 3.0])
    read = v.read()
    assert_values(G(read * w, [v, w], stop_gradients=[read]), [None, 3.0])


@pytest.mark.parametrize("stops", [lambda g: g, lambda g: [g]], ids=["alone", "in a list"])
def test_1_34_a_sparse_gradient_to_stop_at_stands_for_its_values(stops: Callable[..., object]) -> None:
    p, c = f32([1.0, 2.0, 3.0]), f32(4.0)
    (g,) = G(dg.gather(p, [1, 1]) ** 2, p)
    y = dg.sin(g.values) * c
    assert_values(G(y, [p, g.values, c], stop_gradients=stops(g)), [None, [4 * np.cos(4)] * 2, 2 * np.sin(4)])
    assert_values(G(y, p), [[0, 2 * 2 * 4 * np.cos(4), 0]])


def test_1_35_stop_gradients_cuts_per_tensor_where_tensorflow_cuts_the_op() -> None:
    x = f32([1.0, 2.0])
    a, b = dg.split(x, 2)
    assert_values(G(a + 3 * b, x, stop_gradients=[a]), [[0.0, 3.0]])
    assert_values(G(a + 3 * b, x, stop_gradients=[a, b]), [None])


def test_1_35_a_call_can_be_stopped_at_where_tensorflow_ignores_it() -> None:
    x = f32(2.0)
    y = dg.function(lambda x: x * x)(x)
    assert_values(G(y * x, [x, y], stop_gradients=y), [4.0, 2.0])


def _matmul_dag(stopped: Sequence[int]) -> list[dg.Tensor]:
    """a -> b -> (a, b) -> c -> (b, c) -> d, with stop_gradient put on some of them."""

    def stop(i: int, t: dg.Tensor) -> dg.Tensor:
        return dg.stop_gradient(t) if i in stopped else t

    rng = np.random.default_rng(0)
    leaves = [rng.normal(size=(3, 3)) for _ in range(5)]
    a = stop(0, dg.constant(leaves[0]) * 1.0)
    b = stop(1, dg.matmul(a, leaves[1]))
    c = stop(2, dg.matmul(a, leaves[2]) + dg.matmul(b, leaves[3]))
    d = stop(3, dg.matmul(b, c) + dg.matmul(c, leaves[4]))
    return [a, b, c, d]


def test_1_36_stop_gradients_equals_the_graph_rebuilt_with_stop_gradient() -> None:
    subsets = [s for n in range(5) for s in itertools.combinations(range(4), n)]
    pairs = []
    with dg.Graph():
        plain = _matmul_dag(())
        for stopped in subsets:
            rebuilt = _matmul_dag(stopped)
            for xs in subsets[1:]:
                stops = [plain[i] for i in stopped]
                found = G(plain[3], [plain[i] for i in xs], stop_gradients=stops, unconnected_gradients="zero")
                expected = G(rebuilt[3], [rebuilt[i] for i in xs], unconnected_gradients="zero")
                pairs.append((found, expected))
        assert len(pairs) == 240
        for found, expected in run(pairs):
            np.testing.assert_array_equal(found, expected)


def test_1_37_stop_gradient_is_a_constant() -> None:
    x = f32(3.0)
    assert G(dg.stop_gradient(x), x) == [None]
    assert_values(G(x * dg.stop_gradient(x), x), [3.0])
    s = dg.stop_gradient(2 * x)
    assert_values(G(s * s, [x, s]), [None, 12.0])


def test_1_38_prevent_gradient_passes_values_and_raises_with_its_message() -> None:
    x = f32(3.0)
    y = dg.prevent_gradient(x, "use the adjoint solver", name="guard")
    line = inspect.currentframe().f_lineno - 1  # type: ignore[union-attr]
    assert run(y) == 3.0
    with pytest.raises(
        LookupError,
        match=r"Gradient explicitly disabled. Reason: 'use the adjoint solver' "
        rf"\(op 'guard', at test_spec_1_paths.py:{line}\). Cut the path with stop_gradient\(\)",
    ):
        G(y * y, x)


def test_1_38_prevent_gradient_is_silent_when_no_gradient_passes_through_it() -> None:
    x = f32(3.0)
    p = dg.prevent_gradient(x)
    assert_values(G(p * p, p), [6.0])
    assert_values(G(p * x, x, stop_gradients=p), [3.0])
    assert_values(G(dg.stop_gradient(p) * x, x), [3.0])


# -- 1.5 integers and other dtypes without gradients -------------------------------------------------------------


def test_1_39_an_integer_between_x_and_y_is_a_constant() -> None:
    x = f32([3.9, 4.1])
    k = dg.cast(dg.cast(x, "int32"), "float32")
    assert_values(G(x * k, x), [[3.0, 4.0]])
    assert G(k * k, x) == [None]


def test_1_40_an_integer_x_has_no_gradient() -> None:
    k = dg.constant([3, 4])
    for y in (k * k, k * k * k, dg.cast(k, "float32") ** 2, dg.square(k)):
        assert G(y, k) == [None]


def test_1_40_an_integer_y_gives_nothing() -> None:
    x = f32([3.9, 4.1])
    assert G(dg.cast(x, "int32"), x) == [None]


SHIFT = define("TestShift", same, kernel=lambda x, k: x + k.astype(x.dtype))


@dg.RegisterGradient("TestShift")
def _shift_grad(op: dg.Operation, g: dg.Tensor) -> object:
    return g, dg.ones_like(op.inputs[1])


def test_1_40_what_a_rule_returns_for_an_integer_is_dropped() -> None:
    x = f32(3.0)
    k = dg.cast(x, "int32")
    assert_values(G(make(SHIFT, (x, k)), [x, k]), [1.0, None])


def test_1_41_an_integer_among_the_ys_adds_nothing() -> None:
    x = f32([3.9, 4.1])
    assert_values(G([dg.cast(x, "int32"), x * x], x), [[7.8, 8.2]])


def test_1_41_a_boolean_on_the_path_is_a_constant() -> None:
    x = f32(3.0)
    assert_values(G(dg.cast(x > 1, "float32") * x, x), [1.0])


def test_1_42_an_int_y_that_is_x_takes_no_float_gradient() -> None:
    k = dg.constant(3, name="k")
    with pytest.raises(TypeError, match="x 'k:0' has dtype int64, but its gradient has float64; cast grad_ys"):
        G(k, k, grad_ys=2.5)


def test_1_42_zero_for_an_int_x_is_an_int_zero() -> None:
    k = dg.constant([3, 4], dtype="int16")
    (zeros,) = run(G(f32(1.0), k, unconnected_gradients="zero"))
    assert zeros.dtype == np.int16
    np.testing.assert_array_equal(zeros, [0, 0])


def test_1_43_casts_between_floats_are_differentiable_and_give_back_the_dtype_of_x() -> None:
    x = f32([1.0, 2.0])
    (g,) = run(G(dg.cast(x, "float64") ** 2, x))
    assert g.dtype == np.float32
    np.testing.assert_array_equal(g, [2.0, 4.0])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_1_43_small_floats_have_gradients(dtype: str) -> None:
    made = getattr(pytest.importorskip("ml_dtypes"), dtype, dtype)
    x = dg.cast(f32([1.0, 2.0]), np.dtype(made))
    (g,) = G(x * x + 3 * x, x)
    assert g.dtype.name == dtype
    np.testing.assert_array_equal(run(g).astype(float), [5.0, 7.0])


def test_1_44_a_control_dependency_is_no_path() -> None:
    x, c = f32(3.0), f32(2.0)
    with dg.control_dependencies([x * x]):
        y = c * 5
    assert G(y, x) == [None]


def test_1_45_assign_is_not_differentiable() -> None:
    u, z = dg.Variable(np.float32(0.0)), f32(3.0)
    assert G(u.assign(z**2), z) == [None]
    assert_values(G(dg.identity(z), z), [1.0])
