"""Decorators built on custom_gradient: recompute_grad, which trades time for memory, and grad_pass_through."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from distgrad import nest
from distgrad.autodiff.custom_gradient import Decorated, Function, apply, cut, name_of, renamed, variables_behind
from distgrad.autodiff.gradients import gradients_of_part
from distgrad.graph import Graph, Operation, Tensor, current_graph
from distgrad.ops.assignment.names import sealed, unchanged_since
from distgrad.ops.builder import cast, convert
from distgrad.tracing.variables import Variable
from distgrad.types import spec_of


def recompute_grad(f: Function) -> Any:
    """Save memory by computing f again in the backward pass: only its arguments are kept in between.

    The gradients are those of f, to any order. f is traced again for each gradients() call that reaches it, and this
    copy runs once the gradients of its outputs are available. So f must be deterministic and must not assign variables.
    Pass large tensors as arguments: values that f computes from captured tensors alone may be kept.

    >>> import distgrad as dg
    >>> block = dg.recompute_grad(lambda x: dg.exp(dg.sin(x)))
    >>> with dg.Graph() as graph:
    ...     x = dg.constant(0.0)
    ...     dx = dg.gradients(block(x), x)
    >>> dg.Session().run(dx), [op.type for op in graph.ops].count("Sin")
    ([array(1.)], 2)
    """
    return Decorated(f, _recompute, "recompute_grad")


def grad_pass_through(f: Function) -> Any:
    """Give f the gradient of the identity: argument i gets the gradient of output i.

    For functions that are piecewise constant, such as rounding or quantisation. Variables that f reads get no gradient.

    >>> import distgrad as dg
    >>> with dg.Graph():
    ...     x = dg.constant(1.7)
    ...     dx = dg.gradients(dg.grad_pass_through(dg.floor)(x) * 5, x)
    >>> dg.Session().run(dx)
    [array(5.)]
    """
    return Decorated(f, _pass_through, "grad_pass_through")


# -- recompute_grad ----------------------------------------------------------------------------------------------


def _recompute(f: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    @functools.wraps(f)
    def pair(*args: Any, **kwargs: Any) -> tuple[Any, Function]:
        graph = current_graph()
        begin = len(graph.ops) if graph else 0
        y = f(*args, **kwargs)
        if graph is None:
            return y, _unreachable
        forward = graph.ops[begin:]
        _refuse_assigns(f, forward)
        used = {t for op in forward for t in op.inputs}
        reads = {v: t for v, t in graph.reads.items() if t in used}
        end = len(graph.ops)

        def grad_fn(*dys: Any, variables: Sequence[Variable] = ()) -> Any:
            found = _second_pass(f, args, kwargs, dys, variables, reads, end)
            return cut(found, len(variables)) if variables else found

        return y, grad_fn

    return apply(pair, args, kwargs)


def _second_pass(
    f: Function,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    dys: Sequence[Any],
    variables: Sequence[Variable],
    reads: Mapping[Variable, Tensor],
    end: int,
) -> list[Any]:
    """Trace f again, to run after the gradients of its outputs, and differentiate this copy."""
    graph = current_graph()
    assert graph is not None  # rules run where gradients() builds
    # The control dependency on dys keeps common-subexpression elimination from merging this pass with the first.
    with graph.control_dependencies([dy for dy in dys if dy is not None]):
        inputs = nest.map_structure(functools.partial(renamed, graph), args)
        held = {v: renamed(graph, t) for v, t in reads.items()}
    begin = len(graph.ops)
    # f reads the same values as in the first pass, even if variables have been assigned since.
    within = f"recompute_grad of {name_of(f)}"
    with (
        graph.control_dependencies(None),
        graph._setting("reads", {**graph.reads, **held}),
        sealed(graph, within),
        unchanged_since(graph, end, begin, within),
    ):
        ys = [convert(y) for y in nest.flatten(f(*inputs, **kwargs))]
    _refuse_late_reads(f, graph, end, begin)
    _refuse_other_results(f, ys, dys)
    known = [(y, dy) for y, dy in zip(ys, dys, strict=True) if dy is not None]
    xs = nest.flatten(inputs)
    # Prefer a variable's read to its handle: gradients() visits all ops younger than an x, and handles are old.
    elsewhere = set(variables_behind(ys, [*xs, *held.values()], begin))
    wrt = [held[v] if v in held and v not in elsewhere else v.__handle__() for v in variables]
    # Ops upstream of an argument get their gradient through the argument.
    return gradients_of_part([y for y, _ in known], [*xs, *wrt], [dy for _, dy in known], stop_gradients=xs)


def _refuse_assigns(f: Function, ops: Iterable[Operation]) -> None:
    assign = next((op for op in ops if op.type == "Assign"), None)
    if assign is not None:
        raise ValueError(
            f"recompute_grad: {name_of(f)} assigns a variable ({assign.name!r}, at {assign.source}), which would "
            f"happen twice. Return the new value and assign it outside."
        )


def _refuse_late_reads(f: Function, graph: Graph, end: int, begin: int) -> None:
    """An explicit read (`v.read()`) in the second pass must not see an assign made after the first pass."""
    reads = [op for op in graph.ops[begin:] if op.type == "ReadVariable"]
    late = next((op for op in reads if _last_assign(graph, op.inputs[0]) >= end), None)
    if late is not None:
        raise ValueError(
            f"recompute_grad: {name_of(f)} reads variable {late.inputs[0].op.name!r} explicitly, and it was assigned "
            f"before the backward pass. Use the variable itself instead of .read(), or pass its value as an argument."
        )


def _last_assign(graph: Graph, handle: Tensor) -> int:
    """The op id of a variable's last assign, or -1. Scans only ops added since the last call."""
    places, scanned = graph.memo("places of assigns"), graph.memo("scanned for assigns")
    begin = scanned.get("up to", 0)
    places.update([(op.inputs[0], op.id) for op in graph.ops[begin:] if op.type == "Assign"])
    scanned["up to"] = len(graph.ops)
    place: int = places.get(handle, -1)
    return place


def _refuse_other_results(f: Function, ys: Sequence[Tensor], dys: Sequence[Any]) -> None:
    checked = [(y, dy) for y, dy in zip(ys, dys, strict=False) if isinstance(dy, Tensor)]
    if len(ys) != len(dys) or any(spec_of(y) != spec_of(dy) for y, dy in checked):
        raise ValueError(
            f"recompute_grad: {name_of(f)} returned {', '.join(str(y.spec) for y in ys)} when it was traced again for "
            f"its gradient, which differs from the first trace. It must depend on its arguments only."
        )


def _unreachable(*dys: Any, variables: Sequence[Variable] = ()) -> Any:
    raise AssertionError("there are no gradients outside a graph")


# -- grad_pass_through -------------------------------------------------------------------------------------------


def _pass_through(f: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    @functools.wraps(f)
    def pair(*args: Any, **kwargs: Any) -> tuple[Any, Function]:
        def grad_fn(*dys: Any, variables: Sequence[Variable] = ()) -> Any:
            xs = nest.flatten(args)
            if len(xs) != len(dys):
                raise ValueError(
                    f"grad_pass_through: {name_of(f)} has {len(xs)} arguments but {len(dys)} outputs; it needs one each"
                )
            found = [cast(dy, x.dtype) if isinstance(dy, Tensor) else dy for dy, x in zip(dys, xs, strict=True)]
            return (found, [None] * len(variables)) if variables else found

        return f(*args, **kwargs), grad_fn

    return apply(pair, args, kwargs)
