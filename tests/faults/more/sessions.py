"""Scenes of several sessions in one process, one after another and at the same time; and of forks."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

import distgrad as dg

from .stage import Ledger, Stage, later, open_session, pids, scene, session, until

WITHIN = 35.0


def _none_left(stage: Stage) -> None:
    stage.check("nothing of Ray's is left", until(lambda: not pids("raylet", "gcs_server", "ray::"), 15))


def _two(stage: Stage, first_closed: int) -> None:
    """Two sessions, closed in either order: the other one goes on, and all values stay."""
    ledgers, opened = [Ledger(), Ledger()], [open_session(), dg.Session("ray", timeout=30.0, granularity=1e-9)]
    for s, ledger in zip(opened, ledgers, strict=True):
        with _current(s):
            stage.result("step", ledger.step, WITHIN, 1)
    handle = opened[1 - first_closed].submit(dg.function(lambda x: x + 1), np.zeros(40_000))
    stage.result("close one", opened[first_closed].close, WITHIN)
    for ledger in ledgers:
        ledger.is_right(stage, WITHIN)
    stage.result("a handle of the other", lambda: float(handle.value()[0]), WITHIN, 1.0)
    with _current(opened[1 - first_closed]):
        stage.result("step of the other", ledgers[1 - first_closed].step, WITHIN, 2)
        stage.result("with a variable of the closed one", ledgers[first_closed].step, WITHIN, 2)
    stage.result("close the other", opened[1 - first_closed].close, WITHIN)
    for ledger in ledgers:
        ledger.is_right(stage, WITHIN)
    _none_left(stage)


class _current:
    """A session as the current one, that is not closed afterwards."""

    def __init__(self, s: dg.Session):
        self._session = s

    def __enter__(self) -> None:
        dg.runtime.push(self._session)

    def __exit__(self, *_: object) -> None:
        dg.runtime.remove(self._session)


@scene()
def two_sessions_first_closed_first(stage: Stage) -> None:
    _two(stage, 0)


@scene()
def two_sessions_last_closed_first(stage: Stage) -> None:
    _two(stage, 1)


@scene()
def two_sessions_nested(stage: Stage) -> None:
    outer, inner = Ledger(), Ledger()
    with session():
        outer.step()
        with dg.Session("ray", timeout=30.0):
            stage.result("inner step", inner.step, WITHIN, 1)
            stage.result("outer's variables inside", outer.step, WITHIN, 2)
        inner.is_right(stage, WITHIN)
        stage.result("outer step", outer.step, WITHIN, 3)
        outer.is_right(stage, WITHIN)
    outer.is_right(stage, WITHIN)
    _none_left(stage)


@scene(limit=240)
def two_sessions_in_threads(stage: Stage) -> None:
    """Threads that open, run and close at the same time."""
    ledgers = [Ledger() for _ in range(4)]

    def work(ledger: Ledger) -> None:
        for _ in range(3):
            s = stage.result("open", lambda: dg.Session("ray", timeout=60.0, granularity=1e-9), 65)
            if s is not None:
                with s:
                    stage.result("step", ledger.step, 65)

    _in_threads([lambda ledger=ledger: work(ledger) for ledger in ledgers])
    for ledger in ledgers:
        stage.check(f"{ledger.steps} steps", ledger.steps == 3)
        ledger.is_right(stage, WITHIN)
    _none_left(stage)


@scene()
def one_session_in_threads(stage: Stage) -> None:
    """Threads share a session and a variable, and all close it."""
    ledger, s = Ledger(), open_session(timeout=60.0)

    def work() -> None:
        with _current(s):
            for _ in range(5):
                stage.result("step", ledger.step, 65)

    _in_threads([work] * 3)
    stage.result("read", ledger.read, WITHIN, [15.0] * 3)
    _in_threads([lambda: stage.result("close", s.close, WITHIN) for _ in range(3)])
    stage.result("read", ledger.read, WITHIN, [15.0] * 3)
    _none_left(stage)


@scene()
def session_closed_during_a_run(stage: Stage) -> None:
    """Another thread closes the session: the run ends with one clear error, or before."""
    ledger, s = Ledger(), open_session()
    with _current(s):
        ledger.step()
        closing = later(0.7, lambda: stage.call("close", s.close, WITHIN))
        stage.call("step", lambda: ledger.step(2.0), WITHIN)
        closing.join()
        ledger.is_right(stage, WITHIN)
        stage.error("step after the end", ledger.step, WITHIN)
    ledger.is_right(stage, WITHIN)
    _none_left(stage)


@scene(limit=200)
def sessions_one_after_another(stage: Stage) -> None:
    ledger = Ledger()
    for i in range(4):
        with session():
            stage.result("step", ledger.step, WITHIN, i + 1)
        ledger.is_right(stage, WITHIN)
        _none_left(stage)


@scene()
def session_of_a_ray_that_was_there(stage: Stage) -> None:
    """The user's own Ray outlives sessions that use it."""
    import ray

    ray.init(num_cpus=2, object_store_memory=80 << 20, include_dashboard=False, logging_level="error")
    ref, ledger = ray.put(7), Ledger()
    for i in range(2):
        with dg.Session("ray", timeout=30.0, granularity=1e-9):
            stage.result("step", ledger.step, WITHIN, i + 1)
    stage.result("the user's object", lambda: ray.get(ref), WITHIN, 7)
    ledger.is_right(stage, WITHIN)
    ray.shutdown()
    ledger.is_right(stage, WITHIN)


