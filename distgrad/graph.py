"""The dataflow graph: Graph, Operation, Tensor, and which graph is being built.

A graph is append-only and creation order is a topological order, so every walk over it is a loop. Nothing here knows a
single op: builders live in `distgrad.ops`, which also adds NumPy's operators and methods to `Tensor`.
"""

from __future__ import annotations

import itertools
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from distgrad.collector import collector
from distgrad.errors import Source, resolve, user_frame
from distgrad.printing import format_ops
from distgrad.registry import warn_of_unknown
from distgrad.types import DType, Shape, Spec, brief

if TYPE_CHECKING:
    from types import CodeType

Attrs = Mapping[str, Any]
NO_ATTRS: Attrs = {}

_orders = itertools.count()
_NAME = re.compile(r"[A-Za-z0-9_.][A-Za-z0-9_.\\/>-]*\Z")


def check_name(name: str) -> str:
    """The name of an op, scope or variable, if it is valid; ValueError otherwise."""
    if not isinstance(name, str):
        raise TypeError(f"a name is a string of letters, digits and any of _ . \\ / > -; got {brief(name)}")
    if not _NAME.match(name):
        raise ValueError(f"{name!r} is not a valid name: use letters, digits and any of _ . \\ / > -")
    return name


class Tensor:
    """One output of an operation: a static shape and dtype, and no value until the graph runs.

    NumPy's operators, methods and functions work on it and record ops.

    >>> import distgrad as dg
    >>> with dg.Graph():
    ...     x = dg.placeholder((2, 3), "float32", name="x")
    ...     y = x.T @ x
    >>> y.shape, y.dtype, y.op.type
    ((3, 3), dtype('float32'), 'MatMul')
    """

    __slots__ = ("dtype", "index", "op", "shape", "state")

    op: Operation
    index: int
    shape: Shape
    dtype: DType
    #: What a name knows (`distgrad.ops.assignment.names`); other tensors have none.
    state: Any

    def __init__(self, op: Operation, index: int, shape: Shape, dtype: DType):
        self.op = op
        self.index = index
        self.shape = shape
        self.dtype = dtype

    __hash__ = object.__hash__

    if TYPE_CHECKING:  # added by distgrad.ops.methods

        def __add__(self, other: Any) -> Tensor: ...

        __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __add__
        __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __pow__ = __rpow__ = __matmul__ = __rmatmul__ = __add__
        __lt__ = __le__ = __gt__ = __ge__ = __and__ = __or__ = __xor__ = __getitem__ = __add__

        def __neg__(self) -> Tensor: ...
        def __iter__(self) -> Iterator[Tensor]: ...
        def __len__(self) -> int: ...
        def __getattr__(self, name: str) -> Any: ...

    @property
    def graph(self) -> Graph:
        return self.op.graph

    def now(self) -> Tensor:
        """The value itself; for a name, the value that it stands for now (see `distgrad.ops.assignment.names`)."""
        return self

    def derived(self, op: Operation) -> list[Tensor]:
        """What the user gets for the outputs of an op on this tensor."""
        return list(op.outputs)

    @property
    def name(self) -> str:
        return f"{self.op.name}:{self.index}"

    @property
    def spec(self) -> Spec:
        return Spec(self.shape, self.dtype)

    @property
    def device(self) -> str | None:
        return self.op.device

    def __repr__(self) -> str:
        return f"<Tensor {self.name!r} {self.spec} from {self.op.type} at {self.op.source}>"

    def __reduce__(self) -> Any:
        raise TypeError(f"{self!r} belongs to its graph and cannot be copied or pickled; its value can")


