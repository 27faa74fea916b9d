"""Graph, Operation and Tensor: names, scopes, devices, control dependencies, printing, and the checker."""

from __future__ import annotations

import copy
import gc
import inspect
import pickle
import re
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import distgrad as dg
from distgrad.errors import UNKNOWN, Source, here, is_internal
from distgrad.graph import FuncGraph, check_graph, current_graph, outside
from distgrad.printing import format_ops
from distgrad.scheduler import program
from distgrad.workers import reference

from ..support import f32, types


def line() -> int:
    """The line that calls this."""
    return inspect.currentframe().f_back.f_lineno  # type: ignore[union-attr]


# -- building ----------------------------------------------------------------------------------------------------


def test_creation_order_is_kept_and_ids_are_places() -> None:
    with dg.Graph() as graph:
        x = f32([1.0])
        y = dg.exp(x) * x
    assert types(graph) == ["Const", "Exp", "Mul"]
    assert [op.id for op in graph.ops] == [0, 1, 2]
    assert y.op.inputs == (graph.ops[1].outputs[0], x)
    assert check_graph(graph) is graph


def test_a_tensor_knows_its_op_index_shape_dtype_name_and_graph() -> None:
    with dg.Graph() as graph:
        x = dg.placeholder((8, 3), "float32", name="x")
    assert (x.op.type, x.index, x.shape, x.dtype, x.name) == ("Placeholder", 0, (8, 3), np.dtype("float32"), "x:0")
    assert x.graph is graph
    assert x.op.outputs == (x,)


def test_an_op_keeps_the_users_line() -> None:
    with dg.Graph():
        x = dg.constant(1.0)
        here_ = line() - 1
    assert x.op.source == Source(__file__, here_, "test_an_op_keeps_the_users_line")
    assert str(x.op.source) == f"test_graph.py:{here_}"


def test_lines_inside_distgrad_are_never_the_users() -> None:
    assert is_internal(dg.graph.__file__)
    assert is_internal(program.__file__)
    assert is_internal(reference.__file__)
    assert not is_internal(__file__)
    assert here().filename == __file__


def test_an_op_without_a_users_line_says_so() -> None:
    with dg.Graph():
        x = f32(1.0)
    x.op._code = None
    assert x.op.source == UNKNOWN


def test_a_tensor_shows_name_type_and_line() -> None:
    with dg.Graph():
        x = dg.placeholder((2,), "float32", name="x")
        here_ = line() - 1
    assert repr(x) == f"<Tensor 'x:0' f32[2] from Placeholder at test_graph.py:{here_}>"
    assert repr(x.op) == f"<Operation 'x' type=Placeholder at test_graph.py:{here_}>"
    assert repr(x.graph) == "<Graph of 1 ops>"


def test_tensors_are_hashed_by_identity() -> None:
    with dg.Graph():
        x, y = f32(1.0), f32(1.0)
    assert len({x, y, x}) == 2


def test_a_tensor_of_another_graph_is_refused() -> None:
    with dg.Graph():
        foreign = f32(1.0, name="foreign")
    with dg.Graph():
        x = f32(1.0)
        with pytest.raises(ValueError, match=r"'foreign:0'.* belong to different graphs.* from the same graph"):
            x * foreign


def test_ops_on_tensors_go_to_the_graph_of_the_tensors() -> None:
    with dg.Graph() as graph:
        x = f32(1.0)
    with dg.Graph() as other:
        y = -x
    assert y.graph is graph
    assert other.ops == []
    assert (-y).graph is graph


def test_the_current_graph_is_the_innermost_and_belongs_to_a_thread() -> None:
    seen: list[object] = []
    assert current_graph() is None
    with dg.Graph() as a:
        with dg.Graph() as b:
            assert current_graph() is b
            thread = threading.Thread(target=lambda: seen.append(current_graph()))
            thread.start()
            thread.join()
        assert current_graph() is a
        with outside():
            assert current_graph() is None
        with b.as_default():
            assert current_graph() is b
    assert current_graph() is None
    assert seen == [None]


