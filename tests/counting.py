"""How much work a call is, in a unit that is the same on a busy machine."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


def steps(f: Callable[[], Any]) -> int:
    """How many bytecode instructions f takes."""
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
