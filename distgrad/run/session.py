"""Session: runs graphs and functions, in this process (the default) or on a Ray cluster."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np

from distgrad import nest, runtime
from distgrad.graph import Attrs, FuncGraph, Graph, Operation, Tensor
from distgrad.handles import Handle, LocalHandle, value_of
from distgrad.ops.builder import as_array, cast
from distgrad.ops.indexed_slices import IndexedSlices, IndexedSlicesValue
from distgrad.registry import OpDef
from distgrad.result_buffers import RESULT_BUFFERS, ResultBuffer
from distgrad.run.options import SessionOptions, documented, takes
from distgrad.tracing.function import Function
from distgrad.tracing.state import alone, close, frozen, put, take
from distgrad.tracing.variables import Variable
from distgrad.types import DType, Shape, Spec, brief

if TYPE_CHECKING:
    from distgrad.run.planner import Planner
    from distgrad.scheduler.plan import Plan
    from distgrad.scheduler.reports import Faults, Report
    from distgrad.workers.local.engine import Engine
    from distgrad.workers.local.second_phase import SecondPhase
    from distgrad.workers.on_ray.engine import RayEngine

Array = np.ndarray[Any, np.dtype[Any]]


@cache
def _planning() -> Any:
    """The planner, with the scheduler and the engines, imported when something first runs: building graphs does not
    need them, and `import distgrad` must be fast."""
    from distgrad.run import planner

    return planner


class Session:
    """Runs graphs and functions on this machine or, with `Session("ray")`, on a Ray cluster, with the same bits.

    Its arguments are the fields of `SessionOptions`.

    >>> import distgrad as dg
    >>> with dg.Graph():
    ...     x = dg.placeholder((2,), name="x")
    ...     y = dg.exp(x)
    >>> dg.Session().run(y, {x: [0.0, 0.0]})
    array([1., 1.])
    """

    __doc__ = documented(__doc__)

    @takes(SessionOptions)
    def __init__(self, options: SessionOptions):
        self._planner: Planner = _planning().planner(options)

    def __reduce__(self) -> Any:
        raise TypeError(
            "a Session cannot be copied or pickled, because it holds threads and connections of this process: open one "
            "in the other process with the same arguments"
        )

    def __enter__(self) -> Session:
        runtime.push(self)
        return self

    def __exit__(self, *exc: object) -> None:
        runtime.remove(self)
        self.close()

    def close(self) -> None:
        """Release the session's resources. A Ray that it joined keeps running. Variables and handles keep their values,
        which are fetched to this process. Memory kept for the next run is freed. A local session can be used again."""
        from distgrad.workers.arena import ARENAS

        try:
            if self._planner.recording is not None:
                self._planner.recording.close()
        finally:
            if self._planner.link is not None:
                self._planner.link.close()
            ARENAS.clear()
            RESULT_BUFFERS.clear()

    def run(self, fetches: Any, feed_dict: Mapping[Any, Any] | None = None, *, fetch: bool = True) -> Any:
        """The values of `fetches` (a tensor, operation, variable or any nested structure of them) as NumPy arrays.

        An operation yields None, None stays None, and an IndexedSlices yields its values, indices and dense shape. Any
        tensor of the graph may be fed. With `fetch=False` the values stay where they were computed, and handles are
        returned.
        """
        ready, values = self._prepared(fetches, feed_dict)
        if ready is None:
            return nest.map_structure(lambda _: None, fetches)
        results = iter(ready.run(values, fetch))
        return nest.map_structure(lambda leaf: _result(leaf, results), fetches)

    def submit(self, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Run `function(*args, **kwargs)` in this session and return a `Handle` in place of each array. The values stay
        where they were computed; pass the handles to further calls. `function` must be made by `distgrad.function`,
        `grad` or the like.
        """
        if not hasattr(function, "prepared"):
            raise TypeError(
                f"Session.submit: {brief(function)} is not a distgrad function: decorate it with @dg.function"
            )
        traced, arguments = function.prepared(*args, **kwargs)
        return traced.rebuild(self._ready_for(traced.body).run(arguments, fetch=False))

    @property
    def last_run(self) -> Report | None:
        """The report of the last finished run; None for a local session that does not record."""
        if self._planner.link is not None:
            return self._planner.link.last
        return None if self._planner.recording is None else self._planner.recording.last

    @property
    def faults(self) -> Faults | None:
        """The cost of worker and node failures in this session so far; None for a local session."""
        return None if self._planner.link is None else self._planner.link.faults

    @property
    def progress(self) -> str | None:
        """How the session shows progress: "live", "log" or "off"; None if DISTGRAD_PROGRESS decides."""
        return self._planner.settings.progress

    def write_trace(self, path: str | os.PathLike[str]) -> None:
        """Write everything recorded so far: a trace to a .json file, which `distgrad report` and Perfetto open, or a
        report to a .html file. The session must have been opened with `trace`."""
        if self._planner.recording is None:
            raise ValueError("Session.write_trace: this session records nothing: open it with Session(trace=True)")
        from distgrad.report.recording import write

        try:
            write(self._planner.recording.document(), path)
        except ValueError as e:
            raise ValueError(f"Session.write_trace: {e}") from None

    #: An alias: the suffix of the path selects trace or report.
    write_report = write_trace

    def plan(self, fetches: Any, feed_dict: Mapping[Any, Any] | None = None) -> Plan:
        """The plan that `run` would run, with its tasks, predictions and `explain()`. Nothing runs.

        >>> import distgrad as dg
        >>> with dg.Graph():
        ...     x = dg.placeholder((100, 100))
        ...     y = dg.exp(x) @ x
        >>> plan = dg.Session(threads=1).plan(y, {x: np.ones((100, 100))})
        >>> len(plan.tasks), plan.predictions.peak_bytes
        (1, 323584)
        """
        ready, _ = self._prepared(fetches, feed_dict)
        if ready is None:
            raise ValueError(f"Session.plan: there is nothing to run in {brief(fetches)}")
        return ready.engine.plan

    def evaluate(
        self, definition: OpDef, inputs: Sequence[Array], attrs: Attrs, specs: Sequence[tuple[Shape, DType]]
    ) -> list[Array]:
        return self._planner.compute(definition, inputs, attrs, specs)

    def call(self, body: FuncGraph, arguments: Sequence[Array]) -> list[Array]:
        return self._ready_for(body).run(arguments)

    def initial(self, make: Callable[[], Any], dtype: Any) -> Any:
        if self._planner.link is None:
            return make()
        traced = Function(
            lambda: make() if dtype is None else cast(make(), dtype), getattr(make, "__name__", "initial")
        )
        return self.submit(traced)

    def plan_call(self, body: FuncGraph) -> Plan:
        return self._ready_for(body).engine.plan

    def _prepared(
        self, fetches: Any, feed_dict: Mapping[Any, Any] | None
    ) -> tuple[_Ready | None, list[Array | Handle]]:
        leaves = nest.flatten(fetches)
        graph = _graph_of(leaves, fetches)
        if graph is None:
            return None, []
        tensors, operations = _targets(leaves, graph)
        feeds = [(_fed(key, graph), value) for key, value in _items(feed_dict)]
        fed = [t for t, _ in feeds]
        key = (_places(tensors), _places(fed), tuple([op.id for op in operations]))
        ready = self._ready(graph, key, tensors, fed, operations)
        return ready, [_feed_value(t, value) for t, value in feeds]

    def _ready_for(self, body: FuncGraph) -> _Ready:
        return self._known(body).get("call") or self._ready(body, "call", body.outputs, body.declared, body.effects)

    def _ready(
        self, graph: Graph, key: Any, tensors: Sequence[Tensor], feeds: Sequence[Tensor], effects: Sequence[Operation]
    ) -> _Ready:
        known = self._known(graph)
        if key not in known:
            engine = self._planner.engine(tensors, feeds, effects)
            known[key] = _Ready(engine, {v.key: v for v in graph.handles})
        return known[key]

    def _known(self, graph: Graph) -> dict[Any, _Ready]:
        """What this session has made ready of a graph."""
        # weak keys: the engines of a session, with its recording or connection, are freed with the session
        planners = graph.memo("ready", WeakKeyDictionary)
        known: dict[Any, _Ready] | None = planners.get(self._planner)
        return planners.setdefault(self._planner, {}) if known is None else known


