"""Rays that a session starts: they do with a small store, survive Ctrl-C, and end with the session or the process.
And one that somebody else started: it goes on."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import tempfile
from collections.abc import Iterator
from typing import Any

import pytest

import distgrad as dg

from ..helpers import PROCESS_TIMEOUT, driver, processes, program, start, until

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def small_store() -> list[dict[str, Any]]:
    out, _ = program("lifetime", "store")
    return [json.loads(line) for line in out.splitlines()]


def test_objects_are_let_go_at_their_last_use_so_a_chain_needs_few_at_a_time(small_store: list[Any]) -> None:
    chain = small_store[0]
    assert chain["tasks"] > 20
    assert chain["spilled"] == 0


def test_tasks_do_not_run_ahead_of_a_driver_that_is_held_up(small_store: list[Any]) -> None:
    late = small_store[1]
    assert late["tasks"] > 20
    assert late["spilled"] == 0


def test_more_than_the_store_holds_is_spilled_and_comes_back(small_store: list[Any]) -> None:
    handles = small_store[2]
    assert handles["spilled"] > 0
    assert handles["held"] > 2 * 90_000_000
    assert handles["total"] == sum(range(24))


def test_a_session_that_started_ray_stops_it(small_store: list[Any]) -> None:
    end = small_store[3]
    assert end["processes"] > 2
    assert end["left"] == []


def test_a_session_that_is_closed_under_other_threads_says_so_there_and_leaves_nothing_behind() -> None:
    *forked, errors, after, token = program("closed_under")[0].splitlines()
    assert forked == ["Session: this process was forked from one that is connected to Ray"] * 3  # at once: no wait
    assert errors == "['RuntimeError: the session is closed: its Ray is gone. Open another session.'] 3"
    assert after == "False (300, 300)"  # a call of Ray after its end would have started another one
    assert token == "('token', True) (None, False)"  # that of this machine is not for clusters that are joined later


@pytest.fixture(scope="module")
def interrupted() -> tuple[list[dict[str, Any]], str]:
    """What the program says that gets a Ctrl-C, as a terminal sends it, when it is in the middle of a run."""
    process = start("-m", "tests.on_ray.programs.lifetime", "interrupt")
    assert process.stdout is not None
    try:
        said = [json.loads(process.stdout.readline()) for _ in range(2)]
        assert said[1] == {"running": True}
        assert until(lambda: "ray::run_task" in _alive(said[0]["pids"]))
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=PROCESS_TIMEOUT)
    finally:
        process.kill()
    assert process.returncode == 0, err
    return said + [json.loads(line) for line in out.splitlines()], err


def _alive(pids: list[int]) -> list[str]:
    """The command lines of those that run."""
    table = processes()
    return [table[pid][1] for pid in pids if pid in table]


def test_an_interrupt_leaves_variables_as_they_were(interrupted: tuple[list[Any], str]) -> None:
    assert interrupted[0][2] == {"v": [1, 1, 1], "w": [1, 1, 1]}


def test_after_an_interrupt_the_next_call_has_the_workers(interrupted: tuple[list[Any], str]) -> None:
    after = interrupted[0][3]
    assert (after["v"], after["w"]) == ([2, 2, 2], [2, 2, 2])
    assert after["seconds"] < 60


def test_an_interrupt_that_is_handled_prints_nothing(interrupted: tuple[list[Any], str]) -> None:
    assert "Traceback" not in interrupted[1]
    assert "Unhandled error" not in interrupted[1]


def test_a_ray_whose_session_was_not_closed_ends_with_the_process(interrupted: tuple[list[Any], str]) -> None:
    pids = interrupted[0][0]["pids"]
    assert len(pids) > 2
    assert until(lambda: not _alive(pids)), _alive(pids)


# -- a Ray that somebody else started --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def head(ray_session: dg.Session) -> Iterator[str]:
    """The address of a Ray that `ray start --head` started."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    folder = tempfile.mkdtemp(prefix="ray-")  # sockets have short paths
    options = ["--num-cpus=1", "--object-store-memory=80000000", "--include-dashboard=false", "--disable-usage-stats"]
    process = start(
        "-m", "ray.scripts.scripts", "start", "--head", "--block", f"--port={port}", f"--temp-dir={folder}", *options
    )
    try:
        yield f"127.0.0.1:{port}"
        assert process.poll() is None, "the sessions that joined it ended it"
    finally:
        process.terminate()
        process.communicate(timeout=60)
        shutil.rmtree(folder, ignore_errors=True)


JOIN = """
import os, signal, sys, threading, time
import numpy as np
import distgrad as dg
import ray
for _ in range(200):
    try:
        session = dg.Session("ray", address=sys.argv[1], timeout=60)
        break
    except ConnectionError as e:
        time.sleep(0.3)
with session:
    print(dg.function(lambda x: x * 2)(np.ones(2)), len(session._planner.cluster.workers))
    stays, connection = session.submit(dg.function(lambda x: x * 2), np.ones(1 << 18)), session._planner.link.connection
    from distgrad.workers.on_ray.connect import connection as connections
    raylet = connection._servers[connections.RAYLET].pid
    os.kill(raylet, signal.SIGSTOP)
    while not connection.held():
        time.sleep(0.01)
    threading.Timer(2, os.kill, [raylet, signal.SIGCONT]).start()
    begun = time.monotonic()
    print(stays.numpy()[0], time.monotonic() - begun > 1)
print(ray.is_initialized())
ray.init(address=sys.argv[1], logging_level="WARNING")
with dg.Session("ray"):
    print(dg.function(lambda x: x * 3)(np.ones(2)))
print(ray.is_initialized(), ray.get(ray.put(4)))
"""


def test_a_cluster_that_was_there_is_joined_by_its_address_and_goes_on(head: str) -> None:
    """The driver joins it twice, and in the end the fixture looks whether it still runs. That its raylet is stopped is
    known, though others started it: a call of Ray meanwhile would hold locks that let this process hang."""
    out, _ = driver("-c", JOIN, head)
    assert out.splitlines() == ["[2. 2.] 1", "2.0 True", "False", "[3. 3.]", "True 4"]
