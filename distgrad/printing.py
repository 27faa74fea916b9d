"""Text for graphs (one op per line), bytes and seconds; parsing of byte counts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from distgrad.types import type_text

if TYPE_CHECKING:
    from distgrad.graph import Operation, Tensor


def format_ops(ops: Sequence[Operation]) -> str:
    """One node per line: `%7 f32[8,3] = MatMul(%2, %5)  # model.py:12`."""
    ids: dict[Tensor, int] = {}
    lines = []
    for op in ops:
        for t in op.outputs:
            ids[t] = len(ids)
        lines.append(_format_op(op, ids))
    return "\n".join(lines)


def _format_op(op: Operation, ids: Mapping[Tensor, int]) -> str:
    made = ", ".join([f"%{ids[t]} {type_text(t.shape, t.dtype)}" for t in op.outputs])
    read = [f"%{ids[t]}" if t in ids else t.name for t in op.inputs]
    if op.attrs:
        read += format_attrs(op.attrs)
    after = f" after {', '.join(c.name for c in op.control_inputs)}" if op.control_inputs else ""
    place = f" @{op.device}" if op.device else ""
    return f"{made or op.name} = {op.type}({', '.join(read)}){after}{place}  # {op.source}"


def format_attrs(attrs: Mapping[str, Any]) -> list[str]:
    """`key=value` for each attribute, long values truncated."""
    return [f"{key}={_format_attr(value)}" for key, value in attrs.items()]


def _format_attr(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else text[:57] + "..."


def bytes_text(n: float) -> str:
    """
    >>> bytes_text(999), bytes_text(1536), bytes_text(3 << 30)
    ('999 B', '1.5 KiB', '3.0 GiB')
    """
    for unit in ("B", "KiB", "MiB", "GiB"):
        if n < 1024:
            return f"{n:.0f} B" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1024
    return f"{n:.1f} TiB"


#: Units of bytes; case does not matter.
UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
UNITS |= {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_UNITS = {"": 1, **{name.lower(): size for name, size in UNITS.items()}}


def bytes_from(text: str) -> float | None:
    """Parse a number of bytes, possibly infinite; None if the text is invalid.

    >>> bytes_from("1.5 GiB"), bytes_from("2kb"), bytes_from("1000"), bytes_from("4 apples")
    (1610612736.0, 2000.0, 1000.0, None)
    """
    found = re.fullmatch(r"\s*(\d+\.?\d*)\s*([a-zA-Z]*)\s*", text)
    unit = found and _UNITS.get(found[2].lower())
    return float(found[1]) * unit if found and unit else None


def time_text(seconds: float) -> str:
    """
    >>> time_text(0), time_text(4.2e-5), time_text(0.0125), time_text(3.25), time_text(7200)
    ('0 s', '42.0 µs', '12.5 ms', '3.25 s', '2.0 h')
    """
    for unit, size in (("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * size or (unit == "min" and seconds >= size):
            return f"{seconds / size:.1f} {unit}"
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{seconds * 1e3:.1f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.1f} µs" if seconds else "0 s"
