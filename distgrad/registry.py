"""The two registries of distgrad: op types and gradient rules.

`define` adds an op type with its shape rule; `RegisterGradient` and `no_gradient` set its gradient. Kernels are in
`distgrad.workers.kernels`, except those of user-defined ops, which are part of the definition.
"""

from __future__ import annotations

import difflib
import enum
import sys
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from distgrad.types import brief

if TYPE_CHECKING:
    from distgrad.graph import Operation

F = TypeVar("F", bound=Callable[..., Any])


class Kind(enum.Enum):
    """How an op uses the elements of its inputs. Passes, costs and engines dispatch on it instead of on op names."""

    __hash__ = object.__hash__  # members are singletons; the hash of Enum is slow Python code

    #: Each element of the result depends on the same element of the inputs.
    ELEMENTWISE = enum.auto()
    #: Each row of the result depends on the same row of the inputs; rows span the trailing axes: `axis`, or the last.
    ROWWISE = enum.auto()
    #: Reduces the axes of `axis` to one element.
    REDUCTION = enum.auto()
    #: Cumulative ops and sorting along an axis.
    SCAN = enum.auto()
    #: The same elements in another shape or order, possibly padded with zeros; also results that depend on types alone.
    LAYOUT = enum.auto()
    #: Matrix products.
    PRODUCT = enum.auto()
    CONVOLUTION = enum.auto()
    #: Pooling over windows.
    WINDOW = enum.auto()
    #: Factorizations and solvers.
    LINALG = enum.auto()
    #: Reads elements or rows at computed indices (GATHER), or adds to them (SCATTER).
    GATHER = enum.auto()
    SCATTER = enum.auto()
    RANDOM = enum.auto()
    #: A value without inputs.
    SOURCE = enum.auto()
    #: A feed, or an input of a function body.
    ARGUMENT = enum.auto()
    #: Reads and writes of variables.
    STATE = enum.auto()
    #: No value: for control dependencies only.
    BARRIER = enum.auto()
    #: Calls the body in its `body` attribute.
    CALL = enum.auto()


class View(enum.Enum):
    """How the outputs of an op share the memory of its inputs."""

    #: Output i is input i.
    SAME = enum.auto()
    #: All elements of the first input in the same order, in another shape.
    FLAT = enum.auto()
    #: All elements of the first input, with other strides.
    STRIDED = enum.auto()
    #: Some elements of the first input.
    PART = enum.auto()


@dataclass(frozen=True, slots=True)
class OpDef:
    """An op type. `infer(*inputs, **attrs)` returns the (shape, dtype) of the only output, or a list of them."""

    type: str
    infer: Callable[..., Any]
    #: None if unknown, as for user-defined ops.
    kind: Kind | None = None
    #: None if the outputs are newly allocated.
    view: View | None = None
    #: Exact or correctly rounded: every implementation gives the same bits.
    rounded: bool = False
    #: Of a reduction: the op type that combines the results of two parts (of Mean: their sums).
    combine: str | None = None
    #: The result depends on the types of the inputs alone.
    types_only: bool = False
    #: Inputs broadcast against each other; `gradients` sums a gradient back to the shape of its input.
    broadcasting: bool = False
    #: Reads or writes state: never folded, merged or pruned.
    stateful: bool = False
    #: The kernel of a user-defined op; None for built-in ops.
    kernel: Callable[..., Any] | None = None
    #: Never folded: the result is known only at run time, such as the content of a file.
    at_run: bool = False
    #: The result is the first input with some elements replaced: it may take the memory of an array that is not read
    #: any more.
    updates: bool = False


@dataclass(frozen=True, slots=True)
class _Registration:
    function: Callable[..., Any] | None
    where: str


OPS: dict[str, OpDef] = {}
_GRADIENTS: dict[str, _Registration] = {}


def define(
    type: str,
    infer: Callable[..., Any],
    *,
    kind: Kind | None = None,
    view: View | None = None,
    rounded: bool = False,
    combine: str | None = None,
    types_only: bool = False,
    broadcasting: bool = False,
    stateful: bool = False,
    kernel: Callable[..., Any] | None = None,
    at_run: bool = False,
    updates: bool = False,
    override: bool = False,
) -> OpDef:
    """Add an op type, with the facts that `OpDef` lists. Defining one twice is a KeyError unless `override=True`."""
    if not isinstance(type, str) or not type:
        raise TypeError(f"an op type is a non-empty string, got {brief(type)}")
    if type in OPS and not override:
        raise KeyError(f"op type {brief(type)} is defined already; pass override=True to replace it")
    definition = OPS[type] = OpDef(
        type, infer, kind, view, rounded, combine, types_only, broadcasting, stateful, kernel, at_run, updates
    )
    return definition


