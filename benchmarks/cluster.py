"""Gradients on several processes: distgrad on Ray next to torch's DistributedDataParallel and hand-written Ray code.

    gpt     gradients of a small language model on 2 workers of one thread each, next to DistributedDataParallel on
            gloo with 2 processes, the same work as a hand-written Ray program, and the local engine with 2 threads
    tree    the sum of eight arrays of 32 MB in the object store, next to pairwise Ray tasks
    tasks   a plan of 1,000 tasks that do nothing, next to Ray's own cost for such tasks
    scale   planning gpt for up to 4,096 workers, without running it

All rows take turns, round by round, and only one computes at a time, so that noise of the machine affects all. The
figures are medians of the rounds. All rows must give the same numbers. The exit code is 1 if a target is missed.

    make bench-cluster
    make bench-cluster ARGS="--only gpt,tree --rounds 25 --json cluster.json"
    python benchmarks/cluster.py --python torch=/opt/torch/bin/python
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from cluster_peers import bars, on_ray, paper
from step import PAUSE, _arrays, _names, _python, difference, progress
from steps import report, timing
from steps.bars import Row, Verdict
from steps.client import FRAMEWORKS, PYTHONS, Client, Framework, NotAvailable

from distgrad.workers.tools import calibrate

SECTIONS = ("gpt", "tree", "tasks", "scale")
ABOUT = {
    "gpt": "4 layers of width 256, 8 x 128 tokens, 2 shards; loss and 15 MB of gradients",
    "tree": f"the sum of {on_ray.TERMS} arrays of {on_ray.TERM_BYTES >> 20} MB that lie in the store",
    "tasks": f"{on_ray.TASKS:,} tasks that do nothing, each with two results",
}
#: Rows that run in their own process: framework and threads by name.
APART = {
    "gpt": {
        "ddp": (Framework("torch DDP on gloo, 2 x 1 thread", "torch", "cluster_peers.ddp"), 2),
        "local": (FRAMEWORKS["distgrad"]._replace(title="distgrad, local engine, 2 threads"), 2),
    }
}

RUNS = {"gpt": on_ray.gpt, "tree": on_ray.tree, "tasks": on_ray.tasks}

Turns = dict[str, Callable[[], float]]


def main() -> None:
    args = arguments()
    calibrate.calibrate(1, progress=progress)  # what predictions go by; kept for the next time
    tables: dict[str, dict[str, Row]] = {}
    titles: dict[str, dict[str, str]] = {}
    verdicts: list[Verdict] = []
    rows: list[dict[str, Any]] = []
    running = [section for section in args.only if section != "scale"]
    if running:
        with on_ray.session(object_store_memory=on_ray.STORE) as two:
            for section in running:
                tables[section], titles[section] = measure(section, two, args)
                print_table(section, tables[section], titles[section])
        verdicts += bars.judge(tables, titles)
    if "scale" in args.only:
        rows, judged = plan_on_paper()
        verdicts += judged
    report.print_verdicts(verdicts)
    if args.json:
        settings = {"rounds": args.rounds, "python": args.python}
        made = report.as_json(tables, verdicts, settings) | {"scale": rows}
        Path(args.json).write_text(json.dumps(made, indent=1))
    sys.exit(any(verdict.reached is False for verdict in verdicts))


# -- measuring ---------------------------------------------------------------------------------------------------


def measure(section: str, two: Any, args: argparse.Namespace) -> tuple[dict[str, Row], dict[str, str]]:
    """The rows and their titles: all are started and run once, then they take turns."""
    rows: dict[str, Row] = {}
    turns: Turns = {}
    with (
        tempfile.TemporaryDirectory() as folder,
        RUNS[section](two) as runs,
        apart(section, args, folder) as clients,
    ):
        titles = {name: run.title for name, run in runs.items()}
        titles |= {name: framework.title for name, (framework, _) in APART.get(section, {}).items()}
        have: dict[str, list[Any]] = {}
        for name, run in runs.items():
            progress(f"{section}: {name} starts")
            rows[name], have[name] = first(run)
            turns[name] = lambda run=run: timing.turn(run.once)  # type: ignore[misc]
        for name, client in clients.items():
            rows[name] = Row(error=client) if isinstance(client, str) else load(client, Path(folder) / f"{name}.npz")
            if isinstance(client, Client):
                have[name] = _arrays(Path(folder) / f"{name}.npz")
                turns[name] = lambda client=client: client.ask("turn")["seconds"]  # type: ignore[misc]
        compare(rows, have)
        for i in range(args.rounds):
            progress(f"{section}: round {i + 1} of {args.rounds}")
            take_turns(rows, turns, i)
    return rows, titles


@contextmanager
def apart(section: str, args: argparse.Namespace, folder: str) -> Iterator[dict[str, Client | str]]:
    """The processes of a section, or why there is none."""
    made: dict[str, Client | str] = {}
    try:
        for name, (framework, threads) in APART.get(section, {}).items():
            progress(f"{section}: {name} starts")
            try:
                python = args.python[framework.environment]
                made[name] = Client(framework, python, threads, Path(folder) / f"{name}.log")
            except NotAvailable as e:
                made[name] = str(e)
        yield made
    finally:
        for client in made.values():
            if isinstance(client, Client):
                client.close()


def first(run: on_ray.Run) -> tuple[Row, list[Any]]:
    start = time.perf_counter()
    made = run.once()
    row = Row(first=time.perf_counter() - start)
    if run.predicted is not None:
        row.predicted = {"seconds": run.predicted}
    return row, [np.array(x) for x in run.arrays(made)] if run.arrays else []


def load(client: Client, save: Path) -> Row:
    return Row(first=client.ask("load", workload="gpt", save=str(save))["first"], versions=client.versions)


def compare(rows: dict[str, Row], have: dict[str, list[Any]]) -> None:
    """Beside the first row's numbers."""
    reference = next(iter(have.values()))
    for name, arrays in have.items():
        if arrays:
            rows[name].difference = difference(reference, arrays)


