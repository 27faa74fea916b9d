"""Section 4 of the gradient semantics: custom_gradient, recompute_grad, grad_pass_through, and the seed page."""

from __future__ import annotations

import collections
from typing import Any

import numpy as np
import pytest

import distgrad as dg
from distgrad.graph import outside
from distgrad.testing import check_grads

from ..support import assert_values, f32, new_ops, run, unregistered

pytestmark = pytest.mark.usefixtures("graph")

G = dg.gradients
Point = collections.namedtuple("Point", ["x", "y"])


def scaled(factor: float) -> Any:
    """The identity with a gradient of its own."""
    return dg.custom_gradient(lambda x: (x, lambda dy: factor * dy))


# -- 4.1 basics --------------------------------------------------------------------------------------------------


def test_4_01_the_gradient_is_what_grad_fn_says() -> None:
    my_identity, x = scaled(3.0), f32(5.0)
    assert_values(G(my_identity(my_identity(x)), x), [9.0])


def test_4_01_each_argument_gets_its_own_gradient() -> None:
    @dg.custom_gradient
    def my_multiply(x1: Any, x2: Any) -> Any:
        return x1 * x2, lambda dy: (dy * x1, dy * x2)

    x1, x2 = f32(3.0), f32(5.0)
    assert_values(G(my_multiply(x1, x2), [x1, x2]), [3.0, 5.0])


def test_4_01_on_a_method_the_instance_is_no_argument() -> None:
    class Layer:
        factor = 4.0

        @dg.custom_gradient
        def call(self, x: Any) -> Any:
            return x * self.factor, lambda dy: 10 * self.factor * dy

    x = f32(2.0)
    y = Layer().call(x)
    assert_values([y, *G(y, x)], [8.0, 40.0])


def test_4_01_a_static_method_is_a_function() -> None:
    class Layer:
        @staticmethod
        @dg.custom_gradient
        def call(x: Any) -> Any:
            return x, lambda dy: 10 * dy

    x = f32(2.0)
    assert_values(G(Layer().call(x), x), [10.0])


def test_4_01_empty_parentheses_are_allowed() -> None:
    @dg.custom_gradient()
    def f(x: Any) -> Any:
        return x, lambda dy: 10 * dy

    x = f32(2.0)
    assert_values(G(f(x), x), [10.0])


@pytest.mark.parametrize("decorator", [dg.custom_gradient, dg.recompute_grad, dg.grad_pass_through])
def test_4_01_name_doc_and_wrapped_are_kept(decorator: Any) -> None:
    def f(x: Any) -> Any:
        """What f does."""

    made = decorator(f)
    assert (made.__name__, made.__doc__, made.__wrapped__) == ("f", "What f does.", f)


@pytest.mark.parametrize("decorator", [dg.custom_gradient, dg.recompute_grad, dg.grad_pass_through])
def test_4_01_only_functions_can_be_decorated(decorator: Any) -> None:
    with pytest.raises(TypeError, match=f"{decorator.__name__} decorates a function, got 3"):
        decorator(3)


@dg.custom_gradient
def log1pexp(x: Any) -> Any:
    e = dg.exp(x)

    def grad(dy: Any) -> Any:
        return dy * (1 - 1 / (1 + e))

    return dg.log(1 + e), grad


def test_4_02_log1pexp_has_gradient_one_where_the_plain_formula_has_nan() -> None:
    x = f32(100.0)
    assert np.isnan(run(G(dg.log(1 + dg.exp(x)), x)[0]))
    assert_values(G(log1pexp(x), x), [1.0])


def test_4_02_log1pexp_at_zero_to_second_order() -> None:
    x = f32(0.0)
    first = G(log1pexp(x), x)
    assert_values([*first, *G(first, x)], [0.5, 0.25])


def test_4_03_the_result_is_a_new_tensor_also_when_f_returns_its_argument() -> None:
    x = f32(1.0)
    assert scaled(1.0)(x) is not x


def test_4_03_python_numbers_as_outputs_are_converted() -> None:
    y = dg.custom_gradient(lambda x: (2.5, lambda dy: dy))(f32(1.0))
    assert isinstance(y, dg.Tensor)
    assert_values([y], [2.5])


def test_4_04_grad_fn_is_called_once_per_gradients_call_that_reaches_it() -> None:
    calls: list[Any] = []
    f = dg.custom_gradient(lambda x: (x, lambda dy: [calls.append(dy), dy][1]))
    x = f32(1.0)
    y = f(x)
    assert len(calls) == 0
    G([y * 2, y * 3], x)
    assert len(calls) == 1
    G(x * x, x)
    assert len(calls) == 1
    G(y, x)
    assert len(calls) == 2


def test_4_05_ops_inside_f_need_no_gradient() -> None:
    f = dg.custom_gradient(lambda x: (unregistered(x), lambda dy: 2 * dy))
    x = f32(1.0)
    assert_values(G(f(x), x), [2.0])


@pytest.mark.parametrize("inside", [dg.floor, dg.stop_gradient], ids=["no_gradient", "stop_gradient"])
def test_4_05_what_cuts_gradients_inside_f_cuts_nothing(inside: Any) -> None:
    straight_through = dg.custom_gradient(lambda x: (inside(x), lambda dy: dy))
    x = f32(1.7)
    assert_values(G(straight_through(x) * 3, x), [3.0])


