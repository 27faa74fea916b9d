"""The connection of this process to Ray: one at a time, to a Ray that was started here or joined.

All sessions of the process share it. It ends with the last of them, which also ends the processes that were started
here: by Ray's own shutdown, or by force if that hangs. Opening and ending run in a side thread that continues when the
caller is interrupted, so that nothing is left half open. Knows Ray and its processes, and nothing about values.
"""

from __future__ import annotations

import atexit
import logging
import math
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import ray

from distgrad.workers.on_ray.connect import probes, reaper, tokens, waits
from distgrad.workers.on_ray.connect.reaper import Process
from distgrad.workers.on_ray.connect.waits import Job, ServerMonitor

log = logging.getLogger("distgrad")

#: Seconds to start Ray here, to join a cluster, and to wait for an earlier connection to end.
START_TIMEOUT, JOIN_TIMEOUT, END_TIMEOUT = 120.0, waits.SILENCE_TIMEOUT, 60.0
#: Seconds to shut down the connection to a lost cluster, and for processes to exit by themselves.
LOST_SHUTDOWN_TIMEOUT, EXIT_TIMEOUT = 2.0, 2.0
#: Seconds that the exit of this process waits for Ray's client to leave a cluster without a head, which takes 7 to 15.
CLIENT_EXIT_TIMEOUT = 20.0
#: Seconds between two checks of the servers while nothing waits for them.
GUARD_INTERVAL = 1.0
#: Seconds that Ray's client tries to reconnect to the GCS. After Ray's default of 60 it would end this process.
GCS_RECONNECT_TIMEOUT = 1_000_000

RAYLET, GCS = "the raylet of this machine", "the GCS (the head's server)"

FORKED = (
    "Session: this process was forked from one that is connected to Ray, and cannot use that connection. Spawn it "
    'instead (multiprocessing.get_context("spawn")), or fork before a session on Ray is opened.'
)

_lock = threading.RLock()
_current: Connection | None = None
#: The shutdown of the previous connection, while it is in progress.
_ending: Job | None = None
#: The same for a connection that was interrupted while it opened.
_abandoned: Job | None = None


class Connection:
    """A connection to Ray. `opened` says that distgrad opened it and will close it. With a `mark`, this process started
    the servers and ends them with the connection."""

    def __init__(
        self,
        opened: bool,
        mark: str = "",
        helper: subprocess.Popen[bytes] | None = None,
        restore: Callable[[], None] = lambda: None,
    ):
        self.opened, self._mark, self._reaper, self._restore = opened, mark, helper, restore
        self.pid = os.getpid()
        #: The links that use it.
        self.users: set[Any] = set()
        self.lost: str | None = None
        self._servers = _servers()
        self._calls = _questions()
        self._over = threading.Event()
        self.monitor = ServerMonitor(self)
        if mark:
            threading.Thread(target=self._guard, name="distgrad-ray-guard", daemon=True).start()

    def _guard(self) -> None:
        """Notice the death of a server even while nothing waits for it. Soon after the raylet's death the GCS would
        report it, and Ray's client would end this process."""
        while not self._over.wait(GUARD_INTERVAL):
            ended = self.ended()
            if ended and not self._over.is_set():
                self.give_up(ended)
                return

    # -- what waits ask ------------------------------------------------------------------------------------------

    def questions(self) -> dict[str, Callable[[], Any]]:
        return self._calls

    def ended(self) -> str:
        if self._over.is_set():  # this process is ending them
            return ""
        if self.pid == os.getpid() and not ray.is_initialized():
            return "Ray was shut down"
        gone = [f"{name} (process {p.pid}) has ended" for name, p in self._servers.items() if not reaper.lives(p)]
        return " and ".join(gone)

    def stopped(self) -> str:
        found = [f"{name} (process {p.pid}) is stopped" for name, p in self._servers.items() if _is_stopped(p)]
        return " and ".join(found)

    def held(self) -> bool:
        raylet = self._servers.get(RAYLET)
        return raylet is not None and _is_stopped(raylet)

    def raylet_lives(self) -> bool:
        raylet = self._servers.get(RAYLET)
        return raylet is None or (reaper.lives(raylet) and not _is_stopped(raylet))

    def give_up(self, reason: str) -> None:
        with _lock:
            if self.lost is None:
                self.lost = reason
                log.warning("distgrad: the Ray cluster is lost: %s", reason)
                _show_errors_alone()
                raylet, gcs = self._servers.get(RAYLET), self._servers.get(GCS)
                if self._mark and raylet is not None and gcs is not None and not reaper.lives(raylet):
                    reaper.kill({gcs})  # it would report the raylet's death, and Ray's client would end this process

    # -- the end -------------------------------------------------------------------------------------------------

    def end(self, timeout: float | None) -> None:
        """Shut Ray down, and kill the processes that do not end by themselves."""
        ours = _belonging(self.pid, self._mark)
        if ray.is_initialized():
            self._shut_down(timeout)
        _end_all(ours | _belonging(self.pid, self._mark))
        self.forget()

    def forget(self) -> None:
        """After Ray has ended: stop the reaper, and restore the environment."""
        self._over.set()
        self._calls = {}  # the client of a lost GCS would end this process eventually
        _stop_reaper(self._reaper)
        self._restore()

    def _shut_down(self, timeout: float | None) -> None:
        global _ending
        if self.lost is not None or self.ended() or self.held():
            self._make_way()
        self._over.set()
        begun = time.monotonic()
        ends = begun + (LOST_SHUTDOWN_TIMEOUT if self.lost is not None else timeout or math.inf)
        job = waits.start(ray.shutdown)
        try:
            while not job.wait(waits.POLL_INTERVAL) and time.monotonic() < ends:
                if self.lost is None:
                    self.monitor.check(begun, "shutting Ray down")
        except ConnectionError as e:
            log.warning("distgrad: %s", e)
        if job.wait(0):
            job.outcome()
            return
        self.lost = self.lost or "Ray does not end"
        _ending = job
        atexit.unregister(ray._private.worker.shutdown)  # it would wait for the same
        self._make_way()
        job.wait(LOST_SHUTDOWN_TIMEOUT)

    def _make_way(self) -> None:
        """Kill servers that would not answer. A stopped raylet first continues for a moment: pending calls hold locks
        of Ray's client, and would end this process when the raylet dies."""
        if not self._mark:
            return
        raylet, gcs = self._servers.get(RAYLET), self._servers.get(GCS)
        if raylet is not None:
            if _is_stopped(raylet):
                with suppress(OSError):
                    os.kill(raylet.pid, signal.SIGCONT)
                time.sleep(2 * waits.POLL_INTERVAL)
            reaper.kill({raylet})
        if gcs is not None and _is_stopped(gcs):
            reaper.kill({gcs})


