"""grad, value_and_grad, vjp, jvp, jacobian, hessian, hvp: outside graphs, inside graphs, nested."""

from __future__ import annotations

import dataclasses
import gc
import weakref
from typing import Any

import numpy as np
import pytest

import distgrad as dg
from distgrad.autodiff import derivatives

from ..support import f32, run


@dataclasses.dataclass
class Params:
    w: Any
    b: Any


def loss(p: Params, x: Any) -> Any:
    return dg.sum(dg.tanh(dg.matmul(x, p.w) + p.b) ** 2)


RNG = np.random.default_rng(0)
P = Params(RNG.normal(size=(3, 2)), RNG.normal(size=2))
X = RNG.normal(size=(4, 3))


def expected() -> list[Any]:
    with dg.Graph():
        p = Params(dg.constant(P.w), dg.constant(P.b))
        return dg.Session().run(dg.gradients(loss(p, dg.constant(X)), [p.w, p.b]))


# -- grad --------------------------------------------------------------------------------------------------------


def test_grad_equals_gradients_and_keeps_the_structure() -> None:
    found = dg.grad(loss)(P, X)
    assert isinstance(found, Params)
    for x, y in zip((found.w, found.b), expected(), strict=True):
        np.testing.assert_array_equal(x, y)


def test_grad_inside_a_graph_is_built_in_place() -> None:
    with dg.Graph():
        found = dg.grad(loss)(P, dg.constant(X))
        assert isinstance(found.w, dg.Tensor)
    np.testing.assert_array_equal(run(found.b), expected()[1])


def test_grad_inside_a_function() -> None:
    np.testing.assert_array_equal(dg.function(lambda x: dg.grad(loss)(P, x).w)(X), expected()[0])


def test_grad_takes_python_numbers_and_variables() -> None:
    square = dg.grad(lambda x: x * x)
    assert square(3.0) == 6
    v = dg.Variable(5.0)
    assert square(v) == 10
    v.assign(7.0)
    assert square(v) == 14


def test_grad_traces_once_per_signature() -> None:
    traced: list[Any] = []

    def f(x: Any) -> Any:
        traced.append(x)
        return x * x

    slope = dg.grad(f)
    assert [float(slope(x)) for x in (1.0, 2.0, 3.0)] == [2, 4, 6]
    assert len(traced) == 1


def test_argnums_choose_arguments_and_may_be_negative() -> None:
    def f(x: Any, y: Any, z: Any) -> Any:
        return x * y * z

    assert dg.grad(f, 1)(2.0, 3.0, 5.0) == 10
    assert dg.grad(f, -1)(2.0, 3.0, 5.0) == 6
    assert [float(g) for g in dg.grad(f, (0, 2))(2.0, 3.0, 5.0)] == [15, 6]
    with pytest.raises(ValueError, match=r"argnums is 3, but .* is called with 3 arguments"):
        dg.grad(f, 3)(2.0, 3.0, 5.0)


def test_keyword_arguments_are_passed_on() -> None:
    assert dg.grad(lambda x, n: x**n)(2.0, n=3) == 12


def test_has_aux() -> None:
    def f(x: Any) -> Any:
        return x * x, {"twice": 2 * x, "nothing": None}

    g, aux = dg.grad(f, has_aux=True)(3.0)
    assert (float(g), float(aux["twice"]), aux["nothing"]) == (6, 6, None)
    (y, aux), g = dg.value_and_grad(f, has_aux=True)(3.0)
    assert (float(y), float(aux["twice"]), float(g)) == (9, 6, 6)
    with pytest.raises(TypeError, match=r"must return a pair \(value, anything\)"):
        dg.grad(lambda x: x, has_aux=True)(3.0)


def test_an_argument_without_effect_has_a_gradient_of_zeros() -> None:
    x, y = dg.grad(lambda x, y: dg.sum(x), (0, 1))(np.ones(2), np.ones((2, 3), "float32"))
    np.testing.assert_array_equal(x, [1, 1])
    np.testing.assert_array_equal(y, np.zeros((2, 3), "float32"))
    assert y.dtype == np.float32


def test_grad_of_grad() -> None:
    f = dg.grad(dg.grad(dg.grad(lambda x: x * x * x * x)))
    assert f(2.0) == 48
    with dg.Graph():
        assert run(f(f32(2.0))) == 48


