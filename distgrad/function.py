"""@distgrad.function: trace a Python function into a graph once per signature, then run the graph.

Inside another graph a call becomes one Call op with the traced body as its attribute; a body that assigns variables is
traced in place instead, because the body of a Call is a pure value.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from distgrad import nest, runtime
from distgrad.graph import FuncGraph, Graph, Tensor, current_graph
from distgrad.indexed_slices import IndexedSlices, IndexedSlicesValue
from distgrad.ops.builder import convert, make_n
from distgrad.registry import define
from distgrad.types import Spec, spec_of
from distgrad.variables import NotPure, Variable

#: Traces of one function after which it warns that it keeps retracing.
MANY_TRACES = 5

CALL = define("Call", lambda *xs, body, **_: [spec_of(t) for t in body.outputs])


class _Static(NamedTuple):
    """A leaf that is part of the signature by value: Python numbers, strings, None, anything hashable."""

    value: Any


class Traced(NamedTuple):
    """One signature of a function: its body and the structure of what it returns."""

    body: FuncGraph
    structure: Any


class Function:
    """What @distgrad.function makes of a Python function."""

    def __init__(self, python_function: Callable[..., Any], name: str | None = None):
        functools.update_wrapper(self, python_function)
        self.python_function = python_function
        self.name = name or getattr(python_function, "__name__", "function")
        self._traces: dict[Any, Traced] = {}
        self._signatures: list[list[tuple[str, Any]]] = []
        self._warned = False
        self._assigns = False

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        graph = current_graph()
        if graph is not None:
            return self._call_in(graph, args, kwargs)
        leaves, key = self._signature(args, kwargs)
        traced = self._traces.get(key)
        if traced is None:
            traced = self._traces[key] = self.trace(args, kwargs, None)
            self._watch(args, kwargs)
        arrays = [_value(leaf) for leaf in leaves if not isinstance(leaf, _Static)]
        values = iter(runtime.current().call(traced.body, arrays))
        return nest.map_structure(lambda leaf: _rebuilt(leaf, values), traced.structure)

    def body(self, *args: Any, **kwargs: Any) -> FuncGraph:
        """The graph that a call with such arguments runs; prints one op per line."""
        return self.trace(args, kwargs, None).body

    # -- tracing -------------------------------------------------------------------------------------------------

    def trace(self, args: Any, kwargs: Any, outer: Graph | None) -> Traced:
        body = FuncGraph(self.name, outer)
        names = [name for name, _ in _arguments(args, kwargs)]
        with body:
            fresh = iter(names)
            args, kwargs = nest.map_structure(lambda leaf: _parameter(body, leaf, next(fresh)), (args, kwargs))
            result = self.python_function(*args, **kwargs)
            structure = nest.map_structure(_result_leaf, result)
        for leaf in nest.flatten(structure):
            if isinstance(leaf, IndexedSlices):
                body.outputs += [leaf.values, leaf.indices]
            elif leaf is not None:
                body.outputs.append(leaf)
        return Traced(body, structure)

    def _call_in(self, graph: Graph, args: Any, kwargs: Any) -> Any:
        if self._assigns:
            return self.python_function(*args, **kwargs)
        try:
            traced = self.trace(args, kwargs, graph)
        except NotPure:
            self._assigns = True
            return self.python_function(*args, **kwargs)
        tensors = [convert(x) for x in nest.flatten((args, kwargs)) if not isinstance(_leaf(x), _Static)]
        values = iter(call(traced.body, tensors, CALL, name=self.name))
        return nest.map_structure(lambda leaf: _rebuilt(leaf, values), traced.structure)

    def _signature(self, args: Any, kwargs: Any) -> tuple[list[Any], Any]:
        leaves = [_leaf(x) for x in nest.flatten((args, kwargs))]
        shape = repr(nest.map_structure(lambda _: 0, (args, kwargs)))
        parts = [leaf if isinstance(leaf, _Static) else spec_of(leaf) for leaf in leaves]
        key = (shape, *[(type(p.value), p) if isinstance(p, _Static) else p for p in parts])
        try:
            hash(key)
        except TypeError:
            bad = next(p.value for p in parts if isinstance(p, _Static) and not _hashable(p.value))
            raise TypeError(
                f"{self.name}: the argument {bad!r} is neither an array nor hashable, so calls with it cannot be told apart. "
                f"Pass arrays, numbers, strings or nestings of them."
            ) from None
        return leaves, key

    def _watch(self, args: Any, kwargs: Any) -> None:
        """Warn once when calls keep making new traces, and say which argument is to blame."""
        self._signatures.append([(name, _describe(leaf)) for name, leaf in _arguments(args, kwargs)])
        if len(self._signatures) < MANY_TRACES or self._warned:
            return
        self._warned = True
        changed = {
            name: list(dict.fromkeys(s[i][1] for s in self._signatures if i < len(s)))[:3]
            for i, (name, _) in enumerate(self._signatures[-1])
            if len({s[i][1] for s in self._signatures if i < len(s)}) > 1
        }
        what = "; ".join(f"argument {name} was {', then '.join(values)}" for name, values in changed.items())
        warnings.warn(
            f"{self.name} was traced {len(self._signatures)} times: {what or 'its argument structure changed'}. "
            f"Each new shape, dtype or Python value is a new trace: pass numbers that vary as NumPy arrays, and pad shapes.",
            stacklevel=3,
        )


def function(python_function: Callable[..., Any] | None = None, *, name: str | None = None) -> Any:
    """Make a Python function of arrays a graph: traced once per signature, then run by the current session.

    Arrays (and NumPy scalars) become tensors; Python numbers, strings and None are part of the signature. Arguments and
    results may be nested.

    >>> import distgrad as dg
    >>> @dg.function
    ... def slope(x):
    ...     return dg.gradients(x * x, x)[0]
    >>> slope(np.float64(3.0))
    array(6.)
    """
    if python_function is None:
        return lambda f: Function(f, name)
    if not callable(python_function):
        raise TypeError(f"function decorates a callable, got {python_function!r}")
    return Function(python_function, name)


def call(body: FuncGraph, arguments: Sequence[Tensor], definition: Any = CALL, name: str | None = None, **attrs: Any) -> list[Tensor]:
    """One op that stands for a body, with what the body captured appended to the arguments."""
    return make_n(definition, (*arguments, *body.captures), {"body": body, **attrs}, name)


def _leaf(x: Any) -> Any:
    """An array-like argument as it is, everything else as static."""
    if isinstance(x, Tensor | np.ndarray | np.generic):
        return x
    if isinstance(x, Variable):
        return _Static(x)
    return np.asarray(x) if hasattr(x, "__array__") and not isinstance(x, type) else _Static(x)


def _value(leaf: Any) -> Any:
    return np.asarray(leaf)


def _parameter(body: FuncGraph, x: Any, name: str) -> Any:
    leaf = _leaf(x)
    if isinstance(leaf, _Static):
        return leaf.value
    valid = "".join(c if c.isalnum() or c == "_" else "_" for c in name).strip("_") or "arg"
    made = body.add("Placeholder", (), [spec_of(leaf)], name=valid).outputs[0]
    body.declared.append(made)
    return made


def _arguments(args: Any, kwargs: Any) -> list[tuple[str, Any]]:
    named = [(f"args[{i}]", arg) for i, arg in enumerate(args)] + [(key, kwargs[key]) for key in nest.sorted_keys(kwargs)]
    return [leaf for name, tree in named for leaf in nest.paths(tree, name)]


def _describe(x: Any) -> str:
    leaf = _leaf(x)
    return repr(leaf.value) if isinstance(leaf, _Static) else str(Spec(tuple(leaf.shape), leaf.dtype))


def _result_leaf(x: Any) -> Any:
    if x is None or isinstance(x, IndexedSlices):
        return x
    try:
        return convert(x)
    except TypeError as e:
        raise TypeError(f"a function must return tensors, None, or nestings of them: {e}") from None


def _rebuilt(leaf: Any, values: Any) -> Any:
    if leaf is None:
        return None
    if isinstance(leaf, IndexedSlices):
        first, second = next(values), next(values)
        made = IndexedSlices if isinstance(first, Tensor) else IndexedSlicesValue
        return made(first, second, leaf.dense_shape)
    return next(values)


def _hashable(x: Any) -> bool:
    try:
        hash(x)
    except TypeError:
        return False
    return True
