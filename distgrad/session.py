"""Session: where graphs and functions run. The default one is local, in this process."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np

from distgrad import nest, runtime
from distgrad.graph import Attrs, FuncGraph, Graph, Operation, Tensor
from distgrad.indexed_slices import IndexedSlices, IndexedSlicesValue
from distgrad.ops.builder import as_array
from distgrad.registry import OpDef
from distgrad.scheduler import Program, lower, merge_equal
from distgrad.types import DType, Shape, Spec
from distgrad.variables import Variable
from distgrad.workers import reference

Array = np.ndarray[Any, np.dtype[Any]]
#: Held while variables are read together or written together, in all sessions of the process.
_STATE = threading.RLock()
_Key = tuple[tuple[tuple[int, int], ...], tuple[tuple[int, int], ...], tuple[int, ...]]


class Session:
    """Runs graphs on this machine.

    >>> import distgrad as dg
    >>> with dg.Graph():
    ...     x = dg.placeholder((2,), name="x")
    ...     y = dg.exp(x)
    >>> dg.Session().run(y, {x: [0.0, 0.0]})
    array([1., 1.])
    """

    def __enter__(self) -> Session:
        runtime.push(self)
        return self

    def __exit__(self, *exc: object) -> None:
        runtime.remove(self)

    def run(self, fetches: Any, feed_dict: Mapping[Any, Any] | None = None) -> Any:
        """The values of `fetches` (a tensor, operation, variable or any nesting of them) as NumPy arrays.

        An operation gives None, None stays None, an IndexedSlices gives its values, indices and dense shape. Any tensor
        of the graph may be fed.
        """
        leaves = nest.flatten(fetches)
        graph = _graph_of(leaves, fetches)
        if graph is None:
            return nest.map_structure(lambda _: None, fetches)
        tensors, operations = _targets(leaves, graph)
        feeds = [(_fed(key, graph), value) for key, value in _items(feed_dict)]
        program = self._lowered(graph, tensors, [t for t, _ in feeds], operations)
        values = iter(self._execute(program, [_feed_value(t, value) for t, value in feeds], graph))
        return nest.map_structure(lambda leaf: _result(leaf, values), fetches)

    def evaluate(
        self, definition: OpDef, inputs: Sequence[Array], attrs: Attrs, specs: Sequence[tuple[Shape, DType]]
    ) -> list[Array]:
        return reference.apply(definition, inputs, attrs, specs)

    def call(self, body: FuncGraph, arguments: Sequence[Array]) -> list[Array]:
        program = self._lowered(body, body.outputs, body.declared, body.effects)
        return self._execute(program, [as_array(x) for x in arguments], body)

    def _lowered(
        self, graph: Graph, tensors: Sequence[Tensor], feeds: Sequence[Tensor], operations: Sequence[Operation]
    ) -> Program:
        key = (_places(tensors), _places(feeds), tuple([op.id for op in operations]))
        programs: dict[_Key, Program] = graph.memo("programs")
        if key not in programs:
            programs[key] = merge_equal(lower(tensors, feeds, operations))
        return programs[key]

    def _execute(self, program: Program, feeds: Sequence[Array], graph: Graph) -> list[Array]:
        """Run, then make the writes visible all at once: a failed call leaves every variable as it was."""
        variables = {v.key: v for v in graph.handles}
        with _STATE if program.writes else nullcontext():  # what assigns has the state to itself till it commits
            with _STATE:
                state = {key: variables[key]._value for key, _ in program.reads}
            values, writes = reference.run(program, feeds, state)
            with _STATE:
                for key, value in writes.items():
                    variables[key]._set(value)
        return _owned(values, feeds)


def _owned(values: Sequence[Array], feeds: Sequence[Array]) -> list[Array]:
    """Results that are the caller's alone: no view of what was fed, of a constant or a variable, or of each other."""
    owned: list[Array] = []
    for value in values:
        shared = not value.flags.writeable or any(np.may_share_memory(value, other) for other in (*feeds, *owned))
        owned.append(value.copy() if shared else value)
    return owned


def _places(tensors: Sequence[Tensor]) -> tuple[tuple[int, int], ...]:
    """Tensors by where they stand in their graph: a key that does not keep the graph alive."""
    return tuple([(t.op.id, t.index) for t in tensors])


def _graph_of(leaves: Sequence[Any], fetches: Any) -> Graph | None:
    graphs = {leaf.graph for leaf in leaves if isinstance(leaf, Tensor | Operation | IndexedSlices)}
    if len(graphs) > 1:
        raise ValueError("Session.run: the fetches are from different graphs; run them one graph at a time")
    if graphs:
        return graphs.pop()
    if any(isinstance(leaf, Variable) for leaf in leaves):
        return Graph()
    for leaf in leaves:
        _check_fetch(leaf)
    return None


def _check_fetch(leaf: Any) -> None:
    if leaf is not None and not isinstance(leaf, Tensor | Operation | IndexedSlices | Variable):
        raise TypeError(f"Session.run: cannot fetch {leaf!r}; fetch tensors, operations, variables or nestings of them")


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
    """A fetched handle means the variable's value."""
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
        raise TypeError(f"Session.run: feed_dict is a dict of tensor to value, got {feed_dict!r}")
    return list(feed_dict.items())


def _fed(key: Any, graph: Graph) -> Tensor:
    if not isinstance(key, Tensor):
        raise TypeError(f"Session.run: the keys of feed_dict are tensors, got {key!r}")
    if key.op.type == "VarHandle":
        raise ValueError(f"Session.run: {key!r} is a variable and cannot be fed: assign it, or feed a read of it")
    if key.graph is not graph:
        raise ValueError(f"Session.run: {key!r} is fed but belongs to another graph than the fetches")
    return key


def _feed_value(t: Tensor, value: Any) -> Array:
    array: Array = as_array(value)
    if array.dtype != t.dtype:
        array = _cast_feed(t, array, weak=not isinstance(value, np.ndarray | np.generic))
    if array.shape != t.shape:
        raise ValueError(f"Session.run: {t.name!r} is {t.spec} and cannot be fed {Spec(array.shape, array.dtype)}")
    return array


def _cast_feed(t: Tensor, array: Array, weak: bool) -> Array:
    """The fed value in the dtype of its tensor: Python's integers as they fit, arrays of the same kind."""
    integers = array.dtype.kind in "iu" and t.dtype.kind in "iu"
    if not (np.can_cast(array.dtype, t.dtype, "same_kind") or (weak and integers)):
        raise TypeError(f"Session.run: {t.name!r} is {t.spec} and cannot be fed a value of dtype {array.dtype}")
    with np.errstate(over="ignore"):  # 1e300 is inf in float32, as in any op
        made = array.astype(t.dtype)
    if integers and not np.array_equal(made, array):
        raise OverflowError(f"Session.run: {t.name!r} is {t.spec} and cannot hold what it is fed: {array}")
    return made


runtime.push(Session())  # the default: local, always there
