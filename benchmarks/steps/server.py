"""One framework in one process: reads a request per line, a JSON object, and answers each with a line.

Output of the framework is redirected to stderr: stdout is for the answers.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from typing import Any, TextIO

import numpy as np

from . import inputs, timing


class Server:
    def __init__(self, module: str, variant: str, threads: int):
        name = module if "." in module else f".{module}"  # of this package, or by its whole name
        self.framework = importlib.import_module(name, __package__)
        self.variant, self.threads = variant, threads
        if hasattr(self.framework, "set_threads"):
            self.framework.set_threads(threads)

    def load(self, workload: str, save: str) -> dict[str, Any]:
        """Make the inputs, run the first step and write its results to the file `save`; then measure memory."""
        self.framework.warm()
        bare = timing.resident()
        self.step = self.framework.load(workload, self.variant, self.threads)
        empty = timing.resident()
        start = time.perf_counter()
        self.step.prepare()
        ready = timing.resident()
        made = self.step.run()
        first = time.perf_counter() - start
        np.savez(save, *self.step.arrays(made))
        del made
        # the state of training counts: some frameworks make the moments with the first step, others before
        base = bare if workload in inputs.TRAINING else empty
        peak = timing.peak_over(base, self.step.run)
        of_step = None if peak is None or base is None or ready is None else peak - (ready - base)
        return {"first": first, "peak": peak, "peak_of_step": of_step, "predicted": self.step.predictions()}

    def turn(self) -> dict[str, Any]:
        return {"seconds": timing.turn(self.step.run)}

    def gemms(self, workload: str) -> dict[str, Any]:
        return {"gemms": self.framework.share(workload)}


def serve(module: str, variant: str, threads: int) -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    _keep_to(threads)
    try:
        server = Server(module, variant, threads)
    except Exception as e:  # the framework is not installed, or does not start: the client gets the reason
        _answer(answers, {"error": _why(e)})
        return
    _answer(answers, {"versions": _versions()})
    for line in sys.stdin:
        request = json.loads(line)
        try:
            _answer(answers, getattr(server, request.pop("do"))(**request))
        except Exception as e:  # the same: the driver reports it as this framework's row
            _answer(answers, {"error": _why(e)})


def _keep_to(threads: int) -> None:
    """No more cores than threads, which is all that XLA goes by; where the system knows no affinity, all cores."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])


def _answer(answers: TextIO, value: dict[str, Any]) -> None:
    print(json.dumps(value), file=answers, flush=True)


def _why(e: Exception) -> str:
    return f"{type(e).__name__}: {e}".splitlines()[0]


def _versions() -> dict[str, str]:
    names = ("numpy", "jax", "tensorflow", "torch")
    return {name: sys.modules[name].__version__ for name in names if name in sys.modules}
