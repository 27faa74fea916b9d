"""Traces of runs on Ray: what a worker process reports, and that reporting changes no results."""

from __future__ import annotations

import gc
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import distgrad as dg
from distgrad import progress

pytestmark = pytest.mark.ray

rng = np.random.default_rng(0)
W, X = rng.normal(size=(200, 300)), rng.normal(size=(4000, 200))


def loss(w: Any, x: Any) -> Any:
    return np.mean(np.tanh(x @ w) ** 2)


step = dg.data_parallel(dg.value_and_grad(loss), shards=4)


@pytest.fixture(scope="module")
def traced(ray_session: dg.Session, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The plan of a trace, with its last run."""
    path = tmp_path_factory.mktemp("traces") / "trace.json"
    with dg.Session("ray", workers=2, granularity=1e-3, trace=path):
        for _ in range(3):
            step(W, X)
    made: dict[str, Any] = json.loads(path.read_text())["distgrad"]["plans"][0]
    return made


def test_tasks_are_told_by_the_process_that_ran_them(traced: dict[str, Any]) -> None:
    ran = traced["measured"]
    assert len(ran["start"]) == len(traced["tasks"]) > 1
    pids = [int(place.removeprefix("process ")) for place in ran["places"]]
    assert os.getpid() not in pids
    assert 1 <= len(pids) <= len(traced["tasks"])


def test_readers_begin_after_their_makers_end(traced: dict[str, Any]) -> None:
    ran = traced["measured"]
    reads = [(j, k) for k, task in enumerate(traced["tasks"]) for j in task["reads"]]
    assert reads
    assert all(ran["start"][k] >= ran["end"][j] - 5e-3 for j, k in reads)


def test_ops_are_timed_on_the_workers(traced: dict[str, Any]) -> None:
    assert traced["ops_measured"]
    assert any(row["op"] == "MatMul" and row["line"].startswith("test_traces.py:") for row in traced["ops"])


def test_all_runs_are_counted(traced: dict[str, Any]) -> None:
    assert traced["runs"]["count"] == 3


def test_a_run_that_is_recorded_has_the_same_bits(ray_session: dg.Session) -> None:
    with ray_session_again(trace=True):
        value, grad = step(W, X)
    with ray_session_again():
        again, grad_again = step(W, X)
    assert value == again
    assert (grad == grad_again).all()


def ray_session_again(**options: Any) -> dg.Session:
    """Another session on the Ray that this process has joined."""
    return dg.Session("ray", workers=2, **options)


@pytest.fixture
def told() -> Iterator[list[progress.ProgressItem]]:
    """What begins and is told of."""
    found: list[progress.ProgressItem] = []
    begin = progress.begin

    def note(*args: Any, **kwargs: Any) -> progress.ProgressItem:
        found.append(begin(*args, **kwargs))
        return found[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(progress, "_chosen", "log")
        patch.setattr(progress, "_start", lambda mode: None)
        patch.setattr(progress, "begin", note)
        yield found


def test_what_a_run_was_given_goes_with_it_though_its_progress_was_told(
    ray_session: dg.Session, told: list[progress.ProgressItem]
) -> None:
    with ray_session_again() as session:
        gc.collect()
        gc.disable()
        try:
            step(W, X)
            assert session._planner.link is not None
            assert len(session._planner.link.values) == 0
        finally:
            gc.enable()


def test_a_run_in_which_a_nan_was_found_is_not_recorded(ray_session: dg.Session) -> None:
    with ray_session_again(trace=True, check_numerics=True) as session:
        with pytest.raises(dg.NumericsError):
            dg.function(lambda x: np.log(x))(-np.ones(3))
        with pytest.raises(ValueError, match="nothing was recorded"):
            session.write_trace("trace.json")


def test_the_progress_of_a_run_is_told_task_by_task(ray_session: dg.Session, told: list[progress.ProgressItem]) -> None:
    with ray_session_again():
        step(W, X)
    run = told[-1]
    assert (run.stage, run.unit) == ("running", "tasks")
    assert run.done == run.total
    assert run.share == pytest.approx(1.0)
    assert progress._active == []


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no device that is always full")
def test_values_come_home_though_the_trace_finds_no_room(ray_session: dg.Session, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.symlink_to("/dev/full")
    w = dg.Variable(np.zeros(3))
    session = dg.Session("ray", workers=1, trace=path)
    with pytest.raises(OSError, match=f"^cannot write {path}: No space left on device; free some space"), session:
        dg.function(lambda: w.assign_add(np.ones(3)))()
    assert w.numpy().tolist() == [1, 1, 1]
    with pytest.raises(RuntimeError, match="the session is closed"):
        session.submit(step, W, X)