@scene()
def ray_shut_down_under_a_session(stage: Stage) -> None:
    """The user ends Ray himself: clear errors, no hang."""
    import ray

    ledger, s = Ledger(), open_session()
    with _current(s):
        ledger.step()
        ray.shutdown()
        stage.error("step", ledger.step, WITHIN)
        ledger.is_right(stage, WITHIN, must=False)
        stage.call("close", s.close, WITHIN)
    with session():
        stage.result("a new session", Ledger().step, WITHIN, 1)


# -- forks -------------------------------------------------------------------------------------------------------


@scene()
def fork_that_uses_the_session(stage: Stage) -> None:
    """The child of a fork gets one clear error or the right result; the parent goes on."""
    ledger = Ledger()
    with session():
        ledger.step()
        _in_child(stage, lambda: stage.call("read in the child", ledger.read, WITHIN, [1.0] * 3))
        _in_child(stage, lambda: stage.call("step in the child", ledger.step, WITHIN))
        stage.result("step", ledger.step, WITHIN, 2)
        ledger.is_right(stage, WITHIN)


@scene()
def fork_that_ends_normally(stage: Stage) -> None:
    """What a child does at its exit must not end its parent's Ray."""
    ledger = Ledger()
    with session():
        ledger.step()
        process = multiprocessing.get_context("fork").Process(target=print)
        process.start()
        process.join(WITHIN)
        stage.check(f"the child ended: {process.exitcode}", process.exitcode == 0)
        _in_child(stage, lambda: None, leave=_exit_normally)
        stage.result("step", ledger.step, WITHIN, 2)
        ledger.is_right(stage, WITHIN)


def _exit_normally() -> None:
    import atexit

    atexit._run_exitfuncs()
    os._exit(0)


def _in_child(stage: Stage, work: Callable[[], Any], leave: Callable[[], None] = lambda: os._exit(0)) -> None:
    pid = os.fork()
    if pid == 0:
        work()
        leave()
    ended = until(lambda: os.waitpid(pid, os.WNOHANG)[0], WITHIN + 5)
    stage.check("the child ended", ended)
    if not ended:
        os.kill(pid, 9)
        os.waitpid(pid, 0)


def _in_threads(works: list[Callable[[], Any]]) -> None:
    threads = [threading.Thread(target=work, daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
