"""explain_gradient: why a gradient is None.

Follows the same paths as gradients() and calls the gradient function of every op on them, but builds into a scratch
graph, so the user's graph does not change. Each op is visited once. The body of a call is searched only if the gradient
ends inside it.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from distgrad.autodiff.gradients import checked
from distgrad.errors import Source
from distgrad.graph import FuncGraph, Graph, Operation, Tensor
from distgrad.html import block, line, listed, table
from distgrad.ops.indexed_slices import IndexedSlices
from distgrad.registry import Kind, gradient_function, kind_of
from distgrad.types import brief, trainable

NO_PATH = "no path"
CONTROL = "control dependency"
ASSIGN = "assign"
STOP = "stop_gradient"
NO_GRADIENT = "no_gradient"
INTEGER = "integer dtype"
RETURNED_NONE = "returned None"
UNREGISTERED = "no gradient registered"
FAILED = "gradient function failed"

#: Reasons that make gradients() raise, even if another path is connected.
ERRORS = (UNREGISTERED, FAILED)


@dataclass(frozen=True, slots=True)
class Cut:
    """One place where the gradient ends: the reason, the op and the user's source line."""

    reason: str
    text: str
    op: str = ""
    type: str = ""
    source: Source | None = None

    def __str__(self) -> str:
        return f"{self.reason}: {self.text}"


@dataclass(frozen=True, slots=True)
class Explanation:
    """Whether gradients(y, x) is a tensor, and what cut the paths that carry no gradient."""

    y: str
    x: str
    connected: bool
    cuts: tuple[Cut, ...]
    #: Names of the ops that carry the gradient, and their number by op type.
    ops: tuple[str, ...]
    types: dict[str, int]

    def __str__(self) -> str:
        if self.connected:
            kinds = ", ".join(f"{n} {kind}" for kind, n in self.types.items()) or "y is x"
            head = f"the gradient of {self.y!r} with respect to {self.x!r} flows through {len(self.ops)} ops ({kinds})"
            tail = "; other paths are cut:" if self.cuts else "."
        else:
            what = "an error" if any(cut.reason in ERRORS for cut in self.cuts) else "None"
            head = f"the gradient of {self.y!r} with respect to {self.x!r} is {what}:"
            tail = ""
        return "\n".join([head + tail, *(f"  - {cut}" for cut in self.cuts)])

    def _repr_html_(self) -> str:
        rows = [[cut.reason, cut.op, cut.type, str(cut.source or ""), cut.text] for cut in self.cuts]
        cuts = table(["cut by", "op", "type", "line", "why"], rows, len(rows), "cuts") if rows else ""
        carriers = line(f"carried by {listed(self.ops)}") if self.connected and self.ops else ""
        return block(str(self).partition("\n")[0], carriers, cuts)


def explain_gradient(y: Any, x: Any) -> Explanation:
    """Explain why `gradients(y, x)` is None: the ops that cut each path, with source lines. Leaves the graph unchanged.

    >>> import distgrad as dg
    >>> with dg.Graph():
    ...     x = dg.constant(2.0, name="x")
    ...     y = dg.stop_gradient(x * x, name="frozen")
    >>> print(dg.explain_gradient(y, x))  # doctest: +ELLIPSIS
    the gradient of 'frozen' with respect to 'x' is None:
      - stop_gradient: op 'frozen' (StopGradient, at ...) lets no gradient through
    >>> dg.explain_gradient(x * x, x).connected
    True
    """
    y = y.values if isinstance(y, IndexedSlices) else y
    if not isinstance(y, Tensor):
        raise TypeError(f"explain_gradient: y must be a tensor, got {brief(y)}")
    found = _in_graph(x, y.graph)
    if isinstance(found, Cut):
        return Explanation(y.op.name, _label(x), False, (found,), (), {})
    search = _PathSearch([y], found)
    cuts = search.cuts + _in_bodies(search.bodies)
    connected = found in search.live and not any(cut.reason in ERRORS for cut in cuts)
    if not cuts and not connected:
        cuts = _other_paths(y, found)
    types = dict(Counter([op.type for op in search.carriers]).most_common())
    names = tuple([op.name for op in search.carriers])
    return Explanation(y.op.name, found.op.name, connected, tuple(dict.fromkeys(cuts)), names, types)


def _in_graph(x: Any, graph: Graph) -> Tensor | Cut:
    """The tensor that gradients() looks for: x itself, or the variable's handle in the outermost graph."""
    graphs = _reachable(graph)
    if hasattr(x, "__handle__"):
        made = graphs[-1].handles.get(x)
    elif isinstance(x, Tensor) or (isinstance(x, IndexedSlices) and isinstance(x.values, Tensor)):
        made = x.values if isinstance(x, IndexedSlices) else x
    else:
        return Cut(NO_PATH, f"{brief(x)} is not a tensor: each use of an array or number makes a new constant")
    if made is None:
        return Cut(NO_PATH, f"{_label(x)!r} is not read in the graph of y")
    if made.graph not in graphs:
        return Cut(NO_PATH, f"{_label(x)!r} belongs to a different graph, which does not enclose y's function")
    return made


