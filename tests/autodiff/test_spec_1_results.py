"""Sections 1.6 to 1.9 of the gradient semantics: unconnected xs, names, gates and sums."""

from __future__ import annotations

import numpy as np
import pytest

import distgrad as dg
from distgrad.ops.builder import make, same
from distgrad.registry import define

from ..support import assert_values, f32, new_ops, run, types, unregistered

pytestmark = pytest.mark.usefixtures("graph")

G = dg.gradients
TREES = [dg.AggregationMethod.EXPERIMENTAL_TREE, dg.AggregationMethod.EXPERIMENTAL_ACCUMULATE_N]


# -- 1.6 unconnected_gradients -----------------------------------------------------------------------------------


@pytest.mark.parametrize("none", ["none", dg.UnconnectedGradients.NONE])
def test_1_46_none_gives_none(none: object) -> None:
    assert G(f32(1.0), f32(2.0), unconnected_gradients=none) == [None]


@pytest.mark.parametrize("zero", ["zero", dg.UnconnectedGradients.ZERO])
def test_1_46_zero_gives_zeros(zero: object) -> None:
    assert_values(G(f32(1.0), f32([2.0, 3.0]), unconnected_gradients=zero), [[0.0, 0.0]])


@pytest.mark.parametrize("bad", ["ZERO", "nonsense", None, True, 0])
def test_1_46_other_values_are_a_value_error_even_when_nothing_is_unconnected(bad: object) -> None:
    x = f32(3.0)
    with pytest.raises(ValueError, match=f"Unknown value for unconnected_gradients: {bad!r}; use 'none' or 'zero'"):
        G(x * x, x, unconnected_gradients=bad)


@pytest.mark.parametrize(("value", "zero"), [([3, 4], 0), ([True, True], False), (["a", "b"], ""), ([1.5, 2.5], 0.0)])
def test_1_47_zeros_have_the_shape_and_dtype_of_x(value: list[object], zero: object) -> None:
    x = dg.constant(value)
    (found,) = run(G(f32(1.0), x, unconnected_gradients="zero"))
    assert found.dtype == x.dtype
    assert found.tolist() == [zero, zero]


def test_1_47_connected_entries_are_unaffected() -> None:
    x, other = f32([1.0, 2.0]), dg.constant([1.0, 1.0, 1.0])
    found = G(x * x, [x, other], unconnected_gradients="zero")
    assert_values(found, [[2.0, 4.0], [0.0, 0.0, 0.0]])
    assert found[1].dtype == np.float64


def test_1_47_zeros_are_dense_for_gathered_params_too() -> None:
    p = f32(np.ones((4, 2)))
    dg.gather(p, [1, 3])
    (zeros,) = G(f32(1.0), p, unconnected_gradients="zero")
    assert isinstance(zeros, dg.Tensor)


NOTHING = define("TestNothing", same, kernel=lambda x: x)


@dg.RegisterGradient("TestNothing")
def _nothing_grad(op: dg.Operation, g: dg.Tensor) -> None:
    return None


@pytest.mark.parametrize(
    "cut",
    [
        lambda x: f32([1.0, 1.0]),
        dg.stop_gradient,
        lambda x: dg.cast(dg.cast(x, "int32"), "float32"),
        dg.floor,
        lambda x: make(NOTHING, (x,)),
    ],
    ids=["no path", "stop_gradient", "integers", "no_gradient op", "the rule gave None"],
)
def test_1_48_every_way_of_being_unconnected_is_none_or_zero(cut: object) -> None:
    x = f32([1.5, 2.5])
    assert callable(cut)
    y = cut(x)
    assert G(y, x) == [None]
    assert_values(G(y, x, unconnected_gradients="zero"), [[0.0, 0.0]])


def test_1_48_stop_gradients_disconnects() -> None:
    x = f32([1.5, 2.5])
    m = 2 * x
    assert G(m * m, x, stop_gradients=m) == [None]
    assert_values(G(m * m, x, stop_gradients=m, unconnected_gradients="zero"), [[0.0, 0.0]])


def test_1_49_zero_never_hides_a_missing_gradient() -> None:
    x = f32(3.0)
    with pytest.raises(LookupError, match="no gradient is registered for op type 'TestUnregistered'"):
        G(unregistered(x), x, unconnected_gradients="zero")


