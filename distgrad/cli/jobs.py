"""`distgrad jobs`: lists, follows and stops the jobs of a cluster; also connects commands to its dashboard."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from distgrad.cli.console import FAILED, MISUSED, AsJson, app, fail, say
from distgrad.cli.run import INTERRUPTED

if TYPE_CHECKING:
    from distgrad.workers.jobs.jobs import Job, Jobs

jobs = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
app.add_typer(jobs, name="jobs", help="List, follow and stop the jobs of a cluster.")

Address = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="Address of the cluster's dashboard. By default RAY_API_SERVER_ADDRESS, RAY_ADDRESS if it is one, or "
        "http://127.0.0.1:8265.",
    ),
]
Id = Annotated[str, typer.Argument(metavar="ID", help="Id of the job, as shown by `distgrad jobs list`.")]


@contextmanager
def cluster(address: str | None) -> Iterator[Jobs]:
    """Connect to the jobs of a cluster; connection problems become one-line errors."""
    from distgrad.workers.importing import explain_import
    from distgrad.workers.jobs.dashboard import JobsError, usual_address
    from distgrad.workers.jobs.jobs import Jobs

    try:
        yield Jobs(usual_address() if address is None else address)
    except JobsError as e:
        fail(str(e), MISUSED if e.misuse else FAILED)
    except ImportError as e:
        fail(explain_import(e))


def follow(found: Jobs, id: str, address: str | None) -> Job:
    """Follow a job's log; Ctrl-C stops following, not the job."""
    try:
        return found.follow(id, _write)
    except KeyboardInterrupt:
        where = "" if address is None else f" --address {address}"
        say(f"\njob {id} is still running: `distgrad jobs logs {id} --follow{where}` shows it again, "
            f"`distgrad jobs stop {id}{where}` stops it")  # fmt: skip
        raise typer.Exit(INTERRUPTED) from None


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


@jobs.command("list")
def list_jobs(address: Address = None, as_json: AsJson = False) -> None:
    """List the jobs of a cluster, newest first."""
    with cluster(address) as found:
        rows = [_row(job) for job in found.list()]
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
    elif rows:
        typer.echo(_table(rows))
    else:
        say("no jobs")


@jobs.command()
def logs(
    id: Id,
    address: Address = None,
    following: Annotated[bool, typer.Option("--follow", help="Follow the log until the job ends.")] = False,
) -> None:
    """Print the log of a job."""
    with cluster(address) as found:
        if following:
            follow(found, id, address)
        else:
            _write(found.logs(id))


@jobs.command()
def stop(id: Id, address: Address = None) -> None:
    """Stop a job: it gets SIGTERM, and is killed if it is still running a few seconds later."""
    with cluster(address) as found:
        job = found.get(id)
        if job.over:
            say(f"job {id} had already ended: {job.status}")
            return
        job = found.stop(id)
    if not job.over:
        fail(f"job {id} was asked to stop, but is still {job.status}: see `distgrad jobs list`")
    say(f"job {id} has ended: {job.status}")


def _row(job: Job) -> dict[str, Any]:
    started = None if job.started is None else datetime.fromtimestamp(job.started).astimezone()
    return {
        "id": job.id,
        "status": job.status,
        "started": started and started.isoformat(timespec="seconds"),
        "seconds": job.seconds and round(job.seconds, 1),
        "script": job.script,
        "exit_code": job.exit_code,
    }


def printable(text: str) -> str:
    """A text on one line: newlines, escapes and other control characters are shown as Python escapes.

    >>> printable("a\\nb\x1b[2J é")
    'a\\\\nb\\\\x1b[2J é'
    """
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def _table(rows: list[dict[str, Any]]) -> str:
    shown: list[tuple[str, ...]] = [("ID", "STATUS", "STARTED", "DURATION", "SCRIPT")]
    for row in rows:
        started = (row["started"] or "")[:19].replace("T", " ")
        shown.append((row["id"], row["status"], started, _duration(row["seconds"]), row["script"]))
    shown = [tuple(printable(cell) for cell in row) for row in shown]
    widths = [max(len(row[i]) for row in shown) for i in range(4)]
    return "\n".join(
        "  ".join([*(x.ljust(n) for x, n in zip(row[:4], widths, strict=True)), row[4]]).rstrip() for row in shown
    )


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return ""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"
