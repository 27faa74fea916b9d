"""The cost of a call on Ray in two checkouts, side by side, to tell a change of the overhead per call from noise.

Each checkout has its own process and a Ray with two workers. They run the same small steps in turns, a block of calls
each, and only one computes at a time. Each round gives the ratio of the two medians; printed are the median of these
ratios and its 95 % confidence interval.

    empty     one task that adds to a small variable
    shards    a step of about twenty tasks: shards, a reduce tree, three weights
    returns   one call that writes 24 variables of 128 KB, each in its own task

    python benchmarks/per_call.py --other /path/to/another/checkout
    python benchmarks/per_call.py --other ../before --only empty --rounds 100

The other checkout's Python is that of its .venv, unless --python names one. The exit code is 1 if a call is
significantly more than 1 % slower here.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import numpy as np

BAR = 1.01
ROOT = Path(__file__).parent.parent
CALLS = {"empty": 50, "shards": 20, "returns": 20}


# -- the side that computes ----------------------------------------------------------------------------------------


def steps(dg: Any) -> dict[str, Callable[[], Any]]:
    return {"empty": _empty(dg), "shards": _shards(dg), "returns": _returns(dg)}


def _empty(dg: Any) -> Callable[[], Any]:
    v = dg.Variable(np.zeros(10))
    step: Callable[[], Any] = dg.function(lambda: v.assign_add(1.0))
    return step


def _shards(dg: Any) -> Callable[[], Any]:
    rng = np.random.default_rng(0)
    weights = [dg.Variable(rng.normal(size=(192, 192)).astype(np.float32) / 16) for _ in range(3)]
    x = rng.normal(size=(64, 192)).astype(np.float32)

    def loss(ws: Any, x: Any) -> Any:
        for w in ws:
            x = dg.tanh(x @ w)
        return dg.mean(x**2)

    of_shards = dg.data_parallel(dg.value_and_grad(loss), 4)

    @dg.function
    def step(x: Any) -> Any:
        value, slopes = of_shards([w.read() for w in weights], x)
        for w, slope in zip(weights, slopes, strict=True):
            w.assign_sub(np.float32(0.1) * slope)
        return value

    return lambda: step(x)


def _returns(dg: Any) -> Callable[[], Any]:
    variables = [dg.Variable(np.zeros(16_000)) for _ in range(24)]

    @dg.function
    def step(x: Any) -> None:
        for v in variables:
            v.assign_add(x)

    return lambda: step(np.float64(1.0))


def serve() -> None:
    """Lines with the name of a step and a count come in, lines with the seconds of the calls go out."""
    import distgrad as dg

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else is printed
    with dg.Session("ray", workers=2, object_store_memory=200 << 20, granularity=3e-5, timeout=120):
        known = steps(dg)
        for line in sys.stdin:
            name, count = line.split()
            print(json.dumps([_timed(known[name]) for _ in range(int(count))]), file=answers, flush=True)


def _timed(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


# -- the side that compares ----------------------------------------------------------------------------------------


class Checkout:
    """A process that computes with the distgrad of a checkout."""

    def __init__(self, root: Path, python: str | None, folder: str):
        own = root / ".venv/bin/python"
        command = [python or str(own if own.exists() else sys.executable), str(Path(__file__).resolve()), "--serve"]
        kept = {name: value for name, value in os.environ.items() if name not in ("RAY_ADDRESS", "PYTHONPATH")}
        env = {**kept, "RAY_TMPDIR": folder, "DISTGRAD_PROGRESS": "off"}
        self._process = subprocess.Popen(
            command, cwd=folder, env=env, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def calls(self, name: str, count: int) -> list[float]:
        to, back = self._process.stdin, self._process.stdout
        assert to is not None
        assert back is not None
        return _ask(to, back, f"{name} {count}")

    def end(self) -> None:
        self._process.communicate(timeout=120)


def _ask(to: IO[str], back: IO[str], line: str) -> list[float]:
    print(line, file=to, flush=True)
    answer = back.readline()
    if not answer:
        raise RuntimeError("a checkout's process ended; its error output says why")
    made: list[float] = json.loads(answer)
    return made


def compare(name: str, here: Checkout, other: Checkout, rounds: int) -> tuple[Any, Any]:
    """The medians of blocks of calls, here and there, round by round; who begins changes."""
    found: dict[Checkout, list[float]] = {here: [], other: []}
    for side in (here, other):
        side.calls(name, 2 * CALLS[name])  # planned, compiled, warm
    for k in range(rounds):
        for side in (here, other) if k % 2 else (other, here):
            found[side].append(float(np.median(side.calls(name, CALLS[name]))))
    return np.array(found[here]), np.array(found[other])


def interval(ratios: Any) -> tuple[float, float]:
    """The 95 % confidence interval of the median, by resampling the rounds."""
    rng = np.random.default_rng(0)
    medians = np.median(rng.choice(ratios, size=(4000, len(ratios))), axis=1)
    low, high = np.quantile(medians, [0.025, 0.975])
    return float(low), float(high)


def main() -> int:
    args = _arguments()
    if args.serve:
        serve()
        return 0
    dearer = 0
    with tempfile.TemporaryDirectory(prefix="pc") as one, tempfile.TemporaryDirectory(prefix="pc") as two:
        here, other = Checkout(ROOT, None, one), Checkout(Path(args.other), args.python, two)
        try:
            print(f"{'':>10}{'here':>12}{'other':>12}{'ratio':>9}   95 %")
            for name in args.only or CALLS:
                mine, theirs = compare(name, here, other, args.rounds)
                ratios = mine / theirs
                low, high = interval(ratios)
                dearer += low > BAR
                ms = f"{np.median(mine) * 1e3:>9.3f} ms{np.median(theirs) * 1e3:>9.3f} ms"
                print(f"{name:>10}{ms}{np.median(ratios):>9.4f}   {low:.4f} to {high:.4f}", flush=True)
        finally:
            here.end()
            other.end()
    return 1 if dearer else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--other", default=str(ROOT), help="another checkout; this one by default, to see the noise")
    parser.add_argument("--python", help="the Python of the other checkout")
    parser.add_argument("--only", type=lambda text: text.split(","), help=", ".join(CALLS))
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