def test_4_05_closed_over_tensors_get_none() -> None:
    a, k = f32(3.0), f32(4.0)
    y = dg.custom_gradient(lambda a: (a * k, lambda dy: dy * k))(a)
    assert_values(G(y, [a, k]), [4.0, None])


def test_4_05_tensors_made_inside_f_get_none() -> None:
    made: list[Any] = []
    f = dg.custom_gradient(lambda x: ([made.append(x * 2), made[0] * 3][1], lambda dy: dy))
    y = f(f32(1.0))
    assert G(y, made[0]) == [None]


def test_4_06_uses_inside_and_outside_add() -> None:
    x = f32(1.0)
    assert_values(G(scaled(100.0)(x) + x, x), [101.0])


def test_4_06_the_same_tensor_passed_twice_gets_the_sum() -> None:
    f = dg.custom_gradient(lambda a, b: (a + b, lambda dy: (100 * dy, 7 * dy)))
    x = f32(1.0)
    assert_values(G(f(x, x), x), [107.0])


def test_4_06_y_behaves_as_any_tensor_as_x_and_in_stop_gradients() -> None:
    x = f32(3.0)
    y = scaled(10.0)(x)
    assert_values(G(y * y, [x, y]), [60.0, 6.0])
    assert_values(G(y * y, [x, y], stop_gradients=[y]), [None, 6.0])


def test_4_06_inside_a_function() -> None:
    slope = dg.function(lambda x: G(log1pexp(x), x)[0])
    with outside():
        np.testing.assert_array_equal(slope(np.float64(1000.0)), 1.0)


def test_4_06_behind_the_call_of_a_function() -> None:
    v = dg.Variable(3.0, name="v")
    f = dg.custom_gradient(lambda x: (x * v, lambda dy, variables: (7 * dy, [9 * dy * x])))
    x = dg.constant(2.0)
    y = dg.function(lambda x: f(x) * 2)(x)
    assert y.op.type == "Call"
    assert_values(G(y, [x, v]), [14.0, 36.0])


# -- 4.2 inputs, outputs, structures -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        lambda a, b: (a, b),
        lambda a, b: [a, b],
        lambda a, b: {"b": b, "a": a},
        lambda a, b: Point(a, b),
        lambda a, b: {"z": [a, (b,)]},
    ],
    ids=["tuple", "list", "dict", "namedtuple", "nested"],
)
def test_4_07_outputs_may_be_nested_and_keep_their_structure(make: Any) -> None:
    f = dg.custom_gradient(lambda x: (make(x * 2, x * 3), lambda *dys: dys[0] * 10 + dys[1] * 100))
    x = f32(1.0)
    y = f(x)
    assert dg.nest.map_structure(lambda _: 0, y) == make(0, 0)
    assert type(y) is type(make(0, 0))
    assert_values(G(dg.nest.flatten(y), x), [110.0])


def test_4_07_grad_fn_gets_one_gradient_per_output_dicts_by_sorted_key() -> None:
    seen: list[Any] = []

    @dg.custom_gradient
    def f(x: Any) -> Any:
        def grad(*dys: Any) -> Any:
            seen.extend(dys)
            return dys[0]

        return {"b": x, "a": [x + 1, x + 2]}, grad

    x = f32(0.0)
    y = f(x)
    G([y["b"] * 1, y["a"][0] * 10, y["a"][1] * 100], x)
    assert_values(seen, [10.0, 100.0, 1.0])


def test_4_08_unused_outputs_give_zeros_and_used_ones_their_gradient() -> None:
    f = dg.custom_gradient(lambda x: ((x, x), lambda d1, d2: 10 * d1 + 100 * d2))
    x = f32(1.0)
    a, b = f(x)
    assert_values([G(a, x)[0], G([a, b], x)[0], G([a, b], x, grad_ys=[2.0, 3.0])[0]], [10.0, 110.0, 320.0])


def test_4_08_integer_outputs_give_none() -> None:
    seen: list[Any] = []

    @dg.custom_gradient
    def f(x: Any) -> Any:
        return (x, dg.cast(x, "int32")), lambda *dys: [seen.append(dys), dys[0]][1]

    x = f32(1.0)
    G(f(x), x)
    assert seen[0][1] is None


def test_4_09_inputs_may_be_nested_and_gradients_follow_their_order() -> None:
    @dg.custom_gradient
    def f(args: Any, z: Any) -> Any:
        return args["b"] + args["a"][0] + z, lambda dy: (1 * dy, 2 * dy, 3 * dy)

    a, b, z = f32(1.0), f32(2.0), f32(3.0)
    assert_values(G(f({"b": b, "a": [a]}, z), [a, b, z]), [1.0, 2.0, 3.0])


def test_4_09_gradients_may_be_nested_like_the_arguments() -> None:
    @dg.custom_gradient
    def f(args: Any) -> Any:
        return args["b"] + args["a"], lambda dy: {"b": 20 * dy, "a": 10 * dy}

    a, b = f32(1.0), f32(2.0)
    assert_values(G(f({"b": b, "a": a}), [a, b]), [10.0, 20.0])


def test_4_10_every_positional_argument_becomes_a_tensor_with_a_slot() -> None:
    seen: list[Any] = []

    @dg.custom_gradient
    def f(x: Any, k: Any, s: Any) -> Any:
        seen.extend((k, s))
        return x * k, lambda dy: (dy * k, None, None)

    x = dg.constant(3.0)
    assert_values(G(f(x, 2.0, "text"), x), [2.0])
    assert all(isinstance(t, dg.Tensor) for t in seen)


