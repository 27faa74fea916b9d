"""The table of NumPy programs: each has a function that makes its arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple


class Program(NamedTuple):
    name: str
    run: Callable[..., Any]
    #: From a random generator to the arguments, of small sizes.
    make: Callable[[Any], tuple[Any, ...]]
    #: Whether the second derivative is compared too.
    second: bool


#: Filled while a file of programs runs.
PROGRAMS: list[Program] = []


def program(make: Callable[[Any], tuple[Any, ...]], second: bool = True) -> Callable[[Any], Any]:
    """Enter a program into the table."""

    def enter(f: Any) -> Any:
        PROGRAMS.append(Program(f.__name__, f, make, second))
        return f

    return enter
