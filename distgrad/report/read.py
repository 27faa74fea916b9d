"""Reads traces from files and checks every field that the page relies on."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from distgrad.scheduler.trace import FORMAT

NUMBER = (int, float)
NONE = type(None)
_POINTS = [[NUMBER]]
_TIMELINE = {"start": [NUMBER], "end": [NUMBER], "worker": [int], "places": [str], "memory": [_POINTS]}

#: Required fields of a plan. `[x]` is a list of x; types are as for isinstance.
PLAN: dict[str, Any] = {
    "name": str,
    "steps": int,
    "budget": (int, NONE),
    "predictions": {
        "seconds": NUMBER,
        "bytes_moved": NUMBER,
        "peak_bytes": NUMBER,
        "work_seconds": NUMBER,
        "critical_seconds": NUMBER,
    },
    "tasks": [
        {
            "ops": str,
            "line": str,
            "steps": int,
            "seconds": NUMBER,
            "memory": NUMBER,
            "cpus": int,
            "gpus": int,
            "device": (str, NONE),
            "worker": int,
            "kind": str,
            "reads": [int],
            "waits": [int],
        }
    ],
    "bundles": [{"task": int, "readers": [int], "nbytes": NUMBER, "values": int}],
    "predicted": _TIMELINE,
    "measured": (dict, NONE),
    "runs": {"count": int, "seconds": [NUMBER], "began": (*NUMBER, NONE)},
    "ops": [{"op": str, "line": str, "seconds": NUMBER, "calls": int, "predicted": (*NUMBER, NONE)}],
    "ops_measured": bool,
}
#: Optional fields, which traces of earlier versions lack.
MORE_OF_PLAN: dict[str, Any] = {"decides": str}
MORE_OF_TASK: dict[str, Any] = {"all": str}
MEASURED: dict[str, Any] = {**_TIMELINE, "resident": [_POINTS], "again": dict, "reasons": [str]}
TRACE: dict[str, Any] = {
    "version": str,
    "made": str,
    "engine": str,
    "cluster": {"name": str, "nodes": int, "workers": [{"cpus": int, "gpus": int, "memory": NUMBER, "node": int}]},
    "plans": [PLAN],
}


def read(path: str | Path) -> dict[str, Any]:
    """Read a trace. Raises ValueError with a one-line message if it is not a trace, OSError if it cannot be read."""
    try:
        document = json.loads(Path(path).read_bytes(), parse_constant=_refuse)
    except (ValueError, RecursionError) as e:
        raise ValueError(f"{path} is not a trace: {_unreadable(e)}. {_WRITTEN}") from None
    try:
        check(document)
    except ValueError as e:
        raise ValueError(f"{path}: {e}. {_WRITTEN}") from None
    return document  # type: ignore[no-any-return]


_WRITTEN = "Traces are written by Session(trace='trace.json') and Session.write_trace."


def _unreadable(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"it is not JSON, or is cut off ({error.msg}, at line {error.lineno}, column {error.colno})"
    if isinstance(error, UnicodeDecodeError):
        return "it is not a text file"
    return "it is nested too deeply" if isinstance(error, RecursionError) else str(error)


def _refuse(text: str) -> None:
    raise ValueError(f"it has {text}, which is not a JSON number")


def check(document: Any) -> dict[str, Any]:
    """The content of a trace's key `distgrad`. Raises ValueError at the first field that the page cannot draw."""
    if not isinstance(document, Mapping) or not isinstance(document.get("distgrad"), dict):
        raise ValueError("this is not a trace of distgrad: it has no key 'distgrad'")
    trace: dict[str, Any] = document["distgrad"]
    if trace.get("format") != FORMAT:
        raise ValueError(
            f"the trace has format {trace.get('format')!r}, but this distgrad reads {FORMAT}: "
            f"read it with the version that wrote it ({trace.get('version', 'unknown')})"
        )
    _check_fields(trace, TRACE, "distgrad")
    if not trace["plans"]:
        raise ValueError("the trace has no plans: nothing ran while it was recorded")
    for i, plan in enumerate(trace["plans"]):
        _check_plan(plan, f"distgrad.plans[{i}]")
    return trace


def _check_fields(value: Any, wanted: Any, where: str) -> None:
    """Check a value against a description of fields. Recursion is as deep as the description, not the data."""
    if isinstance(wanted, dict):
        if not isinstance(value, dict):
            raise ValueError(f"{where} is not an object")
        for key, inner in wanted.items():
            if key not in value:
                raise ValueError(f"{where}.{key} is missing")
            _check_fields(value[key], inner, f"{where}.{key}")
    elif isinstance(wanted, list):
        if not isinstance(value, list):
            raise ValueError(f"{where} is not a list")
        for i, item in enumerate(value):
            _check_fields(item, wanted[0], f"{where}[{i}]")
    elif not isinstance(value, wanted) or (isinstance(value, bool) and wanted is not bool):
        raise ValueError(f"{where} is {value!r:.40}, which is invalid")
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{where} is {value}, which is not a JSON number")


def _check_more(value: Mapping[str, Any], wanted: Mapping[str, Any], where: str) -> None:
    """The same for optional fields."""
    for key in wanted.keys() & value.keys():
        _check_fields(value[key], wanted[key], f"{where}.{key}")


def _check_plan(plan: Mapping[str, Any], where: str) -> None:
    count = len(plan["tasks"])
    if not count:
        raise ValueError(f"{where} has no tasks")
    _check_more(plan, MORE_OF_PLAN, where)
    for k, task in enumerate(plan["tasks"]):
        _check_more(task, MORE_OF_TASK, f"{where}.tasks[{k}]")
        for field in ("reads", "waits"):
            _check_places(task[field], k, f"{where}.tasks[{k}].{field}", "an earlier task")
    for i, bundle in enumerate(plan["bundles"]):
        _check_places([bundle["task"], *bundle["readers"]], count, f"{where}.bundles[{i}]", "a task")
    _check_timeline(plan["predicted"], count, f"{where}.predicted")
    if plan["measured"] is not None:
        _check_fields(plan["measured"], MEASURED, f"{where}.measured")
        _check_timeline(plan["measured"], count, f"{where}.measured")


def _check_timeline(timeline: Mapping[str, Any], count: int, where: str) -> None:
    for field in ("start", "end", "worker"):
        if len(timeline[field]) != count:
            raise ValueError(f"{where}.{field} has {len(timeline[field])} entries for {count} tasks")
    _check_places(timeline["worker"], len(timeline["places"]), f"{where}.worker", "a place")


def _check_places(found: Sequence[int], end: int, where: str, what: str) -> None:
    for i in found:
        if not 0 <= i < end:
            raise ValueError(f"{where} has {i}, which is not {what}")
