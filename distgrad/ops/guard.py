"""Errors of public functions for invalid arguments: they name the function and the arguments.

Functions check their arguments if they can give a specific error. Anything unchecked fails somewhere below, with a
message of Python or NumPy that names neither the function nor the argument; the wrapper here adds both. The functions
of `distgrad.ops` run no user code, so any error is about the arguments. Elementwise functions are not wrapped: their
errors are clear already, and building them is the hot path.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from types import FunctionType
from typing import Any

import numpy as np

from distgrad.errors import CheckpointError
from distgrad.graph import Tensor
from distgrad.types import brief, spec_of

#: Errors of unchecked arguments, replaced by a clear one.
_UNCLEAR = (AttributeError, AssertionError, RecursionError, StopIteration, ZeroDivisionError, LookupError, NameError)
#: Errors that are clear already: NumPy's about axes and matrices, damaged or missing files.
_CLEAR = (np.exceptions.AxisError, np.linalg.LinAlgError, CheckpointError, OSError, MemoryError)


def guard(f: Callable[..., Any], *, lookup: bool = False) -> Callable[..., Any]:
    """Wrap a function so that its errors name it. With `lookup`, an IndexError passes unchanged, as in NumPy."""

    @functools.wraps(f)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        try:
            return f(*args, **kwargs)
        except Exception as e:
            raise _named(e, f, args, kwargs, lookup)  # noqa: B904  (the same exception, or one from None)

    return guarded


def guard_all(names: dict[str, Any], public: Iterable[str], lookup: Iterable[str] = ()) -> None:
    """Wrap the public functions of a module, except those that are already wrapped and elementwise ones."""
    made: dict[FunctionType, Callable[..., Any]] = {}  # aliases stay the same function
    for name in public:
        f = names[name]
        if isinstance(f, FunctionType) and not hasattr(f, "__wrapped__") and not hasattr(f, "of_arrays"):
            names[name] = made[f] if f in made else made.setdefault(f, guard(f, lookup=name in lookup))


def _named(e: Exception, f: Callable[..., Any], args: Any, kwargs: Any, lookup: bool) -> Exception:
    if isinstance(e, _CLEAR) or (lookup and isinstance(e, IndexError)):
        return e
    name, text = f.__name__, str(e)
    if isinstance(e, _UNCLEAR):
        kind = ValueError if isinstance(e, LookupError | ZeroDivisionError) else TypeError
        made = kind(f"{name}: cannot work with {_shown(args, kwargs)}: see help(distgrad's {name}) for what it takes")
        made.__cause__ = e
        return made
    named = f"{name}:" in text or f"{name}(" in text or text.startswith(f"{name} ")
    if isinstance(e, TypeError | ValueError | OverflowError) and not named and len(e.args) == 1:
        e.args = (f"{name}: {text}; it was called with {_shown(args, kwargs)}",)
    return e


def _shown(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    given = [*map(_brief, args), *(f"{key}={_brief(value)}" for key, value in kwargs.items())]
    return f"({', '.join(given[:8])}{', ...' if len(given) > 8 else ''})"


def _brief(x: Any) -> str:
    if isinstance(x, Tensor | np.ndarray):
        try:
            return str(spec_of(x))
        except Exception:  # a dtype without a name
            return type(x).__name__
    return brief(x, 60)
