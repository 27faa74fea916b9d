"""dg.op: a user's own kernel as an op type."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import distgrad as dg
from distgrad import registry
from distgrad.graph import outside
from distgrad.testing import check_grads

from ..support import assert_values, run


@pytest.fixture(autouse=True)
def _forget_what_a_test_defines() -> Iterator[None]:
    ops, gradients = dict(registry.OPS), dict(registry._GRADIENTS)
    yield
    for table, before in ((registry.OPS, ops), (registry._GRADIENTS, gradients)):
        table.clear()
        table.update(before)  # type: ignore[arg-type]


def softplus() -> Any:
    @dg.op("MySoftplus")
    def softplus(x: Any, *, beta: float = 1.0) -> Any:
        """log(1 + exp(beta x)) / beta"""
        return np.log1p(np.exp(beta * x)) / beta

    @dg.RegisterGradient("MySoftplus")
    def _grad(op: Any, g: Any) -> Any:
        return g / (1 + dg.exp(-op.attrs["beta"] * op.inputs[0]))

    return softplus


def test_it_computes_at_once_outside_a_graph() -> None:
    made = softplus()(np.array([0.0, 1.0]))
    assert isinstance(made, np.ndarray)
    np.testing.assert_array_equal(made, np.log1p(np.exp([0.0, 1.0])))


def test_it_records_one_op_in_a_graph_with_its_static_arguments_complete() -> None:
    build = softplus()
    with dg.Graph() as graph:
        y = build(dg.placeholder((2,), "float32"), name="here")
    assert (y.shape, y.dtype, y.op.name, y.op.type) == ((2,), np.float32, "here", "MySoftplus")
    assert dict(y.op.attrs) == {"beta": 1.0}
    assert len(graph.ops) == 2


def test_it_runs_and_differentiates_to_second_order() -> None:
    check_grads(softplus(), [np.array([-1.0, 0.3, 2.0])])


def test_it_works_inside_a_function() -> None:
    build = softplus()
    slope = dg.function(lambda x: dg.gradients(build(x, beta=2.0), x)[0])
    np.testing.assert_allclose(slope(np.array([0.0])), [0.5])


def test_the_builder_keeps_name_doc_and_kernel() -> None:
    build = softplus()
    assert (build.__name__, build.__doc__) == ("softplus", "log(1 + exp(beta x)) / beta")
    assert build.__wrapped__(0.0, beta=1.0) == np.log(2)


def test_python_numbers_lists_and_variables_are_inputs() -> None:
    add = dg.op("MyAdd")(lambda x, y: x + y)
    v = dg.Variable([10.0, 20.0])
    np.testing.assert_array_equal(add([1.0, 2.0], v), [11.0, 22.0])
    with dg.Graph():
        np.testing.assert_array_equal(run(add(v, 1.0)), [11.0, 21.0])


def test_a_tuple_is_several_outputs_and_a_call_gives_a_list() -> None:
    build = dg.op("MySort")(lambda x: (np.sort(x), np.argsort(x)))
    values, indices = build(np.array([2.0, 1.0]))
    np.testing.assert_array_equal(values, [1.0, 2.0])
    with dg.Graph():
        made = build(dg.placeholder((3,), "float32"))
    assert [(t.shape, t.dtype) for t in made] == [((3,), np.float32), ((3,), np.int64)]
    assert indices.dtype == np.int64


def test_one_output_in_a_tuple_is_a_list_of_one() -> None:
    build = dg.op("MyParts")(lambda x, *, n: tuple(np.split(x, n)))
    with dg.Graph():
        x = dg.constant([1.0, 2.0])
        assert [len(build(x, n=n)) for n in (1, 2)] == [1, 2]


def test_infer_gives_the_types_and_the_kernel_is_not_tried() -> None:
    calls: list[Any] = []

    @dg.op("MyCosts", infer=lambda x, *, k: ([k, *x.shape], "float32"))
    def build(x: Any, *, k: int) -> Any:
        calls.append(x)
        return np.broadcast_to(x, (k, *x.shape)).astype(np.float32)

    with dg.Graph():
        y = build(dg.constant([1.0, 2.0]), k=3)
    assert (y.shape, y.dtype, calls) == ((3, 2), np.float32, [])
    np.testing.assert_array_equal(run(y), [[1, 2]] * 3)


def test_infer_may_give_several_outputs() -> None:
    build = dg.op("MyTwo", infer=lambda x: [(x.shape, x.dtype), ((), "int64")])(lambda x: (x, np.int64(x.size)))
    with dg.Graph():
        assert [t.shape for t in build(dg.constant([1.0, 2.0]))] == [(2,), ()]


def test_an_infer_that_returns_something_else_is_named() -> None:
    build = dg.op("MyBad", infer=lambda x: "float32")(lambda x: x)
    with dg.Graph(), pytest.raises(TypeError, match=r"op 'MyBad': infer returned 'float32'; return \(shape, dtype\)"):
        build(dg.constant(1.0))


def test_the_kernel_is_asked_for_its_types_once_per_signature() -> None:
    calls: list[Any] = []
    build = dg.op("MyCount")(lambda x, *, k=1: [calls.append((x.shape, k)), x * k][1])
    with dg.Graph():
        x = dg.constant([1, 2])
        for _ in range(3):
            assert build(x).dtype == np.int64
        assert build(x, k=1.0).dtype == np.float64
    assert calls == [((2,), 1), ((2,), 1.0)]


def test_a_kernel_that_fails_on_zeros_is_named_with_its_inputs_and_the_remedy() -> None:
    def kernel(x: Any) -> Any:
        raise np.linalg.LinAlgError("singular")

    build = dg.op("MyInverse")(kernel)
    with dg.Graph(), pytest.raises(ValueError, match="one call of the kernel on zeros") as caught:
        build(dg.constant(np.eye(2)))
    for part in (
        "'MyInverse' (at test_user_ops.py:",
        "f64[2,2]",
        "LinAlgError: singular",
        '@distgrad.op("MyInverse", infer=',
    ):
        assert part in str(caught.value)


def test_zeros_make_no_floating_point_warnings() -> None:
    build = dg.op("MyReciprocal")(lambda x: 1 / x)
    with dg.Graph():
        assert_values([build(dg.constant([4.0]))], [[0.25]])


def test_a_result_of_another_type_than_on_zeros_is_found_when_it_runs() -> None:
    build = dg.op("MyNonzero")(lambda x: np.flatnonzero(x))
    with dg.Graph():
        y = build(dg.constant([1.0, 0.0, 2.0]))
    with pytest.raises(
        TypeError, match=r"kernel of MyNonzero returned \(i64\[2\]\), but its shape rule says \(i64\[0\]\)"
    ):
        run(y)


def test_a_kernel_that_uses_distgrad_ops_leaves_nothing_in_the_graph() -> None:
    build = dg.op("MyExp")(lambda x: dg.exp(x))
    with dg.Graph() as graph:
        build(dg.placeholder((), "float64"))
    assert [op.type for op in graph.ops] == ["Placeholder", "MyExp"]


def test_without_a_gradient_differentiating_is_a_lookup_error_with_the_remedy() -> None:
    build = dg.op("MyBare")(lambda x: x)
    with dg.Graph():
        x = dg.constant(1.0)
        with pytest.raises(LookupError, match=r'Register one with @distgrad.RegisterGradient\("MyBare"\)'):
            dg.gradients(build(x), x)


def test_broadcasting_gradients_are_summed_back() -> None:
    build = dg.op("MyTimes", broadcasting=True)(lambda x, y: x * y)
    dg.RegisterGradient("MyTimes")(lambda op, g: (g * op.inputs[1], g * op.inputs[0]))
    with dg.Graph():
        x, y = dg.constant([1.0, 2.0]), dg.constant(3.0)
        assert_values(dg.gradients(build(x, y), [x, y]), [[3.0, 3.0], 3.0])


def test_defining_a_type_twice_is_a_key_error_unless_override() -> None:
    dg.op("MyTwice")(lambda x: x)
    with pytest.raises(KeyError, match=r"op type 'MyTwice' is defined already; pass override=True"):
        dg.op("MyTwice")(lambda x: x)
    with pytest.raises(KeyError, match="op type 'Exp' is defined already"):
        dg.op("Exp")(lambda x: x)
    again = dg.op("MyTwice", override=True)(lambda x: 2 * x)
    assert again(np.array(4.0)) == 8.0


def test_what_is_compiled_keeps_its_kernel_when_the_op_is_defined_anew() -> None:
    """As on a Ray worker that loads bodies of before and after in any order."""

    def defined(factor: float) -> Any:
        build = dg.op("MyAnew", infer=lambda x: (x.shape, x.dtype), override=True)(lambda x: factor * x)
        return dg.function(build), registry.OPS["MyAnew"]

    (old, definition), x = defined(2.0), np.ones(2)
    with outside():
        assert old(x).tolist() == [2.0, 2.0]
        new, _ = defined(5.0)
        assert new(x).tolist() == [5.0, 5.0]
        registry.OPS["MyAnew"] = definition
        assert (old(x).tolist(), new(x).tolist()) == ([2.0, 2.0], [5.0, 5.0])


@pytest.mark.parametrize("value", [np.ones(2), [np.ones(2)], dg.Variable(1.0)], ids=["array", "list", "variable"])
def test_an_array_given_by_keyword_is_a_type_error(value: Any) -> None:
    with pytest.raises(TypeError, match=r"'MySoftplus' .*'beta' .* are static. Pass tensors and arrays by position"):
        softplus()(np.ones(2), beta=value)


def test_a_static_argument_must_be_hashable() -> None:
    with pytest.raises(TypeError, match=r"'MySoftplus' .*keyword argument 'beta' is \{\}, which is not hashable"):
        softplus()(np.ones(2), beta={})


def test_static_lists_become_tuples() -> None:
    build = dg.op("MyMove")(lambda x, *, axes: np.transpose(x, axes))
    with dg.Graph():
        assert build(dg.constant(np.ones((2, 3))), axes=[1, 0]).op.attrs == {"axes": (1, 0)}


def test_arguments_that_do_not_fit_the_kernel_are_a_type_error_with_its_signature() -> None:
    build = softplus()
    with pytest.raises(
        TypeError, match=r"op 'MySoftplus' .*unexpected keyword argument 'gamma'; its kernel is MySoftplus\("
    ):
        build(1.0, gamma=2.0)
    with pytest.raises(TypeError, match=r"op 'MySoftplus' .*missing a required argument: 'x'"):
        build()


def test_the_decorator_without_a_type_says_how_to_write_it() -> None:
    with pytest.raises(TypeError, match=r'as in @distgrad.op\("Softplus"\)'):
        dg.op(lambda x: x)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kernel", "error", "text"),
    [
        (3, TypeError, "decorates a kernel function, got 3"),
        (lambda x, *, name: x, ValueError, "cannot have a parameter `name`"),
    ],
)
def test_a_kernel_that_cannot_be_one_is_refused(kernel: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        dg.op("MyWrong")(kernel)


def test_an_infer_that_is_no_function_is_refused() -> None:
    with pytest.raises(TypeError, match="infer must be a function of the inputs, got 'float32'"):
        dg.op("MyWrong", infer="float32")(lambda x: x)  # type: ignore[arg-type]


def test_errors_of_the_kernel_at_run_time_name_the_op_and_its_line() -> None:
    def kernel(x: Any) -> Any:
        if x.any():
            raise ValueError("not zero")
        return x

    build = dg.op("MyPicky")(kernel)
    with dg.Graph():
        y = build(dg.constant([1.0]))
    with pytest.raises(ValueError, match="not zero") as caught:
        run(y)
    assert "(type MyPicky, at test_user_ops.py:" in "".join(caught.value.__notes__)


def test_a_type_name_is_checked() -> None:
    with pytest.raises(TypeError, match="non-empty string"):
        dg.op("")(lambda x: x)


def test_the_definition_holds_the_kernel_function() -> None:
    build = softplus()
    assert registry.OPS["MySoftplus"].kernel is build.__wrapped__


def test_a_kernel_that_writes_into_its_input_is_refused() -> None:
    @dg.op("TestWritesItsInput")
    def scale(x: Any) -> Any:
        x *= 2
        return x

    given = np.ones(3)
    with pytest.raises(ValueError, match="read-only"):
        dg.function(lambda a: scale(a) + a)(given)
    assert given.tolist() == [1.0, 1.0, 1.0]
