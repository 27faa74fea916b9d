"""A minimal engine, see new_engine.py, gives the bits of the local engine."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import pytest

import distgrad as dg

from .engines import assert_bits
from .new_engine import InOrderEngine, InOrderPlanner


def session(**options: Any) -> dg.Session:
    """A session that runs its plans on the new engine."""
    made = dg.Session(**options)
    planner = made._planner
    made._planner = InOrderPlanner(*[getattr(planner, each.name) for each in fields(planner)])
    return made


def loss(w: Any, x: Any) -> Any:
    return dg.mean(dg.nn.layer_norm(dg.tanh(x @ w) @ w + x) ** 2)


RNG = np.random.default_rng(0)
W, X = RNG.normal(size=(32, 32)), RNG.normal(size=(96, 32))
OPTIONS = [{"cpus_per_task": 1, "threads": 2, "granularity": seconds} for seconds in (1.0, 1e-9)]


@pytest.mark.parametrize("options", OPTIONS, ids=["one task", "many tasks"])
@pytest.mark.parametrize("shards", [1, 3])
def test_it_gives_the_bits_of_the_local_engine(options: dict[str, Any], shards: int) -> None:
    step = dg.data_parallel(dg.value_and_grad(loss), shards=shards)
    with dg.Session(**options):
        expected = step(W, X)
    with session(**options) as opened:
        found = step(W, X)
        assert type(opened._planner.engine([], [], [])) is InOrderEngine
        assert (len(step.plan(W, X).tasks) > 1) == (options["granularity"] < 1e-6)
    assert_bits(found, expected)


def test_it_reads_and_writes_variables() -> None:
    w = dg.Variable(W, name="w")

    @dg.function
    def train(x: Any) -> Any:
        error = loss(w, x)
        w.assign_sub(0.1 * dg.gradients(error, w)[0])
        return error

    made = []
    for opened in (dg.Session(threads=1), session(threads=1)):
        w.assign(W)
        with opened:
            made.append([train(X), train(X), w.numpy()])
    assert_bits(made[1], made[0])
