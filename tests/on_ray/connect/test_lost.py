"""A Ray that is stopped, killed or interrupted: waits end with a clear error, and no processes are left over."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from ..helpers import PROCESS_TIMEOUT, processes, program, start, until

pytestmark = pytest.mark.ray

#: Seconds of silence in the program, of what may pass beyond, and of what a close of a lost session may take.
SILENCE, BEYOND, CLOSE = 6, 5, 15
SCENES = (
    "two_sessions", "raylet_stopped", "raylet_stopped_with_timeout", "gcs_stopped", "raylet_killed", "gcs_killed",
)  # fmt: skip


def outcome_of(scene: str) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(program("lost", scene)[0].splitlines()[-1])
    return made


@pytest.fixture(scope="module")
def scenes() -> dict[str, dict[str, Any]]:
    """What came of each scene, in a process of its own: three at a time, since most of it is waiting."""
    with ThreadPoolExecutor(3) as pool:
        return dict(zip(SCENES, pool.map(outcome_of, SCENES), strict=True))


def test_ray_ends_with_the_last_session_and_values_come_home_before(scenes: dict[str, Any]) -> None:
    row = scenes["two_sessions"]
    assert row["goes_on"]
    assert row["ended"]
    assert (row["handle"], row["value"], row["variable"]) == (2, 4, 2)
    assert row["refused"].startswith("RuntimeError: the session is closed")


def test_a_raylet_that_goes_on_in_time_is_waited_for(scenes: dict[str, Any]) -> None:
    paused = scenes["raylet_stopped"]["paused"]
    assert paused["error"] == ""
    assert paused["seconds"] >= SILENCE / 2 - 1


def test_a_read_ends_when_the_raylet_has_been_silent(scenes: dict[str, Any]) -> None:
    read = scenes["raylet_stopped"]["read"]
    assert read["error"].startswith("ClusterLost: reading a value of 2.0 MiB from Ray's store: ")
    assert "the raylet of this machine has not answered for 6 s" in read["error"]
    assert "restore the last checkpoint" in read["error"]
    assert SILENCE - 1 < read["seconds"] < SILENCE + BEYOND


def test_a_dead_session_says_so_at_once(scenes: dict[str, Any]) -> None:
    again = scenes["raylet_stopped"]["again"]
    assert again["error"].startswith("ClusterLost: ")
    assert again["seconds"] < BEYOND


def test_a_read_ends_at_the_timeout(scenes: dict[str, Any]) -> None:
    read = scenes["raylet_stopped_with_timeout"]["read"]
    assert "is stopped. The session cannot be used any more" in read["error"]
    assert 2 < read["seconds"] < 3 + BEYOND


def test_a_close_ends_though_the_gcs_is_silent_and_values_are_kept(scenes: dict[str, Any]) -> None:
    assert scenes["gcs_stopped"]["value"] == 1


def test_a_run_whose_raylet_is_killed_ends_with_a_named_error(scenes: dict[str, Any]) -> None:
    row = scenes["raylet_killed"]
    assert "the raylet of this machine (process " in row["run"]["error"]
    assert "has ended" in row["run"]["error"]
    assert row["run"]["seconds"] < 1 + BEYOND
    assert row["read"]["error"].startswith("ClusterLost: ")


def test_an_error_that_nobody_catches_is_shown_without_asking_a_lost_cluster(scenes: dict[str, Any]) -> None:
    assert scenes["raylet_killed"]["hook"]


def test_a_run_whose_gcs_is_killed_ends_with_a_named_error_within_its_timeout(scenes: dict[str, Any]) -> None:
    row = scenes["gcs_killed"]
    assert row["run"]["error"].startswith("ClusterLost: ")
    assert "the GCS (the head's server) (process " in row["run"]["error"]
    assert row["run"]["seconds"] < 20 + BEYOND


def test_values_of_this_machine_outlive_the_gcs(scenes: dict[str, Any]) -> None:
    assert scenes["gcs_killed"]["read"]["error"] == ""
    assert scenes["gcs_killed"]["here"]["error"] == ""


def test_a_training_goes_on_from_its_checkpoint_with_the_same_bits_after_the_gcs_was_killed(
    scenes: dict[str, Any],
) -> None:
    assert scenes["gcs_killed"]["same"]


@pytest.mark.parametrize("scene", SCENES[1:])
def test_closing_a_lost_session_ends_and_leaves_no_process(scenes: dict[str, Any], scene: str) -> None:
    close = scenes[scene]["close"]
    assert close["error"] == ""
    assert close["seconds"] < CLOSE + (SILENCE if scene == "gcs_stopped" else 0)
    assert close["left"] == []


# -- interrupts ------------------------------------------------------------------------------------------------------

#: A variable in the environment of a driver, and so of what it starts, by which that can be told apart.
MARK = "DISTGRAD_TEST_MARK"


def marked(mark: str) -> list[str]:
    """What runs and has this mark in its environment."""
    found = []
    for pid, (_, command) in processes().items():
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                environment = file.read()
        except OSError:
            continue
        if f"{MARK}={mark}".encode() in environment:
            found.append(command[:120])
    return found


def agents() -> set[int]:
    """Ray's agents of this machine, which write over their environment."""
    return {pid for pid, (_, command) in processes().items() if command.startswith(("ray::Dash", "ray::Runtime"))}


