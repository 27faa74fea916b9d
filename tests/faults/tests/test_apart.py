"""The judges themselves: they notice leftover processes, late calls, and unclear errors."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ..apart import Apart
from ..kinds import KINDS
from ..more.stage import Stage

#: A process that starts another one, which leaves its session and outlives it.
PARENT = """
import subprocess, sys
child = "import time, sys; sys.argv[0] = 'child'; print(1, flush=True); time.sleep(100)"
subprocess.Popen([sys.executable, "-c", child], start_new_session=True, stdout=subprocess.PIPE).stdout.readline()
"""


def test_processes_are_found_whatever_became_of_their_parents_and_ended() -> None:
    apart = Apart()
    try:
        apart.start("-c", PARENT)
        assert apart.wait(60) == 0
        assert len(apart.alive()) == 1
        assert len(apart.leftovers(0.0)) == 1
    finally:
        apart.end()
    assert apart.alive() == {}
    assert not apart.folder.exists()


def _raise(error: BaseException) -> Any:
    raise error


@pytest.mark.parametrize(
    ("work", "wrong"),
    [
        (lambda: 7, ""),
        (lambda: 8, "gave 8 in place of 7"),
        (lambda: _raise(TimeoutError("the run was stopped after its timeout of 1 s")), ""),
        (lambda: _raise(RuntimeError("no")), "an error that says only 'no'"),
        (lambda: _raise(AttributeError("'NoneType' object has no attribute 'ref'")), "unclear error"),
        (lambda: _raise(json.JSONDecodeError("of a library's own, which is no use", "", 0)), "unclear error json"),
        (lambda: time.sleep(0.3), "took 0.3 s"),
        (lambda: signal.raise_signal(signal.SIGINT), ""),
    ],
    ids=["right", "wrong", "clear", "short", "attribute", "foreign", "late", "interrupt"],
)
def test_a_call_is_right_in_time_or_one_clear_error(work: Callable[[], Any], wrong: str, tmp_path: Path) -> None:
    Stage(tmp_path).call("call", work, 0.2, 7)
    (fact,) = [json.loads(line) for line in (tmp_path / "facts").read_text().splitlines()]
    assert wrong in fact["wrong"]
    assert bool(wrong) == bool(fact["wrong"])


def test_a_result_that_is_due_is_missed_where_an_error_comes(tmp_path: Path) -> None:
    Stage(tmp_path).result("call", lambda: _raise(TimeoutError("stopped after its timeout of 1 s")), 1)
    assert any(json.loads(line)["wrong"] for line in (tmp_path / "facts").read_text().splitlines())


def test_chaos_has_1200_faults_of_all_kinds() -> None:
    asked = {
        "SIGKILL", "SIGSTOP", "segfault", "sys.exit", "object loss", "node loss", "full store", "slow worker",
        "GCS paused",
    }  # fmt: skip
    assert asked <= KINDS.keys()
    assert sum(kind.count for kind in KINDS.values()) == 1200
    assert sum(kind.few for kind in KINDS.values()) == 60