def _reachable(graph: Graph) -> list[Graph]:
    """Graphs that paths from `graph` may lead to: a function captures from the graphs that enclose it."""
    return [graph, *graph.around()] if isinstance(graph, FuncGraph) else [graph]


def _label(x: Any) -> str:
    x = x.values if isinstance(x, IndexedSlices) else x
    return x.op.name if isinstance(x, Tensor) else str(getattr(x, "name", None) or brief(x))


def _cut(reason: str, op: Operation, text: str) -> Cut:
    return Cut(reason, text, op.name, op.type, op.source)


def _place(op: Operation) -> str:
    return f"op {op.name!r} ({op.type}, at {op.source})"


# -- the search --------------------------------------------------------------------------------------------------


class _Scratch(FuncGraph):
    """Scratch graph for gradient functions: any tensor used in it becomes a placeholder."""

    def stand_in(self, tensor: Tensor) -> Tensor:
        return tensor if tensor.graph is self else self.add("Placeholder", (), [tensor.spec]).outputs[0]

    def in_place(self, tensor: Tensor) -> Tensor:
        return tensor


class _CallBody(NamedTuple):
    """A call that passes no gradient to one of its inputs: the reason is in its body."""

    call: Operation
    place: int

    def search(self) -> _PathSearch:
        body = self.call.attrs["body"]
        return _PathSearch([t for t in body.outputs if trainable(t.dtype)], body.inputs[self.place])


class _PathSearch:
    """Searches the paths between x and ys in one graph.

    `live` tensors receive a gradient; `integer` ones would if they were floats.
    """

    def __init__(self, ys: Sequence[Tensor], x: Tensor):
        self.x = x
        self.live = {y for y in ys if trainable(y.dtype) or y is x}
        self.integer = {y for y in ys if y not in self.live}
        self.cuts: list[Cut] = []
        self.bodies: list[_CallBody] = []
        self.carriers: list[Operation] = []
        between = _between(ys, x)
        #: Ops that x reaches through floats: gradients() differentiates no others.
        self.floating = {op for op, floating in between.items() if floating}
        for op in reversed(between):
            wanted = [(i, t) for i, t in enumerate(op.inputs) if t is x or t.op in between]
            if not self.live.isdisjoint(op.outputs):
                self.ask(op, wanted)
            elif not self.integer.isdisjoint(op.outputs):
                self.pass_integers(op, wanted)
        self.carriers.reverse()
        if x in self.integer:
            self.cuts.append(_cut(INTEGER, x.op, f"x, {_place(x.op)}, is {x.dtype}; {_ONLY_FLOATS}"))

    def ask(self, op: Operation, wanted: list[tuple[int, Tensor]]) -> None:
        """Propagate what the op's gradient function returns to the inputs that depend on x."""
        self.integer.update([t for _, t in wanted if not trainable(t.dtype)])
        floats = [(i, t) for i, t in wanted if trainable(t.dtype)]
        if not floats:
            return
        made = _asked(op)
        if isinstance(made, Cut):
            if made.reason in ERRORS and op not in self.floating:  # the integer between it and x is to blame
                self.live.update([t for _, t in floats])
            else:
                self.cuts.append(made)
            return
        passed = [t for i, t in floats if made[i] is not None]
        lost = [i for i, _ in floats if made[i] is None]
        self.live.update(passed)
        if passed:
            self.carriers.append(op)
        if lost and op.gradient is None and kind_of(op.type) is Kind.CALL:
            self.bodies += [_CallBody(op, i) for i in lost]
        elif lost and not (passed and callable(op.gradient)):  # custom_gradient gives None to some inputs by design
            which = ", ".join(map(str, lost))
            text = f"the gradient function of {_place(op)} returned None for input {which}"
            self.cuts.append(_cut(RETURNED_NONE, op, text))

    def pass_integers(self, op: Operation, wanted: list[tuple[int, Tensor]]) -> None:
        """Propagate through integers; report the op that converted floats to integers."""
        if any(trainable(t.dtype) for _, t in wanted):
            made = next(t for t in op.outputs if t in self.integer)
            text = f"{_place(op)} returns {made.dtype}; {_ONLY_FLOATS}"
            self.cuts.append(_cut(INTEGER, op, text))
        self.integer.update([t for _, t in wanted if not trainable(t.dtype)])


_ONLY_FLOATS = "gradients flow through floats and complex numbers only"


