"""Planning the gpt step for clusters that do not exist: 8 x 128 tokens per worker, and workers of one cpu each.
Nothing runs. Each size is planned in its own process: `python -m cluster_peers.paper 512`."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from steps import in_distgrad, inputs

import distgrad as dg
from distgrad.run.planner import evaluate
from distgrad.scheduler.cluster import Cluster, Machine, Worker, on_ray
from distgrad.scheduler.partition.partition import partition
from distgrad.scheduler.passes.pipeline import Context, improve
from distgrad.scheduler.plan import Options
from distgrad.scheduler.program import lower

#: Workers of a node, which see one store; nodes are linked at 10 Gbit/s.
PER_NODE = 8


def cluster(workers: int) -> Cluster:
    made = tuple([Worker(1, node=i // PER_NODE) for i in range(workers)])
    return Cluster(made, on_ray(Machine()), f"{workers} workers", "ray")


def measure(workers: int) -> dict[str, Any]:
    """Seconds of each part of the way to a plan, and what the plan says."""
    params, data = inputs.make("gpt")
    batch = [np.concatenate([x] * workers) for x in data]
    step = dg.data_parallel(dg.value_and_grad(in_distgrad.gpt), shards=workers)
    seconds: dict[str, float] = {}

    def timed(name: str, run: Any) -> Any:
        start = time.perf_counter()
        made = run()
        seconds[name] = time.perf_counter() - start
        return made

    body = timed("build", lambda: step.prepared(params, *batch)[0].body)
    lowered = timed("lower", lambda: lower(body.outputs, body.declared, body.effects))
    program = timed("improve", lambda: improve(lowered, Context(evaluate)))
    plan = timed("partition", lambda: partition(program, cluster(workers), Options(cpus_per_task=1)))
    said = plan.predictions
    return {
        "workers": workers,
        "seconds": seconds,
        "total": sum(seconds.values()),
        "steps": len(plan.program.steps),
        "tasks": len(plan.tasks),
        "predicted": said.seconds,
        "work": said.work_seconds,
        "moved": said.bytes_moved,
        "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def measure_apart(workers: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "cluster_peers.paper", str(workers)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).resolve().parents[1])
    if done.returncode:
        said = done.stderr.strip().splitlines()
        raise RuntimeError(f"planning for {workers} workers failed: {said[-1] if said else 'no reason given'}")
    row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return row


PARTS = ("build", "lower", "improve", "partition")


def print_head() -> None:
    print("\nscale: gpt gradients, a batch of 8 x 128 tokens per worker, on paper")
    parts = "".join(f"{part + ' s':>13}" for part in PARTS)
    print(f"{'workers':>9}{parts}{'total s':>10}{'steps':>11}{'tasks':>8}", end="")
    print(f"{'step s':>9}{'of ideal':>10}{'moved GB':>10}{'peak MB':>9}")


def print_row(row: dict[str, Any]) -> None:
    cells = "".join(f"{row['seconds'][part]:>13.2f}" for part in PARTS)
    print(f"{row['workers']:>9,}{cells}{row['total']:>10.1f}{row['steps']:>11,}{row['tasks']:>8,}", end="")
    ideal = row["work"] / row["workers"] / row["predicted"]
    print(f"{row['predicted']:>9.3f}{ideal:>10.0%}{row['moved'] / 1e9:>10.1f}{row['memory'] / 1e6:>9,.0f}")


if __name__ == "__main__":
    print(json.dumps(measure(int(sys.argv[1]))))
