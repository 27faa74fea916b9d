"""Session.run: fetches of every nesting, feeds of any tensor, errors, and runs as transactions."""

from __future__ import annotations

import dataclasses
import gc
import inspect
import pickle
import re
import weakref
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import pytest

import distgrad as dg
from distgrad import nest, runtime
from distgrad.graph import outside
from distgrad.ops.builder import make, same
from distgrad.registry import define
from distgrad.scheduler.program import lower
from distgrad.workers import reference

from ..support import f32, run

pytestmark = pytest.mark.usefixtures("graph")


# -- fetches -----------------------------------------------------------------------------------------------------


class Pair(NamedTuple):
    first: Any
    second: Any


@dataclasses.dataclass
class Record:
    value: Any
    others: Any


def test_a_tensor_gives_its_array() -> None:
    value = run(f32([1.0, 2.0]))
    assert isinstance(value, np.ndarray)
    assert value.dtype == np.float32


def test_fetches_keep_their_structure() -> None:
    x, y = dg.constant(1.0), dg.constant(2.0)
    assert run([x, (y, None)]) == [1.0, (2.0, None)]
    assert run({"b": x, "a": [y]}) == {"b": 1.0, "a": [2.0]}
    assert run(Pair(x, [y])) == Pair(1.0, [2.0])
    assert run(Record(x, {"y": y})) == Record(1.0, {"y": 2.0})
    made = run(OrderedDict(x=x))
    assert type(made) is OrderedDict


def test_none_and_empty_fetches_need_no_graph() -> None:
    assert run(None) is None
    assert run([]) == []
    assert run([None, ()]) == [None, ()]


def test_an_operation_is_run_and_gives_none() -> None:
    v = dg.Variable(1.0)
    op = v.assign(5.0).op
    assert run([op, dg.no_op()]) == [None, None]
    assert v.numpy() == 5.0


def test_a_variable_gives_its_value_also_when_nothing_else_is_fetched() -> None:
    v = dg.Variable([1.0, 2.0])
    np.testing.assert_array_equal(run(v), [1.0, 2.0])
    np.testing.assert_array_equal(run([v * 2, v])[1], [1.0, 2.0])


def test_the_handle_of_a_variable_gives_its_value() -> None:
    v = dg.Variable([1.0, 2.0])
    np.testing.assert_array_equal(run(v.__handle__()), [1.0, 2.0])


def test_the_same_tensor_may_be_fetched_twice() -> None:
    x = dg.constant(1.0)
    assert run([x, x]) == [1.0, 1.0]


@pytest.mark.parametrize("bad", [1.0, "x:0", object(), np.ones(2)])
def test_other_fetches_are_a_type_error(bad: object) -> None:
    x = dg.constant(1.0)
    for fetches in (bad, [x, bad]):
        with pytest.raises(TypeError, match=r"cannot fetch .*; fetch tensors, operations, variables or structures"):
            run(fetches)


def test_fetches_of_different_graphs_are_a_value_error() -> None:
    x = dg.constant(1.0)
    with dg.Graph():
        other = dg.constant(1.0)
    with pytest.raises(ValueError, match="the fetches are from different graphs; run them one graph at a time"):
        run([x, other])


def test_a_fetched_array_belongs_to_the_caller() -> None:
    x = dg.constant([1.0, 2.0])
    fetched = run([x, dg.broadcast_to(x, (3, 2))])
    for array in fetched:
        array[...] = 7.0
    np.testing.assert_array_equal(run(x), [1.0, 2.0])


# -- feeds -------------------------------------------------------------------------------------------------------


def test_any_tensor_can_be_fed() -> None:
    x = dg.placeholder((2,))
    a = 3 * x
    y = a * a
    np.testing.assert_array_equal(run(y, {x: [1.0, 2.0]}), [9.0, 36.0])
    np.testing.assert_array_equal(run(y, {a: [1.0, 2.0]}), [1.0, 4.0])  # x is not needed then
    np.testing.assert_array_equal(run([a, y], {a: [1.0, 2.0], y: [0.0, 0.0]}), [[1.0, 2.0], [0.0, 0.0]])


