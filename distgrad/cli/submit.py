"""`distgrad submit`: a script as a job of a cluster."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from distgrad.cli import session_options
from distgrad.cli.console import FAILED, MISUSED, app, fail, say
from distgrad.cli.jobs import Address, cluster, follow
from distgrad.cli.run import PASSES_ON, Arguments, PassesOn, Script, check_script
from distgrad.cli.secrets import looks_secret
from distgrad.run.options import SessionOptions

if TYPE_CHECKING:
    from distgrad.workers.jobs.jobs import Job

#: Names that a line tells before it says how many more there are.
SHOWN = 8


@app.command(cls=PassesOn, context_settings=PASSES_ON)
@session_options.takes(*session_options.OF_SUBMIT)
def submit(
    script: Script,
    arguments: Arguments = None,
    address: Address = None,
    wait: Annotated[bool, typer.Option(help="Show the job's log until it has ended, or print its id and go.")] = True,
    env: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="A variable of the job's environment, which Ray shows to all; KEY alone: with its value here.",
        ),
    ] = None,
    env_file: Annotated[
        list[str] | None,
        typer.Option(metavar="PATH", help="A file of secrets ON THE CLUSTER, which the job reads: lines of KEY=VALUE."),
    ] = None,
    working_dir: Annotated[
        Path, typer.Option(help="Folder that the job gets a copy of, without what .gitignore and .rayignore name.")
    ] = Path(),
    send: Annotated[
        list[str] | None, typer.Option(metavar="PATH", help="Send this file of the folder though it looks secret.")
    ] = None,
    ship: Annotated[bool, typer.Option(help="Give the job this distgrad, or let it use the cluster's own.")] = True,
    install: Annotated[
        bool, typer.Option("--install", help="Have Ray install with pip what distgrad needs and the cluster lacks.")
    ] = False,
    pip: Annotated[
        list[str] | None, typer.Option(metavar="PACKAGE", help="Have Ray install this, too, for the job.")
    ] = None,
    python: Annotated[str, typer.Option(help="The cluster's Python: a command, or a path there.")] = "python",
    submission_id: Annotated[str | None, typer.Option(help="Id of the new job; Ray makes one by default.")] = None,
    driver_cpus: Annotated[float | None, typer.Option(min=0, help="Cpus for the script's own process.")] = None,
    driver_gpus: Annotated[float | None, typer.Option(min=0, help="GPUs for the script's own process.")] = None,
    driver_memory: Annotated[int | None, typer.Option(min=0, help="Bytes for the script's own process.")] = None,
    **options: Any,
) -> None:  # fmt: skip
    """Run a script as a job of a Ray cluster, through the Jobs API of its dashboard.

    The job gets a working folder, in which SCRIPT must lie, and this distgrad, whatever version the cluster has. What
    distgrad needs (NumPy, SciPy and others) must be installed there; --install has Ray do that for the job.

    The job's log is printed as it comes, and its exit code is returned; Ctrl-C leaves the job running. With --no-wait
    its id is printed: `distgrad jobs logs` and `distgrad jobs stop` take it.

    The options below may stand before or after SCRIPT; all others are the script's, and all that follows `--`. Those of
    the session are as for `distgrad run`: the file of --trace is written on the cluster.
    """
    folder, relative = _located(script, working_dir)
    environment = _environment(env or [])
    _check_files(env_file or [], folder)
    held_back = _held_back(folder, send or [])
    _check_options(options)
    resources = {
        "entrypoint_num_cpus": driver_cpus,
        "entrypoint_num_gpus": driver_gpus,
        "entrypoint_memory": driver_memory,
    }
    with cluster(address) as found:
        from distgrad.workers.jobs.jobs import Request

        say(f"uploading {folder}, without what .gitignore and .rayignore name, to {found.address}")
        if held_back:
            say(f"not sent, because it looks secret: {_listed(held_back)} (--send PATH sends it all the same)")
        request = Request(
            script=relative,
            arguments=arguments or (),
            working_dir=folder,
            options=[*[f"--env-file={path}" for path in env_file or ()], *session_options.words(options)],
            python=python,
            env=environment,
            held_back=held_back,
            ship=ship,
            install=install,
            pip=pip or (),
            id=submission_id,
            resources={name: value for name, value in resources.items() if value},
        )
        id = found.submit(request)
        say(f"job {id} is submitted")
        if not wait:
            typer.echo(id)
            return
        _end(follow(found, id, address))


def _end(job: Job) -> None:
    """Exit as the job did: 1 where its process has no code of its own."""
    if job.status == "SUCCEEDED":
        say(f"job {job.id} succeeded")
        return
    code = job.exit_code or FAILED
    fail(f"job {job.id} {job.failure()}", 128 - code if code < 0 else code)


def _located(script: str, working_dir: Path) -> tuple[Path, str]:
    """The working folder, and the script's path in it."""
    if not working_dir.is_dir():
        fail(f"there is no folder {str(working_dir)!r} (--working-dir)", MISUSED)
    check_script(script)
    folder, file = working_dir.resolve(), Path(script).parent.resolve() / Path(script).name
    if not file.is_relative_to(folder):
        fail(f"the script {script!r} is not in the folder {str(folder)!r}, which is all that the job gets of this "
             f"machine: choose another one with --working-dir", MISUSED)  # fmt: skip
    return folder, file.relative_to(folder).as_posix()


