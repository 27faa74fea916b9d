"""Nodes that differ: they compute the same bits if they can, and get no tasks if they cannot."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from . import mixed

pytestmark = pytest.mark.ray

SPAWN = multiprocessing.get_context("spawn")


@pytest.fixture(scope="module")
def play() -> Iterator[Callable[..., Any]]:
    """Runs one of the scenes, and gives what it gives."""
    with ProcessPoolExecutor(1, SPAWN, mixed.open_cluster) as process:
        yield lambda scene, *args: process.submit(scene, *args).result()
        process.submit(mixed.close_cluster).result()


def test_the_environments_of_nodes_change_no_bit(play: Callable[..., Any]) -> None:
    runs, careless, here, bits, excluded = play(mixed.environments_differ)
    assert excluded == {}
    assert [run.bits == here.bits for run in runs] == [True] * 3
    assert len(set.union(*[run.nodes for run in runs])) == 3  # all nodes, or nothing was shown
    assert careless.bits != here.bits  # or the environments do not matter here
    assert bits["blas kernels"] in ("SkylakeX", "Haswell", "Nehalem") or "x86" not in bits["machine"]
    assert {"program", "cpus per task", "backend", "numpy", "scipy", "probe of libm", "denormals"} <= bits.keys()


@pytest.mark.parametrize(
    ("node", "excluded", "reason"),
    [
        (mixed.other_version, "numpy '2.0.99', not", "would compute different bits"),
        (mixed.without_cloudpickle, "No module named 'cloudpickle'", "its worker cannot import distgrad"),
    ],
)
def test_a_node_that_joins_late_and_differs_gets_no_task(
    play: Callable[..., Any], tmp_path: Path, node: Any, excluded: str, reason: str
) -> None:
    joined, undisturbed = play(mixed.a_node_joins_late, node, tmp_path)
    assert joined.bits == undisturbed
    assert joined.late not in joined.used
    assert excluded in joined.excluded[joined.late]
    assert any(reason in told for told in joined.reasons)


def test_a_node_of_another_version_gets_no_task_and_alone_is_refused(play: Callable[..., Any], tmp_path: Path) -> None:
    used, other, labelled, error, version, found = play(mixed.another_version, tmp_path)
    assert used
    assert other not in used
    assert "all nodes that could run a task would compute different bits" in labelled  # not a wait for ever
    assert f"numpy '2.0.99', not '{version}'" in error
    assert other[:8] in error
    assert "Install the same versions" in error
    assert 'bits="any"' in error
    assert found == 6.0


def test_a_node_without_cloudpickle_is_one_clear_error(play: Callable[..., Any], tmp_path: Path) -> None:
    error = play(mixed.no_cloudpickle, tmp_path)
    assert "No module named 'cloudpickle'" in error
    assert "distgrad submit --install" in error


def test_a_driver_with_other_kernels_has_workers_fold_constants(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Nehalem")
    with ProcessPoolExecutor(1, SPAWN) as process:
        found = process.submit(mixed.the_driver_differs).result()
    assert found["products"] == []  # folded
    assert found["folded"] == found["computed"]
    assert "denormals 'flushed to zero', not 'kept'" in found["flushed"] or "x86" not in found["machine"]
    if found["kernels"] != found["told"]:  # or this CPU has no better ones
        assert not found["folds here"]
        assert found["folded"] != found["own"]
