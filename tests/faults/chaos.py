"""Chaos: a training on a cluster of this machine under faults of all kinds, and an undisturbed one.

Prints, for each kind, the number of faults, their cost, and whether the weights equal, bit for bit, those of a training
in one process; and for the undisturbed training, whether the memory of the object store and of every process stays
bounded. The exit code is 1 if not, or if a process is left over.

    python -m tests.faults.chaos                                  1,200 faults
    python -m tests.faults.chaos --quick                          60
    python -m tests.faults.chaos --only SIGKILL,segfault --faults 100
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from .apart import Apart, can_mount, end_on_signal
from .disturbed import Row
from .kinds import KINDS, SMALL, SPILL

#: Seconds per fault and base seconds after which the training of one kind of faults counts as hung.
SECONDS_PER_FAULT, BASE_TIMEOUT = 30.0, 300.0
#: Seconds in which all processes of a cluster must be gone after its driver.
GONE = 20.0


def main() -> int:
    end_on_signal()
    args = _arguments()
    counts = _counts(args)
    start, rows, left = time.monotonic(), [], []
    for names in ([n for n in counts if n not in SMALL], [n for n in counts if n in SMALL]):
        while names:  # the process may die of a fault: the kinds after it have another one
            done, found = _play({name: counts[name] for name in names}, args.seed)
            rows += done
            left += found
            names = names[len(done) :]
    _print_rows(rows, time.monotonic() - start)
    fine = all(row.same and not row.error for row in rows) and not left
    for row in rows:
        if row.error:
            print(f"{row.kind}: {row.error}")
    if left:
        print(f"left over: {', '.join(left)}")
    if args.steps:
        fine = _left_alone(args.steps) and fine
    return 0 if fine else 1


def _play(counts: dict[str, int], seed: int) -> tuple[list[Row], list[str]]:
    """The rows of these kinds, as far as their process came, and what it left over."""
    small = any(name in SMALL for name in counts)
    if small and not can_mount():
        return [Row(name, error="this machine lets nobody mount a small file system") for name in counts], []
    wanted = [f"{name}={count}" for name, count in counts.items()]
    apart = Apart(disks={"spill": SPILL} if small else None)
    orders = apart.folder / "orders"
    orders.mkdir()
    spill = str(apart.folder / "spill") if small else ""
    apart.start("-m", "tests.faults.disturbed", str(apart.folder / "rows"), str(orders), str(seed), spill, *wanted)
    try:
        return _followed(apart, list(counts), counts)
    finally:
        apart.end()


def _followed(apart: Apart, names: Sequence[str], counts: dict[str, int]) -> tuple[list[Row], list[str]]:
    rows: list[Row] = []
    since = time.monotonic()
    while apart.wait(1.0) is None:
        if time.monotonic() >= since + BASE_TIMEOUT + SECONDS_PER_FAULT * counts[names[len(rows)]]:
            break
        found = _read(apart.folder / "rows")
        if len(found) > len(rows):
            since = time.monotonic()
            for row in found[len(rows) :]:
                print(f"{row.kind}: {row.faults} faults in {row.seconds:.0f} s", file=sys.stderr)
        rows = found
        if len(rows) == len(names):
            break
    code = apart.wait(BASE_TIMEOUT if len(rows) == len(names) else 0.1)
    rows = _read(apart.folder / "rows")
    if len(rows) < len(names):
        what = "it hung" if code is None else f"its process ended with {code}"
        rows.append(Row(names[len(rows)], error=f"{what}; the last it said:\n{apart.tail()}"))
    return rows, [] if code is None else apart.leftovers(GONE)


def _read(path: Path) -> list[Row]:
    lines = path.read_text().splitlines() if path.exists() else []
    return [Row(**json.loads(line)) for line in lines]


def _left_alone(steps: int) -> bool:
    print(f"\na training of {steps} steps that is left alone", file=sys.stderr)
    apart = Apart()
    apart.start("-m", "tests.faults.memory", str(steps))
    try:
        code = apart.wait(BASE_TIMEOUT + steps)
        print(apart.out.read_text(), end="")
        return code == 0
    finally:
        apart.end()


# -- what is printed ---------------------------------------------------------------------------------------------

_HEADS = (
    "kind", "faults", "tasks again", "values lost", "runs replayed", "steps", "repeated", "seconds", "per fault",
    "same bits",
)  # fmt: skip


def _print_rows(rows: Sequence[Row], seconds: float) -> None:
    print("".join([f"{head:>14}" for head in _HEADS]))
    for row in rows:
        print(_line(row, _per_fault(row), "yes" if row.same else "NO"))
    total = Row("total", **{name: sum([getattr(row, name) for row in rows]) for name in _summed()})
    same = "yes" if all(row.same for row in rows) else "NO"
    print(_line(total, "", same), f"\n{total.faults:,} faults in {seconds / 60:.1f} minutes")


def _summed() -> list[str]:
    return [f.name for f in fields(Row) if f.name not in ("kind", "same", "error", "quiet")]


def _per_fault(row: Row) -> str:
    """What a fault cost beyond the steps themselves; where nodes come first, with what that takes."""
    return f"{(row.seconds - row.steps * row.quiet) / row.faults:.2f} s" if row.faults else ""


def _line(row: Row, cost: str, same: str) -> str:
    cells = (
        row.kind, row.faults, row.again, row.lost, row.replayed, row.steps, row.repeated, f"{row.seconds:.1f}", cost,
        same,
    )  # fmt: skip
    return "".join([f"{cell:>14}" for cell in cells])


def _counts(args: argparse.Namespace) -> dict[str, int]:
    kinds = [KINDS[name] for name in args.only] if args.only else list(KINDS.values())
    counts = {kind.name: kind.few if args.quick else kind.count for kind in kinds}
    whole = sum(counts.values())
    if args.faults is None:
        return counts
    return {name: max(round(count * args.faults / whole), 1) for name, count in counts.items()}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few faults of each kind, nothing left alone")
    parser.add_argument("--only", type=_names, help=f"kinds, with commas between: {', '.join(KINDS)}")
    parser.add_argument("--faults", type=int, help="how many in all, shared among the kinds")
    parser.add_argument("--steps", type=int, help="of the training that is left alone; 0 for none")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if args.steps is None:
        args.steps = 0 if args.quick or args.only else 500
    return args


def _names(text: str) -> list[str]:
    names = text.split(",")
    unknown = [name for name in names if name not in KINDS]
    if unknown:
        raise argparse.ArgumentTypeError(f"there is no kind {unknown[0]!r}: {', '.join(KINDS)}")
    return names


if __name__ == "__main__":
    sys.exit(main())