def family(pid: int) -> set[int]:
    table, found = processes(), [pid]
    for each in found:
        found += [child for child, (parent, _) in table.items() if parent == each]
    return set(found)


def watched(process: subprocess.Popen[str], seconds: float) -> set[int]:
    """All that is below a process during so many seconds; it may end before."""
    found, ends = {process.pid}, time.monotonic() + seconds
    while time.monotonic() < ends and process.poll() is None:
        found |= family(process.pid)
        time.sleep(0.1)
    return found


def gone(pids: set[int], mark: str) -> list[str]:
    table = processes()
    return [table[pid][1][:120] for pid in pids if pid in table] + marked(mark)


def left_by_interrupt(wait: float, again: float | None) -> list[str]:
    """What is left of a driver and all below it after an interrupt, and perhaps another one, some seconds later."""
    mark = uuid.uuid4().hex
    process = start("-m", "tests.on_ray.programs.opening", **{MARK: mark})
    try:
        seen = watched(process, wait)
        os.killpg(process.pid, signal.SIGINT)
        if again is not None:
            seen |= watched(process, again)
            os.killpg(process.pid, signal.SIGINT)
        seen |= watched(process, PROCESS_TIMEOUT)
        process.communicate(timeout=60)
    finally:
        process.kill()
    until(lambda: not gone(seen, mark), 30)
    return gone(seen, mark)


@pytest.mark.parametrize("seed", range(3))
def test_an_interrupt_at_any_moment_leaves_no_process(seed: int) -> None:
    """Once, and twice in short succession: opening, running and closing take about eight seconds together."""
    randoms = random.Random(seed)
    waits, again = [randoms.uniform(1, 9) for _ in range(2)], [None, randoms.uniform(0, 0.5)]
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(left_by_interrupt, waits, again)) == [[], []]


def test_a_session_can_be_opened_after_an_interrupt() -> None:
    process = start("-m", "tests.on_ray.programs.opening", "again")
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "opening\n"
        time.sleep(1.5)
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=PROCESS_TIMEOUT)
    finally:
        process.kill()
    assert out.split()[-4:] == ["opening", "open", "closing", "closed"], err
    assert process.returncode == 0


def test_a_driver_that_is_killed_leaves_no_process() -> None:
    mark = uuid.uuid4().hex
    process = start("-m", "tests.on_ray.programs.opening", **{MARK: mark})
    assert process.stdout is not None
    try:
        while process.stdout.readline() not in ("open\n", ""):
            pass
        seen = family(process.pid)
        assert seen & agents()
    finally:
        process.kill()
    process.communicate()
    until(lambda: not gone(seen, mark), 60)
    assert gone(seen, mark) == []


ENDED = """
import gc, os, signal, time
import numpy as np, ray
import distgrad as dg
session = dg.Session("ray", workers=1)
array = session.submit(dg.function(lambda x: x + 1), np.ones(1 << 18)).value()
print(array[0], flush=True)
(raylet,) = ray._private.worker._global_node.all_processes["raylet"]
os.kill(raylet.process.pid, signal.SIGKILL)
raylet.process.wait()
del array
gc.collect()
print("still there", flush=True)
"""


def test_the_parent_of_a_script_tells_that_ray_ended_it(tmp_path: Any) -> None:
    """An array of the store that is let go after the raylet's death: Ray's client ends the process at once."""
    script = tmp_path / "ended.py"
    script.write_text(ENDED)
    mark = uuid.uuid4().hex
    process = start("-m", "distgrad", "run", "--workers", "1", str(script), **{MARK: mark})
    try:
        seen = watched(process, PROCESS_TIMEOUT)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert out.startswith("2.0\n"), err  # Ray may print the raylet's last words after it
    assert "still there" not in out
    assert process.returncode == 75, err
    assert "error: the script's process was ended by Ray, which happens if the raylet" in err
    until(lambda: not gone(seen, mark), 60)
    assert gone(seen, mark) == []
