"""Jobs of a Ray cluster, through the API of its dashboard: submitting, listing, following, stopping.

The only user of Ray's job client. Ray is imported after a dashboard has answered. Knows nothing of the command line.
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

#: Seconds to reach a dashboard again after an interruption; seconds for a job to stop.
RECONNECT_TIMEOUT, STOP_TIMEOUT = 30.0, 30.0
#: Bytes above which no Ray accepts an upload. By default its dashboard accepts a fifth of that.
LARGEST = 500 << 20
#: The metadata key of the submitted command, for lists of jobs.
LABEL = "distgrad"
_OVER = ("STOPPED", "SUCCEEDED", "FAILED")
#: Loggers that are silenced: what they say is of no use here, or repeated by the errors below.
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

    #: Path relative to the working folder, which is uploaded.
    script: str
    arguments: Sequence[str] = ()
    working_dir: Path = Path()
    #: Options of `distgrad run`.
    options: Sequence[str] = ()
    #: The Python of the cluster: a command, or a path on the cluster.
    python: str = "python"
    #: Environment variables. They may be secrets, though they should not be: Ray prints them, nothing here does.
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    #: Paths in the working folder that are not sent.
    held_back: Sequence[str] = ()
    #: Whether to upload this distgrad; whether Ray installs its dependencies; and other packages to install.
    ship: bool = True
    install: bool = False
    pip: Sequence[str] = ()
    id: str | None = None
    #: Resources of the script's own process: `entrypoint_num_cpus` and the like.
    resources: Mapping[str, Any] = field(default_factory=dict)

    @property
    def entrypoint(self) -> str:
        """The command of the job. With -P the job's folder, which may be a checkout of distgrad, cannot shadow it."""
        command = [self.python, "-P", "-m", "distgrad", "run", "--address", "auto", *self.options]
        return shlex.join([*command, "--", self.script, *self.arguments])


@dataclass(frozen=True, slots=True)
class Job:
    """A job as Ray reports it."""

    id: str
    status: str
    #: The script and its arguments; the whole command of a job that distgrad did not submit.
    script: str
    #: Seconds since the epoch.
    started: float | None
    ended: float | None
    exit_code: int | None
    message: str

    @property
    def over(self) -> bool:
        return self.status in _OVER

    @property
    def seconds(self) -> float | None:
        """Its run time in seconds; up to now if it is still running."""
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
            # As Ray does when it joins a cluster: present the token that it finds.
            os.environ.setdefault("RAY_AUTH_MODE", "token")
            _check_token()
        with self._jobs_errors():
            self._client = _client(self.address)

    def submit(self, request: Request) -> str:
        """The id of the new job."""
        if certain_bytes(request.working_dir, LARGEST) > LARGEST:
            raise _too_large("500 MiB")  # early: Ray would read and copy all of it first
        environment: dict[str, Any] = {
            "working_dir": str(request.working_dir.resolve()),
            "env_vars": {"DISTGRAD_PROGRESS": "log", **request.env},
        }
        if request.held_back:
            environment["excludes"] = [pattern(path) for path in request.held_back]
        if pip := _packages(request):
            environment["pip"] = pip
        with tempfile.TemporaryDirectory() as folder, self._jobs_errors():
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
        """All jobs, newest first; without drivers that joined the cluster by themselves."""
        with self._jobs_errors():
            found = [_job(x) for x in self._client.list_jobs() if x.submission_id]
        return sorted(found, key=lambda job: job.started or 0.0, reverse=True)

    def get(self, id: str) -> Job:
        with self._jobs_errors(id):
            return _job(self._client.get_job_info(id))

    def logs(self, id: str) -> str:
        """The output of a job so far."""
        with self._jobs_errors(id):
            text: str = self._client.get_job_logs(id)
        return text

    def follow(self, id: str, write: Callable[[str], object]) -> Job:
        """Pass the output of a job to `write` from its start, as it arrives; return the job when it has ended."""
        self.get(id)
        tail = _Tail(write)
        while True:
            complete = asyncio.run(tail.read(self._client, id))
            job = self._get_retrying(id)
            if complete and job.over:
                return job
            time.sleep(0.5)

    def stop(self, id: str) -> Job:
        """Stop a job, and wait until it has ended. Ray kills it if it does not end by itself."""
        job, ends = self.get(id), time.monotonic() + STOP_TIMEOUT
        if not job.over:
            with self._jobs_errors(id):
                self._client.stop_job(id)
        while not job.over and time.monotonic() < ends:
            time.sleep(0.2)
            job = self.get(id)
        return job

    def _get_retrying(self, id: str) -> Job:
        """The job; retries while the connection to the cluster is interrupted."""
        ends = time.monotonic() + RECONNECT_TIMEOUT
        while True:
            try:
                return self.get(id)
            except JobsError:
                if time.monotonic() > ends:
                    raise
            time.sleep(1)

    @contextmanager
    def _jobs_errors(self, id: str | None = None) -> Iterator[None]:
        """Turns Ray's errors into JobsError, in terms of the request."""
        from ray.exceptions import AuthenticationError

        try:
            yield
        except AuthenticationError as e:
            raise JobsError(_token(self.address, e)) from e
        except OSError as e:  # including those of the HTTP library
            if e.filename is not None:
                raise JobsError(f"{e.filename!r} cannot be uploaded: {e.strerror}", misuse=True) from e
            raise JobsError(f"the cluster at {self.address} does not answer: {_first_line(str(e))}") from e
        except (RuntimeError, ValueError) as e:
            raise _as_jobs_error(str(e), id, self.address) from e