class Operation:
    """One node of a graph: type, inputs, outputs, attributes, and the line of user code that created it.

    >>> import distgrad as dg
    >>> with dg.Graph():
    ...     op = dg.sum(dg.ones((2, 3)), axis=0, name="total").op
    >>> op.name, op.type, op.attrs["axis"], [t.shape for t in op.outputs]
    ('total', 'Sum', (0,), [(3,)])
    """

    __slots__ = (
        "_code", "_lasti", "attrs", "control_inputs", "device", "gradient", "graph", "id", "inputs", "name",
        "order", "original_op", "outputs", "type",
    )  # fmt: skip

    graph: Graph
    #: Index in graph.ops.
    id: int
    #: Creation number over all graphs: inputs, also captured ones, have smaller numbers.
    order: int
    type: str
    name: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    attrs: Attrs
    control_inputs: tuple[Operation, ...]
    device: str | None
    #: Overrides the gradient rule of its type: a registered name (override map) or a function.
    gradient: str | Callable[..., Any] | None
    #: The forward op whose gradient rule created this op.
    original_op: Operation | None
    _code: CodeType | None
    _lasti: int

    @property
    def source(self) -> Source:
        """The line of user code; for a backward op, that of its forward op."""
        op = self
        while op.original_op is not None:
            op = op.original_op
        return resolve(op._code, op._lasti)

    def __repr__(self) -> str:
        return f"<Operation {self.name!r} type={self.type} at {self.source}>"

    def __reduce__(self) -> Any:
        raise TypeError(
            f"{self!r} belongs to its graph and cannot be copied or pickled: build it again there"
        )