def test_4_10_a_slot_left_out_is_an_error_that_lists_the_arguments() -> None:
    f = dg.custom_gradient(lambda x, k: (x * k, lambda dy: dy * k))
    x = dg.constant(3.0)
    with pytest.raises(ValueError, match=r"Num gradients 1 .* do not match its 2 arguments \['x', 'k'\]"):
        G(f(x, 2.0), x)


@pytest.mark.parametrize(
    ("args", "name"), [((None,), "x"), (([1.0, None],), r"x\[1\]"), ((1.0, 2.0, None), r"rest\[1\]")]
)
def test_4_10_none_as_argument_is_a_value_error_that_names_it(args: Any, name: str) -> None:
    def f(x: Any, *rest: Any) -> Any:
        return x, lambda dy: dy

    with pytest.raises(ValueError, match=rf"argument {name} of .*f' \(called at test_spec_4.*py:\d+\) is None"):
        dg.custom_gradient(f)(*args)


def test_4_10_what_cannot_become_a_tensor_is_a_type_error_that_names_it() -> None:
    remedy = "Pass anything that is not an array by keyword"
    with pytest.raises(TypeError, match=rf"argument x of .* cannot become a tensor: .*{remedy}"):
        scaled(1.0)(object())


def test_4_11_keyword_arguments_are_static_and_have_no_gradient_slot() -> None:
    @dg.custom_gradient
    def f(x: Any, power: int = 1, mode: Any = None) -> Any:
        assert mode == "up"
        return x**power, lambda dy: 100 * power * dy

    x = f32(2.0)
    y = f(x, power=3, mode="up")
    assert_values([y, *G(y, x)], [8.0, 300.0])


def test_4_11_a_tensor_given_by_keyword_gets_none() -> None:
    f = dg.custom_gradient(lambda x, k: (x * k, lambda dy: dy * k))
    x, k = f32(2.0), f32(5.0)
    assert_values(G(f(x, k=k), [x, k]), [5.0, None])


def test_4_11_a_gradient_for_a_keyword_argument_is_one_too_many() -> None:
    f = dg.custom_gradient(lambda x, k: (x * k, lambda dy: (dy * k, dy * x)))
    x, k = f32(2.0), f32(5.0)
    with pytest.raises(ValueError, match=r"Num gradients 2 .* do not match its 1 arguments \['x'\]"):
        G(f(x, k=k), x)


def test_4_12_no_arguments_are_allowed() -> None:
    k = f32(2.0)
    for nothing in (None, []):
        y = dg.custom_gradient(lambda nothing=nothing: (k * 3, lambda dy: nothing))()
        assert_values([y, *G(y, k)], [6.0, None])


# -- 4.3 grad_fn results and errors ------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, 3])
def test_4_13_a_wrong_number_of_gradients_is_a_value_error_when_differentiating(count: int) -> None:
    f = dg.custom_gradient(lambda a, b: (a + b, lambda dy: [dy] * count))
    x = f32(1.0)
    y = f(x, x)
    text = rf"Num gradients {count} returned by the grad_fn of .*lambda.* \(called at .*py:\d+\) do not match its 2"
    with pytest.raises(ValueError, match=text):
        G(y, x)


def test_4_14_none_for_one_input_is_none_there_or_zeros_with_zero() -> None:
    f = dg.custom_gradient(lambda a, b: (a + b, lambda dy: (None, dy)))
    a, b = f32([1.0, 2.0]), f32([3.0, 4.0])
    y = f(a, b)
    assert_values(G(y, [a, b]), [None, [1.0, 1.0]])
    assert_values(G(y, [a, b], unconnected_gradients="zero"), [[0.0, 0.0], [1.0, 1.0]])


def test_4_14_a_bare_none_serves_a_single_input() -> None:
    x = f32(1.0)
    assert G(dg.custom_gradient(lambda x: (x, lambda dy: None))(x), x) == [None]


def test_4_15_a_wrong_shape_is_a_value_error_that_names_the_argument() -> None:
    def f(first: Any, second: Any) -> Any:
        return first + second, lambda dy: (dy, dg.zeros(3, "float32"))

    x = f32([1.0, 2.0])
    y = dg.custom_gradient(f)(x, x)
    text = r"gradient for argument second of .*f' \(called at .*py:\d+\) has shape \[3\], but its value has shape \[2\]"
    with pytest.raises(ValueError, match=text):
        G(y, x)


def test_4_15_a_wrong_dtype_is_a_type_error_that_names_the_argument() -> None:
    f = dg.custom_gradient(lambda x: (x, lambda dy: dg.cast(dy, "float64")))
    x = f32(1.0)
    y = f(x)
    with pytest.raises(TypeError, match=r"argument x of .* has dtype float64, but its value has dtype float32"):
        G(y, x)


def test_4_15_python_numbers_are_converted() -> None:
    x = f32(1.0)
    (found,) = G(dg.custom_gradient(lambda x: (x, lambda dy: 7.0))(x), x)
    assert found.dtype == np.float32
    assert_values([found], [7.0])


def test_4_15_a_grad_fn_of_the_wrong_arity_is_a_type_error() -> None:
    f = dg.custom_gradient(lambda x: ((x, x), lambda dy: dy))
    x = f32(1.0)
    y = f(x)
    with pytest.raises(TypeError, match="positional argument"):
        G(y, x)


