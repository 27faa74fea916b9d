"""Functions with a gradient of their own: custom_gradient, and what is made of it: recompute_grad, grad_pass_through.

In a graph the outputs, the arguments and the variables of a call go through one IdentityN op, which carries the
function's grad_fn as its gradient; only the outputs are handed out. Nothing inside the function is differentiated.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from distgrad import nest
from distgrad.errors import here
from distgrad.gradients import gradients
from distgrad.graph import FuncGraph, Graph, Operation, Tensor, current_graph
from distgrad.indexed_slices import IndexedSlices
from distgrad.ops.builder import cast, convert, graph_for
from distgrad.ops.control import identity, identity_n
from distgrad.registry import gradient_function
from distgrad.types import spec_of, trainable
from distgrad.variables import Variable

Function = Callable[..., Any]


def custom_gradient(f: Function | None = None) -> Any:
    """Decorator for a function that says itself what its gradient is.

    f takes tensors (or nestings of them) and returns `(y, grad_fn)`. `y` is what a call gives: a tensor or a nesting of
    tensors. `grad_fn` takes one gradient per tensor of y and returns one gradient, or None, per positional argument; it
    is called when gradients() reaches y. A second derivative differentiates what grad_fn computed.

    Every positional argument becomes a tensor and has a gradient, Python numbers too. Keyword arguments are handed to f
    as they are and have none: what depends on a tensor given by keyword is constant for gradients().

    If y depends on trainable variables otherwise than through the arguments, grad_fn takes them as `variables=` (a
    list, sorted by name) and returns `(gradients of arguments, gradients of variables)`.

    Outside any graph a call just gives y.

    >>> import distgrad as dg
    >>> @dg.custom_gradient
    ... def log1pexp(x):
    ...     e = dg.exp(x)
    ...     def grad(dy):
    ...         return dy * (1 - 1 / (1 + e))
    ...     return dg.log(1 + e), grad
    >>> with dg.Graph():
    ...     x = dg.constant(1000.0)
    ...     dx = dg.gradients(log1pexp(x), x)
    >>> dg.Session().run(dx)
    [array(1.)]
    """
    return custom_gradient if f is None else _Decorated(f, _apply, "custom_gradient")


def recompute_grad(f: Function) -> Any:
    """Make f forget what it computed: the backward pass runs f again, and memory holds only its arguments in between.

    The gradients are f's own, to any order. f is traced again for each gradients() call that reaches it, and that copy
    starts when the gradients of its outputs are there. So f must give the same for the same arguments and assign no
    variable. Large tensors should be arguments: what f computes from closed-over tensors alone may be kept.

    >>> import distgrad as dg
    >>> block = dg.recompute_grad(lambda x: dg.exp(dg.sin(x)))
    >>> with dg.Graph() as graph:
    ...     x = dg.constant(0.0)
    ...     dx = dg.gradients(block(x), x)
    >>> dg.Session().run(dx), [op.type for op in graph.ops].count("Sin")
    ([array(1.)], 2)
    """
    return _Decorated(f, _recompute, "recompute_grad")


def grad_pass_through(f: Function) -> Any:
    """Give f the gradient of the identity: each argument gets the gradient of the output in its place.

    For functions that are flat or have steps (rounding, quantising). Variables that f reads get no gradient.

    >>> import distgrad as dg
    >>> with dg.Graph():
    ...     x = dg.constant(1.7)
    ...     dx = dg.gradients(dg.grad_pass_through(dg.floor)(x) * 5, x)
    >>> dg.Session().run(dx)
    [array(5.)]
    """
    return _Decorated(f, _pass_through, "grad_pass_through")


class _Decorated:
    """A decorated function. As a method it binds like one: the instance is not an argument."""

    def __init__(self, f: Function, call: Callable[[Function, Any, Any], Any], decorator: str):
        if not callable(f):
            raise TypeError(f"{decorator} decorates a function, got {f!r}")
        functools.update_wrapper(self, f)
        self._f = f
        self._call = call
        self._decorator = decorator

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(self._f, args, kwargs)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        bind = getattr(self._f, "__get__", None)
        if instance is None or bind is None:
            return self
        return _Decorated(bind(instance, owner), self._call, self._decorator)


# -- custom_gradient ---------------------------------------------------------------------------------------------


def _apply(f: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    leaves = nest.flatten(args)
    graph = graph_for([*leaves, *kwargs.values()])
    if graph is not None:
        with graph:
            return _build(graph, f, args, kwargs)
    arrays = [_argument(f, args, i, x) for i, x in enumerate(leaves)]
    y, _ = _pair(f, f(*nest.unflatten(args, arrays), **kwargs))
    return nest.map_structure(functools.partial(_output, f), y)


def _build(graph: Graph, f: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    arguments = [_argument(f, args, i, x) for i, x in enumerate(nest.flatten(args))]
    # f gets tensors of its own: what it makes of its arguments is told from what it makes of closed-over tensors.
    inside = [_renamed(graph, t) for t in arguments]
    y, grad_fn = _pair(f, f(*nest.unflatten(args, inside), **kwargs))
    y = nest.map_structure(functools.partial(_output, f), y)
    outputs = nest.flatten(y)
    if not outputs:
        return y
    variables = _variables(outputs, inside)
    if variables and not _takes_variables(grad_fn):
        raise TypeError(
            f"custom_gradient: {_called(f)} depends on {_listed(variables)}, so its grad_fn must take a keyword "
            f"argument `variables` and return (gradients of arguments, gradients of variables). Where constants are "
            f"meant, use stop_gradient(), or variables with trainable=False."
        )
    made = identity_n([*outputs, *arguments, *variables], name=_op_name(f))
    made[0].op.gradient = _rule(f, grad_fn, args, len(outputs), variables)
    return nest.unflatten(y, made)


def _rule(f: Function, grad_fn: Function, args: Any, count: int, variables: list[Variable]) -> Function:
    """grad_fn as the gradient function of the op: nothing to the outputs' slots, its results to the others."""

    def rule(op: Operation, *grads: Any) -> list[Any]:
        where = f"{_name(f)} (called at {op.source})"
        arguments, reads = _cut(op.inputs[count:], len(variables))
        of_variables: list[Any] = []
        if variables:
            made, of_variables = _split(grad_fn(*grads[:count], variables=list(variables)), where, variables)
        else:
            made = grad_fn(*grads[:count])
        of_arguments = [] if made is None and not arguments else nest.flatten(made)
        if len(of_arguments) != len(arguments):
            raise ValueError(
                f"Num gradients {len(of_arguments)} returned by the grad_fn of {where} do not match its "
                f"{len(arguments)} arguments {_argument_names(f, args)}: return one gradient, or None, for each."
            )
        for i, (g, x) in enumerate(zip(of_arguments, arguments, strict=True)):
            if misfit := _misfit(g, x):
                raise type(misfit)(f"the gradient for argument {_argument_names(f, args)[i]} of {where} {misfit}")
        for v, g, x in zip(variables, of_variables, reads, strict=True):
            if misfit := _misfit(g, x):
                raise type(misfit)(f"the gradient for variable {v.name!r} in {where} {misfit}")
        return [None] * count + of_arguments + of_variables

    return rule


