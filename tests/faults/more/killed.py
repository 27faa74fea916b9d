"""Scenes of processes that are killed or told to end: workers, raylets, the GCS, and tasks that end their own."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import distgrad as dg
from distgrad.cli.parent import ENDED_BY_RAY

from ..training import GRANULARITY, Training, same_bits, undisturbed
from .stage import SLACK, Ledger, Stage, busy, later, open_session, pids, scene, send, session, until, workers

TIMEOUT = 10.0
WITHIN = TIMEOUT + SLACK


# -- workers -----------------------------------------------------------------------------------------------------


def _end_workers(stage: Stage, number: int) -> None:
    ledger = Ledger()
    with session(timeout=60.0, attempts=20):
        ledger.step()
        for round_ in range(3):
            later(0.4, lambda: send(number, busy()))
            stage.result(f"step while busy ones end, {round_}", lambda: ledger.step(0.8), 30)
            send(number, workers())
            stage.result(f"step after idle ones ended, {round_}", ledger.step, 30)
        ledger.is_right(stage, 30)


@scene()
def killed_workers_all(stage: Stage) -> None:
    _end_workers(stage, signal.SIGKILL)


@scene()
def terminated_workers_all(stage: Stage) -> None:
    """SIGTERM, as of a machine that shuts down: no error of the user's."""
    _end_workers(stage, signal.SIGTERM)


@scene()
def interrupted_workers_all(stage: Stage) -> None:
    """SIGINT to the workers alone, as by somebody who meant another process."""
    _end_workers(stage, signal.SIGINT)


@dg.op("SceneEnd", infer=lambda x, **_: (x.shape, x.dtype))
def end(x: Any, *, how: str, mark: str) -> Any:
    """Ends its process; with `mark`, the first time only."""
    if not (mark and os.path.exists(mark)):
        Path(mark or os.devnull).touch()
        if how == "segfault":
            ctypes.string_at(0)
        elif how == "_exit":
            os._exit(0)  # as if all were well
        elif how == "abort":
            os.abort()
        elif how == "sys.exit":
            sys.exit(3)
    return x + 1


def _ends(stage: Stage, how: str, kinds: tuple[str, ...]) -> None:
    """A task that ends its process once, then one that always does."""
    ledger = Ledger()
    step = dg.function(lambda x, mark: ledger.variables[0].assign(end(x, how=how, mark=mark)))
    x = np.ones(40_000)
    with session(timeout=60.0, attempts=2) as s:
        ledger.step()
        once = stage.call("once", lambda: step(x, str(stage.folder / "mark")), 30, x + 1)
        stage.check("it ran again", once.error is None and s.faults is not None and s.faults.recomputed == 1)
        stage.result("read", lambda: ledger.variables[0].numpy(), 30, x if once.failed else x + 1)
        error = stage.error("always", lambda: step(x, ""), 60)
        stage.check(f"it names the op: {type(error).__name__}", type(error).__name__ in kinds)
        named = [str(error), *getattr(error, "__notes__", [])]
        stage.check("it names the line", any("killed.py:" in text for text in named))
        stage.result("read", lambda: ledger.variables[1].numpy(), 30, np.ones(40_000))


@scene()
def task_segfaults(stage: Stage) -> None:
    _ends(stage, "segfault", ("TaskFailed",))


@scene()
def task_aborts(stage: Stage) -> None:
    _ends(stage, "abort", ("TaskFailed",))


@scene()
def task_exits_as_if_all_were_well(stage: Stage) -> None:
    _ends(stage, "_exit", ("TaskFailed",))


@scene()
def task_calls_sys_exit(stage: Stage) -> None:
    _ends(stage, "sys.exit", ("TaskFailed", "RuntimeError"))


# -- the driver's raylet -------------------------------------------------------------------------------------------

SCRIPT = """
import os, time
import numpy as np
import distgrad as dg
v = dg.Variable(np.zeros(40_000))
step = dg.function(lambda: v.assign_add(1.0))
step()
print("running", flush=True)
for _ in range(600):
    step()
    time.sleep(0.1)
"""

#: How `distgrad run` may end when the raylet is gone, by its exit code: the script was told so, or could not be.
OF_LOSS = {1: "the Ray cluster of this session is lost", ENDED_BY_RAY: "the script's process was ended by Ray"}


@scene()
def killed_raylet_of_a_script(stage: Stage) -> None:
    _script(stage, "raylet")


@scene()
def killed_agent_of_a_script(stage: Stage) -> None:
    """The raylet ends when one of its agents does, which a machine without memory may kill."""
    _script(stage, "ray::RuntimeEnvAgent")


