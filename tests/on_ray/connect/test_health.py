"""`distgrad doctor --address` on a real cluster."""

from __future__ import annotations

import pytest
import ray

import distgrad as dg
from distgrad.workers.on_ray import health

pytestmark = pytest.mark.ray


def test_a_cluster_that_runs_is_described_and_has_our_versions(ray_session: dg.Session) -> None:
    address = ray.get_runtime_context().gcs_address
    (found,) = health.findings(address)
    assert found.state == "ok"
    assert found.found.startswith(f"at {address}: 1 node, 2 cpus, 0 GPUs, ")