def _cut(items: Sequence[Any], last: int) -> tuple[list[Any], list[Any]]:
    """All but the last few, and those."""
    return list(items[: len(items) - last]), list(items[len(items) - last :])


def _split(made: Any, where: str, variables: Sequence[Variable]) -> tuple[Any, list[Any]]:
    if not isinstance(made, tuple | list) or len(made) != 2:
        what = f"{len(made)} values" if isinstance(made, tuple | list) else f"{made!r}"
        raise (ValueError if isinstance(made, tuple | list) else TypeError)(
            f"the grad_fn of {where} returned {what}: a function that depends on {_listed(variables)} returns the pair "
            f"(gradients of arguments, gradients of variables)"
        )
    found = nest.flatten(made[1])
    if len(found) != len(variables):
        raise ValueError(
            f"the grad_fn of {where} returned {len(found)} gradients of variables, but depends on {len(variables)}: "
            f"{_listed(variables)}. Return one gradient, or None, for each of `variables`, in that order."
        )
    return made[0], found


def _misfit(g: Any, x: Tensor) -> Exception | None:
    """What is wrong with a gradient of x. What is no tensor yet is converted and checked by gradients()."""
    if not isinstance(g, Tensor | IndexedSlices) or not trainable(x.dtype):
        return None
    if g.dtype != x.dtype:
        return TypeError(f"has dtype {g.dtype}, but its value has dtype {x.dtype}")
    if isinstance(g, Tensor) and g.shape != x.shape:
        return ValueError(f"has shape {list(g.shape)}, but its value has shape {list(x.shape)}")
    return None


