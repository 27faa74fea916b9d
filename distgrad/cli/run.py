"""`distgrad run`: runs a script like `python SCRIPT`, with a default session chosen by command-line options."""

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

#: Exit code of a program that was ended by Ctrl-C.
INTERRUPTED = 130
#: An environment variable that Ray sets in a job's process.
IN_JOB = "RAY_JOB_CONFIG_JSON_ENV_VAR"
#: For commands that take a script: unknown options are passed to the script.
PASSES_ON = {"ignore_unknown_options": True}

#: The options of the current command. Typer bundles its own click, so click's current context is not set.
_own: list[str] = []

Script = Annotated[str, typer.Argument(metavar="SCRIPT", help="A Python file.")]
Arguments = Annotated[list[str] | None, typer.Argument(metavar="ARGS", help="Arguments of the script.")]


class PassesOn(TyperCommand):
    """A command that notes script options that look like misspelt options of the command."""

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
                    f"Put options of the script after `--` to avoid this note")  # fmt: skip
        return rest


@app.command(cls=PassesOn, context_settings=PASSES_ON)
@session_options.takes(*session_options.OF_RUN)
def run(
    script: Script,
    arguments: Arguments = None,
    env_file: Annotated[
        list[str] | None,
        typer.Option(metavar="PATH", help="Set variables from a file of KEY=VALUE lines that only you can read."),
    ] = None,
    **options: Any,
) -> None:
    """Run a script, with distgrad in this process or on Ray.

    The script runs as with `python SCRIPT ARGS`. Unless it opens its own session, distgrad runs in this process; with
    --address, on that cluster; with any other Ray option, such as --workers, on a Ray that is started on this machine
    and stopped with the script.

    The options below may be given before or after SCRIPT. All other options, and everything after `--`, are passed to
    the script: `distgrad run --workers 4 train.py -- --workers 8`.

    The exit code is that of the script: 1 if it raises, and 75 if Ray ended the script's process, which happens if the
    raylet of its machine dies.
    """
    check_script(script)
    for path in env_file or ():
        apply_file(path)
    on_ray = session_options.are_of_ray(options)
    if console.in_own_process and on_ray:
        parent.fork()
    trace = options["trace"] = options["trace"] and options["trace"].absolute()  # the script may change directory
    try:
        session = _session("ray" if on_ray else "local", options)
        atexit.register(_end, session, trace)  # after the script's threads and its own exit handlers
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
    """The machine that a cluster job runs on, since its log is read on another machine."""
    return f" on {platform.node()}" if IN_JOB in os.environ else ""


def check_script(script: str) -> None:
    """Exit with an error if the script cannot be read."""
    try:
        with open(script, "rb"):
            return
    except OSError as e:
        if script.startswith("-"):
            fail(f"there is no option {script!r}{_nearest(script)}; put options of the script after it", MISUSED)
        fail(f"the script {script!r} cannot be read: {e.strerror}", MISUSED)


def _nearest(option: str) -> str:
    """A hint with the command's option that is most similar to a misspelt one."""
    near = difflib.get_close_matches(option.partition("=")[0].removeprefix("--"), _own, 1)
    return f"; did you mean --{near[0]}?" if near else ""


def _session(engine: str, options: dict[str, Any]) -> Session:
    """The default session of all threads of this process."""
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
    """The address, if it can be the address of a cluster to join."""
    if re.match(r"https?:", address):
        fail(f"{address!r} is the address of a dashboard, which takes jobs (`distgrad submit`): to join a cluster from "
             f"here, give the address of its head, by default HOST:6379", MISUSED)  # fmt: skip
    if address != "auto" and not re.fullmatch(r"(ray://)?[^\s/]+:\d{1,5}", address):
        fail(f"{address!r} is not the address of a Ray cluster: give HOST:PORT, or 'auto'", MISUSED)
    return address


def _outcome(script: str, arguments: list[str]) -> Any:
    """Run the script and return its exit code. Prints exceptions as Python does."""
    sys.argv = [script, *arguments]
    sys.path[: not sys.flags.safe_path] = [os.path.dirname(os.path.realpath(script))]
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as e:
        return e.code
    except KeyboardInterrupt:
        raise
    except BaseException as e:  # the script may raise anything
        _show(e, script)
        return FAILED
    return 0


def _show(e: BaseException, script: str) -> None:
    """The traceback from the script's first frame on, without the frames of this command."""
    trace = e.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename != script:
        trace = trace.tb_next
    sys.excepthook(type(e), e.with_traceback(trace), trace)
