"""The parent of a script that runs on Ray: it tells of an end that the script itself cannot tell of.

Ray ends a driver whose raylet has died (2.60: `_exit` inside of its client, at the next use of the object store), so no
handler and no `finally` of the script runs. The process that the user started therefore forks: the child runs the
script, and this one waits for it, hands signals on, and says what happened where the child went without a word.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import signal
import sys
from contextlib import suppress

from distgrad.cli.console import say

#: The exit code where Ray ended the script: of a failure that is worth another try (EX_TEMPFAIL).
ENDED_BY_RAY = 75
#: Ray's own exit code, and the code of Linux' prctl that has a process end with its parent.
_RAYS, _PR_SET_PDEATHSIG = 1, 1
#: Signals that end a program and are the script's to answer.
_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def fork() -> None:
    """Goes on in a child; the parent never returns from here, and exits as the child does."""
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
    atexit.register(os.write, orderly, b".")  # the first to be registered comes last
    signal.pthread_sigmask(signal.SIG_SETMASK, old)


def _end_with(parent: int) -> None:
    """Have the kernel end this process with its parent, which somebody may kill."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(128 + signal.SIGKILL)


def _waited(child: int, signals: set[signal.Signals], apart: bool) -> int:
    """The status with which the child ended; meanwhile signals go to it."""
    while True:
        came = signal.sigwaitinfo(signals)
        if came.si_signo != signal.SIGCHLD:
            if apart or came.si_code <= 0:  # by a process: the terminal's own reach the child anyway
                with suppress(ProcessLookupError):
                    os.kill(child, came.si_signo)
            continue
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return status


def _code(status: int, end: int) -> int:
    """The exit code; what the child could not say is said."""
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
        say(f"error: the process of the script was ended from inside, as Ray does where the raylet of this machine has "
            f"died or its head is gone: see the last lines above and Ray's logs. {_REMEDY}")  # fmt: skip
        return ENDED_BY_RAY
    return code


_REMEDY = "Start it again: a script that begins with Checkpoints.restore goes on from its last checkpoint."
