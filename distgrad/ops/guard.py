"""What a public function says when it is given what it cannot use: its own name, and what it was given.

Functions check their arguments where they can say more. What they do not check fails somewhere below, in Python's or
NumPy's words, which name neither the function nor the argument. One place adds that for all. The functions of
`distgrad.ops` run no code of the user's, so an error that comes out of one is about its arguments. Functions of one or
two arrays alone are left as they are: promotion says what it must, and building them is the hot path.
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

#: What only a mistake in the arguments, met by code that did not expect it, leads to.
_UNCLEAR = (AttributeError, AssertionError, RecursionError, StopIteration, ZeroDivisionError, LookupError, NameError)
#: What is clear as it is: NumPy's errors about axes and matrices, files that are damaged or missing.
_CLEAR = (np.exceptions.AxisError, np.linalg.LinAlgError, CheckpointError, OSError, MemoryError)


def guard(f: Callable[..., Any], *, lookup: bool = False) -> Callable[..., Any]:
    """The function, whose errors name it. With `lookup`, an IndexError is its user's to expect, as in NumPy."""

    @functools.wraps(f)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        try:
            return f(*args, **kwargs)
        except Exception as e:
            raise _named(e, f, args, kwargs, lookup)  # noqa: B904  (the same exception, or one from None)

    return guarded


def guard_all(names: dict[str, Any], public: Iterable[str], lookup: Iterable[str] = ()) -> None:
    """Guard the public functions of a module, except those that are guarded already and those of arrays alone."""
    made: dict[FunctionType, Callable[..., Any]] = {}  # two names of one function stay one function
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
        except Exception:  # a dtype that has no name
            return type(x).__name__
    return brief(x, 60)
