"""A training loop that is interrupted at random moments, as by Ctrl-C; run by test_state in a process of its own.

Arguments: how many interrupts, and the options of the session as JSON. Each step moves two variables together, in a
plan of several tasks. After every interrupt both must be as some step left them, and free for other threads.
"""

from __future__ import annotations

import json
import random
import signal
import sys
import threading
from contextvars import copy_context
from functools import partial

import numpy as np

import distgrad as dg


def main(count: int, options: dict[str, object]) -> None:
    a, b = dg.Variable(np.zeros(8)), dg.Variable(np.zeros((64, 64)))

    @dg.function
    def step(x: dg.Tensor) -> dg.Tensor:
        a.assign_add(dg.tanh(x @ x)[0, :8] * 0 + 1)
        b.assign_add(dg.tanh(x @ x + 1) * 0 + 1)
        return dg.sum(a * a) + dg.sum(b)

    sys.setswitchinterval(1e-5)  # signals at more places
    x, randoms = np.ones((64, 64)), random.Random(0)
    with dg.Session(**options):  # type: ignore[arg-type]
        step(x)
        for _ in range(count):
            interrupt(lambda: step(x), randoms.randrange(100_000))
            check(a, b)
            in_thread(partial(copy_context().run, step, x))
            check(a, b)
    print(f"{int(a.numpy()[0])} steps, {threading.active_count()} threads")


def interrupt(work: object, delay: int) -> None:
    """Repeat some work until a signal stops it, which another thread sends after it counted to `delay`."""

    begun: list[bool] = []

    def send() -> None:
        while not begun:  # a thread that is being started must not be interrupted: Python's own locks would break
            pass
        for _ in range(delay):
            pass
        signal.raise_signal(signal.SIGINT)

    sender = threading.Thread(target=send)
    try:
        sender.start()
        begun.append(True)
        while True:
            work()  # type: ignore[operator]
    except KeyboardInterrupt:
        sender.join()


def check(a: dg.Variable, b: dg.Variable) -> None:
    (steps,) = set(a.numpy())
    assert (b.numpy() == steps).all(), (steps, b.numpy())


def in_thread(work: object) -> None:
    thread = threading.Thread(target=work, daemon=True)  # type: ignore[arg-type]
    thread.start()
    thread.join(60)
    assert not thread.is_alive(), "a variable is still claimed"


if __name__ == "__main__":
    main(int(sys.argv[1]), json.loads(sys.argv[2]))
