"""Jobs of a Ray cluster through the API of its dashboard: submitting, listing, following, stopping.

All use of Ray's job client is in here; Ray is imported once a dashboard has answered. Knows no command line.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import shlex
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distgrad.workers.jobs.dashboard import JobsError, checked, wants_token
from distgrad.workers.jobs.package import assemble, certain_bytes, explain_missing, requirements
from distgrad.workers.on_ray.connect.private_files import pattern
from distgrad.workers.on_ray.connect.tokens import check_token

if TYPE_CHECKING:
    from ray.job_submission import JobDetails, JobSubmissionClient

#: Seconds in which a dashboard that answered before must do so again; in which a job stops.
RECONNECT_TIMEOUT, STOP_TIMEOUT = 30.0, 30.0
#: Bytes that no Ray takes in one upload; its dashboard takes a fifth, unless it is set up otherwise.
LARGEST = 500 << 20
#: The label of a job with what was submitted, for lists.
LABEL = "distgrad"
_OVER = ("STOPPED", "SUCCEEDED", "FAILED")
#: They tell on the way what is of no use here, or what the errors below tell better.
_CHATTY = (
    "ray.dashboard.modules.dashboard_sdk",
    "ray.dashboard.modules.job.sdk",
    "ray._private.authentication.http_token_authentication",
    "ray._private.runtime_env.packaging",
    "ray._private.runtime_env.working_dir",
)


@dataclass(frozen=True, slots=True)
class Request:
    """A script to run as a job."""

    #: Relative to the working folder, which is what the job gets of this machine.
    script: str
    arguments: Sequence[str] = ()
    working_dir: Path = Path()
    #: Options of `distgrad run`.
    options: Sequence[str] = ()
    #: The cluster's Python: a command, or a path there.
    python: str = "python"
    #: They may be secrets, though they should not: nothing here prints them, but Ray does.
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    #: Paths in the working folder that are not sent.
    held_back: Sequence[str] = ()
    #: Whether the job gets this distgrad; whether Ray installs what that needs; and what else.
    ship: bool = True
    install: bool = False
    pip: Sequence[str] = ()
    id: str | None = None
    #: What the script's own process takes of the cluster: `entrypoint_num_cpus` and the like.
    resources: Mapping[str, Any] = field(default_factory=dict)

    @property
    def entrypoint(self) -> str:
        """The command of the job. With -P the job's folder cannot hide distgrad: it may be a checkout of it."""
        command = [self.python, "-P", "-m", "distgrad", "run", "--address", "auto", *self.options]
        return shlex.join([*command, "--", self.script, *self.arguments])


@dataclass(frozen=True, slots=True)
class Job:
    """A job as Ray tells of it."""

    id: str
    status: str
    #: The script and its arguments; the whole command of a job that distgrad did not submit.
    script: str
    #: Seconds of the epoch.
    started: float | None
    ended: float | None
    exit_code: int | None
    message: str

    @property
    def over(self) -> bool:
        return self.status in _OVER

    @property
    def seconds(self) -> float | None:
        """How long it has run, up to now if it still runs."""
        return None if self.started is None else (self.ended or time.time()) - self.started

    def failure(self) -> str:
        """Why it did not succeed, in one line."""
        if self.status == "STOPPED":
            return "was stopped"
        if self.exit_code is None:
            return f"failed before its script began: {_first_line(self.message)} {_last_line(self.message)}"
        return f"failed with exit code {self.exit_code}{explain_missing(self.message)}"


