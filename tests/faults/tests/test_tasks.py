"""Tasks that die or hang: they are retried up to their number of attempts; then an error names them."""

from __future__ import annotations

import multiprocessing
import os
import re
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from .. import scenes


def free_memory() -> int:
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


pytestmark = pytest.mark.ray


def test_a_task_that_dies_once_runs_again_and_nothing_else_does(play: Callable[..., Any], tmp_path: Path) -> None:
    found = play(scenes.trouble, scenes.die, str(tmp_path / "died"))
    assert (found.error, found.weights) == ("", (2.0, 3.0))
    assert list(found.recomputed.values()) == [1]
    assert found.tasks > 2


def test_a_task_whose_process_is_told_to_end_runs_again_and_so_does_one_that_calls_sys_exit(
    play: Callable[..., Any], tmp_path: Path
) -> None:
    found = play(scenes.trouble, scenes.leave, str(tmp_path / "left"))
    assert (found.error, found.weights) == ("", (2.0, 3.0))
    assert list(found.recomputed.values()) == [2]


def test_a_task_that_always_leaves_is_given_up_and_named(play: Callable[..., Any]) -> None:
    found = play(_trouble_twice, scenes.leave)
    assert found.kind == "TaskFailed"
    assert re.search(r"'FaultsLeave' \(at scenes.py:\d+\)", found.error)
    assert found.weights == (1.0, 2.0)


def test_a_task_that_always_dies_is_given_up_after_its_attempts(play: Callable[..., Any]) -> None:
    found = play(_trouble_twice, scenes.die)
    assert found.kind == "TaskFailed"
    assert re.search(r"'FaultsDie' \(at scenes.py:\d+\)", found.error)
    assert "failed 2 times and is not retried; the last failure: WorkerCrashedError" in found.error
    assert found.weights == (1.0, 2.0)


def test_a_task_that_hangs_once_is_ended_and_runs_again(play: Callable[..., Any], tmp_path: Path) -> None:
    found = play(_impatient, str(tmp_path / "hung"))
    assert (found.error, found.weights) == ("", (2.0, 3.0))
    assert len(found.recomputed) == 1
    assert re.search(r"hung on node \w+, process \d+", found.reasons[0])


@pytest.mark.skipif(free_memory() < scenes.WANTED + (1 << 30), reason="the machine has too little memory free")
def test_a_task_that_is_ended_for_want_of_memory_runs_again(tmp_path: Path) -> None:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        found = process.submit(scenes.memory_ends, str(tmp_path / "ate")).result()
    assert (found.error, found.weights) == ("", (2.0, 3.0))
    assert sum(found.recomputed.values()) >= 1
    assert "OutOfMemoryError" in found.reasons[0]


def test_a_step_that_cannot_end_raises_within_its_timeout_and_names_task_op_and_node(play: Callable[..., Any]) -> None:
    found = play(_timed)
    assert found.kind == "TimeoutError"
    assert found.seconds < TIMEOUT + 2
    assert re.search(
        r"task \d+ of \d+, .*'FaultsHang' \(at scenes.py:\d+\).*: a worker to finish it, on node \w+, process",
        found.error,
    )
    assert found.weights == (1.0, 2.0)


#: Timeouts of runs and of tasks in seconds: long enough for a worker to start on a busy machine.
TIMEOUT, TASK_TIMEOUT = 10.0, 4.0


def _trouble_twice(op: Any) -> Any:
    return scenes.trouble(op, "", attempts=2)


def _impatient(mark: str) -> Any:
    return scenes.trouble(scenes.hang, mark, task_timeout=TASK_TIMEOUT)


def _timed() -> Any:
    return scenes.trouble(scenes.hang, "", timeout=TIMEOUT)
