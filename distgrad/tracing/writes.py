"""What happens to arguments that a traced function assigns to, which NumPy would change for the caller.

In the trace an argument is a value, and the function's name for it goes on to the next one. `writes` of `function` says
what becomes of the last: 'copy' forgets it, 'return' appends it to the result, 'back' copies it into the caller's array
once the call has succeeded.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from distgrad.graph import FuncGraph
from distgrad.ops.assignment.names import Memory
from distgrad.types import brief

MODES = ("copy", "return", "back")


class Written(NamedTuple):
    """The arguments that a trace assigns to: their places among its inputs, their names, the first line of each."""

    places: tuple[int, ...] = ()
    names: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()
    #: Whether the trace takes its arguments to be C-contiguous.
    ordered: bool = False


NOTHING = Written()


def check_mode(mode: Any) -> str:
    if mode not in MODES:
        raise ValueError(f"function: writes must be 'copy', 'return' or 'back', got {brief(mode)}")
    return str(mode)


def written(body: FuncGraph, names: Sequence[str]) -> tuple[Written, list[Memory]]:
    """The arguments that were assigned to while this body was traced, in order."""
    found: list[Memory] = [m for m in body.memo("arguments", list) if m.version]
    found.sort(key=lambda memory: memory.argument or 0)
    places = tuple([m.argument for m in found if m.argument is not None])
    if not places:
        return NOTHING, []
    lines = tuple([m.where for m in found])
    return Written(places, tuple([names[i] for i in places]), lines, bool(body.memo("reshaped", list))), found


def warn(name: str, names: Sequence[str], lines: Sequence[str], stacklevel: int = 3) -> None:
    """For 'copy': the caller's arrays stay as they are, unlike in NumPy."""
    listed = ", ".join(f"{argument} (first at {line})" for argument, line in zip(names, lines, strict=True))
    warnings.warn(
        f"{name} assigns to its argument{'s' if len(names) > 1 else ''} {listed}: the caller's array stays as it was. "
        f"distgrad.function(f, writes='return') appends the new value to the result, writes='back' copies it into the "
        f"caller's array, and x = x.copy() at the beginning says that no one should see it.",
        stacklevel=stacklevel,
    )


def appended(result: Any, values: list[Any]) -> Any:
    """The result with the values of changed arguments behind it."""
    if result is None:
        return values[0] if len(values) == 1 else tuple(values)
    return (*result, *values) if type(result) is tuple else (result, *values)


def check_call(name: str, known: Written, arrays: Sequence[Any], back: bool) -> None:
    """Errors for arguments with which NumPy would do something else."""
    for place, argument in zip(known.places, known.names, strict=True):
        x = arrays[place]
        for i, other in enumerate(arrays):
            if (
                i != place
                and isinstance(x, np.ndarray)
                and isinstance(other, np.ndarray)
                and np.shares_memory(x, other)
            ):
                raise ValueError(
                    f"{name} assigns to its argument {argument}, which shares memory with argument {i}: in NumPy both "
                    f"would change. Pass a copy of one of them."
                )
        if back and not (isinstance(x, np.ndarray) and x.flags.writeable):
            raise ValueError(f"{name} copies the new value of {argument} back (writes='back'): pass a writable array")
    if known.ordered and any(isinstance(x, np.ndarray) and not x.flags.c_contiguous for x in arrays):
        raise ValueError(
            f"{name} assigns to a reshaped array, which is a view of it only if it is C-contiguous: pass "
            f"numpy.ascontiguousarray(x)"
        )


def copy_back(known: Written, arrays: Sequence[Any], values: Sequence[Any]) -> None:
    """The new values into the caller's arrays: types were checked, so nothing here can fail halfway."""
    for place, value in zip(known.places, values, strict=True):
        np.copyto(arrays[place], value)