def test_1_50_a_gradient_that_is_numerically_zero_is_connected() -> None:
    x = f32([1.5, -2.5])
    assert_values(G(dg.sign(x), x), [[0.0, 0.0]])
    assert_values(G(0 * x, x), [[0.0, 0.0]])


@pytest.mark.parametrize("f", [dg.round, dg.floor, dg.zeros_like, dg.shape])
def test_1_50_ops_without_gradient_are_unconnected(f: object) -> None:
    x = f32([1.5, -2.5])
    assert callable(f)
    assert G(f(x), x) == [None]


def test_1_50_argmax_is_unconnected() -> None:
    x = f32([1.5, -2.5])
    assert G(dg.argmax(x), x) == [None]


# -- 1.7 names ---------------------------------------------------------------------------------------------------


def scopes(ops: list[dg.Operation]) -> set[str]:
    return {op.name.partition("/")[0] for op in ops}


def test_1_51_new_ops_live_in_the_scope_gradients(graph: dg.Graph) -> None:
    x = f32(3.0)
    y = x * x
    for expected in ("gradients", "gradients_1"):
        with new_ops(graph) as added:
            G(y, x)
        assert scopes(added) == {expected}


def test_1_51_the_scope_is_nested_in_the_current_one(graph: dg.Graph) -> None:
    x = f32(3.0)
    y = x * x
    with dg.name_scope("outer"), new_ops(graph) as added:
        G(y, x)
    assert all(op.name.startswith("outer/gradients/") for op in added)


def test_1_51_name_may_be_none_empty_or_end_in_a_slash(graph: dg.Graph) -> None:
    x = f32(3.0)
    y = dg.square(x, name="y")
    with new_ops(graph) as default:
        G(y, x, name=None)
    assert scopes(default) == {"gradients"}
    with dg.name_scope("here"), new_ops(graph) as empty:
        G(y, x, name="")
    assert any(op.name.startswith("here/y_grad/") for op in empty)
    with new_ops(graph) as first:
        G(y, x, name="s/")
    with new_ops(graph) as second:
        G(y, x, name="s/")
    assert any(op.name.startswith("s/y_grad/") for op in first)
    assert any(op.name.startswith("s/y_grad_1/") for op in second)


def test_1_51_an_invalid_name_is_a_value_error() -> None:
    x = f32(3.0)
    with pytest.raises(ValueError, match="'a b' is not a valid name: use letters, digits and any of"):
        G(x * x, x, name="a b")


def test_1_52_ops_are_named_after_what_they_are_for(graph: dg.Graph) -> None:
    x = f32(3.0, name="x")
    with dg.name_scope("model"):
        y = dg.multiply(x, x, name="y")
    with new_ops(graph) as added:
        G([y, x, 2.0], [x, 4.0], grad_ys=[None, f32(1.0), None])
    names = [op.name for op in added]
    for expected in ("gradients/y_2", "gradients/x_1", "gradients/grad_ys_0", "gradients/grad_ys_1", "gradients/AddN"):
        assert expected in names
    assert any(name.startswith("gradients/model/y_grad/") for name in names)


def test_1_52_sparse_grad_ys_have_suffixes(graph: dg.Graph) -> None:
    x = f32([1.0, 2.0])
    sparse = dg.IndexedSlices(f32([2.0]), dg.constant([0]), (2,))
    y = dg.identity(x)
    with new_ops(graph) as added:
        G(y, x, grad_ys=sparse)
    assert [op.name for op in added] == ["gradients/grad_ys_0_values", "gradients/grad_ys_0_indices"]  # no `_shape`


def test_1_53_zeros_for_unconnected_xs_are_outside_the_scope(graph: dg.Graph) -> None:
    y, x = f32(1.0), f32(2.0)
    with new_ops(graph) as added:
        (zeros,) = G(y, x, unconnected_gradients="zero")
    assert [op.name for op in added] == ["gradients/grad_ys_0", zeros.op.name]
    assert "/" not in zeros.op.name


def test_1_54_backward_ops_remember_the_forward_op_and_its_line(graph: dg.Graph) -> None:
    x = f32(3.0)
    y = x * x
    with new_ops(graph) as added:
        G(y, x)
    made = [op for op in added if op.name.startswith("gradients/Mul_grad/")]
    assert made
    assert {op.original_op for op in made} == {y.op}
    assert {op.source for op in made} == {y.op.source}


