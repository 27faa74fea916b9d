"""`distgrad plan`: shows the plan of a function, with predicted time and memory, without running it."""

from __future__ import annotations

import ast
import inspect
import json
import math
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from distgrad.cli import session_options
from distgrad.cli.console import MISUSED, AsJson, app, fail, say
from distgrad.cli.loading import called_at, find, guarded, load_module

if TYPE_CHECKING:
    from distgrad.run.session import Session
    from distgrad.scheduler.cluster import Cluster
    from distgrad.scheduler.plan import Plan

#: The remedy in errors about the function.
CONVENTION = (
    "Name a function without arguments that returns a function and a tuple of arguments for it: "
    "`def plan(): return step, (params, x, y)`; or give the types of the arguments: --spec 'float32[256,784]'."
)
#: Fraction of a machine's memory for Ray tasks; most of the rest is the object store.
RAY_MEMORY = 0.7


@app.command()
@session_options.takes("cluster", "workers", "cpus_per_task", "memory")
def plan(
    target: Annotated[str, typer.Argument(metavar="MODULE:FUNCTION", help="A module, or the path of its file.")],
    spec: Annotated[
        list[str] | None,
        typer.Option(metavar="TYPE", help="Type of an argument, as in 'float32[256,784]'; repeat for each, in order."),
    ] = None,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the plan as an HTML page with its graph and timeline.")
    ] = None,
    as_json: AsJson = False,
    **options: Any,
) -> None:
    """Show the plan of a function without running it.

    Shows the tasks, their placement, and the predicted time and memory. FUNCTION takes arrays, with types given by
    --spec, or it takes no arguments and returns a function and its arguments:

        def plan(): return step, (params, x, y)

    The plan is for a session in this process or, with --workers or --cluster, for a session on Ray; the cluster need
    not exist. The exit code is 1 if the plan needs more memory than is available.
    """
    page = None if html is None else _page(html)
    with _session(**options):
        name, made = _planned(target, [_argument(text) for text in spec or ()])
    if page is not None:
        _write(made, name, page)
    typer.echo(json.dumps(_document(made, name)) if as_json else made.explain())


# -- what is written ---------------------------------------------------------------------------------------------


def _page(file: Path) -> Path:
    from distgrad.report.recording import target

    if file.suffix != ".html":
        fail(f"--html {file}: the file name must end in .html", MISUSED)
    try:
        return target(file)
    except ValueError as e:
        fail(f"--html: {e}", MISUSED)


def _document(made: Plan, name: str) -> dict[str, Any]:
    """The trace of a plan that never ran."""
    from distgrad import __version__
    from distgrad.scheduler.trace import Entry, document

    return document([Entry(made, name)], __version__)


def _write(made: Plan, name: str, file: Path) -> None:
    from distgrad.report.recording import write

    if not made.tasks:
        fail(f"--html {file}: the plan of {name} has no tasks to show: it returns its arguments", MISUSED)
    try:
        write(_document(made, name), file)
    except (OSError, ValueError) as e:
        fail(f"--html: {e}", MISUSED)
    say(f"wrote the plan to {file}")


# -- what to plan for --------------------------------------------------------------------------------------------


def _session(cluster: Path | None, workers: int | None, cpus_per_task: int | None, memory: str | None) -> Session:
    """A session that plans for this cluster. It runs nothing, so it does not need Ray."""
    from distgrad.run.session import Session

    try:
        found = _cluster(cluster, workers, cpus_per_task or 1)
        if found is not None and found.engine == "ray":
            cpus_per_task = cpus_per_task or 1  # as a session on Ray
        return Session(cluster=found, cpus_per_task=cpus_per_task, memory=memory)
    except ValueError as e:
        fail(str(e).removeprefix("Session: "), MISUSED)


def _cluster(file: Path | None, workers: int | None, cpus: int) -> Cluster | None:
    from distgrad.scheduler.cluster import load_cluster

    if file is None:
        return None if workers is None else _this_machine(workers, cpus)
    cluster = load_cluster(file)
    if workers is not None and workers > len(cluster.workers):
        raise ValueError(f"--workers is {workers}, but {file} has {len(cluster.workers)}: omit it, or ask for fewer")
    return replace(cluster, workers=cluster.workers[:workers])