def test_4_15_exceptions_of_grad_fn_reach_the_caller_unchanged() -> None:
    error = RuntimeError("mine")

    def grad(dy: Any) -> Any:
        raise error

    x = f32(1.0)
    y = dg.custom_gradient(lambda x: (x, grad))(x)
    with pytest.raises(RuntimeError) as caught:
        G(y, x)
    assert caught.value is error


@pytest.mark.parametrize(
    ("result", "error", "text"),
    [
        (lambda x: x, TypeError, r"must return the pair \(y, grad_fn\), got <Tensor"),
        (lambda x: (x, lambda dy: dy, 3), ValueError, r"must return the pair \(y, grad_fn\), got 3 values"),
        (lambda x: (x, x), TypeError, r"grad_fn and must be callable, got <Tensor"),
        (lambda x: (None, lambda dy: dy), ValueError, r"returned None where a tensor should be"),
        (lambda x: (object(), lambda dy: dy), TypeError, r"must return tensors: <object"),
    ],
    ids=["tensor", "three", "not callable", "None", "object"],
)
def test_4_16_an_f_that_returns_no_pair_is_an_error_with_its_name_and_line(
    result: Any, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=rf"<lambda>' \(called at test_spec_4_custom_gradient.py:\d+\).*{text}"):
        dg.custom_gradient(result)(f32([1.0, 2.0]))


def test_4_17_grad_fn_may_return_indexed_slices() -> None:
    @dg.custom_gradient
    def f(x: Any) -> Any:
        return x * 2, lambda dy: dg.IndexedSlices(f32([4.0]), dg.constant([1]), (2,))

    x = f32([1.0, 2.0])
    (found,) = G(f(x), x)
    assert isinstance(found, dg.IndexedSlices)
    assert_values([found], [[0.0, 4.0]])


def test_4_17_the_gradient_of_y_may_arrive_as_indexed_slices() -> None:
    seen: list[Any] = []
    f = dg.custom_gradient(lambda x: (x, lambda dy: [seen.append(dy), dy][1]))
    x = f32([1.0, 2.0])
    sparse = dg.IndexedSlices(f32([5.0]), dg.constant([1]), (2,))
    assert_values(G(dg.identity(f(x)), x, grad_ys=sparse), [[0.0, 5.0]])
    assert isinstance(seen[0], dg.IndexedSlices)


@pytest.mark.parametrize("grad", [lambda dy: dy * 3, lambda dy: 3 * dy], ids=["left", "right"])
def test_4_17_such_a_gradient_becomes_dense_in_arithmetic_also_beside_a_number(grad: Any) -> None:
    x = f32([1.0, 2.0])
    y = dg.custom_gradient(lambda x: (x, grad))(x)
    assert_values(G(dg.gather(y, [1, 1]), x), [[0.0, 6.0]])


# -- 4.4 variables -----------------------------------------------------------------------------------------------


def listing(make: Any) -> list[str]:
    """The names of the variables that grad_fn is asked for."""
    names: list[str] = []

    @dg.custom_gradient
    def f(x: Any) -> Any:
        def grad(dy: Any, variables: Any = ()) -> Any:
            names.extend(v.name for v in variables)
            return (dy, [None] * len(variables)) if variables else dy

        return make(x), grad

    x = dg.constant(1.0)
    G(f(x), x)
    return names


def test_4_18_variables_are_passed_and_get_their_gradients() -> None:
    v = dg.Variable(np.array([2.0, 3.0], np.float32), name="v")

    @dg.custom_gradient
    def f(x: Any) -> Any:
        def grad(dy: Any, variables: Any = None) -> Any:
            assert variables == [v]
            return 10 * dy, [20 * dy]

        return x * v, grad

    x = f32([1.0, 1.0])
    y = f(x)
    assert_values([y, *G(y, [x, v])], [[2.0, 3.0], [10.0, 10.0], [20.0, 20.0]])


def test_4_18_variables_are_sorted_by_name_and_then_by_age() -> None:
    c, a, b1, b2 = (dg.Variable(1.0, name=name) for name in "cabb")
    found: list[Any] = []

    @dg.custom_gradient
    def f(x: Any) -> Any:
        def grad(dy: Any, variables: Any) -> Any:
            found.extend(variables)
            return dy, [dy] * len(variables)

        return x * b2 * c * a * b1, grad

    x = dg.constant(1.0)
    G(f(x), x)
    assert found == [a, b1, b2, c]


def test_4_19_a_closed_over_tensor_of_a_variable_counts_and_gets_none_itself() -> None:
    v = dg.Variable(np.float32(5.0), name="v")
    double = v * 2

    @dg.custom_gradient
    def f(x: Any) -> Any:
        return x * double, lambda dy, variables: (dy, [7 * dy for _ in variables])

    x = f32(1.0)
    assert_values(G(f(x), [x, v, double]), [1.0, 7.0, None])


def test_4_19_a_variable_upstream_of_an_argument_does_not_count() -> None:
    v = dg.Variable(np.float32(1.0), name="v")
    assert_values(G(scaled(3.0)(v * 5), v), [15.0])


