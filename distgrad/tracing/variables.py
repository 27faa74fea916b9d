"""Variables: named state that graphs read and assign.

A variable holds its value. A graph refers to it by one handle tensor, reads it with ReadVariable ops and changes it
with Assign ops. Of the ops that run, reads and assigns of a variable run in the order in which they were built.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Any, TypeGuard

import numpy as np

from distgrad import runtime
from distgrad.graph import FuncGraph, Graph, Operation, Tensor, check_name, current_graph, outside
from distgrad.handles import Handle, value_of
from distgrad.ops.builder import as_array, convert, has_tensor, make
from distgrad.ops.index import scatter_add
from distgrad.ops.indexed_slices import IndexedSlices
from distgrad.ops.methods import install
from distgrad.registry import Kind, RegisterGradient, define, no_gradient
from distgrad.tracing.state import Array, alone, frozen, take
from distgrad.types import DType, Shape, Spec, Typed, dtype_from

_numbers = itertools.count()

define("VarHandle", lambda *, key, shape, dtype: (shape, dtype), stateful=True, kind=Kind.STATE)
_read = define("ReadVariable", lambda handle: (handle.shape, handle.dtype), stateful=True, kind=Kind.STATE)
no_gradient("VarHandle")


def _assign_infer(handle: Typed, value: Typed) -> tuple[Shape, DType]:
    return handle.shape, handle.dtype


_assign = define("Assign", _assign_infer, stateful=True, kind=Kind.STATE)
no_gradient("Assign")


@RegisterGradient("ReadVariable")
def _read_grad(op: Operation, g: Any) -> Any:
    return g


class NotPure(BaseException):
    """Raised if the body of a call assigns a variable; the call is then traced in place. Never reaches the user."""


class Variable:
    """State that outlives a call.

    Args:
        initial_value: an array, anything that NumPy converts to one, a handle, or a function without arguments that
            returns one of these. In a Ray session the function is traced and runs as a task, and the value stays on the
            cluster. Use this for weights that are too large for this process.
        name: name of the variable in graphs, plans and checkpoints.
        trainable: whether `custom_gradient` and optimisers include it.
        dtype: dtype to convert the initial value to.

    >>> import distgrad as dg
    >>> v = dg.Variable([1.0, 2.0], name="v")
    >>> @dg.function
    ... def step(x):
    ...     v.assign_add(x)
    ...     return v * v
    >>> step(np.array([1.0, 1.0]))
    array([4., 9.])
    >>> v.numpy()
    array([2., 3.])
    """

    def __init__(
        self,
        initial_value: Any | Callable[[], Any],
        name: str | None = None,
        trainable: bool = True,
        dtype: Any = None,
    ):
        if isinstance(initial_value, Tensor):
            raise TypeError(
                f"Variable: the initial value {initial_value!r} is a tensor, which has no value yet. "
                f"Pass an array, or a function without arguments that returns one."
            )
        #: Locked while a call that writes this variable is running; see `distgrad.tracing.state`.
        self.gate = self.closed = threading.Lock()
        self._value: Array | Handle = _initial(initial_value, dtype)
        self.name = "Variable" if name is None else check_name(name)
        self.number = next(_numbers)
        self.key = f"{self.name}#{self.number}"
        self.trainable = bool(trainable)

    @property
    def shape(self) -> Shape:
        shape: Shape = self._value.shape
        return shape

    @property
    def dtype(self) -> DType:
        return self._value.dtype

    def numpy(self) -> Any:
        """A copy of the value."""
        return self._array().copy()

    def _array(self) -> Array:
        """The array itself: whoever refers to it keeps it from being modified."""
        return value_of(take((self,))[0])

    def __repr__(self) -> str:
        value = "" if current_graph() is not None else f" = {_brief(take((self,))[0])}"
        return f"<Variable {self.name!r} {Spec(self.shape, self.dtype)}{value}>"

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other

    def __ne__(self, other: object) -> bool:
        return self is not other

    def __setitem__(self, key: Any, value: Any) -> None:
        raise TypeError(f"{self!r} cannot be written in place: build the new value and call assign(value)")

    def __reduce__(self) -> Any:
        raise TypeError(
            f"<Variable {self.name!r}> cannot be copied or pickled, because its state must stay in one place. Take its "
            f"value with .numpy() and create another with distgrad.Variable(value), or save it to a file with "
            f"distgrad.save_checkpoint and restore_checkpoint. A function that is sent elsewhere takes it as an "
            f"argument."
        )

    # -- in a graph ----------------------------------------------------------------------------------------------

    def __handle__(self) -> Tensor:
        """The tensor that represents this variable in `gradients` in the current graph."""
        graph = current_graph()
        if graph is None:
            raise RuntimeError(f"{self!r} has no handle outside a graph")
        while isinstance(graph, FuncGraph) and graph.outer is not None:
            graph = graph.outer  # reads in a body are captured from there
        return _handle_in(graph, self)

    def __tensor__(self) -> Tensor:
        graph = current_graph()
        if graph is None:
            return self._array()  # type: ignore[return-value]
        read = graph.reads.get(self)
        if graph._control:
            return self.read()
        if read is None:
            with graph.clean():  # the first read is shared by all readers
                read = graph.reads[self] = self.read()
        return read

    def read(self) -> Tensor:
        """The current value: a new read op inside a graph, a copy of the array outside."""
        graph = current_graph()
        if graph is None:
            return self.numpy()  # type: ignore[no-any-return]
        if _nested(graph):
            made = graph.admit(self._read_around(graph))
        else:
            made = make(_read, (_handle_in(graph, self),), name=f"{self.name}/read")
        return made

    def _read_around(self, graph: FuncGraph) -> Tensor:
        """The read that a body captures: from the nearest enclosing graph that has one, else from the outermost."""
        around = graph.around()
        for outer in around:
            if not _nested(outer) or (self in outer.reads and not outer._control):
                break
        with outer:
            made = self.__tensor__()
        for inner in around[: around.index(outer)]:
            if not inner._control:
                inner.reads.setdefault(self, inner.admit(made))
        return made

    value = read_value = read

    def assign(self, value: Any) -> Tensor:
        """Set the value and return it. Inside a graph, it is set when the op runs."""
        graph = current_graph()
        if _nested(graph):
            graph.impure = True
            raise NotPure(f"{self!r} is assigned in the body of a call")
        if graph is None:
            return self._change(lambda: value)
        made = convert(self._fit(value))
        op = make(_assign, (_handle_in(graph, self), made), name=f"{self.name}/assign").op
        if isinstance(graph, FuncGraph):
            graph.effects.append(op)
        graph.reads.pop(self, None)
        return op.outputs[0]

    def assign_add(self, delta: Any) -> Tensor:
        """Add to the value and return the new value. An `IndexedSlices` changes only its rows."""
        if current_graph() is None:
            return self._change(lambda: self._array() + self._number(delta))
        if isinstance(delta, IndexedSlices):
            return self.assign(scatter_add(self.read(), delta.indices, delta.values))
        return self.assign(self.read() + delta)

    def assign_sub(self, delta: Any) -> Tensor:
        """Subtract from the value and return the new value. An `IndexedSlices` changes only its rows."""
        if current_graph() is None:
            return self._change(lambda: self._array() - self._number(delta))
        if isinstance(delta, IndexedSlices):
            return self.assign(scatter_add(self.read(), delta.indices, -delta.values))
        return self.assign(self.read() - delta)

    def _change(self, new: Callable[[], Any]) -> Tensor:
        """Set the value to the result of `new` without any other write in between; returns a copy."""

        def change() -> Any:
            self._value = value = frozen(np.array(self._fit(new())))
            return value

        made: Tensor = alone((self,), change).copy()
        return made

    def _number(self, delta: Any) -> Any:
        """The operand of an update outside a graph: Python numbers unchanged, so that they adapt; others as arrays."""
        return delta if isinstance(delta, int | float | complex) else as_array(delta)

    def _fit(self, value: Any) -> Any:
        """A value of the variable's shape and dtype. Python numbers adapt; a value with a dtype must have this one."""
        if has_tensor(value) or isinstance(value, Variable):
            value = convert(value)
        if not isinstance(value, Tensor | np.ndarray | np.generic):
            value = as_array(value)
            if np.can_cast(value.dtype, self.dtype, "same_kind"):
                value = value.astype(self.dtype)
        if value.shape != self.shape or value.dtype != self.dtype:
            got = Spec(tuple(value.shape), value.dtype)
            cast = f"; cast it with .astype({self.dtype.name!r})" if value.dtype != self.dtype else ""
            raise ValueError(f"{self!r} cannot be assigned a value of {got}: shape and dtype are fixed{cast}")
        return value


