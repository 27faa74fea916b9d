"""Scenes of interrupts at random moments of all that a session does, and of drivers that are told to end or killed."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Callable
from typing import Any

import distgrad as dg

from .stage import Ledger, Stage, later, open_session, pids, scene, session, until

WITHIN = 35.0
#: Seconds in which the processes of a session that was interrupted must be gone.
GONE = 20.0


def _interrupted(stage: Stage, what: str, work: Callable[[], Any], seconds: float) -> Any:
    """What some work gives; None where an interrupt came first, after so many seconds. One that comes later finds
    nobody: it is sent while the work is under way, or not at all."""
    over, lock = threading.Event(), threading.Lock()

    def send() -> None:
        if not over.wait(seconds):
            with lock:
                if not over.is_set():
                    signal.raise_signal(signal.SIGINT)

    def whole() -> Any:
        try:
            return work()
        finally:
            with lock:
                over.set()

    sender = threading.Thread(target=send, daemon=True)
    sender.start()
    found = stage.call(f"{what} interrupted after {seconds:.3f} s", whole, seconds + WITHIN)
    sender.join()
    return found.value


def _moments(count: int, most: float, seed: int = 0) -> list[float]:
    rng = random.Random(seed)
    return [rng.uniform(0, most) for _ in range(count)]


def _gone(stage: Stage) -> None:
    stage.check("nothing of Ray's is left", until(lambda: not pids("raylet", "gcs_server", "ray::"), GONE))


@scene(limit=400)
def interrupts_while_opening(stage: Stage) -> None:
    for moment in _moments(8, 5.0):
        s = _interrupted(stage, "open", open_session, moment)
        if s is not None:
            s.close()
        _gone(stage)
    with session():
        stage.result("step", Ledger().step, WITHIN, 1)


@scene(limit=400)
def interrupts_in_the_first_call(stage: Stage) -> None:
    """The call is traced, planned, shipped and run for the first time."""
    with session():
        for moment in _moments(12, 1.5):
            ledger = Ledger()
            _interrupted(stage, "first call", ledger.step, moment)
            _whole(stage, ledger)
            stage.result("step", ledger.step, WITHIN)


@scene(limit=400)
def interrupts_while_running(stage: Stage) -> None:
    ledger = Ledger()
    with session():
        ledger.step()
        for moment in _moments(20, 0.6):
            _interrupted(stage, "step", lambda: ledger.step(0.2), moment)
            _whole(stage, ledger)
        stage.result("step", ledger.step, WITHIN)


@scene(limit=300)
def interrupts_while_fetching(stage: Stage) -> None:
    ledger = Ledger(2, 2_000_000)
    with session(object_store_memory=400 << 20):
        ledger.step()
        for moment in _moments(20, 0.1):
            _interrupted(stage, "read", ledger.read, moment)
        _whole(stage, ledger)
        stage.result("step", ledger.step, WITHIN)


@scene(limit=400)
def interrupts_while_closing(stage: Stage) -> None:
    """Values come home or the error says that they did not; a second close ends what is left."""
    for moment in _moments(6, 2.0):
        ledger, s = Ledger(), open_session()
        dg.runtime.push(s)
        ledger.step()
        dg.runtime.remove(s)
        _interrupted(stage, "close", s.close, moment)
        stage.result("close again", s.close, WITHIN)
        _gone(stage)
        ledger.is_right(stage, WITHIN)


@scene(limit=300)
def interrupts_while_saving(stage: Stage) -> None:
    """Whatever was saved is whole, and there is always one."""
    ledger, checkpoints = Ledger(2, 2_000_000), dg.Checkpoints(stage.folder / "saved", keep=1)
    with session(object_store_memory=400 << 20):
        ledger.step()
        checkpoints.save(ledger.steps, ledger.variables)
        for moment in _moments(15, 0.3):
            ledger.step()
            _interrupted(stage, "save", lambda: checkpoints.save(ledger.steps, ledger.variables), moment)
            other = [dg.Variable(v.numpy() * 0, name=v.name) for v in ledger.variables]
            found = stage.result("restore", lambda other=other: checkpoints.restore(other), WITHIN)
            stage.check("what was restored is of one step", {float(v.numpy()[0]) for v in other} == {float(found.step)})


def _whole(stage: Stage, ledger: Ledger) -> None:
    """All of the step that was interrupted, or nothing: the interrupt may have come after its end."""
    found = stage.result("read", ledger.read, WITHIN)
    done = {float(ledger.steps), float(ledger.steps + 1)}
    stage.check(f"{found} is of one step", found is not None and len(set(found)) == 1 and found[0] in done)
    if found:
        ledger.steps = int(found[0])


# -- the driver itself ---------------------------------------------------------------------------------------------


def _ended(stage: Stage, number: int) -> None:
    ledger = Ledger()
    with session(timeout=100.0):
        ledger.step()
        later(0.5, lambda: os.kill(os.getpid(), number))
        ledger.step(60.0)


@scene(gone=60.0, codes=(-signal.SIGTERM, 128 + signal.SIGTERM, 1))
def driver_terminated(stage: Stage) -> None:
    _ended(stage, signal.SIGTERM)


@scene(gone=60.0, codes=(-signal.SIGKILL,))
def driver_killed_in_a_run(stage: Stage) -> None:
    _ended(stage, signal.SIGKILL)


@scene(gone=60.0, codes=(-signal.SIGHUP, 128 + signal.SIGHUP, 1))
def driver_hung_up(stage: Stage) -> None:
    """Its terminal goes."""
    _ended(stage, signal.SIGHUP)


@scene(gone=60.0, codes=(-signal.SIGINT, 130, 1))
def driver_interrupted_and_not_caught(stage: Stage) -> None:
    _ended(stage, signal.SIGINT)


@scene(gone=60.0, codes=(-signal.SIGKILL,))
def driver_killed_while_opening(stage: Stage) -> None:
    later(1.5, lambda: os.kill(os.getpid(), signal.SIGKILL))
    open_session()
    until(lambda: False, 30)


@scene(gone=60.0, codes=(-signal.SIGKILL,))
def driver_killed_with_stopped_workers(stage: Stage) -> None:
    """What is stopped cannot notice that its driver is gone: its raylet has to end it."""
    ledger = Ledger()
    with session(timeout=100.0):
        ledger.step()
        os.kill(pids("ray::")[0], signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGKILL)


@scene(gone=60.0, codes=(1,))
def driver_raises(stage: Stage) -> None:
    """An error that nobody catches, in a session that nobody closes."""
    s = open_session()
    dg.runtime.push(s)
    Ledger().step()
    raise RuntimeError("the script has a mistake")


@scene(gone=60.0, codes=(7,))
def driver_ends_without_its_exit_handlers(stage: Stage) -> None:
    s = open_session()
    dg.runtime.push(s)
    Ledger().step()
    os._exit(7)
