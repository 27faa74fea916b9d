"""Placeholders, constants, identities, control dependencies and sums of tensors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from distgrad import nest
from distgrad.graph import NO_ATTRS, Operation, Tensor, current_graph
from distgrad.ops.builder import as_array, common, convert, graph_for, make, make_n, same, typed
from distgrad.ops.guard import guard_all
from distgrad.ops.indexed_slices import IndexedSlices
from distgrad.registry import Kind, RegisterGradient, View, define, no_gradient
from distgrad.types import INT, DType, Shape, Spec, Typed, as_shape, brief, checked_shape, native, spec_of

# -- sources -----------------------------------------------------------------------------------------------------

_fill = define("Fill", lambda *, shape, dtype, value: (shape, dtype), kind=Kind.SOURCE)
define("Placeholder", lambda *, shape, dtype: (shape, dtype), kind=Kind.ARGUMENT)
define("Capture", same, kind=Kind.ARGUMENT)
for _type in ("Const", "Fill", "Placeholder"):
    no_gradient(_type)


def placeholder(shape: Any, dtype: Any = float, name: str | None = None) -> Tensor:
    """A tensor of a graph, with a value that is fed when the graph runs.

    >>> import distgrad as dg
    >>> with dg.Graph():
    ...     x = dg.placeholder((2, 3), "float32")
    >>> x.shape
    (2, 3)
    """
    graph = current_graph()
    if graph is None:
        raise RuntimeError("placeholder: there is no graph; build one with `with distgrad.Graph():`")
    if _is_dtype(shape):
        first = "shape" if _is_dtype(dtype) else brief(dtype)
        raise TypeError(
            f"placeholder: the shape comes first, then the dtype, unlike in TensorFlow: "
            f"placeholder({first}, {np.dtype(shape).name!r})"
        )
    spec = Spec(checked_shape(shape), native(np.dtype(dtype)))
    return graph.add("Placeholder", (), [spec], NO_ATTRS, name).outputs[0]


def _is_dtype(x: Any) -> bool:
    """Whether this is a dtype, or the name of one; a tuple of ints is not."""
    return isinstance(x, type | np.dtype | str)


def constant(value: Any, dtype: Any = None, shape: Any = None, name: str | None = None) -> Tensor:
    """A tensor with a fixed value; with `shape`, the value is broadcast to it.

    >>> constant([1.0, 2.0])
    array([1., 2.])
    """
    if isinstance(value, Tensor):
        return value
    array = np.asarray(value, dtype)
    return convert(array if shape is None else np.broadcast_to(array, as_shape(shape)), name=name)


def convert_to_tensor(value: Any, dtype: Any = None, name: str | None = None) -> Tensor:
    """A value as a tensor: numbers, arrays, and nested lists that may contain tensors. A tensor is returned unchanged.

    >>> import distgrad as dg
    >>> with dg.Graph():
    ...     t = dg.convert_to_tensor([dg.constant(1.0), 2.0])
    >>> t.shape
    (2,)
    """
    made = convert(value, dtype, name)
    if dtype is not None and made.dtype != np.dtype(dtype):
        raise ValueError(f"convert_to_tensor: {spec_of(made)} is not a tensor of {np.dtype(dtype).name}: use cast")
    return made


def full(shape: Any, fill_value: Any, dtype: Any = None, name: str | None = None) -> Tensor:
    """A tensor filled with one number.

    >>> full(2, 0.5)
    array([0.5, 0.5])
    """
    value = as_array(fill_value, None if dtype is None else np.dtype(dtype))
    if value.shape:
        raise ValueError(f"full: fill_value must be one number, got {brief(fill_value)}; use broadcast_to for an array")
    return make(_fill, (), {"shape": checked_shape(shape), "dtype": value.dtype, "value": value.item()}, name)


def zeros(shape: Any, dtype: Any = float, name: str | None = None) -> Tensor:
    """A tensor of zeros.

    >>> zeros(2)
    array([0., 0.])
    """
    return _filled(checked_shape(shape), np.dtype(dtype), 0, name)


def ones(shape: Any, dtype: Any = float, name: str | None = None) -> Tensor:
    """A tensor of ones.

    >>> ones(2, "int32")
    array([1, 1], dtype=int32)
    """
    return _filled(checked_shape(shape), np.dtype(dtype), 1, name)


def _filled(shape: Shape, dtype: DType, value: int, name: str | None = None) -> Tensor:
    return make(_fill, (), {"shape": shape, "dtype": dtype, "value": value}, name)


# -- properties of tensors ---------------------------------------------------------------------------------------

_size = define("Size", lambda x: ((), INT), kind=Kind.LAYOUT, types_only=True)
_rank = define("Rank", lambda x: ((), INT), kind=Kind.LAYOUT, types_only=True)
_shape = define("Shape", lambda x: ((len(x.shape),), INT), kind=Kind.LAYOUT, types_only=True)
_zeros_like = define("ZerosLike", lambda x, *, dtype: (x.shape, dtype), kind=Kind.ELEMENTWISE, types_only=True)
_ones_like = define("OnesLike", lambda x, *, dtype: (x.shape, dtype), kind=Kind.ELEMENTWISE, types_only=True)
for _type in ("Size", "Rank", "Shape", "ZerosLike", "OnesLike"):
    no_gradient(_type)


def size(x: Any, name: str | None = None) -> Tensor:
    """The number of elements of x, as a tensor.

    >>> size([[1, 2, 3], [4, 5, 6]])
    array(6)
    """
    return make(_size, (typed(x),), NO_ATTRS, name)


def rank(x: Any, name: str | None = None) -> Tensor:
    """The number of axes of x, as a tensor.

    >>> rank([[1, 2, 3], [4, 5, 6]])
    array(2)
    """
    return make(_rank, (typed(x),), NO_ATTRS, name)


def shape(x: Any, name: str | None = None) -> Tensor:
    """The shape of x, as a tensor; `x.shape` is the tuple.

    >>> shape([[1, 2, 3], [4, 5, 6]])
    array([2, 3])
    """
    return make(_shape, (typed(x),), NO_ATTRS, name)


def zeros_like(x: Any, dtype: Any = None, name: str | None = None) -> Tensor:
    """Zeros of the shape (and, unless given, dtype) of x.

    >>> zeros_like([1, 2])
    array([0, 0])
    """
    x = typed(x)
    return make(_zeros_like, (x,), {"dtype": x.dtype if dtype is None else np.dtype(dtype)}, name)


def ones_like(x: Any, dtype: Any = None, name: str | None = None) -> Tensor:
    """Ones of the shape (and, unless given, dtype) of x.

    >>> ones_like([1, 2], float)
    array([1., 1.])
    """
    x = typed(x)
    return make(_ones_like, (x,), {"dtype": x.dtype if dtype is None else np.dtype(dtype)}, name)


# -- identities --------------------------------------------------------------------------------------------------

_identity = define("Identity", same, kind=Kind.LAYOUT, view=View.SAME)
_stop = define("StopGradient", same, kind=Kind.LAYOUT, view=View.SAME)
_prevent = define("PreventGradient", same, kind=Kind.LAYOUT, view=View.SAME)
IDENTITY_N = define("IdentityN", lambda *xs: [spec_of(x) for x in xs], kind=Kind.LAYOUT, view=View.SAME)
no_gradient("StopGradient")


def identity(x: Any, name: str | None = None) -> Any:
    """x as a new tensor; an IndexedSlices stays an IndexedSlices.

    >>> identity([1, 2])
    array([1, 2])
    """
    if isinstance(x, IndexedSlices):
        return x.with_values(identity(x.values, name=name))
    return make(_identity, (typed(x),), NO_ATTRS, name)


def identity_n(xs: Sequence[Any], name: str | None = None) -> list[Tensor]:
    """Pass all of xs through one op, with one output for each.

    >>> identity_n([1, 2.5])
    [array(1), array(2.5)]
    """
    return make_n(IDENTITY_N, tuple(xs), NO_ATTRS, name)


def stop_gradient(x: Any, name: str | None = None) -> Tensor:
    """x as a constant: no gradient flows through it.

    >>> import distgrad as dg
    >>> dg.grad(lambda x: x * dg.stop_gradient(x))(3.0)
    array(3.)
    """
    return make(_stop, (typed(x),), NO_ATTRS, name)


def prevent_gradient(x: Any, message: str = "", name: str | None = None) -> Tensor:
    """x itself, but differentiating through it is a LookupError with this message.

    >>> prevent_gradient(3.0, "frozen")
    array(3.)
    """
    return make(_prevent, (typed(x),), {"message": str(message)}, name)


@RegisterGradient("Capture")
@RegisterGradient("Identity")
def _identity_grad(op: Operation, g: Any) -> Any:
    return g


@RegisterGradient("IdentityN")
def _identity_n_grad(op: Operation, *gs: Any) -> Any:
    return gs


@RegisterGradient("PreventGradient")
def _prevent_grad(op: Operation, g: Any) -> Any:
    raise LookupError(
        f"Gradient explicitly disabled. Reason: {op.attrs['message']!r} (op {op.name!r}, at {op.source}). "
        f"Cut the path with stop_gradient() or stop_gradients=, or take the gradient elsewhere."
    )


# -- sums --------------------------------------------------------------------------------------------------------


def _add_n_infer(*xs: Typed) -> tuple[Shape, DType]:
    first = xs[0]
    for x in xs:
        if x.shape != first.shape or x.dtype != first.dtype:
            raise ValueError(f"add_n: terms must have the same shape and dtype, got {spec_of(first)} and {spec_of(x)}")
    return first.shape, first.dtype


ADD_N = define("AddN", _add_n_infer, kind=Kind.ELEMENTWISE)


def add_n(inputs: Sequence[Any], name: str | None = None) -> Tensor:
    """The sum of tensors of one shape and dtype, added in the order given.

    >>> add_n([np.array([1.0, 2.0]), np.array([10.0, 20.0])])
    array([11., 22.])
    """
    if not isinstance(inputs, list | tuple) or not inputs:
        raise ValueError(f"add_n takes a non-empty list of tensors, got {brief(inputs)}")
    return make(ADD_N, common(*inputs), NO_ATTRS, name)


@RegisterGradient("AddN")
def _add_n_grad(op: Operation, g: Any) -> Any:
    return [g] * len(op.inputs)


# -- order -------------------------------------------------------------------------------------------------------

define("NoOp", lambda: [], stateful=True, kind=Kind.BARRIER)
no_gradient("NoOp")


def no_op(name: str | None = None) -> Operation:
    """An operation that does nothing, for use with control dependencies.

    >>> import distgrad as dg
    >>> with dg.Graph():
    ...     dg.no_op().type
    'NoOp'
    """
    graph = current_graph()
    if graph is None:
        raise RuntimeError("no_op: there is no graph; build one with `with distgrad.Graph():`")
    return graph.add("NoOp", (), (), NO_ATTRS, name)


def group(*inputs: Any, name: str | None = None) -> Operation:
    """An operation that completes when all inputs (tensors, operations, nested lists of them) have.

    >>> import distgrad as dg
    >>> with dg.Graph():
    ...     len(dg.group(dg.constant(1.0), [dg.constant(2.0)]).control_inputs)
    2
    """
    flat = list(_producers(inputs))
    graph = flat[0].graph if flat else current_graph()
    if graph is None:
        raise RuntimeError("group: there is no graph; build one with `with distgrad.Graph():`")
    with graph, graph.control_dependencies(flat):
        return no_op(name or "group_deps")


def _producers(inputs: Iterable[Any]) -> Iterable[Operation]:
    for x in nest.flatten(list(inputs)):
        if isinstance(x, IndexedSlices) and isinstance(x.values, Tensor):
            yield x.values.op
        elif isinstance(x, Operation):
            yield x
        elif isinstance(x, Tensor):
            yield x.op
        elif x is not None:
            raise TypeError(f"group and tuple take tensors and operations, got {brief(x)}")


def tuple_(tensors: Sequence[Any], name: str | None = None, control_inputs: Sequence[Any] = ()) -> list[Any]:
    """The same tensors, none available before all of them are computed. None stays None.

    >>> tuple_([1.0, None])
    [1.0, None]
    """
    if graph_for([*tensors, *control_inputs]) is None:
        return list(tensors)
    waited = [*_producers([*tensors, *control_inputs])]
    if not waited:
        raise ValueError(f"tuple: there must be at least one tensor, got {brief(tensors)}")
    graph = waited[0].graph
    with graph, graph.name_scope(name or "tuple"):
        gate = group(waited)
        with graph.control_dependencies([gate]):
            return [None if t is None else identity(t, name="control_dependency") for t in tensors]


__all__ = [
    "add_n", "constant", "convert_to_tensor", "full", "group", "identity", "identity_n",
    "no_op", "ones", "ones_like", "placeholder", "prevent_gradient", "rank", "shape", "size", "stop_gradient", "zeros",
    "zeros_like",
]  # fmt: skip
guard_all(globals(), __all__)
