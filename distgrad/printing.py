"""Graphs as text, one op per line."""

from __future__ import annotations

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
    """`key=value` for each attribute, long values cut."""
    return [f"{key}={_format_attr(value)}" for key, value in attrs.items()]


def _format_attr(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else text[:57] + "..."
