"""Sections 2 and 3 of the gradient semantics: RegisterGradient, gradient functions, no_gradient; their seed pages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import distgrad as dg
from distgrad import registry
from distgrad.graph import check_graph

from ..support import assert_values, f32, unregistered

G = dg.gradients


@pytest.fixture(autouse=True)
def graph() -> Iterator[dg.Graph]:
    """A graph to build in; what a test registers is forgotten afterwards."""
    ops, gradients = dict(registry.OPS), dict(registry._GRADIENTS)
    with dg.Graph() as g:
        yield g
    check_graph(g)
    for table, before in ((registry.OPS, ops), (registry._GRADIENTS, gradients)):
        table.clear()
        table.update(before)  # type: ignore[arg-type]


def user_op(op_type: str, outputs: int = 1) -> Any:
    """A new op type that gives its input, once or several times."""

    def kernel(x: Any) -> Any:
        return x if outputs == 1 else (x,) * outputs

    return dg.op(op_type)(kernel)


def with_rule(rule: Any, value: Any = 3.0) -> list[Any]:
    """The gradient of a new one-input op with this gradient function."""
    build = user_op("Spec2")
    dg.RegisterGradient("Spec2")(rule)
    x = f32(value)
    return G(build(x), x)


# -- 2 RegisterGradient ------------------------------------------------------------------------------------------


def test_2_01_the_function_gets_op_and_gradient_and_returns_one_gradient_per_input() -> None:
    assert_values(with_rule(lambda op, g: 7 * g * op.inputs[0]), [21.0])


def test_2_01_the_decorator_returns_the_function_so_one_serves_several_types() -> None:
    @dg.RegisterGradient("Spec2A")
    @dg.RegisterGradient("Spec2B")
    def rule(op: Any, g: Any) -> Any:
        return 5 * g

    assert rule(None, 2.0) == 10.0
    a, b, x = user_op("Spec2A"), user_op("Spec2B"), f32(3.0)
    assert_values(G(a(b(x)), x), [25.0])


@pytest.mark.parametrize("op_type", [5, None, b"Sub"])
def test_2_02_an_op_type_that_is_no_string_is_a_type_error(op_type: Any) -> None:
    with pytest.raises(TypeError, match="RegisterGradient: op_type must be a string"):
        dg.RegisterGradient(op_type)


def test_2_02_the_op_type_need_not_exist() -> None:
    dg.RegisterGradient("Spec2Nowhere")(lambda op, g: g)
    assert registry.registered("Spec2Nowhere")
    assert "Spec2Nowhere" not in registry.OPS


def test_2_02_the_empty_op_type_is_refused() -> None:
    with pytest.raises(ValueError, match="must not be empty"):
        dg.RegisterGradient("")


def test_2_02_what_is_not_callable_is_refused() -> None:
    with pytest.raises(TypeError, match=r"RegisterGradient\('Spec2'\) decorates a function, got 3"):
        dg.RegisterGradient("Spec2")(3)  # type: ignore[type-var]


@pytest.mark.parametrize("first", ["RegisterGradient", "no_gradient"])
@pytest.mark.parametrize("second", ["RegisterGradient", "no_gradient"])
def test_2_03_registering_twice_is_a_key_error_that_says_where_the_first_was(first: str, second: str) -> None:
    def register(how: str) -> None:
        if how == "no_gradient":
            dg.no_gradient("Spec2")
        else:
            dg.RegisterGradient("Spec2")(lambda op, g: g)

    register(first)
    with pytest.raises(KeyError, match=r"'Spec2' is registered already \(at .*test_spec_2_3_registry.py:\d+\)"):
        register(second)


def test_2_03_a_built_in_type_cannot_be_registered_again() -> None:
    with pytest.raises(KeyError, match="'Exp' is registered already"):
        dg.RegisterGradient("Exp")(lambda op, g: g)


def test_2_03_override_replaces_a_rule_as_when_a_notebook_cell_runs_again() -> None:
    build, x = user_op("Spec2"), f32(3.0)
    for factor in (2, 3):
        dg.RegisterGradient("Spec2", override=True)(lambda op, g, factor=factor: factor * g)
    assert_values(G(build(x), x), [3.0])
    dg.no_gradient("Spec2", override=True)
    assert G(build(x), x) == [None]


def test_2_04_looking_up_a_missing_name_is_a_lookup_error_that_suggests_a_near_one() -> None:
    with pytest.raises(LookupError, match=r"no gradient is registered under 'Matmul'; did you mean 'MatMul'\?"):
        registry.lookup_gradient("Matmul")


def test_2_04_gradients_says_which_op_has_none_where_and_what_to_do() -> None:
    build, x = user_op("Spec2"), dg.placeholder((), name="w")
    y = dg.identity(build(x, name="mine"), name="loss")
    with pytest.raises(LookupError) as caught:
        G(y, x)
    for part in (
        "op type 'Spec2' (op 'mine', at test_spec_2_3_registry.py:",
        "between x 'w' and y 'loss'",
        '@distgrad.RegisterGradient("Spec2")',
        'distgrad.no_gradient("Spec2")',
        "stop_gradient()",
    ):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    "rule", [lambda op, g: 2 * g, lambda op, g: (2 * g,), lambda op, g: [2 * g]], ids=["tensor", "tuple", "list"]
)
def test_2_05_one_input_may_get_a_bare_tensor_a_tuple_or_a_list(rule: Any) -> None:
    assert_values(with_rule(rule), [2.0])


def test_2_05_none_is_allowed() -> None:
    assert with_rule(lambda op, g: None) == [None]


@pytest.mark.parametrize("rule", [lambda op, g: (g, g), lambda op, g: []], ids=["too many", "none at all"])
def test_2_05_a_wrong_number_of_gradients_is_a_value_error(rule: Any) -> None:
    with pytest.raises(ValueError, match=r"Num gradients \d generated for op .*Spec2.* do not match num inputs 1"):
        with_rule(rule)


def test_2_05_too_few_gradients_are_a_value_error() -> None:
    build = dg.op("Spec2Two")(lambda x, y: x + y)
    dg.RegisterGradient("Spec2Two")(lambda op, g: g)
    x = f32(3.0)
    with pytest.raises(ValueError, match=r"Num gradients 1 generated .* do not match num inputs 2"):
        G(build(x, x), x)


@pytest.mark.parametrize("value", [2.0, np.float64(2.0), np.array(2.0)])
def test_2_06_python_and_numpy_numbers_are_converted(value: Any) -> None:
    found = with_rule(lambda op, g: value)
    assert found[0].dtype == np.float32
    assert_values(found, [2.0])


def test_2_06_what_cannot_be_converted_is_a_type_error_that_says_what_to_return() -> None:
    with pytest.raises(TypeError, match=r"gradient for input 0 of op 'Spec2' .*: return a tensor"):
        with_rule(lambda op, g: object())


def test_2_07_a_wrong_shape_is_a_value_error_with_op_input_and_both_shapes() -> None:
    with pytest.raises(ValueError, match=r"input 0 of op 'Spec2' .* has shape \[2\], .* has shape \[3\]"):
        with_rule(lambda op, g: dg.zeros(2, "float32"), [1.0, 2.0, 3.0])


def test_2_07_a_wrong_dtype_is_a_type_error() -> None:
    with pytest.raises(TypeError, match=r"has dtype float64, but the input .* has dtype float32"):
        with_rule(lambda op, g: dg.cast(g, "float64"))


def test_2_08_float_outputs_that_ys_do_not_use_get_zeros() -> None:
    seen: list[Any] = []
    build = user_op("Spec2", outputs=3)
    dg.RegisterGradient("Spec2")(lambda op, *gs: [seen.extend(gs), gs[1]][1])
    x = f32([1.0, 2.0])
    G(build(x)[1] * 3, x)
    assert_values(seen, [[0.0, 0.0], [3.0, 3.0], [0.0, 0.0]])


def test_2_08_integer_outputs_get_none() -> None:
    seen: list[Any] = []
    build = dg.op("Spec2TopK")(lambda x: (np.sort(x), np.argsort(x)))
    dg.RegisterGradient("Spec2TopK")(lambda op, *gs: [seen.extend(gs), gs[0]][1])
    x = f32([1.0, 2.0])
    values, indices = build(x)
    G([values, indices], x)
    assert_values(seen, [[1.0, 1.0], None])


def test_2_08_the_function_is_not_called_when_no_gradient_arrives() -> None:
    called: list[Any] = []
    build = user_op("Spec2")
    dg.RegisterGradient("Spec2")(lambda op, g: called.append(op))
    x = f32(1.5)
    assert_values(G(dg.stop_gradient(build(x)) * x, x), [1.5])
    assert called == []


def test_2_09_it_is_called_once_whatever_the_fan_out_with_the_sum() -> None:
    calls: list[Any] = []

    def rule(op: Any, g: Any) -> Any:
        calls.append((op, g))
        return g

    build = user_op("Spec2")
    dg.RegisterGradient("Spec2")(rule)
    x = f32(3.0)
    y = build(x, name="node")
    assert_values(G([y * 2, y * 3, y], x), [6.0])
    ((op, g),) = calls
    assert_values([g], [6.0])
    assert op is y.op
    assert (op.type, op.name, op.inputs, op.outputs, dict(op.attrs)) == ("Spec2", "node", (x,), (y,), {})


def test_2_10_exceptions_of_the_function_reach_the_caller_unchanged() -> None:
    error = RuntimeError("mine")

    def rule(op: Any, g: Any) -> Any:
        raise error

    with pytest.raises(RuntimeError) as caught:
        with_rule(rule)
    assert caught.value is error


def test_2_10_a_function_of_the_wrong_arity_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="positional argument"):
        with_rule(lambda op: op)


def test_2_10_it_may_return_indexed_slices() -> None:
    (found,) = with_rule(lambda op, g: dg.IndexedSlices(f32([4.0]), dg.constant([1]), (2,)), [1.0, 2.0])
    assert isinstance(found, dg.IndexedSlices)
    assert_values([found], [[0.0, 4.0]])


def test_2_11_types_may_have_a_namespace() -> None:
    build = user_op("Mine>Op")
    dg.RegisterGradient("Mine>Op")(lambda op, g: 2 * g)
    x = f32(3.0)
    assert_values(G(build(x), x), [2.0])


def test_2_12_the_override_map_counts_when_the_op_is_created(graph: dg.Graph) -> None:
    dg.RegisterGradient("Spec2Exp")(lambda op, g: 10 * g)
    x = f32(0.0)
    before = dg.exp(x)
    with graph.gradient_override_map({"Exp": "Spec2Exp"}):
        inside = dg.exp(x)
        assert_values(G(before, x), [1.0])
    assert_values(G(inside, x), [10.0])
    assert inside.op.type == "Exp"


def test_2_12_override_maps_nest_and_restore_after_an_exception(graph: dg.Graph) -> None:
    for factor in (2, 3):
        dg.RegisterGradient(f"Spec2Times{factor}")(lambda op, g, factor=factor: factor * g)
    x, made = f32(0.0), []

    def fail_inside() -> None:
        with graph.gradient_override_map({"Exp": "Spec2Times3"}):
            made.append(dg.exp(x))
            raise RuntimeError("out")

    with graph.gradient_override_map({"Exp": "Spec2Times2"}):
        with pytest.raises(RuntimeError, match="out"):
            fail_inside()
        made.append(dg.exp(x))
    made.append(dg.exp(x))
    assert_values([G(y, x)[0] for y in made], [3.0, 2.0, 1.0])


@pytest.mark.parametrize("bad", [[("Exp", "X")], {"Exp": 5}, {5: "Exp"}])
def test_2_12_an_override_map_of_anything_but_strings_is_a_type_error(graph: dg.Graph, bad: Any) -> None:
    with pytest.raises(TypeError, match="gradient_override_map"), graph.gradient_override_map(bad):
        pass


def test_2_12_an_unknown_target_is_a_lookup_error_of_gradients(graph: dg.Graph) -> None:
    x = f32(0.0)
    with graph.gradient_override_map({"Exp": "Spec2Nowhere"}):
        y = dg.exp(x)
    with pytest.raises(LookupError, match=r"'Spec2Nowhere' .*asked for by gradient_override_map"):
        G(y, x)


# -- 3 no_gradient -----------------------------------------------------------------------------------------------


def test_3_01_no_gradient_returns_none_and_has_two_aliases() -> None:
    assert dg.no_gradient("Spec3") is None  # type: ignore[func-returns-value]
    assert dg.NotDifferentiable is dg.NoGradient is dg.no_gradient


@pytest.mark.parametrize("op_type", [5, None, b"Size"])
def test_3_01_an_op_type_that_is_no_string_is_a_type_error(op_type: Any) -> None:
    with pytest.raises(TypeError, match="no_gradient: op_type must be a string"):
        dg.no_gradient(op_type)


def test_3_02_gradients_reports_none_or_zeros_with_zero() -> None:
    build = user_op("Spec3")
    dg.no_gradient("Spec3")
    x = f32([1.0, 2.0])
    assert G(build(x) * 2, x) == [None]
    assert_values(G(build(x) * 2, x, unconnected_gradients="zero"), [[0.0, 0.0]])


def test_3_03_other_paths_are_not_affected() -> None:
    x = f32(1.7)
    assert_values(G(dg.floor(x) * x, x), [1.0])
    assert_values(G([dg.floor(x), 2 * x, dg.stop_gradient(x), 3 * x], x), [5.0])


def test_3_03_all_inputs_of_such_an_op_get_none() -> None:
    build = dg.op("Spec3Two")(lambda x, y: x + y)
    dg.no_gradient("Spec3Two")
    x, y = f32(1.0), f32(2.0)
    assert G(build(x, y), [x, y]) == [None, None]


def test_3_04_symbolic_gradient_gives_zeros_for_such_ops() -> None:
    @dg.Defun(np.float32)
    def body(x: Any) -> Any:
        return dg.floor(x)

    x = f32([1.7, 2.7])
    found = dg.raw_ops.SymbolicGradient(input=[x, dg.ones_like(x)], Tout=[np.float32], f=body)
    assert_values(found, [[0.0, 0.0]])


def test_3_05_a_gradient_that_is_not_written_yet_is_an_error_also_with_zero() -> None:
    x = f32(1.0)
    with pytest.raises(LookupError, match="no gradient is registered for op type 'TestUnregistered'"):
        G(unregistered(x), x, unconnected_gradients="zero")


# -- the seed pages ----------------------------------------------------------------------------------------------


def test_seed_register_gradient_as_the_page_writes_it() -> None:
    del registry._GRADIENTS["Sub"]

    @dg.RegisterGradient("Sub")
    def _sub_grad(unused_op: Any, grad: Any) -> Any:
        return grad, dg.negative(grad)

    x, y = dg.constant(3.0), dg.constant(5.0)
    assert_values(G(x - y, [x, y]), [1.0, -1.0])


def test_seed_no_gradient_as_the_page_writes_it() -> None:
    del registry._GRADIENTS["Size"]
    x = dg.constant([1.0, 2.0])
    y = dg.cast(dg.size(x), "float64")
    dg.no_gradient("Size")
    assert G(y, x) == [None]
    assert_values(G(y, x, unconnected_gradients="zero"), [[0.0, 0.0]])
