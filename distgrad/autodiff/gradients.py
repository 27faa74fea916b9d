"""gradients(): adds the backward ops for everything between xs and ys.

The contract is that of TensorFlow's graph mode. An op is differentiated once, after every op that reads it: its output
gradients are summed, its gradient function is called, and the results are checked, un-broadcast, gated and passed to
the inputs. Gradient functions are defined next to their ops; everything that they have in common is here.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from distgrad.autodiff.aggregation import AggregationMethod, Term, summing
from distgrad.autodiff.gradient_arguments import (
    UnconnectedGradients,
    as_list,
    as_stop,
    as_tensor,
    as_x,
    first_gradients,
    graph_of,
    wants_zeros,
)
from distgrad.graph import FuncGraph, Graph, Operation, Tensor
from distgrad.nesting import nested
from distgrad.ops.assignment.names import fresh
from distgrad.ops.builder import convert
from distgrad.ops.control import tuple_, zeros
from distgrad.ops.indexed_slices import IndexedSlices, densify
from distgrad.ops.layout import reshape
from distgrad.ops.reduce import sum as reduce_sum
from distgrad.registry import OPS, gradient_function
from distgrad.types import Shape, broadcasts_to, trainable

#: Op names longer than this many characters are shortened in the names of gradient scopes.
_LONG_NAME = 512

__all__ = ["AggregationMethod", "UnconnectedGradients", "checked", "gradients", "gradients_of_part", "sum_to"]


def gradients(
    ys: Any,
    xs: Any,
    grad_ys: Any = None,
    name: str | None = "gradients",
    gate_gradients: Any = False,
    aggregation_method: Any = None,
    stop_gradients: Any = None,
    unconnected_gradients: Any = UnconnectedGradients.NONE,
) -> list[Any]:
    """The derivatives of the sum of `ys` with respect to each of `xs`, as new ops of their graph.

    Args:
        ys: tensor or list of tensors to differentiate.
        xs: tensor, variable or list of them to differentiate with respect to.
        grad_ys: the gradient of each y to start from; ones if None.
        name: scope of the new ops.
        gate_gradients: if true, no gradient of an op is used before all gradients of that op are computed.
        aggregation_method: a value of `AggregationMethod`.
        stop_gradients: tensors to treat as constants, as if they had been passed through `stop_gradient`.
        unconnected_gradients: 'none' or 'zero', the result for an x that no y depends on.

    Raises:
        LookupError: an op between xs and ys has no registered gradient.
        ValueError, TypeError: the arguments are invalid.
        RuntimeError: there is no graph.

    >>> import distgrad as dg
    >>> with dg.Graph():
    ...     a = dg.constant(0.0)
    ...     b = 2 * a
    ...     total = dg.gradients(a + b, [a, b])
    ...     partial = dg.gradients(a + b, [a, b], stop_gradients=[a, b])
    >>> dg.Session().run([total, partial])
    [[array(3.), array(1.)], [array(1.), array(1.)]]
    """
    zero = wants_zeros(unconnected_gradients)
    stops = as_list(stop_gradients, "stop_gradients")
    return _gradients(ys, xs, grad_ys, name, gate_gradients, aggregation_method, stops, zero, within=False)


def gradients_of_part(ys: Any, xs: Any, grad_ys: Any, stop_gradients: Sequence[Tensor]) -> list[Any]:
    """gradients() restricted to the part of a graph downstream of `stop_gradients`; the cost is that of this part.

    It does not search past stopped tensors. So, unlike gradients(), it does not raise for an op without a gradient that
    xs reach only through a stopped tensor. Zeros for an unconnected x.
    """
    return _gradients(ys, xs, grad_ys, "gradients", False, None, stop_gradients, zero=True, within=True)


@nested
def _gradients(
    ys: Any,
    xs: Any,
    grad_ys: Any,
    name: str | None,
    gate: Any,
    method: Any,
    stops: Sequence[Any],
    zero: bool,
    within: bool,
) -> list[Term | None]:
    ys, xs = as_list(ys, "ys"), as_list(xs, "xs")
    graph = graph_of(ys, xs)
    with graph, graph.name_scope("gradients" if name is None else name) as scope, _backward_context(graph):
        ys = [as_tensor(y, f"y_{i}", "ys") for i, y in enumerate(ys)]
        xs = [as_x(x, f"x_{i}") for i, x in enumerate(xs)]
        stopped = {as_stop(t) for t in stops}
        seeds = first_gradients(grad_ys, ys)
        entered = not name or name.endswith("/")  # not a new scope: its names may be taken
        walk = _Backward(graph, ys, xs, scope, entered, summing(method), bool(gate))
        found = walk.run(seeds, stopped, _between(ys, xs, stopped if within else set()))
    with graph:
        made = [found[x] if x in found else zeros(x.shape, x.dtype) if zero else None for x in xs]
    return [fresh(g) if type(g) is Tensor else g for g in made] if isinstance(graph, FuncGraph) else made


class _Backward:
    """The state of one call of gradients(). The loop of `run` is hot: it runs once per op."""

    def __init__(
        self,
        graph: Graph,
        ys: list[Tensor],
        xs: list[Tensor],
        scope: str,
        entered: bool,
        sum_terms: Callable[[list[Term], Tensor], Term],
        gate: bool,
    ):
        self.graph = graph
        self.ys = ys
        self.xs = xs
        self.scope = scope
        self.entered = entered
        self.sum_terms = sum_terms
        self.gate = gate
        #: Gradients that have reached each tensor so far, in order of arrival.
        self.terms: dict[Tensor, list[Term]] = {}

    def run(self, seeds: list[Term], stopped: set[Tensor], pending: dict[Operation, int]) -> dict[Tensor, Term]:
        terms, ys, xs = self.terms, self.ys, self.xs
        for y, seed in zip(ys, seeds, strict=True):
            terms.setdefault(y, []).append(seed)
        leaves = _leaves(xs, pending)
        wanted = set(xs)
        found: dict[Tensor, Term] = {}
        queue = deque(dict.fromkeys(y.op for y in ys if pending.get(y.op) == 0))
        while queue:
            op = queue.popleft()
            grads: list[Term | None] = []
            live = False
            for t in op.outputs:
                g = self.total(t) if t in terms else None
                if g is not None:
                    if t in wanted:
                        found[t] = _check_found(g, t)
                    if t in stopped or not trainable(t.dtype):
                        g = None
                    else:
                        live = True
                grads.append(g)
            if live and op not in leaves:
                self.differentiate(op, grads)
            for t in op.inputs:
                before = t.op
                if before in pending:
                    pending[before] -= 1
                    if not pending[before]:
                        queue.append(before)
        return found

    def total(self, t: Tensor) -> Term:
        """The sum of the gradients of one tensor, on the device of the op that produced it."""
        terms = self.terms.pop(t)
        if len(terms) == 1:
            return terms[0]
        self.go_to(t.op, self.scope)
        made = self.sum_terms(terms, t)
        self.go_to(None, self.scope)
        return made

    def differentiate(self, op: Operation, grads: list[Term | None]) -> None:
        """Call the gradient function of one op and pass the results to the op's inputs."""
        rule = self.rule(op)
        if rule is None:
            return
        self.go_to(op, self.scope_of(op))
        for i, g in enumerate(grads):
            if g is None and trainable(op.outputs[i].dtype):
                grads[i] = zeros(op.outputs[i].shape, op.outputs[i].dtype)
        try:
            made = checked(op, rule(op, *grads), self.graph)
        except Exception as e:
            e.add_note(f"distgrad: while differentiating op {op.name!r} (type {op.type}, at {op.source})")
            raise
        if self.gate and sum(g is not None for g in made) > 1:
            self.graph._device = None
            made = tuple_(made)
        self.go_to(None, self.scope)
        terms = self.terms
        for t, g in zip(op.inputs, made, strict=True):
            if g is not None:
                if t in terms:
                    terms[t].append(g)
                else:
                    terms[t] = [g]

    def scope_of(self, op: Operation) -> str:
        """The name scope of an op's gradient. Names double in length with each order of differentiation, so only the
        last part of a long name is used."""
        if len(op.name) > _LONG_NAME:
            return self.graph.unique_name(f"{self.scope}{op.name.rpartition('/')[2]}_grad") + "/"
        scope = f"{self.scope}{op.name}_grad"  # unique as it is: op names are, and nothing else is in this scope
        return f"{self.graph.unique_name(scope) if self.entered else scope}/"

    def go_to(self, op: Operation | None, scope: str) -> None:
        """Give the ops built from now on the device of this forward op and, through original_op, its source line.

        After an exception the contexts of gradients() restore the previous state.
        """
        graph = self.graph
        graph._original, graph._device, graph._scope = op, None if op is None else op.device, scope

    def rule(self, op: Operation) -> Callable[..., Any] | None:
        if not op.inputs:
            return None
        try:
            return gradient_function(op)
        except LookupError as e:
            name = op.gradient if isinstance(op.gradient, str) else op.type
            how = "" if op.gradient is None else f" (asked for by gradient_override_map: {e})"
            raise LookupError(
                f"no gradient is registered for op type {name!r}{how} (op {op.name!r}, at {op.source}), "
                f"which lies between x {_names(self.xs)} and y {_names(self.ys)}.\n"
                f'Register one with @distgrad.RegisterGradient("{name}"), declare it constant with '
                f'distgrad.no_gradient("{name}"), or cut the path with stop_gradient().'
            ) from None


