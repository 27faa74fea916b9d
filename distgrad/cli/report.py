"""`distgrad report`: turns a trace into an HTML report."""

from __future__ import annotations

import json
import webbrowser
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from distgrad.cli.console import MISUSED, AsJson, app, fail


@app.command()
def report(
    trace: Annotated[Path, typer.Argument(metavar="TRACE", help="A trace file written by Session(trace=...).")],
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File to write; next to the trace by default.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite a file even if --output does not name it.")] = False,
    show: Annotated[bool, typer.Option("--open", help="Open the report in a browser.")] = False,
    as_json: AsJson = False,
) -> None:
    """Turn a trace into a report: the plan as a graph, its timeline, memory, and the slowest ops.

    The report is a single HTML file that works offline; its path is printed.
    """
    from distgrad.files import write_text
    from distgrad.report import page, read

    path = trace.with_suffix(".html") if output is None else output
    if path.absolute() == trace.absolute():
        fail(f"the report {path} would overwrite the trace: choose another file with --output", MISUSED)
    try:
        document = read(trace)
    except OSError as e:
        fail(f"cannot read {trace}: {e.strerror}", MISUSED)
    except ValueError as e:
        fail(str(e), MISUSED)
    text = page(document)
    try:
        if output is None and not force and path.exists() and path.read_bytes() != text.encode():
            fail(f"{path} exists and is not the report of this trace: overwrite it with --force, or choose another "
                 f"file with --output", MISUSED)  # fmt: skip
        write_text(path, text)
    except OSError as e:
        fail(e.strerror or str(e), MISUSED)
    if show:
        webbrowser.open(path.resolve().as_uri())
    typer.echo(json.dumps(_summary(document, path), indent=2) if as_json else path)


def _summary(document: Mapping[str, Any], path: Path) -> dict[str, Any]:
    trace = document["distgrad"]
    return {
        "page": str(path),
        "engine": trace["engine"],
        "made": trace["made"],
        "plans": [_plan(plan) for plan in trace["plans"]],
    }


def _plan(plan: Mapping[str, Any]) -> dict[str, Any]:
    measured, runs = plan["measured"], plan["runs"]
    return {
        "name": plan["name"],
        "tasks": len(plan["tasks"]),
        "steps": plan["steps"],
        "runs": runs["count"],
        "predicted_seconds": plan["predictions"]["seconds"],
        "measured_seconds": runs["seconds"][-1] if runs["seconds"] else None,
        "peak_bytes": plan["predictions"]["peak_bytes"],
        "budget": plan["budget"],
        "tasks_run_again": 0 if measured is None else sum(measured["again"].values()),
        "slowest": plan["ops"][:3],
    }
