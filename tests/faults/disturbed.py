"""The training that goes on while faults of some kinds come, one kind after another; chaos runs it in another process.

Writes a line of JSON for each kind. Arguments: the file, the folder of orders, the seed, the folder to spill to or
nothing, and kinds with counts, such as `SIGKILL=20`.
"""

from __future__ import annotations

import json
import logging
import os
import random
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import distgrad as dg

from .cluster import OwnCluster
from .kinds import KINDS, SMALL_STORE, Kind, Site, obey
from .training import GRANULARITY, Training, same_bits, undisturbed

#: Steps that are run and those that are timed before the first fault, and steps after the last.
WARM, TIMED, AFTER = 3, 10, 3


@dataclass
class Row:
    """What came of the training while faults of one kind came."""

    kind: str
    faults: int = 0
    again: int = 0
    lost: int = 0
    replayed: int = 0
    repeated: int = 0
    steps: int = 0
    seconds: float = 0.0
    quiet: float = 0.0
    same: bool = False
    error: str = ""


class Injector(threading.Thread):
    """Injects faults of a kind at random moments, until there were enough or it is told to stop."""

    def __init__(self, kind: Kind, site: Site, count: int):
        super().__init__(daemon=True)
        self.faults, self.error = 0, ""
        self._kind, self._site, self._count = kind, site, count
        self._ended = threading.Event()

    def run(self) -> None:
        site, kind = self._site, self._kind
        try:
            while self.faults < self._count and not self._ended.wait(site.random.uniform(0, 2 * kind.seconds)):
                self.faults += kind.inject(site)
        except Exception:
            self.error = traceback.format_exc()

    def stop(self) -> None:
        self._ended.set()
        self.join()


class Play:
    """One kind: its training, round by round."""

    def __init__(self, kind: Kind, site: Site, count: int):
        self._kind, self._site, self._count = kind, site, count
        self._on_shard = partial(obey, orders=str(site.orders), driver=os.getpid())
        self._training = Training(kind.devices, self._on_shard)
        self._times: list[float] = []
        self.row = Row(kind.name)

    def run(self) -> Row:
        start = time.monotonic()
        try:
            while self.row.faults < self._count:
                self._round()
            self.row.seconds = time.monotonic() - start
            self.row.same = same_bits(self._training.values(), undisturbed(self.row.steps, self._on_shard))
            if self._kind.loses and self.row.lost < self.row.faults:
                self.row.error = "not every fault cost a value"
        except BaseException as e:  # SystemExit, too, is told of
            self.row.error = f"{type(e).__name__}: {e}"
            traceback.print_exc()
        return self.row

    def _round(self) -> None:
        """A session on the head and some nodes; as many faults as there are nodes that go, or all."""
        kind, site, row = self._kind, self._site, self.row
        site.nodes = [site.cluster.add() for _ in range(kind.nodes)]
        count = min(kind.nodes if kind.goes else self._count, self._count - row.faults)
        with _session(kind) as session:
            self._steps(WARM)
            self._quiet()
            injector = Injector(kind, site, count)
            injector.start()
            try:
                while injector.is_alive():
                    self._steps(1)
                self._steps(AFTER)
            finally:
                injector.stop()
                site.resume()
                row.faults += injector.faults
            self._account(session.faults)
        for node in site.nodes:
            site.cluster.remove(node)
        if injector.error:
            raise RuntimeError(f"the fault could not be injected: {injector.error}")

    def _quiet(self) -> None:
        """What a step takes when nothing happens."""
        if not self._times:
            for _ in range(TIMED):
                start = time.monotonic()
                self._steps(1)
                self._times.append(time.monotonic() - start)
            self.row.quiet = median(self._times)

    def _steps(self, count: int) -> None:
        for _ in range(count):
            with self._site.stepping:
                self._until_done(lambda: self._training.step(self.row.steps))
            self.row.steps += 1
            self._site.steps += 1

    def _until_done(self, step: Callable[[], Any]) -> None:
        while True:
            try:
                step()
                return
            except self._kind.may_raise as e:
                if type(e).__module__.startswith("ray"):
                    raise
                self.row.repeated += 1
                print(f"{self._kind.name}: {type(e).__name__}: {e}", file=sys.stderr)

    def _account(self, faults: Any) -> None:
        self.row.again += faults.recomputed
        self.row.lost += faults.lost
        self.row.replayed += faults.replayed_runs


def _session(kind: Kind) -> dg.Session:
    return dg.Session("ray", timeout=120, granularity=GRANULARITY, attempts=100, **kind.options)


def main(out: str, orders: str, seed: str, spill: str, *wanted: str) -> None:
    logging.getLogger("distgrad").setLevel(logging.ERROR)  # what ran again is in the table
    small = {"store": SMALL_STORE, "object_spilling_directory": spill} if spill else {}
    cluster = OwnCluster(cpus=1, **small)
    try:
        for name, _, count in [each.partition("=") for each in wanted]:
            site = Site(cluster, Path(orders), random.Random(f"{seed} {name}"))
            row = Play(KINDS[name], site, int(count)).run()
            with Path(out).open("a") as file:
                file.write(json.dumps(asdict(row)) + "\n")
    finally:
        cluster.end()


if __name__ == "__main__":
    main(*sys.argv[1:])
