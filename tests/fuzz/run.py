"""Spoil good calls and look at what comes of it.

    python -m tests.fuzz.run --calls 20000 --seed 1

A call must end within seconds, with a result or with an error that a user can act on: of a class that says whose
mistake it is, with a text that is not just Python's or NumPy's own about an object deep inside.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import resource
import signal
import sys
import traceback
import warnings
from collections import Counter
from typing import Any, NamedTuple

import numpy as np

import distgrad as dg
from distgrad import nest
from distgrad.ops import builder
from distgrad.types import brief

from . import junk
from .examples import Example, others, parameters, recorded, sandbox

SECONDS = 20
#: The process may not take more; and arrays are refused as on a machine that has so little.
LIMIT, MEMORY = 12 << 30, 1 << 28
ALLOWED = (
    TypeError, ValueError, OverflowError, NotImplementedError, MemoryError, RuntimeError, OSError, FloatingPointError,
)  # fmt: skip
#: Documented: names that are not there, types that are registered already, gradients that nobody wrote.
LOOKUPS = {
    KeyError: re.compile(r"RegisterGradient|no_gradient|^op$|Graph\.get_"),
    IndexError: re.compile(r"__getitem__|getitem|item|take|gather|scatter|segment|numpy"),
    AssertionError: re.compile(r"check_grads"),
}
#: How Python and NumPy begin, when they speak of an object deep inside and not of a call.
BARE = re.compile(
    "|".join(
        [
            r"^'[\w.]+' object", r"^unsupported operand", r"has no attribute", r"is not iterable$",
            r"is not subscriptable", r"has no len\(\)$", r"^unhashable", r"^(list|tuple|string) ind", r"^bad operand",
            r"^'[<>=]+' not supported", r"^cannot unpack", r"values to unpack", r"^invalid literal",
            r"^(int|float|bool|len|range|zip)\(\) arg", r"^could not convert", r"^expected str", r"^embedded null",
            r"^maximum recursion", r"must be (real number|str|int|a string), not", r"^an integer is required",
            r"^argument of type", r"^list\.remove", r"^object of type", r"^only integer", r"^only length-1",
            r"^setting an array element", r"^index \d+ is out", r"^math domain", r"^integer division",
            r"^Exceeds the limit",
        ]
    )
)  # fmt: skip


class Hang(BaseException):
    """A call took too long."""


class Finding(NamedTuple):
    """What came of a call that should not."""

    name: str
    what: str
    call: str
    trace: str


def _ring(*_: Any) -> None:
    raise Hang


def spoil(rng: random.Random, f: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The arguments of a good call with one thing wrong, sometimes more."""
    made, named = list(args), dict(kwargs)
    kind = rng.random()
    if kind < 0.05:
        return [junk.some(rng) for _ in args], named
    if kind < 0.08:
        return made[: rng.randrange(len(made) + 1)], named
    if kind < 0.11:
        return [*made, junk.some(rng)], named
    if kind < 0.25 and (extra := parameters(f)):
        return made, named | {rng.choice(extra): junk.some(rng)}
    places: list[Any] = [*range(len(made)), *named]
    if places:
        place = rng.choice(places)
        holder: Any = made if isinstance(place, int) else named
        holder[place] = inside(rng, holder[place]) if rng.random() < 0.3 else junk.some(rng)
    return made, named


def inside(rng: random.Random, x: Any) -> Any:
    """A list or a mapping with one thing in it wrong."""
    if isinstance(x, list | tuple) and x and type(x) in (list, tuple):
        made = list(x)
        made[rng.randrange(len(made))] = junk.some(rng)
        return type(x)(made)
    if type(x) is dict and x:
        key = rng.choice([*x]) if rng.random() < 0.8 else junk.some(rng)
        return x | {key: junk.some(rng)}
    return junk.some(rng)


def as_tensors(args: Any) -> Any:
    return [dg.constant(x) if isinstance(x, np.ndarray) and x.dtype.kind in "biufc" else x for x in args]