class Graph:
    """An append-only list of operations.

    >>> import distgrad as dg
    >>> with dg.Graph() as g:
    ...     x = dg.placeholder((2,), "float32", name="x")
    ...     y = dg.exp(x)
    >>> [op.type for op in g.ops]
    ['Placeholder', 'Exp']
    """

    def __init__(self) -> None:
        self.ops: list[Operation] = []
        #: The tensor that stands for each variable in this graph (filled by distgrad.tracing.variables).
        self.handles: dict[Any, Tensor] = {}
        #: The current read of each variable (filled by distgrad.tracing.variables).
        self.reads: dict[Any, Tensor] = {}
        #: Functions called in this graph, by name, for SymbolicGradient(f="name").
        self.functions: dict[str, Any] = {}
        self._memos: dict[str, Any] = {}
        self._names: dict[str, int] = {}
        self._scope = ""
        self._device: str | None = None
        self._control: tuple[Operation, ...] = ()
        self._overrides: dict[str, str] = {}
        self._original: Operation | None = None
        #: Set within bodies that may assign only what they made: the number of ops before it, and what it is.
        self.sealed: tuple[int, str] | None = None
        #: Set where a body is built again: arrays older than the second number of ops must not be assigned since the
        #: first.
        self.frozen: tuple[int, int, str] | None = None

    # -- building ------------------------------------------------------------------------------------------------

    def add(
        self,
        type: str,
        inputs: tuple[Tensor, ...],
        specs: Sequence[tuple[Shape, DType]],
        attrs: Attrs = NO_ATTRS,
        name: str | None = None,
    ) -> Operation:
        """Append one op whose inputs belong to this graph. The hot path of graph building: every call counts."""
        op = Operation.__new__(Operation)
        op.graph = self
        op.type = type
        op.inputs = inputs
        op.attrs = attrs
        op.control_inputs = self._control
        op.device = self._device
        op.gradient = self._overrides.get(type) if self._overrides else None
        original = op.original_op = self._original
        if original is not None:
            op._code, op._lasti = None, 0
        else:
            frame = user_frame(2)
            op._code, op._lasti = (None, 0) if frame is None else (frame.f_code, frame.f_lasti)
        op.name = self.unique_name(self._scope + (type if name is None else check_name(name)))
        if len(specs) == 1:
            shape, dtype = specs[0]
            op.outputs = (Tensor(op, 0, shape, dtype),)
        else:
            op.outputs = tuple([Tensor(op, i, shape, dtype) for i, (shape, dtype) in enumerate(specs)])
        op.order = next(_orders)
        ops = self.ops
        op.id = len(ops)
        ops.append(op)
        return op

    def unique_name(self, name: str) -> str:
        names = self._names
        n = names.get(name)
        if n is None:
            names[name] = 1
            return name
        candidate = f"{name}_{n}"
        while candidate in names:
            n += 1
            candidate = f"{name}_{n}"
        names[name] = n + 1
        names[candidate] = 1
        return candidate

    def admit(self, tensor: Tensor) -> Tensor:
        """Make a tensor of another graph readable in this one: an error here, a capture in a function."""
        raise ValueError(
            f"{tensor!r} and the other inputs of an op belong to different graphs, but all must be from the same "
            f"graph. Build both in one `with graph:`, or run one and feed its value to the other."
        )

    def memo(self, what: str, make: Callable[[], Any] = dict) -> Any:
        """A cache of other modules about this graph, created by `make`. Stored here so that it is freed with the graph:
        a weak map would leak, as its values refer to their keys."""
        found = self._memos.get(what)
        return self._memos.setdefault(what, make()) if found is None else found

    def stand_in(self, tensor: Tensor) -> Tensor | None:
        """The tensor of this graph that represents `tensor`, if any: itself, if it belongs to this graph."""
        return tensor if tensor.graph is self else None

    #: The same for a tensor to differentiate with respect to.
    in_place = stand_in

    def local(self, tensor: Tensor) -> Tensor:
        """The tensor itself; an error if it belongs to another graph. Function bodies also find captured ones."""
        return tensor if tensor.graph is self else self.admit(tensor)

    # -- context -------------------------------------------------------------------------------------------------

    def __enter__(self) -> Graph:
        if not _context.stack:
            collector.relax()
        _context.stack.append(self)
        _context.graph = self
        return self

    def __exit__(self, *exc: object) -> None:
        _context.stack.pop()
        _context.graph = _context.stack[-1] if _context.stack else None
        if not _context.stack:
            collector.restore()

    def as_default(self) -> Graph:
        """TensorFlow's spelling of `with graph:`."""
        return self

    @contextmanager
    def _setting(self, field: str, value: Any) -> Iterator[None]:
        before = getattr(self, field)
        setattr(self, field, value)
        try:
            yield
        finally:
            setattr(self, field, before)

    @contextmanager
    def clean(self) -> Iterator[None]:
        """Clear scope, control dependencies, device and forward op, for ops that belong to no user code."""
        with ExitStack() as stack:
            for field, value in (("_scope", ""), ("_control", ()), ("_device", None), ("_original", None)):
                stack.enter_context(self._setting(field, value))
            yield

    @contextmanager
    def name_scope(self, name: str | None) -> Iterator[str]:
        """Prefix the names of ops: unique per entry, or exactly this scope when the name ends in '/'."""
        scope = self.scope_name(name)
        with self._setting("_scope", scope):
            yield scope

    def scope_name(self, name: str | None) -> str:
        if name is None:
            return ""
        if not isinstance(name, str):
            raise TypeError(f"name_scope: a name is a string or None, got {brief(name)}")
        if name == "":
            return self._scope
        check_name(name)
        return name if name.endswith("/") else self.unique_name(self._scope + name) + "/"

    @contextmanager
    def device(self, device: str | None) -> Iterator[None]:
        """Place the ops built inside on 'cpu', 'gpu', 'worker:2', or a label. None clears the device."""
        if device is not None and not isinstance(device, str):
            raise TypeError(
                f"a device must be a string such as 'cpu', 'gpu' or 'worker:2', or None; got {brief(device)}"
            )
        with self._setting("_device", device):
            yield

    @contextmanager
    def control_dependencies(
        self, dependencies: Iterable[Tensor | Operation] | Tensor | Operation | None
    ) -> Iterator[None]:
        """Ops built inside run after these, even without reading them. None clears all control dependencies."""
        if dependencies is None:
            control: tuple[Operation, ...] = ()
        else:
            if isinstance(dependencies, Tensor | Operation):
                dependencies = [dependencies]
            if not isinstance(dependencies, Iterable):
                raise TypeError(f"control dependencies are tensors or operations, got {brief(dependencies)}")
            ops = [_producer(d) for d in dependencies]
            foreign = [op for op in ops if op.graph is not self]
            if foreign:
                raise ValueError(f"{foreign[0]!r} belongs to another graph and cannot be waited for in this one")
            control = tuple(dict.fromkeys((*self._control, *ops)))
        with self._setting("_control", control):
            yield

    @contextmanager
    def gradient_override_map(self, op_type_map: Mapping[str, str]) -> Iterator[None]:
        """Differentiate ops of these types, if built inside, by the rule registered under the other name."""
        if not isinstance(op_type_map, dict):
            raise TypeError(
                f"gradient_override_map takes a dict of op type to registered name, got {brief(op_type_map)}"
            )
        for item in (*op_type_map, *op_type_map.values()):
            if not isinstance(item, str):
                raise TypeError(f"gradient_override_map: op types and registered names are strings, got {brief(item)}")
        warn_of_unknown(op_type_map)
        with self._setting("_overrides", {**self._overrides, **op_type_map}):
            yield

    # -- lookup --------------------------------------------------------------------------------------------------

    def get_operation_by_name(self, name: str) -> Operation:
        for op in self.ops:
            if op.name == name:
                return op
        raise KeyError(f"the graph has no operation named {brief(name)}")

    def get_tensor_by_name(self, name: str) -> Tensor:
        if not isinstance(name, str):
            raise TypeError(f"the name of a tensor is a string such as 'op:0', got {brief(name)}")
        op_name, _, index = name.partition(":")
        outputs = self.get_operation_by_name(op_name).outputs
        if not (index.isascii() and index.isdigit() and len(index) < 10) or int(index) >= len(outputs):
            raise KeyError(f"{name!r} is not a tensor: write 'op:index', index below {len(outputs)} for {op_name!r}")
        return outputs[int(index)]

    def __str__(self) -> str:
        return format_ops(self.ops)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self.ops)} ops>"

    def _repr_html_(self) -> str:
        from distgrad.html import graph_html  # only notebooks need it

        return graph_html(repr(self)[1:-1], self.ops)

    def __reduce__(self) -> Any:
        raise TypeError(
            f"{self!r} cannot be copied or pickled: programs can, see distgrad.scheduler.lower. To have the graph "
            f"elsewhere, call the function that builds it there."
        )