def _variables(outputs: Iterable[Tensor], arguments: Iterable[Tensor]) -> list[Variable]:
    """The trainable variables that outputs differentiably depend on, not through the arguments; sorted by name."""
    seen, stack = set(arguments), list(outputs)
    found: set[Variable] = set()
    while stack:
        t = stack.pop()
        if t in seen or not trainable(t.dtype):
            continue
        seen.add(t)
        op, graph = t.op, t.graph
        if op.type == "VarHandle":
            found.add(next(v for v, handle in graph.handles.items() if handle is t))
        elif op.type == "Placeholder" and isinstance(graph, FuncGraph):
            stack += [outer for outer, inner in graph.captures.items() if inner is t]
        elif _differentiable(op):
            stack += op.inputs
    return sorted((v for v in found if v.trainable), key=lambda v: (v.name, len(v.key), v.key))


def _differentiable(op: Operation) -> bool:
    """A gradient that nobody has written is not the same as no gradient: custom_gradient is where it may be given."""
    try:
        return gradient_function(op) is not None
    except LookupError:
        return True


def _takes_variables(grad_fn: Function) -> bool:
    try:
        parameters = inspect.signature(grad_fn).parameters
    except (TypeError, ValueError):
        return False
    named = parameters.get("variables")
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return (named is not None and named.kind in by_name) or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def _renamed(graph: Graph, t: Tensor) -> Tensor:
    """The same value as a new tensor, whatever gradient_override_map says of Identity."""
    with graph._setting("_overrides", {}):
        made: Tensor = identity(t)
    return made


# -- what f takes and returns ------------------------------------------------------------------------------------


def _argument(f: Function, args: Any, i: int, x: Any) -> Any:
    if x is None:
        raise ValueError(
            f"custom_gradient: argument {_argument_names(f, args)[i]} of {_called(f)} is None. "
            f"Positional arguments become tensors: leave it out, or pass it by keyword."
        )
    try:
        return convert(x)
    except TypeError as e:
        raise TypeError(
            f"custom_gradient: argument {_argument_names(f, args)[i]} of {_called(f)} cannot become a tensor: {e}. "
            f"Pass what is no array by keyword."
        ) from None


def _pair(f: Function, made: Any) -> tuple[Any, Function]:
    if not isinstance(made, tuple | list):
        raise TypeError(f"custom_gradient: {_called(f)} must return the pair (y, grad_fn), got {made!r}")
    if len(made) != 2:
        raise ValueError(f"custom_gradient: {_called(f)} must return the pair (y, grad_fn), got {len(made)} values")
    if not callable(made[1]):
        raise TypeError(
            f"custom_gradient: the second value that {_called(f)} returns is its grad_fn and must be callable, "
            f"got {made[1]!r}"
        )
    return made[0], made[1]


def _output(f: Function, y: Any) -> Any:
    if y is None:
        raise ValueError(f"custom_gradient: {_called(f)} returned None where a tensor should be")
    try:
        return convert(y)
    except TypeError as e:
        raise TypeError(f"custom_gradient: {_called(f)} must return tensors: {e}") from None


def _argument_names(f: Function, args: Sequence[Any]) -> list[str]:
    """How one would write each leaf of the arguments, by the names that f gives its parameters."""
    try:
        parameters = list(inspect.signature(f).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    rest = next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), "args")
    names += [f"{rest}[{i}]" for i in range(len(args) - len(names))]
    return [path for name, arg in zip(names, args, strict=False) for path, _ in nest.paths(arg, name)]


def _name(f: Function) -> str:
    return repr(getattr(f, "__qualname__", None) or getattr(f, "__name__", None) or type(f).__name__)


def _called(f: Function) -> str:
    return f"{_name(f)} (called at {here()})"