def test_1_55_after_an_error_the_graph_is_as_usable_as_before(graph: dg.Graph) -> None:
    x = f32(3.0)
    y = unregistered(x)
    with dg.name_scope("outer"), dg.device("worker:1"):
        with new_ops(graph) as added, pytest.raises(LookupError, match="no gradient is registered"):
            G(2 * y, x)
        after = dg.identity(x)
    assert added
    assert after.op.name == "outer/Identity"
    assert after.device == "worker:1"
    assert after.op.original_op is None
    assert_values(G(x * x, x), [6.0])


# -- 1.8 gate_gradients ------------------------------------------------------------------------------------------


def gates(ops: list[dg.Operation]) -> list[dg.Operation]:
    return [op for op in ops if op.type == "NoOp"]


def test_1_56_without_gating_nothing_is_added(graph: dg.Graph) -> None:
    x, z = f32(3.0), f32(4.0)
    G(x * z, [x, z])
    assert "NoOp" not in types(graph)


@pytest.mark.parametrize("truthy", [True, 1, "yes", 2])
def test_1_56_a_gate_is_one_no_op_after_all_gradients_and_one_identity_each(graph: dg.Graph, truthy: object) -> None:
    x, z = f32(3.0), f32(4.0)
    y = dg.multiply(x, z, name="y")
    with new_ops(graph) as added:
        found = G(y, [x, z], gate_gradients=truthy)
    (gate,) = gates(added)
    assert gate.name == "gradients/y_grad/tuple/group_deps"
    assert [g.op.type for g in found] == ["Identity", "Identity"]
    assert [g.op.name for g in found] == [
        "gradients/y_grad/tuple/control_dependency",
        "gradients/y_grad/tuple/control_dependency_1",
    ]
    assert all(g.op.control_inputs == (gate,) for g in found)
    assert set(gate.control_inputs) == {g.op.inputs[0].op for g in found}
    assert_values(found, [4.0, 3.0])


def test_1_57_an_op_with_one_gradient_gets_no_gate(graph: dg.Graph) -> None:
    x, p = f32([3.0, 4.0]), f32(np.ones((4, 2)))
    condition = dg.constant([True, False])
    G([dg.exp(x), dg.gather(p, [1, 2]), dg.square(x)], [x, p], gate_gradients=True)
    assert gates(graph.ops) == []
    G(dg.where(condition, x, 0.0), x, gate_gradients=True)
    assert len(gates(graph.ops)) == 1


def test_1_57_none_stays_none_and_sparse_gradients_are_gated_by_their_values() -> None:
    p, x = f32(np.ones((4, 2))), f32(np.ones((4, 2)))
    found = G(dg.gather(p + x, [1, 3]), [p, x], gate_gradients=True)
    assert all(isinstance(g, dg.IndexedSlices) for g in found)
    assert all(g.values.op.name.startswith("gradients/Add_grad/tuple/control_dependency") for g in found)
    expected = [[0, 0], [1, 1], [0, 0], [1, 1]]
    assert_values(found, [expected, expected])


def test_1_58_a_gate_is_there_when_only_one_gradient_is_asked_for_and_belongs_to_no_device(graph: dg.Graph) -> None:
    with dg.device("worker:1"):
        x, z = f32(3.0), f32(4.0)
        y = x * z
    found = G(y, [x], gate_gradients=True)
    (gate,) = gates(graph.ops)
    assert gate.device is None
    assert found[0].device is None
    assert found[0].op.inputs[0].device == "worker:1"


# -- 1.9 aggregation ---------------------------------------------------------------------------------------------


def many(x: dg.Tensor, count: int) -> dg.Tensor:
    """The sum of `count` reads of x, so that x gets as many gradients."""
    return dg.add_n([-x for _ in range(count)])


def test_1_59_the_methods_are_tensorflows() -> None:
    method = dg.AggregationMethod
    assert (method.ADD_N, method.DEFAULT, method.EXPERIMENTAL_TREE, method.EXPERIMENTAL_ACCUMULATE_N) == (0, 0, 1, 2)


@pytest.mark.parametrize("method", [None, 0, 1, 2, 1.0, True, False])
def test_1_59_what_equals_a_method_is_one(method: object) -> None:
    x = f32(3.0)
    assert_values(G(x * x, x, aggregation_method=method), [6.0])


