"""GPU tasks. What runs here needs torch, but no GPU: Ray can be told that it has one."""

from __future__ import annotations

import numpy as np
import pytest
import ray

import distgrad as dg

from .helpers import program

pytestmark = pytest.mark.ray


def test_gpu_tasks_run_on_torch_and_keep_weights_on_the_device() -> None:
    pytest.importorskip("torch")
    out, _ = program("gpus")
    assert out.strip() == "ok"


def test_asking_for_a_gpu_where_there_is_none_says_what_there_is(ray_session: dg.Session) -> None:
    with dg.Graph(), dg.device("gpu"):
        x = dg.placeholder((2,), name="x")
        y = dg.exp(x, name="y")
    asks = (
        r"op 'y' \(type Exp, at test_gpus\.py:\d+\) asks for device 'gpu', but no worker has a GPU\. Cluster 'ray' has"
    )
    with pytest.raises(dg.DeviceError, match=asks):
        ray_session.run(y, {x: [1.0, 2.0]})


def test_a_task_knows_its_objects_by_the_names_that_the_driver_has_for_them(ray_session: dg.Session) -> None:
    def name_two() -> tuple[bytes, bytes, list[str]]:
        from distgrad.workers.backends import backend
        from distgrad.workers.on_ray import resident

        for number in (0, 1):
            resident.keep_made(backend("numpy"), number, [np.zeros(1)])
        return b"", b"", [key for key, _ in list(resident._kept)[-2:]]

    *made, names = ray.remote(num_returns=3)(name_two).remote()
    assert ray.get(names) == [ref.hex() for ref in made]