def _op_name(f: Function) -> str | None:
    name: str = getattr(f, "__name__", "")
    return name if name.isascii() and name.isidentifier() and not name.startswith("_") else None


def _listed(variables: Sequence[Variable]) -> str:
    noun = "variable" if len(variables) == 1 else "variables"
    return f"{noun} {', '.join(repr(v.name) for v in variables)}"


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
            return _cut(found, len(variables)) if variables else found

        return y, grad_fn

    return _apply(pair, args, kwargs)


def _second_pass(
    f: Function,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    dys: Sequence[Any],
    variables: Sequence[Variable],
    reads: Mapping[Variable, Tensor],
    end: int,
) -> list[Any]:
    """f once more, behind the gradients of its outputs, and its gradients there."""
    graph = current_graph()
    assert graph is not None  # rules run where gradients() builds
    # Waiting for dys is what makes this a second computation: nothing may merge it with the first.
    with graph.control_dependencies([dy for dy in dys if dy is not None]):
        inputs = nest.map_structure(functools.partial(_renamed, graph), args)
        held = {v: _renamed(graph, t) for v, t in reads.items()}
    begin = len(graph.ops)
    # f reads what it read then, though variables may have been assigned since.
    with graph.control_dependencies(None), graph._setting("reads", {**graph.reads, **held}):
        ys = [convert(y) for y in nest.flatten(f(*inputs, **kwargs))]
    _refuse_late_reads(f, graph, end, begin)
    _refuse_other_results(f, ys, dys)
    known = [(y, dy) for y, dy in zip(ys, dys, strict=True) if dy is not None]
    xs = nest.flatten(inputs)
    # A handle is as old as the graph, and gradients() looks at all that is younger: most variables do with their read.
    elsewhere = set(_variables(ys, [*xs, *held.values()]))
    wrt = [held[v] if v in held and v not in elsewhere else v.__handle__() for v in variables]
    return gradients(
        [y for y, _ in known],
        [*xs, *wrt],
        [dy for _, dy in known],
        stop_gradients=xs,  # what lies behind an argument gets its gradient through the argument
        unconnected_gradients="zero",
    )


def _refuse_assigns(f: Function, ops: Iterable[Operation]) -> None:
    assign = next((op for op in ops if op.type == "Assign"), None)
    if assign is not None:
        raise ValueError(
            f"recompute_grad: {_name(f)} assigns a variable ({assign.name!r}, at {assign.source}), which would happen "
            f"twice. Return the new value and assign it outside."
        )


def _refuse_late_reads(f: Function, graph: Graph, end: int, begin: int) -> None:
    """A read that the second pass makes anew (`v.read()`) must not see an assign that came after the first one."""
    reads = [op for op in graph.ops[begin:] if op.type == "ReadVariable"]
    if not reads:
        return
    assigned = {op.inputs[0] for op in graph.ops[end:begin] if op.type == "Assign"}
    late = next((op for op in reads if op.inputs[0] in assigned), None)
    if late is not None:
        raise ValueError(
            f"recompute_grad: {_name(f)} reads variable {late.inputs[0].op.name!r} explicitly, and it was assigned "
            f"before the backward pass. Use the variable itself instead of .read(), or pass its value as an argument."
        )


def _refuse_other_results(f: Function, ys: Sequence[Tensor], dys: Sequence[Any]) -> None:
    checked = [(y, dy) for y, dy in zip(ys, dys, strict=False) if isinstance(dy, Tensor)]
    if len(ys) != len(dys) or any(spec_of(y) != spec_of(dy) for y, dy in checked):
        raise ValueError(
            f"recompute_grad: {_name(f)} gave {', '.join(str(y.spec) for y in ys)} when it was traced again for its "
            f"gradient, which is not what it gave at first. It may depend on its arguments only."
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
                    f"grad_pass_through: {_name(f)} has {len(xs)} arguments but {len(dys)} outputs; it needs as many"
                )
            found = [cast(dy, x.dtype) if isinstance(dy, Tensor) else dy for dy, x in zip(dys, xs, strict=True)]
            return (found, [None] * len(variables)) if variables else found

        return f(*args, **kwargs), grad_fn

    return _apply(pair, args, kwargs)


__all__ = ["custom_gradient", "grad_pass_through", "recompute_grad"]
