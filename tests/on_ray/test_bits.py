"""The same bits as in this process: every row of the op table, and random graphs cut into many tasks."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np
import pytest

import distgrad as dg
from distgrad import nest
from distgrad.testing import random_like

from ..cases import FAMILIES, all_cases, composed
from ..cases.case import Case
from ..engines import assert_bits, exact, optimized, slowly
from ..random_graphs import build, random_graph, seeded
from ..test_op_table import as_dtype, has_floats

pytestmark = pytest.mark.ray

#: Seconds of a task: short enough for several in a family of rows, and for as many as there can be in a small graph.
FINE, FINEST = 2e-5, 1e-9


def families() -> dict[str, list[Case]]:
    """The rows of the table by family: those of one family are one run."""
    tables = {name: import_module(f"tests.cases.{name}").CASES for name in FAMILIES}
    assert sum(len(table) for table in tables.values()) == len(all_cases())
    tables["composed"] = composed.CASES
    return {name: [case for rows in table.values() for case in rows] for name, table in tables.items()}


ROWS = families()


class Fed:
    """A graph whose inputs are fed: constants would be folded before anything runs."""

    def __init__(self) -> None:
        self.feeds: dict[dg.Tensor, Any] = {}
        self.fetches: list[dg.Tensor] = []

    def input(self, x: Any) -> dg.Tensor:
        x = np.asarray(x)
        made = dg.placeholder(x.shape, x.dtype)
        self.feeds[made] = x
        return made

    def row(self, case: Case, real: Any) -> None:
        """The results of a row, and the gradients of a weighted sum of them."""
        xs = [self.input(as_dtype(x, real)) for x in case.inputs]
        made = nest.flatten(case.build(*xs))
        self.fetches += made
        if case.order:
            rng = np.random.default_rng(0)
            terms = [dg.real(dg.sum(y * as_dtype(random_like(y, rng), real))) for y in made if y.dtype.kind in "fc"]
            moving = [x for x in xs if x.dtype.kind in "fc"]
            found = dg.gradients(terms, moving, unconnected_gradients="zero")
            self.fetches += [dg.identity(dg.add(g, 0.0)) for g in found]


def locally(fetches: Sequence[Any], feeds: Any) -> list[Any]:
    made: list[Any] = dg.Session(threads=1).run(fetches, feeds)
    return made


@pytest.mark.parametrize("family", ROWS)
def test_every_row_of_the_op_table_has_the_bits_of_the_local_engine(ray_session: dg.Session, family: str) -> None:
    session = dg.Session("ray", granularity=FINE)
    with dg.Graph():
        fed = Fed()
        for case in ROWS[family]:
            fed.row(case, "float64")
            if case.float32 and has_floats(case):
                fed.row(case, "float32")
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
    if exact(whole):
        assert_bits(made, slowly(whole, list(fed.feeds.values())))
    assert_bits(made, locally(fed.fetches, fed.feeds))
