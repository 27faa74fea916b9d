"""Placement on a real cluster: labels, workers, gradients next to their forward ops; weights that tasks load."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import distgrad as dg
from distgrad import runtime

pytestmark = pytest.mark.ray


def test_tasks_and_their_gradients_run_where_labels_and_workers_say(three_nodes: dict[str, Any]) -> None:
    assert three_nodes["placement"] == "ok"


def test_weights_are_loaded_by_a_task_and_stay_on_the_cluster(ray_session: dg.Session, tmp_path: Path) -> None:
    value = np.arange(6.0).reshape(2, 3)
    dg.save_checkpoint(tmp_path, {"w": dg.Variable(value)})
    runtime.push(ray_session)
    try:
        w = dg.Variable(dg.from_checkpoint(tmp_path, "w"))
    finally:
        runtime.remove(ray_session)
    assert isinstance(w._value, dg.Handle)
    np.testing.assert_array_equal(w.numpy(), value)
