"""`distgrad demo`: planning, running and training a small model, in less than a minute."""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import sys
import time
from contextlib import suppress
from functools import partial
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from distgrad.cli.console import MISUSED, app, fail, say
from distgrad.cli.loading import called_at, load_file

if TYPE_CHECKING:
    from distgrad.run.session import Session

#: Number of timed runs, of which the shortest is shown; the first one includes compilation.
RUNS = 3
WORKERS = 2
FOLDER = Path("distgrad-demo")


@app.command()
def demo(
    local: Annotated[bool, typer.Option("--local", help="Run in this process only, without Ray.")] = False,
    steps: Annotated[int, typer.Option(min=1, metavar="N", help="Number of training steps.")] = 30,
    output: Annotated[Path, typer.Option(metavar="DIR", help="Folder for model, report and trace.")] = FOLDER,
) -> None:
    """Try distgrad: plan, run and train a small language model.

    The gradients are planned and computed in this process and on a local Ray with two workers, with the same bits. Then
    the model is trained for a few steps, and a report is written. Takes less than a minute.
    """
    import distgrad as dg

    model = load_file(_prepared(output))
    _calibrate()
    function, arguments = model.plan()
    with dg.Session(cpus_per_task=1, trace=True) as here:
        _tell_model(output / "model.py", arguments)
        _tell_plan(called_at(model.plan, partial(function.plan, *arguments)))
        digest = _run_here(function, arguments)
        if local:
            _finish(here, "in this process", model, arguments[0], steps, output)
    if not local:
        _on_ray(model, function, arguments, digest, steps, output)
    _tell_next(output / "model.py")


# -- the folder --------------------------------------------------------------------------------------------------


def _prepared(folder: Path) -> Path:
    """Write the model's file to its folder, which must be new, empty, or of an earlier demo."""
    from distgrad.files import write_text

    text = resources.files("distgrad.cli").joinpath("demo_model.py").read_text(encoding="utf-8")
    file = folder / "model.py"
    try:
        if folder.exists() and any(folder.iterdir()) and not (file.exists() and file.read_text("utf-8") == text):
            fail(
                f"{str(folder)!r} has files that are not of an earlier demo, or were changed since: "
                f"choose another folder with --output",
                MISUSED,
            )
        folder.mkdir(parents=True, exist_ok=True)
        write_text(file, text)
    except (OSError, UnicodeDecodeError) as e:
        why = os.strerror(e.errno) if isinstance(e, OSError) and e.errno else e
        fail(f"cannot write to {str(folder)!r}: {why}. Choose another --output, on a disk with room.", MISUSED)
    return file


def _calibrate() -> None:
    """Measure this machine unless its rates are cached. If they cannot be cached, use those of a typical server."""
    from distgrad.workers.tools import calibrate

    if not calibrate.cache_file().exists():
        say("measuring this machine once, so that plans predict times for it ...")
        with suppress(OSError):
            calibrate.calibrate()


# -- the run -----------------------------------------------------------------------------------------------------


def _run_here(function: Any, arguments: Any) -> str:
    _title("In this process")
    value, digest, seconds = _measured(function, arguments)
    _line(f"loss {value:.6f} and all gradients in {_ms(seconds)}, digest {digest}")
    return digest


def _on_ray(model: Any, function: Any, arguments: Any, digest: str, steps: int, folder: Path) -> None:
    import distgrad as dg

    _title(f"On Ray, started on this machine with {WORKERS} workers")
    os.environ.pop("RAY_ADDRESS", None)  # the demo starts its own Ray
    try:
        session = dg.Session("ray", workers=WORKERS, object_store_memory="200 MB", trace=True)
    except (ConnectionError, ImportError) as e:
        fail(f"{e}. `distgrad demo --local` runs without Ray; `distgrad doctor` looks for the cause.")
    with session:
        plan = function.plan(*arguments)
        value, again, seconds = _measured(function, arguments)
        _line(f"loss {value:.6f} and all gradients in {_ms(seconds)}, digest {again}")
        _line(f"from a different plan, with {len(plan.tasks)} tasks that run as Ray tasks: {_verdict(digest, again)}")
        _finish(session, "on Ray", model, arguments[0], steps, folder)


def _verdict(digest: str, again: str) -> str:
    if digest != again:
        fail("the gradients computed on Ray and in this process have different bits, which is a bug: please report it")
    return "the same bits"


def _measured(function: Any, arguments: Any) -> tuple[float, str, float]:
    """The loss, a digest of all gradients, and the seconds of the shortest run."""
    times = []
    for _ in range(RUNS):
        began = time.perf_counter()
        value, grads = function(*arguments)
        times.append(time.perf_counter() - began)
    bits = hashlib.sha256(b"".join(grads[name].tobytes() for name in sorted(grads)))
    return float(value), bits.hexdigest()[:16], min(times)


def _finish(session: Session, where: str, model: Any, params: Any, steps: int, folder: Path) -> None:
    import numpy as np

    from distgrad.progress import track

    _title(f"Training {where}")
    began = time.perf_counter()
    _, losses = model.train(params, track(range(steps), "training"), np.random.default_rng(1))
    seconds = (time.perf_counter() - began) / steps
    _line(f"{steps} steps, {_ms(seconds)} each: loss {losses[0]:.2f} at the start, {losses[-1]:.2f} at the end")
    _title("The report")
    try:
        session.write_report(folder / "report.html")
        session.write_trace(folder / "trace.json")
    except (OSError, ValueError) as e:
        fail(f"{e}, or choose another --output")
    _line(f"{folder / 'report.html'}   the plan, the timeline, memory, the slowest ops: open it in a browser")
    _line(f"{folder / 'trace.json'}    the same for ui.perfetto.dev, and for `distgrad report`")


# -- what is told ------------------------------------------------------------------------------------------------


def _tell_model(file: Path, arguments: Any) -> None:
    params, tokens, _ = arguments
    count = sum(x.size for x in params.values())
    _title("The model", first=True)
    _line(f"{file}: a byte-level language model with {count:,} weights that learns its own source code")
    rows, length = tokens.shape
    _line(f"to compute: its loss and all gradients for {rows} × {length} bytes, in shards that can run in parallel")


def _tell_plan(plan: Any) -> None:
    _title("The plan, before anything runs")
    totals, shares, *_ = plan.explain().split("\n\n")
    for line in (*totals.splitlines(), *shares.splitlines()):
        _line(line)


def _tell_next(file: Path) -> None:
    name, distgrad = shlex.quote(str(file)), called()
    commands = {
        f"{distgrad} plan {name}:plan --workers 8": "the same plan for eight workers",
        f"{distgrad} run {name} --workers 2": "train it as a script; change it and run it again",
        f"{distgrad} doctor": "check this machine for problems",
    }
    _title("Next")
    width = max(map(len, commands))
    for command, text in commands.items():
        _line(f"{command:{width}}   {text}")


def called() -> str:
    """How this command was called, so that the suggested commands work even if `distgrad` is not on the PATH."""
    script = Path(sys.argv[0])
    if script.name == "__main__.py":
        return shlex.join([sys.orig_argv[0], "-m", "distgrad"])
    found = shutil.which("distgrad")
    on_path = found is not None and script.exists() and script.samefile(found)
    return "distgrad" if on_path else shlex.quote(sys.argv[0])


def _title(text: str, first: bool = False) -> None:
    typer.echo(text if first else f"\n{text}")


def _line(text: str) -> None:
    typer.echo(f"  {text}")


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.0f} ms"
