"""Sections 1.11 and 1.12 of the gradient semantics: devices, and when a missing gradient is an error."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import numpy as np
import pytest

import distgrad as dg
from distgrad.ops.builder import make
from distgrad.registry import define

from ..support import UNREGISTERED, assert_values, f32, new_ops, unregistered

pytestmark = pytest.mark.usefixtures("graph")

G = dg.gradients


# -- 1.11 colocation ---------------------------------------------------------------------------------------------


def test_1_73_backward_ops_are_where_their_forward_op_is(graph: dg.Graph) -> None:
    with dg.device("worker:1"):
        x = f32(3.0)
    with dg.device("worker:2"):
        a = dg.exp(x)
        y = a * x
    with dg.device("driver"), new_ops(graph) as added:
        (g,) = G(y, x)
    assert g.device == "worker:1"  # a sum is where the tensor is that it is the gradient of
    assert {op.device for op in added if op is not g.op} == {"worker:2"}


def test_1_73_so_are_the_first_gradients(graph: dg.Graph) -> None:
    x = f32(3.0)
    with dg.device("worker:2"):
        y = dg.exp(x)
    with dg.device("driver"), new_ops(graph) as added:
        G([y, y], x, grad_ys=[None, f32(2.0)])
        after = dg.identity(x)
    assert {op.device for op in added if op.name.startswith("gradients/grad_ys")} == {"worker:2"}
    assert after.device == "driver"


# -- 1.12 what lies between --------------------------------------------------------------------------------------


def test_1_74_the_error_names_type_op_line_ends_and_remedies() -> None:
    x = f32(3.0, name="w")
    u = make(UNREGISTERED, (x,), name="spectrum")
    line = inspect.currentframe().f_lineno - 1  # type: ignore[union-attr]
    with pytest.raises(
        LookupError,
        match=r"no gradient is registered for op type 'TestUnregistered' "
        rf"\(op 'spectrum', at test_spec_1_lookup.py:{line}\), which lies between x 'w' and y 'loss'.\n"
        r"Register one with @distgrad.RegisterGradient\(\"TestUnregistered\"\), declare it constant with "
        r"distgrad.no_gradient\(\"TestUnregistered\"\), or cut the path with stop_gradient\(\).",
    ):
        G(dg.square(u, name="loss"), x)


SOURCE = define("TestSource", lambda: ((), np.dtype("float32")), kernel=lambda: np.float32(3))


def test_1_74_an_op_without_inputs_never_raises() -> None:
    source = make(SOURCE, ())
    x = f32(2.0)
    assert_values(G(source * x, [x, source]), [3.0, 2.0])


RAISING: dict[str, Callable[[dg.Tensor], tuple[object, object]]] = {
    "on the path": lambda x: (unregistered(x), x),
    "one y of two": lambda x: ([unregistered(x), x * x], x),
    "between two xs": lambda x: ((u := unregistered(x)) * u, [u, x]),
}


@pytest.mark.parametrize("build", RAISING.values(), ids=RAISING)
def test_1_75_raises(build: Callable[[dg.Tensor], tuple[object, object]]) -> None:
    with pytest.raises(LookupError, match="no gradient is registered for op type 'TestUnregistered'"):
        G(*build(f32(3.0)))


def test_1_75_raises_also_for_a_gradient_of_zeros() -> None:
    x = f32(3.0)
    with pytest.raises(LookupError, match="TestUnregistered"):
        G(unregistered(x), x, grad_ys=0.0)


@pytest.mark.parametrize("cut", [dg.stop_gradient, dg.floor])
def test_1_76_a_cut_upstream_does_not_take_an_op_out_of_between(cut: Callable[[dg.Tensor], dg.Tensor]) -> None:
    x = f32(3.0)
    with pytest.raises(LookupError, match="TestUnregistered"):
        G(unregistered(cut(x)) * x, x)


#: Where the op lies, and the gradient at x = 3. The op gives what it gets.
SILENT: dict[str, tuple[Callable[[dg.Tensor], object], float]] = {
    "a constant side branch": (lambda x: unregistered(f32(2.0)) * x, 2.0),
    "downstream of y": (lambda x: (y := 2 * x, unregistered(y))[0], 2.0),
    "unused by y": (lambda x: (unregistered(x), 2 * x)[1], 2.0),
    "through stop_gradient": (lambda x: dg.stop_gradient(unregistered(x)) * x, 3.0),
    "on an integer path": (lambda x: dg.cast(unregistered(dg.cast(x, "int32")), "float32") * x, 3.0),
}


@pytest.mark.parametrize(("build", "slope"), SILENT.values(), ids=SILENT)
def test_1_77_no_error(build: Callable[[dg.Tensor], object], slope: float) -> None:
    x = f32(3.0)
    assert_values(G(build(x), x), [slope])


def test_1_77_no_error_upstream_of_x_or_at_x_itself() -> None:
    u = unregistered(f32(3.0))
    x = 2 * u
    assert_values(G(x * x, x), [12.0])
    assert_values(G(u * u, u), [6.0])
    assert_values(G(u, u), [1.0])


def test_1_76_what_is_stopped_upstream_does_not_take_an_op_out_of_between() -> None:
    x, z = f32(3.0), f32(4.0)
    m = 2 * x
    with pytest.raises(LookupError, match="TestUnregistered"):
        G(unregistered(m) * z, [x, z], stop_gradients=m)


def test_1_77_no_error_when_it_is_stopped() -> None:
    x = f32(3.0)
    u = unregistered(x)
    assert_values(G(u * x, x, stop_gradients=u), [3.0])


def test_1_77_no_error_when_y_does_not_depend_on_x() -> None:
    x, z = f32(3.0), f32(2.0)
    assert G(unregistered(z), x) == [None]


def test_1_78_inside_a_function_body_it_raises_too() -> None:
    @dg.function
    def f(x: dg.Tensor) -> dg.Tensor:
        return unregistered(x) * 2

    x = f32(3.0)
    with pytest.raises(LookupError, match="no gradient is registered for op type 'TestUnregistered'"):
        G(f(x), x)
