"""Checks of what grad, vjp, jvp and the like are given: functions, arguments, tangents and results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from distgrad import nest
from distgrad.graph import Tensor
from distgrad.ops.builder import as_array, convert
from distgrad.tracing.function import positional_names, signature_of
from distgrad.types import Spec, brief, spec_of, trainable


def check_function(what: str, f: Any) -> None:
    if not callable(f):
        raise TypeError(f"{what} takes a function and differentiates it, got {brief(f)}")


def checked(what: str, f: Any, args: Sequence[Any], argnums: Any) -> tuple[Any, ...]:
    """The arguments, with those to differentiate converted to tensors, or to arrays outside a graph.

    Python numbers become arrays too; otherwise every new number would be a new trace."""
    made = list(args)
    for i in listed(argnums):
        if not isinstance(i, int) or not -len(args) <= i < len(args):
            raise ValueError(
                f"{what}: argnums is {brief(argnums)}, but {name_of(f)} is called with {len(args)} arguments"
            )
        named = nest.paths(args[i], _argument_name(f, i % len(args)))
        made[i] = nest.unflatten(args[i], [_variable(what, f, leaf, name) for name, leaf in named])
    return tuple(made)


def _variable(what: str, f: Any, x: Any, name: str) -> Any:
    try:
        made = convert(x)
    except TypeError as e:
        raise TypeError(f"{what}: argument {name} of {name_of(f)} cannot be differentiated: {e}") from None
    if made.dtype.kind in "US":
        raise TypeError(f"{what}: argument {name} of {name_of(f)} is a string: leave it out with argnums, or bind it")
    if not trainable(made.dtype):
        raise TypeError(
            f"{what}: argument {name} of {name_of(f)} has dtype {made.dtype}, and only floats and complex numbers can "
            f"be differentiated. Pass it as a float, or leave it out with argnums."
        )
    return made


def listed(argnums: Any) -> list[int]:
    if isinstance(argnums, int):
        return [argnums]
    if not isinstance(argnums, Sequence) or isinstance(argnums, str | bytes) or len(argnums) > 10_000:
        raise TypeError(f"argnums is the number of an argument, or a sequence of them, got {brief(argnums)}")
    return list(argnums)


def paired(what: str, f: Any, primals: Any, tangents: Any) -> tuple[Any, Any]:
    """Arguments, and the flat list of their tangents."""
    if not isinstance(tangents, tuple) or len(tangents) != len(primals):
        raise ValueError(f"{what}: tangents must be a tuple of {len(primals)}, one per primal, got {brief(tangents)}")
    args = checked(what, f, primals, range(len(primals)))
    return args, fitting(f"{what}: tangents", tangents, args)


def select(args: Sequence[Any], argnums: Any, found: Sequence[Tensor]) -> Any:
    """Flat gradients, packed into the structure of their arguments."""
    rest = iter(found)
    if isinstance(argnums, int):
        return nest.map_structure(lambda _: next(rest), args[argnums])
    return tuple([nest.map_structure(lambda _: next(rest), args[i]) for i in argnums])


def scalar(what: str, f: Any, y: Any) -> Tensor:
    remedy = "Use jacobian or vjp for other values, or sum it."
    if isinstance(y, list | tuple | dict) or y is None:
        remedy += " has_aux=True takes a pair."
        raise TypeError(f"{what}: {name_of(f)} must return one scalar tensor, got {brief(y)}. {remedy}")
    made = convert(y)
    if made.shape:
        raise ValueError(f"{what}: {name_of(f)} must return a scalar, but returned {spec_of(made)}. {remedy}")
    if not trainable(made.dtype) or made.dtype.kind == "c":
        raise TypeError(f"{what}: {name_of(f)} must return a real float, but returned {spec_of(made)}. {remedy}")
    return made


def with_aux(what: str, f: Any, result: Any) -> tuple[Any, Any]:
    """The pair (value, aux) that f returned."""
    if not isinstance(result, tuple) or len(result) != 2:
        raise TypeError(
            f"{what}: with has_aux=True {name_of(f)} must return a pair (value, anything), got {brief(result)}"
        )
    return result


def fitting(what: str, values: Any, like: Any) -> list[Tensor]:
    """Values as tensors with the structure, shapes and dtypes of `like`; Python numbers take the dtype."""
    given, wanted = list(nest.paths(values)), list(nest.paths(like))
    names, others = [name for name, _ in given], [name for name, _ in wanted]
    if names != others:
        raise ValueError(f"{what} have a different structure: {names} for {others}")
    return [_fit(what, value, t, name) for (name, value), (_, t) in zip(given, wanted, strict=True)]


def _fit(what: str, value: Any, t: Tensor, name: str) -> Tensor:
    if not trainable(t.dtype):
        return t  # values given for integers are ignored
    made = convert(value) if hasattr(value, "dtype") else convert(as_array(value, t.dtype))
    if spec_of(made) != spec_of(t):
        raise ValueError(f"{what} do not fit: {name or 'it'} is {spec_of(made)} and must be {Spec(t.shape, t.dtype)}")
    return made


# -- names -------------------------------------------------------------------------------------------------------


def short_name(f: Any) -> str:
    return str(getattr(f, "__name__", type(f).__name__))


def name_of(f: Any) -> str:
    return repr(getattr(f, "__qualname__", short_name(f)))


def _argument_name(f: Any, i: int) -> str:
    names, rest = positional_names(signature_of(f))
    return f"{names[i]!r}" if i < len(names) else f"{rest}[{i - len(names)}]"
