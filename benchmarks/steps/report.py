"""Prints the tables and the verdicts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .bars import Row, Table, Tables, Verdict, best, ratio
from .client import FRAMEWORKS

ABOUT = {
    "mlp": "batch 256, 784-1024-1024-10, relu",
    "gpt": "4 layers of width 256, 8 x 128 tokens",
    "gpt-numpy": "the same model in plain NumPy: its own layer norm, gelu, softmax and cross entropy",
    "gpt2": "training of GPT-2 small, 2 x 256 tokens, with Adam; the products are those of the gradients",
    "elementwise": "a chain of tanh, exp, log1p over 4,000,000 elements",
    "conv": "residual blocks of 32, 64, 128 channels on 32 images of 32 x 32",
    "small": "about 2,000 ops on 16 elements",
    "call": "a cached call of ten ops on 16 elements; the products are the same ten ufuncs",
}


#: Share of the cores that other processes may use before a table says so.
QUIET = 0.05


def print_table(workload: str, table: Table, busy: float | None) -> None:
    print(f"\n{workload}: {ABOUT[workload]}")
    print(f"{'':34}{'ms':>10}{'least ms':>11}{'/ best peer':>13}{'/ products':>12}{'peak MB':>10}{'first s':>9}")
    peer, products = best(table, "seconds"), best(table, "seconds", ("numpy",))
    for name, row in table.items():
        title = f"{FRAMEWORKS[name].title:34}"
        print(title + (f"  not available: {row.error}" if row.error else _cells(row, peer, products)))
    if "distgrad" in table:
        _print_predictions(table["distgrad"])
    if busy is not None and busy > QUIET:
        print(f"  noisy: between the rounds other processes used {busy:.0%} of the cores")


def _cells(row: Row, peer: float | None, products: float | None) -> str:
    cells = (
        (10, _scaled(row.seconds, 1e3, 3)),
        (11, _scaled(row.least, 1e3, 3)),
        (13, _scaled(ratio(row.seconds, peer), 1, 2)),
        (12, _scaled(ratio(row.seconds, products), 1, 2)),
        (10, _scaled(row.peak, 1e-6, 1)),
        (9, _scaled(row.first, 1, 2)),
    )
    return "".join(f"{text:>{width}}" for width, text in cells)


def _print_predictions(row: Row) -> None:
    predicted = row.predicted or {}
    for what, key, measured, scale, unit in (
        ("time", "seconds", row.seconds, 1e3, "ms"),
        ("peak memory", "peak_bytes", row.peak_of_step, 1e-6, "MB"),
    ):
        said, was = _scaled(predicted.get(key), scale, 1), _scaled(measured, scale, 1)
        print(f"  distgrad's {what}: predicted {said} {unit}, measured {was} {unit}")


def _scaled(value: float | None, scale: float, digits: int) -> str:
    return "-" if value is None else f"{value * scale:,.{digits}f}"


def print_gemms(workload: str, rows: Sequence[dict[str, Any]]) -> None:
    total = sum(row["seconds"] for row in rows)
    print(f"\n{workload}: its matrix products in NumPy, {total * 1e3:.1f} ms")
    print(f"{'':22}{'batch':>6}{'m':>8}{'k':>8}{'n':>8}{'stored':>8}{'times':>7}{'ms':>9}{'share':>8}{'Gflop/s':>9}")
    for row in rows:
        shape = "".join(f"{row[key]:>{width}}" for key, width in (("batch", 6), ("m", 8), ("k", 8), ("n", 8)))
        stored = ("t" if row["a_transposed"] else "n") + ("t" if row["b_transposed"] else "n")
        seconds = row["seconds"]
        figures = f"{seconds * 1e3:>9.2f}{seconds / total:>8.1%}{row['flops'] / seconds / 1e9:>9.1f}"
        print(f"{row['name']:22}{shape}{stored:>8}{row['times']:>7}{figures}")


def print_verdicts(verdicts: Sequence[Verdict]) -> None:
    print(f"\n{'bars':62}{'measured':>10}{'at most':>10}")
    for verdict in verdicts:
        said = {True: "reached", False: "MISSED", None: "not judged"}[verdict.reached]
        print(f"{verdict.what:62}{verdict.value:>10}{verdict.limit:>10}  {said}")
    missed = [verdict.what for verdict in verdicts if verdict.reached is False]
    print(f"\n{len(missed)} of {len(verdicts)} bars missed" + "".join(f"\n  {what}" for what in missed))


def as_json(tables: Tables, verdicts: Sequence[Verdict], settings: dict[str, Any]) -> dict[str, Any]:
    rows = {workload: {name: row.plain() for name, row in table.items()} for workload, table in tables.items()}
    return {"settings": settings, "workloads": rows, "verdicts": [verdict._asdict() for verdict in verdicts]}