def kind_of(op_type: str) -> Kind | None:
    """The kind of an op type; None for a type that only plans have, such as that of a fused group."""
    definition = OPS.get(op_type)
    return None if definition is None else definition.kind


def view_of(op_type: str) -> View | None:
    """How the outputs of an op type share the memory of its inputs; None if they do not."""
    definition = OPS.get(op_type)
    return None if definition is None else definition.view


def warn_of_unknown(op_types: Iterable[str]) -> None:
    """Warn of op types that do not exist, in an override map: a misspelt one would have no effect."""
    for op_type in op_types:
        if op_type not in OPS:
            close = difflib.get_close_matches(op_type.lower(), [known.lower() for known in OPS], 1, 0.7)
            hint = "".join(f"; did you mean {known!r}?" for known in OPS if known.lower() in close)
            warnings.warn(f"gradient_override_map: there is no op type {brief(op_type)}{hint}", stacklevel=5)


class RegisterGradient:
    """Decorator that registers the gradient function of an op type.

    The function takes the forward `Operation` and one gradient per output, and returns one gradient per input (None
    if there is none). Registering a type twice is a KeyError, unless `override=True`.

    >>> import distgrad as dg
    >>> @dg.RegisterGradient("DocSub")
    ... def _sub_grad(unused_op, grad):
    ...     return grad, dg.negative(grad)
    """

    def __init__(self, op_type: str, override: bool = False):
        self._op_type = _check_type("RegisterGradient", op_type)
        self._override = override

    def __call__(self, f: F) -> F:
        if not callable(f):
            raise TypeError(f"RegisterGradient({self._op_type!r}) decorates a function, got {brief(f)}")
        _register(self._op_type, f, self._override)
        return f


def no_gradient(op_type: str, override: bool = False) -> None:
    """Declare that ops of this type are not differentiable: None goes to all of their inputs.

    Do not use it for a gradient that is merely not implemented yet: differentiating an unregistered op raises.

    >>> import distgrad as dg
    >>> dg.no_gradient("DocSize")
    """
    _register(_check_type("no_gradient", op_type), None, override)


def _check_type(what: str, op_type: object) -> str:
    if not isinstance(op_type, str):
        raise TypeError(f"{what}: op_type must be a string such as 'MatMul', got {brief(op_type)}")
    if not op_type:
        raise ValueError(f"{what}: op_type must not be empty")
    return op_type


def _register(op_type: str, f: Callable[..., Any] | None, override: bool) -> None:
    before = _GRADIENTS.get(op_type)
    if before is not None and not override:
        raise KeyError(
            f"a gradient for op type {brief(op_type)} is registered already (at {before.where}). "
            f"Pass override=True to replace it."
        )
    code = getattr(f, "__code__", None)
    caller = sys._getframe(2)  # of no_gradient, in any file, also of distgrad
    where = (code.co_filename, code.co_firstlineno) if code else (caller.f_code.co_filename, caller.f_lineno)
    _GRADIENTS[op_type] = _Registration(f, f"{where[0]}:{where[1]}")


def registered(op_type: str) -> bool:
    """Whether a gradient, or the absence of one, is registered for this op type."""
    return op_type in _GRADIENTS


def lookup_gradient(name: str) -> Callable[..., Any] | None:
    """The function registered under a name; None for no_gradient; LookupError if neither is registered."""
    try:
        return _GRADIENTS[name].function
    except KeyError:
        close = difflib.get_close_matches(name, [*_GRADIENTS], 1, 0.7)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise LookupError(f"no gradient is registered under {name!r}{hint}") from None


def gradient_function(op: Operation) -> Callable[..., Any] | None:
    """The gradient function of an op: its override, or the rule of its type; None for no_gradient."""
    override = op.gradient
    if override is None:
        return lookup_gradient(op.type)
    return lookup_gradient(override) if isinstance(override, str) else override