def test_building_leaves_the_garbage_collectors_settings_as_they_were() -> None:
    before = gc.get_threshold()
    with pytest.raises(KeyError, match="stop"), dg.Graph(), dg.Graph():
        raise KeyError("stop")
    assert gc.get_threshold() == before


# -- names and scopes --------------------------------------------------------------------------------------------


def test_names_are_made_unique() -> None:
    with dg.Graph():
        names = [f32(1.0, name=name).op.name for name in ("x", "x", "x_1", "x", None, None)]
    assert names == ["x", "x_1", "x_1_1", "x_2", "Const", "Const_1"]


@pytest.mark.parametrize("bad", ["a b", "-x", "", "x:0"])
def test_an_invalid_name_is_a_value_error(bad: str) -> None:
    with dg.Graph() as graph:
        with pytest.raises(ValueError, match=re.escape(f"{bad!r} is not a valid name: use letters, digits")):
            f32(1.0, name=bad)
        assert graph.ops == []


def test_scopes_nest_and_every_entry_is_a_new_one() -> None:
    with dg.Graph():
        made = []
        for _ in range(2):
            with dg.name_scope("a") as scope, dg.name_scope("b"):
                made.append((scope, f32(1.0, name="x").op.name))
        after = f32(1.0, name="x").op.name
    assert made == [("a/", "a/b/x"), ("a_1/", "a_1/b/x")]
    assert after == "x"


def test_a_scope_that_ends_in_a_slash_is_entered_again() -> None:
    with dg.Graph():
        with dg.name_scope("a") as scope:
            f32(1.0, name="x")
        with dg.name_scope("elsewhere"), dg.name_scope(scope):
            assert f32(1.0, name="x").op.name == "a/x_1"


def test_scope_none_is_the_root_and_the_empty_scope_the_current_one() -> None:
    with dg.Graph(), dg.name_scope("a"):
        with dg.name_scope(""):
            assert f32(1.0, name="x").op.name == "a/x"
        with dg.name_scope(None):
            assert f32(1.0, name="x").op.name == "x"


def test_an_invalid_scope_is_a_value_error() -> None:
    with dg.Graph(), pytest.raises(ValueError, match="'-a' is not a valid name"), dg.name_scope("-a"):
        pass


def test_scopes_and_devices_outside_any_graph_change_nothing() -> None:
    with dg.name_scope("a"), dg.device("gpu"), dg.control_dependencies([]):
        np.testing.assert_array_equal(dg.exp(np.zeros(2)), [1.0, 1.0])


def test_ops_and_tensors_are_found_by_name() -> None:
    with dg.Graph() as graph:
        x = f32(1.0, name="x")
    assert graph.get_operation_by_name("x") is x.op
    assert graph.get_tensor_by_name("x:0") is x
    with pytest.raises(KeyError, match="no operation named 'y'"):
        graph.get_operation_by_name("y")
    for bad in ("x", "x:1", "x:a"):
        with pytest.raises(KeyError, match=f"'{bad}' is not a tensor: write 'op:index', index below 1 for 'x'"):
            graph.get_tensor_by_name(bad)


# -- devices, control dependencies, overrides --------------------------------------------------------------------


def test_devices_nest_and_none_clears() -> None:
    with dg.Graph():
        with dg.device("gpu"):
            a = f32(1.0)
            with dg.device("worker:2"):
                b = f32(1.0)
            with dg.device(None):
                c = f32(1.0)
        d = f32(1.0)
    assert [t.device for t in (a, b, c, d)] == ["gpu", "worker:2", None, None]


def test_a_device_must_be_a_string() -> None:
    with dg.Graph(), pytest.raises(TypeError, match=r"a device must be a string .* or None; got 3"), dg.device(3):
        pass


