"""How much of its throughput a training keeps while faults come: windows with and without them, in turns.

Two workers of one cpu each, on one node or, where nodes go, on two; one fault every 30 s. The exit code is 1 where a
bar is missed: with one SIGKILL of a worker every 30 s, 95 % must be left. Of stops and lost nodes the figure is told.

    python -m tests.faults.throughput
    python -m tests.faults.throughput --only SIGKILL --rounds 2 --window 30
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import distgrad as dg

from .apart import Apart, end_on_signal
from .cluster import OwnCluster
from .kinds import TASK_TIMEOUT, Site, send

#: Seconds between two faults; the part that must be left, of those kinds that have a bar.
EVERY, BARS = 30.0, {"SIGKILL": 0.95}
WIDTH, ROWS, SHARDS = 512, 1024, 4


class Load:
    """The training: steps of about a tenth of a second on two workers."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        weights = [dg.Variable(rng.normal(size=(WIDTH, WIDTH)).astype(np.float32) / 32) for _ in range(3)]
        self._batch = rng.normal(size=(ROWS, WIDTH)).astype(np.float32)
        of_shards = dg.data_parallel(dg.value_and_grad(_loss), SHARDS)

        @dg.function
        def step(x: dg.Tensor) -> dg.Tensor:
            loss, slopes = of_shards([w.read() for w in weights], x)
            for w, slope in zip(weights, slopes, strict=True):
                w.assign_sub(np.float32(0.01) * slope)
            return loss

        self._step = step

    def rate(self, seconds: float) -> float:
        """Steps per second, for so long."""
        start, steps = time.monotonic(), 0
        while (took := time.monotonic() - start) < seconds:
            self._step(self._batch)
            steps += 1
        return steps / took


def _loss(weights: Any, x: dg.Tensor) -> dg.Tensor:
    for w in weights:
        x = dg.tanh(x @ w)
    return dg.mean(x**2)


# -- faults ------------------------------------------------------------------------------------------------------


def _kill(site: Site) -> None:
    pids = site.workers()
    if pids:
        send(site.random.choice(pids), signal.SIGKILL)


def _stop(site: Site) -> None:
    pids = site.workers()
    if pids:
        pid = site.random.choice(pids)
        site.stopped.add(pid)
        send(pid, signal.SIGSTOP)


def _lose(site: Site) -> None:
    """The node with the second worker goes, and another one comes."""
    site.cluster.remove(site.nodes.pop())
    site.nodes.append(site.cluster.add())


class Kind(NamedTuple):
    """What happens, the options of the session, and how many of the two workers are on a node of their own."""

    inject: Callable[[Site], None]
    options: Mapping[str, Any]
    away: int = 0


KINDS = {
    "SIGKILL": Kind(_kill, {}),
    "SIGSTOP": Kind(_stop, {"task_timeout": TASK_TIMEOUT}),
    "node loss": Kind(_lose, {}, 1),
}


class Faults(threading.Thread):
    """One fault in every 30 s of a window, at a random moment of these."""

    def __init__(self, inject: Callable[[Site], None], site: Site, seconds: float):
        super().__init__(daemon=True)
        self._inject, self._site = inject, site
        slots = [EVERY * k for k in range(max(round(seconds / EVERY), 1))]
        self._moments = [slot + site.random.uniform(0, 0.8 * min(EVERY, seconds)) for slot in slots]

    def run(self) -> None:
        start = time.monotonic()
        for moment in self._moments:
            time.sleep(max(start + moment - time.monotonic(), 0))
            self._inject(self._site)


def measure(name: str, rounds: int, window: float, seed: int) -> dict[str, Any]:
    """The rates of windows without and with faults."""
    inject, options, away = KINDS[name]
    cluster = OwnCluster(cpus=2 - away)
    site = Site(cluster, Path(), random.Random(seed), [cluster.add() for _ in range(away)])
    quiet, disturbed = [], []
    try:
        with dg.Session("ray", timeout=120, attempts=100, **options) as session:
            load = Load()
            load.rate(5.0)
            for _ in range(rounds):
                site.workers()  # those that work are known before they are disturbed
                quiet.append(load.rate(window))
                faults = Faults(inject, site, window)
                faults.start()
                disturbed.append(load.rate(window))
                faults.join()
                load.rate(5.0)  # what comes of a late one is not the next window's
            again = session.faults.recomputed if session.faults else 0
    finally:
        site.resume()
        cluster.end()
    return {"name": name, "quiet": quiet, "disturbed": disturbed, "again": again}


def main() -> int:
    args = _arguments()
    if args.play:
        logging.getLogger("distgrad").setLevel(logging.ERROR)
        print(json.dumps(measure(args.play, args.rounds, args.window, args.seed)))
        return 0
    missed = 0
    print(f"{'one every 30 s':>16}{'steps/s quiet':>16}{'disturbed':>12}{'kept':>8}{'tasks again':>13}{'bar':>8}")
    for name in args.only or KINDS:
        found = _apart(name, args)
        quiet, disturbed = np.mean(found["quiet"]), np.mean(found["disturbed"])
        bar = BARS.get(name)
        missed += bar is not None and disturbed / quiet < bar
        told = "" if bar is None else f">= {bar:.0%}"
        kept = f"{disturbed / quiet:.1%}"
        print(f"{name:>16}{quiet:>16.2f}{disturbed:>12.2f}{kept:>8}{found['again']:>13}{told:>8}", flush=True)
        pairs = [f"{d / q:.3f}" for q, d in zip(found["quiet"], found["disturbed"], strict=True)]
        print(f"{'':>16}  by window: {' '.join(pairs)}", flush=True)
    return 1 if missed else 0


def _apart(name: str, args: argparse.Namespace) -> dict[str, Any]:
    apart = Apart()
    options = ["--rounds", str(args.rounds), "--window", str(args.window), "--seed", str(args.seed)]
    try:
        apart.start("-m", "tests.faults.throughput", "--play", name, *options)
        code = apart.wait(120 + args.rounds * (3 * args.window + 60))
        if code != 0:
            raise RuntimeError(f"{name}: ended with {code}:\n{apart.tail()}")
        found: dict[str, Any] = json.loads(apart.out.read_text().splitlines()[-1])
        return found
    finally:
        apart.end()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=lambda text: text.split(","), help=", ".join(KINDS))
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--window", type=float, default=60.0, help="seconds")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--play", choices=KINDS, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    end_on_signal()
    sys.exit(main())