def _show_errors_alone() -> None:
    """Restore Python's display of uncaught errors: Ray's would report them to the GCS first, and wait."""
    ours, usual = (getattr(ray._private.worker, f"{name}_excepthook", None) for name in ("custom", "normal"))
    if usual is not None and sys.excepthook is ours:
        sys.excepthook = usual


def _belonging(driver: int, mark: str) -> set[Process]:
    return reaper.belonging(driver, mark) if mark else set()


def _stop_reaper(helper: subprocess.Popen[bytes] | None) -> None:
    if helper is not None:
        helper.kill()
        helper.wait()


def _is_stopped(process: Process) -> bool:
    return reaper.state(process.pid) in ("T", "t")


def _end_all(processes: set[Process]) -> None:
    """Wait for processes to end, and kill those that do not."""
    ends = time.monotonic() + EXIT_TIMEOUT
    while any(map(reaper.lives, processes)) and time.monotonic() < ends:
        time.sleep(0.05)
    reaper.kill(processes)


def _servers() -> dict[str, Process]:
    """The processes on this machine that the driver depends on, as far as they are known."""
    node = getattr(ray._private.worker, "_global_node", None)
    started = {} if node is None else node.all_processes
    found = {}
    for name, kind in ((RAYLET, "raylet"), (GCS, "gcs_server")):
        for info in started.get(kind, []):
            process = reaper.identified(info.process.pid)
            if process is not None:
                found[name] = process
    if node is not None and RAYLET not in found:  # a Ray that was joined: others started its raylet on this machine
        raylet = reaper.called_with(f"--raylet_socket_name={node.raylet_socket_name}")
        found |= {RAYLET: raylet} if raylet is not None else {}
    return found


def _questions() -> dict[str, Callable[[], Any]]:
    """Probes that only a living raylet or GCS answers; none for Ray's client of a remote cluster."""
    worker = ray._private.worker.global_worker
    node, gcs = getattr(worker, "node", None), getattr(worker, "gcs_client", None)
    if node is None or gcs is None:
        return {}
    return {
        RAYLET: partial(probes.ask_raylet, f"{node.node_ip_address}:{node.node_manager_port}", waits.SILENCE_TIMEOUT),
        GCS: lambda: gcs.internal_kv_get(b"distgrad", b"distgrad", timeout=waits.SILENCE_TIMEOUT),
    }


# -- opening -----------------------------------------------------------------------------------------------------


def _forked() -> None:
    """Reset the state in a forked child: threads that held the lock or were shutting Ray down do not exist there."""
    global _lock, _ending, _abandoned
    _lock, _ending, _abandoned = threading.RLock(), None, None


os.register_at_fork(after_in_child=_forked)


