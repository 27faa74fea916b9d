"""Section 6 of the gradient semantics: Defun and SymbolicGradient."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import distgrad as dg
from distgrad.graph import outside

from ..support import assert_values, f32, new_ops, run, types, unregistered

pytestmark = pytest.mark.usefixtures("graph")

G = dg.gradients
F = np.float32
SG = dg.raw_ops.SymbolicGradient


@dg.Defun(F)
def square_plus_one(x: Any) -> Any:
    return x * x + 1


@dg.Defun(F, F)
def product_and_sum(x: Any, y: Any) -> Any:
    return x * y, x + y


# -- SymbolicGradient --------------------------------------------------------------------------------------------


def test_6_01_the_arguments_are_keyword_only() -> None:
    with pytest.raises(TypeError, match="positional"):
        SG([f32(1.0)], [F], square_plus_one)  # type: ignore[misc]


def test_6_01_inputs_and_output_gradients_give_input_gradients() -> None:
    assert_values(SG(input=[f32([2.0]), f32([0.1])], Tout=[F], f=square_plus_one), [[0.4]])
    found = SG(input=[f32(2.0), f32(3.0), f32(10.0), f32(100.0)], Tout=[F, F], f=product_and_sum)
    assert_values(found, [130.0, 120.0])
    twice = dg.Defun(F)(lambda x: (x, x))
    assert_values(SG(input=[f32(1.0), f32(3.0), f32(4.0)], Tout=[F], f=twice), [7.0])


def test_6_01_f_may_be_the_name_of_a_function_that_was_called() -> None:
    square_plus_one(f32([1.0]))
    assert_values(SG(input=[f32([2.0]), f32([0.1])], Tout=[F], f="square_plus_one"), [[0.4]])

    @dg.function
    def inner(x: Any) -> Any:
        return SG(input=[x, x], Tout=[F], f="square_plus_one")[0]

    assert_values([inner(f32([2.0]))], [[8.0]])


def test_6_01_the_result_is_one_op_with_the_given_name(graph: dg.Graph) -> None:
    x = f32(2.0)
    with new_ops(graph) as added:
        SG(input=[x, x, x, x], Tout=[F, F], f=product_and_sum, name="slope")
    assert [(op.type, op.name, op.attrs["f"]) for op in added] == [("SymbolicGradient", "slope", "product_and_sum")]


def test_6_02_arguments_are_checked_when_the_op_is_built() -> None:
    x = f32(1.0)
    with pytest.raises(TypeError, match="Tout must be a list"):
        SG(input=[x, x], Tout=F, f=square_plus_one)
    with pytest.raises(TypeError, match=r"SymbolicGradient: \{1: 2\} is not a dtype"):
        SG(input=[x, x], Tout=[{1: 2}], f=square_plus_one)
    with pytest.raises(ValueError, match="Tout must have at least one"):
        SG(input=[x, x], Tout=[], f=square_plus_one)
    with pytest.raises(TypeError, match="input must be a list"):
        SG(input=x, Tout=[F], f=square_plus_one)
    with pytest.raises(ValueError, match="Tout has 3 dtypes for the 2 tensors"):
        SG(input=[x, x], Tout=[F, F, F], f=square_plus_one)
    with pytest.raises(TypeError, match="decorated with @Defun"):
        SG(input=[x, x], Tout=[F], f=lambda x: x)


def test_6_03_results_have_the_static_types_of_the_inputs() -> None:
    x, i = f32(np.ones((2, 3))), dg.constant([1, 2])
    f = dg.Defun()(lambda x, i: dg.sum(x))
    found = SG(input=[x, i, f32(1.0)], Tout=[F, np.int64], f=f)
    assert [t.spec for t in found] == [x.spec, i.spec]


def test_6_03_a_variable_as_input_stands_for_its_value_now_and_is_differentiated() -> None:
    v = dg.Variable(np.array([2.0, 3.0], F))
    seeds = f32([1.0, 10.0])
    square = dg.Defun()(lambda x: x * x)
    (found,) = SG(input=[v, seeds], Tout=[F], f=square)
    assert (found.shape, found.dtype) == (v.shape, v.dtype)
    assert_values([found, *G(found, [v, seeds])], [[4.0, 60.0], [2.0, 20.0], [4.0, 6.0]])
    with dg.control_dependencies([v.assign([5.0, 7.0])]):
        assert_values(SG(input=[v, seeds], Tout=[F], f=square), [[10.0, 140.0]])


def test_6_03_a_variable_as_input_of_an_eager_call() -> None:
    v = dg.Variable(np.array([2.0, 3.0], F))
    with outside():
        (found,) = SG(input=[v, np.ones(2, F)], Tout=[F], f=dg.Defun()(lambda x: x * x))
        np.testing.assert_array_equal(found, [4.0, 6.0])


def test_6_04_counts_dtypes_and_shapes_that_do_not_fit_f() -> None:
    x = f32([1.0])
    with pytest.raises(ValueError, match="expects 2 arguments, but 1 are given"):
        SG(input=[x], Tout=[F], f=square_plus_one)
    with pytest.raises(ValueError, match="returns 2 tensors, one per input, but Tout has 1"):
        SG(input=[x, x, x, x], Tout=[F], f=product_and_sum)
    with pytest.raises(TypeError, match=r"Tout\[0\] is int32, but input 0 of square_plus_one is float32"):
        SG(input=[x, x], Tout=["int32"], f=square_plus_one)
    with pytest.raises(ValueError, match=r"gradient of output 0 has shape \[2\], but must have shape \[1\]"):
        SG(input=[x, f32([1.0, 2.0])], Tout=[F], f=square_plus_one)
    with pytest.raises(TypeError, match="gradient of output 0 has dtype float64"):
        SG(input=[x, dg.constant([1.0])], Tout=[F], f=square_plus_one)


def test_6_04_an_unknown_function_or_an_op_without_gradient_is_a_lookup_error() -> None:
    square_plus_one(f32(1.0))
    with pytest.raises(LookupError, match=r"no function named 'nope'.*known: square_plus_one"):
        SG(input=[f32(1.0), f32(1.0)], Tout=[F], f="nope")
    with pytest.raises(LookupError, match="'TestUnregistered'"):
        SG(input=[f32(1.0), f32(1.0)], Tout=[F], f=dg.Defun(F)(lambda x: unregistered(x)))


def test_6_04_an_eager_call_computes() -> None:
    with outside():
        (found,) = SG(input=[np.array([2.0], F), np.array([0.1], F)], Tout=[F], f=square_plus_one)
        assert found.dtype == F
        np.testing.assert_allclose(found, [0.4], rtol=1e-6)
        with pytest.raises(LookupError, match="no function named 'square_plus_one'"):
            SG(input=[1.0, 1.0], Tout=[F], f="square_plus_one")


@pytest.mark.parametrize("body", [lambda x: f32([3.0]), lambda x: dg.floor(x), lambda x: dg.stop_gradient(x)])
def test_6_05_no_result_is_none(body: Any) -> None:
    x = f32([2.5])
    assert_values(SG(input=[x, x], Tout=[F], f=dg.Defun(F)(body)), [[0.0]])


def test_6_05_an_input_without_effect_gets_zeros_of_its_shape() -> None:
    f = dg.Defun(F, F)(lambda x, y: x * 2)
    assert_values(SG(input=[f32(1.0), f32([1.0, 2.0]), f32(1.0)], Tout=[F, F], f=f), [2.0, [0.0, 0.0]])


def test_6_06_integer_inputs_get_zeros() -> None:
    x, t = f32([5.0, 6.0]), dg.constant(0)
    look_up = dg.Defun()(lambda x, t: dg.gather(x, t))
    assert_values(SG(input=[x, t, f32(1.0)], Tout=[F, np.int64], f=look_up), [[1.0, 0.0], 0])
    through_cast = dg.Defun()(lambda t: 2 * dg.cast(t, F))
    assert_values(SG(input=[t, f32(1.0)], Tout=[np.int64], f=through_cast), [0])


def test_6_06_bool_inputs_get_false_and_integer_outputs_take_a_gradient_that_is_ignored() -> None:
    b = dg.constant(True)
    choose = dg.Defun()(lambda b, x: dg.where(b, x, 0))
    found = SG(input=[b, f32(2.0), f32(1.0)], Tout=[bool, F], f=choose)
    assert_values(found, [False, 1.0])
    rounded = dg.Defun(F)(lambda x: (x * 3, dg.cast(x, "int32")))
    found = SG(input=[f32(2.0), f32(1.0), dg.constant(9, "int32")], Tout=[F], f=rounded)
    assert_values(found, [3.0])


def test_6_07_stop_gradient_in_the_body_blocks() -> None:
    f = dg.Defun(F)(lambda x: dg.stop_gradient(x) * x)
    x = f32([2.5, 3.0])
    assert_values(SG(input=[x, f32([1.0, 1.0])], Tout=[F], f=f), [[2.5, 3.0]])
    assert_values(G(f(x), x), [[2.5, 3.0]])


def test_6_08_captured_tensors_are_inputs_after_the_declared_ones(graph: dg.Graph) -> None:
    x, k = f32(2.0), f32(5.0)
    f = dg.Defun(F)(lambda x: x * k)
    assert_values(SG(input=[x, k, f32(1.0)], Tout=[F, F], f=f), [5.0, 2.0])
    assert_values(SG(input=[x, f32(50.0), f32(1.0)], Tout=[F, F], f=f), [50.0, 2.0])
    with pytest.raises(ValueError, match="expects 3 arguments, but 2 are given: 1 declared inputs, 1 captured"):
        SG(input=[x, f32(1.0)], Tout=[F], f=f)
    y = f(x)
    with new_ops(graph) as added:
        found = G(y, [x, k])
    assert_values(found, [5.0, 2.0])
    assert [op.type for op in added].count("SymbolicGradient") == 1


def test_6_08_variables_are_captured() -> None:
    v = dg.Variable(F(5.0))
    f = dg.Defun(F)(lambda x: x * v)
    x = f32(2.0)
    y = f(x)
    assert y.op.inputs[1] is v.__tensor__()
    assert_values(G(y, [x, v]), [5.0, 2.0])


# -- Defun -------------------------------------------------------------------------------------------------------


def test_6_09_gradients_through_a_call_add_one_symbolic_gradient(graph: dg.Graph) -> None:
    x = f32([2.0])
    y = square_plus_one(x)
    assert (y.op.type, y.op.attrs["f"]) == ("Call", "square_plus_one")
    with new_ops(graph) as added:
        found = G(y, x)
    assert_values(found, [[4.0]])
    assert [op.type for op in added] == ["Fill", "SymbolicGradient"]


def test_6_09_an_unused_argument_gets_zeros() -> None:
    x, y = f32(1.0), f32(2.0)
    assert_values(G(dg.Defun(F, F)(lambda x, y: 2 * x)(x, y), [x, y]), [2.0, 0.0])
    assert_values(G(dg.Defun(F)(lambda x: f32(3.0))(x), x), [0.0])


def test_6_09_missing_output_gradients_are_zeros_for_integers_too(graph: dg.Graph) -> None:
    x = f32(2.0)
    a, _, _ = dg.Defun(F)(lambda x: (3 * x, dg.cast(x, "int32"), x * x))(x)
    assert_values(G(a, x), [3.0])
    (op,) = [op for op in graph.ops if op.type == "SymbolicGradient"]
    assert [t.dtype.name for t in op.inputs] == ["float32", "float32", "int32", "float32"]


def quadratic(x: Any, b: Any) -> Any:
    return x * x + b


def doubled(x: Any, b: Any, dy: Any) -> Any:
    return dy * 4 * x, dy * 2


def tripled(op: Any, dy: Any) -> Any:
    return dy * 6 * op.inputs[0], dy * 3


def test_6_10_grad_func_is_used_by_gradients_and_by_the_raw_op() -> None:
    f = dg.Defun(F, F, grad_func=dg.Defun(F, F, F)(doubled))(quadratic)
    x, b = f32([2.0]), f32([1.0])
    assert_values(SG(input=[x, b, f32([1.0])], Tout=[F, F], f=f), [[8.0], [2.0]])
    assert_values(G(f(x, b), [x, b]), [[8.0], [2.0]])


def test_6_10_python_grad_func_is_used_by_gradients_alone(graph: dg.Graph) -> None:
    f = dg.Defun(F, python_grad_func=lambda op, dy: dy * 4000)(lambda x: x * x)
    x = f32(2.0)
    assert_values(G(f(x), x), [4000.0])
    assert "SymbolicGradient" not in types(graph)
    assert_values(SG(input=[x, f32(1.0)], Tout=[F], f=f), [4.0])


def test_6_10_a_gradient_defined_twice_is_an_error_when_the_function_is_called() -> None:
    f = dg.Defun(F, F, grad_func=doubled, python_grad_func=tripled)(quadratic)
    with pytest.raises(ValueError, match="Gradient defined twice for function quadratic"):
        f(f32(1.0), f32(1.0))


def test_6_10_a_wrong_number_of_gradients() -> None:
    x = f32(2.0)
    y = dg.Defun(F, F, python_grad_func=lambda op, dy: [dy])(quadratic)(x, x)
    with pytest.raises(ValueError, match="Num gradients 1 generated for op"):
        G(y, x)
    y = dg.Defun(F, F, grad_func=lambda x, b, dy: dy)(quadratic)(x, x)
    with pytest.raises(ValueError, match=r"must return one gradient per input of quadratic, \(f32\[\], f32\[\]\)"):
        G(y, x)
    y = dg.Defun(F, F, grad_func=lambda x, dy: dy)(quadratic)(x, x)
    with pytest.raises(ValueError, match="takes 2 arguments, but is called with 3"):
        G(y, x)


@pytest.mark.parametrize(
    ("options", "expected"),
    [({}, [[4.0], [1.0]]), ({"grad_func": doubled}, [[8.0], [2.0]]), ({"python_grad_func": tripled}, [[12.0], [3.0]])],
)
def test_6_11_values(options: Any, expected: Any) -> None:
    x, b = f32([2.0]), f32([1.0])
    assert_values(G(dg.Defun(F, F, **options)(quadratic)(x, b), [x, b]), expected)


def test_6_11_composition() -> None:
    x, b1, b2 = f32([2.0]), f32([1.0]), f32([0.0])
    f = dg.Defun(F, F)(quadratic)
    assert_values(G(f(f(x, b1), b2), [x, b1]), [[40.0], [10.0]])


def test_6_11_the_same_body_with_different_gradients_stays_distinct(graph: dg.Graph) -> None:
    def body(x: Any) -> Any:
        return x * 2

    x = f32(100.0)
    plain = dg.Defun(F)(body)
    plus = dg.Defun(F, grad_func=lambda x, dy: dy * (x + 1))(body)
    half = dg.Defun(F, python_grad_func=lambda op, dy: dy * op.inputs[0] / 2)(body)
    assert_values([G(f(x), x)[0] for f in (plain, plus, half)], [2.0, 101.0, 50.0])
    assert list(graph.functions) == ["body", "body_1", "body_2"]
    assert [graph.functions[name] for name in graph.functions] == [plain, plus, half]


def test_6_11_two_functions_of_one_given_name_are_an_error() -> None:
    x = f32(1.0)
    dg.Defun(F, func_name="f")(lambda x: x)(x)
    with pytest.raises(ValueError, match="another function named 'f'"):
        dg.Defun(F, func_name="f")(lambda x: x * 2)(x)


def test_6_12_nested_functions_differentiate() -> None:
    @dg.Defun(F)
    def square(x: Any) -> Any:
        return x * x

    x = f32(2.0)
    assert_values(G(square(square(x)), x), [32.0])
    outer = dg.Defun(F)(lambda x: square(square(x)))
    assert_values(G(outer(x), x), [32.0])
    assert_values(SG(input=[x, f32(1.0)], Tout=[F], f=outer), [32.0])


def test_6_12_second_order_goes_through_symbolic_gradient() -> None:
    x = f32(2.0)
    y = dg.Defun(F)(lambda x: x * x * x)(x)
    for expected in (12.0, 12.0, 6.0):
        (y,) = G(y, x)
        assert_values([y], [expected])


def test_6_12_second_order_through_the_raw_op_and_through_python_grad_func() -> None:
    x = f32(2.0)
    cube = dg.Defun(F)(lambda x: x * x * x)
    (first,) = SG(input=[x, f32(1.0)], Tout=[F], f=cube)
    assert_values([first, *G(first, x)], [12.0, 12.0])
    cube = dg.Defun(F, python_grad_func=lambda op, dy: dy * 3 * op.inputs[0] ** 2)(lambda x: x * x * x)
    (first,) = G(cube(x), x)
    assert_values([first, *G(first, x)], [12.0, 12.0])


def test_6_12_a_symbolic_gradient_of_a_symbolic_gradient() -> None:
    x = f32(2.0)
    cube = dg.Defun(F)(lambda x: x * x * x + x * x)
    slope = dg.Defun(F, F)(lambda x, dy: SG(input=[x, dy], Tout=[F], f=cube))
    assert_values(SG(input=[x, f32(1.0), f32(1.0)], Tout=[F, F], f=slope), [14.0, 16.0])


def test_6_13_what_cannot_be_a_defun_is_a_value_error_when_it_is_decorated() -> None:
    with pytest.raises(ValueError, match="not callable"):
        dg.Defun(F)(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="argument defaults or keyword"):
        dg.Defun(F)(lambda x, y=1: x)
    with pytest.raises(ValueError, match="argument defaults or keyword"):
        dg.Defun(F)(lambda x, **rest: x)
    with pytest.raises(ValueError, match="takes 2 arguments, but 1 types are declared"):
        dg.Defun(F)(quadratic)
    with pytest.raises(TypeError, match=r"write @Defun\(\)"):
        dg.Defun(quadratic)


def test_6_13_wrong_calls_are_value_errors() -> None:
    x = f32(1.0)
    with pytest.raises(ValueError, match="square_plus_one expects 1 arguments, but 2 are given"):
        square_plus_one(x, x)
    with pytest.raises(ValueError, match="unknown keyword argument 'y'"):
        square_plus_one(x, y=x)
    with pytest.raises(TypeError, match="argument x has dtype float64, but float32 is declared"):
        square_plus_one(dg.constant(1.0))
    for result in (None, (), [None, x]):
        with pytest.raises(ValueError, match="cannot return"):
            _returning(result)()


def _returning(result: Any) -> Any:
    def f() -> Any:
        return result

    return dg.Defun()(f)


def test_6_13_undeclared_types_are_specialised_per_call_and_the_body_is_built_lazily() -> None:
    traced: list[str] = []

    @dg.Defun()
    def f(x: Any) -> Any:
        traced.append(str(x.spec))
        return x + x

    assert traced == []
    for x in (f32(1.0), f32(2.0), dg.constant(1.0), f32([1.0, 2.0])):
        y = f(x)
        assert y.spec == x.spec
    assert traced == ["f32[]", "f64[]", "f32[2]"]


def test_6_13_any_number_of_arguments() -> None:
    f = dg.Defun()(lambda *xs: dg.add_n(xs) * xs[0])
    x, y = f32(2.0), f32(3.0)
    assert_values(G(f(x, y), [x, y]), [7.0, 2.0])
    assert_values(SG(input=[x, y, f32(1.0)], Tout=[F, F], f=f), [7.0, 2.0])
    assert_values([dg.Defun(F, F, F)(lambda *xs: dg.add_n(xs))(1, 2, x)], [5.0])


def test_6_13_a_defun_outside_any_graph_computes_at_once() -> None:
    with outside():
        made = square_plus_one(np.array([2.0], F))
        np.testing.assert_array_equal(made, np.array([5.0], F))
        assert made.dtype == F
        assert [float(v) for v in product_and_sum(2.0, 3.0)] == [6.0, 5.0]


def test_a_defun_must_not_assign_variables() -> None:
    v = dg.Variable(F(1.0))
    f = dg.Defun(F)(lambda x: v.assign(x))
    with pytest.raises(ValueError, match=r"assigns a variable.*use @distgrad\.function"):
        f(f32(2.0))
    with outside(), pytest.raises(ValueError, match="assigns a variable"):
        f(F(2.0))
    assert v.numpy() == 1


def test_a_defun_in_a_function_and_a_function_in_a_defun() -> None:
    half = dg.function(lambda x: x / 2)
    f = dg.Defun(F)(lambda x: half(x) * x)
    x = f32(3.0)
    assert_values(G(f(x), x), [3.0])
    with outside():
        slope = dg.function(lambda x: G(f(x), x)[0])
        assert slope(F(3.0)) == 3.0


def test_the_name_of_a_call_can_be_given() -> None:
    assert square_plus_one(f32(1.0), name="first").op.name == "first"


def test_call_symbolic_gradient_and_inlining_agree() -> None:
    """Property 7 of section 7: the same function inlined, called and differentiated symbolically."""

    def model(x: Any, w: Any) -> Any:
        return dg.sum(dg.tanh(dg.matmul(x, w)) ** 2)

    rng = np.random.default_rng(0)
    x, w = dg.constant(rng.normal(size=(3, 4))), dg.constant(rng.normal(size=(4, 2)))
    inlined = G(model(x, w), [x, w])
    called = G(dg.function(model)(x, w), [x, w])
    symbolic = SG(input=[x, w, np.array(1.0)], Tout=[x.dtype, w.dtype], f=dg.Defun()(model))
    for others in zip(*run([inlined, called, symbolic]), strict=True):
        np.testing.assert_allclose(others[1], others[0], rtol=1e-12)
        np.testing.assert_allclose(others[2], others[0], rtol=1e-12)
