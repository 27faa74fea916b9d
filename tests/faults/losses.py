"""Scenes in which the only copy of an object is lost with its node; each runs in the process that has the cluster.

Before a node is removed, Ray is asked that it holds the only copy; and before a scene continues, Ray has noticed the
loss.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import distgrad as dg

from . import scenes

#: 512 KB: larger than what Ray carries in its messages.
SIDE = 256
#: The worker of the node that is lost: the two workers of the head come first.
THERE = "worker:2"
#: Seconds for Ray to notice the loss of a node.
LOSS_TIMEOUT = 60.0


class Cost(NamedTuple):
    """What the faults of a session have cost so far, and what the last run told."""

    lost: int
    runs: int
    tasks: int
    replayed: int
    recomputed: int

    @classmethod
    def of(cls, s: Any) -> Cost:
        faults, last = s.faults, s.last_run
        return cls(faults.lost, faults.replayed_runs, faults.replayed, last.replayed, sum(last.recomputed.values()))


class Frail:
    """A node that has joined, and goes when it is told to."""

    def __init__(self) -> None:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        before = self._alive()
        self._node = scenes.cluster().add()
        (self.id,) = self._alive() - before
        self.here = NodeAffinitySchedulingStrategy(self.id, soft=False)
        #: An object that lies there: when this process knows that it is gone, it knows that of all others.
        self._witness = ray.remote(max_retries=0)(np.ones).options(scheduling_strategy=self.here).remote(1 << 18)
        ray.wait([self._witness], fetch_local=False)

    @staticmethod
    def _alive() -> set[str]:
        import ray

        return {node["NodeID"] for node in ray.nodes() if node["Alive"]}

    def has_only_copy(self, *refs: Any) -> bool:
        return all(places(ref) == [self.id] for ref in refs)

    def go(self) -> None:
        if self.id in self._alive():
            scenes.cluster().remove(self._node)
            wait(lambda: places(self._witness) != [self.id])


def places(ref: Any) -> list[str]:
    from ray.experimental import get_object_locations

    found: list[str] = get_object_locations([ref])[ref]["node_ids"]
    return found


def wait(condition: Callable[[], bool]) -> None:
    ends = time.monotonic() + LOSS_TIMEOUT
    while not condition():
        assert time.monotonic() < ends, "it did not happen"
        time.sleep(0.02)


@contextmanager
def frail_session() -> Iterator[tuple[Frail, Any]]:
    frail = Frail()
    try:
        with dg.Session("ray", timeout=120, attempts=1) as s:
            yield frail, s
    finally:
        frail.go()


def start() -> Any:
    return np.random.default_rng(0).normal(size=(SIDE, SIDE)) / SIDE


# -- between calls -----------------------------------------------------------------------------------------------


def calls(there: str | None) -> tuple[Any, Any, Any, Any, Any]:
    """A function that makes a value there, one that reads it, two variables with the steps that move them there."""
    v, u = dg.Variable(start(), name="v"), dg.Variable(start(), name="u")

    @dg.function
    def make(x: dg.Tensor) -> dg.Tensor:
        with dg.device(there):
            return dg.tanh(x @ x)

    @dg.function
    def move(x: dg.Tensor) -> None:
        with dg.device(there):
            v.assign(dg.tanh(v @ x) + 1.0)

    @dg.function
    def push(x: dg.Tensor) -> None:
        with dg.device(there):
            u.assign(dg.tanh(u @ x) - 1.0)

    return make, (v, move), (u, push), dg.function(lambda x: x + 1.0), dg.function(lambda: u * 2.0)


class Between(NamedTuple):
    """What was there only, and how many tasks runs of each kind have; then the cost after each read."""

    only_there: bool
    tasks: tuple[int, int, int]
    start: Cost
    given: Cost
    fetched: Cost
    read: Cost
    same: bool


def between_calls() -> Between:
    """A value, and variables that two and three runs made, lose their only copies; then each of them is read: by a run
    that is given the value, by `numpy()`, and by a run that reads the variable."""
    make, (v, move), (u, push), more, twice = calls(THERE)
    x = start()
    with frail_session() as (frail, s):
        tasks = []
        handle = s.submit(make, x)
        tasks.append(len(s.last_run.tokens))
        for _ in range(2):
            move(x)
        tasks.append(len(s.last_run.tokens))
        for _ in range(3):
            push(x)
        tasks.append(len(s.last_run.tokens))
        only = frail.has_only_copy(handle.stored.ref, v._value.stored.ref, u._value.stored.ref)
        frail.go()
        begin = Cost.of(s)
        found = [more(handle)]
        given = Cost.of(s)
        found.append(v.numpy())
        fetched = Cost.of(s)
        found.append(twice())
        read = Cost.of(s)
    return Between(only, (tasks[0], tasks[1], tasks[2]), begin, given, fetched, read, same(found, _expected()))


def _expected() -> list[Any]:
    make, (v, move), (_, push), more, twice = calls(None)
    x = start()
    with dg.Session(cpus_per_task=1):
        for _ in range(2):
            move(x)
        for _ in range(3):
            push(x)
        return [more(make(x)), v.numpy(), twice()]


def same(found: list[Any], expected: list[Any]) -> bool:
    return [x.tobytes() for x in found] == [x.tobytes() for x in expected]


# -- in the middle of a run --------------------------------------------------------------------------------------


@dg.op("FaultsGate", infer=lambda x, s, **_: (s.shape, s.dtype))
def gate(x: Any, s: Any, *, folder: str) -> Any:
    """Tells that it was reached, and waits until it may go on."""
    if folder:
        Path(folder, "reached").touch()
        ends = time.monotonic() + LOSS_TIMEOUT
        while not os.path.exists(os.path.join(folder, "go")) and time.monotonic() < ends:
            time.sleep(0.01)
    return s + x[0, 0]


class During(NamedTuple):
    """What a run told in which an object was lost, and where a variable lies after it."""

    cost: Cost
    reasons: list[str]
    tasks: int
    alive: bool
    same: bool


def in_a_run(folder: str, written: bool) -> During:
    """A run whose first task makes an object on the node that goes while the second one holds the run up: one that the
    third task reads; or, with `written`, the new value of a variable, which nothing in the run reads: it is lost
    between the token of its task and the end of the run."""
    x, v = start(), dg.Variable(start(), name="v")

    def step(x: dg.Tensor, folder: str) -> dg.Tensor:
        there, first, second = (THERE, "worker:0", "worker:1") if folder else (None, None, None)
        with dg.device(there):
            y = dg.tanh(x @ x)
            total = dg.sum(y)
            if written:
                v.assign(y)
        with dg.device(first):
            passed = gate(x, total, folder=folder)
        with dg.device(second):
            return passed + (1.0 if written else dg.sum(y @ (x + passed)))

    with frail_session() as (frail, s):
        removal = threading.Thread(target=_removed_at, args=(frail, Path(folder)))
        removal.start()
        found = dg.function(step)(x, folder)
        removal.join()
        cost, reasons, tasks = Cost.of(s), list(s.last_run.reasons), len(s.last_run.tokens)
        alive = not written or not set(places(v._value.stored.ref)) <= {frail.id}
        values = [np.asarray(found), v.numpy()]
        cost = cost._replace(runs=s.faults.replayed_runs)  # reading made nothing again either
    v = dg.Variable(start(), name="v")
    with dg.Session(cpus_per_task=1):
        expected = [np.asarray(dg.function(step)(x, "")), v.numpy()]
    return During(cost, reasons, tasks, alive, same(values, expected))


def _removed_at(frail: Frail, folder: Path) -> None:
    wait((folder / "reached").exists)
    frail.go()
    (folder / "go").touch()


# -- bodies ------------------------------------------------------------------------------------------------------


class Bodies(NamedTuple):
    """What a run told whose body was lost, and whether its result is right."""

    large: bool
    reasons: list[str]
    cost: Cost
    same: bool
    again: list[str]


def body_dies(size: int) -> Bodies:
    """The only copy of a body is lost before any process has it: a small one lies in Ray's table, a large one in the
    store, from where it is moved to a node that goes."""
    import ray

    from distgrad.workers.on_ray.shipping import forget

    table = np.random.default_rng(1).normal(size=size)
    look = dg.function(lambda x: dg.sum(x * table))
    x = np.ones(size)
    with frail_session() as (frail, s):
        traced, _ = look.prepared(x)
        engine = s._ready_for(traced.body).engine
        holder = engine.calls[0].holder  # shipped now
        if holder:
            move = ray.remote(max_retries=0)(_same_bytes).options(scheduling_strategy=frail.here)
            holder[0] = move.remote(ray.get(holder[0]))
            ray.wait(holder, fetch_local=False)
            assert frail.has_only_copy(*holder)
        forget(engine.link.name)
        frail.go()
        found = look(x)
        reasons, cost = list(s.last_run.reasons), Cost.of(s)
        look(x)
        return Bodies(bool(holder), reasons, cost, same([np.asarray(found)], [_summed(look, x)]), s.last_run.reasons)


def _same_bytes(x: bytes) -> bytes:
    return x


def _summed(look: Any, x: Any) -> Any:
    with dg.Session(cpus_per_task=1):
        return np.asarray(look(x))