def _this_machine(workers: int, cpus: int) -> Cluster:
    """The cluster that `Session("ray", workers=...)` would start here."""
    from distgrad.scheduler.cluster import MOST_WORKERS, Cluster, Worker, on_ray, usable_memory
    from distgrad.workers.tools import calibrate

    if workers > MOST_WORKERS:
        raise ValueError(f"--workers is {workers}; the maximum is {MOST_WORKERS:,}")
    worker = Worker(cpus, memory=max(int(RAY_MEMORY * usable_memory()) // workers, 1))
    return Cluster((worker,) * workers, on_ray(calibrate.machine(cpus)), "ray on this machine", "ray")


# -- what is planned ---------------------------------------------------------------------------------------------


def _planned(target: str, arguments: list[Any]) -> tuple[str, Plan]:
    """The plan of the target, and its name."""
    module, colon, name = target.rpartition(":")
    if not (colon and module and name):
        fail(f"{target!r} is not MODULE:FUNCTION, such as 'train.py:step' or 'package.train:step'", MISUSED)
    found = place = find(load_module(module), name, module)
    if not callable(found):
        fail(f"{target} is {_short(found)}, which is not a function. {CONVENTION}", MISUSED)
    if arguments or hasattr(found, "plan"):
        _check_call(target, found, arguments)
    else:
        found, arguments = _asked(target, found)
    if _is_plan(found):
        return name, found
    return _name_of(found, name), _plan_of(target, place, found, arguments)


def _asked(target: str, maker: Any) -> tuple[Any, list[Any]]:
    """Plan the result of a function without arguments: a function and its arguments, a function, or a plan."""
    _check_call(target, maker, [])
    with guarded(f"{target} failed"):
        made = maker()
    if _is_plan(made):
        return made, []
    found, arguments = made if isinstance(made, tuple) and len(made) == 2 else (made, ())
    if not callable(found):
        fail(f"{target} returns {_short(made)}, which cannot be planned. {CONVENTION}", MISUSED)
    if not isinstance(arguments, tuple):
        fail(f"{target} returns a function and {_short(arguments)}, but arguments are a tuple: (x,) for one", MISUSED)
    _check_returned(target, found, arguments)
    return found, list(arguments)


def _plan_of(target: str, place: Any, found: Any, arguments: list[Any]) -> Plan:
    from distgrad.errors import BudgetError, DeviceError
    from distgrad.tracing.function import Function

    with guarded(f"{target} cannot be planned"):
        planned = found if hasattr(found, "plan") else Function(found)
        try:
            made: Plan = called_at(place, partial(planned.plan, *arguments))
            return made
        except (BudgetError, DeviceError) as e:
            refused = str(e)
    fail(refused)


def _check_call(target: str, found: Any, arguments: list[Any]) -> None:
    """Exit with an error if a function cannot be called with these arguments."""
    signature = _refusing(found, arguments)
    if signature is not None:
        given = f"{_counted(arguments) if arguments else 'none'} {'is' if len(arguments) == 1 else 'are'} given"
        fail(f"{target} is called as {_call_text(target, signature)}, but {given}. {CONVENTION}", MISUSED)


def _check_returned(target: str, found: Any, arguments: tuple[Any, ...]) -> None:
    """The same for a function that was returned by another function."""
    signature = _refusing(found, arguments)
    if signature is None:
        return
    name = _name_of(found, "a function")
    wrong = f"it is called as {_call_text(name, signature)}"
    with suppress(TypeError):
        given = signature.bind_partial(*arguments).arguments
        needed = [p.name for p in signature.parameters.values() if p.default is p.empty and p.name not in given]
        wrong = f"{' and '.join(needed)} {'is' if len(needed) == 1 else 'are'} missing"
    fail(f"{target} returns {name} with {_counted(arguments)}: {wrong}. {CONVENTION}", MISUSED)


def _refusing(found: Any, arguments: Sequence[Any]) -> inspect.Signature | None:
    """The signature of a function if it cannot be called with these arguments, else None."""
    try:
        signature = inspect.signature(found)
    except (TypeError, ValueError):  # it has no signature
        return None
    try:
        signature.bind(*arguments)
    except TypeError:
        return signature
    return None


def _counted(arguments: Sequence[Any]) -> str:
    return f"{len(arguments) or 'no'} argument{'s' * (len(arguments) != 1)}"


def _call_text(target: str, signature: inspect.Signature) -> str:
    bare = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
    return f"{target.rpartition(':')[2]}{inspect.Signature(bare)}"


def _argument(text: str) -> Any:
    """A dummy array of the type, which takes no memory; or a Python value, which is part of the signature.

    >>> _argument("float32[2,3]").shape, _argument("int64[]").shape, _argument("3"), _argument("None")
    ((2, 3), (), 3, None)
    """
    import numpy as np

    match = re.fullmatch(r"\s*(\w+)\s*\[([\d\s,]*)\]\s*", text)
    try:
        if match is None:
            return _literal(text.strip())
        shape = tuple([int(n) for n in match[2].split(",")]) if match[2].strip() else ()
        dtype = _dtype(match[1])
        if math.prod(shape) * dtype.itemsize >= 1 << 62:
            fail(f"--spec {text!r}: the array is too large for any machine", MISUSED)
        return np.broadcast_to(np.zeros((), dtype), shape)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        fail(f"--spec {text!r} is neither a type, as in 'float32[256,784]' or 'int64[]', nor a Python number", MISUSED)


def _literal(text: str) -> Any:
    if text != "None" and re.fullmatch(r"[a-z]+\d*", text):
        _dtype(text)
        fail(f"--spec {text!r} has no shape: '{text}[]' is a single number, '{text}[256,784]' an array", MISUSED)
    return ast.literal_eval(text)


def _dtype(name: str) -> Any:
    """A dtype by its NumPy name, or by the short name that plans print, such as f32 or i64."""
    import numpy as np

    short = re.fullmatch(r"([fiuc])(\d+)", name)
    kinds = {"f": "float", "i": "int", "u": "uint", "c": "complex"}
    return np.dtype(f"{kinds[short[1]]}{short[2]}" if short else name)


def _is_plan(x: Any) -> bool:
    from distgrad.scheduler.plan import Plan

    return isinstance(x, Plan)


def _name_of(found: Any, name: str) -> str:
    return str(getattr(found, "name", None) or getattr(found, "__name__", None) or name)


def _short(x: Any) -> str:
    text = repr(x)
    return text if len(text) <= 60 else f"{text[:57]}..."