def test_4_19_a_variable_behind_an_argument_and_used_inside_counts_for_the_inside() -> None:
    v = dg.Variable(np.float32(2.0), name="v")
    f = dg.custom_gradient(lambda x: (x * v, lambda dy, variables: (4 * dy, [7 * dy])))
    assert_values(G(f(v.read()), v), [11.0])


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (lambda x, v: x * v, ["v"]),
        (lambda x, v: x * dg.ones_like(v), []),
        (lambda x, v: x * dg.stop_gradient(v), []),
        (lambda x, v: x * dg.cast(dg.cast(v, "int32"), "float64"), []),
        (lambda x, v: unregistered(x * v), ["v"]),
        (lambda x, v: scaled(1.0)(x * v), ["v"]),
    ],
    ids=["used", "ones_like", "stop_gradient", "integer", "unregistered", "inner custom_gradient"],
)
def test_4_19_only_differentiable_dependence_counts(make: Any, names: list[str]) -> None:
    v = dg.Variable(1.0, name="v")
    assert listing(lambda x: make(x, v)) == names


def test_4_19_variables_that_are_not_trainable_do_not_count() -> None:
    v = dg.Variable(1.0, name="v", trainable=False)
    assert listing(lambda x: x * v) == []


def test_4_19_names_that_share_a_prefix_are_told_apart() -> None:
    v, v1 = dg.Variable(1.0, name="v"), dg.Variable(1.0, name="v_1")
    assert listing(lambda x: x * v1) == ["v_1"]
    assert listing(lambda x: x * v) == ["v"]


def test_4_19_in_the_body_of_a_nested_function() -> None:
    """outer(x) -> inner(x): y = f(x), which closes over v and a tensor of w that lies outside"""
    v, w = dg.Variable(2.0, name="v"), dg.Variable(3.0, name="w")

    @dg.function
    def outer(x: Any) -> Any:
        outside_tensor = w * 2

        @dg.custom_gradient
        def f(x: Any) -> Any:
            return x * v * outside_tensor, lambda dy, variables: (dy, [10 * i * dy for i, _ in enumerate(variables, 1)])

        return dg.function(lambda x: G(f(x), [x, v]))(x)

    with outside():
        assert outer(np.float64(1.0)) == [1.0, 10.0]


def test_4_20_a_variable_as_argument_needs_no_variables() -> None:
    v = dg.Variable(np.array([1.0, 2.0], np.float32), name="v")
    f = dg.custom_gradient(lambda x: (x * 2, lambda dy: dy * f32([5.0, 6.0])))
    assert_values(G(f(v), v), [[5.0, 6.0]])


def test_4_20_a_variable_as_argument_and_closed_over_gets_both_contributions() -> None:
    v = dg.Variable(np.float32(1.0), name="v")
    f = dg.custom_gradient(lambda x: (x * v, lambda dy, variables: (4 * dy, [7 * dy])))
    assert_values(G(f(v), v), [11.0])


def test_4_21_a_grad_fn_that_cannot_take_variables_is_a_type_error_when_f_is_called() -> None:
    v = dg.Variable(1.0, name="v")
    f = dg.custom_gradient(lambda x: (x * v, lambda dy: dy))
    text = r"<lambda>' \(called at .*py:\d+\) depends on variable 'v', so its grad_fn must take a keyword .*`variables`"
    with pytest.raises(TypeError, match=text):
        f(dg.constant(1.0))


def test_4_21_keyword_arguments_of_grad_fn_take_variables() -> None:
    v = dg.Variable(np.float32(1.0), name="v")
    f = dg.custom_gradient(lambda x: (x * v, lambda dy, **kw: (dy, [3 * dy for _ in kw["variables"]])))
    assert_values(G(f(f32(1.0)), v), [3.0])


@pytest.mark.parametrize(
    ("grad", "error", "text"),
    [
        (
            lambda dy, variables: (dy, [dy, dy]),
            ValueError,
            "returned 2 gradients of variables, but depends on 1: variable 'v'",
        ),
        (lambda dy, variables: (dy, []), ValueError, "returned 0 gradients of variables"),
        (lambda dy, variables: dy, TypeError, "returned <Tensor .* returns the pair"),
        (lambda dy, variables: (dy, [dy], 3), ValueError, "returned 3 values"),
        (lambda dy, variables: (dy, [dg.zeros(3)]), ValueError, r"gradient for variable 'v' in .* has shape \[3\]"),
        (
            lambda dy, variables: (dy, [dg.cast(dy, "float32")]),
            TypeError,
            "gradient for variable 'v' in .* has dtype float32",
        ),
    ],
    ids=["too many", "too few", "no pair", "three", "shape", "dtype"],
)
def test_4_21_wrong_gradients_of_variables_are_errors(grad: Any, error: type[Exception], text: str) -> None:
    v = dg.Variable(1.0, name="v")
    x = dg.constant(1.0)
    y = dg.custom_gradient(lambda x: (x * v, grad))(x)
    with pytest.raises(error, match=text):
        G(y, x)


def test_4_21_none_among_the_gradients_of_variables_is_none() -> None:
    v = dg.Variable(1.0, name="v")
    x = dg.constant(1.0)
    y = dg.custom_gradient(lambda x: (x * v, lambda dy, variables: (dy, [None])))(x)
    assert_values(G(y, [x, v]), [1.0, None])


def test_4_22_variables_in_the_signature_but_none_used() -> None:
    @dg.custom_gradient
    def f(x: Any) -> Any:
        def grad(dy: Any, variables: Any = "default") -> Any:
            assert variables == "default"
            return 5 * dy

        return x, grad

    x = f32(1.0)
    assert_values(G(f(x), x), [5.0])