def enter(user: Any, begin: Callable[[], None] | None, starts: bool) -> Connection:
    """The connection of this process, for one more user; `begin` opens one if there is none."""
    global _current
    with _lock:
        settle()
        known = _current
        if known is not None and known.pid != os.getpid():  # inherited from the parent process
            if ray.is_initialized():
                raise RuntimeError(FORKED)
            known = None
        if known is not None and not ray.is_initialized():  # shut down by others
            known.forget()
            known = None
        if known is None:
            known = Connection(False) if ray.is_initialized() else _opened(begin, starts)
        elif known.lost or known.ended():
            raise ConnectionError(
                f"Session: the Ray cluster that this process is connected to is lost: {known.lost or known.ended()}. "
                f"Close its sessions first."
            )
        known.users.add(user)
        _current = known
        return known


def settle() -> None:
    """Wait for the previous connection to end."""
    global _ending
    if _ending is not None and not _ended(_ending, END_TIMEOUT):
        raise ConnectionError(
            f"Session: an earlier Ray of this process is still shutting down after {END_TIMEOUT:.0f} s, so no other "
            f"can be opened. Restart the program."
        )
    _ending = None


def _ended(job: Job, seconds: float) -> bool:
    """Whether a job ends in this time. Polls, so that signals that another thread received are handled."""
    ends = time.monotonic() + seconds
    while not job.wait(waits.POLL_INTERVAL) and time.monotonic() < ends:
        pass
    return job.wait(0)


def _opened(begin: Callable[[], None] | None, starts: bool) -> Connection:
    assert begin is not None
    mark = uuid.uuid4().hex if starts else ""
    helper = _start_reaper(mark) if starts else None
    restore = tokens.showing()
    _answer_terminate()
    job = waits.start(lambda: _begin(begin, mark))
    try:
        limit = START_TIMEOUT if starts else JOIN_TIMEOUT
        ends = time.monotonic() + limit
        while not job.wait(waits.POLL_INTERVAL):
            if time.monotonic() > ends:
                raise ConnectionError(f"Session: Ray could not be opened: it did not answer within {limit:.0f} s")
        job.outcome()
        return Connection(True, mark, helper, restore)
    except BaseException:
        _abandon(job, mark, helper, restore)
        raise


def _begin(begin: Callable[[], None], mark: str) -> None:
    """Open Ray. An environment variable marks the processes that are started meanwhile."""
    if mark:
        os.environ[reaper.MARK] = mark
    try:
        begin()
    finally:
        os.environ.pop(reaper.MARK, None)


def _abandon(
    job: Job, mark: str, helper: subprocess.Popen[bytes] | None, restore: Callable[[], None]
) -> None:
    """Shut down, in a side thread, a Ray that was abandoned while it opened."""
    global _ending, _abandoned

    def take_down() -> None:
        while not job.wait(waits.SILENCE_TIMEOUT):
            pass
        ours = _belonging(os.getpid(), mark)
        try:
            if ray.is_initialized():
                ray.shutdown()
        finally:
            _end_all(ours)
            _stop_reaper(helper)
            restore()

    _ending = _abandoned = waits.start(take_down)


def _leave_to_the_parent() -> None:
    """In a forked process: only the parent shuts Ray down. The exit handler would wait for threads of the parent."""
    atexit.unregister(ray._private.worker.shutdown)


os.register_at_fork(after_in_child=_leave_to_the_parent)


@atexit.register
def _finish() -> None:
    """At exit, wait for shutdowns in progress. The reaper kills what is left."""
    if _abandoned is not None:
        _abandoned.wait(END_TIMEOUT)
    if _ending is not None:
        _ending.wait(CLIENT_EXIT_TIMEOUT)


def _start_reaper(mark: str) -> subprocess.Popen[bytes] | None:
    if not os.path.isdir("/proc"):
        return None
    command = [sys.executable, "-I", "-S", str(Path(reaper.__file__)), str(os.getpid()), mark]
    none = subprocess.DEVNULL
    return subprocess.Popen(command, stdin=none, stdout=none, stderr=none, cwd="/", start_new_session=True)


def _answer_terminate() -> None:
    """Make SIGTERM exit this process cleanly, as Ray does when the main thread starts it."""
    main = threading.current_thread() is threading.main_thread()
    if main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, lambda number, _: sys.exit(number))


def leave(connection: Connection, user: Any, timeout: float | None) -> None:
    """Remove a user of the connection; the last one ends it."""
    global _current
    with _lock:
        connection.users.discard(user)
        if connection.users or connection is not _current or connection.pid != os.getpid():
            return
        _current = None
        if connection.opened:
            connection.end(timeout)


def uninterrupted(call: Callable[[], Any]) -> None:
    """Run a call to its end despite Ctrl-C, which is raised afterwards. A second Ctrl-C is raised immediately, and the
    call continues in its thread."""
    job, interrupt = waits.start(call), None
    while True:
        try:
            if job.wait(1.0):
                break
        except KeyboardInterrupt as e:
            if interrupt is not None:
                raise
            interrupt = e
    job.outcome()
    if interrupt is not None:
        raise interrupt
