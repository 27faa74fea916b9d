"""Stopped workers: their tasks are retried on others after `task_timeout`, and no wait lasts forever."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .. import stops
from ..stops import TASK_TIMEOUT, TIMEOUT

pytestmark = pytest.mark.ray


@pytest.mark.parametrize("how", ["idle", "busy"])
def test_the_task_of_a_worker_that_is_stopped_runs_elsewhere(
    play: Callable[..., Any], tmp_path: Path, how: str
) -> None:
    found = play(_impatient, how, str(tmp_path))
    assert (found.kind, found.text, found.stopped) == ("", "", 1)
    assert re.search(r"task \d+: hung on node \w+, (process \d+|not yet begun by its process)", found.reasons[0])
    assert found.values == (1.0, 2.0, 3.0)
    assert found.seconds < TASK_TIMEOUT + 15  # Ray takes 5 s to end the process, and some to start another


def test_tasks_run_though_all_workers_were_stopped(play: Callable[..., Any]) -> None:
    found = play(_impatient, "all", "")
    assert (found.kind, found.text) == ("", "")
    assert found.stopped >= 2
    assert found.values == (1.0, 2.0, 3.0)
    assert found.seconds < TASK_TIMEOUT + 20


def test_a_run_whose_workers_are_all_stopped_is_given_up_in_time(play: Callable[..., Any]) -> None:
    found = play(_timed)
    assert found.kind == "TimeoutError"
    assert found.stopped >= 2
    assert "not yet begun by its process" in found.text
    assert found.values == (1.0, 1.0, 2.0)
    assert found.seconds < TIMEOUT + 10


def test_a_raylet_answers_though_its_workers_are_stopped_and_only_events_that_matter_are_read(
    play: Callable[..., Any],
) -> None:
    """Or it is taken for dead; and in a long session reading all events takes longer than the answer may."""
    stopped, seconds, events = play(stops.ask_while_stopped)
    assert stopped >= 1
    assert seconds < 10
    assert events == 1


def _impatient(how: str, folder: str) -> Any:
    return stops.stop(how, folder, task_timeout=TASK_TIMEOUT, timeout=60)


def _timed() -> Any:
    return stops.stop("all", timeout=TIMEOUT)
