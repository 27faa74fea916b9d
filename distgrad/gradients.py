"""gradients(): the backward graph of what lies between xs and ys.

The contract is TensorFlow's graph mode. An op is differentiated once, after every op that reads it: its output
gradients are summed, its rule is called, and what the rule returns is checked, un-broadcast, gated and handed to the
inputs. Rules live beside their ops; what every rule would repeat lives here.
"""

from __future__ import annotations

import enum
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from distgrad.graph import FuncGraph, Graph, Operation, Tensor, current_graph
from distgrad.indexed_slices import IndexedSlices, densify
from distgrad.ops.array import broadcast_to, concatenate, reshape
from distgrad.ops.builder import cast, convert, make
from distgrad.ops.control import ADD_N, identity, tuple_, zeros
from distgrad.ops.control import ones as ones_of
from distgrad.ops.reduce import sum as reduce_sum
from distgrad.registry import OPS, gradient_function
from distgrad.types import INT, Shape, trainable

Term = Tensor | IndexedSlices


class UnconnectedGradients(enum.Enum):
    """What `gradients` gives for an x that ys do not depend on: None, or zeros of its shape and dtype."""

    NONE = "none"
    ZERO = "zero"


class AggregationMethod:
    """How several gradients of one tensor are summed: all at once, or as a balanced tree of pairs."""

    ADD_N = 0
    DEFAULT = ADD_N
    EXPERIMENTAL_TREE = 1
    EXPERIMENTAL_ACCUMULATE_N = 2


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
        grad_ys: the gradient received by each y; ones where it is None.
        name: scope of the new ops.
        gate_gradients: no gradient of an op can be used before all of that op's gradients are computed.
        aggregation_method: a value of `AggregationMethod`.
        stop_gradients: tensors that count as constants, as though they had gone through `stop_gradient`.
        unconnected_gradients: 'none' or 'zero', what an x gets that no y depends on.

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
    unconnected = _unconnected(unconnected_gradients)
    ys, xs, stops = _as_list(ys, "ys"), _as_list(xs, "xs"), _as_list(stop_gradients, "stop_gradients")
    graph = _graph_of(ys, xs)
    with graph, graph.name_scope("gradients" if name is None else name) as scope, _backward_context(graph):
        ys = [_as_tensor(y, f"y_{i}", "ys") for i, y in enumerate(ys)]
        xs = [_as_x(x, f"x_{i}") for i, x in enumerate(xs)]
        stopped = {_as_stop(t) for t in stops}
        seeds = _grad_ys(grad_ys, ys)
        run = _Backward(graph, scope, aggregation_method, bool(gate_gradients))
        found = run.walk(ys, xs, seeds, stopped)
    with graph:
        return [found[x] if x in found else zeros(x.shape, x.dtype) if unconnected else None for x in xs]


