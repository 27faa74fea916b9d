"""`distgrad calibrate`: measure this machine once."""

from __future__ import annotations

import json
import warnings
from typing import TYPE_CHECKING, Annotated, Any

import typer

from distgrad.cli.console import AsJson, app, fail, say

if TYPE_CHECKING:
    from distgrad.scheduler.cluster import Machine


@app.command()
def calibrate(
    threads: Annotated[int | None, typer.Option(help="Threads that a task may use; all cpus by default.")] = None,
    as_json: AsJson = False,
    force: Annotated[bool, typer.Option("--force", help="Measure again what was measured before.")] = False,
) -> None:
    """Measure this machine once, for predictions in its seconds."""
    from distgrad.workers.tools import calibrate as calibration

    try:
        count = None if threads is None else calibration.check_threads(threads)
    except ValueError as e:
        raise typer.BadParameter(str(e), param_hint="--threads") from None
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        try:
            found = calibration.calibrate(count, force=force, progress=_progress)
        except OSError as e:
            fail(f"{e.strerror}")
    if as_json:
        typer.echo(json.dumps(calibration.document(found, count), indent=2))
    else:
        typer.echo(table(found))
        typer.echo(f"kept in {calibration.cache_file(count)}")


def _progress(text: str) -> None:
    say(f"{text} ...")


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    say(f"warning: {message}")


#: Name of a rate, the factor and the unit that it is shown in, and what it is.
_ROWS = (
    ("gemm_flops", 1e-9, "Gflop/s", "matrix product, float32, one cpu"),
    ("gemm_flops64", 1e-9, "Gflop/s", "matrix product, float64, one cpu"),
    ("gemm_half", 1, "", "smallest dimension at half of that rate"),
    ("gemm_parallel", 100, "%", "of a cpu gained with each further one"),
    ("memory_bandwidth", 1e-9, "GB/s", "memory, all cpus"),
    ("memory_bandwidth_one", 1e-9, "GB/s", "memory, one cpu"),
    ("cache_bandwidth", 1e-9, "GB/s", "cache, one cpu"),
    ("cache_bytes", 2.0**-20, "MiB", "stay in cache"),
    ("fresh_bandwidth", 1e-9, "GB/s", "memory touched for the first time"),
    ("elementwise", 1e-9, "G/s", "cheap functions of elements, float32, one cpu"),
    ("transcendental", 1e-9, "G/s", "exp and such, float32, one cpu"),
    ("irregular", 1e-6, "M/s", "places visited one by one, one cpu"),
    ("kernel_seconds", 1e6, "µs", "one kernel call"),
    ("spread_seconds", 1e6, "µs", "more for a call beside other threads"),
    ("task_seconds", 1e6, "µs", "one local task"),
)


def table(machine: Machine) -> str:
    """The measured rates, one per line."""
    rates = machine.to_json()
    return "\n".join(f"{rates[name] * by:10.4g} {unit:8} {text}" for name, by, unit, text in _ROWS)
