"""A tape of calls as straight-line Python: each call one line, every array a name.

For arrays of a few elements the loop over a tape costs a third of the time; a line without indexing and packing of
arguments costs half of that. The code is compiled once per tape; binding it to an arena gives it that arena's arrays as
its globals.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from types import CodeType, FunctionType, TracebackType
from typing import Any

from distgrad.workers.calls import TapeCall, nothing

#: A longer tape would take longer to compile than it saves in a hundred runs.
LONGEST = 4096
#: Calls of one function.
CHUNK = 512

_FILE = "<distgrad tape>"
#: The line of the first call: behind the def and the line that loads slots.
_FIRST = 3

Chunk = Callable[[list[Any]], None]


class Straight:
    """The calls of a tape as functions of the slots. Slots in `static` have the same array in every run of an arena."""

    def __init__(self, calls: Sequence[TapeCall], static: Collection[int]):
        names: dict[int, str] = {}
        self._functions: dict[str, Any] = {}
        for call in calls:
            name = names.setdefault(id(call.run), f"f{len(names)}")
            self._functions[name] = call.run
        self._static = [(f"s{i}", i) for i in static]
        parts = [calls[i : i + CHUNK] for i in range(0, len(calls), CHUNK)]
        self._codes = [_code(part, frozenset(static), names) for part in parts]

    def bound(self, slots: Sequence[Any]) -> list[Chunk]:
        """The functions for the arrays of one arena."""
        names = {**self._functions, **{name: slots[i] for name, i in self._static}}
        return [FunctionType(code, names) for code in self._codes]


def failed_at(traceback: TracebackType | None) -> int:
    """The call of its chunk at which a generated function was when something was raised in it."""
    while traceback is not None and traceback.tb_frame.f_code.co_filename != _FILE:
        traceback = traceback.tb_next
    return 0 if traceback is None else max(traceback.tb_lineno - _FIRST, 0)


def _code(calls: Sequence[TapeCall], static: frozenset[int], names: dict[int, str]) -> CodeType:
    made: set[int] = set()
    loads: dict[int, None] = {}
    lines = []
    for call in calls:
        loads.update(dict.fromkeys([i for i in call.args if i not in static and i not in made]))
        lines.append(f"    {_line(call, static, names)}")
        made.add(call.out)
    head = "; ".join([f"s{i} = slots[{i}]" for i in loads]) or "pass"
    module = compile("\n".join(["def chunk(slots):", f"    {head}", *lines]), _FILE, "exec")
    return next(const for const in module.co_consts if isinstance(const, CodeType))


def _line(call: TapeCall, static: frozenset[int], names: dict[int, str]) -> str:
    """What changes from run to run is in the slots too, for other chunks and for the end."""
    out = "" if call.out in static else f"s{call.out} = slots[{call.out}] = "
    if call.run is nothing:
        return f"{out}None"
    return f"{out}{names[id(call.run)]}({', '.join([f's{i}' for i in call.args])})"
