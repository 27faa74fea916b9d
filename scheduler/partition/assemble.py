"""Assembles tasks and bundles from an assignment of steps to tasks: what each task reads, gives and waits for.

Nothing is decided here: everything follows from the assignment and the program.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from distgrad.scheduler.cost.footprint import footprint
from distgrad.scheduler.cost.step_costs import Needs
from distgrad.scheduler.plan import Bundle, Task
from distgrad.scheduler.program import Program

#: In place of a task: the value is an input of the program, or made by a step duplicated into every reader.
GIVEN = -1
COPIED = -2


@dataclass(frozen=True, slots=True)
class Draft:
    """An unfinished partition: the program, the costs of its steps, and the task of each step (or COPIED)."""

    program: Program
    of: Sequence[int]
    count: int
    seconds: Sequence[float]
    flops: Sequence[float]
    nbytes: Sequence[int]
    needs: Mapping[str | None, Needs]


def assemble(draft: Draft) -> tuple[list[Task], list[Bundle]]:
    """Tasks in the order of their numbers, which must be a topological order."""
    members, home = _members(draft)
    reads, readers = _reads(draft, members, home)
    gives = _gives(draft, home, readers)
    tasks = []
    for k in range(draft.count):
        giving = {home[v] for v in reads[k]}
        waits = _waits(draft, k, members[k]) - giving
        tasks.append(_task(draft, members[k], tuple(sorted(reads[k])), gives[k], tuple(sorted(waits))))
    return tasks, _bundles(draft, gives, readers)


def _members(draft: Draft) -> tuple[list[list[int]], list[int]]:
    """The steps of each task without duplicated ones, and the task that makes each value."""
    members: list[list[int]] = [[] for _ in range(draft.count)]
    home = [GIVEN] * len(draft.program.types)
    for i, step in enumerate(draft.program.steps):
        k = draft.of[i]
        if k >= 0:
            members[k].append(i)
        for v in step.outputs:
            home[v] = k
    return members, home


def _reads(draft: Draft, members: list[list[int]], home: list[int]) -> tuple[list[set[int]], dict[int, list[int]]]:
    """The values that each task reads from outside, and the readers of each. Adds duplicated steps to `members`."""
    steps = draft.program.steps
    makers = {v: i for i, k in enumerate(draft.of) if k == COPIED for v in steps[i].outputs}
    _settle_wanted(draft, members, home, makers)
    reads: list[set[int]] = []
    readers: dict[int, list[int]] = {}
    for k, own in enumerate(members):
        found = {v for i in own for v in steps[i].inputs if home[v] != k}
        if makers:
            found = _with_copies(draft, own, found, home, makers)
        for v in found:
            if home[v] >= 0:
                readers.setdefault(v, []).append(k)
        reads.append(found)
    return reads, readers


def _settle_wanted(draft: Draft, members: list[list[int]], home: list[int], makers: Mapping[int, int]) -> None:
    """If an output is made by a duplicated step, the first task gives it; others still duplicate the step."""
    for v in dict.fromkeys(draft.program.wanted):
        if v in makers and makers[v] not in members[0]:
            members[0].append(makers[v])


def _with_copies(
    draft: Draft, own: list[int], found: set[int], home: Sequence[int], makers: Mapping[int, int]
) -> set[int]:
    """The reads of a task with duplicated steps replaced by their inputs. Adds these steps to the task."""
    inside = {i for i in own if draft.of[i] == COPIED}
    stack = [v for v in found if home[v] == COPIED]
    while stack:
        i = makers[stack.pop()]
        if i not in inside:
            inside.add(i)
            own.append(i)
        found.update(draft.program.steps[i].inputs)
        stack += [v for v in draft.program.steps[i].inputs if home[v] == COPIED]
    own.sort()
    return {v for v in found if home[v] != COPIED}


def _gives(draft: Draft, home: Sequence[int], readers: Mapping[int, Sequence[int]]) -> list[list[int]]:
    gives: list[list[int]] = [[] for _ in range(draft.count)]
    for v in readers:
        gives[home[v]].append(v)
    for v in dict.fromkeys(draft.program.wanted):
        if v not in readers and home[v] != GIVEN:
            gives[max(home[v], 0)].append(v)
    for values in gives:
        values.sort()
    return gives


def _waits(draft: Draft, k: int, members: Sequence[int]) -> set[int]:
    steps = draft.program.steps
    return {draft.of[j] for i in members for j in steps[i].after} - {k}


def _task(
    draft: Draft, members: Sequence[int], reads: tuple[int, ...], gives: Sequence[int], waits: tuple[int, ...]
) -> Task:
    program, nbytes = draft.program, draft.nbytes
    steps = [program.steps[i] for i in members]
    device = next((s.device for i, s in zip(members, steps, strict=True) if draft.of[i] >= 0), None)
    needs = draft.needs.get(device, Needs())
    inner = footprint(steps, program.types, nbytes, gives, needs.cpus, needs.execution).total
    return Task(
        steps=tuple(members),
        reads=reads,
        gives=tuple(gives),
        waits=waits,
        cpus=needs.cpus,
        gpus=needs.gpus,
        memory=inner + sum([nbytes[v] for v in reads]),
        device=device,
        seconds=sum([draft.seconds[i] for i in members]),
        flops=sum([draft.flops[i] for i in members]),
    )


def _bundles(draft: Draft, gives: Sequence[Sequence[int]], readers: Mapping[int, Sequence[int]]) -> list[Bundle]:
    fetched, written = set(draft.program.fetches), {v for _, v in draft.program.writes}
    made = []
    for k, values in enumerate(gives):
        packs: dict[tuple[tuple[int, ...], bool, bool], list[int]] = {}
        for v in values:
            packs.setdefault((tuple(readers.get(v, ())), v in fetched, v in written), []).append(v)
        for (to, is_fetched, is_written), packed in packs.items():
            nbytes = sum([draft.nbytes[v] for v in packed])
            made.append(Bundle(k, tuple(packed), to, is_fetched, is_written, nbytes))
    return made
