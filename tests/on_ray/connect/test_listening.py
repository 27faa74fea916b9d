"""A Ray that a session starts is for its process alone: it listens on loopback, and its token is private."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import distgrad as dg
from distgrad.workers.on_ray.connect import loopback

from ..helpers import driver, program, until
from ..programs.listening import listeners, outside, step

pytestmark = pytest.mark.ray

REFUSED = """
import distgrad as dg
try:
    dg.Session("ray")
except ConnectionError as e:
    print(e)
"""


def test_all_that_a_session_started_listens_on_loopback(ray_session: dg.Session) -> None:
    with dg.Session("ray"):
        assert step() == 4.0
    found = until(lambda: len(x := listeners()) >= 5 and x)
    assert {"driver", "gcs_server", "raylet", "ray::DashboardAgent"} <= found.keys()
    assert outside(found) == {}


def test_so_does_one_of_a_process_that_had_imported_ray_and_a_cluster_is_joined_after_it(tmp_path: Path) -> None:
    """The cluster listens on all addresses: so the list would show it."""
    before = os.umask(0o022)
    try:
        told = json.loads(program("listening", HOME=str(tmp_path))[0].splitlines()[-1])
    finally:
        os.umask(before)
    assert told["made"] == [4.0, 4.0]
    assert {"driver", "gcs_server", "raylet", "ray::DashboardAgent", "ray::RuntimeEnvAgent"} <= set(told["names"])
    assert told["outside"] == {}
    assert {"driver", "gcs_server", "raylet"} <= set(told["joined"])
    assert told["modes"] == ["600", "700"]
    assert told["variable"] is None  # no child of this process is told anything


def test_a_token_that_others_can_read_starts_no_ray(tmp_path: Path) -> None:
    token = tmp_path / ".ray" / "auth_token"
    token.parent.mkdir()
    token.write_text("a" * 64)
    token.chmod(0o644)
    out, _ = driver("-c", REFUSED, HOME=str(tmp_path))
    assert out.startswith(f"Session: cannot start Ray on this machine: others can read {token} (its mode is 0644)")
    assert f"`chmod 600 {token}`" in out


@pytest.mark.parametrize(
    ("variable", "address", "switched", "warned"),
    [
        (None, "127.0.0.1", True, False),
        (None, "::1", True, False),
        (None, "10.0.0.1", True, True),
        ("0", "10.0.0.1", True, True),
        ("1", "10.0.0.1", False, False),
    ],
)
def test_ray_is_switched_to_loopback_while_it_starts_and_warned_of_where_that_does_not_help(
    variable: str | None,
    address: str,
    switched: bool,
    warned: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    import ray
    from ray._private import ray_constants

    monkeypatch.delenv(loopback.VARIABLE, raising=False)
    if variable is not None:
        monkeypatch.setenv(loopback.VARIABLE, variable)
    monkeypatch.setattr(ray_constants, "ENABLE_RAY_CLUSTER", True)
    monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: address)
    with loopback.on_loopback():
        assert ray_constants.ENABLE_RAY_CLUSTER is not switched
    assert ray_constants.ENABLE_RAY_CLUSTER
    assert ("listens on all addresses of this machine (it is at 10.0.0.1)" in caplog.text) is warned
    assert (loopback.VARIABLE in caplog.text) is warned
