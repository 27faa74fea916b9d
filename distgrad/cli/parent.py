"""The parent process of a script that runs on Ray: it reports when Ray has killed the script.

If a driver's raylet dies, Ray ends the driver with `_exit` in its client at the next use of the object store (seen in
2.60), so no handler and no `finally` of the script runs. The process that the user started therefore forks: the child
runs the script; the parent waits for it, forwards signals, and prints an error if the child ended without one.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import signal
import sys
from contextlib import suppress

from distgrad.cli.console import say

#: Exit code if Ray ended the script: a temporary failure, worth a retry (EX_TEMPFAIL).
ENDED_BY_RAY = 75
#: Exit code that Ray uses, and Linux' prctl option that ends a process with its parent.
_RAYS, _PR_SET_PDEATHSIG = 1, 1
#: Signals that are forwarded to the script.
_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def fork() -> None:
    """Continue in a child process. The parent does not return; it exits with the child's exit code."""
    if not hasattr(os, "fork") or not hasattr(signal, "sigwaitinfo"):
        return
    sys.stdout.flush()
    sys.stderr.flush()
    parent, waited = os.getpid(), {*_PASSED_ON, signal.SIGCHLD}
    old = signal.pthread_sigmask(signal.SIG_BLOCK, waited)
    end, orderly = os.pipe()
    apart = not os.isatty(0)  # a terminal sends Ctrl-C to both
    child = os.fork()
    if child:
        os.close(orderly)
        os._exit(_code(_waited(child, waited, apart), end))
    os.close(end)
    if apart:
        os.setpgid(0, 0)
    _end_with(parent)
    atexit.register(os.write, orderly, b".")  # registered first, so it runs last
    signal.pthread_sigmask(signal.SIG_SETMASK, old)


def _end_with(parent: int) -> None:
    """Ask the kernel to end this process if its parent is killed."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(128 + signal.SIGKILL)


def _waited(child: int, signals: set[signal.Signals], apart: bool) -> int:
    """Wait for the child and return its status; forwards signals in the meantime."""
    while True:
        came = signal.sigwaitinfo(signals)
        if came.si_signo != signal.SIGCHLD:
            if apart or came.si_code <= 0:  # sent by a process; signals from the terminal reach the child anyway
                with suppress(ProcessLookupError):
                    os.kill(child, came.si_signo)
            continue
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return status


def _code(status: int, end: int) -> int:
    """The exit code; prints the error if the child could not."""
    os.set_blocking(end, False)
    try:
        orderly = os.read(end, 1) == b"."
    except BlockingIOError:
        orderly = False
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        say(f"error: the script was ended by signal {signal.Signals(-code).name}. {_REMEDY}")
        return 128 - code
    if code == _RAYS and not orderly:
        say(f"error: the script's process was ended by Ray, which happens if the raylet of this machine has died or "
            f"its head is gone: see the last lines above and Ray's logs. {_REMEDY}")  # fmt: skip
        return ENDED_BY_RAY
    return code


_REMEDY = "Start it again: a script that begins with Checkpoints.restore continues from its last checkpoint."
