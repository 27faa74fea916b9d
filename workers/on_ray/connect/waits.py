"""Bounded waits: Ray calls that accept no timeout run in a side thread while the caller monitors the cluster.

A call may take as long as it needs, because data may be large. While nothing arrives, the raylet of this machine and
the GCS are probed; if one of them does not answer for SILENCE_TIMEOUT seconds, the wait ends with ClusterLost.
Knows what a connection reports about itself, and nothing about sessions.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

from distgrad.errors import ClusterLost

#: Seconds without an answer from the raylet or the GCS after which the cluster counts as lost.
SILENCE_TIMEOUT = 30.0
#: Seconds between two probes of each server while nothing arrives.
PROBE_INTERVAL = 10.0
#: Seconds for an outstanding probe to be answered when a wait times out: it tells a slow cluster from a lost one.
LAST_PROBE_TIMEOUT = 2.0
#: Seconds between two checks of what is known without a probe, such as whether the processes are alive.
POLL_INTERVAL = 0.25


class Job:
    """A call in a side thread."""

    __slots__ = ("_call", "_done", "_error", "_over", "_result")

    def __init__(self, call: Callable[[], Any]):
        self._call: Callable[[], Any] | None = call
        self._done = threading.Lock()
        self._done.acquire()
        self._over = False
        self._result: Any = None
        self._error: BaseException | None = None

    def run(self) -> None:
        assert self._call is not None
        try:
            self._result = self._call()
        except BaseException as e:  # whatever it may be: it is the caller's
            self._error = e
        self._call = None

    def end(self) -> None:
        self._over = True
        self._done.release()

    def wait(self, seconds: float) -> bool:
        """Whether it ended within this time. Ctrl-C ends this wait, like any wait of the main thread."""
        if not self._over and self._done.acquire(timeout=max(seconds, 0.0)):
            self._done.release()  # unless an interrupt comes just now: then others see that it is over
        return self._over

    @property
    def failed(self) -> bool:
        return self._error is not None

    def outcome(self) -> Any:
        """What the call gave or raised, once."""
        result, error, self._result, self._error = self._result, self._error, None, None
        if error is not None:
            try:
                raise error
            finally:
                del error  # it has this frame in its traceback
        return result


class _Thread(threading.Thread):
    """A side thread that runs one call after another. It never ends, because Ray's servers end with the thread that
    started them."""

    def __init__(self, idle: list[_Thread]):
        super().__init__(name="distgrad-ray", daemon=True)
        self._idle, self._go = idle, threading.Lock()
        self._go.acquire()
        self._job: Job | None = None

    def give(self, job: Job) -> None:
        self._job = job
        self._go.release()

    def run(self) -> None:
        while True:
            self._go.acquire()
            job, self._job = self._job, None
            assert job is not None
            job.run()
            self._idle.append(self)
            job.end()
            del job  # and what it gave


_idle: list[_Thread] = []
os.register_at_fork(after_in_child=_idle.clear)


def start(call: Callable[[], Any]) -> Job:
    """Run a call in a side thread: an idle one, or a new one."""
    job = Job(call)
    try:
        thread = _idle.pop()
    except IndexError:
        thread = _Thread(_idle)
        try:
            thread.start()
        except RuntimeError:  # an interpreter that shuts down starts no threads
            job.run()
            job.end()
            return job
    thread.give(job)
    return job


def finished(call: Callable[[], Any]) -> Any:
    """The result of a call that must not be interrupted half way, such as an import: Ctrl-C ends the wait alone."""
    job = start(call)
    while not job.wait(1.0):
        pass
    return job.outcome()


class Asked(Protocol):
    """What a connection reports about its servers."""

    #: Why the connection is lost; None while it is usable.
    lost: str | None

    def questions(self) -> dict[str, Callable[[], Any]]:
        """Probes, by the name of the server that must be alive to answer."""

    def ended(self) -> str:
        """Which server processes have ended, known without a probe; "" if none."""

    def stopped(self) -> str:
        """Which server processes are stopped now, as by SIGSTOP; "" if none."""

    def held(self) -> bool:
        """Whether the raylet is stopped."""

    def give_up(self, reason: str) -> None:
        """Mark the connection as lost."""


class ServerMonitor:
    """Checks that the servers of a connection are alive while callers wait for them."""

    def __init__(self, connection: Asked):
        self._connection = connection
        self._lock = threading.Lock()
        self._heard: dict[str, float] = {}
        self._asked: dict[str, tuple[float, Job]] = {}

    def check(self, begun: float, what: str) -> None:
        """Poll this during a wait that started at `begun`: raises ClusterLost if a server has ended or gone silent."""
        self._known(what)
        now = time.monotonic()
        with self._lock:
            self._listen()
            for name, question in self._connection.questions().items():
                last = self._asked[name][0] if name in self._asked else 0.0
                idle = name not in self._asked or self._asked[name][1].wait(0)
                if idle and now - max(last, begun) >= PROBE_INTERVAL:
                    self._asked[name] = now, start(question)
        for name in self._connection.questions():
            silent = now - max(self._heard.get(name, 0.0), begun)
            if silent >= SILENCE_TIMEOUT:
                self._lose(f"{name} has not answered for {silent:.0f} s", what)

    def judge(self, what: str) -> None:
        """At a wait's deadline: raises ClusterLost if a server has ended, is stopped, or has left a probe that is at
        least PROBE_INTERVAL seconds old unanswered."""
        self._known(what)
        stopped = self._connection.stopped()
        if stopped:
            self._lose(stopped, what)
        now = time.monotonic()
        for name, (since, job) in list(self._asked.items()):
            if now - since >= PROBE_INTERVAL and not job.wait(now + LAST_PROBE_TIMEOUT - time.monotonic()):
                self._lose(f"{name} has not answered for {time.monotonic() - since:.0f} s", what)

    def _known(self, what: str) -> None:
        if self._connection.lost is not None:
            raise lost(self._connection.lost, what)
        ended = self._connection.ended()
        if ended:
            self._lose(ended, what)

    def _listen(self) -> None:
        for name, (since, job) in self._asked.items():
            if since > self._heard.get(name, 0.0) and job.wait(0) and not job.failed:
                self._heard[name] = time.monotonic()

    def _lose(self, reason: str, what: str) -> None:
        self._connection.give_up(reason)
        raise lost(self._connection.lost or reason, what)

    # -- waiting -------------------------------------------------------------------------------------------------

    def answered(self, call: Callable[..., Any], *args: Any, what: str, timeout: float | None = None) -> Any:
        """The result of the call. Raises ClusterLost if the servers go silent, and TimeoutError after `timeout`
        seconds; otherwise the call may take as long as it needs."""
        begun = time.monotonic()
        ends = None if timeout is None else begun + timeout
        self._sane(begun, ends, what, timeout)
        job = start(lambda: call(*args))
        while not job.wait(_slice(ends)):
            self.check(begun, what)
            self._in_time(ends, what, timeout)
        return job.outcome()

    def _sane(self, begun: float, ends: float | None, what: str, timeout: float | None) -> None:
        """Before the call, wait for a stopped raylet to continue. Otherwise Ray's client would hold its locks, and this
        process would block when it next releases an array of the store."""
        self._known(what)
        while self._connection.held():
            self.check(begun, what)
            self._in_time(ends, what, timeout)
            time.sleep(POLL_INTERVAL)

    def _in_time(self, ends: float | None, what: str, timeout: float | None) -> None:
        if ends is not None and time.monotonic() >= ends:
            self.judge(what)
            raise TimeoutError(
                f"{what} was stopped after the session's timeout of {timeout:g} s, though the cluster answers. "
                f"Increase it with Session(timeout=)."
            )


def _slice(ends: float | None) -> float:
    return POLL_INTERVAL if ends is None else max(min(POLL_INTERVAL, ends - time.monotonic()), 0.001)


def lost(reason: str, what: str) -> ClusterLost:
    return ClusterLost(
        f"{what}: the Ray cluster of this session is lost: {reason}. The session cannot be used any more; variables "
        f"held in this process keep their values. Open another session and restore the last checkpoint "
        f"(distgrad.Checkpoints)."
    )