def test_what_f_closes_over_is_constant_even_if_it_depends_on_the_argument() -> None:
    with dg.Graph():
        x = f32(3.0)
        z = x * 2
        assert run(dg.grad(lambda a: a * z)(x)) == 6
        assert [float(g) for g in run(list(dg.grad(lambda a, b: a * a * b, (0, 1))(x, x)))] == [18, 9]


def test_sparse_gradients_come_dense() -> None:
    found = dg.grad(lambda t: dg.sum(dg.gather(t, [1, 1])))(np.ones((3, 2)))
    np.testing.assert_array_equal(found, [[0, 0], [2, 2], [0, 0]])


def test_integer_arguments_are_a_type_error_that_names_them() -> None:
    def f(params: Any, n: Any) -> Any:
        return params["w"] * n

    with pytest.raises(TypeError, match=r"argument 'params'\['w'\] of .*f' has dtype int64"):
        dg.grad(f)({"w": 3}, 2.0)
    with pytest.raises(TypeError, match=r"argument 'n' of .*f' has dtype int64"):
        dg.jacobian(f, 1)({"w": 3.0}, 2)
    with pytest.raises(TypeError, match=r"argument 'x' .* cannot be differentiated: .*object"):
        dg.grad(lambda x: x)(object())
    for call in (dg.vjp, lambda f, x: dg.jvp(f, (x,), (x,)), lambda f, x: dg.hvp(f, x, x)):
        with pytest.raises(TypeError, match=r"argument 'x' .* has dtype int64"):
            call(lambda x: x, 3)


def test_values_that_are_no_real_scalar_are_errors_that_name_the_remedy() -> None:
    with pytest.raises(ValueError, match=r"must return a scalar, but returned f64\[2\]. Use jacobian or vjp"):
        dg.grad(lambda x: x)(np.ones(2))
    with pytest.raises(TypeError, match=r"must return one scalar tensor.*has_aux=True"):
        dg.grad(lambda x: (x, x))(1.0)
    with pytest.raises(TypeError, match=r"must return a real float, but returned i64\[\]"):
        dg.grad(lambda x: dg.cast(x, "int64"))(1.0)
    with pytest.raises(TypeError, match=r"must return a real float, but returned c128\[\]"):
        dg.grad(lambda x: x * x)(1j)


MADE = {"grad": dg.grad, "value_and_grad": dg.value_and_grad, "jacobian": dg.jacobian, "hessian": dg.hessian}
CALLED = {
    "vjp": lambda f: dg.vjp(f, 3),
    "jvp": lambda f: dg.jvp(f, (3,), (1,)),
    "hvp": lambda f: dg.hvp(f, 3, 1),
    **{name: lambda f, made=made: made(f)(3) for name, made in MADE.items()},
}


@pytest.mark.parametrize("name", CALLED)
def test_errors_name_the_function_that_was_called(name: str) -> None:
    with pytest.raises(TypeError, match=rf"^{name}: argument 'x' of '.*<lambda>' has dtype int64"):
        CALLED[name](lambda x: x)


@pytest.mark.parametrize("name", ["grad", "value_and_grad", "hessian"])
def test_errors_about_the_value_name_the_function_too(name: str) -> None:
    with pytest.raises(ValueError, match=rf"^{name}: '.*<lambda>' must return a scalar"):
        MADE[name](lambda x: x)(np.ones(2))


@pytest.mark.parametrize("name", CALLED)
def test_what_is_no_function_is_refused_at_once(name: str) -> None:
    with pytest.raises(TypeError, match=f"^{name} takes a function and differentiates it, got 3.0"):
        MADE[name](3.0) if name in MADE else CALLED[name](3.0)


def test_arguments_by_keyword_count_by_position() -> None:
    def f(w: Any, n: int = 2) -> Any:
        return w**n

    assert dg.grad(f)(w=3.0) == 6
    assert dg.grad(f)(n=3, w=3.0) == 27
    assert dg.grad(f, argnums=-1)(3.0) == 6
    with dg.Graph():
        assert run(dg.grad(f)(w=f32(3.0))) == 6
    with pytest.raises(TypeError, match=r"^grad of '.*f': got an unexpected keyword argument 'm'"):
        dg.grad(f)(3.0, m=1)


