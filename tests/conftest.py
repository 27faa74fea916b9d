"""Fixtures that several test files share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import distgrad as dg


@pytest.fixture
def graph() -> Iterator[dg.Graph]:
    """A graph that is being built during the test, and checked after it."""
    with dg.Graph() as g:
        yield g
    dg.check_graph(g)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All that runs on Ray goes to one process, which has one cluster."""
    for item in items:
        if item.get_closest_marker("ray"):
            item.add_marker(pytest.mark.xdist_group("ray"))


@pytest.fixture(scope="session")
def ray_session() -> Iterator[dg.Session]:
    """A session on a Ray of two workers on this machine, for all tests of the process."""
    session = dg.Session("ray", workers=2, object_store_memory="400 MB", timeout=120)
    yield session
    session.close()
