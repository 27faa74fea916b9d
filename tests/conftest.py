"""Fixtures that several test files share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import distgrad as dg


@pytest.fixture
def graph() -> Iterator[dg.Graph]:
    """A graph that is being built during the test, and checked after it."""
    with dg.Graph() as g:
        yield g
    dg.check_graph(g)


#: Where the tests are that run on Ray, and which of them start clusters of their own in other processes.
ON_RAY = ("tests/on_ray/", "tests/faults/", "tests/test_pages.py")
APART = ("tests/on_ray/test_jobs.py", "tests/on_ray/test_local_cluster.py")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """All that shares the cluster of a process goes to one; the rest goes wherever there is room."""
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            if nodeid.startswith(APART):
                return nodeid.partition("::")[0]
            return "ray" if nodeid.startswith(ON_RAY) else nodeid

    return Scheduling(config, log)


@pytest.fixture(scope="session")
def ray_session() -> Iterator[dg.Session]:
    """A session on a Ray of two workers on this machine, for all tests of the process."""
    session = dg.Session("ray", workers=2, object_store_memory="400 MB", timeout=120)
    yield session
    session.close()
