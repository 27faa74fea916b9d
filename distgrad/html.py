"""HTML for notebooks: tables of text, truncated if long. All text is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from itertools import islice
from typing import TYPE_CHECKING

from distgrad.printing import format_attrs
from distgrad.types import type_text

if TYPE_CHECKING:
    from distgrad.graph import Operation, Tensor

#: Maximum rows of a table; notebooks store their output in the file.
MAX_ROWS = 50
#: Maximum characters of a cell, and maximum inputs or outputs listed per op.
MAX_TEXT, MAX_VALUES = 400, 6

_CELL = 'style="text-align: left"'


def block(title: str, *parts: str) -> str:
    """A title, followed by parts that are HTML.

    >>> block("1 < 2", "<p>yes</p>")
    '<div><strong>1 &lt; 2</strong><p>yes</p></div>'
    """
    return f"<div><strong>{escape(title)}</strong>{''.join(parts)}</div>"


def line(text: str) -> str:
    return f"<p>{escape(text)}</p>"


def table(head: Sequence[str], rows: Iterable[Sequence[str]], count: int, what: str) -> str:
    """A table of the first rows, and how many of the `count` rows are left out.

    >>> table(["op"], [["<Exp>"]], 3, "ops").partition("</table>")[2]
    '<p>and 2 more ops</p>'
    """
    shown = list(islice(rows, MAX_ROWS))
    body = "".join([f"<tr>{_cells('td', row)}</tr>" for row in shown])
    more = line(f"and {count - len(shown):,} more {what}") if count > len(shown) else ""
    return f"<table><thead><tr>{_cells('th', head)}</tr></thead><tbody>{body}</tbody></table>{more}"


def _cells(tag: str, texts: Iterable[str]) -> str:
    return "".join([f"<{tag} {_CELL}>{escape(_cut(text))}</{tag}>" for text in texts])


def _cut(text: str) -> str:
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "…"


def listed(texts: Sequence[str]) -> str:
    """The first texts, separated by commas."""
    more = f", and {len(texts) - MAX_VALUES} more" if len(texts) > MAX_VALUES else ""
    return ", ".join(texts[:MAX_VALUES]) + more


# -- graphs ------------------------------------------------------------------------------------------------------


def graph_html(title: str, ops: Sequence[Operation]) -> str:
    """The ops of a graph, one per row, with their lines of user code."""
    head = ["", "op", "reads", "makes", "attributes", "line"]
    return block(title, table(head, [_op(op) for op in ops[:MAX_ROWS]], len(ops), "ops"))


def _op(op: Operation) -> list[str]:
    reads = [_name(t) for t in op.inputs] + [f"after {c.name}" for c in op.control_inputs]
    makes = [type_text(t.shape, t.dtype) for t in op.outputs]
    kind = f"{op.type} @{op.device}" if op.device else op.type
    return [op.name, kind, listed(reads), listed(makes), listed(format_attrs(op.attrs)), str(op.source)]


def _name(t: Tensor) -> str:
    return t.op.name if len(t.op.outputs) == 1 else t.name