def test_control_dependencies_add_up_without_repeats_and_none_clears() -> None:
    with dg.Graph() as graph:
        a, b = f32(1.0), f32(2.0)
        with graph.control_dependencies([a, a.op]):
            with graph.control_dependencies([b, a]):
                c = f32(3.0)
            with graph.control_dependencies(None):
                d = f32(4.0)
        e = f32(5.0)
    assert [t.op.control_inputs for t in (c, d, e)] == [(a.op, b.op), (), ()]
    check_graph(graph)


def test_control_dependencies_take_one_tensor_or_operation_too() -> None:
    with dg.Graph():
        a = f32([1.0, 2.0])
        for single in (a, a.op):
            with dg.control_dependencies(single):
                assert f32(3.0).op.control_inputs == (a.op,)


def test_control_dependencies_refuse_other_things_and_other_graphs() -> None:
    with dg.Graph():
        foreign = f32(1.0, name="foreign")
    with dg.Graph() as graph:
        with pytest.raises(TypeError, match="control dependencies are tensors or operations, got 1"):
            graph.control_dependencies([1]).__enter__()
        with pytest.raises(ValueError, match=r"'foreign'.* belongs to another graph and cannot be waited for"):
            graph.control_dependencies([foreign]).__enter__()


def test_settings_are_restored_after_an_error() -> None:
    with dg.Graph() as graph:
        x = f32(1.0)
        with (
            pytest.raises(KeyError, match="stop"),
            dg.name_scope("s"),
            dg.device("gpu"),
            dg.control_dependencies([x]),
            graph.gradient_override_map({"Exp": "Other"}),
        ):
            raise KeyError("stop")
        y = dg.exp(x)
    assert (y.op.name, y.device, y.op.control_inputs, y.op.gradient) == ("Exp", None, (), None)


def test_an_override_tags_the_ops_built_inside_and_inner_maps_win() -> None:
    with dg.Graph() as graph:
        x = f32(1.0)
        with graph.gradient_override_map({"Exp": "A", "Sin": "B"}):
            with graph.gradient_override_map({"Exp": "C"}):
                made = [dg.exp(x), dg.sin(x), dg.cos(x)]
            made.append(dg.exp(x))
        made.append(dg.exp(x))
    assert [t.op.gradient for t in made] == ["C", "B", None, "A", None]
    assert made[0].op.type == "Exp"


@pytest.mark.parametrize("bad", [[("Exp", "A")], {"Exp": 1}, {1: "A"}])
def test_an_override_map_is_a_dict_of_strings(bad: object) -> None:
    with dg.Graph() as graph, pytest.raises(TypeError, match=r"gradient_override_map.*, got"):
        graph.gradient_override_map(bad).__enter__()  # type: ignore[arg-type]


def test_group_waits_for_all_and_makes_nothing() -> None:
    with dg.Graph() as graph:
        a, b, c = f32(1.0), f32(2.0), dg.no_op()
        done = dg.group(a, [b, (c, None)], name="done")
    assert (done.type, done.name, done.outputs) == ("NoOp", "done", ())
    assert done.control_inputs == (a.op, b.op, c)
    check_graph(graph)


def test_tuple_gates_tensors_and_keeps_none() -> None:
    with dg.Graph():
        a, b, other = f32(1.0), f32(2.0), dg.no_op(name="other")
        first, none, second = dg.tuple([a, None, b], control_inputs=[other])
    (gate,) = first.op.control_inputs
    assert none is None
    assert gate.control_inputs == (a.op, b.op, other)
    assert second.op.control_inputs == (gate,)
    assert [first.op.inputs, second.op.inputs] == [(a,), (b,)]


def test_tuple_needs_a_tensor() -> None:
    with dg.Graph(), pytest.raises(ValueError, match="tuple: there must be at least one tensor"):
        dg.tuple([None])


def test_what_needs_a_graph_says_so() -> None:
    for build in (dg.no_op, dg.group, lambda: dg.placeholder(())):
        with pytest.raises(RuntimeError, match=r"there is no graph; build one with `with distgrad.Graph"):
            build()