@contextmanager
def _backward_context(graph: Graph) -> Iterator[None]:
    """Makes the ops that a gradient function builds depend on the forward op alone, not on the caller's context."""
    before = graph._original, graph._device
    try:
        yield
    finally:
        graph._original, graph._device = before


# -- ops between xs and ys ---------------------------------------------------------------------------------------


def _between(ys: Sequence[Tensor], xs: Sequence[Tensor], borders: set[Tensor]) -> dict[Operation, int]:
    """The ops on a path from xs to ys, with the number of their outputs' reads by other ops on such a path.

    Three passes: backward from ys, but not past the oldest x (creation order is a topological order over all graphs) or
    a border; forward over these ops, to keep those that xs reach; backward again over those, to count. So the cost is
    that of the ops behind ys that are younger than the oldest x, however large the graph. Ops reached only through
    integers are left out: no gradient flows there.
    """
    sources = {x.op for x in xs}
    oldest = min([op.order for op in sources], default=math.inf)
    ends = {t.op for t in borders if borders.issuperset(t.op.outputs)}
    seen = {y.op for y in ys if y.op.order >= oldest}
    stack = [op for op in seen if op not in ends]
    while stack:
        for t in stack.pop().inputs:
            op = t.op
            if op.order >= oldest and op not in seen:
                seen.add(op)
                if op not in ends:
                    stack.append(op)
    reached: set[Operation] = set()
    for op in sorted(seen, key=_by_order):
        if op in sources or any(t.op in reached and trainable(t.dtype) for t in op.inputs):
            reached.add(op)
    pending = {y.op: 0 for y in ys if y.op in reached}
    stack = list(pending)
    while stack:
        for t in stack.pop().inputs:
            op = t.op
            if op in pending:
                pending[op] += 1
            elif op in reached:
                pending[op] = 1
                stack.append(op)
    return pending


