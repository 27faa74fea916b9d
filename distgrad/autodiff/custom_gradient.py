"""Functions that define their own gradient: custom_gradient.

In a graph the outputs, the arguments and the variables of a call go through one IdentityN op, which carries the
function's grad_fn as its gradient; only the outputs are handed out. Nothing inside the function is differentiated.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from distgrad import nest
from distgrad.errors import here
from distgrad.graph import Graph, Operation, Tensor
from distgrad.nesting import nested
from distgrad.ops.assignment.names import sealed
from distgrad.ops.builder import convert, graph_for
from distgrad.ops.control import identity, identity_n
from distgrad.ops.indexed_slices import IndexedSlices
from distgrad.registry import gradient_function
from distgrad.tracing.function import named_leaves, signature_of
from distgrad.tracing.variables import Variable
from distgrad.types import brief, trainable

Function = Callable[..., Any]


def custom_gradient(f: Function | None = None) -> Any:
    """Decorator for a function that defines its own gradient.

    f takes tensors (or nested structures of them) and returns `(y, grad_fn)`. `y`, a tensor or a nested structure of
    tensors, is the result of the call. `grad_fn` takes one gradient per tensor of y and returns one gradient, or None,
    per positional argument; it is called when gradients() reaches y. A second derivative differentiates the ops that
    grad_fn built.

    Every positional argument, including Python numbers, becomes a tensor and has a gradient. Keyword arguments are
    passed to f unchanged and have no gradient: gradients() treats tensors passed by keyword as constants.

    If y depends on trainable variables other than through its arguments, grad_fn takes them as `variables=` (a list,
    sorted by name) and returns `(gradients of arguments, gradients of variables)`.

    Outside any graph a call simply returns y.

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
    return custom_gradient if f is None else Decorated(f, apply, "custom_gradient")


class Decorated:
    """A decorated function. It binds like a method: the instance is not counted as an argument."""

    def __init__(self, f: Function, call: Callable[[Function, Any, Any], Any], decorator: str):
        if not callable(f):
            raise TypeError(f"{decorator} decorates a function, got {brief(f)}")
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
        return Decorated(bind(instance, owner), self._call, self._decorator)


# -- custom_gradient ---------------------------------------------------------------------------------------------