def test_4_23_nested_functions_that_share_a_variable_list_it_once() -> None:
    v = dg.Variable(2.0, name="v")
    inner = dg.custom_gradient(lambda x: (x * v, lambda dy, variables: (dy, [dy])))
    assert listing(lambda x: inner(x) * v) == ["v"]


def test_4_23_a_variable_created_inside_f_counts_as_any_other() -> None:
    """It is an error for TensorFlow's reference variables alone; distgrad has none."""
    made: list[Any] = []

    @dg.custom_gradient
    def f(x: Any) -> Any:
        v = dg.Variable(np.float32(2.0), name="v")
        made.append(v)
        return x * v, lambda dy, variables: (10 * dy, [20 * dy for _ in variables])

    x = f32(3.0)
    y = f(x)
    assert_values([y, *G(y, [x, *made])], [6.0, 10.0, 20.0])


def test_4_23_also_when_grad_fn_does_not_expect_it() -> None:
    f = dg.custom_gradient(lambda x: (x * dg.Variable(np.float32(2.0), name="v"), lambda dy: dy))
    with pytest.raises(TypeError, match="depends on variable 'v', so its grad_fn must take"):
        f(f32(3.0))


def test_4_23_a_variable_created_in_a_function_is_made_once_per_trace() -> None:
    made: list[Any] = []

    @dg.function
    def count(x: Any) -> Any:
        made.append(dg.Variable(0.0, name="count"))
        return made[-1].assign_add(1.0) + 0 * dg.sum(x)

    with outside():
        assert [count(np.zeros(2)) for _ in range(3)] == [1.0, 2.0, 3.0]
        assert count(np.zeros(3)) == 1.0  # another signature, another trace
    assert [v.numpy() for v in made] == [3.0, 1.0]


# -- 4.5 higher order, eager, helpers ----------------------------------------------------------------------------


def test_4_24_second_order_differentiates_what_grad_fn_computes() -> None:
    f = dg.custom_gradient(lambda x: (x**3, lambda dy: dy * 5 * x))
    x = f32(2.0)
    first = G(f(x), x)
    assert_values([*first, *G(first, x)], [10.0, 5.0])


def test_4_24_second_order_of_a_chain() -> None:
    x = f32(3.0)
    first = G(scaled(2.0)(x) ** 2, x)
    assert_values([*first, *G(first, x)], [12.0, 8.0])


def test_4_24_with_the_true_gradient_nothing_differs_at_orders_one_and_two() -> None:
    @dg.custom_gradient
    def product(x: Any, y: Any) -> Any:
        return dg.sin(x) * y, lambda dy: (dy * dg.cos(x) * y, dy * dg.sin(x))

    with outside():
        check_grads(lambda x, y: product(x, y) * x, [np.array([0.3, 1.2]), np.array([2.0, -1.0])])


def test_4_25_custom_gradient_on_grad_fn_defines_the_derivative_by_dy_only() -> None:
    @dg.custom_gradient
    def f(x: Any) -> Any:
        return x * x, dg.custom_gradient(lambda dy: (dy * 2 * x, lambda ddy: 777 * ddy))

    x, seed = f32(3.0), f32(1.0)
    (first,) = G(f(x), x, grad_ys=seed)
    assert_values([first, *G(first, [x, seed])], [6.0, None, 777.0])


def test_4_25_a_function_of_x_inside_grad_fn_defines_the_second_derivative() -> None:
    derivative = dg.custom_gradient(lambda x: (2 * x, lambda dy: 777 * dy))
    f = dg.custom_gradient(lambda x: (x * x, lambda dy: dy * derivative(x)))
    x = f32(3.0)
    first = G(f(x), x)
    assert_values([*first, *G(first, x)], [6.0, 777.0])


def test_4_26_outside_a_graph_a_call_gives_the_value() -> None:
    with outside():
        y = log1pexp(np.array([0.0, 1.0]))
        assert isinstance(y, np.ndarray)
        np.testing.assert_allclose(y, np.log1p(np.exp([0.0, 1.0])))


def test_4_26_outside_a_graph_keywords_nesting_variables_and_numbers_work() -> None:
    v = dg.Variable(2.0, name="v")

    @dg.custom_gradient
    def f(args: Any, k: Any = None) -> Any:
        return {"y": args[0] * v * k, "n": args[1].shape[0]}, lambda dy, variables: (dy, [dy])

    with outside():
        assert f([3, np.ones(4)], k=10) == {"y": 60.0, "n": 4}


def test_4_26_outside_a_graph_the_errors_are_the_same() -> None:
    with outside(), pytest.raises(ValueError, match=r"argument x of .* is None"):
        scaled(1.0)(None)
    with outside(), pytest.raises(TypeError, match=r"must return the pair \(y, grad_fn\)"):
        dg.custom_gradient(lambda x: x)(1.0)


def test_4_26_arguments_choose_their_graph_when_none_is_open() -> None:
    x = f32(1.0)
    with outside():
        y = scaled(3.0)(x)
    assert y.graph is x.graph
    assert_values(G(y, x), [3.0])


def test_4_27_grad_pass_through_has_the_gradient_of_the_identity() -> None:
    x = f32(1.7)
    y = dg.grad_pass_through(dg.floor)(x)
    assert_values([y, *G(y * 5, x)], [1.0, 5.0])