def call(rng: random.Random, example: Example) -> tuple[Any, str]:
    """One spoilt call, in a graph or outside; what it gave, and how it was written."""
    f, args, kwargs = example.make()
    try:
        args, kwargs = spoil(rng, f, args, kwargs)
    except TypeError:  # junk that cannot be a key
        args, kwargs = [junk.some(rng)], {}
    given = [*(brief(a, 60) for a in args), *(f"{k}={brief(v, 60)}" for k, v in kwargs.items())]
    shown = f"{example.name}({', '.join(given)})"
    try:
        if example.where != "outside" and rng.random() < 0.5:
            with dg.Graph():
                result = f(*as_tensors(args), **kwargs)
                tensors = [t for t in nest.flatten(result) if isinstance(t, dg.Tensor)]
            if tensors and rng.random() < 0.5 and sum(np.prod(t.shape, dtype=float) for t in tensors) < 1e6:
                dg.Session().run(tensors)
        elif example.where != "outside" and rng.random() < 0.3:
            dg.function(lambda: [f(*as_tensors(args), **kwargs), None][1])()
            result = None
        else:
            result = f(*args, **kwargs)
        return result, shown
    except BaseException as e:
        e.shown = shown  # type: ignore[attr-defined]
        raise


def verdict(name: str, e: BaseException) -> str | None:
    """What is wrong with an error; None where it is as it should be."""
    text = str(e)
    if isinstance(e, Hang):
        return "hang"
    for kind, names in LOOKUPS.items():
        if isinstance(e, kind) and not isinstance(e, ALLOWED):
            return None if names.search(name) else kind.__name__
    if type(e) is LookupError and len(text) > 20:
        return None
    if isinstance(e, RecursionError) or not isinstance(e, ALLOWED):
        return type(e).__name__
    if not text and not isinstance(e, MemoryError):
        return f"{type(e).__name__} without a text"
    told = any("distgrad" in note for note in getattr(e, "__notes__", ()))  # while running: by which op, at which line
    if BARE.search(text) and not told and name != "numpy":  # without a tensor, NumPy answers itself
        return f"{type(e).__name__} in bare words: {text[:100]}"
    return None


def fuzz(calls: int, seed: int, only: str = "") -> tuple[Counter[str], list[Finding]]:
    rng = random.Random(seed)
    examples = [e for e in [*recorded(), *others()] if only in e.name]
    by_name: dict[str, list[Example]] = {}
    for example in examples:
        by_name.setdefault(example.name, []).append(example)
    outcomes: Counter[str] = Counter()
    findings: list[Finding] = []
    names = sorted(by_name)
    signal.signal(signal.SIGALRM, _ring)
    for i in range(calls):
        example = rng.choice(by_name[names[i % len(names)]])  # every function as often as every other
        signal.setitimer(signal.ITIMER_REAL, SECONDS)
        try:
            call(rng, example)
            outcomes["result"] += 1
        except BaseException as e:
            signal.setitimer(signal.ITIMER_REAL, 0)
            if isinstance(e, KeyboardInterrupt):
                raise
            outcomes[type(e).__name__] += 1
            wrong = verdict(example.name, e)
            if wrong:
                trace = "".join(traceback.format_tb(e.__traceback__)[-4:])
                findings.append(Finding(example.name, wrong, getattr(e, "shown", "?"), trace))
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    return outcomes, findings


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="functions with this in their name")
    parser.add_argument("--trace", action="store_true", help="show where findings come from")
    chosen = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (LIMIT, LIMIT))
    warnings.simplefilter("ignore")
    os.chdir(sandbox())
    builder._memory = lambda: MEMORY  # type: ignore[assignment]
    outcomes, findings = fuzz(chosen.calls, chosen.seed, chosen.only)
    for name, count in outcomes.most_common():
        print(f"{count:8,}  {name}")
    groups: dict[tuple[str, str], list[Finding]] = {}
    for found in findings:
        groups.setdefault((found.name, re.sub(r"\d+", "N", found.what)[:70]), []).append(found)
    for (name, what), group in sorted(groups.items()):
        print(f"{len(group):4} x {name}: {what}\n       {group[0].call[:200].encode(errors='replace').decode()}")
        if chosen.trace:
            print(group[0].trace.encode(errors="replace").decode())
    print(f"{sum(outcomes.values()):,} calls, {len(findings)} findings in {len(groups)} groups (seed {chosen.seed})")
    return bool(findings)


if __name__ == "__main__":
    sys.exit(main())