def take_turns(rows: dict[str, Row], turns: Turns, begin: int) -> None:
    """One round, each time begun by another row."""
    names = list(turns)
    for k in range(len(names)):
        name = names[(begin + k) % len(names)]
        time.sleep(PAUSE)
        row = rows[name]
        try:
            row.rounds.append(turns[name]())
            row.seconds = statistics.median(row.rounds)
        except NotAvailable as e:
            row.error = str(e)
            del turns[name]


def plan_on_paper() -> tuple[list[dict[str, Any]], list[Verdict]]:
    rows: list[dict[str, Any]] = []
    paper.print_head()
    for workers in bars.PLANNED:
        progress(f"scale: planning for {workers} workers")
        rows.append(paper.measure_apart(workers))
        paper.print_row(rows[-1])
    return rows, [bars.judge_planning(row["workers"], row["total"]) for row in rows]


# -- printing ----------------------------------------------------------------------------------------------------


def print_table(section: str, table: dict[str, Row], titles: dict[str, str]) -> None:
    peers = [name for name in ("ddp", "hand", "hand-left") if name in table]
    heads = "".join(f"{'/ ' + name:>12}" for name in peers)
    print(f"\n{section}: {ABOUT[section]}")
    print(f"{'':36}{'ms':>10}{'least ms':>10}{heads}{'predicted':>11}{'first s':>9}")
    for name, row in table.items():
        title = f"{titles[name]:36}"
        print(title + (f"  not available: {row.error}" if row.error else _cells(row, [table[peer] for peer in peers])))
    if section == "tree":
        print(_bandwidth(table))


def _cells(row: Row, peers: list[Row]) -> str:
    ratios = [f"{row.seconds / peer.seconds:.2f}" if row.seconds and peer.seconds else "-" for peer in peers]
    said = f"{row.predicted['seconds'] * 1e3:.1f}" if row.predicted else ""
    figures = "".join(f"{text:>12}" for text in ratios)
    return f"{(row.seconds or 0) * 1e3:>10.1f}{(row.least or 0) * 1e3:>10.1f}{figures}{said:>11}{row.first or 0:>9.2f}"


def _bandwidth(table: dict[str, Row]) -> str:
    """Each term is read once and the sum written once; a copy reads and writes."""
    copied = 2 * on_ray.TERM_BYTES / (table["memcpy"].seconds or 1)
    summed = (on_ray.TERMS + 1) * on_ray.TERM_BYTES / (table["left"].seconds or 1)
    return f"  the sum moves {summed / 1e9:.1f} GB/s, {summed / copied:.0%} of the {copied / 1e9:.1f} GB/s of one copy"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=_names(SECTIONS), default=list(SECTIONS), help="sections, by comma")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--python", action="append", type=_python, default=[], metavar="ENVIRONMENT=PATH",
                        help="the Python that has torch: torch=/path/to/python")  # fmt: skip
    parser.add_argument("--json", metavar="FILE", help="write everything measured")
    args = parser.parse_args()
    args.python = PYTHONS | dict(args.python)
    return args


if __name__ == "__main__":
    main()