def _initial(value: Any, dtype: Any) -> Array | Handle:
    """The initial value. A function without arguments runs in the current session: on a cluster it is a task, and its
    result stays there."""
    if isinstance(value, Handle):
        return value if dtype is None or value.dtype == dtype else frozen(value.numpy().astype(dtype))
    with outside():
        if callable(value):
            value = runtime.current().initial(value, dtype)
        return value if isinstance(value, Handle) else frozen(np.array(as_array(value, dtype)))


def _brief(value: Array | Handle) -> str:
    return repr(value) if isinstance(value, Handle) else np.array2string(value, threshold=6)


def _nested(graph: Graph | None) -> TypeGuard[FuncGraph]:
    return isinstance(graph, FuncGraph) and graph.outer is not None


def _handle_in(graph: Graph, variable: Variable) -> Tensor:
    """The tensor that represents the variable in a graph; it ignores scopes and control dependencies."""
    made = graph.handles.get(variable)
    if made is None:
        attrs = {"key": variable.key, "shape": variable.shape, "dtype": variable.dtype}
        with graph.clean():
            op = graph.add("VarHandle", (), [Spec(variable.shape, variable.dtype)], attrs, name=variable.name)
        made = graph.handles[variable] = op.outputs[0]
    return made


def _array(self: Variable, dtype: Any = None, copy: bool | None = None) -> Any:
    if current_graph() is not None:
        raise TypeError(
            f"{self!r} has no array inside a graph: its value may change before the graph runs. "
            f"Use it as a tensor, or take .numpy() to record its current value as a constant."
        )
    return np.array(self._array(), dtype=dtype if dtype is None else dtype_from("np.array", dtype))


def _in_place(operator: str, remedy: str) -> Callable[..., Any]:
    def refuse(self: Variable, other: Any) -> Any:
        raise TypeError(f"`variable {operator} x` would replace {self!r} with a tensor or an array: use {remedy}")

    return refuse


_REMEDIES = {"+=": "assign_add(x)", "-=": "assign_sub(x)"}
for _name, _sign in {"add": "+=", "sub": "-=", "mul": "*=", "truediv": "/=", "matmul": "@=", "pow": "**="}.items():
    setattr(Variable, f"__i{_name}__", _in_place(_sign, _REMEDIES.get(_sign, f"assign(variable {_sign[:-1]} x)")))
install(Variable)
Variable.__array__ = _array  # type: ignore[attr-defined]
