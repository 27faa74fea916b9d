"""Fixtures of the tests on Ray."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import distgrad as dg


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