@pytest.mark.parametrize("bad", [3, -1, "ADD_N", object()])
def test_1_59_an_unknown_method_is_a_value_error_also_when_nothing_is_summed(bad: object) -> None:
    x = f32(3.0)
    for ys, xs in ((x * x, x), (f32(1.0), x), ([], [])):
        with pytest.raises(ValueError, match=r"unknown aggregation_method .*: use AggregationMethod.ADD_N"):
            G(ys, xs, aggregation_method=bad)


def test_1_60_one_gradient_is_used_as_it_is_and_none_is_dropped(graph: dg.Graph) -> None:
    x = f32(3.0)
    y = dg.exp(x) + dg.floor(x)
    with new_ops(graph) as added:
        G(y, x)
    assert "AddN" not in [op.type for op in added]


@pytest.mark.parametrize("count", [2, 5])
def test_1_61_add_n_sums_all_terms_at_once(graph: dg.Graph, count: int) -> None:
    x = f32(3.0)
    (g,) = G(many(x, count), x)
    assert g.op.type == "AddN"
    assert g.op.name == "gradients/AddN"
    assert len(g.op.inputs) == count


def test_1_61_terms_on_several_devices_are_summed_per_device_first() -> None:
    with dg.device("worker:0"):
        x = f32(3.0)
    terms = []
    for device in ("worker:2", "worker:1", "worker:2", "worker:3"):
        with dg.device(device):
            terms.append(-x)
    (g,) = G(dg.add_n(terms), x)
    assert g.device == "worker:0"
    assert [t.device for t in g.op.inputs] == ["worker:1", "worker:2", "worker:3"]
    assert [t.op.type for t in g.op.inputs] == ["Neg", "AddN", "Neg"]
    assert_values([g], [-4.0])


@pytest.mark.parametrize("count", [2, 3, 8, 11])
@pytest.mark.parametrize("method", TREES)
def test_1_62_a_tree_is_balanced(graph: dg.Graph, method: int, count: int) -> None:
    x = f32(3.0, name="x")
    y = many(x, count)
    with new_ops(graph) as added:
        (g,) = G(y, x, aggregation_method=method)
    sums = [op for op in added if op.type == "AddN"]
    assert len(sums) == count - 1
    assert all(op.name.startswith("gradients/x_gradient_sum/AddN") for op in sums)
    assert _depth(g) == int(np.ceil(np.log2(count)))
    assert_values([g], [-float(count)])


def _depth(t: dg.Tensor) -> int:
    depth, layer = 0, [t]
    while layer := [u for t in layer if t.op.type == "AddN" for u in t.op.inputs]:
        depth += 1
    return depth


@pytest.mark.parametrize("method", [dg.AggregationMethod.ADD_N, *TREES])
def test_1_63_all_methods_give_the_same_sum(method: int) -> None:
    x = f32(3.0)
    y = 2 * x
    z = y
    for _ in range(9):
        z = z + y
    assert_values(G(z, [x, y], aggregation_method=method), [20.0, 10.0])


def test_1_64_terms_are_in_the_order_in_which_their_ops_were_met_breadth_first() -> None:
    x = f32(3.0)
    a, b, d = dg.exp(x), dg.sin(x), dg.tanh(x)
    for ys in (a + b + d, [d, a, b]):
        (g,) = G(ys, x)
        assert [t.op.original_op for t in g.op.inputs] == [d.op, a.op, b.op]


WRONG = define("TestWrong", same, kernel=lambda x: x)
_returned: list[object] = []


@dg.RegisterGradient("TestWrong")
def _wrong_grad(op: dg.Operation, g: dg.Tensor) -> object:
    return _returned[-1]


@pytest.mark.parametrize("bad", [object(), {"g": 1}, "one"])
def test_1_65_a_gradient_that_is_no_tensor_is_a_type_error(bad: object) -> None:
    x = f32(3.0)
    _returned.append(bad)
    with pytest.raises(TypeError, match=r"gradient for input 0 of op 'TestWrong' .*test_spec_1_results.py:\d+\) is"):
        G(make(WRONG, (x,)), x)


@pytest.mark.parametrize("good", [7.0, np.float64(7), np.array(7)])
def test_1_65_numbers_and_arrays_become_tensors_of_the_dtype_of_the_input(good: object) -> None:
    x = f32(3.0)
    _returned.append(good)
    found = G(make(WRONG, (x,)), x)
    assert_values(found, [7.0])
    assert found[0].dtype == np.float32