def _script(stage: Stage, name: str) -> None:
    """`distgrad run` tells what happened, though Ray ends the script without a word."""
    script = stage.folder / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "distgrad", "run", "--workers", "2", str(script)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        send(signal.SIGKILL, pids(name))
        start = time.monotonic()
        _, err = process.communicate(timeout=90)
        seconds = time.monotonic() - start
    stage.say(f"ended with {process.returncode}", "took too long" * (seconds > 20), seconds, 20)
    stage.check(f"it said that Ray is gone: {_tail(err)}", OF_LOSS.get(process.returncode, "no such code") in err)


def _tail(text: str) -> str:
    return (text.strip().splitlines() or ["nothing"])[-1][:200]


# -- the GCS -------------------------------------------------------------------------------------------------------


@scene(limit=240)
def killed_gcs_in_a_training(stage: Stage) -> None:
    """A named error within the timeout; what lies here is kept; resumed from the checkpoint with the same bits."""
    checkpoints, here = dg.Checkpoints(stage.folder / "saved"), dg.Variable(np.arange(3.0))
    training = Training()
    s = open_session(timeout=TIMEOUT, granularity=GRANULARITY)
    with s:
        for i in range(5):
            training.step(i)
        checkpoints.save(4, training.weights)
        later(0.1, lambda: send(signal.SIGKILL, pids("gcs_server")))
        ends, error, i = time.monotonic() + 120, None, 5
        while error is None and time.monotonic() < ends:  # Ray may go on without it for a while
            start = time.monotonic()
            try:
                training.step(i)
            except Exception as e:
                error = e
            seconds, i = time.monotonic() - start, i + 1
        stage.call(f"step {i}", lambda: _raise(error), WITHIN)
        stage.check(f"it took {seconds:.1f} s", seconds < WITHIN)
        stage.check("a step failed", error is not None)
        stage.result("what lies here", here.numpy, SLACK, np.arange(3.0))
        stage.call("close", s.close, WITHIN)
    _resumed(stage, checkpoints)


def _raise(error: BaseException | None) -> None:
    if error is not None:
        raise error


def _resumed(stage: Stage, checkpoints: dg.Checkpoints) -> None:
    """Another session goes on from the checkpoint."""
    training = Training()
    with session(timeout=60.0, granularity=GRANULARITY):
        found = stage.result("restore", lambda: checkpoints.restore(training.weights), 30)
        for i in range(found.step + 1, 10):
            training.step(i)
        stage.check("the bits of an undisturbed training", same_bits(training.values(), undisturbed(10)))


@scene(limit=200)
def killed_gcs_close(stage: Stage) -> None:
    _killed(stage, lambda s, ledger: None)


@scene(limit=200)
def killed_gcs_read(stage: Stage) -> None:
    _killed(stage, lambda s, ledger: ledger.is_right(stage, WITHIN, must=False))


@scene(limit=200)
def killed_gcs_in_a_step(stage: Stage) -> None:
    _killed(stage, lambda s, ledger: stage.call("step", lambda: ledger.step(1.0), WITHIN), 0.4)


@scene(limit=200)
def killed_gcs_first_call(stage: Stage) -> None:
    _killed(stage, lambda s, ledger: stage.call("first call", Ledger().step, WITHIN))


def _killed(stage: Stage, then: Callable[[Any, Ledger], Any], wait: float = 0.0) -> None:
    ledger, here = Ledger(), dg.Variable(np.arange(3.0))
    s = open_session(timeout=TIMEOUT)
    with s:
        ledger.step()
        if wait:
            later(wait, lambda: send(signal.SIGKILL, pids("gcs_server")))
        else:
            send(signal.SIGKILL, pids("gcs_server"))
        then(s, ledger)
        stage.call("close", s.close, WITHIN)
    ledger.is_right(stage, WITHIN, must=False)
    stage.result("what lies here", here.numpy, SLACK, np.arange(3.0))
    stage.check("nothing of Ray's is left", until(lambda: not pids("raylet", "gcs_server", "ray::"), 15))
    with session():
        stage.result("a new session", Ledger().step, 35, 1)


@scene(limit=200)
def killed_raylet_of_another_node(stage: Stage) -> None:
    """With the only copy of the weights: they are made again; closing brings them home."""
    from ..cluster import OwnCluster

    cluster = OwnCluster()
    try:
        node = cluster.add()
        training = Training("worker:2")
        s = dg.Session("ray", timeout=60.0, granularity=GRANULARITY)
        with s:
            for i in range(3):
                training.step(i)
            cluster.remove(node)
            stage.result("close", s.close, 65)
        found = stage.result("read", training.values, SLACK)
        stage.check("the bits of an undisturbed training", same_bits(found, undisturbed(3)))
    finally:
        cluster.end()