# -- printing ----------------------------------------------------------------------------------------------------


def test_a_graph_prints_one_node_per_line() -> None:
    with dg.Graph() as graph:
        a = dg.placeholder((8, 2), "float32")
        b = dg.placeholder((2, 3), "float32")
        dg.tanh(dg.matmul(a, b))
        n = line()
    first, second, third, fourth = str(graph).splitlines()
    assert first == f"%0 f32[8,2] = Placeholder()  # test_graph.py:{n - 3}"
    assert second == f"%1 f32[2,3] = Placeholder()  # test_graph.py:{n - 2}"
    assert re.fullmatch(rf"%2 f32\[8,3\] = MatMul\(%0, %1.*\)  # test_graph.py:{n - 1}", third)
    assert fourth == f"%3 f32[8,3] = Tanh(%2)  # test_graph.py:{n - 1}"


def test_printing_shows_attributes_devices_control_inputs_and_all_outputs() -> None:
    with dg.Graph() as graph:
        x = dg.placeholder((), name="x")
        with dg.device("gpu"), dg.control_dependencies([x]):
            dg.identity_n([x, dg.cast(x, "int32")])
        dg.group(x, name="done")
    lines = [text.partition("  #")[0] for text in str(graph).splitlines()]
    assert lines == [
        "%0 f64[] = Placeholder()",
        "%1 i32[] = Cast(%0, dtype=dtype('int32')) after x @gpu",
        "%2 f64[], %3 i32[] = IdentityN(%0, %1) after x @gpu",
        "done = NoOp() after x",
    ]


def test_printing_shortens_long_attributes() -> None:
    with dg.Graph() as graph:
        dg.constant(np.arange(1000.0))
    (text,) = str(graph).splitlines()
    assert len(text) < 130
    assert "..." in text


def test_printing_a_part_names_tensors_from_elsewhere() -> None:
    with dg.Graph() as graph:
        dg.exp(dg.placeholder((), name="x"))
    assert format_ops(graph.ops[1:]).startswith("%0 f64[] = Exp(x:0)  #")


def test_a_backward_op_prints_with_the_line_of_its_forward_op() -> None:
    with dg.Graph() as graph:
        x = dg.placeholder(())
        y = dg.exp(x)
        n = line() - 1
        dg.gradients(y, x)
    assert str(graph).splitlines()[-1].endswith(f"# test_graph.py:{n}")


# -- the checker -------------------------------------------------------------------------------------------------


def broken() -> dg.Graph:
    with dg.Graph() as graph:
        x = f32(1.0, name="x")
        dg.multiply(dg.exp(x, name="e"), x, name="y")
    return graph


def test_the_checker_finds_a_wrong_id() -> None:
    graph = broken()
    graph.ops[1].id = 7
    with pytest.raises(ValueError, match=r"'e'.* is at index 1 but has id 7"):
        check_graph(graph)


def test_the_checker_finds_an_op_of_another_graph() -> None:
    graph = broken()
    graph.ops[1] = broken().ops[1]
    with pytest.raises(ValueError, match=r"'e'.* is at index 1"):
        check_graph(graph)


def test_the_checker_finds_a_name_used_twice() -> None:
    graph = broken()
    graph.ops[2].name = "e"
    with pytest.raises(ValueError, match="two operations are named 'e'"):
        check_graph(graph)


def test_the_checker_finds_an_input_that_is_not_earlier() -> None:
    graph = broken()
    graph.ops[1].inputs = graph.ops[2].outputs
    with pytest.raises(ValueError, match=r"'e'.* reads .*'y:0'.*, which is not an earlier tensor of the same graph"):
        check_graph(graph)


def test_the_checker_finds_an_input_of_another_graph() -> None:
    graph = broken()
    graph.ops[1].inputs = broken().ops[0].outputs
    with pytest.raises(ValueError, match=r"'e'.* reads .*'x:0'.*, which is not an earlier tensor of the same graph"):
        check_graph(graph)


