"""User-defined ops: a kernel function becomes an op type that is recorded in graphs and runs directly outside them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from distgrad.errors import here
from distgrad.graph import Tensor, outside
from distgrad.ops.builder import make_n, typed
from distgrad.registry import define
from distgrad.types import Spec, Typed, as_shape, brief, spec_of

Kernel = Callable[..., Any]


def op(
    op_type: str, infer: Callable[..., Any] | None = None, *, broadcasting: bool = False, override: bool = False
) -> Callable[[Kernel], Callable[..., Any]]:
    """Decorator that turns a kernel (NumPy arrays in, NumPy arrays out) into an op of type `op_type`.

    Positional arguments of a call are the op's inputs. The kernel receives them as arrays, which it must neither write
    to nor keep: their memory is reused as soon as nothing else reads it, so copy any data that the kernel stores.
    Keyword arguments are static: plain hashable values that are passed to the kernel unchanged and that a gradient
    function finds in `op.attrs`. If the kernel returns a tuple, the op has several outputs and a call returns a list of
    tensors. Every call also takes `name=`.

    Args:
        op_type: the name for RegisterGradient and no_gradient.
        infer: the shape rule `infer(*inputs, **attrs)`. It reads `.shape` and `.dtype` of the inputs and returns
            (shape, dtype), or a list of them for several outputs. Without it, the kernel is called once on zeros.
        broadcasting: inputs broadcast against each other, so gradients are summed back to the inputs' shapes.
        override: replace an existing op type, for example when a notebook cell runs again.

    If no gradient is registered, differentiating through the op raises LookupError.

    >>> import distgrad as dg
    >>> @dg.op("DocSoftplus")
    ... def softplus(x, *, beta=1.0):
    ...     return np.log1p(np.exp(beta * x)) / beta
    >>> @dg.RegisterGradient("DocSoftplus")
    ... def _softplus_grad(op, g):
    ...     return g / (1 + dg.exp(-op.attrs["beta"] * op.inputs[0]))
    >>> softplus(np.array([-1000.0, 0.0]))
    array([0.        , 0.69314718])
    >>> with dg.Graph():
    ...     x = dg.constant(0.0)
    ...     dx = dg.gradients(softplus(x, beta=2.0), x)
    >>> dg.Session().run(dx)
    [array(0.5)]
    """
    if not isinstance(op_type, str):
        raise TypeError(f'op: op_type must be a string, as in @distgrad.op("Softplus"); got {brief(op_type)}')

    def decorate(kernel: Kernel) -> Callable[..., Any]:
        signature = _signature(op_type, kernel)
        rule = _from_zeros(op_type, kernel) if infer is None else _given(op_type, infer)
        definition = define(op_type, rule, kernel=kernel, broadcasting=broadcasting, override=override)

        @functools.wraps(kernel)
        def build(*inputs: Any, name: str | None = None, **attrs: Any) -> Any:
            attrs = _attrs(op_type, signature, inputs, attrs)
            given = tuple(typed(x) for x in inputs)
            made = make_n(definition, given, attrs, name)
            return made if isinstance(rule(*given, **attrs), list) else made[0]

        return build

    return decorate


# -- attributes --------------------------------------------------------------------------------------------------


def _signature(op_type: str, kernel: Kernel) -> inspect.Signature:
    if not callable(kernel):
        raise TypeError(f"op({brief(op_type)}) decorates a kernel function, got {brief(kernel)}")
    try:
        signature = inspect.signature(kernel)
    except ValueError:
        raise TypeError(
            f"op({brief(op_type)}): {brief(kernel)} has no signature to read; wrap it in a Python function"
        ) from None
    if "name" in signature.parameters:
        raise ValueError(
            f"op({brief(op_type)}): the kernel cannot have a parameter `name`, which names the op in a graph"
        )
    return signature


def _attrs(op_type: str, signature: inspect.Signature, inputs: Sequence[Any], attrs: dict[str, Any]) -> dict[str, Any]:
    """The keyword arguments, with the kernel's defaults filled in, so that equal calls make equal ops."""
    try:
        signature.bind(*inputs, **attrs)
    except TypeError as e:
        raise TypeError(f"op {brief(op_type)} (at {here()}): {e}; its kernel is {op_type}{signature}") from None
    optional = [p for p in signature.parameters.values() if p.kind is p.KEYWORD_ONLY and p.default is not p.empty]
    defaults = {p.name: p.default for p in optional}
    return {key: _static(op_type, key, value) for key, value in {**defaults, **attrs}.items()}


def _static(op_type: str, key: str, value: Any) -> Any:
    if isinstance(value, list | tuple):
        return tuple(_static(op_type, key, item) for item in value)
    if isinstance(value, Tensor | np.ndarray) or hasattr(value, "__tensor__"):
        raise TypeError(
            f"op {brief(op_type)} (at {here()}): keyword argument {brief(key)} is {brief(value)}, but keyword "
            f"arguments are static. Pass tensors and arrays by position."
        )
    try:
        hash(value)
    except TypeError:
        raise TypeError(
            f"op {brief(op_type)} (at {here()}): keyword argument {brief(key)} is {brief(value)}, which is not "
            f"hashable. Static arguments are numbers, strings, dtypes, or tuples of them."
        ) from None
    return value


# -- shape rules -------------------------------------------------------------------------------------------------


def _from_zeros(op_type: str, kernel: Kernel) -> Callable[..., Any]:
    """A shape rule that calls the kernel on zeros, once per signature."""
    known: dict[Any, Any] = {}

    def rule(*inputs: Typed, **attrs: Any) -> Any:
        specs = tuple(spec_of(x) for x in inputs)
        items = sorted(attrs.items())
        key = (specs, tuple(items), repr(items))  # the repr too, because 1 == 1.0 == True
        if key not in known:
            known[key] = _on_zeros(op_type, kernel, specs, attrs)
        return known[key]

    return rule


def _on_zeros(op_type: str, kernel: Kernel, specs: Sequence[Spec], attrs: dict[str, Any]) -> Spec | list[Spec]:
    try:
        with outside(), np.errstate(all="ignore"):
            made = kernel(*[np.zeros(spec.shape, spec.dtype) for spec in specs], **attrs)
    except Exception as e:
        raise ValueError(
            f"op {brief(op_type)} (at {here()}): its result types come from one call of the kernel on zeros, and that "
            f"call, on ({', '.join(map(str, specs))}), failed with {type(e).__name__}: {e}. "
            f'If the inputs are right, pass a shape rule: @distgrad.op("{op_type}", infer=...).'
        ) from e
    return [spec_of(np.asarray(x)) for x in made] if isinstance(made, tuple | list) else spec_of(np.asarray(made))


def _given(op_type: str, infer: Callable[..., Any]) -> Callable[..., Any]:
    if not callable(infer):
        raise TypeError(f"op({brief(op_type)}): infer must be a function of the inputs, got {brief(infer)}")

    def rule(*inputs: Typed, **attrs: Any) -> Any:
        made = infer(*inputs, **attrs)
        return [_spec(op_type, item) for item in made] if isinstance(made, list) else _spec(op_type, made)

    return rule


def _spec(op_type: str, made: Any) -> Spec:
    try:
        shape, dtype = made
        return Spec(as_shape(shape), np.dtype(dtype))
    except (TypeError, ValueError):
        raise TypeError(
            f"op {brief(op_type)}: infer returned {brief(made)}; return (shape, dtype), or a list of them for several "
            "outputs"
        ) from None


__all__ = ["op"]
