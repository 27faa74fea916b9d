"""Scenes of stopped processes: workers, raylets and the GCS, at each stage."""

from __future__ import annotations

import signal
import time

import distgrad as dg

from .stage import (
    ALL_STOPPED,
    SLACK,
    Ledger,
    Stage,
    busy,
    later,
    open_session,
    pids,
    scene,
    send,
    session,
    stop,
    until,
    workers,
)  # fmt: skip

#: Seconds after which a task counts as hung; seconds after which a run is given up.
TASK_TIMEOUT, TIMEOUT = 4.0, 10.0
WITHIN = TIMEOUT + SLACK
#: A session without a timeout gives up when Ray has not answered for 30 s, at which it looks every 10 s.
SILENT = 30.0 + 10.0 + SLACK


# -- workers -----------------------------------------------------------------------------------------------------


def _stopped_workers(stage: Stage, every: bool, working: bool) -> None:
    """Workers are stopped, idle or at work; `task_timeout` ends them, and the step comes to its end."""
    ledger = Ledger()
    with session(task_timeout=TASK_TIMEOUT, timeout=60.0):
        for _ in range(3):
            ledger.step()
        within = TASK_TIMEOUT + SLACK + ALL_STOPPED * every
        if working:
            later(0.7, lambda: stop(busy() if every else busy()[:1]))
            stage.result("step", lambda: ledger.step(1.5), 1.5 * 2 + within, 4)
        else:
            stop(workers() if every else workers()[:1])
            stage.result("step", ledger.step, within, 4)
        ledger.is_right(stage, within)
        stage.result("the next step", ledger.step, within, ledger.steps + 1)


@scene()
def stopped_worker_idle(stage: Stage) -> None:
    _stopped_workers(stage, every=False, working=False)


@scene()
def stopped_worker_busy(stage: Stage) -> None:
    _stopped_workers(stage, every=False, working=True)


@scene()
def stopped_workers_all_idle(stage: Stage) -> None:
    _stopped_workers(stage, every=True, working=False)


@scene()
def stopped_workers_all_busy(stage: Stage) -> None:
    _stopped_workers(stage, every=True, working=True)


@scene()
def stopped_workers_all_with_a_timeout_only(stage: Stage) -> None:
    """A TimeoutError that names tasks; variables are as they were, and the session goes on."""
    ledger = Ledger()
    with session(timeout=TIMEOUT):
        ledger.step()
        stop(workers())
        error = stage.error("step", ledger.step, WITHIN + ALL_STOPPED)
        stage.check("it names a task and its op", "task " in str(error) and "SceneNap" in str(error))
        ledger.is_right(stage, WITHIN)
        stage.call("the next step", ledger.step, WITHIN + ALL_STOPPED)
        ledger.is_right(stage, WITHIN)


@scene()
def stopped_worker_goes_on(stage: Stage) -> None:
    """Stopped and resumed again and again: nothing is lost, nothing is done twice."""
    ledger = Ledger()
    with session(task_timeout=TASK_TIMEOUT, timeout=60.0):
        ledger.step()
        for _ in range(8):
            targets = workers()
            stop(targets)
            later(0.5, lambda targets=targets: _resume(targets))
            stage.result("step", lambda: ledger.step(0.1), TASK_TIMEOUT + SLACK)
        ledger.is_right(stage, TASK_TIMEOUT + SLACK)


def _resume(targets: list[int]) -> None:
    for pid in targets:
        try:
            send(signal.SIGCONT, [pid])
        except ProcessLookupError:
            continue


@scene()
def stopped_worker_and_close(stage: Stage) -> None:
    """A session is closed while its workers are stopped: they end, too."""
    ledger, s = Ledger(), open_session(timeout=TIMEOUT)
    with s:
        ledger.step()
        stop(workers())
        stage.result("close", s.close, WITHIN + ALL_STOPPED)
    ledger.is_right(stage, SLACK)


# -- raylet and GCS ------------------------------------------------------------------------------------------------