def test_the_checker_finds_an_input_that_its_op_does_not_make() -> None:
    graph = broken()
    graph.ops[1].inputs = (dg.Tensor(graph.ops[0], 0, (), np.dtype("float32")),)
    with pytest.raises(ValueError, match=r"'e'.* reads .*'x:0'"):
        check_graph(graph)


def test_the_checker_finds_a_control_input_that_is_not_earlier() -> None:
    graph = broken()
    graph.ops[1].control_inputs = (graph.ops[2],)
    with pytest.raises(ValueError, match=r"'e'.* waits for .*'y'.*, which is not an earlier op of the same graph"):
        check_graph(graph)


def test_the_checker_finds_an_output_that_points_elsewhere() -> None:
    graph = broken()
    graph.ops[2].outputs = graph.ops[1].outputs
    with pytest.raises(ValueError, match=r"output 0 of .*'y'.* does not point back to it"):
        check_graph(graph)


# -- function bodies ---------------------------------------------------------------------------------------------


def test_a_body_captures_tensors_of_the_graphs_around_it_once() -> None:
    with dg.Graph() as outer:
        x = f32(1.0)
        with FuncGraph("f", outer) as f, FuncGraph("g", f) as g:
            y = x * x
    assert list(f.captures) == [x]
    assert list(g.captures) == list(f.captures.values())
    assert y.op.inputs == (*g.captures.values(), *g.captures.values())
    assert g.inputs == list(g.captures.values())
    for graph in (outer, f, g):
        check_graph(graph)


def test_a_capture_belongs_to_no_place_in_the_body() -> None:
    with dg.Graph() as outer:
        x = f32(1.0)
        with FuncGraph("f", outer) as f:
            k = f32(2.0)
            with dg.name_scope("s"), dg.device("gpu"), dg.control_dependencies([k]):
                f._original = k.op
                dg.identity(x)
                f._original = None
    (captured,) = f.captures.values()
    op = captured.op
    assert (op.name, op.device, op.control_inputs, op.original_op) == ("captured", None, (), None)


def test_a_body_refuses_tensors_of_unrelated_graphs() -> None:
    with dg.Graph():
        foreign = f32(1.0)
    with FuncGraph("f", dg.Graph()) as f:
        k = f32(1.0)
        with pytest.raises(ValueError, match="belong to different graphs"):
            f.admit(foreign)
        assert k.graph is f


def test_a_source_survives_pickling() -> None:
    source = Source("/home/me/train.py", 41, "loss")
    assert pickle.loads(pickle.dumps(source)) == source


# -- what users trip on ------------------------------------------------------------------------------------------


def test_a_shape_error_while_building_has_a_note_with_op_line_and_types() -> None:
    with dg.Graph():
        x = dg.constant(np.ones((2, 4)))
        with pytest.raises(ValueError, match=r"shapes \[2, 4\] and \[7\] cannot be broadcast") as caught:
            x + np.ones(7)
    (note,) = caught.value.__notes__
    place = f"test_graph.py:{line() - 2}"
    assert note == f"distgrad: while building op type Add (at {place}) on inputs (f64[2,4], f64[7])"


def test_an_exception_in_a_gradient_rule_has_a_note_with_the_op_it_differentiates() -> None:
    @dg.op("TestFailingRule")
    def identity(x: Any) -> Any:
        return x

    @dg.RegisterGradient("TestFailingRule")
    def _grad(op: dg.Operation, g: dg.Tensor) -> Any:
        raise RuntimeError("my own")

    with dg.Graph():
        x = dg.constant(1.0)
        y = identity(x, name="mine")
        with pytest.raises(RuntimeError, match="my own") as caught:
            dg.gradients(y, x)
    place = f"test_graph.py:{line() - 3}"
    assert caught.value.__notes__ == [f"distgrad: while differentiating op 'mine' (type TestFailingRule, at {place})"]


