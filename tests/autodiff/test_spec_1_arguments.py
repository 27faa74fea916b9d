"""Section 1.1 and 1.2 of the gradient semantics: argument forms and grad_ys."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

import distgrad as dg
from distgrad.graph import outside
from distgrad.ops.builder import elementwise, make
from distgrad.registry import define

from ..support import assert_values, f32, new_ops, run, unregistered

pytestmark = pytest.mark.usefixtures("graph")
G = dg.gradients


# -- 1.1 argument forms ------------------------------------------------------------------------------------------


def test_1_01_single_tensors_lists_and_tuples_are_taken_and_a_list_comes_back() -> None:
    x = f32(3.0)
    for found in (G(x * x, x), G((x * x,), (x,)), G([x * x], [x]), G(x * x, x, grad_ys=(None,), stop_gradients=())):
        assert type(found) is list
        assert_values(found, [6.0])


def test_1_02_python_numbers_become_constants_that_nothing_depends_on() -> None:
    x = f32(3.0)
    assert G(2.0, x) == [None]
    assert G(x * x, 3.0) == [None]


def test_1_03_empty_lists_are_no_error() -> None:
    x = f32(3.0)
    assert G(x * x, []) == []
    assert G([], x) == [None]
    assert G([], []) == []


@pytest.mark.parametrize(
    ("ys", "xs", "what"), [(None, 1.0, "ys"), (1.0, None, "xs"), ([None], 1.0, "ys"), (1.0, [None], "xs")]
)
def test_1_04_none_is_a_type_error_that_names_the_argument(ys: object, xs: object, what: str) -> None:
    with pytest.raises(TypeError, match=f"gradients: {what} .*None; give"):
        G(ys, xs)


def test_1_05_what_is_no_tensor_is_a_type_error() -> None:
    x = f32(3.0)
    for bad in (object(), x.op):
        with pytest.raises(TypeError, match="gradients: ys must be a tensor or a list of tensors"):
            G(bad, x)
    for bad in ((t for t in [x]), {"x": x}, [[x]]):
        with pytest.raises(TypeError, match="gradients: xs must be a tensor or a"):
            G(x * x, bad)


def test_1_05_a_nested_list_of_ys_is_packed_into_one_tensor() -> None:
    x, z = f32(3.0), f32(4.0)
    assert_values(G([[x * z, x]], [x, z]), [5.0, 3.0])


@pytest.mark.parametrize("xs", ["x", ["x"]])
def test_1_06_a_string_as_x_is_a_type_error(xs: object) -> None:
    """TensorFlow makes a string constant of it, which nothing depends on, and says None."""
    x = f32(3.0)
    with pytest.raises(TypeError, match="xs contains the string 'x'; give the tensor itself"):
        G(x * x, xs)


def test_1_07_gradients_always_colocates_so_there_is_no_such_argument() -> None:
    x = f32(3.0)
    with pytest.raises(TypeError, match="colocate_gradients_with_ops"):
        G(x * x, x, colocate_gradients_with_ops=True)
    assert list(inspect.signature(G).parameters) == [
        "ys", "xs", "grad_ys", "name", "gate_gradients", "aggregation_method", "stop_gradients",
        "unconnected_gradients",
    ]  # fmt: skip


def test_1_08_outside_any_graph_it_is_a_runtime_error_that_says_what_to_do() -> None:
    with outside(), pytest.raises(RuntimeError, match=r"needs a graph.*@distgrad.function.*distgrad.grad"):
        G(np.array(2.0), np.array(1.0))


def test_1_09_ys_and_xs_must_be_of_one_graph() -> None:
    x = f32(3.0)
    with dg.Graph():
        other = f32(1.0)
    with pytest.raises(ValueError, match="must be from the same graph"):
        G(x * x, other)


def test_1_09_a_graph_that_is_not_the_current_one_gets_the_new_ops(graph: dg.Graph) -> None:
    with dg.Graph() as other:
        x = f32(3.0)
        y = x * x
    before = len(graph.ops)
    found = G(y, x)
    assert found[0].graph is other
    assert len(graph.ops) == before
    assert_values(found, [6.0])


def test_1_09_a_graph_needs_no_context_when_the_tensors_have_one() -> None:
    x, z = f32(3.0), f32(4.0)
    y = x * x
    with outside():
        found = G(y, [x, z], unconnected_gradients="zero")
        assert [g.graph is x.graph for g in found] == [True, True]
        assert_values(found, [6.0, 0.0])


def test_1_10_a_variable_as_x_collects_the_gradients_of_all_its_reads() -> None:
    v = dg.Variable(np.array([1, 2], np.float32))
    assert_values(G(v, v), [[1, 1]])
    assert_values(G(v * v, v), [[2, 4]])
    assert_values(G(v * v.read(), v), [[2, 4]])


def test_1_10_an_unrelated_variable_is_none_or_zeros_of_its_shape_and_dtype() -> None:
    v, u = dg.Variable(np.ones(2, np.float32)), dg.Variable(np.ones((2, 3), np.float64))
    assert G(v * v, u) == [None]
    (zeros,) = run(G(v * v, u, unconnected_gradients="zero"))
    assert zeros.dtype == np.float64
    np.testing.assert_array_equal(zeros, np.zeros((2, 3)))


def test_1_11_a_chain_of_100_000_ops_is_differentiated_run_and_printed_without_recursion(graph: dg.Graph) -> None:
    x = f32(1.0)
    y = x
    for _ in range(100_000):
        y = -y
    found = G(y, x)
    assert_values(found, [1.0])
    assert str(graph).count("\n") == len(graph.ops) - 1


def test_1_11_the_cost_does_not_depend_on_unrelated_ops(graph: dg.Graph) -> None:
    """100,000 ops before x (y reads the last of them) and 100,000 after x that y does not read: none is looked at."""
    old = f32(1.0)
    for _ in range(100_000):
        old = -old
    x = f32(3.0)
    unrelated = x
    for _ in range(100_000):
        unrelated = -unrelated
    y = x * x * old
    for op in graph.ops:
        if op.id < x.op.id or x.op.id < op.id <= unrelated.op.id:
            del op.inputs, op.outputs, op.attrs  # whoever reads them gets an AttributeError
    with new_ops(graph) as added:
        found = G(y, x)
        assert G(unrelated, []) == []
    assert found[0] is not None
    assert len(added) < 10
    graph.ops.clear()  # it cannot be checked any more


# -- 1.2 grad_ys -------------------------------------------------------------------------------------------------


def test_1_12_without_grad_ys_the_gradient_is_that_of_the_sum_of_all_elements() -> None:
    x = f32(2.0)
    assert_values(G(x * np.float32([1, 2, 3]), x), [6.0])
    assert_values(G(x + np.ones((2, 3), np.float32), x), [6.0])


def test_1_13_entries_of_grad_ys_may_be_none() -> None:
    x = f32(3.0)
    assert_values(G([x * x, 2 * x], x, grad_ys=[None, 10.0]), [26.0])
    assert_values(G([x * x, 2 * x], x, grad_ys=[None, None]), [8.0])


def test_1_14_a_length_mismatch_of_grad_ys_is_a_value_error() -> None:
    x = f32([3.0, 4.0])
    y = x * x
    for ys, grad_ys in ((y, []), ([y, y], f32(1.0)), (y, [1.0, 10.0])):
        with pytest.raises(ValueError, match=r"Length mismatch: gradients got \d grad_ys for \d ys"):
            G(ys, x, grad_ys=grad_ys)


def test_1_14_a_numpy_array_is_one_entry() -> None:
    x = f32([3.0, 4.0])
    assert_values(G(x * x, x, grad_ys=np.array([1, 10], np.float32)), [[6.0, 80.0]])


@pytest.mark.parametrize("bad", [True, "one", 1j, np.array(1 + 0j, np.complex64)])
def test_1_15_a_float_y_takes_no_bool_string_or_complex_gradient(bad: object) -> None:
    x = f32(3.0)
    with pytest.raises(TypeError, match=r"grad_ys\[0\] has dtype"):
        G(x * x, x, grad_ys=[bad])


@pytest.mark.parametrize("bad", [True, "one", 1j])
def test_1_15_an_int_y_takes_no_bool_string_or_complex_gradient(bad: object) -> None:
    k = dg.constant(3)
    with pytest.raises(TypeError, match=r"grad_ys\[0\] has dtype.*does not fit y 'Const:0' of int64"):
        G(k, k, grad_ys=[bad])


@pytest.mark.parametrize("dtype", ["float64", "int32"])
def test_1_16_the_dtype_of_a_gradient_must_be_that_of_y(dtype: str) -> None:
    x = f32(3.0, name="x")
    for y in (x, x * x):
        with pytest.raises(TypeError, match=rf"grad_ys\[0\] has dtype {dtype}, but y .* has float32; cast it"):
            G(y, x, grad_ys=np.ones((), dtype))


def test_1_16_a_python_number_takes_the_dtype_of_y() -> None:
    x = f32(3.0)
    for one in (1, 1.0):
        assert G(x * x, x, grad_ys=one)[0].dtype == np.float32


def test_1_17_a_complex_y_needs_a_complex_gradient() -> None:
    x = dg.constant(7 + 3j)
    for missing in (None, [None]):
        with pytest.raises(TypeError, match=r"has dtype complex128: its gradient must be given in grad_ys\[0\]"):
            G(x * x, x, grad_ys=missing)
    with pytest.raises(TypeError, match=r"grad_ys\[0\] has dtype float64, but y .* has complex128"):
        G(x * x, x, grad_ys=1.0)


def test_1_17_complex_gradients_conjugate() -> None:
    x = dg.constant(7 + 3j)
    assert_values(G(x * x, x, grad_ys=1 + 0j), [14 - 6j])
    assert_values(G(dg.real(x * x), x), [14 - 6j])
    z = dg.constant(3 + 4j, dtype="complex64")
    assert_values(G(dg.abs(z), z), [0.6 + 0.8j])
    assert_values(G(z * z, z, grad_ys=1 + 0j), [6 - 8j])


def test_1_18_a_bool_y_adds_nothing_and_takes_no_gradient() -> None:
    x = f32(3.0)
    assert G(x > 1, x) == [None]
    b = dg.constant(True)
    assert run(G(b, b)) == [np.True_]
    with pytest.raises(TypeError, match=r"has dtype bool, which takes no gradient: leave grad_ys\[0\] out"):
        G(x > 1, x, grad_ys=True)


def test_1_18_a_string_y_is_a_type_error() -> None:
    s = dg.constant("loss")
    with pytest.raises(TypeError, match="its gradient must be given"):
        G(s, s)
    with pytest.raises(TypeError, match="which takes no gradient"):
        G(s, s, grad_ys=["one"])


@pytest.mark.parametrize("build", [lambda x: x, dg.identity, dg.square, lambda x: x * x])
def test_1_19_a_gradient_that_does_not_fit_y_is_a_value_error_with_both_shapes(build: object) -> None:
    x = f32([1.0, 2.0])
    assert callable(build)
    y = build(x)
    for bad in (np.ones(3, np.float32), np.ones((2, 2), np.float32)):
        with pytest.raises(ValueError, match=rf"grad_ys\[0\] has shape .* does not fit y '{y.name}' of shape \[2\]"):
            G(y, x, grad_ys=[bad])


def test_1_19_a_wrong_shape_from_a_rule_names_op_input_shapes_and_line(graph: dg.Graph) -> None:
    with graph.gradient_override_map({"Identity": "TestDoubledShape"}):
        x = f32([1.0, 2.0], name="x")
        y = dg.identity(x, name="y")  # the line that the error names
    line = inspect.currentframe().f_lineno - 1  # type: ignore[union-attr]
    with pytest.raises(
        ValueError,
        match=rf"input 0 of op 'y' \(type Identity, at test_spec_1_arguments.py:{line}\) has shape \[2, 2\], "
        r"but the input 'x:0' has shape \[2\]",
    ):
        G(y, x)


@dg.RegisterGradient("TestDoubledShape")
def _doubled_shape(op: dg.Operation, g: dg.Tensor) -> object:
    return dg.stack([g, g])


BROADCASTING = define("TestBroadcasting", elementwise, broadcasting=True, kernel=np.add)


@dg.RegisterGradient("TestBroadcasting")
def _too_small(op: dg.Operation, g: dg.Tensor) -> object:
    return dg.sum(g), g


def test_1_19_a_rule_of_a_broadcasting_op_may_not_return_less_than_the_input() -> None:
    x, b = f32([[1.0, 2.0]]), f32([1.0, 2.0])
    y = make(BROADCASTING, (x, b))
    with pytest.raises(ValueError, match=r"input 0 of op 'TestBroadcasting' .* has shape \[\], .* has shape \[1, 2\]"):
        G(y, b)


def test_1_20_a_scalar_gradient_is_broadcast_to_y() -> None:
    x = f32([1.0, 2.0])
    assert_values(G(x * x, x, grad_ys=5.0), [[10.0, 20.0]])
    assert_values(G(x, x, grad_ys=5.0), [[5.0, 5.0]])


def test_1_20_a_vector_gradient_of_a_scalar_y_is_a_value_error() -> None:
    x = f32([1.0, 2.0])
    with pytest.raises(ValueError, match=r"grad_ys\[0\] has shape \[2\], which does not fit y 'Sum:0' of shape \[\]"):
        G(dg.sum(x), x, grad_ys=np.ones(2, np.float32))


def slices(values: object, indices: object, dense_shape: tuple[int, ...] | None = None) -> dg.IndexedSlices:
    return dg.IndexedSlices(f32(values), dg.constant(indices), dense_shape)


def test_1_21_sparse_grad_ys_pass_through_identity_unchanged() -> None:
    x = f32([1.0, 2.0])
    for dense_shape in ((2,), None):
        (found,) = G(dg.identity(x), x, grad_ys=[slices([2.0], [0], dense_shape)])
        assert isinstance(found, dg.IndexedSlices)
        assert found.dense_shape == dense_shape
        np.testing.assert_array_equal(run(found).values, [2.0])


def test_1_21_sparse_grad_ys_become_dense_where_an_op_needs_it() -> None:
    x = f32([1.0, 2.0])
    assert_values(G(x * x, x, grad_ys=slices([2.0], [0], (2,))), [[4.0, 0.0]])
    with pytest.raises(ValueError, match="no dense_shape, so it cannot be converted to a dense tensor"):
        G(x * x, x, grad_ys=slices([2.0], [0]))


def test_1_21_sparse_grad_ys_must_fit_y() -> None:
    x = f32([1.0, 2.0])
    with pytest.raises(ValueError, match=r"grad_ys\[0\] has shape \[3\], which does not fit"):
        G(dg.identity(x), x, grad_ys=slices([2.0], [0], (3,)))
    with pytest.raises(TypeError, match=r"grad_ys\[0\] has dtype float64, but y"):
        G(dg.identity(x), x, grad_ys=dg.IndexedSlices(dg.constant([2.0]), dg.constant([0]), (2,)))


@pytest.mark.parametrize(
    ("build", "expected"),
    [(lambda x: x**3, [3.0, 120.0]), (dg.square, [2.0, 40.0]), (lambda x: x * x, [2.0, 40.0])],
    ids=["cube", "square", "mul"],
)
def test_1_22_a_jvp_by_two_vjps_never_needs_the_dummy(build: object, expected: object) -> None:
    x, v = f32([1.0, 2.0]), dg.placeholder((2,), "float32")
    assert callable(build)
    (g,) = G(build(x), x, grad_ys=v)
    assert_values(G(g, v, grad_ys=np.array([1, 10], np.float32)), [expected])  # v is not fed


def test_1_22_a_jvp_through_tanh_of_matmul() -> None:
    w = np.array([[1.0, -2.0], [0.5, 3.0]])
    x, v = dg.constant([[0.1, 0.2]]), dg.placeholder((1, 2))
    (g,) = G(dg.tanh(dg.matmul(x, w)), x, grad_ys=v)
    tangent = np.array([[1.0, 10.0]])
    out = np.tanh(np.array([[0.1, 0.2]]) @ w)
    assert_values(G(g, v, grad_ys=tangent), [(tangent @ w) * (1 - out**2)])


def test_grad_ys_of_zeros_do_not_hide_a_missing_gradient() -> None:
    x = f32([1.0, 2.0])
    with pytest.raises(LookupError, match="TestUnregistered"):
        G(unregistered(x), x, grad_ys=np.zeros(2, np.float32))
