"""Time and memory of one gradient step, and of calling a function, next to JAX, torch and TensorFlow, in one run.

Every framework has its own environment and, for each workload, its own process. The processes take turns, round by
round, and only one computes at a time, so that noise of the machine affects all. All use the same number of threads and
the same inputs, and all must give distgrad's loss and gradients. The figures are medians of the rounds; "products" are
the same matrix products by plain NumPy. distgrad's predictions use rates measured in the same run, just before each
workload. The exit code is 1 if a target is missed.

    make bench-step
    make bench-step ARGS="--only mlp,gpt --frameworks distgrad,torch,tf --rounds 25"
    make bench-step ARGS="--only gpt2 --frameworks distgrad,numpy,torch --rounds 5"     8 GB of memory
    make bench-step ARGS="--gemms --json step.json"
    python benchmarks/step.py --python torch=/opt/torch/bin/python --frameworks distgrad,torch
    python benchmarks/step.py --frameworks distgrad --other ../before     two checkouts; "difference" 0 is the same bits
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from steps import bars, inputs, report, server, timing
from steps.client import FRAMEWORKS, PYTHONS, ROOT, Client, NotAvailable

#: Seconds between two turns: threads of BLAS, OpenMP and XLA keep spinning for up to 100 ms after their work.
PAUSE = 0.15


def main() -> None:
    args = arguments()
    if args.serve:
        server.serve(args.serve, args.variant, args.threads)
        return
    tables: dict[str, dict[str, bars.Row]] = {}
    busy: dict[str, float | None] = {}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["DISTGRAD_CACHE"] = folder
        for workload in args.only:
            calibrate(args)
            tables[workload], busy[workload] = measure(workload, args, Path(folder))
            report.print_table(workload, tables[workload], busy[workload])
            if args.gemms:
                print_gemms(workload, args, Path(folder))
    verdicts = bars.judge(tables)
    report.print_verdicts(verdicts)
    if args.json:
        settings = {"threads": args.threads, "rounds": args.rounds, "python": args.python, "cores_used": busy}
        Path(args.json).write_text(json.dumps(report.as_json(tables, verdicts, settings), indent=1))
    sys.exit(any(verdict.reached is False for verdict in verdicts))


def calibrate(args: argparse.Namespace) -> None:
    """Measure the rates of the machine as it is now; all that is started inherits where they are kept."""
    progress("calibrating")
    command = [args.python["distgrad"], "-m", "distgrad", "calibrate", "--force", "--threads", str(args.threads)]
    subprocess.run(command, check=True, capture_output=True, cwd=ROOT)


def measure(workload: str, args: argparse.Namespace, folder: Path) -> tuple[dict[str, bars.Row], float | None]:
    """The rows, and the share of the cores that others used: start and load all, then ask them in turn."""
    rows: dict[str, bars.Row] = {}
    busy: list[float] = []
    with ExitStack() as stack:
        clients: dict[str, Client] = {}
        for name in args.frameworks:
            progress(f"{workload}: {name} starts")
            try:
                clients[name] = stack.enter_context(start(name, args, folder))
                rows[name] = load(clients[name], workload, folder / f"{name}.npz")
            except NotAvailable as e:
                rows[name] = bars.Row(error=str(e))
                clients.pop(name, None)
        compare(rows, folder)
        for i in range(args.rounds):
            progress(f"{workload}: round {i + 1} of {args.rounds}")
            take_turns(rows, clients, i)
            time.sleep(PAUSE)
            busy += [used for used in [timing.cores_used(PAUSE)] if used is not None]
    kept = {name: row for name, row in rows.items() if name != "numpy" or not row.error}
    return kept, statistics.mean(busy) if busy else None


def load(client: Client, workload: str, save: Path) -> bars.Row:
    return bars.Row(**client.ask("load", workload=workload, save=str(save)), versions=client.versions)


def take_turns(rows: dict[str, bars.Row], clients: dict[str, Client], first: int) -> None:
    """One round, each time begun by another framework."""
    names = list(clients)
    for k in range(len(names)):
        name = names[(first + k) % len(names)]
        row = rows[name]
        time.sleep(PAUSE)
        try:
            row.rounds.append(clients[name].ask("turn")["seconds"])
            row.seconds = statistics.median(row.rounds)
        except NotAvailable as e:
            row.error = str(e)
            del clients[name]


def start(name: str, args: argparse.Namespace, folder: Path) -> Client:
    framework, root = FRAMEWORKS[name], Path(args.other) if name == "other" else ROOT
    return Client(framework, args.python[framework.environment], args.threads, folder / f"{name}.log", root)


def compare(rows: dict[str, bars.Row], folder: Path) -> None:
    """The first step's loss and gradients of each framework beside those of the first that has any."""
    have = {name: _arrays(folder / f"{name}.npz") for name, row in rows.items() if not row.error}
    have = {name: arrays for name, arrays in have.items() if arrays}
    for name, arrays in have.items():
        rows[name].difference = difference(next(iter(have.values())), arrays)


def difference(ours: list[Any], theirs: list[Any]) -> float:
    if [x.shape for x in ours] != [x.shape for x in theirs]:
        return float("inf")
    pairs = zip(ours, theirs, strict=True)
    return max(float(np.max(np.abs(a - b)) / (np.max(np.abs(a)) + 1e-30)) for a, b in pairs)


def _arrays(path: Path) -> list[Any]:
    with np.load(path) as made:
        return list(made.values())


def print_gemms(workload: str, args: argparse.Namespace, folder: Path) -> None:
    with start("numpy", args, folder) as client:
        found = client.ask("gemms", workload=workload)["gemms"]
    if found:
        report.print_gemms(workload, found)


def progress(text: str) -> None:
    print(f"\r{text:60}", end="", file=sys.stderr, flush=True)
    if not sys.stderr.isatty():
        print(file=sys.stderr)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    usual = [name for name in inputs.MAKERS if name not in inputs.TRAINING]
    parser.add_argument("--only", type=_names(inputs.MAKERS), default=usual,
                        help=f"workloads, by comma; without it, all but {', '.join(inputs.TRAINING)}")  # fmt: skip
    peers = [name for name in FRAMEWORKS if name != "other"]
    parser.add_argument("--frameworks", type=_names(peers), default=peers, help="rows, by comma")
    parser.add_argument("--other", metavar="CHECKOUT", help="another checkout of distgrad, with a .venv of its own")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=2, help="of every framework")
    parser.add_argument("--python", action="append", type=_python, default=[], metavar="ENVIRONMENT=PATH",
                        help=f"the Python of an environment: {', '.join(PYTHONS)}")  # fmt: skip
    parser.add_argument("--gemms", action="store_true", help="list the matrix products with their shares of the time")
    parser.add_argument("--json", metavar="FILE", help="write everything measured")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--variant", default="", help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.python = PYTHONS | dict(args.python)
    if args.other:
        args.frameworks.append("other")
        args.python["other"] = str(Path(args.other).resolve() / ".venv/bin/python")
    return args


def _names(known: Any) -> Any:
    def names(text: str) -> list[str]:
        wanted = text.split(",")
        for name in wanted:
            if name not in known:
                raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(known)}")
        return [name for name in known if name in wanted]

    return names


def _python(text: str) -> tuple[str, str]:
    name, _, path = text.partition("=")
    if name not in PYTHONS or not path:
        raise argparse.ArgumentTypeError(f"{text!r} is not ENVIRONMENT=PATH with one of {', '.join(PYTHONS)}")
    return name, path


if __name__ == "__main__":
    main()
