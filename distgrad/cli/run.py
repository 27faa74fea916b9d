"""`distgrad run`: a script as `python SCRIPT` would run it, but in a session that is chosen from outside."""

from __future__ import annotations

import atexit
import difflib
import os
import platform
import re
import runpy
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from distgrad.cli import console, parent, session_options
from distgrad.cli.console import FAILED, MISUSED, app, fail, say
from distgrad.cli.secrets import apply_file

if TYPE_CHECKING:
    from distgrad.run.session import Session

#: Of a program that Ctrl-C ended.
INTERRUPTED = 130
#: A variable that Ray sets for the process of a job.
IN_JOB = "RAY_JOB_CONFIG_JSON_ENV_VAR"
#: For commands that take a script with its arguments: options that they do not know are the script's.
PASSES_ON = {"ignore_unknown_options": True}

#: The options of the command that is run. Typer has a click of its own, so click's current context does not know it.
_own: list[str] = []

Script = Annotated[str, typer.Argument(metavar="SCRIPT", help="A Python file.")]
Arguments = Annotated[list[str] | None, typer.Argument(metavar="ARGS", help="Arguments of the script.")]


class PassesOn(TyperCommand):
    """A command that tells of options that it passes on though they look like its own, misspelt."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        before = args[: args.index("--")] if "--" in args else list(args)
        own = [name.removeprefix("--") for option in self.params for name in (*option.opts, *option.secondary_opts)]
        _own[:] = own
        rest: list[str] = super().parse_args(ctx, args)
        passed = ctx.params.get("arguments") or []
        for text in [x for x in before if x.startswith("--") and x in passed]:
            name = text.partition("=")[0]
            if near := difflib.get_close_matches(name.removeprefix("--"), own, 1, cutoff=0.8):
                say(f"note: {name} is passed to the script; did you mean --{near[0]}? "
                    f"What is the script's stands after `--` without this note")  # fmt: skip
        return rest


@app.command(cls=PassesOn, context_settings=PASSES_ON)
@session_options.takes(*session_options.OF_RUN)
def run(
    script: Script,
    arguments: Arguments = None,
    env_file: Annotated[
        list[str] | None,
        typer.Option(metavar="PATH", help="Set variables from a file that you alone can read: lines of KEY=VALUE."),
    ] = None,
    **options: Any,
) -> None:
    """Run a script; what it computes with distgrad runs in this process, or on Ray.

    The script is run as by `python SCRIPT ARGS`. All that it does not run in a session of its own runs in this process;
    with --address on a cluster; with another option of Ray, such as --workers, on a Ray that is started on this machine
    and ends with the script.

    The options below may stand before or after SCRIPT; all others are the script's, and all that follows `--`:
    `distgrad run --workers 4 train.py -- --workers 8`.

    The exit code is the script's: 1 if it raises; on Ray 75 if Ray ended the script's process, as it does where the
    raylet of its machine has died.
    """
    check_script(script)
    for path in env_file or ():
        apply_file(path)
    on_ray = session_options.are_of_ray(options)
    if console.in_own_process and on_ray:
        parent.fork()
    trace = options["trace"] = options["trace"] and options["trace"].absolute()  # wherever the script goes
    try:
        session = _session("ray" if on_ray else "local", options)
        atexit.register(_end, session, trace)  # later than the script's threads, and than what it registers itself
        code = _outcome(script, arguments or [])
    except KeyboardInterrupt:
        say("interrupted")
        code = INTERRUPTED
    raise SystemExit(code)


def _end(session: Session, trace: Path | None) -> None:
    try:
        session.close()
    except (OSError, ValueError) as e:
        say(f"error: {trace} could not be written: {e}")
    else:
        if trace is not None:
            wrote = f"wrote {trace}{_host()}"
            say(wrote if session.last_run else f"{trace} was not written: nothing ran in the session")


def _host() -> str:
    """Which machine a job of a cluster runs on: its log is read on another one."""
    return f" on {platform.node()}" if IN_JOB in os.environ else ""


def check_script(script: str) -> None:
    """End here if there is no such file."""
    try:
        with open(script, "rb"):
            return
    except OSError as e:
        if script.startswith("-"):
            fail(f"there is no option {script!r}{_nearest(script)}; options of the script stand after it", MISUSED)
        fail(f"the script {script!r} cannot be read: {e.strerror}", MISUSED)


def _nearest(option: str) -> str:
    """The option of the command that is run which a misspelt one may stand for."""
    near = difflib.get_close_matches(option.partition("=")[0].removeprefix("--"), _own, 1)
    return f"; did you mean --{near[0]}?" if near else ""


def _session(engine: str, options: dict[str, Any]) -> Session:
    """The session for all threads of this process that have none of their own."""
    from distgrad import runtime
    from distgrad.run.session import Session

    if options["address"] is not None:
        cluster_address(options["address"])
    try:
        session = Session(engine, **options)
    except (ConnectionError, ImportError) as e:
        fail(str(e))
    except ValueError as e:
        fail(str(e), MISUSED)
    runtime.set_default(lambda: session)
    return session


def cluster_address(address: str) -> str:
    """The address, if it can be one that a cluster is joined at."""
    if re.match(r"https?:", address):
        fail(f"{address!r} is the address of a dashboard, which takes jobs (`distgrad submit`): to join a cluster from "
             f"here, give that of its head, HOST:6379 unless `ray start` was told otherwise", MISUSED)  # fmt: skip
    if address != "auto" and not re.fullmatch(r"(ray://)?[^\s/]+:\d{1,5}", address):
        fail(f"{address!r} is not the address of a Ray cluster: that is HOST:PORT, or 'auto'", MISUSED)
    return address


def _outcome(script: str, arguments: list[str]) -> Any:
    """What the script exits with. An exception is shown as Python shows it."""
    sys.argv = [script, *arguments]
    sys.path[: not sys.flags.safe_path] = [os.path.dirname(os.path.realpath(script))]
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as e:
        return e.code
    except KeyboardInterrupt:
        raise
    except BaseException as e:  # whatever it may raise
        _show(e, script)
        return FAILED
    return 0


def _show(e: BaseException, script: str) -> None:
    """The traceback from the script's own frame on: what called it is of no use to its author."""
    trace = e.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename != script:
        trace = trace.tb_next
    sys.excepthook(type(e), e.with_traceback(trace), trace)
