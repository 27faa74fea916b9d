"""@distgrad.function: trace a Python function into a graph once per signature, then run the graph.

Inside another graph a call becomes one Call op with the traced body as an attribute. A body that assigns variables is
traced in place instead, because the body of a Call must be pure. `autodiff/call_gradient.py` differentiates Calls.
"""

from __future__ import annotations

import functools
import inspect
import re
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from distgrad import nest, progress, runtime
from distgrad.errors import unwrap_tensor_errors
from distgrad.graph import FuncGraph, Graph, Operation, Tensor, current_graph
from distgrad.handles import Handle
from distgrad.nesting import nested
from distgrad.ops.assignment.statements import set_item
from distgrad.ops.builder import convert, make_n, plain
from distgrad.ops.indexed_slices import IndexedSlices, IndexedSlicesValue
from distgrad.registry import Kind, OpDef, define
from distgrad.tracing.long_lines import log_long_lines
from distgrad.tracing.signature import hashable, is_array, look, native_key
from distgrad.tracing.variables import NotPure
from distgrad.tracing.writes import NOTHING, Written, appended, check_call, check_mode, copy_back, warn, written
from distgrad.types import Spec, Typed, brief, native, spec_of

#: Number of traces of one function that triggers the retracing warning.
MANY_TRACES = 5


def _call_infer(*inputs: Typed, body: FuncGraph, **_: Any) -> list[Spec]:
    return [t.spec for t in body.outputs]


CALL = define("Call", _call_infer, at_run=True, kind=Kind.CALL)


class Traced:
    """The trace of a function for one signature: its body and the structure of its result."""

    __slots__ = ("_leaves", "_template", "body", "structure", "written")

    def __init__(self, body: FuncGraph, structure: Any, written: Written = NOTHING):
        self.body, self.structure, self.written = body, structure, written
        self._template = nest.Template(structure)
        #: What the results become, if that is not just themselves.
        self._leaves = nest.flatten(structure)
        if all(isinstance(leaf, Tensor) for leaf in self._leaves):
            self._leaves = []

    def rebuild(self, values: list[Any]) -> Any:
        """The result of a call, from the values (or tensors) of the body's outputs."""
        if self._leaves:
            rest = iter(values)
            values = [_rebuilt(leaf, rest) for leaf in self._leaves]
        return self._template(values)


