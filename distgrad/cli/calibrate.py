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
    threads: Annotated[int | None, typer.Option(help="Number of threads of a task; all CPUs by default.")] = None,
    as_json: AsJson = False,
    force: Annotated[bool, typer.Option("--force", help="Measure again even if rates are cached.")] = False,
) -> None:
    """Measure this machine once, so that plans predict times for it."""
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
        typer.echo(f"saved to {calibration.cache_file(count)}")


def _progress(text: str) -> None:
    say(f"{text} ...")


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    say(f"warning: {message}")


#: Name of a rate, the factor and unit to show it in, and its description.
_ROWS = (
    ("gemm_flops", 1e-9, "Gflop/s", "matrix product, float32, one CPU"),
    ("gemm_flops64", 1e-9, "Gflop/s", "matrix product, float64, one CPU"),
    ("gemm_half", 1, "", "smallest dimension that reaches half of that rate"),
    ("gemm_parallel", 100, "%", "speedup per additional CPU"),
    ("memory_bandwidth", 1e-9, "GB/s", "memory, all CPUs"),
    ("memory_bandwidth_one", 1e-9, "GB/s", "memory, one CPU"),
    ("cache_bandwidth", 1e-9, "GB/s", "cache, one CPU"),
    ("cache_bytes", 2.0**-20, "MiB", "effective cache size"),
    ("fresh_bandwidth", 1e-9, "GB/s", "memory touched for the first time"),
    ("elementwise", 1e-9, "G/s", "elementwise functions, float32, one CPU"),
    ("transcendental", 1e-9, "G/s", "transcendental functions, float32, one CPU"),
    ("irregular", 1e-6, "M/s", "random accesses, one CPU"),
    ("kernel_seconds", 1e6, "µs", "one kernel call"),
    ("spread_seconds", 1e6, "µs", "extra per call if several threads run"),
    ("task_seconds", 1e6, "µs", "one local task"),
)


def table(machine: Machine) -> str:
    """The measured rates, one per line."""
    rates = machine.to_json()
    return "\n".join(f"{rates[name] * by:10.4g} {unit:8} {text}" for name, by, unit, text in _ROWS)
