"""The same bits as in this process: every row of the op table, and random graphs cut into many tasks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

import distgrad as dg

from ..engines import assert_bits, exact, optimized, sessions_are_native, slowly
from ..random_graphs import build, random_graph, seeded
from .tables import ROWS, Fed, fed_rows

pytestmark = pytest.mark.ray

#: Seconds of a task: short enough for several in a family of rows, and for as many as there can be in a small graph.
FINE, FINEST = 2e-5, 1e-9


def locally(fetches: Sequence[Any], feeds: Any) -> list[Any]:
    made: list[Any] = dg.Session(threads=1).run(fetches, feeds)
    return made


@pytest.mark.parametrize("family", ROWS)
def test_every_row_of_the_op_table_has_the_bits_of_the_local_engine(ray_session: dg.Session, family: str) -> None:
    session = dg.Session("ray", granularity=FINE)
    fed = fed_rows(family)
    assert_bits(session.run(fed.fetches, fed.feeds), locally(fed.fetches, fed.feeds))
    assert session.last_run.tokens  # type: ignore[union-attr]


@pytest.mark.parametrize("seed", range(4))
def test_random_graphs_in_many_tasks_have_the_bits_of_the_reference(ray_session: dg.Session, seed: int) -> None:
    session = dg.Session("ray", granularity=FINEST)
    with dg.Graph():
        fed = Fed()
        for i in range(3):
            graph = random_graph(seeded(100 * seed + i), max_nodes=12)
            leaves = [fed.input(x) for x in graph.leaf_values(seed)]
            values = build(graph, leaves)
            ends = [values[v] for v in graph.ends]
            found = dg.gradients(ends, leaves, unconnected_gradients="zero")
            fed.fetches += [*ends, *[dg.identity(g) for g in found]]
    made = session.run(fed.fetches, fed.feeds)
    assert len(session.last_run.tokens) > 5  # type: ignore[union-attr]
    whole = optimized(fed.fetches, list(fed.feeds))
    if exact(whole, sessions_are_native()):
        assert_bits(made, slowly(whole, list(fed.feeds.values())))
    assert_bits(made, locally(fed.fetches, fed.feeds))
