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
