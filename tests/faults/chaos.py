"""Chaos: long trainings on a cluster of this machine while workers are killed and nodes go, and one that is left alone.

Prints what happened, what it cost and whether the weights are, bit for bit, those of a training in one process; of the
one that is left alone, whether the object store and every process hold their memory. The exit code is 1 where not.

    python -m tests.faults.chaos
    python -m tests.faults.chaos --kills 20 --nodes 2 --steps 100
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any, NamedTuple

import distgrad as dg
from distgrad.scheduler.reports import Faults

from . import memory
from .cluster import Killer, OwnCluster
from .training import GRANULARITY, Training, same_bits, undisturbed

#: Steps between two samples of the memory, and steps at the start that do not count.
EVERY, WARM = 25, 100
#: Seconds before a sample: Ray lets go of objects in batches, about once a second.
PAUSE = 1.5


class Row(NamedTuple):
    """What came of one training."""

    name: str
    kills: int
    nodes: int
    faults: Any
    steps: int
    same: bool
    seconds: float
    quiet: float


def main() -> int:
    args = _arguments()
    logging.getLogger("distgrad").setLevel(logging.ERROR)  # what ran again is in the table
    # Ray keeps a record of the last tasks: a short one is full before the memory counts.
    cluster = OwnCluster(task_events_max_num_task_in_gcs=1000)
    try:
        rows = [workers_killed(args.kills, args.seconds, args.seed), nodes_removed(cluster, args.nodes, args.seed)]
        row, samples = left_alone(cluster.address, args.steps)
    finally:
        cluster.end()
    _print_rows([*rows, row])
    flat = _print_memory(samples)
    return 0 if flat and all(r.same for r in [*rows, row]) else 1


def workers_killed(kills: int, seconds: float, seed: int) -> Row:
    """Workers are killed at random moments, one every so many seconds."""
    killer, clock = Killer(kills, seconds, seed), _Clock("workers killed")
    with _session() as session:
        training = Training()
        clock.step(training.step, 0)
        killer.start()
        while not killer.finished:
            clock.step(training.step, clock.steps, f"{killer.kills} kills")
        killer.stop()
        return clock.row(training, session.faults, kills=killer.kills)


def nodes_removed(cluster: OwnCluster, count: int, seed: int) -> Row:
    """Nodes come, get the only copy of the weights, and go at a random moment of a training that goes on."""
    moments, clock, training = random.Random(seed), _Clock("nodes removed"), Training(device="worker:2")
    total = Faults()
    for k in range(count):
        node = cluster.add()
        with _session() as session:
            until = clock.steps + 4
            removal = threading.Timer(moments.uniform(0.5, 3), cluster.remove, [node])
            while clock.steps < until or removal.is_alive():
                clock.step(training.step, clock.steps, f"{k} nodes")
                if removal.ident is None:
                    removal.start()
            for _ in range(4):
                clock.step(training.step, clock.steps, f"{k + 1} nodes")
            total.recomputed += session.faults.recomputed
            total.replayed_runs += session.faults.replayed_runs
    return clock.row(training, total, nodes=count)


def left_alone(address: str, steps: int) -> tuple[Row, list[dict[str, int]]]:
    """Nothing happens; memory is sampled."""
    clock, samples = _Clock("left alone"), []
    with _session() as session:
        training = Training()
        while clock.steps < WARM + steps:
            clock.step(training.step, clock.steps)
            if clock.steps >= WARM and clock.steps % EVERY == 0:
                time.sleep(PAUSE)
                samples.append(memory.sample(address))
        return clock.row(training, session.faults), samples


@contextmanager
def _session() -> Iterator[Any]:
    with dg.Session("ray", timeout=300, granularity=GRANULARITY, attempts=100) as session:
        yield session


class _Clock:
    """Counts and times the steps of a training, and shows where it is."""

    def __init__(self, name: str):
        self._name, self._start = name, time.monotonic()
        self._times: list[float] = []

    @property
    def steps(self) -> int:
        return len(self._times)

    def step(self, work: Callable[[int], Any], i: int, what: str = "") -> None:
        start = time.monotonic()
        work(i)
        self._times.append(time.monotonic() - start)
        if sys.stderr.isatty():
            seconds = start - self._start
            print(f"\r{self._name}: {self.steps} steps, {what:<12} {seconds:.0f} s ", end="", file=sys.stderr)

    def row(self, training: Training, faults: Any, kills: int = 0, nodes: int = 0) -> Row:
        seconds, same = time.monotonic() - self._start, same_bits(training.values(), undisturbed(self.steps))
        print(f"\r{self._name}: done in {seconds:.0f} s{' ' * 30}", file=sys.stderr)
        return Row(self._name, kills, nodes, faults, self.steps, same, seconds, self.steps * median(self._times))


# -- what is printed ---------------------------------------------------------------------------------------------


def _print_rows(rows: list[Row]) -> None:
    heads = ("training", "kills", "nodes", "tasks again", "runs replayed", "steps", "same bits", "seconds", "per fault")
    print("".join([f"{head:>15}" for head in heads]))
    for row in rows:
        events = row.kills + row.nodes
        cost = f"{(row.seconds - row.quiet) / events:.2f} s" if events else ""
        cells = (
            row.name, row.kills, row.nodes, row.faults.recomputed, row.faults.replayed_runs, row.steps,
            "yes" if row.same else "NO", f"{row.seconds:.1f}", cost,
        )  # fmt: skip
        print("".join([f"{cell:>15}" for cell in cells]))


def _print_memory(samples: list[dict[str, int]]) -> bool:
    found = memory.growth(samples)
    print(f"\nmemory over {EVERY * (len(samples) - 1)} steps, in MB")
    for name, (mean, grown) in found.items():
        verdict = "flat" if memory.is_flat(mean, grown) else "GROWS"
        print(f"{name:>15}{mean / 1e6:>10.1f}{grown / 1e6:>+10.2f}  {verdict}")
    return all(memory.is_flat(*series) for series in found.values())


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100, help="workers that are killed")
    parser.add_argument("--seconds", type=float, default=1.0, help="between two kills, on average")
    parser.add_argument("--nodes", type=int, default=4, help="nodes that go")
    parser.add_argument("--steps", type=int, default=500, help="of the training that is left alone")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
