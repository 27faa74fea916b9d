"""`distgrad doctor`: checks this machine and its cluster, and says how to fix each problem."""

from __future__ import annotations

import json
import os
import sys
import textwrap
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from distgrad.cli.console import FAILED, AsJson, app
from distgrad.cli.run import cluster_address

if TYPE_CHECKING:
    from distgrad.workers.tools.doctor import Finding

ADDRESS = "Address of a Ray cluster to check; RAY_ADDRESS, or the Ray started on this machine, by default."
COLOURS = {"ok": "green", "warning": "yellow", "problem": "red"}


@app.command()
def doctor(
    address: Annotated[str | None, typer.Option(metavar="ADDRESS", help=ADDRESS)] = None, as_json: AsJson = False
) -> None:
    """Check this machine for problems.

    Checks versions, CPUs, BLAS, memory, the object store, GPUs and Ray, and says how to fix each problem. The exit code
    is 1 if there is a problem; warnings do not count.
    """
    found = []
    for finding in _findings(address and cluster_address(address)):
        found.append(finding)
        if not as_json:
            _tell(finding)
    if as_json:
        typer.echo(json.dumps([finding._asdict() for finding in found], indent=2))
    else:
        typer.echo(f"\n{_summary(found)}")
    if any(finding.state == "problem" for finding in found):
        raise typer.Exit(FAILED)


def _findings(address: str | None) -> Iterator[Finding]:
    from distgrad.workers.on_ray import health
    from distgrad.workers.tools import doctor as machine

    yield from machine.findings()
    yield from health.findings(address)


def _tell(finding: Finding) -> None:
    typer.echo(f"{_state(finding.state)} {finding.what:16} {finding.found}")
    if finding.remedy:
        typer.echo(textwrap.indent(finding.remedy, " " * 8 + "  → "))


def _state(state: str) -> str:
    coloured = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    return typer.style(f"{state:8}", fg=COLOURS[state]) if coloured else f"{state:8}"


def _summary(found: Sequence[Finding]) -> str:
    count = {state: sum(finding.state == state for finding in found) for state in ("problem", "warning")}
    if not any(count.values()):
        return "No problems found."
    return ", ".join(f"{n} {state}{'s' * (n != 1)}" for state, n in count.items() if n)
