"""Plays scenes of faults, each in a process of its own with its own Ray, and judges them.

Each must give the right result or one clear error in time, and leave nothing behind. Prints a line for each: its name,
seconds, what came of it, and what was left over. The exit code is 1 where one failed.

    python -m tests.faults.scenes_all
    python -m tests.faults.scenes_all --only stopped            those whose names have this in them
    python -m tests.faults.scenes_all --list
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from .apart import Apart, can_mount, end_on_signal
from .more import cpus, full, interrupts, killed, sessions, stopped
from .more.stage import SCENES, Scene, Stage

MODULES = (full, stopped, killed, sessions, interrupts, cpus)
#: Where a scene finds its folder.
FOLDER = "DISTGRAD_SCENE_FOLDER"


class Verdict(NamedTuple):
    """What came of a scene: what was wrong, what it said, what was left over, and the error output's last lines."""

    name: str
    seconds: float
    wrong: list[str]
    facts: list[dict[str, Any]]
    left: list[str]
    tail: str


def main() -> int:
    args = _arguments()
    if args.play:
        _play(SCENES[args.play])
        return 0
    end_on_signal()
    wanted = [s for s in SCENES.values() if any(part in s.name for part in args.only or [""])]
    if args.list:
        print("\n".join([s.name for s in wanted]))
        return 0
    mounts, failed = can_mount(), []
    for s in wanted:
        if s.disks and not mounts:
            print(f"{s.name:<44}       skipped: this machine lets nobody mount a small file system", flush=True)
            continue
        verdict = judged(s)
        _print(verdict, args.verbose)
        if verdict.wrong:
            failed.append(s.name)
    print(f"{len(wanted) - len(failed)} of {len(wanted)} scenes as they should be")
    if failed:
        print("failed:", ", ".join(failed))
    return 1 if failed else 0


def judged(s: Scene) -> Verdict:
    """Play a scene in a process of its own, and judge."""
    apart = Apart(s.disks, {FOLDER: "{folder}", **s.env})
    start = time.monotonic()
    try:
        apart.start("-m", "tests.faults.scenes_all", "--play", s.name)
        code = apart.wait(s.limit)
        seconds = time.monotonic() - start
        left = apart.leftovers(s.gone) if code is not None else []
        facts = _facts(apart.folder / "facts")
        wrong = [f"{fact['what']}: {fact['wrong']}" for fact in facts if fact["wrong"]]
        if code is None:
            wrong.append(f"hung for {s.limit:g} s after: {facts[-1]['what'] if facts else 'nothing'}")
        elif code not in s.codes:
            wrong.append(f"ended with {code}")
        if left:
            wrong.append(f"{len(left)} processes left over")
        return Verdict(s.name, seconds, wrong, facts, left, apart.tail(40))
    finally:
        apart.end()


def _play(s: Scene) -> None:
    faulthandler.dump_traceback_later(s.limit - 5)  # where it hangs
    s.play(Stage(Path(os.environ[FOLDER])))
    faulthandler.cancel_dump_traceback_later()


def _facts(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _print(verdict: Verdict, verbose: bool) -> None:
    outcome = "; ".join(verdict.wrong) or _last(verdict.facts)
    left = f"  left: {', '.join(verdict.left)}" if verdict.left else ""
    mark = "FAILED" if verdict.wrong else "ok"
    print(f"{verdict.name:<44}{verdict.seconds:>6.1f} s  {mark:<7}{outcome}{left}", flush=True)
    if verbose:
        for fact in verdict.facts:
            within = f" of {fact['within']:.0f} s" if fact["within"] else ""
            print(f"    {fact['seconds']:6.1f}{within}  {fact['what']}  {fact['wrong'] and 'WRONG: ' + fact['wrong']}")
        if verdict.wrong:
            print("\n".join([f"    | {line}" for line in verdict.tail.splitlines()]), flush=True)


def _last(facts: list[dict[str, Any]]) -> str:
    """What came of it, in a few words: the first error, or how many calls were right."""
    errors = [fact["what"] for fact in facts if "Error: " in fact["what"] or "Failed: " in fact["what"]]
    return errors[0][:110] if errors else f"{len(facts)} right"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=lambda text: text.split(","), help="parts of names, with commas between")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--verbose", action="store_true", help="also tell what each scene did, and its error output")
    parser.add_argument("--play", choices=SCENES, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
