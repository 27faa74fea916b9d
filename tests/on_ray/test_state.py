"""State on Ray: values stay in the cluster between calls, are fetched only on request, and are freed at the end."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from typing import Any

import numpy as np
import pytest
import ray

import distgrad as dg
from distgrad.handles import Handle, value_of
from distgrad.tracing.state import take

from .helpers import settled_store, store_bytes, until

pytestmark = pytest.mark.ray

MB = 1 << 20
#: Bytes that tokens and some scalars take.
FEW = 10_000
LARGE = np.random.default_rng(0).normal(size=(1024, 512))  # 4 MiB


def nbytes(x: Any) -> int:
    """The bytes of all arrays in what came from the store."""
    if isinstance(x, np.ndarray | bytes):
        return memoryview(x).nbytes
    if isinstance(x, list | tuple):
        return sum(nbytes(each) for each in x)
    return sum(nbytes(getattr(x, name)) for name in ("buffer", "large") if hasattr(x, name))


@pytest.fixture
def arrived(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How many bytes of arrays this process got from the store since the test began."""
    total, get = [0], ray.get

    def counting(*args: Any, **kwargs: Any) -> Any:
        found = get(*args, **kwargs)
        total[0] += nbytes(found)
        return found

    monkeypatch.setattr(ray, "get", counting)
    return lambda: total[0]


# -- in the cluster ------------------------------------------------------------------------------------------------


def test_what_a_call_assigns_stays_in_the_cluster(session: dg.Session, arrived: Callable[[], int]) -> None:
    before, v = store_bytes(), dg.Variable(LARGE)

    @dg.function
    def step(x: Any) -> Any:
        v.assign(v * x)
        return dg.sum(v)

    step(np.float64(2))
    assert isinstance(v._value, Handle)
    for _ in range(3):
        step(np.float64(2))
    assert arrived() < FEW
    assert store_bytes() - before >= LARGE.nbytes
    np.testing.assert_array_equal(v.numpy(), LARGE * 16)
    assert arrived() >= LARGE.nbytes


def test_handles_are_passed_from_call_to_call_without_visiting_the_driver(
    session: dg.Session, arrived: Callable[[], int]
) -> None:
    double = dg.function(lambda x: x * 2)
    h = session.submit(double, LARGE)
    for _ in range(3):
        h = session.submit(double, h)
    assert isinstance(h, Handle)
    assert (h.shape, h.dtype) == (LARGE.shape, LARGE.dtype)
    assert arrived() < FEW
    np.testing.assert_array_equal(h, LARGE * 16)


def test_a_graph_takes_and_gives_handles(session: dg.Session, arrived: Callable[[], int]) -> None:
    with dg.Graph():
        x = dg.placeholder(LARGE.shape)
        y, total = dg.exp(x), dg.sum(x)
    h = session.run({"y": y}, {x: LARGE}, fetch=False)["y"]
    found = session.run(total, {x: h})
    assert 0 < arrived() < FEW
    np.testing.assert_allclose(found, np.exp(LARGE).sum())


def test_a_handle_on_what_was_given_is_what_was_given(session: dg.Session) -> None:
    a, b = session.submit(dg.function(lambda x, y: (x, y + 1)), LARGE, LARGE)
    np.testing.assert_array_equal(a, LARGE)
    np.testing.assert_array_equal(b, LARGE + 1)


def test_an_initializer_runs_as_a_task(session: dg.Session, arrived: Callable[[], int]) -> None:
    v = dg.Variable(lambda: dg.random.normal(1, (1024, 512)))
    tokens = session.last_run.tokens  # type: ignore[union-attr]
    assert os.getpid() not in {token.pid for token in tokens.values()}
    assert isinstance(v._value, Handle)
    assert arrived() < FEW
    np.testing.assert_array_equal(v.numpy(), dg.random.normal(1, (1024, 512)))


# -- across sessions -----------------------------------------------------------------------------------------------


def test_variables_and_handles_keep_their_values_when_the_session_closes(ray_session: dg.Session) -> None:
    v = dg.Variable(np.arange(4.0))
    with dg.Session("ray") as session:
        dg.function(lambda x: v.assign_add(x))(np.ones(4))
        h = session.submit(dg.function(lambda x: x * 3), np.ones(2))
    np.testing.assert_array_equal(v.numpy(), np.arange(4.0) + 1)
    np.testing.assert_array_equal(h, [3, 3])


def test_local_and_ray_sessions_take_turns_on_a_variable(ray_session: dg.Session) -> None:
    v, expected = dg.Variable(np.zeros(3)), 0
    step = dg.function(lambda x: v.assign(v * 2 + x))
    for options in ({"engine": "ray"}, {}, {"engine": "ray"}, {"engine": "ray"}, {}):
        with dg.Session(**options):  # type: ignore[arg-type]
            step(np.ones(3))
            v.assign_add(np.ones(3))
        expected = expected * 2 + 2
        np.testing.assert_array_equal(v.numpy(), np.full(3, expected))


