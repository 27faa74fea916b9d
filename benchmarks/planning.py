"""Planning time for programs with many ops: lowering, each pass, all passes with the final check, and partitioning.

Three models with their gradients, sized by the steps of their lowered programs: a chain `y = sin(y) * x` of small
vectors, a deep network of `tanh(y @ w + b)`, and an LU factorisation written element by element, which has no regular
structure. Each row runs in a separate process. Prints milliseconds of CPU time, with the digest and the compilation of
the tape, then the microseconds per op in total (lower, improve, partition) and the memory used in addition to the
graph. The exit code is 1 if a limit is exceeded: 5 s for 100,000 ops and 60 s for 1,000,000, of which lowering and all
passes except fuse may take 2 s and 25 s.

The last rows are calls of the LU factorisation with its gradient, in seconds of wall time: the first one, with tracing,
may take 3 s at 124,000 ops and 20 s at 800,000.

    python benchmarks/planning.py
    python benchmarks/planning.py --sizes 10000 100000 --calls 124000
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

import distgrad as dg
from distgrad.run.planner import evaluate
from distgrad.scheduler.cluster import local_cluster
from distgrad.scheduler.digest import program_digest
from distgrad.scheduler.partition.partition import partition
from distgrad.scheduler.passes.pipeline import PASSES, Context, improve
from distgrad.scheduler.plan import Plan
from distgrad.scheduler.program import lower, planning
from distgrad.workers.backends import backend
from distgrad.workers.body import Compiled, body_of

#: Limits by number of ops: seconds in total, and seconds for lowering and all passes except fuse.
LIMITS = {100_000: (5.0, 2.0), 1_000_000: (60.0, 25.0)}
#: The passes that a session runs on every program.
RUN = [each for each in PASSES if not each.when]
WHOLE = ("lower", "improve", "partition")
COLUMNS = ("lower", *[each.name for each in RUN], "improve", "digest", "partition", "compile")
#: Limits of first calls of `lu` in seconds, by number of ops.
CALL_LIMITS = {124_000: 3.0, 800_000: 20.0}

Model = tuple[list[dg.Tensor], list[dg.Tensor]]


def chain(ops: int) -> Model:
    """Five steps per link, two forward and three backward, and one sum of the gradients of x."""
    x = dg.placeholder((4,), "float32")
    y = x
    for _ in range(ops // 6):
        y = dg.sin(y) * x
    return [y, *dg.gradients(y, x)], [x]


def mlp(ops: int) -> Model:
    """Ten steps per layer; the layers share eight sets of weights."""
    x = dg.placeholder((8, 16), "float32")
    weights = [dg.placeholder((16, 16), "float32") for _ in range(8)]
    biases = [dg.placeholder((16,), "float32") for _ in range(8)]
    y = x
    for i in range(ops // 10):
        y = dg.tanh(y @ weights[i % 8] + biases[i % 8])
    loss = dg.mean(dg.square(y))
    return [loss, *dg.gradients(loss, [*weights, *biases])], [x, *weights, *biases]


def factorised(a: Any) -> Any:
    """The squares of the diagonal of U of an LU factorisation, by Doolittle's scheme on single elements."""
    n = a.shape[0]
    m = [[a[i, j] for j in range(n)] for i in range(n)]
    for i in range(n):
        for j in range(n):
            for k in range(min(i, j)):
                m[i][j] = m[i][j] - m[i][k] * m[k][j]
            if j < i:
                m[i][j] = m[i][j] / m[j][j]
    return dg.add_n([m[i][i] * m[i][i] for i in range(n)])


def _order(ops: int) -> int:
    """The order of the matrix of which the factorisation and its gradient have about this many ops."""
    return round((ops / 1.73) ** (1 / 3))


def lu(ops: int) -> Model:
    """Five steps per inner iteration: two forward and three backward."""
    a = dg.placeholder((_order(ops), _order(ops)))
    y = factorised(a)
    return [y, *dg.gradients(y, a)], [a]


MODELS = {"chain": chain, "mlp": mlp, "lu": lu}


