"""Functions kept as one op: Defun, and SymbolicGradient, the gradient of one."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

from distgrad import runtime
from distgrad.autodiff.call_gradient import gradient_of
from distgrad.graph import FuncGraph, Graph, Operation, Tensor, current_graph
from distgrad.nesting import nested
from distgrad.ops.builder import as_array, convert, graph_for
from distgrad.ops.control import zeros
from distgrad.registry import Kind, define
from distgrad.tracing.function import CALL, call, finish, op_name, positional_names
from distgrad.tracing.variables import NotPure
from distgrad.types import DType, Spec, Typed, brief, dtype_from, spec_of

SYMBOLIC_GRADIENT = define("SymbolicGradient", CALL.infer, kind=Kind.CALL)


class Defun:
    """Decorator that keeps a function as one op: a call is one Call op, its gradient one SymbolicGradient op.

    The function takes tensors by position and returns a tensor or a list of tensors. It is traced at the first call and
    again for every new combination of shapes (and of dtypes, if none are declared). Tensors that it captures from the
    enclosing graph become additional inputs after the declared ones. Outside any graph a call computes its result
    immediately. The gradient of an argument that does not affect the result is zeros.

    Args:
        input_types: the dtypes of the arguments. If empty, any dtypes are accepted.
        func_name: name of the function in graphs. The default is its Python name.
        grad_func: function (a Defun or not) of the inputs and the gradients of the outputs that returns the gradients
            of the inputs. Both gradients() and SymbolicGradient use it instead of the derivative.
        python_grad_func: gradient function `(op, *grads)`, as for RegisterGradient. Only gradients() uses it.

    >>> import numpy as np
    >>> import distgrad as dg
    >>> @dg.Defun(np.float64)
    ... def cube(x):
    ...     return x * x * x
    >>> with dg.Graph() as graph:
    ...     x = dg.constant(2.0)
    ...     (dx,) = dg.gradients(cube(x), x)
    >>> [op.type for op in graph.ops if op.type in ("Call", "SymbolicGradient", "Mul")]
    ['Call', 'SymbolicGradient']
    >>> dg.Session().run(dx)
    array(12.)
    """

    def __init__(
        self,
        *input_types: Any,
        func_name: str | None = None,
        grad_func: Callable[..., Any] | None = None,
        python_grad_func: Callable[..., Any] | None = None,
    ):
        if input_types and inspect.isroutine(input_types[0]):
            raise TypeError(f"Defun takes dtypes: write @Defun() or @Defun(np.float32) above {input_types[0]!r}")
        self._input_types = tuple([dtype_from("Defun", t) for t in input_types])
        if func_name is not None and not isinstance(func_name, str):
            raise TypeError(f"Defun: func_name must be a string, got {brief(func_name)}")
        for what, given in (("grad_func", grad_func), ("python_grad_func", python_grad_func)):
            if given is not None and not callable(given):
                raise TypeError(f"Defun: {what} must be a function, got {brief(given)}")
        self._func_name = func_name
        self._grad_func = grad_func
        self._python_grad_func = python_grad_func

    def __call__(self, func: Callable[..., Any]) -> DefinedFunction:
        return DefinedFunction(func, self._input_types, self._func_name, self._grad_func, self._python_grad_func)


class DefinedFunction:
    """A function decorated with Defun."""

    def __init__(
        self,
        func: Callable[..., Any],
        input_types: tuple[DType, ...] = (),
        func_name: str | None = None,
        grad_func: Callable[..., Any] | None = None,
        python_grad_func: Callable[..., Any] | None = None,
    ):
        self._names, self._rest = _parameters(func)
        functools.update_wrapper(self, func)
        self.func = func
        self.name = func_name or op_name(getattr(func, "__name__", "function"))
        self.named = func_name is not None
        self.input_types = input_types
        self.grad_func = grad_func
        self.python_grad_func = python_grad_func
        self._eager: dict[Any, FuncGraph] = {}
        if input_types and not self._takes(len(input_types)):
            count = len(input_types)
            raise ValueError(f"Defun: {self.name} takes {self._arity()} arguments, but {count} types are declared")

    def __repr__(self) -> str:
        return f"<distgrad.Defun {self.name!r}>"

    def __reduce__(self) -> Any:
        raise TypeError(
            f"{self!r} cannot be copied or pickled, because its traces belong to this process: send the Python "
            f"function (.func), and decorate it on the other side"
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        name = kwargs.pop("name", None)
        if kwargs:
            raise ValueError(f"{self.name}: unknown keyword argument {next(iter(kwargs))!r}; pass tensors by position")
        if not self._takes(len(args)) or (self.input_types and len(args) != len(self.input_types)):
            expected = len(self.input_types) or self._arity()
            raise ValueError(f"{self.name} expects {expected} arguments, but {len(args)} are given")
        graph = graph_for(args)
        with graph or nullcontext():
            inputs = self.converted(args)
            body = self.specialised(graph, [spec_of(x) for x in inputs])
            made = self._emit(graph, body, inputs, name) if graph else runtime.current().call(body, inputs)
        return made[0] if len(made) == 1 else made

    def _emit(self, graph: Graph, body: FuncGraph, inputs: Sequence[Tensor], name: str | None) -> list[Tensor]:
        made = call(body, inputs, CALL, name or op_name(self.name), f=self.register(graph))
        op = made[0].op
        if op.gradient is None:
            op.gradient = self.python_grad_func or self._symbolic_gradient
        return made

    def _symbolic_gradient(self, op: Operation, *gs: Any) -> list[Tensor]:
        body: FuncGraph = op.attrs["body"]
        gs = tuple([zeros(t.shape, t.dtype) if g is None else g for g, t in zip(gs, op.outputs, strict=True)])
        made = self.gradient(body, current_graph())
        return call(made, [*op.inputs, *gs], SYMBOLIC_GRADIENT, "SymbolicGradient", f=op.attrs["f"])

    # -- bodies --------------------------------------------------------------------------------------------------

    def specialised(self, graph: Graph | None, specs: Sequence[Spec]) -> FuncGraph:
        """The body for arguments of these types. As with @function, a body with captures is traced for every call."""
        known = self._eager if graph is None else graph.memo("calls")
        key = (self, *specs)
        body: FuncGraph | None = known.get(key)
        if body is None:
            body = self._build(graph, specs)
            if not body.captures:
                body = known.setdefault(key, body)  # another thread may have traced it first
        return body

    def gradient(self, body: FuncGraph, graph: Graph | None) -> FuncGraph:
        """The body of a SymbolicGradient: takes all inputs and output gradients, returns all input gradients."""
        if self.grad_func is None:
            return gradient_of(body, graph, total=True).body
        f = self.grad_func if isinstance(self.grad_func, DefinedFunction) else DefinedFunction(self.grad_func)
        specs = [t.spec for t in (*body.inputs, *body.outputs)]
        if not f._takes(len(specs)):
            raise ValueError(
                f"grad_func {f.name} of {self.name} takes {f._arity()} arguments, but is called with {len(specs)}: the "
                f"{len(body.inputs)} inputs of {self.name} (captured ones too) and the gradients of its outputs"
            )
        made = f.specialised(graph, specs)
        want, got = [t.spec for t in body.inputs], [t.spec for t in made.outputs]
        if want != got:
            raise ValueError(
                f"grad_func {f.name} must return one gradient per input of {self.name}, ({_listed(want)}), "
                f"but returns ({_listed(got)})"
            )
        return made

    @nested
    def _build(self, graph: Graph | None, specs: Sequence[Spec]) -> FuncGraph:
        if self.grad_func is not None and self.python_grad_func is not None:
            raise ValueError(f"Gradient defined twice for function {self.name}: give grad_func or python_grad_func")
        body = FuncGraph(self.name, graph)
        with body:
            for name, spec in zip(self._argument_names(len(specs)), specs, strict=True):
                body.declared.append(body.add("Placeholder", (), [spec], name=op_name(name)).outputs[0])
            try:
                result = self.func(*body.declared)
            except NotPure:
                raise self._impure() from None
            results = list(result) if isinstance(result, list | tuple) else [result]
            if not results or any(x is None for x in results):
                raise ValueError(
                    f"Function {self.name} cannot return {brief(result)}: return a tensor or a list of tensors"
                )
            finish(body, [convert(x) for x in results])
        if body.effects or body.impure:
            raise self._impure()
        return body

    def _impure(self) -> ValueError:
        return ValueError(f"{self.name} assigns a variable, but a Defun is a pure value; use @distgrad.function for it")

    def register(self, graph: Graph) -> str:
        """The name of this function in a graph, with a number appended if another function has that name."""
        names = graph.memo("names of functions")
        if self not in names:
            names[self] = self._free_name(graph)
            graph.functions[names[self]] = self
        return str(names[self])

    def _free_name(self, graph: Graph) -> str:
        """Numbers continue from the last one used, to avoid a search for every function of the same name."""
        numbers = graph.memo("numbers of functions")
        name = self.name
        while graph.functions.get(name, self) is not self:
            if self.named:
                raise ValueError(f"another function named {name!r} was called in this graph; choose another func_name")
            numbers[self.name] = numbers.get(self.name, 0) + 1
            name = f"{self.name}_{numbers[self.name]}"
        return name

    # -- arguments -----------------------------------------------------------------------------------------------

    def declared(self, count: int) -> int:
        """How many of `count` inputs are declared arguments; all of them if the function takes *args."""
        return len(self.input_types) or (count if self._rest else len(self._names))

    def converted(self, args: Sequence[Any]) -> list[Any]:
        types = self.input_types or (None,) * len(args)
        names = self._argument_names(len(args))
        return [_argument(x, t, f"{self.name}: argument {name}") for x, t, name in zip(args, types, names, strict=True)]

    def _argument_names(self, count: int) -> list[str]:
        return [*self._names, *(f"{self._rest}_{i}" for i in range(count - len(self._names)))]

    def _takes(self, count: int) -> bool:
        return count == len(self._names) or (self._rest is not None and count > len(self._names))

    def _arity(self) -> str:
        return f"{len(self._names)}" + (" or more" if self._rest else "")


def _parameters(func: Any) -> tuple[list[str], str | None]:
    if not callable(func):
        raise ValueError(f"Defun decorates a function, got {brief(func)}, which is not callable")
    parameters = inspect.signature(func).parameters.values()
    if any(p.default is not p.empty or p.kind in (p.KEYWORD_ONLY, p.VAR_KEYWORD) for p in parameters):
        raise ValueError(
            f"Defun: {brief(func)} has argument defaults or keyword arguments, which cannot be inputs of an op"
        )
    names, rest = positional_names(inspect.signature(func))
    return names, rest if len(names) < len(parameters) else None


def _argument(x: Any, dtype: DType | None, what: str) -> Any:
    """A tensor of the current graph, or an array outside a graph; Python numbers and lists take the declared dtype."""
    made = convert(x) if dtype is None or hasattr(x, "dtype") else convert(as_array(x, dtype))
    if dtype is not None and made.dtype != dtype:
        raise TypeError(f"{what} has dtype {made.dtype}, but {dtype} is declared; cast it")
    return made


def _listed(specs: Sequence[Spec]) -> str:
    return ", ".join(map(str, specs))


# -- SymbolicGradient --------------------------------------------------------------------------------------------


def symbolic_gradient(input: Any, Tout: Any, f: Any, name: str | None = None) -> list[Any]:
    """See distgrad.raw_ops.SymbolicGradient, which is this function with keyword arguments."""
    types = _check_lists(input, Tout)
    graph = graph_for(input)
    with graph or nullcontext():
        definition = _resolve(f, graph)
        count = definition.declared(len(types))
        if len(input) < count:
            raise ValueError(f"SymbolicGradient: {definition.name} has {count} inputs, but {len(input)} are given")
        declared = definition.converted(input[:count])
        body = definition.specialised(graph, [spec_of(x) for x in declared])
        _check_counts(definition, body, len(input), types)
        rest = [*body.captures.values(), *body.outputs]
        what = [f"captured input {i}" for i in range(count, len(body.inputs))]
        what += [f"the gradient of output {i}" for i in range(len(body.outputs))]
        values = declared + [_fitting(x, t, w) for x, t, w in zip(input[count:], rest, what, strict=True)]
        made = definition.gradient(body, graph)
        if graph is None:
            return runtime.current().call(made, values)
        return call(made, values, SYMBOLIC_GRADIENT, name, f=definition.register(graph))


def _check_lists(input: Any, Tout: Any) -> list[DType]:
    for what, value in (("input", input), ("Tout", Tout)):
        if not isinstance(value, list | tuple):
            raise TypeError(f"SymbolicGradient: {what} must be a list, got {brief(value)}")
    if not Tout:
        raise ValueError("SymbolicGradient: Tout must have at least one dtype")
    if len(Tout) > len(input):
        raise ValueError(f"SymbolicGradient: Tout has {len(Tout)} dtypes for the {len(input)} tensors of input")
    return [dtype_from("SymbolicGradient", t) for t in Tout]


def _resolve(f: Any, graph: Graph | None) -> DefinedFunction:
    if isinstance(f, DefinedFunction):
        return f
    if not isinstance(f, str):
        raise TypeError(
            f"SymbolicGradient: f must be a function decorated with @Defun, or the name of one, got {brief(f)}"
        )
    known: list[str] = []
    while graph is not None:
        if f in graph.functions:
            found: DefinedFunction = graph.functions[f]
            return found
        known += graph.functions
        graph = graph.outer if isinstance(graph, FuncGraph) else None
    raise LookupError(
        f"SymbolicGradient: no function named {brief(f)} was called in this graph (known: "
        f"{', '.join(known) or 'none'}). "
        f"Pass the function itself, or call it first."
    )


def _check_counts(definition: DefinedFunction, body: FuncGraph, given: int, types: Sequence[DType]) -> None:
    inputs, outputs = body.inputs, body.outputs
    if given != len(inputs) + len(outputs):
        expected = len(inputs) + len(outputs)
        raise ValueError(
            f"SymbolicGradient: {definition.name} expects {expected} arguments, but {given} are given: "
            f"{len(body.declared)} declared inputs, {len(body.captures)} captured, {len(outputs)} output gradients"
        )
    if len(types) != len(inputs):
        raise ValueError(f"SymbolicGradient returns {len(inputs)} tensors, one per input, but Tout has {len(types)}")
    for i, (dtype, t) in enumerate(zip(types, inputs, strict=True)):
        if dtype != t.dtype:
            raise TypeError(f"SymbolicGradient: Tout[{i}] is {dtype}, but input {i} of {definition.name} is {t.dtype}")


def _fitting(x: Any, t: Typed, what: str) -> Any:
    made = _argument(x, t.dtype, f"SymbolicGradient: {what}")
    if made.shape != t.shape:
        raise ValueError(f"SymbolicGradient: {what} has shape {list(made.shape)}, but must have shape {list(t.shape)}")
    return made