class Function:
    """A function decorated with @distgrad.function. If `defaults` is false, defaults are not added to the signature."""

    def __init__(
        self, python_function: Callable[..., Any], name: str | None = None, defaults: bool = True, writes: str = "copy"
    ):
        functools.update_wrapper(self, python_function)
        self.python_function = python_function
        self.name = str(name or getattr(python_function, "__name__", "function"))
        self._signature = signature_of(python_function)
        self._defaults = _defaults(self._signature) if defaults else {}
        self._required, self._positional = _positional(self._signature, self._defaults)
        self._writes = writes
        self._warned = False
        self._traces: dict[Any, Traced] = {}
        self._history: list[dict[str, str]] = []
        self._assigns = False
        self._bound: dict[int, tuple[weakref.ref[Any], Function]] = {}

    def __repr__(self) -> str:
        return f"<distgrad.function {self.name!r}>"

    def __reduce__(self) -> Any:
        raise TypeError(
            f"{self!r} cannot be copied or pickled, because its traces belong to this process: send the Python "
            f"function (.python_function), and decorate it on the other side"
        )

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else _Method(self._for(instance), instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        args, kwargs = self._canonical(args, kwargs)
        graph = current_graph()
        if graph is not None:
            return self._call_in(graph, args, kwargs)
        traced, values = self._ready(args, kwargs)
        if traced.written.places:
            return self._writing(traced, args, kwargs, values)
        return traced.rebuild(runtime.current().call(traced.body, values))

    def _writing(self, traced: Traced, args: Any, kwargs: Any, values: list[Any]) -> Any:
        """A call of a function that assigns to its arguments."""
        back = self._writes == "back"
        arrays = look(args, kwargs)[1]
        check_call(self.name, traced.written, arrays, back)
        made = runtime.current().call(traced.body, values)
        if back:
            count = len(traced.written.places)
            made, changed = made[: len(made) - count], made[len(made) - count :]
            result = traced.rebuild(made)
            copy_back(traced.written, arrays, changed)
            return result
        return traced.rebuild(made)

    def prepared(self, *args: Any, **kwargs: Any) -> tuple[Traced, list[Any]]:
        """The trace that a call with these arguments runs, and the arrays and handles that it runs on."""
        return self._ready(*self._canonical(args, kwargs))

    def _ready(self, args: Any, kwargs: Any) -> tuple[Traced, list[Any]]:
        key, arrays, plain = look(args, kwargs)
        try:
            traced = self._traces.get(key)
        except TypeError:
            self._check_hashable(args, kwargs)
            raise
        if traced is not None and plain:
            return traced, arrays  # of native byte order, as in all keys of traces
        values = [self._value(x, args, kwargs) for x in arrays]
        return self._trace_of(native_key(key), args, kwargs), values

    def body(self, *args: Any, **kwargs: Any) -> FuncGraph:
        """The graph that a call with these arguments runs. It prints one op per line."""
        args, kwargs = self._canonical(args, kwargs)
        key, _, _ = look(args, kwargs)
        self._check_hashable(args, kwargs)
        return self._trace_of(native_key(key), args, kwargs).body

    def plan(self, *args: Any, **kwargs: Any) -> Any:
        """The plan of a call with these arguments in the current session, with predicted costs. Nothing runs; see
        `explain()` of the plan.

        >>> import distgrad as dg
        >>> square = dg.function(lambda x: x * x)
        >>> len(square.plan(np.ones(3)).tasks)
        1
        """
        return runtime.current().plan_call(self.body(*args, **kwargs))

    # -- outside any graph ---------------------------------------------------------------------------------------

    def _trace_of(self, key: Any, args: Any, kwargs: Any) -> Traced:
        """The trace of this signature. Takes no lock: the traced code may wait for another thread that traces. The
        first trace to finish wins."""
        known = self._traces.get(key)
        if known is not None:
            return known
        made = self.trace(args, kwargs, None)
        traced = self._traces.setdefault(key, made)
        if traced is made:
            self._watch(args, kwargs)
        return traced

    def _value(self, x: Any, args: Any, kwargs: Any) -> Any:
        """An argument as engines take it: a native NumPy array, or a handle."""
        if type(x) is not np.ndarray and isinstance(plain(x), Tensor):
            name = next(name for name, leaf in self._named(args, kwargs) if leaf is x)
            raise TypeError(
                f"{self.name}: the argument {name} is {brief(x)}, but no graph is being built, so it has no value. "
                f"Call the function inside `with graph:` or in another @distgrad.function, or pass an array."
            )
        if isinstance(x, Handle):
            return x
        array = np.asarray(x)
        return array.astype(native(array.dtype), copy=False)

    def _check_hashable(self, args: Any, kwargs: Any) -> None:
        for name, x in self._named(args, kwargs):
            if not is_array(x) and not hashable(x):
                raise TypeError(
                    f"{self.name}: the argument {name} is {brief(x)}, which is neither an array nor hashable, so calls "
                    f"with it cannot be told apart. Pass arrays, numbers, strings or nested structures of them."
                ) from None

    def _watch(self, args: Any, kwargs: Any) -> None:
        """Warn once if calls keep causing new traces, and name the argument responsible."""
        history = self._history
        if len(history) >= MANY_TRACES:
            return
        history.append({name: _describe(x) for name, x in self._named(args, kwargs)})
        if len(history) < MANY_TRACES:
            return
        seen = {name: list(dict.fromkeys(call.get(name, "absent") for call in history)) for name in history[-1]}
        changed = [f"argument {name} was {', then '.join(was[:3])}" for name, was in seen.items() if len(was) > 1]
        warnings.warn(
            f"{self.name} was traced {len(history)} times: {'; '.join(changed) or 'its argument structure changed'}. "
            f"Each new shape, dtype or Python value causes a new trace: pass varying numbers as NumPy arrays, and pad "
            f"arrays to a common shape.",
            stacklevel=5,
        )

    # -- tracing -------------------------------------------------------------------------------------------------

    @nested
    def trace(self, args: Any, kwargs: Any, outer: Graph | None) -> Traced:
        body = FuncGraph(self.name, outer)
        every = self._named(args, kwargs)
        names, arguments = iter([name for name, _ in every]), [name for name, x in every if is_array(x)]
        mode = runtime.progress()
        work = progress.begin("tracing", self.name, detail=lambda: f"{len(body.ops):,} ops", session_mode=mode)
        try:
            with body, unwrap_tensor_errors():
                args, kwargs = nest.map_structure(lambda x: _parameter(body, x, next(names)), (args, kwargs))
                result = self.python_function(*args, **kwargs)
                known, memories = written(body, arguments)
                changed = [memory.value for memory in memories]
                if self._writes == "return" and changed:
                    result = appended(result, changed)
                structure = _results(self.name, result)
        finally:
            progress.end(work)
        if body.impure:  # a bare `except:` in user code may have swallowed NotPure
            raise NotPure(f"{self.name} assigns a variable in the body of a call")
        log_long_lines(self.name, body.ops)
        if known.places and self._writes == "copy" and not self._warned:
            self._warned = True
            warn(self.name, known.names, known.lines, 7)
        made = finish(body, structure)
        made.written = known
        if self._writes == "back":
            body.outputs += changed
        return made

    def _call_in(self, graph: Graph, args: Any, kwargs: Any) -> Any:
        if not self._assigns:
            try:
                traced = self._traced_in(graph, args, kwargs)
            except NotPure:
                self._assigns = True
        if self._assigns:
            args, kwargs = nest.map_structure(lambda x: convert(x) if is_array(x) else x, (args, kwargs))
            return _results(self.name, self.python_function(*args, **kwargs))
        given = look(args, kwargs)[1]
        made = call(traced.body, [convert(x) for x in given], name=op_name(self.name))
        if self._writes != "back" or not traced.written.places:
            return traced.rebuild(made)
        count = len(made) - len(traced.written.places)
        for place, value in zip(traced.written.places, made[count:], strict=True):
            set_item(given[place], Ellipsis, value)
        return traced.rebuild(made[:count])

    def _traced_in(self, graph: Graph, args: Any, kwargs: Any) -> Traced:
        """A body with captures is traced for each call, because the captured values may have changed: a variable is
        assigned, a loop rebinds a name. A body without captures is cached."""
        key = (self, native_key(look(args, kwargs)[0]))
        if not hashable(key):
            return self.trace(args, kwargs, graph)
        known = graph.memo("calls")
        traced: Traced | None = known.get(key)
        if traced is None:
            traced = self.trace(args, kwargs, graph)
            if not traced.body.captures:
                known[key] = traced
        return traced

    # -- arguments -----------------------------------------------------------------------------------------------

    def _canonical(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Normalise a call: f(x), f(x, 1) and f(x, n=1) are one signature if the default of n is 1."""
        if not (kwargs or self._defaults):
            return args, kwargs
        if not kwargs and self._required <= len(args) <= len(self._positional):
            return args + self._positional[len(args) :], kwargs
        return bind(self.name, self._signature, args, kwargs, self._defaults)

    def _named(self, args: Any, kwargs: Any) -> list[tuple[str, Any]]:
        return named_leaves(self._signature, args, kwargs)

    def _forget(self, key: int, _: Any) -> None:
        self._bound.pop(key, None)

    def _for(self, instance: Any) -> Function:
        """This function as a method of one instance, with separate traces. Cached by id, since instances need not be
        hashable, and with a weak reference, so that they can be collected."""
        known = self._bound.get(id(instance))
        if known is not None and known[0]() is instance:
            return known[1]
        try:
            reference = weakref.ref(instance, functools.partial(self._forget, id(instance)))
        except TypeError:  # slots without __weakref__: traced for every method object
            return Function(functools.partial(self.python_function, instance), self.name, writes=self._writes)
        python_function = self.python_function

        @functools.wraps(python_function)
        def method(*args: Any, **kwargs: Any) -> Any:
            return python_function(reference(), *args, **kwargs)

        method.__signature__ = signature_of(functools.partial(python_function, None))  # type: ignore[attr-defined]
        made = Function(method, self.name, writes=self._writes)
        self._bound[id(instance)] = reference, made
        return made


class _Method:
    """A function bound to an instance, which it keeps alive, as a bound method does."""

    def __init__(self, bound: Function, instance: Any):
        self.__wrapped__ = bound
        self.__self__ = instance

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.__wrapped__(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if "__wrapped__" not in self.__dict__:  # while it is being copied
            raise AttributeError(name)
        return getattr(self.__wrapped__, name)


def function(
    python_function: Callable[..., Any] | None = None, *, name: str | None = None, writes: str = "copy"
) -> Any:
    """Compile a Python function of arrays into a graph: it is traced once per signature and run by the current session.

    Python code runs once per signature. Pass anything that changes between calls as an argument. For random numbers,
    pass a key and use `distgrad.random`; numbers drawn from NumPy's generators would be recorded as constants. Arrays
    and NumPy scalars become tensors; Python numbers, strings, None, variables and all other hashable objects are part
    of the signature. Arguments and results may be nested. A method is traced once per instance.

    The function may assign to arrays, as in NumPy. `writes` says what happens if it assigns to an argument: 'copy'
    leaves the caller's array as it was, and warns once; 'return' appends the new values of such arguments to the
    result; 'back' copies them into the caller's arrays after the call has succeeded, all or none.

    >>> import distgrad as dg
    >>> @dg.function
    ... def slope(x):
    ...     return dg.gradients(x * x, x)[0]
    >>> slope(np.float64(3.0))
    array(6.)
    """
    if name is not None and not isinstance(name, str):
        raise TypeError(f"function: name must be a string, got {brief(name)}")
    if python_function is None:
        return lambda f: function(f, name=name, writes=writes)
    if not callable(python_function):
        raise TypeError(f"function decorates a callable, got {brief(python_function)}")
    return Function(python_function, name, writes=check_mode(writes))


def finish(body: FuncGraph, structure: Any) -> Traced:
    """Make the leaves of `structure` the outputs of a body: tensors, IndexedSlices, operations to run, or None."""
    for leaf in nest.flatten(structure):
        if isinstance(leaf, IndexedSlices):
            body.outputs += [leaf.values.now(), leaf.indices.now()]
        elif isinstance(leaf, Operation):
            body.effects.append(leaf)
        elif leaf is not None:
            body.outputs.append(leaf.now())
    return Traced(body, structure)


def call(
    body: FuncGraph, arguments: Sequence[Any], definition: OpDef = CALL, name: str | None = None, **attrs: Any
) -> list[Tensor]:
    """Add one op that calls a body; the tensors that the body captured are appended to the arguments."""
    return make_n(definition, (*arguments, *body.captures), {"body": body, **attrs}, name)


def op_name(name: str) -> str:
    """A Python name or expression as part of an op's name.

    >>> op_name("<lambda>"), op_name("params['w'][0]")
    ('lambda', 'params_w_0')
    """
    return re.sub(r"[^A-Za-z0-9]+", "_", name).strip("_") or "arg"


# -- arguments and results ---------------------------------------------------------------------------------------


def _parameter(body: FuncGraph, x: Any, name: str) -> Any:
    if not is_array(x):
        return x
    spec = spec_of(x if hasattr(x, "dtype") else np.asarray(x))
    if spec.dtype == object:
        raise TypeError(f"{body.name}: the argument {name} is an array of Python objects; pass numbers")
    made = body.add("Placeholder", (), [spec], name=op_name(name)).outputs[0]
    body.declared.append(made)
    return made


def signature_of(f: Callable[..., Any]) -> inspect.Signature | None:
    if isinstance(f, np.ufunc):  # its optional parameters exclude each other, so that they cannot all be given
        return None
    try:
        return inspect.signature(f)
    except (TypeError, ValueError):  # some builtins have no signature
        return None


def _defaults(signature: inspect.Signature | None) -> dict[str, Any]:
    """The defaults to add to every call. Empty if one is an array, which is a constant of the function as a default but
    an input if passed, or is not hashable."""
    parameters = {} if signature is None else signature.parameters
    found = {name: p.default for name, p in parameters.items() if p.default is not p.empty}
    leaves = nest.flatten(list(found.values()))
    return {} if any(is_array(x) or not hashable(x) for x in leaves) else found


def _positional(signature: inspect.Signature | None, defaults: Mapping[str, Any]) -> tuple[int, tuple[Any, ...]]:
    """For calls by position alone: the number of arguments that they need, and what is added for others. Without
    defaults to add, or with other kinds of parameters, no number of arguments is complete."""
    parameters = [] if signature is None else list(signature.parameters.values())
    if not defaults or any(p.kind not in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters):
        return 1, ()
    return len(parameters) - len(defaults), tuple([defaults.get(p.name) for p in parameters])


def bind(
    name: str, signature: inspect.Signature | None, args: Any, kwargs: Any, defaults: Mapping[str, Any] | None = None
) -> tuple[Any, Any]:
    """The same arguments, by position if possible, with defaults for those left out."""
    if signature is None or not (kwargs or defaults):
        return args, kwargs
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as e:
        raise TypeError(f"{name}: {e}") from None
    bound.arguments = {**(defaults or {}), **bound.arguments}
    return bound.args, bound.kwargs


def positional_names(signature: inspect.Signature | None) -> tuple[list[str], str]:
    """The names of the positional parameters, and of *args."""
    parameters = [] if signature is None else list(signature.parameters.values())
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return names, next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), "args")


def named_leaves(
    signature: inspect.Signature | None, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> list[tuple[str, Any]]:
    """Every leaf of the arguments with its expression, such as `params['w'][0]`."""
    names, rest = positional_names(signature)
    names = [*names, *(f"{rest}[{i}]" for i in range(len(args) - len(names)))]
    named = [*zip(names, args, strict=False), *((key, kwargs[key]) for key in sorted(kwargs))]
    return [leaf for name, tree in named for leaf in nest.paths(tree, name)]


def _describe(x: Any) -> str:
    if not is_array(x):
        return repr(x)
    return str(spec_of(x if hasattr(x, "dtype") else np.asarray(x)))


def _results(name: str, result: Any) -> Any:
    return nest.map_structure(functools.partial(_result_leaf, name), result)


def _result_leaf(name: str, x: Any) -> Any:
    if x is None or isinstance(x, Operation):
        return x
    try:
        if isinstance(x, IndexedSlices):  # of tensors or arrays
            return IndexedSlices(convert(x.values), convert(x.indices), x.dense_shape)
        return convert(x)
    except TypeError as e:
        raise TypeError(f"{name} must return tensors, operations, None, or nested structures of them: {e}") from None


def _rebuilt(leaf: Any, values: Iterator[Any]) -> Any:
    if leaf is None or isinstance(leaf, Operation):
        return None
    if isinstance(leaf, IndexedSlices):
        first, second = next(values), next(values)
        made = IndexedSlices if isinstance(first, Tensor) else IndexedSlicesValue
        return made(first, second, leaf.dense_shape)
    return next(values)
