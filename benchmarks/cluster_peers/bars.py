"""The targets on clusters, and the verdicts on the measurements."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from steps.bars import DIFFERENCE, Row, Verdict, ratio


class Bar(NamedTuple):
    """In `section`, the row `of` may take at most `limit` times the row `peer`."""

    section: str
    of: str
    peer: str
    limit: float


#: DistributedDataParallel leaves the gradients in its processes, so it is compared with gradients left in the store;
#: the hand-written program fetches them, so it is compared with fetched gradients.
TIME = (
    Bar("gpt", "left", "ddp", 1.25),
    Bar("gpt", "fetched", "hand", 1.0),
    Bar("gpt", "left", "hand-left", 1.0),
    Bar("tree", "left", "hand-left", 0.5),
    Bar("tree", "fetched", "hand", 0.5),
    Bar("tasks", "left", "hand", 1.3),
)
#: The rows with 1 and 2 workers.
PREDICTED = ("one", "left")
WITHIN = 0.30
#: Numbers of workers to plan for, and the seconds that planning each may take.
PLANNED = (8, 64, 512, 4096)
PLANNED_SECONDS = 60.0

Tables = Mapping[str, Mapping[str, Row]]


def judge(tables: Tables, titles: Mapping[str, Mapping[str, str]]) -> list[Verdict]:
    found = [
        Verdict(f"{section}: {titles[section][name]} gives the same numbers", f"{row.difference:.1g}", "1e-03", False)
        for section, table in tables.items()
        for name, row in table.items()
        if row.difference is not None and not row.difference <= DIFFERENCE  # NaN is not
    ]
    for bar in TIME:
        if bar.section in tables:
            found.append(_compared(bar, tables[bar.section], titles[bar.section]))
    return found + _predictions(tables.get("gpt", {}), titles.get("gpt", {}))


def _compared(bar: Bar, table: Mapping[str, Row], titles: Mapping[str, str]) -> Verdict:
    value = ratio(table[bar.of].seconds, table[bar.peer].seconds)
    reached = False if table[bar.of].error else None if value is None else value <= bar.limit
    what = f"{bar.section}: {titles[bar.of]} / {titles[bar.peer]}"
    return Verdict(what, "-" if value is None else f"{value:.2f}", f"{bar.limit:g}", reached)


def _predictions(table: Mapping[str, Row], titles: Mapping[str, str]) -> list[Verdict]:
    found = []
    for name in PREDICTED:
        row = table.get(name, Row())
        value = ratio((row.predicted or {}).get("seconds"), row.seconds)
        if value is not None:
            what = f"gpt: {titles[name]}: predicted / measured"
            found.append(Verdict(what, f"{value:.2f}", f"1 +- {WITHIN:g}", abs(value - 1) <= WITHIN))
    return found


def judge_planning(workers: int, seconds: float) -> Verdict:
    what = f"scale: seconds to plan for {workers:,} workers"
    return Verdict(what, f"{seconds:.1f}", f"{PLANNED_SECONDS:g}", seconds <= PLANNED_SECONDS)
