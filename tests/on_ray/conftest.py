"""Fixtures of the tests on Ray."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

import distgrad as dg

from .helpers import program


@pytest.fixture
def session(ray_session: dg.Session) -> Iterator[dg.Session]:
    """A session of the test's own on the cluster of all tests: the current one, and closed at the end."""
    with dg.Session("ray", timeout=120) as made:
        yield made


@pytest.fixture
def fine(ray_session: dg.Session) -> Iterator[dg.Session]:
    """The same, with as many tasks as there can be."""
    with dg.Session("ray", timeout=120, granularity=1e-9) as made:
        yield made


@pytest.fixture(scope="session")
def three_nodes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What happened on a cluster of three nodes. Planned with the default rates, of which so many tasks come that one
    node would be late with them."""
    out, _ = program("nodes", DISTGRAD_CACHE=str(tmp_path_factory.mktemp("rates")))
    made: dict[str, Any] = json.loads(out)
    return made