_NO_STATE: Mapping[str, Any] = {}


class _Ready:
    """An engine that is ready to run, with the variables that its plan reads and writes."""

    def __init__(self, engine: Engine | RayEngine, variables: Mapping[str, Variable]):
        program = engine.plan.program
        self.engine = engine
        self._keys = [key for key, _ in program.reads]
        self._reads = [variables[key] for key in self._keys]
        self._writes = [variables[key] for key, _ in program.writes]
        self._claimed = list(dict.fromkeys((*self._reads, *self._writes)))
        self._second: SecondPhase | None = getattr(engine, "second", None)
        pairs = {} if self._second is None else self._second.pairs
        self._written = {key: variables[key] for key, _ in program.writes}
        self._old = [key for key, (before, _) in pairs.items() if before is not None]

    def run(self, feeds: Sequence[Array | Handle], fetch: bool = True) -> list[Any]:
        """Run, then make all writes visible atomically: a failed call leaves every variable unchanged."""
        if self._writes:
            run = self._run if self._second is None else self._run_in_two_phases
            return alone(self._claimed, partial(run, feeds, fetch))
        return self._run(feeds, fetch)

    def _run(self, feeds: Sequence[Array | Handle], fetch: bool) -> list[Any]:
        state = dict(zip(self._keys, take(self._reads), strict=True)) if self._keys else _NO_STATE
        values, writes = self.engine.run(feeds, state, fetch)
        taken = {id(x) if type(x) is np.ndarray and x.base is None else id(_memory(x)) for x in feeds}
        results = [_owned(x, taken) for x in values]
        if writes:
            put(self._writes, [x if isinstance(x, Handle) else frozen(x, taken) for x in writes.values()])
        return results if fetch else [x if isinstance(x, Handle) else LocalHandle(x) for x in results]

    def _run_in_two_phases(self, feeds: Sequence[Array | Handle], fetch: bool) -> list[Any]:
        """The same, with updates in place. Nothing but `old` may refer to the variables' arrays when that is asked, so
        they have no other name here."""
        engine: Any = self.engine  # the local one
        first = engine.first_phase(feeds, dict(zip(self._keys, take(self._reads), strict=True)))
        taken = {id(_memory(x)) for x in feeds}
        results = [_owned(x, taken) for x in first.values]
        new = {key: frozen(x, taken) for key, x in first.writes.items()}
        first.values.clear()
        first.writes.clear()
        old = dict(zip(self._old, take([self._written[key] for key in self._old]), strict=True))
        held = {key for key, x in old.items() if isinstance(x, Handle)}
        old |= {key: value_of(old[key]) for key in held}
        close(self._writes)
        ready = engine.second.ready(first.needed, old, held)
        new |= {key: frozen(x) for key, x in ready.fresh.items()}
        put([self._written[key] for key in new], list(new.values()), ready.calls)
        first.end()
        return results if fetch else [LocalHandle(x) for x in results]