class FuncGraph(Graph):
    """The body of a function: declared inputs, outputs, and tensors captured from the enclosing graph.

    A captured tensor is the output of a Capture op, the only op that reads a tensor of another graph. The body of a
    call is pure: it reads variables as captured tensors and assigns none. Only a root body (one without enclosing
    graph) has variables; `effects` are the assigns that every call runs.
    """

    def __init__(self, name: str, outer: Graph | None = None) -> None:
        super().__init__()
        self.name = name
        self.outer = outer
        self.declared: list[Tensor] = []
        self.captures: dict[Tensor, Tensor] = {}
        self.outputs: list[Tensor] = []
        self.effects: list[Operation] = []
        #: Set if a body that must not assign a variable tried to.
        self.impure = False

    def __repr__(self) -> str:
        return f"<{self.name}: {len(self.ops)} ops>"

    @property
    def inputs(self) -> list[Tensor]:
        """The arguments of a call, in order: the declared inputs, then the captured ones."""
        return [*self.declared, *self.captures.values()]

    def admit(self, tensor: Tensor) -> Tensor:
        within: list[FuncGraph] = []  # the bodies that capture it, innermost first
        graph: Graph = self
        while (found := graph.stand_in(tensor)) is None and isinstance(graph, FuncGraph) and graph.outer is not None:
            within.append(graph)
            graph = graph.outer
        if found is None:
            found = Graph.admit(graph, tensor)
        for body in reversed(within):
            found = body.capture(found)
        return found

    def capture(self, tensor: Tensor) -> Tensor:
        """The tensor of this body that represents a tensor of the enclosing graph."""
        inner = self.captures.get(tensor)
        if inner is None:
            with self.clean():
                inner = self.add("Capture", (tensor,), [tensor.spec], name="captured").outputs[0]
            self.captures[tensor] = inner
            tensor.op.graph.memo("captured by", list).append(self)
        return inner

    def recapture(self, before: Tensor, after: Tensor) -> None:
        """The enclosing graph has another tensor for a value."""
        if before in self.captures:
            self.captures = {after if x is before else x: inner for x, inner in self.captures.items()}
            self.captures[after].op.inputs = (after,)

    def around(self) -> list[Graph]:
        """The graphs that this body may capture tensors from, innermost first."""
        found: list[Graph] = []
        graph = self.outer
        while graph is not None:
            found.append(graph)
            graph = graph.outer if isinstance(graph, FuncGraph) else None
        return found

    def local(self, tensor: Tensor) -> Tensor:
        """What represents a tensor of an enclosing graph, without capturing it; an error for other tensors."""
        graph: Graph = self
        while (found := graph.in_place(tensor)) is None and isinstance(graph, FuncGraph) and graph.outer is not None:
            graph = graph.outer
        return Graph.admit(graph, tensor) if found is None else found