def _by_order(op: Operation) -> int:
    return op.order


def _leaves(xs: Sequence[Tensor], between: Mapping[Operation, int]) -> set[Operation]:
    """Producers of an x with no other x upstream: no gradient is needed past them."""
    return {x.op for x in xs if not any(t.op in between for t in x.op.inputs)}


# -- results of gradient functions -------------------------------------------------------------------------------


def _names(tensors: Sequence[Tensor]) -> str:
    return ", ".join(repr(t.op.name) for t in tensors[:3]) + (", ..." if len(tensors) > 3 else "")


def checked(op: Operation, returned: Any, graph: Graph) -> list[Term | None]:
    """One gradient per input, of the input's shape and dtype; un-broadcasts for ops that broadcast."""
    made: list[Any] = list(returned) if isinstance(returned, list | tuple) else [returned]
    inputs = op.inputs
    if len(made) != len(inputs):
        raise ValueError(
            f"Num gradients {len(made)} generated for op {op.name!r} (type {op.type}, at {op.source}) do not match "
            f"num inputs {len(inputs)}: a gradient function returns one gradient, or None, per input."
        )
    for i, g in enumerate(made):
        if g is None:
            continue
        t = inputs[i]
        if type(g) is not Tensor or g.op.graph is not graph:
            g = made[i] = _convert_gradient(op, i, g)
        if g.dtype is t.dtype and type(g) is Tensor and g.shape == t.shape and t.dtype.kind in "fc":
            continue
        made[i] = _fit(op, i, g, t)
    return made