def timed(seconds: dict[str, float], name: str, run: Callable[..., Any]) -> Callable[..., Any]:
    """The function, wrapped to record its seconds of CPU time."""

    def measured(*args: Any) -> Any:
        start = time.process_time()
        made = run(*args)
        seconds[name] = time.process_time() - start
        return made

    return measured


def measure(model: str, ops: int) -> dict[str, float]:
    with dg.Graph():
        fetches, feeds = MODELS[model](ops)
    memory = _peak()
    seconds: dict[str, float] = {}
    passes = [replace(each, function=timed(seconds, each.name, each.function)) for each in RUN]
    lowered = timed(seconds, "lower", lower)(fetches, feeds)
    program = timed(seconds, "improve", improve)(lowered, Context(evaluate), passes)
    timed(seconds, "digest", program_digest)(program)
    plan = timed(seconds, "partition", partition)(program, local_cluster(2, None))
    with planning():
        timed(seconds, "compile", compiled)(plan)
    return {**seconds, "steps": len(lowered.steps), "memory": _peak() - memory}


def compiled(plan: Plan) -> list[Compiled]:
    return [Compiled(body_of(plan, task), backend("numpy")) for task in plan.tasks]


def call(ops: int) -> dict[str, float]:
    """The seconds of the first and of the second call of the LU factorisation with its gradient."""
    n = _order(ops)
    x = np.random.default_rng(0).normal(size=(n, n)) + n * np.eye(n)
    traced: list[float] = []

    def function(a: Any) -> Any:
        start = time.perf_counter()
        y = factorised(a)
        found = [y, *dg.gradients(y, a)]
        traced.append(time.perf_counter() - start)
        return found

    step = dg.function(function)
    seconds = []
    for _ in range(2):
        start = time.perf_counter()
        step(x)
        seconds.append(time.perf_counter() - start)
    return {"first": seconds[0], "traced": traced[0], "second": seconds[1]}


def _peak() -> float:
    """Peak memory of this process in MB."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


def run_child(model: str, ops: int) -> dict[str, float]:
    done = subprocess.run([sys.executable, __file__, "--child", model, str(ops)], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{model} with {ops} ops failed:\n{done.stderr}")
    row: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return row


def report(model: str, ops: int, row: dict[str, float]) -> bool:
    total, both = sum(row[name] for name in WHOLE), row["lower"] + row["improve"] - row["fuse"]
    cells = [f"{row[name] * 1e3:12,.0f}" for name in COLUMNS]
    print(f"{model:8}{row['steps']:>11,.0f}{''.join(cells)}{total * 1e3:12,.0f}", end="")
    print(f"{total / row['steps'] * 1e6:10.1f}{row['memory']:10,.0f}", end="")
    limits = LIMITS.get(ops) if model != "lu" else None  # that has limits for calls
    if limits is None:
        print()
        return True
    reached = total <= limits[0] and both <= limits[1]
    print(f"   {total:.1f} of {limits[0]:g} s, {both:.1f} of {limits[1]:g} s: {'reached' if reached else 'MISSED'}")
    return reached


def report_call(ops: int, row: dict[str, float]) -> bool:
    limit = CALL_LIMITS.get(ops)
    print(f"lu, about {ops:,} ops: first call {row['first']:.2f} s, of which tracing {row['traced']:.2f} s; ", end="")
    print(f"second call {row['second']:.3f} s", end="")
    reached = limit is None or row["first"] <= limit
    print("" if limit is None else f"   of {limit:g} s: {'reached' if reached else 'MISSED'}")
    return reached


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[10_000, *LIMITS])
    parser.add_argument("--calls", type=int, nargs="*", default=[*CALL_LIMITS])
    parser.add_argument("--child", nargs=2, metavar=("MODEL", "OPS"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        model, ops = args.child[0], int(args.child[1])
        print(json.dumps(call(ops) if model == "call" else measure(model, ops)))
        return
    print(f"{'':8}{'ops':>11}{''.join(f'{name:>12}' for name in COLUMNS)}{'total ms':>12}{'us/op':>10}{'MB':>10}")
    reached = [report(model, ops, run_child(model, ops)) for ops in args.sizes for model in MODELS]
    reached += [report_call(ops, run_child("call", ops)) for ops in args.calls]
    sys.exit(not all(reached))


if __name__ == "__main__":
    main()