def test_one_output_of_an_op_can_be_fed_while_the_other_is_computed() -> None:
    a, b = dg.identity_n([dg.constant(1.0), dg.constant(2.0)])
    assert run([a, b, a + b], {a: 10.0}) == [10.0, 2.0, 12.0]


def test_a_read_of_a_variable_can_be_fed() -> None:
    v = dg.Variable(1.0)
    read = v.read()
    assert run(read * 2, {read: 5.0}) == 10.0
    assert v.numpy() == 1.0


def test_the_result_of_a_called_function_can_be_fed() -> None:
    y = dg.function(lambda x: x * 2)(dg.constant(1.0))
    assert run(y + 1, {y: 10.0}) == 11.0


def test_feeds_that_nobody_needs_are_harmless() -> None:
    x, y = dg.placeholder(()), dg.constant(1.0)
    assert run(y, {x: 5.0}) == 1.0


def test_an_op_may_wait_for_a_fed_placeholder() -> None:
    x = dg.placeholder(())
    with dg.control_dependencies([x]):
        y = dg.constant(1.0)
    assert run(y, {x: 5.0}) == 1.0


def test_an_op_of_a_function_may_wait_for_an_argument() -> None:
    @dg.function
    def after(x: dg.Tensor) -> dg.Tensor:
        with dg.control_dependencies([x]):
            return dg.constant(1.0)

    assert run(after(dg.constant(3.0))) == 1.0
    with outside():
        assert after(np.array(3.0)) == 1.0


def test_a_feed_is_cast_within_its_kind() -> None:
    x = dg.placeholder((), "float32")
    assert run(x * 1, {x: 0.1}).dtype == np.float32
    assert run(x * 1, {x: 3}) == 3.0
    k = dg.placeholder((), "int32")
    with pytest.raises(TypeError, match=r"'Placeholder_1:0' is i32\[\] and cannot be fed a value of dtype float64"):
        run(k * 1, {k: 1.5})


def test_a_feed_must_have_the_shape() -> None:
    x = dg.placeholder((2, 3), "float32", name="x")
    with pytest.raises(ValueError, match=r"'x:0' is f32\[2,3\] and cannot be fed f32\[3\]"):
        run(x * 1, {x: np.ones(3)})


def test_an_unfed_placeholder_is_named_with_its_line() -> None:
    x = dg.placeholder((), name="x")
    line = inspect.currentframe().f_lineno - 1  # type: ignore[union-attr]
    with pytest.raises(ValueError, match=rf"placeholder 'x' \(at test_session.py:{line}\) must be fed: give this"):
        run(x * 1)


def test_keys_of_feed_dict_are_tensors_of_the_graph() -> None:
    x = dg.constant(1.0)
    for bad in ("x:0", dg.Variable(1.0)):
        with pytest.raises(TypeError, match="the keys of feed_dict are tensors, got"):
            run(x, {bad: 1.0})
    with pytest.raises(TypeError, match="feed_dict is a dict of tensor to value, got"):
        run(x, [(x, 1.0)])
    with dg.Graph():
        other = dg.placeholder((), name="other")
    with pytest.raises(ValueError, match=r"'other:0'.* is fed but belongs to a different graph from the fetches"):
        run(x, {other: 1.0})


def test_a_variable_cannot_be_fed_by_its_handle() -> None:
    v = dg.Variable(1.0, name="v")
    with pytest.raises(ValueError, match=r"'v:0'.* is a variable and cannot be fed: assign it, or feed a read of it"):
        run(v * 1, {v.__handle__(): 2.0})