def _between(ys: Iterable[Tensor], x: Tensor) -> dict[Operation, bool]:
    """The ops that compute ys from x in topological order, and whether a path of floats alone leads to each."""
    behind = [op for op in _behind([y.op for y in ys], x.op.order) if op is not x.op]
    between: dict[Operation, bool] = {}
    for op in sorted(behind, key=lambda op: op.order):
        read = [t for t in op.inputs if t is x or t.op in between]
        if read:
            between[op] = any(trainable(t.dtype) and (t is x or between[t.op]) for t in read)
    return between


def _behind(ops: Iterable[Operation], oldest: int = 0) -> set[Operation]:
    stack = [op for op in ops if op.order >= oldest]
    seen = set(stack)
    while stack:
        for t in stack.pop().inputs:
            if t.op.order >= oldest and t.op not in seen:
                seen.add(t.op)
                stack.append(t.op)
    return seen


def _asked(op: Operation) -> Sequence[Any] | Cut:
    """What the gradient function of an op returns, or why there is no result."""
    try:
        rule = gradient_function(op)
    except LookupError as e:
        return _cut(UNREGISTERED, op, f"{_place(op)}: {e}")
    if rule is None:
        reason, text = _WITHOUT_RULE.get(op.type, (NO_GRADIENT, "is declared not differentiable with no_gradient()"))
        return _cut(reason, op, f"{_place(op)} {text}")
    with _Scratch("explain") as scratch:
        gs = [scratch.admit(t) if trainable(t.dtype) else None for t in op.outputs]
        try:
            made = rule(op, *gs)
        except Exception as e:
            return _cut(FAILED, op, f"the gradient function of {_place(op)} raised {type(e).__name__}: {e}")
        try:
            return checked(op, made, scratch)
        except (TypeError, ValueError) as e:
            return _cut(FAILED, op, str(e))


_WITHOUT_RULE = {
    "StopGradient": (STOP, "lets no gradient through"),
    "Assign": (ASSIGN, "sets a variable, and gradients do not flow through stored values"),
}


def _in_bodies(bodies: Iterable[_CallBody]) -> list[Cut]:
    cuts: list[Cut] = []
    queue = deque(bodies)
    while queue:
        body = queue.popleft()
        search = body.search()
        cuts += search.cuts
        queue += search.bodies
        if not search.cuts and not search.bodies:
            call = body.call
            cuts.append(_cut(NO_PATH, call, f"the function of {_place(call)} does not use its input {body.place}"))
    return cuts


# -- no data path from x to y -----------------------------------------------------------------------------------


def _other_paths(y: Tensor, x: Tensor) -> list[Cut]:
    """Assigns and control dependencies that lead from x to y; if there are none, a cut that says so."""
    edges = _other_edges(y, x)
    cuts: dict[Cut, None] = {}
    stack, seen = [y.op], {y.op}
    while stack:
        op = stack.pop()
        reason, origin = edges.get(op, (None, None))
        if reason == ASSIGN and origin is not None:
            cuts[_cut(ASSIGN, origin, f"{_place(origin)} sets a variable that {_place(op)} reads; {_STORED}")] = None
        elif reason == CONTROL and origin is not None:
            cuts[_cut(CONTROL, op, f"{_place(op)} only waits for {_place(origin)}, and reads nothing from it")] = None
        for before in [origin] if origin is not None else [t.op for t in op.inputs]:
            if before in edges and before not in seen:
                seen.add(before)
                stack.append(before)
    return list(cuts) or [_nothing(y, x)]


_STORED = "gradients do not flow through stored values"


def _other_edges(y: Tensor, x: Tensor) -> dict[Operation, tuple[str | None, Operation | None]]:
    """The ops that depend on x in any way, with the assign or control dependency if no data edge leads there."""
    edges: dict[Operation, tuple[str | None, Operation | None]] = {x.op: (None, None)}
    assigned: dict[Tensor, Operation] = {}
    ops = [op for graph in _reachable(y.graph) for op in graph.ops if x.op.order < op.order <= y.op.order]
    for op in sorted(ops, key=lambda op: op.order):
        stored = assigned.get(op.inputs[0]) if op.type == "ReadVariable" else None
        waited = next((c for c in op.control_inputs if c in edges), None)
        if any(t.op in edges for t in op.inputs):
            edges[op] = (None, None)
        elif stored is not None:
            edges[op] = (ASSIGN, stored)
        elif waited is not None:
            edges[op] = (CONTROL, waited)
        if op.type == "Assign":
            assigned.pop(op.inputs[0], None)
            if op in edges:
                assigned[op.inputs[0]] = op
    return edges


def _nothing(y: Tensor, x: Tensor) -> Cut:
    text = f"y, {_place(y.op)}, is not computed from x, {_place(x.op)}"
    behind = _behind([y.op])
    shared = next((t for t in x.op.inputs if t.op in behind), None)
    if shared is not None:
        name = shared.op.name
        text += f"; both are computed from {name!r}: compute y from x, or differentiate with respect to {name!r}"
    return _cut(NO_PATH, x.op, text)