def _convert_gradient(op: Operation, i: int, g: Any) -> Term:
    """A gradient as a tensor of the current graph: a gradient function may return numbers, or an older tensor."""
    if isinstance(g, IndexedSlices):
        return IndexedSlices(convert(g.values), convert(g.indices), g.dense_shape)
    if isinstance(g, Tensor):
        return convert(g)
    try:
        made = convert(g, op.inputs[i].dtype)
    except (TypeError, ValueError):
        raise TypeError(
            f"the gradient for input {i} of op {op.name!r} (type {op.type}, at {op.source}) is {g!r}: "
            f"return a tensor, an IndexedSlices, anything that NumPy converts to an array, or None"
        ) from None
    return made


def _fit(op: Operation, i: int, g: Term, t: Tensor) -> Term | None:
    if not trainable(t.dtype):
        return None
    if g.dtype != t.dtype:
        raise TypeError(_misfit(op, i, "dtype", t.dtype, g.dtype))
    if isinstance(g, IndexedSlices) and g.dense_shape is None:
        if not g.fits(t.shape):
            raise ValueError(_misfit(op, i, "shape", list(t.shape), f"of rows {list(g.values.shape)}"))
        return g
    if isinstance(g, IndexedSlices) and g.dense_shape == t.shape:
        return g
    if g.shape == t.shape:
        return g
    definition = OPS.get(op.type)
    summable = definition is not None and definition.broadcasting and op.gradient is None
    if not summable or not broadcasts_to(t.shape, g.shape):
        raise ValueError(_misfit(op, i, "shape", list(t.shape), list(g.shape)))
    return sum_to(densify(g) if isinstance(g, IndexedSlices) else g, t.shape)


def _check_found(g: Term, x: Tensor) -> Term:
    if g.dtype != x.dtype:
        raise TypeError(f"gradients: x {x.name!r} has dtype {x.dtype}, but its gradient has {g.dtype}; cast grad_ys")
    return g


def _misfit(op: Operation, i: int, what: str, expected: object, got: object) -> str:
    return (
        f"the gradient for input {i} of op {op.name!r} (type {op.type}, at {op.source}) has {what} {got}, but the "
        f"input {op.inputs[i].name!r} has {what} {expected}. The gradient function must return the {what} of its input."
    )


def sum_to(g: Tensor, shape: Shape) -> Tensor:
    """Undo broadcasting: sum over the axes along which `shape` was repeated."""
    extra = len(g.shape) - len(shape)
    axes = (*range(extra), *(i + extra for i, n in enumerate(shape) if n == 1 and g.shape[i + extra] != 1))
    g = reduce_sum(g, axis=axes) if axes else g
    return g if g.shape == shape else reshape(g, shape)
