"""Records of runs: which runs are replayed to recompute a lost object, without a cluster."""

from __future__ import annotations

import weakref
from types import SimpleNamespace
from typing import Any

import numpy as np

from distgrad.types import Spec
from distgrad.workers.on_ray.values import Record, Stored, Value

SPEC = Spec((2,), np.dtype("float64"))


class Engine:
    """Runs nothing, but remembers what it was asked to run, and how many objects there were meanwhile."""

    def __init__(self) -> None:
        self.link: Any = SimpleNamespace(values=weakref.WeakSet())
        self.ran: list[float] = []
        self.most = 0

    def run_again(self, feeds: list[Any], state: dict[str, Any], ends: float | None) -> dict[int, tuple[Any, int]]:
        self.ran.append(float(feeds[0][0]))
        self.most = max(self.most, len({id(value.stored) for value in self.link.values}))
        return dict.fromkeys((0, 1), (f"made by {feeds[0][0]:g}", 16))

    def run(self, number: int, *given: Value) -> list[Value]:
        """Two values that a run made of others, each in an object of its own."""
        record = Record(self, [np.full(2, float(number))], {str(i): x for i, x in enumerate(given)})  # type: ignore[arg-type]
        return [Value(SPEC, self.link, record.made(b, "first", 16), 0) for b in (0, 1)]


def remake(value: Value) -> None:
    assert value.stored.record is not None
    value.stored.record[0].again(None)


def test_a_chain_of_runs_runs_again_once_each_and_in_order() -> None:
    engine = Engine()
    values = engine.run(0)
    for i in range(1, 40):
        values = engine.run(i, *values)
    remake(values[0])
    assert engine.ran == [float(i) for i in range(40)]
    assert [value.stored.ref for value in values] == ["made by 39"] * 2


def test_objects_of_a_chain_go_after_their_last_reader() -> None:
    engine = Engine()
    values = engine.run(0)
    for i in range(1, 40):
        values = engine.run(i, *values)
    remake(values[0])
    assert engine.most <= 6


def test_a_run_that_two_others_read_runs_again_once() -> None:
    engine = Engine()
    old, new = engine.run(0), engine.run(1)
    for i in range(2, 30):
        old, new = new, engine.run(i, old[0], new[1])
    remake(new[0])
    assert len(engine.ran) == len(set(engine.ran)) <= 30


def test_what_is_still_there_is_not_made_again() -> None:
    engine = Engine()
    first = engine.run(0)
    second = engine.run(1, *first)
    remake(second[0])
    assert engine.ran == [1.0]


def test_a_safe_object_ends_the_chain() -> None:
    engine = Engine()
    safe = Value(SPEC, engine.link, Stored("safe", 16), 0)
    values = engine.run(1, *engine.run(0, safe))
    del safe
    remake(values[0])
    assert engine.ran == [0.0, 1.0]
