"""Measures the work of a call in units that do not depend on the load of the machine."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any


def steps(f: Callable[[], Any]) -> int:
    """The number of bytecode instructions that f executes."""
    count = 0

    def trace(frame: Any, event: str, arg: Any) -> Any:
        nonlocal count
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        f()
    finally:
        sys.settrace(before)
    return count


def calls(f: Callable[[], Any], functions: Sequence[Callable[..., Any]]) -> dict[Callable[..., Any], int]:
    """How often f calls each of these functions in this thread, by any name."""
    count = {function.__code__: 0 for function in functions}

    def profile(frame: Any, event: str, arg: Any) -> None:
        if event == "call" and frame.f_code in count:
            count[frame.f_code] += 1

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        f()
    finally:
        sys.setprofile(before)
    return {function: count[function.__code__] for function in functions}
