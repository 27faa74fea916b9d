"""@distgrad.function: signatures, nesting, methods, variables, threads."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import gc
import threading
import warnings
import weakref
from typing import Any, NamedTuple

import numpy as np
import pytest

import distgrad as dg
from distgrad.graph import check_graph

from ..support import assert_values, f32, run, types


class Pair(NamedTuple):
    first: Any
    second: Any


@dataclasses.dataclass
class Params:
    w: Any
    b: Any
    activation: str = "tanh"


def counted(f: Any) -> tuple[Any, list[Any]]:
    """f as a function, and the list of what it was traced with."""
    calls: list[Any] = []

    def traced(*args: Any, **kwargs: Any) -> Any:
        calls.append((args, kwargs))
        return f(*args, **kwargs)

    return dg.function(traced), calls


# -- signatures --------------------------------------------------------------------------------------------------


def test_a_signature_is_traced_once() -> None:
    f, calls = counted(lambda x: x * 2)
    for value in (1.0, 2.0):
        np.testing.assert_array_equal(f(np.full(3, value)), np.full(3, 2 * value))
    assert len(calls) == 1


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (np.ones(2), np.ones(3)),
        (np.ones(2), np.ones(2, "float32")),
        (1, 1.0),
        (1, True),
        (0.0, -0.0),
        ([np.ones(2)], (np.ones(2),)),
        ({"a": np.ones(2)}, {"b": np.ones(2)}),
        (Pair(np.ones(2), 1), (np.ones(2), 1)),
        (None, 0),
    ],
)
def test_these_are_different_signatures(first: Any, second: Any) -> None:
    f, calls = counted(lambda x: dg.constant(1.0))
    for x in (first, second, first, second):
        f(x)
    assert len(calls) == 2


@pytest.mark.parametrize("x", [float("nan"), "text", None, np.float32(3), (1, [2, {"a": 3}]), Params(np.ones(2), 1)])
def test_these_are_one_signature_with_themselves(x: Any) -> None:
    f, calls = counted(lambda x: dg.constant(1.0))
    f(x)
    f(dataclasses.replace(x) if isinstance(x, Params) else x)
    assert len(calls) == 1


def test_keywords_and_positions_are_one_signature() -> None:
    traces: list[int] = []

    @dg.function
    def f(x: Any, n: int = 1, *, m: int = 1) -> Any:
        traces.append(n)
        return x * n * m

    assert [float(y) for y in (f(np.float64(2), 3), f(np.float64(2), n=3), f(x=np.float64(2), n=3))] == [6, 6, 6]
    assert len(traces) == 1
    assert f(np.float64(2), m=5) == 10
    with pytest.raises(TypeError, match="f: missing a required argument: 'x'"):
        f(n=3)
    with pytest.raises(TypeError, match="k"):
        f(np.ones(2), k=3)


def test_static_arguments_are_python_values_in_the_body() -> None:
    @dg.function
    def power(x: Any, n: int, mode: str = "plain") -> Any:
        made = x
        for _ in range(n - 1):
            made = made * x
        return -made if mode == "negative" else made

    assert power(np.float64(2), 3) == 8
    assert power(np.float64(2), 4, mode="negative") == -16


def test_nested_arguments_and_results() -> None:
    @dg.function
    def f(tree: Any) -> Any:
        p, (a, rest) = tree["p"], tree["q"]
        assert (p.activation, rest) == ("tanh", None)
        return {"sum": Pair(p.w + a, [p.b, None]), "params": dataclasses.replace(p, w=p.w * 2), "n": 3}

    made = f({"p": Params(np.ones(2), np.float64(5)), "q": (np.full(2, 2.0), None)})
    np.testing.assert_array_equal(made["sum"].first, [3, 3])
    assert made["sum"].second == [5.0, None]
    np.testing.assert_array_equal(made["params"].w, [2, 2])
    assert made["n"] == 3


def test_results_may_be_none_sparse_or_an_operation() -> None:
    v = dg.Variable(1.0)

    @dg.function
    def f(x: Any) -> Any:
        sparse = dg.gradients(dg.gather(x, [1, 1]), x)[0]
        return None, sparse, dg.group(v.assign(5.0))

    nothing, sparse, done = f(np.ones((3, 2)))
    assert nothing is None
    assert done is None
    assert isinstance(sparse, dg.IndexedSlicesValue)
    assert sparse.dense_shape == (3, 2)
    assert v.numpy() == 5


def test_a_result_that_is_no_tensor_is_a_type_error_that_names_the_function() -> None:
    f = dg.function(lambda: object(), name="f")
    with pytest.raises(TypeError, match="f must return tensors, operations, None, or nested structures"):
        f()


def test_an_argument_that_cannot_be_told_apart_is_named() -> None:
    @dg.function
    def f(x: Any, options: Any) -> Any:
        return x

    with pytest.raises(TypeError, match=r"f: the argument options\['s'\] is \{1, 2\}, which is neither"):
        f(np.ones(2), {"s": {1, 2}})
    with pytest.raises(TypeError, match="f: the argument x is an array of Python objects"):
        f(np.array([object()]), None)


def test_a_tensor_while_no_graph_is_current_is_a_clear_error() -> None:
    with dg.Graph():
        x = dg.constant(1.0, name="x")
    f = dg.function(lambda a: a * 2, name="f")
    with pytest.raises(TypeError, match=r"f: the argument a is <Tensor 'x:0'.*no graph is being built.*with graph:"):
        f(x)


def test_only_callables_are_decorated() -> None:
    with pytest.raises(TypeError, match="function decorates a callable, got 3"):
        dg.function(3)
    with pytest.raises(TypeError, match="function decorates a callable, got 3"):
        dg.function(name="f")(3)


def test_retracing_warns_once_and_names_the_argument() -> None:
    @dg.function
    def step(x: Any, options: Any) -> Any:
        return x * options["rate"]

    for i in range(4):
        step(np.ones(2), {"rate": i})
    text = r"step was traced 5 times: argument options\['rate'\] was 0, then 1, then 2\."
    with pytest.warns(UserWarning, match=text) as caught:
        step(np.ones(2), {"rate": 4})
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step(np.ones(2), {"rate": 7})


def test_retracing_for_shapes_names_them() -> None:
    f = dg.function(lambda batch: batch * 2, name="f")
    for n in range(1, 5):
        f(np.ones(n))
    with pytest.warns(UserWarning, match=r"argument batch was f64\[1\], then f64\[2\], then f64\[3\]"):
        f(np.ones(5))


def test_body_prints_what_runs() -> None:
    f = dg.function(lambda x: dg.exp(x))
    f(np.ones(2))
    assert f.body(np.ones(2)) is f.body(np.zeros(2))
    assert types(f.body(np.ones(2))) == ["Placeholder", "Exp"]


def test_placeholders_have_the_names_of_the_arguments() -> None:
    f = dg.function(lambda params, *rest: params["w"] * rest[0])
    assert [t.op.name for t in f.body({"w": np.ones(2)}, np.ones(2)).declared] == ["params_w", "rest_0"]


def test_a_default_that_is_spelt_out_is_the_same_signature() -> None:
    calls: list[Any] = []

    @dg.function
    def f(x: Any, n: int = 2, *, scale: float = 1.0, axes: Any = (0, None)) -> Any:
        calls.append((x, n))
        return x * n * scale

    for made in (f(np.ones(2)), f(np.ones(2), 2), f(np.ones(2), n=2), f(x=np.ones(2), scale=1.0, axes=(0, None))):
        np.testing.assert_array_equal(made, [2, 2])
    assert len(calls) == 1
    with dg.Graph() as graph:
        f(f(f32(1.0)), 2)
    assert len(calls) == 2
    assert types(graph) == ["Const", "Call", "Call"]


def test_a_default_that_is_an_array_or_cannot_be_told_apart_stays_a_constant() -> None:
    first = np.array([True, False])
    f = dg.function(lambda x, mask=first: x[mask])
    np.testing.assert_array_equal(f(np.array([1.0, 2.0])), [1])
    g = dg.function(lambda x, names=frozenset(), seen={1, 2}: x * len(seen))
    assert g(np.float64(3)) == 6


def test_the_history_of_traces_is_bounded() -> None:
    f = dg.function(lambda x, n: x * n)
    with pytest.warns(UserWarning, match="was traced 5 times: argument n was 0, then 1"):
        [f(np.float64(1), n) for n in range(20)]
    assert len(f._history) == 5


# -- calls in graphs ---------------------------------------------------------------------------------------------


def test_a_call_in_a_graph_is_one_op_and_its_body_is_traced_once_per_signature() -> None:
    f, calls = counted(lambda x: dg.sin(x) * 2)
    with dg.Graph() as graph:
        x = f32([1.0])
        y = f(f(x))
    assert types(graph) == ["Const", "Call", "Call"]
    assert len(calls) == 1
    check_graph(graph)
    np.testing.assert_allclose(run(y), 2 * np.sin(2 * np.sin([1.0])), rtol=1e-6)


def test_another_graph_is_another_trace() -> None:
    f, calls = counted(lambda x: x * 2)
    for _ in range(2):
        with dg.Graph():
            assert run(f(f32(1.0))) == 2
    assert len(calls) == 2


def test_a_body_that_captures_is_traced_for_every_call() -> None:
    factors: list[Any] = []
    f = dg.function(lambda x: x * factors[-1])
    with dg.Graph():
        made = []
        for i in range(3):
            factors.append(f32(i))
            made.append(f(f32(10.0)))
    assert [float(v) for v in run(made)] == [0, 10, 20]


def test_graphs_with_calls_can_die() -> None:
    f = dg.function(lambda x: x * 2)
    with dg.Graph() as graph:
        dg.gradients(f(x := f32(1.0)), x)
    alive = weakref.ref(graph)
    del graph, x
    gc.collect()
    assert alive() is None


def test_arrays_and_unhashable_static_arguments_in_a_graph() -> None:
    f = dg.function(lambda x, options: x * len(options))
    with dg.Graph():
        y = f(np.ones(2), {1, 2})
    np.testing.assert_array_equal(run(y), [2, 2])


def test_sparse_and_none_results_of_a_call_in_a_graph() -> None:
    f = dg.function(lambda x: (dg.gradients(dg.gather(x, [1]), x)[0], None))
    with dg.Graph():
        sparse, nothing = f(f32(np.ones((3, 2))))
    assert isinstance(sparse, dg.IndexedSlices)
    assert nothing is None


@pytest.mark.parametrize("nothing", [None, (), {"a": None}])
def test_a_function_may_return_nothing(nothing: Any) -> None:
    assert dg.function(lambda x: nothing)(np.ones(3)) == nothing


def test_functions_called_in_functions() -> None:
    inner = dg.function(lambda x: x * x)
    outer = dg.function(lambda x: inner(x) + inner(x + 1))
    assert outer(np.float64(2)) == 13
    assert dg.grad(outer)(2.0) == 10


def test_a_function_of_a_function_is_one() -> None:
    assert dg.function(dg.function(lambda x: x + 1))(np.float64(1)) == 2


# -- methods -----------------------------------------------------------------------------------------------------


class Model:
    traced = 0

    def __init__(self, w: float):
        self.w = w

    @dg.function
    def __call__(self, x: Any) -> Any:
        Model.traced += 1
        return x * self.w

    @staticmethod
    @dg.function
    def double(x: Any) -> Any:
        return x * 2


def test_a_method_is_traced_once_per_instance() -> None:
    Model.traced = 0
    models = Model(2.0), Model(3.0)
    assert [float(m(np.float64(x))) for x in (1, 2) for m in models] == [2, 3, 4, 6]
    assert Model.traced == 2
    assert Model.double(np.float64(4)) == 8


def test_a_method_keeps_its_instance_alive_and_traces_do_not() -> None:
    model = Model(2.0)
    model(np.float64(1))
    alive = weakref.ref(model)
    method = model.__call__
    del model
    assert method(np.float64(5)) == 10
    del method
    assert alive() is None


def test_methods_of_unhashable_and_of_slotted_instances() -> None:
    @dataclasses.dataclass
    class Scale:
        w: float

        @dg.function
        def apply(self, x: Any, n: int = 1) -> Any:
            assert type(self) is Scale
            return x * self.w * n

    class Slotted:
        __slots__ = ("w",)

        @dg.function
        def apply(self, x: Any) -> Any:
            return x * self.w

    assert Scale(3.0).apply(np.float64(2), n=5) == 30
    slotted = Slotted()
    slotted.w = 4.0
    assert slotted.apply(np.float64(2)) == 8


def test_a_method_can_be_copied() -> None:
    model = Model(2.0)
    assert copy.copy(model.__call__)(np.float64(3)) == 6


def test_a_method_in_a_graph() -> None:
    model = Model(2.0)
    with dg.Graph() as graph:
        x = f32(1.0)
        assert_values(dg.gradients(model(model(x)), x), [4.0])
    assert types(graph).count("Call") == 4


# -- variables ---------------------------------------------------------------------------------------------------


def test_variables_as_arguments_are_variables_in_the_body() -> None:
    @dg.function
    def add(v: dg.Variable, x: Any) -> Any:
        v.assign_add(x)
        return v * 10

    a, b = dg.Variable(1.0), dg.Variable(2.0)
    assert [float(add(v, np.float64(1))) for v in (a, b, a)] == [20, 30, 30]
    assert (a.numpy(), b.numpy()) == (3, 3)


def test_reads_and_assigns_keep_program_order() -> None:
    v = dg.Variable(1.0)

    @dg.function
    def f() -> Any:
        first = v.read()
        v.assign(first * 10)
        second = v * 1
        v.assign_add(5.0)
        return first, second, v.read()

    assert [float(x) for x in f()] == [1, 10, 15]
    assert [float(x) for x in f()] == [15, 150, 155]


def test_a_function_that_assigns_works_inside_another() -> None:
    v = dg.Variable(2.0)

    @dg.function
    def scale(x: Any) -> Any:
        v.assign_add(1.0)
        return x * v

    @dg.function
    def middle(x: Any) -> Any:
        return scale(x) + 0

    @dg.function
    def outer(x: Any) -> Any:
        first = scale(x)
        second = middle(x)
        return first + second, dg.gradients(first + second, [x, v])

    y, (dx, dv) = outer(np.float64(10))
    assert (float(y), float(dx), float(dv)) == (70, 7, 20)
    assert v.numpy() == 4


def test_an_array_argument_of_an_assigning_function_is_a_tensor_in_place_too() -> None:
    v = dg.Variable(0.0)

    @dg.function
    def slope(x: Any) -> Any:
        v.assign(1.0)
        return dg.gradients(x * x, x)[0]

    assert dg.function(lambda: slope(np.float64(3)))() == 6


def test_a_nested_function_reads_what_was_assigned_before_it_was_called() -> None:
    v = dg.Variable(1.0)
    read = dg.function(lambda: v * 1)

    @dg.function
    def f() -> Any:
        first = read()
        v.assign(5.0)
        return first, read()

    assert [float(x) for x in f()] == [1, 5]


def test_gradients_through_a_call_reach_variables_that_it_reads() -> None:
    v = dg.Variable(3.0)
    f = dg.function(lambda x: x * v * v)

    @dg.function
    def outer(x: Any) -> Any:
        return dg.gradients(f(x), [x, v])

    assert [float(g) for g in outer(np.float64(2))] == [9, 12]


def test_a_failed_call_leaves_variables_as_they_were() -> None:
    v = dg.Variable(1.0)

    @dg.op("TestFunctionFails", infer=lambda x: (x.shape, x.dtype))
    def fails(x: Any) -> Any:
        raise RuntimeError("no luck")

    @dg.function
    def f(x: Any) -> Any:
        v.assign_add(1.0)
        return fails(x)

    with pytest.raises(RuntimeError, match="no luck"):
        f(np.ones(2))
    assert v.numpy() == 1


def test_a_failed_trace_is_not_remembered() -> None:
    f, calls = counted(lambda x: x if len(calls) > 1 else dg.concatenate([x, np.ones((2, 2))]))
    with pytest.raises(ValueError, match=r"."):
        f(np.ones(3))
    np.testing.assert_array_equal(f(np.ones(3)), np.ones(3))


def test_an_assign_whose_signal_the_user_swallows_is_not_lost() -> None:
    v = dg.Variable(0.0)

    @dg.function
    def count(x: Any) -> Any:
        with contextlib.suppress(BaseException):  # as a bare `except: pass` does
            v.assign_add(1.0)
        return x * 1

    assert dg.function(lambda x: count(x) + count(x))(np.float64(2)) == 4
    assert v.numpy() == 2


def test_a_defun_that_swallows_it_is_refused() -> None:
    v = dg.Variable(0.0, name="v")

    @dg.Defun()
    def count(x: Any) -> Any:
        with contextlib.suppress(BaseException):  # as a bare `except: pass` does
            v.assign_add(1.0)
        return x * 1

    with dg.Graph(), pytest.raises(ValueError, match="count assigns a variable, but a Defun is a pure value"):
        count(1.0)


@pytest.mark.parametrize("swallow", [False, True])
def test_a_gradient_function_that_assigns_is_an_error_that_names_the_variable(swallow: bool) -> None:
    v = dg.Variable(0.0, name="steps")

    @dg.custom_gradient
    def counted_identity(x: Any) -> Any:
        def grad(dy: Any) -> Any:
            with contextlib.suppress(BaseException) if swallow else contextlib.nullcontext():
                v.assign_add(1.0)
            return dy

        return x * 1, grad

    f = dg.function(counted_identity, name="f")
    name = "a variable" if swallow else "<Variable 'steps'"
    with pytest.raises(ValueError, match=f"the gradient of f: {name}.* is assigned .* must not assign"):
        dg.grad(f)(1.0)
    assert dg.grad(counted_identity)(1.0) == 1
    assert v.numpy() == 1


# -- threads -----------------------------------------------------------------------------------------------------


def test_threads_that_call_at_once_share_one_trace() -> None:
    barrier = threading.Barrier(4)
    f = dg.function(lambda x: dg.sin(x) + 1)
    results: list[Any] = []

    def work() -> None:
        barrier.wait()
        results.append((f(np.zeros(2)), f.body(np.zeros(2))))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [value.tolist() for value, _ in results] == [[1, 1]] * 4
    assert {body for _, body in results} == {f.body(np.zeros(2))}


@pytest.mark.parametrize("decorate", [dg.function, dg.Defun()], ids=["function", "Defun"])
def test_what_is_traced_may_wait_for_a_thread_that_traces(decorate: Any) -> None:
    inner = decorate(lambda x: x * 2)
    found: list[Any] = []

    def outer(x: Any) -> Any:
        thread = threading.Thread(target=lambda: found.append(inner(np.float64(3))), daemon=True)
        thread.start()
        thread.join(60)
        return x * 1

    decorate(outer)(np.float64(1))
    assert found == [6]


def test_a_function_is_traced_outside_whatever_another_thread_builds() -> None:
    f = dg.function(lambda x: x * 2)
    results: list[Any] = []
    with dg.Graph() as graph:
        thread = threading.Thread(target=lambda: results.append(f(np.float64(2))))
        thread.start()
        thread.join()
    assert results == [4.0]
    assert graph.ops == []


def test_engines_get_native_arrays_however_a_function_is_called() -> None:
    """Arguments are converted in one place: what runs them trusts it."""
    square, foreign = dg.function(lambda x: x * x), np.arange(3.0).astype(">f8")
    _, prepared = square.prepared(foreign)
    assert [x.dtype.isnative for x in prepared] == [True]
    assert square(foreign).tolist() == [0.0, 1.0, 4.0]
    assert dg.Session().submit(square, foreign).value().tolist() == [0.0, 1.0, 4.0]
    plain = np.arange(3.0)
    assert square.prepared(plain)[1][0] is plain


def test_numpys_functions_can_be_traced_themselves() -> None:
    x = np.arange(3.0)
    np.testing.assert_allclose(dg.function(np.exp)(x), np.exp(x))
    np.testing.assert_array_equal(dg.function(np.add)(x, 1.0), x + 1)
    np.testing.assert_array_equal(dg.function(np.add.reduce)(x), 3.0)
    np.testing.assert_array_equal(dg.function(np.sum)(x), 3.0)
    assert dg.grad(np.square)(3.0) == 6.0
    assert dg.grad(np.sum)(x).tolist() == [1.0, 1.0, 1.0]