class _Tail:
    """Passes on a log piece by piece, each once, reconnecting as often as needed."""

    def __init__(self, write: Callable[[str], object]):
        self._write = write
        self._written = 0

    async def read(self, client: JobSubmissionClient, id: str) -> bool:
        """Read until the log ends (True) or the connection does (False)."""
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
                self._write(new)  # outside the try: its errors are not those of the connection


def _packages(request: Request) -> list[str]:
    """The packages that Ray installs for a job."""
    needed = requirements() if request.install else []
    if request.install and not needed:
        raise JobsError("distgrad is not installed here, so its dependencies are unknown: omit --install", True)
    return [*needed, *request.pip]


def _client(address: str) -> JobSubmissionClient:
    """Ray's client for exactly this address: it would prefer one from the environment."""
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
    what = "rejects this token" if wrong else "requires an authentication token"
    return (
        f"the cluster at {address} {what}: set RAY_AUTH_TOKEN to the cluster's token, or RAY_AUTH_TOKEN_PATH to a file "
        f"with it (by default ~/.ray/auth_token), and set RAY_AUTH_MODE to 'token' or unset it"
    )


def _as_jobs_error(text: str, id: str | None, address: str) -> JobsError:
    if id is not None and "status code 404" in text:
        return JobsError(f"the cluster at {address} has no job {id!r}: see `distgrad jobs list`")
    if "exceed" in text and "size" in text:
        return _too_large("100 MiB")
    return JobsError(f"the cluster at {address} refused: {_last_line(text)}")


def _too_large(most: str) -> JobsError:
    return JobsError(
        f"the working folder is too large: Ray accepts up to {most}. List files that the job does not need in a "
        f".rayignore file (in the syntax of .gitignore), or choose a smaller folder with --working-dir",
        misuse=True,
    )


def _first_line(text: str) -> str:
    return (text.strip().splitlines() or ["Ray does not say why"])[0]


def _last_line(text: str) -> str:
    """The last line, which holds the message of a traceback, without the name of the exception."""
    last = (text.strip(" .\n").splitlines() or ["Ray does not say why"])[-1]
    return re.sub(r"^[\w.]+(Error|Exception): ", "", last)