def _environment(given: list[str]) -> dict[str, str]:
    """The job's variables. What is wrong is told by its number alone: it may be a secret. One that looks like it is
    warned of: Ray shows all of them."""
    found: dict[str, str] = {}
    for number, text in enumerate(given, 1):
        name, equals, value = text.partition("=")
        if not re.fullmatch(r"[A-Za-z_]\w*", name) or not (equals or name in os.environ):
            fail(f"--env takes KEY=VALUE, or the KEY of a variable that is set here: see number {number}", MISUSED)
        found[name] = value if equals else os.environ[name]
    if shown := [name for name, value in found.items() if looks_secret(name, value)]:
        say(f"warning: --env {', '.join(shown)} looks secret, and Ray shows it in clear, in its job list and in logs "
            f"that all can read: keep it in a file on the cluster that you alone can read, and name that file with "
            f"--env-file")  # fmt: skip
    return found


def _check_files(paths: list[str], folder: Path) -> None:
    """End here where a file of secrets would be sent, or cannot be found by the job."""
    from distgrad.workers.on_ray.connect.private_files import copies_of

    for path in paths:
        file = Path(path).expanduser()
        if not file.is_absolute():
            fail(f"--env-file {path}: give the absolute path of a file on the cluster: a relative one would lie in the "
                 f"working folder, which is sent", MISUSED)  # fmt: skip
        inside = file.resolve().is_relative_to(folder) or Path(os.path.normpath(file)).is_relative_to(folder)
        if inside or (copies := copies_of(file, folder)):
            where = "" if inside else f" (as {copies[0]})"
            fail(f"--env-file {path} lies in the working folder {str(folder)!r}{where}, which is sent: keep it "
                 f"elsewhere, where the job finds it on the cluster", MISUSED)  # fmt: skip


def _check_options(options: dict[str, Any]) -> None:
    """End here where the session of the job could not be opened."""
    try:
        SessionOptions("ray", **options)
    except ValueError as e:
        fail(str(e), MISUSED)


def _held_back(folder: Path, send: list[str]) -> list[str]:
    """What looks secret in the working folder, without what shall be sent all the same."""
    from distgrad.workers.on_ray.connect.private_files import private_files

    found = private_files(folder)
    wanted = [Path(os.path.normpath(folder / path)) for path in send]
    for path, place in zip(send, wanted, strict=True):
        if not place.exists():
            fail(f"--send {path}: there is no such file in the working folder {str(folder)!r}", MISUSED)
    return [path for path in found if folder / path not in wanted]


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