def test_a_tensor_is_no_value() -> None:
    x, y = dg.placeholder(()), dg.constant(1.0)
    with pytest.raises(TypeError, match="has no value outside its graph"):
        run(x * 1, {x: y})


@pytest.mark.parametrize("value", [2**40, np.int64(2**40), -1])
def test_an_integer_that_does_not_fit_is_an_overflow_error(value: object) -> None:
    x = dg.placeholder((), "uint8" if value == -1 else "int32")
    with pytest.raises(OverflowError, match=r"is (u8|i32)\[\] and cannot hold the value fed"):
        run(x * 1, {x: value})


def test_python_integers_are_fed_to_any_integer_dtype() -> None:
    x = dg.placeholder((2,), "uint8")
    assert run(x * 1, {x: [1, 255]}).tolist() == [1, 255]


def test_arrays_in_a_foreign_byte_order_are_values_like_any_other() -> None:
    foreign = np.array([1.0, 2.0], ">f8")
    with outside():
        assert dg.exp(foreign).dtype.isnative
        native = foreign.astype("=f8")
        f = dg.function(lambda x: dg.exp(x) * 2)
        assert f(foreign).tolist() == f(native).tolist() == pytest.approx(np.exp(native) * 2)
    x = dg.placeholder((2,), ">f8")
    assert run(x * 2, {x: foreign}).tolist() == [2.0, 4.0]


def test_a_program_that_travelled_hands_out_no_constant_that_can_be_written() -> None:
    program = pickle.loads(pickle.dumps(lower([dg.constant([1.0, 2.0])])))
    (found,), _ = reference.run(program, [], {})
    with pytest.raises(ValueError, match="read-only"):
        found[0] = 9.0


def test_concurrent_calls_lose_no_update() -> None:
    v = dg.Variable(0.0)
    step = dg.function(lambda: v.assign_add(1.0))
    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(lambda: [step() for _ in range(100)]) for _ in range(4)]:
            done.result()
    assert v.numpy() == 400.0


def test_a_kernel_may_use_distgrad_itself_while_a_graph_is_built() -> None:
    @dg.op("TestKernelUsesDistgrad")
    def double(x: object) -> object:
        return dg.add(x, x)

    y = double(dg.constant(2.0))
    assert run(y) == 4.0


# -- failing -----------------------------------------------------------------------------------------------------


def _explode(x: Any) -> Any:
    raise ZeroDivisionError("boom")


def _caused(x: Any) -> Any:
    error = RuntimeError("no data")
    error.add_note("the user's own note")
    raise error from OSError("no disk")


_SAME = ValueError("again")


def _again(x: Any) -> Any:
    raise _SAME


BOOM = define("TestBoom", same, kernel=_explode)
CAUSED = define("TestCaused", same, kernel=_caused)
AGAIN = define("TestAgain", same, kernel=_again)
IDENTITY = define("TestIdentity", same, kernel=lambda x: x)
LIAR = define("TestLiar", same, kernel=lambda x: np.zeros(3))


def test_an_error_of_a_kernel_keeps_its_type_and_names_op_line_and_inputs() -> None:
    x = f32([1.0, 2.0])
    y = make(BOOM, (x,), name="model")
    line = inspect.currentframe().f_lineno - 1  # type: ignore[union-attr]
    with pytest.raises(ZeroDivisionError, match="boom") as info:
        run(y)
    assert info.value.__notes__ == [
        f"distgrad: in op 'model' (type TestBoom, at test_session.py:{line}) on inputs (f32[2])"
    ]
    assert pickle.loads(pickle.dumps(info.value)).__notes__ == info.value.__notes__


#: Ways to run: alone, in a thread of a pool, and side by side.
WAYS: list[dict[str, Any]] = [{}, {"timeout": 60}, {"threads": 2, "cpus_per_task": 1, "granularity": 1e-9}]