def _owned(value: Any, taken: set[int]) -> Any:
    """A result that the caller owns: not a view of a feed, a constant, a variable or another result. Or a handle."""
    if isinstance(value, Handle):
        return value
    memory = value if value.base is None else _memory(value)
    if id(memory) in taken or not value.flags.writeable or (memory is not value and _wasteful(value, memory)):
        return value.copy()
    taken.add(id(memory))
    return value


def _wasteful(value: Array, memory: Any) -> bool:
    """Whether a small result would keep a large array alive."""
    return isinstance(memory, np.ndarray | ResultBuffer) and memory.nbytes > max(4 * value.nbytes, 1 << 20)


def _memory(x: Array | Handle) -> Any:
    """The object that owns the memory of an array."""
    holder: Any = x.value() if isinstance(x, LocalHandle) else x
    while isinstance(holder, np.ndarray) and holder.base is not None:
        holder = holder.base
    return holder


def _places(tensors: Sequence[Tensor]) -> tuple[tuple[int, int], ...]:
    """Tensors by their position in the graph: a key that does not keep the graph alive."""
    return tuple([(t.op.id, t.index) for t in tensors])


def _graph_of(leaves: Sequence[Any], fetches: Any) -> Graph | None:
    for leaf in leaves:
        _check_fetch(leaf)
    graphs = {leaf.graph for leaf in leaves if isinstance(leaf, Tensor | Operation | IndexedSlices)}
    if len(graphs) > 1:
        raise ValueError("Session.run: the fetches are from different graphs; run them one graph at a time")
    if graphs:
        return graphs.pop()
    if any(isinstance(leaf, Variable) for leaf in leaves):
        return Graph()
    return None