class _Context(threading.local):
    def __init__(self) -> None:
        self.stack: list[Graph] = []
        self.graph: Graph | None = None


_context = _Context()


def current_graph() -> Graph | None:
    """The graph being built by this thread, or None outside any graph, where ops compute immediately."""
    return _context.graph


@contextmanager
def outside() -> Iterator[None]:
    """Leave all graphs for a while: ops compute immediately."""
    before, _context.graph, _context.stack = (_context.graph, _context.stack), None, []
    try:
        yield
    finally:
        _context.graph, _context.stack = before


def _producer(x: Tensor | Operation) -> Operation:
    if isinstance(x, Operation):
        return x
    if isinstance(x, Tensor):
        return x.op
    op = getattr(x, "op", None)
    if isinstance(op, Operation):
        return op
    raise TypeError(f"control dependencies are tensors or operations, got {brief(x)}")


def check_graph(graph: Graph) -> Graph:
    """Check the invariants of a graph; raises ValueError at the first violation.

    >>> import distgrad as dg
    >>> with dg.Graph() as graph:
    ...     x = dg.constant(1.0)
    ...     y = dg.exp(x)
    >>> check_graph(graph)
    <Graph of 2 ops>
    >>> y.op.inputs = (y,)
    >>> check_graph(graph)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ValueError: <Operation 'Exp' ...> reads <Tensor 'Exp:0' ...>, which is not an earlier tensor of the same graph
    """
    if not isinstance(graph, Graph):
        raise TypeError(f"check_graph takes a Graph, got {brief(graph)}")
    names: set[str] = set()
    for i, op in enumerate(graph.ops):
        if op.id != i or op.graph is not graph:
            raise ValueError(f"{op!r} is at index {i} but has id {op.id}: ids are indices into graph.ops")
        if op.name in names:
            raise ValueError(f"two operations are named {op.name!r}")
        names.add(op.name)
        for t in op.inputs if op.type != "Capture" else ():
            if t.op.graph is not graph or t.op.id >= i or not any(t is made for made in t.op.outputs):
                raise ValueError(f"{op!r} reads {t!r}, which is not an earlier tensor of the same graph")
        for c in op.control_inputs:
            if c.graph is not graph or c.id >= i:
                raise ValueError(f"{op!r} waits for {c!r}, which is not an earlier op of the same graph")
        for index, t in enumerate(op.outputs):
            if t.op is not op or t.index != index:
                raise ValueError(f"output {index} of {op!r} does not point back to it")
    return graph