class _Backward:
    """One call of gradients(): the state of its walk."""

    def __init__(self, graph: Graph, scope: str, method: Any, gate: bool):
        self.graph = graph
        self.scope = scope
        self.sum = _summing(method)
        self.gate = gate
        self.terms: dict[Tensor, list[Term]] = {}

    def walk(self, ys: list[Tensor], xs: list[Tensor], seeds: list[Term], stopped: set[Tensor]) -> dict[Tensor, Term]:
        terms = self.terms
        for y, seed in zip(ys, seeds, strict=True):
            terms.setdefault(y, []).append(seed)
        pending = _between(ys, xs)
        leaves = _leaves(xs, pending)
        wanted = set(xs)
        found: dict[Tensor, Term] = {}
        queue = deque(dict.fromkeys(y.op for y in ys if pending.get(y.op) == 0))
        while queue:
            op = queue.popleft()
            grads: list[Term | None] = []
            for t in op.outputs:
                g = self.total(t)
                if g is not None and t in wanted:
                    found[t] = _check_found(g, t)
                grads.append(None if g is None or t in stopped or not trainable(t.dtype) else g)
            if op not in leaves and any(g is not None for g in grads):
                self.differentiate(op, grads, xs, ys)
            for t in op.inputs:
                if t.op in pending:
                    pending[t.op] -= 1
                    if not pending[t.op]:
                        queue.append(t.op)
        return found

    def total(self, t: Tensor) -> Term | None:
        """The sum of what reached one tensor, placed with the op that made it."""
        terms = self.terms.pop(t, None)
        if terms is None:
            return None
        if len(terms) == 1:
            return terms[0]
        with self.at(t.op, self.scope):
            return self.sum(terms, t)

    def differentiate(self, op: Operation, grads: list[Term | None], xs: list[Tensor], ys: list[Tensor]) -> None:
        rule = _rule(op, xs, ys)
        if rule is None:
            return
        with self.at(op, self.graph.unique_name(f"{self.scope}{op.name}_grad") + "/"):
            for i, g in enumerate(grads):
                if g is None and trainable(op.outputs[i].dtype):
                    grads[i] = zeros(op.outputs[i].shape, op.outputs[i].dtype)
            made = _check(op, rule(op, *grads))
            if self.gate and sum(g is not None for g in made) > 1:
                self.graph._device = None
                made = tuple_(made)
        terms = self.terms
        for t, g in zip(op.inputs, made, strict=True):
            if g is not None:
                terms.setdefault(t, []).append(g)

    @contextmanager
    def at(self, op: Operation, scope: str) -> Iterator[None]:
        """Backward ops take the device and, through original_op, the source line of the op they differentiate."""
        graph = self.graph
        graph._original, graph._device, graph._scope = op, op.device, scope
        yield
        graph._original, graph._device, graph._scope = None, None, self.scope


@contextmanager
def _backward_context(graph: Graph) -> Iterator[None]:
    """What a rule builds depends on the forward op alone, never on where gradients() was called."""
    before = graph._original, graph._device
    try:
        yield
    finally:
        graph._original, graph._device = before


# -- what lies between -------------------------------------------------------------------------------------------


def _between(ys: Sequence[Tensor], xs: Sequence[Tensor]) -> dict[Operation, int]:
    """The ops on a path from xs to ys, and how many reads of each come from the others.

    Walks back from ys but never past the oldest x (creation order is topological), forward over what it saw to keep
    what xs reach, and back again over that: the cost is that of the part of ys' history that is younger than xs,
    whatever else the graph holds. The last walk leaves out what only an integer leads to: no gradient comes back there.
    """
    sources = {x.op for x in xs}
    oldest = min([op.id for op in sources], default=math.inf)
    seen = {y.op for y in ys if y.op.id >= oldest}
    stack = list(seen)
    while stack:
        for t in stack.pop().inputs:
            op = t.op
            if op.id >= oldest and op not in seen:
                seen.add(op)
                stack.append(op)
    reached: set[Operation] = set()
    for op in sorted(seen, key=_by_id):
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


def _by_id(op: Operation) -> int:
    return op.id


def _leaves(xs: Sequence[Tensor], between: Mapping[Operation, int]) -> set[Operation]:
    """Producers of an x with no other x upstream: nobody asks for gradients behind them."""
    return {x.op for x in xs if not any(t.op in between for t in x.op.inputs)}


# -- rules and what they return ----------------------------------------------------------------------------------


def _rule(op: Operation, xs: Sequence[Tensor], ys: Sequence[Tensor]) -> Callable[..., Any] | None:
    if not op.inputs:
        return None
    try:
        return gradient_function(op)
    except LookupError as e:
        name = op.gradient if isinstance(op.gradient, str) else op.type
        how = "" if op.gradient is None else f" (asked for by gradient_override_map: {e})"
        raise LookupError(
            f"no gradient is registered for op type {name!r}{how} (op {op.name!r}, at {op.source}), which lies between "
            f"x {_names(xs)} and y {_names(ys)}.\n"
            f'Register one with @distgrad.RegisterGradient("{name}"), declare it constant with '
            f'distgrad.no_gradient("{name}"), or cut the path with stop_gradient().'
        ) from None


