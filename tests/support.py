"""What the tests of gradients() share: running, comparing with None, and ops that distgrad itself does not have."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

import distgrad as dg
from distgrad import registry
from distgrad.ops.builder import make, same


def run(fetches: Any, feed_dict: Any = None) -> Any:
    return dg.Session().run(fetches, feed_dict)


def f32(value: Any, name: str | None = None) -> dg.Tensor:
    return dg.constant(value, dtype="float32", name=name)


def assert_values(found: Sequence[Any], expected: Sequence[Any], feed_dict: Any = None) -> None:
    """The list of gradients has these values; None stands for None and nothing else."""
    values = run(list(found), feed_dict)
    assert [v is None for v in values] == [e is None for e in expected]
    for value, e in zip(values, expected, strict=True):
        if e is not None:
            np.testing.assert_allclose(dense(value), e, rtol=1e-6, atol=1e-12)
            assert dense(value).shape == np.shape(e)


def dense(value: Any) -> Any:
    """An array, or the array that a fetched IndexedSlices stands for."""
    if not isinstance(value, dg.IndexedSlicesValue):
        return np.asarray(value)
    made = np.zeros(value.dense_shape, value.values.dtype)
    np.add.at(made, value.indices, value.values)
    return made


def types(graph: dg.Graph) -> list[str]:
    return [op.type for op in graph.ops]


@contextmanager
def new_ops(graph: dg.Graph) -> Iterator[list[dg.Operation]]:
    """The ops that are added inside the block."""
    start, added = len(graph.ops), []
    yield added
    added += graph.ops[start:]


#: An op type without any gradient registration: the U of the specification.
UNREGISTERED = registry.define("TestUnregistered", same, kernel=lambda x: x)


def unregistered(x: Any, name: str | None = None) -> dg.Tensor:
    return make(UNREGISTERED, (x,), name=name)


#: What ten times the work may cost at most. Linear time is about 10 of it, quadratic 100: no machine is fast enough to
#: hide that, and none so slow that linear time looks quadratic.
LINEAR = 30.0


def growth(work: Callable[[Any], object], small: Any, large: Any) -> float:
    """How many times as long work takes on what is large: the least process time of three runs of each."""
    return _least(work, large) / _least(work, small)


def _least(work: Callable[[Any], object], on: Any) -> float:
    times = []
    for _ in range(3):
        before = time.process_time()
        work(on)
        times.append(time.process_time() - before)
    return min(times)
