"""Sessions whose Ray is stopped or killed. Prints what happened as JSON, one line for each scene of the arguments.

Every scene has a Ray of its own in this process, one after the other. The seconds of silence are fewer
than a user's, for the sake of time.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import distgrad as dg
from distgrad.workers.on_ray.connect import reaper, waits
from tests.faults.training import GRANULARITY, Training, same_bits, undisturbed
from tests.on_ray.helpers import below, until

SIZE = 1 << 18


def server(kind: str) -> int:
    import ray

    (info,) = ray._private.worker._global_node.all_processes[kind]
    return int(info.process.pid)


def stop(pid: int) -> None:
    """Stop a process, and wait until it has: a call at once could still be answered."""
    os.kill(pid, signal.SIGSTOP)
    assert until(lambda: reaper.state(pid) == "T", 30)


def outcome(call: Callable[[], Any]) -> dict[str, Any]:
    """What a call gives: its error, and the seconds that it took."""
    begun = time.monotonic()
    try:
        call()
        error = ""
    except Exception as e:
        error = f"{type(e).__name__}: {e}"
    return {"error": error, "seconds": time.monotonic() - begun}


def closed(session: dg.Session) -> dict[str, Any]:
    """What closing gives, and what is left afterwards of all that this process had started."""
    pids = [p for pid in below(os.getpid()) if (p := reaper.identified(pid)) is not None]
    found = outcome(session.close)
    left = until(lambda: not any(map(reaper.lives, pids)), 5) or [p.pid for p in pids if reaper.lives(p)]
    return {**found, "left": [] if left is True else left}


def opened(**options: Any) -> tuple[dg.Session, dg.Variable, Any]:
    """A session with a variable whose value lies in the store."""
    session, v = dg.Session("ray", workers=1, object_store_memory="100 MB", **options), dg.Variable(np.zeros(SIZE))

    @dg.function
    def step(x: Any) -> Any:
        v.assign_add(x)
        return dg.sum(v)

    dg.runtime.push(session)
    step(np.ones(SIZE))
    return session, v, step


def raylet_stopped() -> dict[str, Any]:
    """A read of a variable while the raylet is stopped; before, one during which it goes on again."""
    session, v, _ = opened()
    raylet = server("raylet")
    stop(raylet)
    threading.Timer(waits.SILENCE_TIMEOUT / 2, os.kill, [raylet, signal.SIGCONT]).start()
    paused = outcome(lambda: np.testing.assert_array_equal(v.numpy(), np.ones(SIZE)))
    stop(raylet)
    return {"paused": paused, "read": outcome(v.numpy), "again": outcome(v.numpy), "close": closed(session)}


def raylet_stopped_with_timeout() -> dict[str, Any]:
    session, v, _ = opened(timeout=3)
    stop(server("raylet"))
    return {"read": outcome(v.numpy), "close": closed(session)}


def gcs_stopped() -> dict[str, Any]:
    """A close while the GCS is stopped."""
    session, v, _ = opened()
    stop(server("gcs_server"))
    close = closed(session)
    return {"close": close, "value": float(v.numpy()[0])}


def gcs_killed() -> dict[str, Any]:
    """A training with checkpoints whose GCS is killed, and one that goes on from there in a new session."""
    checkpoints = dg.Checkpoints(tempfile.mkdtemp())
    session = dg.Session("ray", workers=2, object_store_memory="100 MB", granularity=GRANULARITY, timeout=20)
    dg.runtime.push(session)
    training = Training()

    def steps(first: int, last: int) -> None:
        for i in range(first, last):
            if i == 3:
                os.kill(server("gcs_server"), signal.SIGKILL)
            training.step(i)
            checkpoints.save(i, training.weights)

    run = outcome(lambda: steps(0, 500))
    read = outcome(training.values)
    close = closed(session)
    dg.runtime.remove(session)
    done = checkpoints.steps()[-1]
    here = outcome(training.values)
    with dg.Session("ray", workers=2, granularity=GRANULARITY, timeout=60):
        training = Training()
        checkpoints.restore(training.weights)
        for i in range(done + 1, done + 4):
            training.step(i)
        same = same_bits(training.values(), undisturbed(done + 4))
    return {"run": run, "read": read, "close": close, "here": here, "same": same}


def raylet_killed() -> dict[str, Any]:
    """A run that waits for a task while the raylet is killed."""
    session, v, _ = opened()
    slow = dg.function(lambda x: _nap(x))
    threading.Timer(1.0, lambda pid: os.kill(pid, signal.SIGKILL), [server("raylet")]).start()
    run = outcome(lambda: slow(np.full(3, 60.0)))
    hook = sys.excepthook is sys.__excepthook__
    return {"run": run, "read": outcome(v.numpy), "close": closed(session), "hook": hook}


@dg.op("LostNap", infer=lambda x: (x.shape, x.dtype))
def _nap(x: Any) -> Any:
    time.sleep(float(x[0]))
    return x + 0


def two_sessions() -> dict[str, Any]:
    """Two sessions, of which the one that started Ray is closed first."""
    import ray

    first, v, step = opened()
    second = dg.Session("ray", workers=1)
    double = dg.function(lambda x: x * 2)
    handle = second.submit(double, np.ones(SIZE))
    first.close()
    dg.runtime.remove(first)
    goes_on = ray.is_initialized()
    with second:
        step(np.ones(SIZE))
        value = float(second.submit(double, handle).numpy()[0])
    refused = outcome(lambda: first.run(None) or first.submit(double, np.ones(SIZE)))
    return {"goes_on": goes_on, "handle": float(handle.numpy()[0]), "value": value, "variable": float(v.numpy()[0]),
            "ended": not ray.is_initialized(), "refused": refused["error"]}  # fmt: skip


if __name__ == "__main__":
    waits.SILENCE_TIMEOUT, waits.PROBE_INTERVAL = 6.0, 2.0
    for name in sys.argv[1:]:
        print(json.dumps({"scene": name, **globals()[name]()}), flush=True)