@nested
def apply(f: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
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
    # f gets fresh tensors, so that ops on its arguments can be told from ops on closed-over tensors.
    begin = len(graph.ops)
    inside = [renamed(graph, t) for t in arguments]
    with sealed(graph, f"the body of {name_of(f)}"):
        y, grad_fn = _pair(f, f(*nest.unflatten(args, inside), **kwargs))
    y = nest.map_structure(functools.partial(_output, f), y)
    outputs = nest.flatten(y)
    if not outputs:
        return y
    variables = variables_behind(outputs, inside, begin)
    if variables and not _takes_variables(grad_fn):
        raise TypeError(
            f"custom_gradient: {_called(f)} depends on {_listed(variables)}, so its grad_fn must take a keyword "
            f"argument `variables` and return (gradients of arguments, gradients of variables). For constants, "
            f"use stop_gradient(), or variables with trainable=False."
        )
    made = identity_n([*outputs, *arguments, *variables], name=_op_name(f))
    made[0].op.gradient = _rule(f, grad_fn, args, len(outputs), variables)
    return nest.unflatten(y, made)


def _rule(f: Function, grad_fn: Function, args: Any, count: int, variables: list[Variable]) -> Function:
    """grad_fn as the op's gradient function: None for the inputs that are outputs of f, its results for the others."""

    def rule(op: Operation, *grads: Any) -> list[Any]:
        where = f"{name_of(f)} (called at {op.source})"
        arguments, reads = cut(op.inputs[count:], len(variables))
        of_variables: list[Any] = []
        if variables:
            with sealed(op.graph, f"the grad_fn of {where}"):
                found = grad_fn(*grads[:count], variables=list(variables))
            made, of_variables = _split(found, where, variables)
        else:
            with sealed(op.graph, f"the grad_fn of {where}"):
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


def cut(items: Sequence[Any], last: int) -> tuple[list[Any], list[Any]]:
    """Split off the last `last` items."""
    return list(items[: len(items) - last]), list(items[len(items) - last :])


def _split(made: Any, where: str, variables: Sequence[Variable]) -> tuple[Any, list[Any]]:
    if not isinstance(made, tuple | list) or len(made) != 2:
        what = f"{len(made)} values" if isinstance(made, tuple | list) else f"{brief(made)}"
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
    """The error if `g` cannot be a gradient of x. Values that are not tensors are checked later, by gradients()."""
    if not isinstance(g, Tensor | IndexedSlices) or not trainable(x.dtype):
        return None
    if g.dtype != x.dtype:
        return TypeError(f"has dtype {g.dtype}, but its value has dtype {x.dtype}")
    if isinstance(g, Tensor) and g.shape != x.shape:
        return ValueError(f"has shape {list(g.shape)}, but its value has shape {list(x.shape)}")
    return None


def variables_behind(outputs: Sequence[Tensor], arguments: Iterable[Tensor], begin: int) -> list[Variable]:
    """The trainable variables that outputs differentiably depend on other than through the arguments, sorted by name.

    Ops created before `begin` do not depend on the arguments, so their variables are the same for every call and are
    cached in the graph.
    """
    graph = outputs[0].graph
    seen, stack = set(arguments), list(outputs)
    found: set[Variable] = set()
    while stack:
        t = stack.pop()
        if t in seen or not trainable(t.dtype):
            continue
        seen.add(t)
        op = t.op
        if op.graph is not graph or op.id < begin or op.type == "VarHandle":
            found |= _variables_of(op)
        elif _differentiable(op):
            stack += op.inputs
    return sorted((v for v in found if v.trainable), key=lambda v: (v.name, len(v.key), v.key))


def _variables_of(op: Operation) -> frozenset[Variable]:
    """All variables that an op differentiably depends on, here and in enclosing graphs; visits each op once."""
    stack = [op]
    while stack:
        op = stack[-1]
        known = op.graph.memo("variables")
        if op in known:
            stack.pop()
        elif op.type == "VarHandle":
            known[op] = frozenset([v for v, handle in op.graph.handles.items() if handle.op is op])
        else:
            before = [t.op for t in op.inputs if trainable(t.dtype)] if _differentiable(op) else []
            missing = [other for other in before if other not in other.graph.memo("variables")]
            if missing:
                stack += missing
            else:
                known[op] = _union([other.graph.memo("variables")[other] for other in before])
    found: frozenset[Variable] = known[op]
    return found


def _union(sets: Sequence[frozenset[Variable]]) -> frozenset[Variable]:
    """Most ops depend on the variables of one of their inputs, and share its set."""
    largest = max(sets, key=len, default=frozenset())
    others = [s for s in sets if s is not largest and not s <= largest]
    return largest.union(*others) if others else largest


def _differentiable(op: Operation) -> bool:
    """True as well if no gradient is registered: custom_gradient may be there to provide it."""
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


def renamed(graph: Graph, t: Tensor) -> Tensor:
    """The same value as a new tensor; gradient_override_map does not apply to it."""
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
            f"Pass anything that is not an array by keyword."
        ) from None


def _pair(f: Function, made: Any) -> tuple[Any, Function]:
    if not isinstance(made, tuple | list):
        raise TypeError(f"custom_gradient: {_called(f)} must return the pair (y, grad_fn), got {brief(made)}")
    if len(made) != 2:
        raise ValueError(f"custom_gradient: {_called(f)} must return the pair (y, grad_fn), got {len(made)} values")
    if not callable(made[1]):
        raise TypeError(
            f"custom_gradient: the second value that {_called(f)} returns is its grad_fn and must be callable, "
            f"got {brief(made[1])}"
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
    """The expression of each leaf of the arguments, after the parameter names of f."""
    return [name for name, _ in named_leaves(signature_of(f), args, {})]


def name_of(f: Function) -> str:
    return repr(getattr(f, "__qualname__", None) or getattr(f, "__name__", None) or type(f).__name__)


def _called(f: Function) -> str:
    return f"{name_of(f)} (called at {here()})"


def _op_name(f: Function) -> str | None:
    name: str = getattr(f, "__name__", "")
    return name if name.isascii() and name.isidentifier() and not name.startswith("_") else None


def _listed(variables: Sequence[Variable]) -> str:
    noun = "variable" if len(variables) == 1 else "variables"
    return f"{noun} {', '.join(repr(v.name) for v in variables)}"