class Jobs:
    """The jobs of the cluster whose dashboard is at an address."""

    def __init__(self, address: str):
        self.address = checked(address)
        if wants_token(self.address):
            # As Ray does where it joins a cluster: it shows the token that it finds.
            os.environ.setdefault("RAY_AUTH_MODE", "token")
            _check_token()
        with self._telling():
            self._client = _client(self.address)

    def submit(self, request: Request) -> str:
        """The id of the new job."""
        if certain_bytes(request.working_dir, LARGEST) > LARGEST:
            raise _too_large("500 MiB")  # at once: Ray would read, copy and load all of it before it says so
        environment: dict[str, Any] = {
            "working_dir": str(request.working_dir.resolve()),
            "env_vars": {"DISTGRAD_PROGRESS": "log", **request.env},
        }
        if request.held_back:
            environment["excludes"] = [pattern(path) for path in request.held_back]
        if pip := _packages(request):
            environment["pip"] = pip
        with tempfile.TemporaryDirectory() as folder, self._telling():
            if request.ship:
                environment["py_modules"] = [str(assemble(Path(folder)))]
            made: str = self._client.submit_job(
                entrypoint=request.entrypoint,
                runtime_env=environment,
                submission_id=request.id,
                metadata={LABEL: shlex.join([request.script, *request.arguments])},
                **request.resources,
            )
        return made

    def list(self) -> list[Job]:
        """All jobs, the newest first; not the drivers that joined the cluster by themselves."""
        with self._telling():
            found = [_job(x) for x in self._client.list_jobs() if x.submission_id]
        return sorted(found, key=lambda job: job.started or 0.0, reverse=True)

    def get(self, id: str) -> Job:
        with self._telling(id):
            return _job(self._client.get_job_info(id))

    def logs(self, id: str) -> str:
        """All that a job has printed so far."""
        with self._telling(id):
            text: str = self._client.get_job_logs(id)
        return text

    def follow(self, id: str, write: Callable[[str], object]) -> Job:
        """Hand on what a job prints, from its start, as it comes; the job when it has ended."""
        self.get(id)
        tail = _Tail(write)
        while True:
            complete = asyncio.run(tail.read(self._client, id))
            job = self._get_retrying(id)
            if complete and job.over:
                return job
            time.sleep(0.5)

    def stop(self, id: str) -> Job:
        """Stop a job, and wait until it has ended: it is killed if it does not end by itself."""
        job, ends = self.get(id), time.monotonic() + STOP_TIMEOUT
        if not job.over:
            with self._telling(id):
                self._client.stop_job(id)
        while not job.over and time.monotonic() < ends:
            time.sleep(0.2)
            job = self.get(id)
        return job

    def _get_retrying(self, id: str) -> Job:
        """The job, though the way to the cluster may be interrupted for a while."""
        ends = time.monotonic() + RECONNECT_TIMEOUT
        while True:
            try:
                return self.get(id)
            except JobsError:
                if time.monotonic() > ends:
                    raise
            time.sleep(1)

    @contextmanager
    def _telling(self, id: str | None = None) -> Iterator[None]:
        """Ray's errors in terms of what was asked for."""
        from ray.exceptions import AuthenticationError

        try:
            yield
        except AuthenticationError as e:
            raise JobsError(_token(self.address, e)) from e
        except OSError as e:  # those of the HTTP library are, too
            if e.filename is not None:
                raise JobsError(f"{e.filename!r} cannot be uploaded: {e.strerror}", misuse=True) from e
            raise JobsError(f"the cluster at {self.address} does not answer: {_first_line(str(e))}") from e
        except (RuntimeError, ValueError) as e:
            raise _told(str(e), id, self.address) from e


class _Tail:
    """A log that is handed on piece by piece, each once, over as many connections as it takes."""

    def __init__(self, write: Callable[[str], object]):
        self._write = write
        self._written = 0

    async def read(self, client: JobSubmissionClient, id: str) -> bool:
        """Read on until the log ends (True) or the connection does."""
        from aiohttp import ClientError

        parts, place = client.tail_job_logs(id), 0
        while True:
            try:
                text = await anext(parts)
            except StopAsyncIteration:
                return True
            except (ClientError, ConnectionError, RuntimeError):
                return False
            new = text[max(0, self._written - place) :]
            place += len(text)
            if new:
                self._written = place
                self._write(new)  # what it raises is no matter of the connection


def _packages(request: Request) -> list[str]:
    """What Ray shall install for a job."""
    needed = requirements() if request.install else []
    if request.install and not needed:
        raise JobsError("what distgrad needs is not known here, where it is not installed: leave out --install", True)
    return [*needed, *request.pip]


def _client(address: str) -> JobSubmissionClient:
    """Ray's client of exactly this address: it would prefer that of the environment."""
    names = ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS")
    kept = {name: os.environ.pop(name) for name in names if name in os.environ}
    try:
        from ray.job_submission import JobSubmissionClient

        for name in _CHATTY:
            logging.getLogger(name).setLevel(logging.ERROR)
        return JobSubmissionClient(address)
    finally:
        os.environ.update(kept)


def _check_token() -> None:
    try:
        check_token()
    except PermissionError as e:
        raise JobsError(str(e), misuse=True) from e


def _job(found: JobDetails) -> Job:
    label = (found.metadata or {}).get(LABEL, found.entrypoint)
    times = [None if x is None else x / 1000 for x in (found.start_time, found.end_time)]
    code, message = found.driver_exit_code, found.message or ""
    return Job(found.submission_id or "", str(found.status), label, times[0], times[1], code, message)


def _token(address: str, e: Exception) -> str:
    wrong = "Invalid" in str(e)
    what = "does not take this token" if wrong else "wants an authentication token"
    return (
        f"the cluster at {address} {what}: set RAY_AUTH_TOKEN to the cluster's, or RAY_AUTH_TOKEN_PATH to a file with "
        f"it (by default ~/.ray/auth_token), and RAY_AUTH_MODE to 'token' or not at all"
    )


def _told(text: str, id: str | None, address: str) -> JobsError:
    if id is not None and "status code 404" in text:
        return JobsError(f"the cluster at {address} has no job {id!r}: see `distgrad jobs list`")
    if "exceed" in text and "size" in text:
        return _too_large("100 MiB")
    return JobsError(f"the cluster at {address} refused: {_last_line(text)}")


def _too_large(most: str) -> JobsError:
    return JobsError(
        f"the working folder is too large: Ray takes up to {most}. Name what the job does not need in a .rayignore "
        f"file (as in a .gitignore), or choose a smaller folder with --working-dir",
        misuse=True,
    )


def _first_line(text: str) -> str:
    return (text.strip().splitlines() or ["Ray does not say why"])[0]


def _last_line(text: str) -> str:
    """The last line, which in a traceback says what happened: without the name of the exception."""
    last = (text.strip(" .\n").splitlines() or ["Ray does not say why"])[-1]
    return re.sub(r"^[\w.]+(Error|Exception): ", "", last)