def _silent(stage: Stage, name: str, then: str, timeout: float | None = TIMEOUT) -> None:
    """A process of Ray's is stopped for good; then comes a call, and the end of the session."""
    within = SILENT if timeout is None else timeout + SLACK
    ledger, other = Ledger(), Ledger()
    s = open_session(timeout=timeout)
    with s:
        ledger.step()
        if then == "run":
            later(0.7, lambda: stop(pids(name)))
            stage.call("step", lambda: ledger.step(1.5), within + 3)
        else:
            stop(pids(name))
        if then == "first call":
            stage.call("first call", other.step, within)
            other.is_right(stage, within, must=other.steps == 0)
        if then == "read":
            ledger.is_right(stage, within, must=False)
            ledger.is_right(stage, within, must=False)
        stage.call("close", s.close, within)
    ledger.is_right(stage, within, must=False)
    stage.check("nothing of Ray's is left", until(lambda: not pids("raylet", "gcs_server", "ray::"), 15))
    with session():
        stage.result("a new session", Ledger().step, 35, 1)


def _scenes_of_silence() -> None:
    for name, short in (("raylet", "raylet"), ("gcs_server", "gcs")):
        for then in ("run", "read", "close", "first call"):

            def play(stage: Stage, name: str = name, then: str = then) -> None:
                _silent(stage, name, then)

            play.__name__ = f"stopped_{short}_{then.replace(' ', '_')}"
            scene(limit=200)(play)


_scenes_of_silence()


@scene(limit=240)
def stopped_raylet_read_without_a_timeout(stage: Stage) -> None:
    _silent(stage, "raylet", "read", timeout=None)


@scene(limit=240)
def stopped_gcs_close_without_a_timeout(stage: Stage) -> None:
    _silent(stage, "gcs_server", "close", timeout=None)


def _paused(stage: Stage, name: str, seconds: float) -> None:
    """A process of Ray's is stopped for a while, which is no reason to fail."""
    ledger = Ledger()
    with session(timeout=60.0):
        ledger.step()
        for wait in (0.0, 0.3, 1.0):
            targets = pids(name)
            later(wait, lambda targets=targets: stop(targets))
            later(wait + seconds, lambda targets=targets: _resume(targets))
            stage.result("step", lambda: ledger.step(0.5), seconds + wait + 8, ledger.steps + 1)
            ledger.is_right(stage, seconds + 8)
            time.sleep(0.2)


@scene()
def paused_raylet(stage: Stage) -> None:
    _paused(stage, "raylet", 3.0)


@scene()
def paused_gcs(stage: Stage) -> None:
    _paused(stage, "gcs_server", 3.0)


def _open_on(stage: Stage, name: str) -> None:
    """A cluster is joined of which a process is stopped: one clear error; once it goes on, all is well."""
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 2, "object_store_memory": 80 << 20, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        targets = pids(name)
        stop(targets)
        found = stage.call("open", lambda: open_session(address=cluster.address, timeout=TIMEOUT), WITHIN)
        if found.value is not None:
            stage.call("close", found.value.close, WITHIN)
        _resume(targets)
        time.sleep(1.0)
        with stage.result("open", lambda: open_session(address=cluster.address, timeout=30.0), 35):
            stage.result("step", Ledger().step, 35, 1)
    finally:
        _resume(pids(name))
        cluster.shutdown()


@scene(limit=200)
def stopped_raylet_open(stage: Stage) -> None:
    _open_on(stage, "raylet")


@scene(limit=200)
def stopped_gcs_open(stage: Stage) -> None:
    _open_on(stage, "gcs_server")


@scene(limit=200)
def stopped_raylet_of_another_node(stage: Stage) -> None:
    """A node that does not answer is taken for dead: what it had is made again."""
    from ..cluster import OwnCluster
    from ..training import GRANULARITY, Training, same_bits, undisturbed

    cluster = OwnCluster()
    try:
        before = set(pids("raylet"))
        cluster.add()
        (target,) = set(pids("raylet")) - before
        with dg.Session("ray", timeout=60.0, granularity=GRANULARITY, attempts=20):
            training = Training("worker:2")
            training.step(0)
            later(0.2, lambda: stop([target]))
            for i in range(1, 6):
                stage.result(f"step {i}", lambda i=i: training.step(i), 65)
            same = stage.result("read", training.values, 65)
            stage.check("the bits of an undisturbed training", same_bits(same, undisturbed(6)))
    finally:
        _resume([target])
        cluster.end()