def _names(tensors: Sequence[Tensor]) -> str:
    return ", ".join(repr(t.op.name) for t in tensors[:3]) + (", ..." if len(tensors) > 3 else "")


def _check(op: Operation, returned: Any) -> list[Term | None]:
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
        if type(g) is not Tensor and not isinstance(g, IndexedSlices):
            g = made[i] = _convert_gradient(op, i, g)
        if g.dtype is t.dtype and type(g) is Tensor and g.shape == t.shape and t.dtype.kind in "fc":
            continue
        made[i] = _fit(op, i, g, t)
    return made


def _convert_gradient(op: Operation, i: int, g: Any) -> Term:
    try:
        made = convert(g, op.inputs[i].dtype)
    except (TypeError, ValueError):
        raise TypeError(
            f"the gradient for input {i} of op {op.name!r} (type {op.type}, at {op.source}) is {g!r}: "
            f"return a tensor, an IndexedSlices, something NumPy makes an array of, or None"
        ) from None
    return made


def _fit(op: Operation, i: int, g: Term, t: Tensor) -> Term | None:
    if not trainable(t.dtype):
        return None
    if g.dtype != t.dtype:
        raise TypeError(_misfit(op, i, "dtype", t.dtype, g.dtype))
    if isinstance(g, IndexedSlices) and g.dense_shape in (None, t.shape):
        return g
    if g.shape == t.shape:
        return g
    definition = OPS.get(op.type)
    if definition is None or not definition.broadcasting or op.gradient is not None or not _repeats(t.shape, g.shape):
        raise ValueError(_misfit(op, i, "shape", list(t.shape), list(g.shape)))
    return sum_to(densify(g) if isinstance(g, IndexedSlices) else g, t.shape)


def _repeats(shape: Shape, larger: Shape) -> bool:
    """Whether broadcasting makes `larger` of `shape`."""
    extra = len(larger) - len(shape)
    return extra >= 0 and all(n in (1, m) for n, m in zip(shape, larger[extra:], strict=True))


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


# -- summing -----------------------------------------------------------------------------------------------------


def _summing(method: Any) -> Callable[[list[Term], Tensor], Term]:
    if method is None or method == AggregationMethod.ADD_N:
        return _add_all
    if method in (AggregationMethod.EXPERIMENTAL_TREE, AggregationMethod.EXPERIMENTAL_ACCUMULATE_N):
        return _add_tree
    raise ValueError(
        f"unknown aggregation_method {method!r}: "
        f"use AggregationMethod.ADD_N, EXPERIMENTAL_TREE or EXPERIMENTAL_ACCUMULATE_N"
    )


def _add_all(terms: list[Term], t: Tensor) -> Term:
    if any(isinstance(g, IndexedSlices) for g in terms):
        return _add_sparse(terms, t)
    devices = {g.device for g in terms}
    if len(devices) == 1:
        return make(ADD_N, tuple(terms))
    parts = []
    for device in sorted(devices, key=str):
        same = tuple(g for g in terms if g.device == device)
        with t.graph.device(device):
            parts.append(same[0] if len(same) == 1 else make(ADD_N, same))
    return make(ADD_N, tuple(parts))


def _add_tree(terms: list[Term], t: Tensor) -> Term:
    if any(isinstance(g, IndexedSlices) for g in terms):
        return _add_sparse(terms, t)
    t.graph._scope = t.graph.scope_name(f"{t.op.name}_gradient_sum")
    while len(terms) > 1:
        pairs = [tuple(terms[i : i + 2]) for i in range(0, len(terms), 2)]
        terms = [pair[0] if len(pair) == 1 else make(ADD_N, pair) for pair in pairs]
    return terms[0]