def test_a_variable_that_an_open_session_holds_is_read_by_others(session: dg.Session) -> None:
    v = dg.Variable(np.zeros(3))
    step = dg.function(lambda x: v.assign_add(x))
    step(np.ones(3))
    assert isinstance(v._value, Handle)
    with dg.Session(threads=1):
        step(np.ones(3))
    with dg.Session("ray"):
        step(np.ones(3))
    step(np.ones(3))
    np.testing.assert_array_equal(v.numpy(), np.full(3, 4))


def test_a_handle_of_one_session_is_a_value_for_another(session: dg.Session) -> None:
    h = session.submit(dg.function(lambda x: x * 2), np.ones(3))
    with dg.Session(threads=1):
        np.testing.assert_array_equal(dg.function(lambda x: x + 1)(h), [3, 3, 3])
    with dg.Session("ray") as other:
        np.testing.assert_array_equal(other.submit(dg.function(lambda x: x + 1), h), [3, 3, 3])


# -- several threads -----------------------------------------------------------------------------------------------


def test_calls_of_several_threads_lose_no_update(session: dg.Session) -> None:
    v, own = dg.Variable(np.zeros(3)), [dg.Variable(np.zeros(2)) for _ in range(3)]
    shared = dg.function(lambda x: v.assign_add(x))
    alone = [dg.function(lambda x, w=w: w.assign_add(x)) for w in own]
    failures: list[BaseException] = []

    def work(i: int) -> None:
        try:
            for _ in range(6):
                shared(np.ones(3))
                alone[i](np.ones(2))
        except BaseException as e:
            failures.append(e)

    threads = [threading.Thread(target=partial(copy_context().run, work, i)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert failures == []
    np.testing.assert_array_equal(v.numpy(), np.full(3, 18))
    assert [w.numpy().tolist() for w in own] == [[6, 6]] * 3


# -- no trace ------------------------------------------------------------------------------------------------------


def chain(count: int) -> Any:
    """So many products in a row, each of which is a task of its own where tasks are short."""

    @dg.function
    def f(x: Any) -> Any:
        for _ in range(count):
            x = dg.cumsum(dg.flip(x, 0), axis=0) * 1e-3
        return dg.sum(x)

    return f


def test_the_store_is_as_empty_after_a_call_as_before(fine: dg.Session) -> None:
    f = chain(4)
    f(LARGE)
    assert len(fine.last_run.tokens) > 2  # type: ignore[union-attr]
    before = store_bytes()
    for _ in range(3):
        f(LARGE)
    assert until(lambda: store_bytes() <= before + MB), store_bytes() - before


def test_a_failed_call_leaves_nothing_in_the_store(fine: dg.Session) -> None:
    @dg.op("RayTestFailing", infer=lambda x: (x.shape, x.dtype))
    def failing(x: Any) -> Any:
        raise ValueError("no")

    f = dg.function(lambda x: dg.sum(failing(dg.exp(dg.sin(x)))) + dg.sum(dg.cos(x)))
    before = store_bytes()
    for _ in range(15):  # Ray aborts the process where a task is cancelled just as it ends
        with pytest.raises(ValueError, match="no"):
            f(LARGE)
    assert until(lambda: store_bytes() <= before + MB), store_bytes() - before


def test_a_hundred_steps_hold_no_more_than_ten(session: dg.Session) -> None:
    v, m = dg.Variable(LARGE[:, :64]), dg.Variable(np.zeros((1024, 64)))

    @dg.function
    def step(x: Any) -> Any:
        loss = dg.sum(dg.square(v * x))
        (g,) = dg.gradients(loss, [v])
        m.assign(m * 0.9 + g)
        v.assign_sub(1e-6 * m)
        return loss

    def held(steps: int) -> int:
        """Run so many steps; gives how many values live, once the store holds no more than two versions of each."""
        for _ in range(steps):
            step(LARGE[:, :64])
        expected = v._value.stored.nbytes + m._value.stored.nbytes
        assert until(lambda: store_bytes() <= floor + 2 * expected, 20), store_bytes() - floor
        return len(session._planner.link.values)  # type: ignore[union-attr]

    floor = settled_store()
    values_10, values_100 = held(10), held(90)
    assert values_100 <= values_10


def test_who_is_told_that_an_old_value_went_sees_all_new_values(session: dg.Session) -> None:
    variables = [dg.Variable(np.zeros(3)) for _ in range(6)]
    seen: list[set[float]] = []

    def look(_: Any) -> None:
        seen.append({float(value_of(value)[0]) for value in take(variables)})

    @dg.function
    def step(x: dg.Tensor) -> None:
        for i, v in enumerate(variables):
            v.assign(x + np.zeros(3) * i)  # the old value is not read, so nobody has it but the variable

    step(1.0)
    watched = [weakref.ref(v._value, look) for v in variables]
    step(2.0)
    assert [w() for w in watched] == [None] * 6
    assert seen == [{2.0}] * 6