def test_complex_arguments_follow_gradients() -> None:
    assert dg.grad(lambda x: dg.real(x * x))(7 + 3j) == 14 - 6j


def test_the_made_functions_are_named_after_f() -> None:
    assert dg.grad(loss).__name__ == "grad_loss"
    assert dg.hessian(loss).__name__ == "hessian_loss"


# -- vjp and jvp -------------------------------------------------------------------------------------------------


def pair(x: Any, y: Any) -> Any:
    return {"product": x * y, "count": dg.cast(x, "int32"), "sum": [x + dg.sum(y)]}


def test_vjp_outside_a_graph() -> None:
    y, pullback = dg.vjp(pair, np.array([2.0, 3.0]), np.array([5.0, 7.0]))
    np.testing.assert_array_equal(y["product"], [10, 21])
    for _ in range(2):
        dx, dy = pullback({"product": np.array([1.0, 10.0]), "count": None, "sum": [np.array([100.0, 0.0])]})
        np.testing.assert_array_equal(dx, [105, 70])
        np.testing.assert_array_equal(dy, [102, 130])


def test_vjp_inside_a_graph() -> None:
    with dg.Graph():
        x, y = dg.constant([2.0, 3.0]), dg.constant([5.0, 7.0])
        out, pullback = dg.vjp(lambda x, y: x * y, x, y)
        found = pullback(dg.constant([1.0, 10.0]))
    np.testing.assert_array_equal(run(out), [10, 21])
    np.testing.assert_array_equal(run(list(found)), [[5, 70], [2, 30]])
    with dg.Graph(), pytest.raises(ValueError, match="call it in the same graph"):
        pullback(np.ones(2))


def test_vjp_has_aux() -> None:
    y, pullback, aux = dg.vjp(lambda x: (x * x, x + 1), 3.0, has_aux=True)
    assert (float(y), float(aux), float(pullback(1.0)[0])) == (9, 4, 6)


