"""The two phases of a call that writes variables, on the local engine.

The first phase is all that can fail, and writes to fresh memory. The second one is built-in elementwise code, which
cannot fail: it writes new values of variables over the old ones, so that a call is a transaction without two copies of
all state. `second_phase` says which steps of a program are in it, and which variables keep two versions and why.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from distgrad.registry import OPS, Kind, View, kind_of, view_of
from distgrad.scheduler.passes.fuse import SMALL
from distgrad.scheduler.program import FUSED, Program, Step

NOT_ELEMENTWISE = "its new value is not computed from the old one by built-in elementwise code"
TOO_SMALL = f"it has fewer than {SMALL:,} elements"
FETCHED = "its new value is a result of the call"
USED = "the call goes on to compute with its new value, or with what that is computed from"
TWICE = "another variable gets the same value"
READ = "another update reads its old value"
NO_CODE = "native code has no rule for its update"


@dataclass(frozen=True, slots=True)
class Updates:
    """The second phase of a plan."""

    #: Indices into program.steps: fused steps that run when all others are done.
    steps: tuple[int, ...] = ()
    #: Keys of the variables whose new value is written over the old one, unless somebody holds that at the time.
    in_place: tuple[str, ...] = ()
    #: Keys of the other variables that are written, each with the reason.
    two_versions: tuple[tuple[str, str], ...] = ()


def second_phase(program: Program, why_not: str, has_code: Callable[[Step], bool]) -> Updates:
    """The second phase of a program. `why_not` is a reason against having one, if there is any; `has_code` tells
    whether native code computes a fused step."""
    if why_not or not program.writes:
        return Updates(two_versions=tuple([(key, why_not) for key, _ in program.writes]))
    facts = _Facts(program)
    reasons = {key: _own_reason(facts, key, v) for key, v in program.writes}
    home = {key: facts.maker[v] for key, v in program.writes if not reasons[key]}
    alone = {i for i in set(home.values()) if facts.is_all_updates(i)}
    steps = {i for i in alone if has_code(program.steps[i])}
    elsewhere = facts.read_elsewhere(steps)
    for key, i in home.items():
        if i not in steps:
            reasons[key] = NO_CODE if i in alone else USED
        elif facts.old[key] in elsewhere:
            reasons[key] = READ
    in_place = tuple([key for key, why in reasons.items() if not why])
    steps = {home[key] for key in in_place}
    return Updates(tuple(sorted(steps)), in_place, tuple([(key, why) for key, why in reasons.items() if why]))


def _own_reason(facts: _Facts, key: str, v: int) -> str:
    """Why a variable keeps two versions, as far as its own update says; empty if nothing does."""
    if math.prod(facts.program.types[v].shape) < SMALL:
        return TOO_SMALL
    if v in facts.fetched:
        return FETCHED
    if v not in facts.maker or facts.old.get(key) not in facts.program.steps[facts.maker[v]].inputs:
        return NOT_ELEMENTWISE
    if facts.written[v] > 1:
        return TWICE
    if facts.is_elementwise(facts.maker[v], v):
        return ""
    return NOT_ELEMENTWISE if facts.program.steps[facts.maker[v]].type != FUSED else USED


class _Facts:
    """What is asked of a program, looked up once."""

    def __init__(self, program: Program):
        self.program = program
        self.maker = {v: i for i, step in enumerate(program.steps) for v in step.outputs}
        self.old = dict(program.reads)
        self.written = Counter([v for _, v in program.writes])
        self.fetched = set(program.fetches)
        self._read = {v for step in program.steps for v in step.inputs}
        self._waited = {j for step in program.steps for j in step.after}

    def is_elementwise(self, i: int, v: int) -> bool:
        """Whether a step is a group of built-in elementwise steps over the whole of a value."""
        step = self.program.steps[i]
        if step.type != FUSED or step.attrs["space"] != self.program.types[v].shape:
            return False
        return all(kind_of(each.type) is Kind.ELEMENTWISE and OPS[each.type].kernel is None for each in step.body)

    def is_all_updates(self, i: int) -> bool:
        """Whether a step makes new values of variables and nothing else, which nothing else reads or waits for."""
        made = set(self.program.steps[i].outputs)
        only = all(self.written[v] == 1 for v in made) and made.isdisjoint(self.fetched)
        return only and made.isdisjoint(self._read) and i not in self._waited

    def read_elsewhere(self, steps: Iterable[int]) -> set[int]:
        """The old values that some of these steps reads without making the new one, or through a view."""
        program, new = self.program, dict(self.program.writes)
        home = {v: self.maker.get(new[key]) for key, v in program.reads if key in new}
        root = {v: v for v in home}
        for step in program.steps:
            view = view_of(step.type)
            for k, v in enumerate(step.outputs) if view is not None else ():
                seen = step.inputs[k if view is View.SAME else 0]
                if seen in root:
                    root[v] = root[seen]
        read = [(root[v], v, i) for i in steps for v in program.steps[i].inputs if v in root]
        return {old for old, v, i in read if v != old or home[old] != i}


# -- what is left of a task --------------------------------------------------------------------------------------


def first_phase(
    program: Program, updates: Updates, steps: Sequence[int], gives: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The steps of a task without those of the second phase, and the values that it gives without them."""
    last = set(updates.steps)
    kept = tuple([i for i in steps if i not in last])
    made = {v for i in kept for v in program.steps[i].outputs}
    needed = {v for i in last for v in program.steps[i].inputs}
    later = [v for v in needed if v in made and v not in gives]
    return kept, (*[v for v in gives if v in made], *sorted(later))


def stays(program: Program, updates: Updates, tasks: int) -> tuple[int, ...]:
    """The values that only the second phase reads of a plan of one task: they can stay in the memory of that task. Each
    of several tasks would keep its own to the end of the call."""
    made = {v for step in program.steps for v in step.outputs}
    needed = {v for i in updates.steps for v in program.steps[i].inputs}
    return tuple(sorted((needed & made) - set(program.wanted))) if tasks == 1 else ()


def check_updates(program: Program, updates: Updates) -> Updates:
    """Return the second phase; raise ValueError at the first violation of what the local engine relies on."""
    facts, new = _Facts(program), dict(program.writes)
    named = [*updates.in_place, *[key for key, _ in updates.two_versions]]
    if sorted(named) != sorted(new):
        raise ValueError(f"updates name {sorted(named)}, but the variables that are written are {sorted(new)}")
    for i in updates.steps:
        if not facts.is_all_updates(i):
            raise ValueError(f"step {i} is in the second phase, but more than variables depends on it")
        if not all(facts.is_elementwise(i, v) for v in program.steps[i].outputs):
            raise ValueError(f"step {i} is in the second phase, but is not elementwise")
    elsewhere = facts.read_elsewhere(updates.steps)
    for key in updates.in_place:
        old, home = facts.old.get(key, -1), facts.maker.get(new[key], -1)
        if home not in updates.steps or old not in program.steps[home].inputs:
            raise ValueError(f"{key!r} is updated in place, but no step of the second phase makes it of its old value")
        if old in elsewhere:
            raise ValueError(f"{key!r} is updated in place, but another update reads its old value")
    return updates