@pytest.mark.parametrize("options", WAYS)
def test_an_error_is_noted_once_with_the_traceback_of_the_kernel(options: Any) -> None:
    x = f32(np.ones((4, 4)))
    y = make(BOOM, (dg.exp(x) @ x,), name="model") + make(IDENTITY, (x @ x,))
    with pytest.raises(ZeroDivisionError, match="boom") as info:
        dg.Session(**options).run(y)
    (note,) = info.value.__notes__
    assert note.startswith("distgrad: in op 'model' (type TestBoom, at test_session.py:")
    assert note.endswith(") on inputs (f32[4,4])")
    assert info.traceback[-1].name == "_explode"
    assert (info.value.__cause__, info.value.__context__) == (None, None)


@pytest.mark.parametrize("options", WAYS)
def test_an_error_keeps_its_own_notes_and_its_own_cause(options: Any) -> None:
    with pytest.raises(RuntimeError, match="no data") as info:
        dg.Session(**options).run(make(CAUSED, (f32([1.0]),)))
    assert info.value.__notes__[0] == "the user's own note"
    assert len(info.value.__notes__) == 2
    assert isinstance(info.value.__cause__, OSError)


def test_an_error_object_that_is_raised_again_and_again_has_one_note() -> None:
    y = make(AGAIN, (f32([1.0]),))
    for _ in range(3):
        with pytest.raises(ValueError, match="again"):
            run(y)
    assert len(_SAME.__notes__) == 1


@pytest.mark.parametrize("options", WAYS)
@pytest.mark.parametrize("n", [6, 200_000])
def test_an_error_inside_of_a_fused_group_names_the_op(options: Any, n: int) -> None:
    x, y = dg.placeholder((n,), "int64"), dg.placeholder((n,), "int64")
    z = dg.sum(dg.power(x + 1, y * 2, name="risen") + x)
    session = dg.Session(**options)
    feed = {x: np.full(n, 3), y: np.full(n, -1)}
    assert ("Fused" in {step.type for step in session.plan(z, feed).program.steps}) == (n > 6)
    with pytest.raises(ValueError, match="Integers to negative integer powers") as info:
        session.run(z, feed)
    (note,) = info.value.__notes__
    assert note.startswith("distgrad: in op 'risen' (type Pow, at test_session.py:")
    assert note.endswith(f"on inputs (i64[{n}], i64[{n}])")


def test_an_error_of_a_function_that_a_kernel_calls_names_both_ops() -> None:
    inner = dg.function(lambda x: make(BOOM, (x,), name="inner"))
    nested = define("TestNestedBoom", same, kernel=lambda x: inner(np.asarray(x)), override=True)
    with pytest.raises(ZeroDivisionError) as info:
        run(make(nested, (f32([1.0]),), name="outer"))
    assert [re.findall(r"op '(\w+)'", note) for note in info.value.__notes__] == [["inner"], ["outer"]]


def test_a_kernel_that_breaks_its_shape_rule_is_found() -> None:
    y = make(LIAR, (f32([1.0, 2.0]),))
    with pytest.raises(TypeError, match=r"of TestLiar returned \(f64\[3\]\), but its shape rule says \(f32\[2\]\)"):
        run(y)


def test_a_session_is_usable_after_an_error() -> None:
    session, x = dg.Session(), dg.placeholder(())
    boom, fine = make(BOOM, (x,)), x + 1
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            session.run([boom, fine], {x: 1.0})
        assert session.run(fine, {x: 1.0}) == 2.0


def test_a_failed_run_leaves_every_variable_as_it_was() -> None:
    v, w = dg.Variable(1.0), dg.Variable([1.0, 2.0])
    changed = [v.assign(5.0), w.assign_add([1.0, 1.0])]
    with dg.control_dependencies(changed):
        boom = make(BOOM, (dg.constant(1.0),))
    with pytest.raises(ZeroDivisionError, match="boom"):
        run([*changed, boom])
    assert v.numpy() == 1.0
    np.testing.assert_array_equal(w.numpy(), [1.0, 2.0])
    run(changed)
    assert v.numpy() == 5.0