def test_4_27_grad_pass_through_of_several_arguments() -> None:
    f = dg.grad_pass_through(lambda a, b: (dg.floor(a), dg.floor(b)))
    a, b = f32(1.7), f32([2.7, 3.7])
    y, z = f(a, b)
    assert_values(G([y * 2, z * 3], [a, b]), [2.0, [3.0, 3.0]])


def test_4_27_grad_pass_through_gives_none_to_variables_inside() -> None:
    x, v = f32(1.0), dg.Variable(np.float32(2.0), name="v")
    assert_values(G(dg.grad_pass_through(lambda x: x * v)(x), [x, v]), [1.0, None])


def test_4_27_grad_pass_through_changes_the_dtype_back() -> None:
    x = f32(1.7)
    (found,) = G(dg.grad_pass_through(lambda x: dg.cast(x, "float16"))(x), x)
    assert found.dtype == np.float32


def test_4_27_grad_pass_through_needs_as_many_outputs_as_arguments() -> None:
    x = f32(1.7)
    y = dg.grad_pass_through(lambda a, b: a + b)(x, x)
    with pytest.raises(ValueError, match="has 2 arguments but 1 outputs"):
        G(y, x)


# -- 4.28 recompute_grad -----------------------------------------------------------------------------------------


def test_4_28_recompute_grad_gives_the_gradients_of_f_to_second_order() -> None:
    cube = dg.recompute_grad(lambda x: x * x * x)
    x = f32(2.0)
    first = G(cube(x), x)
    assert_values([*first, *G(first, x)], [12.0, 12.0])


def test_4_28_with_several_arguments_and_outputs_nothing_differs_at_orders_one_and_two() -> None:
    block = dg.recompute_grad(lambda p, x: {"y": dg.sin(p["w"] * x), "z": dg.exp(x) * p["b"]})
    with outside():
        args = [np.array([0.3, 1.2]), np.array([2.0, -1.0]), np.array([0.5, 0.7])]
        check_grads(lambda w, b, x: block({"w": w, "b": b}, x), args)


def test_4_28_f_is_traced_again_once_for_each_gradients_call() -> None:
    traces: list[Any] = []
    f = dg.recompute_grad(lambda x: [traces.append(x), dg.exp(x)][1])
    x = f32(2.0)
    y = f(x)
    assert len(traces) == 1
    G([y, y * 2], x)
    assert len(traces) == 2
    G(x * x, x)
    assert len(traces) == 2


def test_4_28_the_backward_pass_reads_nothing_that_the_first_one_computed(graph: dg.Graph) -> None:
    x = f32(2.0)
    with new_ops(graph) as forward:
        y = dg.recompute_grad(lambda x: dg.sin(dg.exp(x)))(x)
    inner = {t for op in forward if op.type in ("Exp", "Sin") for t in op.outputs}
    with new_ops(graph) as backward:
        G(y, x)
    assert [op.type for op in backward].count("Exp") == 1
    assert not inner & {t for op in backward for t in op.inputs}


def test_4_28_the_second_pass_waits_for_the_gradients_of_the_outputs(graph: dg.Graph) -> None:
    v = dg.Variable(np.float32(3.0), name="v")
    x = f32(2.0)
    y = dg.recompute_grad(lambda x: dg.exp(x) * v)(x)
    loss = dg.sin(y)
    with new_ops(graph) as backward:
        (_, dy) = G(loss, [x, y])
    waiting = [op for op in backward if dy.op in op.control_inputs]
    again = next(op for op in backward if op.type == "Exp")
    assert [op.type for op in waiting] == ["Identity", "Identity"]  # x, and the read of v
    assert again.inputs[0].op in waiting
    assert not any(op.type == "ReadVariable" for op in backward)


def test_4_28_variables_get_their_gradients() -> None:
    v = dg.Variable(np.array([2.0, 3.0]), name="v")
    w = v * 2  # closed over, and of v
    x = dg.constant([0.3, 0.7])

    def f(x: Any) -> Any:
        return dg.sin(x * v) * w

    plain = G(f(x), [x, v])
    found = G(dg.recompute_grad(f)(x), [x, v])
    assert_values(found, run(plain))
    assert_values(G(found, [x, v]), run(G(plain, [x, v])))


def test_4_28_a_variable_behind_an_argument_and_inside_is_not_counted_twice() -> None:
    v = dg.Variable(2.0, name="v")
    assert_values(G(dg.recompute_grad(lambda x: x * v)(v * v), v), [12.0])


def test_4_28_arguments_that_do_not_matter_get_zeros() -> None:
    x, z, n = f32([1.0, 2.0]), f32([3.0]), dg.constant(3)
    y = dg.recompute_grad(lambda x, z, n: x * 2)(x, z, n)
    assert_values(G(y, [x, z, n]), [[2.0, 2.0], [0.0], None])


def test_4_28_keyword_arguments_are_handed_on() -> None:
    x = f32(2.0)
    y = dg.recompute_grad(lambda x, power=1: x**power)(x, power=3)
    assert_values([y, *G(y, x)], [8.0, 12.0])


def test_4_28_integer_and_unused_outputs_do_no_harm() -> None:
    f = dg.recompute_grad(lambda x: (dg.cast(x, "int32"), x * x, dg.exp(x)))
    x = f32(3.0)
    _, square, _ = f(x)
    assert_values(G(square, x), [6.0])