def _check_fetch(leaf: Any) -> None:
    what = leaf.values if isinstance(leaf, IndexedSlices) else leaf
    if what is not None and not isinstance(what, Tensor | Operation | Variable):
        raise TypeError(
            f"Session.run: cannot fetch {brief(leaf)}; fetch tensors, operations, variables or structures of them"
        )


def _targets(leaves: Sequence[Any], graph: Graph) -> tuple[list[Tensor], list[Operation]]:
    tensors: list[Tensor] = []
    operations: list[Operation] = []
    for leaf in leaves:
        _check_fetch(leaf)
        if isinstance(leaf, Operation):
            operations.append(leaf)
        elif isinstance(leaf, IndexedSlices):
            tensors += [leaf.values, leaf.indices]
        elif isinstance(leaf, Variable):
            with graph:
                tensors.append(leaf.__tensor__())
        elif leaf is not None:
            tensors.append(_readable(leaf, graph))
    return tensors, operations


def _readable(t: Tensor, graph: Graph) -> Tensor:
    """Fetching a handle fetches the variable's value."""
    if t.op.type != "VarHandle":
        return t
    variable = next(v for v, handle in graph.handles.items() if handle is t)
    with graph:
        read: Tensor = variable.__tensor__()
    return read


def _result(leaf: Any, values: Any) -> Any:
    if leaf is None or isinstance(leaf, Operation):
        return None
    if isinstance(leaf, IndexedSlices):
        return IndexedSlicesValue(next(values), next(values), leaf.dense_shape)
    return next(values)


def _items(feed_dict: Any) -> list[tuple[Any, Any]]:
    if feed_dict is None:
        return []
    if not isinstance(feed_dict, Mapping):
        raise TypeError(f"Session.run: feed_dict is a dict of tensor to value, got {brief(feed_dict)}")
    return list(feed_dict.items())


def _fed(key: Any, graph: Graph) -> Tensor:
    if not isinstance(key, Tensor):
        raise TypeError(f"Session.run: the keys of feed_dict are tensors, got {brief(key)}")
    if key.op.type == "VarHandle":
        raise ValueError(f"Session.run: {key!r} is a variable and cannot be fed: assign it, or feed a read of it")
    if key.graph is not graph:
        raise ValueError(f"Session.run: {key!r} is fed but belongs to a different graph from the fetches")
    return key


def _feed_value(t: Tensor, value: Any) -> Array | Handle:
    if isinstance(value, Handle) and value.spec == t.spec:
        return value
    array: Array = as_array(value)
    if array.dtype != t.dtype:
        array = _cast_feed(t, array, weak=not isinstance(value, np.ndarray | np.generic))
    if array.shape != t.shape:
        raise ValueError(f"Session.run: {t.name!r} is {t.spec} and cannot be fed {Spec(array.shape, array.dtype)}")
    return array


def _cast_feed(t: Tensor, array: Array, weak: bool) -> Array:
    """The fed value in the dtype of its tensor: Python integers if they fit, arrays if they are of the same kind."""
    integers = array.dtype.kind in "iu" and t.dtype.kind in "iu"
    if not (np.can_cast(array.dtype, t.dtype, "same_kind") or (weak and integers)):
        raise TypeError(f"Session.run: {t.name!r} is {t.spec} and cannot be fed a value of dtype {array.dtype}")
    with np.errstate(over="ignore"):  # 1e300 is inf in float32, as in any op
        made = array.astype(t.dtype)
    if integers and not np.array_equal(made, array):
        raise OverflowError(f"Session.run: {t.name!r} is {t.spec} and cannot hold the value fed: {array}")
    return made


runtime.set_default(cache(Session))  # created on first use
