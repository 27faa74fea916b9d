"""Training in place that Ctrl-C interrupts at random moments; run by run/test_updates in a process of its own.

Arguments: how many interrupts, and the options of the session as JSON. After every interrupt all variables must have
the bits of the same number of whole steps of a twin, whose variables somebody holds, so that it is never updated in
place.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable

import numpy as np

import distgrad as dg
from distgrad.tracing.state import take

SHAPES = [(700, 500), (3000,), (16,)]


class Trained:
    """Variables, moved by Adam and counted; updates are most of the work. The smallest keep two versions."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.rows = [[dg.Variable(rng.random(shape, np.float32)) for _ in range(3)] for shape in SHAPES]
        self.count = dg.Variable(0)
        self.variables = [*[v for row in self.rows for v in row], self.count]
        self.gradients = [rng.random(shape, np.float32) for shape in SHAPES]
        self.traced = dg.function(self._step)

    def _step(self, *gradients: dg.Tensor) -> dg.Tensor:
        self.count.assign_add(1)
        for (p, m, v), g in zip(self.rows, gradients, strict=True):
            m.assign(0.9 * m + 0.1 * g)
            v.assign(0.99 * v + 0.01 * g * g)
            p.assign_sub(0.01 * m / (np.sqrt(v) + 1e-8))
        return dg.sum(gradients[0] @ gradients[0].T)

    def step(self) -> None:
        self.traced(*self.gradients)

    def step_held(self) -> None:
        held = take(self.variables)
        self.step()
        del held

    def bits(self) -> list[bytes]:
        return [v.numpy().tobytes() for v in self.variables]


def main(count: int, options: dict[str, object]) -> None:
    randoms = random.Random(0)
    with dg.Session(**options):  # type: ignore[arg-type]
        one, twin = Trained(), Trained()
        one.step()
        begun = time.perf_counter()
        one.step()
        longest = 3 * (time.perf_counter() - begun)
        steps = 0
        for _ in range(count):
            interrupt(one.step, randoms.uniform(0, longest))
            steps = int(one.count.numpy())
            while int(twin.count.numpy()) < steps:
                twin.step_held()
            assert one.bits() == twin.bits(), f"torn after {steps} steps"
    print(f"{steps} steps, {threading.active_count()} threads")


def interrupt(work: Callable[[], None], delay: float) -> None:
    """Repeat some work until a signal stops it, which another thread sends after a while."""
    begun = threading.Event()

    def send() -> None:
        begun.wait()
        time.sleep(delay)
        os.kill(os.getpid(), signal.SIGINT)

    sender = threading.Thread(target=send)
    try:
        sender.start()
        begun.set()
        while True:
            work()
    except KeyboardInterrupt:
        sender.join()


if __name__ == "__main__":
    main(int(sys.argv[1]), json.loads(sys.argv[2]))
