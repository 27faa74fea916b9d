"""Waits that end: calls of Ray that take no timeout run in a side thread, while the caller looks after the cluster.

A call may take as long as it needs: data may be large. But while nothing arrives, the raylet of this machine and the
GCS are asked for a sign of life, and where one of them gives none for SILENCE seconds, the wait ends with ClusterLost.
Knows what a connection tells of itself, and nothing of sessions.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

from distgrad.errors import ClusterLost

#: Seconds without an answer of the raylet or the GCS after which the cluster is given up.
SILENCE = 30.0
#: Seconds between two questions to each of them, while nothing arrives.
ASKING = 10.0
#: Seconds in which they must answer when a wait ends at its timeout, to tell a slow cluster from one that is gone.
LAST_WORD = 2.0
#: Seconds between two looks at what is known without asking.
LOOK = 0.25


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
        """Whether it ended within this time. Ctrl-C ends this wait, as all in the main thread."""
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
    """A side thread: runs one call after another, and never ends: Ray's servers end with the thread that started
    them."""

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
    """Begin a call in a side thread: one that is idle, or a new one."""
    job = Job(call)
    try:
        thread = _idle.pop()
    except IndexError:
        thread = _Thread(_idle)
        try:
            thread.start()
        except RuntimeError:  # at the end of the process there are no new ones
            job.run()
            job.end()
            return job
    thread.give(job)
    return job


def finished(call: Callable[[], Any]) -> Any:
    """What a call gives that must not be interrupted half way, as an import: Ctrl-C ends the wait, not the call."""
    job = start(call)
    while not job.wait(1.0):
        pass
    return job.outcome()


class Asked(Protocol):
    """What a connection tells of its servers."""

    #: Why it can be used no more.
    lost: str | None

    def questions(self) -> dict[str, Callable[[], Any]]:
        """Calls by the name of the server that must be alive to answer."""

    def ended(self) -> str:
        """What is known without asking: which server has ended; "" where none has."""

    def stopped(self) -> str:
        """Which server is stopped (as by SIGSTOP) now."""

    def held(self) -> bool:
        """Whether the raylet is stopped."""

    def give_up(self, reason: str) -> None:
        """Nothing more is to be expected."""


class ServerMonitor:
    """Whether the servers of a connection are alive, for all that wait for them."""

    def __init__(self, connection: Asked):
        self._connection = connection
        self._lock = threading.Lock()
        self._heard: dict[str, float] = {}
        self._asked: dict[str, tuple[float, Job]] = {}

    def check(self, begun: float, what: str) -> None:
        """Called again and again in a wait that began then: ClusterLost where no more is to be expected."""
        self._known(what)
        now = time.monotonic()
        with self._lock:
            self._listen()
            for name, question in self._connection.questions().items():
                last = self._asked[name][0] if name in self._asked else 0.0
                if now - max(last, begun) >= ASKING and (name not in self._asked or self._asked[name][1].wait(0)):
                    self._asked[name] = now, start(question)
        for name in self._connection.questions():
            silent = now - max(self._heard.get(name, 0.0), begun)
            if silent >= SILENCE:
                self._lose(f"{name} has not answered for {silent:.0f} s", what)

    def judge(self, what: str) -> None:
        """At the end of a wait's time: ClusterLost where a server is known to be gone or stopped, or has said nothing
        since it was asked, ASKING seconds ago or more."""
        self._known(what)
        stopped = self._connection.stopped()
        if stopped:
            self._lose(stopped, what)
        now = time.monotonic()
        for name, (since, job) in list(self._asked.items()):
            if now - since >= ASKING and not job.wait(now + LAST_WORD - time.monotonic()):
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
        """What the call gives. It ends with ClusterLost where the servers are silent, and with TimeoutError after
        `timeout` seconds; never because it takes long."""
        begun = time.monotonic()
        ends = None if timeout is None else begun + timeout
        self._sane(begun, ends, what, timeout)
        job = start(lambda: call(*args))
        while not job.wait(_slice(ends)):
            self.check(begun, what)
            self._in_time(ends, what, timeout)
        return job.outcome()

    def _sane(self, begun: float, ends: float | None, what: str, timeout: float | None) -> None:
        """Before the call, wait for a raylet that is stopped to go on: Ray's client would hold its locks meanwhile, and
        the next array of the store that is let go would stop this process."""
        self._known(what)
        while self._connection.held():
            self.check(begun, what)
            self._in_time(ends, what, timeout)
            time.sleep(LOOK)

    def _in_time(self, ends: float | None, what: str, timeout: float | None) -> None:
        if ends is not None and time.monotonic() >= ends:
            self.judge(what)
            raise TimeoutError(
                f"{what} was given up after the session's timeout of {timeout:g} s, though the cluster answers. Give "
                f"it more time with Session(timeout=)."
            )


def _slice(ends: float | None) -> float:
    return LOOK if ends is None else max(min(LOOK, ends - time.monotonic()), 0.001)


def lost(reason: str, what: str) -> ClusterLost:
    return ClusterLost(
        f"{what}: the Ray cluster of this session is lost: {reason}. The session is dead; variables whose values lie "
        f"in this process keep them. Open another session and restore the last checkpoint (distgrad.Checkpoints)."
    )