def test_a_tensor_that_leaked_out_of_a_function_says_whose_it_is() -> None:
    leaked = []

    @dg.function
    def outer(x: dg.Tensor) -> dg.Tensor:
        leaked.append(x * 2)
        return x

    outer(np.ones(2))
    with pytest.raises(ValueError, match=r"belongs to the trace of function 'outer', which is over.*Return it"):
        leaked[0] + 1
    with pytest.raises(ValueError, match=r"is an argument of function 'outer' and has no value after tracing"):
        dg.Session().run(leaked[0])


@pytest.mark.parametrize("clone", [copy.copy, copy.deepcopy, pickle.dumps])
def test_tensors_and_graphs_refuse_to_be_copied_with_a_reason(clone: Callable[[Any], Any]) -> None:
    with dg.Graph() as graph:
        x = dg.constant(1.0)
    with pytest.raises(TypeError, match="cannot be copied or pickled"):
        clone(x)
    with pytest.raises(TypeError, match="cannot be copied or pickled: programs can"):
        clone(graph)


def test_a_misspelt_op_type_in_an_override_map_warns_with_the_nearest() -> None:
    meant = pytest.warns(UserWarning, match=r"there is no op type 'exp'; did you mean 'Exp'\?")
    with dg.Graph() as graph, meant, graph.gradient_override_map({"exp": "Log"}):
        pass


@pytest.mark.filterwarnings("ignore:the matrix subclass")
@pytest.mark.parametrize("make", [lambda: np.ma.array([1.0, 2.0], mask=[0, 1]), lambda: np.matrix([[1.0]])])
def test_arrays_with_rules_of_their_own_are_refused(make: Callable[[], Any]) -> None:
    array = make()
    with pytest.raises(TypeError, match=r"has special semantics that distgrad does not support: pass np.asarray\(x\)"):
        dg.exp(array)
    with pytest.raises(TypeError, match="has special semantics"):
        dg.function(lambda x: np.sum(x))(array)


def test_a_chain_of_a_hundred_thousand_ops_is_built_differentiated_and_printed() -> None:
    with dg.Graph() as graph:
        x = y = dg.constant(1.0, "float32")
        for _ in range(50_000):
            y = dg.sin(y) * x
        (g,) = dg.gradients(y, x)
    assert len(graph.ops) > 300_000
    assert g.op.type == "AddN"
    text = str(graph)
    assert text.count("\n") + 1 == len(graph.ops)
    assert re.match(r"%\d+ f32\[\] = AddN\(", text[text.rindex("\n") + 1 :])


@pytest.mark.parametrize("first", [np.float32, "float32", np.dtype("float32")])
def test_a_placeholder_with_tensorflows_order_of_arguments_is_told_so(first: Any) -> None:
    text = r"the shape comes first, .* unlike in TensorFlow: placeholder\(\(2, 3\), 'float32'\)"
    with dg.Graph(), pytest.raises(TypeError, match=text):
        dg.placeholder(first, (2, 3))
    with dg.Graph(), pytest.raises(TypeError, match=r"placeholder\(shape, 'float32'\)"):
        dg.placeholder(first)


def test_anything_that_a_builder_takes_can_be_converted_to_a_tensor() -> None:
    v = dg.Variable([1.0, 2.0])
    with dg.Graph():
        x = dg.constant(3.0)
        assert dg.convert_to_tensor(x) is x
        assert dg.convert_to_tensor(v).op.type == "ReadVariable"
        made = [dg.convert_to_tensor([x, 1.0]), dg.convert_to_tensor([1, 2], "float32", name="both")]
        with pytest.raises(ValueError, match=r"convert_to_tensor: f64.* is not a tensor of float32: use cast"):
            dg.convert_to_tensor(x, "float32")
    assert made[1].op.name == "both"
    found = dg.Session().run(made)
    assert [y.tolist() for y in found] == [[3.0, 1.0], [1.0, 2.0]]
    assert found[1].dtype == np.float32