def _add_sparse(terms: list[Term], t: Tensor) -> Term:
    """Sparse terms alone stay sparse: their rows are put one after another. One dense term makes the sum dense."""
    sparse = [g for g in terms if isinstance(g, IndexedSlices)]
    if len(sparse) < len(terms):
        missing = next((g for g in sparse if g.dense_shape is None), None)
        if missing is not None:
            raise TypeError(f"cannot add {missing!r} to a dense gradient of {t!r}: it has no dense_shape")
        return _add_all([densify(g) if isinstance(g, IndexedSlices) else g for g in terms], t)
    indices = [g.indices for g in sparse]
    if len({i.dtype for i in indices}) > 1:
        indices = [cast(i, INT) for i in indices]
    return IndexedSlices(concatenate([g.values for g in sparse]), concatenate(indices), sparse[0].dense_shape)


# -- arguments ---------------------------------------------------------------------------------------------------


def _unconnected(value: Any) -> bool:
    try:
        return UnconnectedGradients(value) is UnconnectedGradients.ZERO
    except ValueError:
        raise ValueError(f"Unknown value for unconnected_gradients: {value!r}; use 'none' or 'zero'") from None


def _as_list(value: Any, what: str) -> list[Any]:
    if value is None:
        if what == "stop_gradients":
            return []
        raise TypeError(f"gradients: {what} is None; give a tensor or a list of tensors")
    return list(value) if isinstance(value, list | tuple) else [value]


def _graph_of(ys: Sequence[Any], xs: Sequence[Any]) -> Graph:
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
            "or use distgrad.grad(f), which makes one"
        )
    return current


def _as_tensor(y: Any, name: str, what: str) -> Tensor:
    if y is None:
        raise TypeError(f"gradients: {what} contains None; give tensors")
    if isinstance(y, IndexedSlices):
        y = y.values
    try:
        return convert(y, name=name)
    except TypeError as e:
        raise TypeError(f"gradients: {what} must be a tensor or a list of tensors: {e}") from None


def _as_x(x: Any, name: str) -> Tensor:
    """A variable stands for its handle, whatever read it; a captured tensor for its copy in the function."""
    handle = getattr(x, "__handle__", None)
    if handle is not None:
        made: Tensor = handle()
        return made
    if isinstance(x, list | tuple):
        raise TypeError(f"gradients: xs must be a tensor or a flat list of tensors, got the nested list {x!r}")
    return _as_tensor(x, name, "xs")


def _as_stop(t: Any) -> Tensor:
    if not isinstance(t, Tensor | IndexedSlices) and not hasattr(t, "__handle__"):
        raise TypeError(f"gradients: stop_gradients must be a tensor or a list of tensors, got {t!r}")
    return _as_x(t.values if isinstance(t, IndexedSlices) else t, "stop")


def _grad_ys(grad_ys: Any, ys: Sequence[Tensor]) -> list[Term]:
    given = [None] * len(ys) if grad_ys is None else _as_list(grad_ys, "grad_ys")
    if len(given) != len(ys):
        raise ValueError(f"Length mismatch: gradients got {len(given)} grad_ys for {len(ys)} ys")
    return [_grad_y(i, g, y) for i, (g, y) in enumerate(zip(given, ys, strict=True))]


def _grad_y(i: int, g: Any, y: Tensor) -> Term:
    """The first gradient of a y, where y itself is."""
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
    if not _repeats(g.shape, y.shape):
        raise ValueError(_misfit_y(i, g.shape, y))
    return broadcast_to(g, y.shape)


def _misfit_y(i: int, shape: Shape, y: Tensor) -> str:
    return f"gradients: grad_ys[{i}] has shape {list(shape)}, which does not fit y {y.name!r} of shape {list(y.shape)}"


def _weak(g: Any, y: Tensor) -> Tensor:
    """Python numbers take y's dtype, as they would beside y in any op."""
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