def test_4_28_blocks_may_follow_and_contain_each_other() -> None:
    inner = dg.recompute_grad(lambda x: dg.sin(x) * x)
    outer = dg.recompute_grad(lambda x: inner(inner(x)) + x)
    with outside():
        check_grads(lambda x: outer(outer(x)), [np.array([0.3, 1.2])])


def test_4_28_on_a_method_the_instance_is_no_argument() -> None:
    class Layer:
        def __init__(self) -> None:
            self.w = dg.Variable(np.float32(3.0), name="w")

        @dg.recompute_grad
        def call(self, x: Any) -> Any:
            return x * self.w

    layer, x = Layer(), f32(2.0)
    assert_values(G(layer.call(x), [x, layer.w]), [3.0, 2.0])


def test_4_28_outside_a_graph_a_call_gives_the_value() -> None:
    with outside():
        assert dg.recompute_grad(lambda x, k: x * k)(3.0, k=2.0) == 6.0


def test_4_28_the_second_pass_sees_the_variables_as_the_first_did() -> None:
    v = dg.Variable(5.0, name="v")

    @dg.function
    def step(x: Any) -> Any:
        y = dg.recompute_grad(lambda x: x * x * v)(x)
        v.assign(0.0)
        return G(y, [x, v])

    with outside():
        assert step(np.float64(3.0)) == [30.0, 9.0]
        assert v.numpy() == 0.0


def test_4_28_an_explicit_read_that_would_see_a_later_value_is_refused() -> None:
    v = dg.Variable(5.0, name="v")
    x = dg.constant(3.0)
    y = dg.recompute_grad(lambda x: x * x * v.read())(x)
    assert_values(G(y, x), [30.0])
    v.assign(0.0)
    with pytest.raises(
        ValueError, match=r"reads variable 'v' explicitly, and it was assigned before the backward pass"
    ):
        G(y, x)


def test_4_28_a_function_that_assigns_is_refused() -> None:
    v = dg.Variable(5.0, name="v")
    with pytest.raises(ValueError, match=r"assigns a variable \('v/assign', at .*py:\d+\), which would happen twice"):
        dg.recompute_grad(lambda x: v.assign(x))(dg.constant(3.0))


def test_4_28_a_function_that_changes_between_the_passes_is_refused() -> None:
    results = iter([lambda x: x, lambda x: dg.stack([x, x])])
    x = dg.constant(3.0)
    y = dg.recompute_grad(lambda x: next(results)(x))(x)
    with pytest.raises(ValueError, match=r"returned f64\[2\] when it was traced again for its gradient"):
        G(y, x)


def test_4_28_a_user_s_control_dependencies_do_not_make_it_read_anew(graph: dg.Graph) -> None:
    v = dg.Variable(5.0, name="v")
    x = dg.constant(3.0)
    y = dg.recompute_grad(lambda x: x * v)(x)
    with new_ops(graph) as backward, dg.control_dependencies([y]):
        found = G(y, [x, v])
    assert_values(found, [5.0, 3.0])
    assert not any(op.type == "ReadVariable" for op in backward)


# -- the ops it makes --------------------------------------------------------------------------------------------


def test_an_op_takes_the_name_of_the_function_and_the_line_of_the_call() -> None:
    op = log1pexp(f32(1.0)).op
    assert (op.type, op.name, op.source.filename) == ("IdentityN", "log1pexp", __file__)


def test_an_override_of_identity_does_not_reach_the_arguments(graph: dg.Graph) -> None:
    f = dg.custom_gradient(lambda x: (x**3, lambda dy: dy * 5 * x))
    x = f32(2.0)
    with graph.gradient_override_map({"Identity": "Nowhere"}):
        y = f(x)
    first = G(y, x)
    assert_values(G(first, x), [5.0])


def test_a_chain_of_thousands_costs_no_recursion() -> None:
    f, x = scaled(1.0), f32(1.0)
    y = x
    for _ in range(3000):
        y = f(y)
    assert_values(G(y, x), [1.0])


# -- the seed page -----------------------------------------------------------------------------------------------


def test_seed_log1pexp_as_the_page_writes_it() -> None:
    def log1pexp(x: Any) -> Any:
        return dg.log(1 + dg.exp(x))

    x = dg.constant(100.0, dtype="float32")
    y = log1pexp(x)
    dy = dg.gradients(y, x)  # Will be NaN when evaluated.
    assert np.isnan(run(dy)[0])

    @dg.custom_gradient
    def log1pexp_with_gradient(x: Any) -> Any:
        e = dg.exp(x)

        def grad(dy: Any) -> Any:
            return dy * (1 - 1 / (1 + e))

        return dg.log(1 + e), grad

    assert run(dg.gradients(log1pexp_with_gradient(x), x)) == [1.0]


def test_seed_grad_fn_with_variables_returns_a_pair() -> None:
    """g(*grad_ys, variables=None) returns (grad_xs, grad_vars)"""
    w = dg.Variable([2.0, 3.0], name="w")

    @dg.custom_gradient
    def scale(x: Any) -> Any:
        def grad(dy: Any, variables: Any = None) -> Any:
            (v,) = variables
            return dy * v, [dy * x]

        return x * w, grad

    x = dg.constant([5.0, 7.0])
    assert_values(dg.gradients(scale(x), [x, w]), [[2.0, 3.0], [5.0, 7.0]])