def test_a_failed_function_leaves_every_variable_as_it_was() -> None:
    v = dg.Variable(1.0)

    @dg.function
    def step() -> dg.Tensor:
        v.assign(5.0)
        return make(BOOM, (v * 1,))

    with outside(), pytest.raises(ZeroDivisionError, match="boom"):
        step()
    assert v.numpy() == 1.0


def test_infinities_and_nans_are_values_not_warnings() -> None:
    x = dg.constant([0.0, -1.0])
    found = run([1 / x, dg.log(x)])
    assert np.isposinf(found[0][0])
    assert np.isnan(found[1][1])


# -- sessions ----------------------------------------------------------------------------------------------------


def test_lowering_is_done_once_per_fetches_and_feeds() -> None:
    session = dg.Session()
    x = dg.placeholder(())
    y = x * 2
    for value in (1.0, 2.0):
        assert session.run(y, {x: value}) == 2 * value
    [ready] = x.graph.memo("ready").values()
    assert len(ready) == 1


def test_a_session_does_not_keep_a_graph_alive() -> None:
    session = dg.Session()
    with dg.Graph() as graph:
        session.run(dg.constant(1.0))
    alive = weakref.ref(graph)
    del graph
    gc.collect()
    assert alive() is None


def test_a_function_that_returns_its_argument_gives_an_array_of_its_own() -> None:
    x = np.ones(3)
    with outside():
        for f in (lambda x: x, lambda x: dg.reshape(x, (1, 3)), lambda x: x[::-1]):
            found = dg.function(f)(x)
            found[...] = 7.0
    assert x.tolist() == [1.0, 1.0, 1.0]


def test_a_placeholder_that_only_an_unused_part_of_a_function_reads_needs_no_value() -> None:
    x, y = dg.placeholder(()), dg.placeholder(())

    @dg.function
    def f(x: dg.Tensor, y: dg.Tensor) -> tuple[dg.Tensor, dg.Tensor]:
        return x * 2, y * 3

    first, second = f(x, y)
    assert dg.Session().run(first, {x: 1.0}) == 2.0
    with pytest.raises(ValueError, match=r"placeholder 'Placeholder_1' \(at test_session.py:\d+\) must be fed"):
        dg.Session().run(second, {x: 1.0})


def test_the_innermost_session_is_the_current_one() -> None:
    default = runtime.current()
    with dg.Session() as a:
        assert runtime.current() is a
        with dg.Session() as b:
            assert runtime.current() is b
        assert runtime.current() is a
    assert runtime.current() is default


def test_a_long_chain_runs_without_recursion() -> None:
    x = dg.constant(1.0)
    y = x
    for _ in range(20_000):
        y = -y
    assert run(y) == 1.0


def _square_sum(x: dg.Tensor) -> dg.Tensor:
    return dg.sum(x * x)


@pytest.mark.parametrize(
    "derivative", [dg.grad, dg.value_and_grad, dg.jacobian, dg.hessian, lambda f: dg.grad(lambda x: (f(x), x), 0, True)]
)
def test_submit_takes_derivatives_and_gives_handles_on_what_a_call_gives(derivative: Any) -> None:
    function, x = derivative(_square_sum), np.array([1.0, 2.0])
    with outside():
        made, called = dg.Session().submit(function, x), function(x)
    leaves = nest.flatten(made)
    assert all(isinstance(leaf, dg.Handle) for leaf in leaves)
    for leaf, expected in zip(leaves, nest.flatten(called), strict=True):
        np.testing.assert_array_equal(leaf.numpy(), expected)


def test_submit_of_a_plain_function_says_what_to_do() -> None:
    with pytest.raises(TypeError, match=r"Session.submit: .*_square_sum.* is not a distgrad function: decorate it"):
        dg.Session().submit(_square_sum, np.ones(2))
