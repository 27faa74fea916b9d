"""Two sessions that start Ray themselves, one after the other. Prints what happened as JSON, line by line.

The first has a small store: a chain of large values that needs few at a time, one more of which the driver hears late,
then handles on more than the store can hold. It is closed. The second is interrupted in the middle of a run, goes on,
and is never closed.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

import distgrad as dg
from distgrad.workers.on_ray.run import Run
from tests.on_ray.helpers import below, processes

#: Of 8 MiB each: ten of them fill the store.
SHAPE, STORE = (1024, 1024), "90 MB"


def say(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


def spilled() -> int:
    import ray
    from ray._private.internal_api import node_stats

    (node,) = ray.nodes()
    stats = node_stats(node["NodeManagerAddress"], node["NodeManagerPort"], include_memory_info=False)
    return int(stats.store_stats.spilled_bytes_total)


@contextmanager
def late_news(seconds: float) -> Iterator[None]:
    """A driver that is held up: so late it hears that tasks ended."""
    look = Run._wait

    def late(run: Run) -> None:
        time.sleep(seconds)
        look(run)

    Run._wait = late  # type: ignore[method-assign]
    try:
        yield
    finally:
        Run._wait = look  # type: ignore[method-assign]


def small_store() -> None:
    link = dg.function(lambda x: dg.cumsum(dg.flip(x, 0), axis=0) * 0.5)

    @dg.function
    def chain(x: Any, links: int) -> Any:
        for _ in range(links):
            x = link(x)
        return dg.sum(x)

    with dg.Session("ray", workers=1, object_store_memory=STORE, granularity=1e-9, timeout=200) as session:
        chain(np.zeros(SHAPE), 30)
        say(tasks=len(session.last_run.tokens), spilled=spilled())  # type: ignore[union-attr]
        before = spilled()
        with late_news(0.3):
            chain(np.zeros(SHAPE), 10)
        say(tasks=len(session.last_run.tokens), spilled=spilled() - before)  # type: ignore[union-attr]
        plus = dg.function(lambda x, i: x + i)
        handles = [session.submit(plus, np.zeros(SHAPE), np.float64(i)) for i in range(24)]
        total = sum(float(h.value()[0, 0]) for h in handles)
        say(total=total, held=sum(h.value().nbytes for h in handles), spilled=spilled())
        pids = below(os.getpid())
    say(processes=len(pids), left=[pid for pid in pids if pid in processes()])


@dg.op("ProgramNap", infer=lambda x: (x.shape, x.dtype))
def nap(x: Any) -> Any:
    time.sleep(float(x[0]))
    return x + 0


def interrupted() -> None:
    v, w = dg.Variable(np.zeros(3)), dg.Variable(np.zeros(3))

    @dg.function
    def step(x: Any) -> Any:
        v.assign_add(x * 0 + 1)
        w.assign_add(nap(x) * 0 + 1)
        return v + w

    session = dg.Session("ray", workers=2, granularity=1e-9, timeout=200)
    dg.runtime.push(session)
    step(np.zeros(3))
    say(pids=below(os.getpid()))
    try:
        say(running=True)
        step(np.full(3, 100.0))
    except KeyboardInterrupt:
        say(v=v.numpy().tolist(), w=w.numpy().tolist())
    begun = time.monotonic()
    step(np.zeros(3))
    say(v=v.numpy().tolist(), w=w.numpy().tolist(), seconds=time.monotonic() - begun)


if __name__ == "__main__":
    small_store() if sys.argv[1] == "store" else interrupted()
