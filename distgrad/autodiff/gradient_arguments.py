"""Checks of the arguments of gradients(), and their conversion to tensors of one graph."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any

import numpy as np

from distgrad.autodiff.aggregation import Term
from distgrad.graph import FuncGraph, Graph, Tensor, current_graph
from distgrad.ops.builder import convert
from distgrad.ops.control import identity
from distgrad.ops.control import ones as ones_of
from distgrad.ops.indexed_slices import IndexedSlices
from distgrad.ops.layout import broadcast_to
from distgrad.types import Shape, brief, broadcasts_to, trainable


class UnconnectedGradients(enum.Enum):
    """The result of `gradients` for an x that ys do not depend on: None, or zeros of its shape and dtype.

    >>> import distgrad as dg
    >>> with dg.Graph():
    ...     a, b = dg.ones((1, 2)), dg.ones((3, 1))
    ...     found = dg.gradients(b, a) + dg.gradients(b, a, unconnected_gradients=dg.UnconnectedGradients.ZERO)
    >>> dg.Session().run(found)
    [None, array([[0., 0.]])]
    """

    NONE = "none"
    ZERO = "zero"


def wants_zeros(value: Any) -> bool:
    try:
        return UnconnectedGradients(value) is UnconnectedGradients.ZERO
    except ValueError:
        raise ValueError(f"Unknown value for unconnected_gradients: {brief(value)}; use 'none' or 'zero'") from None


def as_list(value: Any, what: str) -> list[Any]:
    if value is None:
        if what == "stop_gradients":
            return []
        raise TypeError(f"gradients: {what} is None; give a tensor or a list of tensors")
    return list(value) if isinstance(value, list | tuple) else [value]


def graph_of(ys: Sequence[Any], xs: Sequence[Any]) -> Graph:
    current = current_graph()
    if isinstance(current, FuncGraph):
        return current
    graphs = list(dict.fromkeys(g for t in (*ys, *xs) if isinstance(g := getattr(t, "graph", None), Graph)))
    if len(graphs) > 1:
        raise ValueError("gradients: ys and xs must be from the same graph, but they are from different ones")
    if graphs:
        return graphs[0]
    if current is None:
        raise RuntimeError(
            "gradients() needs a graph: call it inside `with distgrad.Graph():` or a @distgrad.function, "
            "or use distgrad.grad(f), which creates one"
        )
    return current


def as_tensor(y: Any, name: str, what: str) -> Tensor:
    if y is None:
        raise TypeError(f"gradients: {what} contains None; give tensors")
    if isinstance(y, str):
        raise TypeError(f"gradients: {what} contains the string {brief(y)}; give the tensor itself")
    if isinstance(y, IndexedSlices):
        y = y.values
    try:
        return convert(y, name=name)
    except TypeError as e:
        raise TypeError(f"gradients: {what} must be a tensor or a list of tensors: {e}") from None


def as_x(x: Any, name: str) -> Tensor:
    """The handle of a variable, whichever op reads it; for a tensor of an enclosing graph, the tensor itself."""
    graph = current_graph()
    assert graph is not None
    handle = getattr(x, "__handle__", None)
    if handle is not None:
        made: Tensor = handle()
        return made
    if isinstance(x, list | tuple):
        raise TypeError(f"gradients: xs must be a tensor or a flat list of tensors, got the nested list {brief(x)}")
    return graph.local(x.now()) if isinstance(x, Tensor) else as_tensor(x, name, "xs")


def as_stop(t: Any) -> Tensor:
    if not isinstance(t, Tensor | IndexedSlices) and not hasattr(t, "__handle__"):
        raise TypeError(f"gradients: stop_gradients must be a tensor or a list of tensors, got {brief(t)}")
    return as_x(t, "stop")


def first_gradients(grad_ys: Any, ys: Sequence[Tensor]) -> list[Term]:
    """The seed of each y: its entry of grad_ys, or ones."""
    given = [None] * len(ys) if grad_ys is None else as_list(grad_ys, "grad_ys")
    if len(given) != len(ys):
        raise ValueError(f"Length mismatch: gradients got {len(given)} grad_ys for {len(ys)} ys")
    return [_grad_y(i, g, y) for i, (g, y) in enumerate(zip(given, ys, strict=True))]


def _grad_y(i: int, g: Any, y: Tensor) -> Term:
    """The seed of one y, on the device of y."""
    name = f"grad_ys_{i}"
    y.graph._device = y.device
    if g is None:
        if y.dtype.kind not in "biuf" and not (trainable(y.dtype) and y.dtype.kind != "c"):
            raise TypeError(f"gradients: y {y.name!r} has dtype {y.dtype}: its gradient must be given in grad_ys[{i}]")
        return ones_of(y.shape, y.dtype, name=name)
    g = g if isinstance(g, IndexedSlices) else _weak(g, y)
    _check_grad_y(i, g, y)
    if isinstance(g, IndexedSlices):
        if g.dense_shape not in (None, y.shape):
            raise ValueError(_misfit_y(i, g.shape, y))
        values, indices = identity(g.values, name=f"{name}_values"), identity(g.indices, name=f"{name}_indices")
        return IndexedSlices(values, indices, g.dense_shape)
    if g.shape != y.shape:
        g = _broadcast_grad_y(i, g, y)
    return identity(g, name=name)  # type: ignore[no-any-return]


def _broadcast_grad_y(i: int, g: Tensor, y: Tensor) -> Tensor:
    if not broadcasts_to(g.shape, y.shape):
        raise ValueError(_misfit_y(i, g.shape, y))
    return broadcast_to(g, y.shape)


def _misfit_y(i: int, shape: Shape, y: Tensor) -> str:
    return f"gradients: grad_ys[{i}] has shape {list(shape)}, which does not fit y {y.name!r} of shape {list(y.shape)}"


def _weak(g: Any, y: Tensor) -> Tensor:
    """Python numbers take y's dtype, as in any op with y."""
    kinds = (complex,) if y.dtype.kind == "c" else (int, float)
    return convert(np.asarray(g, y.dtype) if type(g) in kinds and trainable(y.dtype) else g)


def _check_grad_y(i: int, g: Term, y: Tensor) -> None:
    if trainable(y.dtype):
        if g.dtype != y.dtype:
            raise TypeError(f"gradients: grad_ys[{i}] has dtype {g.dtype}, but y {y.name!r} has {y.dtype}; cast it")
    elif y.dtype.kind not in "iu":
        raise TypeError(f"gradients: y {y.name!r} has dtype {y.dtype}, which takes no gradient: leave grad_ys[{i}] out")
    elif g.dtype.kind not in "iuf":
        raise TypeError(f"gradients: grad_ys[{i}] has dtype {g.dtype}, which does not fit y {y.name!r} of {y.dtype}")
