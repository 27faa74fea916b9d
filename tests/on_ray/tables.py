"""The rows of the op table as graphs with feeds, one graph per family."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np

import distgrad as dg
from distgrad import nest
from distgrad.testing import random_like

from ..cases import FAMILIES, all_cases, composed
from ..cases.case import Case
from ..ops.test_op_table import as_dtype, has_floats


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


def fed_rows(family: str) -> Fed:
    """The graph of a family: every row in float64, and in float32 where it can be."""
    with dg.Graph():
        fed = Fed()
        for case in ROWS[family]:
            fed.row(case, "float64")
            if case.float32 and has_floats(case):
                fed.row(case, "float32")
    return fed
