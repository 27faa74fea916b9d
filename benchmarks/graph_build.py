"""Time to build and to differentiate the chain `y = sin(y) * x`, next to TensorFlow and JAX, in one run.

Each measurement has its own process (no framework sees another's garbage), and the frameworks take turns, so that noise
of the machine affects all. Prints microseconds of CPU time per forward op, the best of all rounds, and the targets:
building <= 1/20 and differentiating <= 1/30 of TensorFlow's time per op, 10x the ops <= 1.3x the time per op.
Then a chain of 1,000,000 ops is built, differentiated and printed. The exit code is 1 if a target is missed.

    make bench
    make bench ARGS="--rounds 7 --full"   # more rounds; TensorFlow and JAX with 200,000 ops too
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable

Times = tuple[float, float]


def measure(n: int, start: Callable[[], object], step: Callable, finish: Callable) -> Times:
    """Seconds of n ops (two per step) and of the gradient."""
    t0 = time.process_time()
    x = start()
    y = x
    for _ in range(n // 2):
        y = step(y, x)
    t1 = time.process_time()
    finish(y, x)
    return t1 - t0, time.process_time() - t1


def distgrad_times(n: int) -> Times:
    import distgrad as dg

    with dg.Graph():
        return measure(n, lambda: dg.constant(1.0, "float32"), lambda y, x: dg.sin(y) * x, dg.gradients)


def tensorflow_times(n: int) -> Times:
    import tensorflow as tf

    with tf.Graph().as_default():
        return measure(n, lambda: tf.constant(1.0), lambda y, x: tf.sin(y) * x, tf.gradients)


def jax_times(n: int) -> Times:
    """JAX has no gradient of a graph: the time to trace f, and the time to trace grad(f)."""
    import jax
    import jax.numpy as jnp

    def f(x: jax.Array) -> jax.Array:
        y = x
        for _ in range(n // 2):
            y = jnp.sin(y) * x
        return y

    t0 = time.process_time()
    jax.make_jaxpr(f)(1.0)
    t1 = time.process_time()
    jax.make_jaxpr(jax.grad(f))(1.0)
    return t1 - t0, time.process_time() - t1


def million(n: int = 1_000_000) -> None:
    import distgrad as dg

    with dg.Graph() as graph:
        build, grad = measure(n, lambda: dg.constant(1.0, "float32"), lambda y, x: dg.sin(y) * x, dg.gradients)
    start = time.process_time()
    lines = str(graph).count("\n") + 1
    assert lines == len(graph.ops) > 2 * n
    print(f"{n:,} ops: built in {build:.1f} s, differentiated in {grad:.1f} s, {lines:,} lines printed in "
          f"{time.process_time() - start:.1f} s")  # fmt: skip


FRAMEWORKS = {"distgrad": distgrad_times, "tensorflow": tensorflow_times, "jax": jax_times}


def run_child(framework: str, n: int) -> Times:
    """Measure in a fresh process; microseconds per op."""
    env = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, __file__, "--child", framework, str(n)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{framework} with {n} ops failed:\n{done.stderr}")
    build, grad = json.loads(done.stdout.splitlines()[-1])
    return build / n * 1e6, grad / n * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--full", action="store_true", help="TensorFlow and JAX with 200,000 ops too (many minutes)")
    parser.add_argument("--child", nargs=2, metavar=("FRAMEWORK", "OPS"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(json.dumps(FRAMEWORKS[args.child[0]](int(args.child[1]))))
        return
    jobs = [("distgrad", 20_000), ("distgrad", 200_000), ("tensorflow", 20_000), ("jax", 20_000)]
    if args.full:
        jobs += [("tensorflow", 200_000), ("jax", 200_000)]
    seen: dict[tuple[str, int], list[Times]] = {job: [] for job in jobs}
    for i in range(args.rounds):
        for job in jobs:
            print(f"round {i + 1} of {args.rounds}: {job[0]}, {job[1]:,} ops", file=sys.stderr)
            seen[job].append(run_child(*job))
    reached = report({job: tuple(map(min, zip(*rows, strict=True))) for job, rows in seen.items()})
    million()
    sys.exit(not reached)


def report(best: dict[tuple[str, int], tuple[float, ...]]) -> bool:
    print(f"{'':12}{'ops':>10}{'build us/op':>14}{'gradients us/op':>18}")
    for (framework, n), (build, grad) in best.items():
        print(f"{framework:12}{n:>10,}{build:>14.1f}{grad:>18.1f}")
    small, large, peer = (best[job] for job in (("distgrad", 20_000), ("distgrad", 200_000), ("tensorflow", 20_000)))
    print()
    verdicts = [
        verdict("build: TensorFlow's time / distgrad's", peer[0] / small[0], 20, True),
        verdict("gradients: TensorFlow's time / distgrad's", peer[1] / small[1], 30, True),
        verdict("build: us/op at 200,000 / at 20,000", large[0] / small[0], 1.3, False),
        verdict("gradients: us/op at 200,000 / at 20,000", large[1] / small[1], 1.3, False),
    ]
    return all(verdicts)


def verdict(what: str, ratio: float, bar: float, at_least: bool) -> bool:
    reached = ratio >= bar if at_least else ratio <= bar
    asked = f"{'at least' if at_least else 'at most'} {bar:g}"
    print(f"{what:45}{ratio:8.2f}  {asked:14} {'reached' if reached else 'MISSED'}")
    return reached


if __name__ == "__main__":
    main()
