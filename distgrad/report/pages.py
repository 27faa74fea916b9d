"""The page of a trace: templates, libraries and data in one HTML file that loads nothing else."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from html import escape
from importlib.resources import files
from typing import Any

from distgrad.report.read import check

#: Scripts of the page, in load order.
SCRIPTS = (
    "vendor/echarts.min.js",
    "page.model.js",
    "page.style.js",
    "page.text.js",
    "page.chart.js",
    "page.graph.js",
    "page.timeline.js",
    "page.memory.js",
    "page.tables.js",
    "page.main.js",
)
#: Scripts of its background worker, which lays out the tasks.
WORKER = ("vendor/d3-dag.min.js", "page.layout.js")
LICENCES = ("vendor/LICENSE-echarts.txt", "vendor/LICENSE-d3-dag.txt")

_SLOT = re.compile(r"\{\{(\w+)\}\}")


def page(document: Mapping[str, Any]) -> str:
    """The report of a trace as HTML. Raises ValueError if `document` is not a trace.

    >>> page({"traceEvents": []})
    Traceback (most recent call last):
    ValueError: this is not a trace of distgrad: it has no key 'distgrad'
    """
    trace = check(document)
    slots = {
        "title": escape(f"{trace['plans'][0]['name']} - distgrad report"),
        "style": _text("page.css"),
        "trace": _json(trace),
        "worker": _json("\n".join([_text(name) for name in WORKER])),
        "scripts": "\n".join([f"<script>\n{_text(name)}\n</script>" for name in SCRIPTS]),
        "licences": escape("\n\n".join([_text(name) for name in LICENCES])),
    }
    return _SLOT.sub(lambda found: slots[found[1]], _text("page.html"))


def _text(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _json(data: Any) -> str:
    """JSON that is safe inside a script element: no text in it can end the element or open a comment."""
    return json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