CALLS = {
    "jvp": lambda f: dg.jvp(f, (1.0,), (1.0,))[1],
    "hvp": lambda f: dg.hvp(f, 1.0, 1.0),
    "vjp": lambda f: dg.vjp(f, 1.0)[1](1.0)[0],
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_what_f_closes_over_is_what_it_is_at_the_call(call: Any) -> None:
    w = 2.0

    def f(x: Any) -> Any:
        return x * x / 2 * w

    assert call(f) == 2
    w = 3.0
    assert call(f) == 3


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_bound_methods_see_their_instance_as_it_is(call: Any) -> None:
    class Scale:
        def __init__(self, w: float):
            self.w = w

        def apply(self, x: Any) -> Any:
            return x * x / 2 * self.w

    model = Scale(2.0)
    assert call(model.apply) == 2
    model.w = 3.0
    assert call(model.apply) == 3


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_nothing_keeps_f_alive(call: Any) -> None:
    def f(x: Any) -> Any:
        return x * x

    alive = weakref.ref(f)
    call(f)
    del f
    gc.collect()
    assert alive() is None


def test_in_a_function_they_are_traced_once() -> None:
    traced: list[Any] = []

    @dg.function
    def slope(x: Any) -> Any:
        traced.append(x)
        return dg.jvp(lambda x: x * x, (x,), (1.0,))[1]

    assert [float(slope(np.float64(x))) for x in (1, 2)] == [2, 4]
    assert len(traced) == 1


# -- a pullback is of the point at which vjp evaluated -----------------------------------------------------------


def test_a_pullback_keeps_the_arguments_that_it_was_made_of() -> None:
    x = np.ones(2)
    _, pullback = dg.vjp(lambda x: x * x, x)
    x[:] = 5
    np.testing.assert_array_equal(pullback(np.ones(2))[0], [2, 2])


@pytest.mark.parametrize("f", [dg.exp, lambda x: dg.reshape(dg.exp(x), (2, 1)), dg.identity], ids=["exp", "view", "x"])
def test_a_pullback_does_not_see_what_is_done_to_the_value(f: Any) -> None:
    y, pullback = dg.vjp(f, np.zeros(2))
    y[:] = 7
    (first,) = pullback(np.ones_like(y))
    np.testing.assert_array_equal(first, [1, 1])
    first[:] = 7
    np.testing.assert_array_equal(pullback(np.ones_like(y))[0], [1, 1])


def test_a_pullback_keeps_the_variables_that_it_was_made_of() -> None:
    v = dg.Variable(2.0)
    y, pullback = dg.vjp(lambda x: x * v, 3.0)
    v.assign(10.0)
    assert (float(y), float(pullback(1.0)[0])) == (6, 2)


def test_variables_that_only_the_gradient_reads_are_kept_too() -> None:
    v = dg.Variable(2.0)

    @dg.custom_gradient
    def f(x: Any) -> Any:
        return x * 1, lambda dy: dy * v.read()

    _, pullback = dg.vjp(f, 3.0)
    v.assign(10.0)
    assert float(pullback(1.0)[0]) == 2


def test_the_forward_part_runs_once_with_its_assigns() -> None:
    v = dg.Variable(0.0)
    ran: list[Any] = []

    @dg.op("TestDerivativesRan", infer=lambda x: (x.shape, x.dtype))
    def ran_once(x: Any) -> Any:
        ran.append(x)
        return x * 1

    dg.no_gradient("TestDerivativesRan")

    def f(x: Any) -> Any:
        v.assign_add(1.0)
        return x * ran_once(x)

    _, pullback = dg.vjp(f, 3.0)
    assert [float(pullback(g)[0]) for g in (1.0, 2.0)] == [3, 6]
    assert (float(v.numpy()), len(ran)) == (1, 1)


def test_what_a_gradient_function_assigns_is_assigned_by_each_pullback() -> None:
    v = dg.Variable(0.0)

    @dg.custom_gradient
    def f(x: Any) -> Any:
        def grad(dy: Any) -> Any:
            v.assign_add(1.0)
            return dy * v

        return x * 1, grad

    _, pullback = dg.vjp(f, 3.0)
    assert v.numpy() == 0
    assert [float(pullback(10.0)[0]) for _ in range(2)] == [10, 20]
    assert v.numpy() == 2
    with dg.Graph(), pytest.raises(ValueError, match="assigns a variable, so it cannot be part of a graph"):
        pullback(1.0)


def test_a_pullback_of_recompute_grad_and_of_functions() -> None:
    v = dg.Variable(2.0)
    block = dg.recompute_grad(dg.function(lambda x: dg.sin(x * v)))
    y, pullback = dg.vjp(block, np.array([1.0, 2.0]))
    v.assign(0.0)
    np.testing.assert_allclose(y, np.sin([2.0, 4.0]))
    np.testing.assert_allclose(pullback(np.array([1.0, 10.0]))[0], 2 * np.cos([2.0, 4.0]) * [1, 10])


def test_an_outside_pullback_in_a_graph_is_differentiable_in_the_cotangents() -> None:
    _, pullback = dg.vjp(lambda x, y: {"z": x * y, "n": dg.cast(x, "int32")}, 3.0, 5.0)
    with dg.Graph():
        g = dg.constant(2.0)
        dx, dy = pullback({"z": g, "n": None})
        found = run([dx, dy, *dg.gradients(dx, g)])
    assert [float(t) for t in found] == [10, 6, 5]


def test_a_pullback_of_integers_alone_and_of_unused_arguments_is_zeros() -> None:
    _, pullback = dg.vjp(lambda x: dg.cast(x, "int32"), np.ones(2))
    np.testing.assert_array_equal(pullback(None)[0], [0, 0])
    first, second = dg.vjp(lambda x, y: x, np.ones(2), {"w": 1.0})[1](np.ones(2))
    np.testing.assert_array_equal(first, [1, 1])
    assert second["w"] == 0


def test_vjp_errors() -> None:
    with pytest.raises(TypeError, match=r"vjp: with has_aux=True .* must return a pair \(value, anything\)"):
        dg.vjp(lambda x: x, 1.0, has_aux=True)
    with dg.Graph():
        x = dg.constant(1.0)
    with pytest.raises(TypeError, match="has no value outside its graph"):
        dg.vjp(lambda x: x, x)
    with pytest.raises(TypeError, match="has no value outside its graph"):
        dg.vjp(lambda x: x, 1.0)[1](x)


def test_cotangents_must_fit() -> None:
    _, pullback = dg.vjp(lambda x: {"a": x}, np.ones(2))
    with pytest.raises(ValueError, match=r"a different structure: \[\"\['b'\]\"\] for \[\"\['a'\]\"\]"):
        pullback({"b": np.ones(2)})
    with pytest.raises(ValueError, match=r"\['a'\] is f64\[3\] and must be f64\[2\]"):
        pullback({"a": np.ones(3)})


def test_jvp_equals_finite_differences() -> None:
    direction = Params(RNG.normal(size=(3, 2)), RNG.normal(size=2))
    y, moved = dg.jvp(lambda p: loss(p, X), (P,), (direction,))
    h = 1e-6
    ends = [dg.function(loss)(Params(P.w + t * direction.w, P.b + t * direction.b), X) for t in (h, -h)]
    np.testing.assert_allclose(moved, (ends[0] - ends[1]) / (2 * h), rtol=1e-7)
    np.testing.assert_array_equal(y, dg.function(loss)(P, X))


def test_jvp_of_nested_values_with_integers_and_without_a_path() -> None:
    def f(x: Any) -> Any:
        return {**pair(x, x), "fixed": dg.constant([1.0, 2.0])}

    _, moved = dg.jvp(f, (np.array([2.0, 3.0]),), (np.ones(2),))
    np.testing.assert_array_equal(moved["product"], [4, 6])
    np.testing.assert_array_equal(moved["count"], np.zeros(2, "int32"))
    np.testing.assert_array_equal(moved["fixed"], [0, 0])


def test_jvp_of_float32_takes_python_numbers() -> None:
    y, moved = dg.jvp(lambda x: x * x, (np.float32(3),), (1.0,))
    assert (y.dtype, moved.dtype, float(moved)) == (np.float32, np.float32, 6)


@pytest.mark.parametrize("f", [dg.square, dg.tanh, dg.function(lambda x: dg.exp(x) / x), lambda x: dg.matmul(x, x)])
def test_jvp_does_not_depend_on_the_gradients_it_starts_from(f: Any) -> None:
    with dg.Graph():
        x = dg.constant([[1.0, 2.0], [3.0, 4.0]])
        moved = [
            derivatives._push([f(x)], [x], [dg.ones_like(x)], [dg.full((2, 2), value)])[0] for value in (0.0, np.nan)
        ]
    np.testing.assert_array_equal(*run(moved))
    assert np.isfinite(run(moved[1])).all()


@pytest.mark.parametrize("f", [dg.square, dg.tanh, lambda x: dg.matmul(x, x)])
def test_jvp_does_not_even_run_what_it_starts_from(f: Any) -> None:
    with dg.Graph():
        x = dg.constant([[1.0, 2.0], [3.0, 4.0]])
        (moved,) = derivatives._push([f(x)], [x], [dg.ones_like(x)], [dg.placeholder((2, 2), name="never_fed")])
    assert run(moved).shape == (2, 2)


def test_jvp_arguments_are_checked() -> None:
    with pytest.raises(TypeError, match="jvp: primals must be a tuple"):
        dg.jvp(lambda x: x, 1.0, (1.0,))
    with pytest.raises(ValueError, match="jvp: tangents must be a tuple of 1"):
        dg.jvp(lambda x: x, (1.0,), (1.0, 2.0))
    with pytest.raises(ValueError, match=r"jvp: tangents do not fit: \[0\] is f64\[3\] and must be f64\[2\]"):
        dg.jvp(lambda x: x, (np.ones(2),), (np.ones(3),))


# -- jacobian, hessian, hvp --------------------------------------------------------------------------------------


def wide(x: Any) -> Any:
    return dg.concatenate([dg.sin(x), x * x, dg.exp(x)])


def narrow(x: Any) -> Any:
    return dg.reshape(dg.sum(x * x * x), (1,))


@pytest.mark.parametrize("f", [wide, narrow, lambda x: x * dg.sum(x), lambda x: dg.constant([1.0, 2.0, 3.0, 4.0])])
def test_jacobian_equals_finite_differences_by_rows_and_by_columns(f: Any) -> None:
    x = np.array([0.3, -0.7])
    found = dg.jacobian(f)(x)
    run_f = dg.function(f)
    h = 1e-6
    columns = [(run_f(x + h * e) - run_f(x - h * e)) / (2 * h) for e in np.eye(2)]
    np.testing.assert_allclose(found, np.stack(columns, -1), rtol=1e-6, atol=1e-9)


def test_jacobian_makes_as_many_passes_as_the_smaller_side_has_elements() -> None:
    def passes(f: Any, n: int) -> int:
        with dg.Graph() as graph:
            dg.jacobian(f)(dg.constant(np.ones(n)))
        return sum("grad_ys_0" in op.name for op in graph.ops)

    assert passes(lambda x: dg.tile(x, 50), 2) == 3
    assert passes(lambda x: dg.reshape(dg.sum(x * x), (1,)), 100) == 1


def test_jacobian_of_nested_arguments_and_values() -> None:
    def f(p: Any, x: Any) -> Any:
        return {"y": p["w"] * x, "z": (p["b"] * p["b"],)}

    made = dg.jacobian(f)({"w": np.ones((2, 3)), "b": 5.0}, np.full((2, 3), 2.0))
    assert made["y"]["w"].shape == (2, 3, 2, 3)
    assert made["y"]["w"].sum() == 12
    np.testing.assert_array_equal(made["y"]["b"], np.zeros((2, 3)))
    assert made["z"][0]["b"] == 10
    both = dg.jacobian(lambda x, y: x * y, (0, 1))(np.float64(2), np.array([3.0, 4.0]))
    np.testing.assert_array_equal(both[0], [3, 4])
    np.testing.assert_array_equal(both[1], [[2, 0], [0, 2]])


def test_jacobian_of_empty_arrays_and_of_integers() -> None:
    assert dg.jacobian(lambda x: x * x)(np.ones(0)).shape == (0, 0)
    assert dg.jacobian(lambda x: dg.sum(x))(np.ones((0, 2))).shape == (0, 2)
    with pytest.raises(TypeError, match=r"its value of .* has dtype int64"):
        dg.jacobian(lambda x: dg.cast(x, "int64"))(1.0)


def test_jacobian_inside_a_graph() -> None:
    with dg.Graph():
        made = dg.jacobian(dg.sin)(dg.constant([0.0, 0.0]))
    np.testing.assert_array_equal(run(made), np.eye(2))


def test_hessian_blocks() -> None:
    made = dg.hessian(lambda p: dg.sum(p["a"] * p["a"]) * p["b"])({"a": np.array([1.0, 2.0]), "b": 3.0})
    np.testing.assert_array_equal(made["a"]["a"], 6 * np.eye(2))
    np.testing.assert_array_equal(made["a"]["b"], [2, 4])
    np.testing.assert_array_equal(made["b"]["a"], [2, 4])
    np.testing.assert_array_equal(made["b"]["b"], 0)


def test_hessian_of_a_linear_function_is_zeros() -> None:
    np.testing.assert_array_equal(dg.hessian(lambda x: dg.sum(3 * x))(np.ones(2)), np.zeros((2, 2)))


def test_hvp_is_the_hessian_times_the_vector() -> None:
    def f(x: Any) -> Any:
        return dg.sum(dg.exp(x) * x[::-1])

    x, v = RNG.normal(size=4), RNG.normal(size=4)
    product = dg.hessian(f)(x) @ v
    np.testing.assert_allclose(dg.hvp(f, x, v), product, rtol=1e-12)
    np.testing.assert_allclose(dg.hvp(f, (x,), (v,))[0], product, rtol=1e-12)
    with dg.Graph():
        np.testing.assert_allclose(run(dg.hvp(f, dg.constant(x), v)), product, rtol=1e-12)


def test_hvp_of_several_arguments() -> None:
    made = dg.hvp(lambda x, p: x * x * p["w"], (2.0, {"w": 3.0}), (1.0, {"w": 10.0}))
    assert (float(made[0]), float(made[1]["w"])) == (46, 4)
    with pytest.raises(ValueError, match="hvp: tangents must be a tuple of 2"):
        dg.hvp(lambda x, y: x * y, (1.0, 2.0), (1.0,))


def test_hessians_keep_the_options_of_gradients() -> None:
    with dg.Graph() as graph:
        x = dg.constant([1.0, 2.0])
        dg.hessians(dg.sum(x * x * x), x, name="curvature", gate_gradients=True, aggregation_method=1)
    assert any(op.name.startswith("curvature/") for op in graph.ops)
