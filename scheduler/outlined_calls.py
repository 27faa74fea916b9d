"""Outlined calls: calls that stay one step each, so that a body that is called often is optimised, priced and compiled
once. Code that runs such a step, or inspects its steps, expands it here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from distgrad.scheduler.program import CALL, Inner, Program, Step, renumbered
from distgrad.types import Spec


def has_outlined_calls(program: Program) -> bool:
    """Whether any step is an outlined call."""
    return any(step.type == CALL for step in program.steps)


def mapped(program: Program, f: Callable[[Program], Program]) -> Program:
    """The program with `f` applied to each outlined body, once per body."""
    made: dict[Inner, Inner] = {}
    steps = list(program.steps)
    for i, step in enumerate(steps):
        if step.type == CALL:
            inner: Inner = step.attrs["inner"]
            if inner not in made:
                made[inner] = Inner(f(inner.program))
            steps[i] = replace(step, attrs={"inner": made[inner]})
    return replace(program, steps=tuple(steps)) if made else program


def all_steps(steps: Sequence[Step]) -> Iterator[Step]:
    """Every step, including those inside groups and outlined bodies; each body once."""
    seen: set[Inner] = set()
    for step in steps:
        yield step
        yield from step.body
        if step.type == CALL and step.attrs["inner"] not in seen:
            seen.add(step.attrs["inner"])
            yield from all_steps(step.attrs["inner"].program.steps)


def expanded(steps: Sequence[Step], types: Sequence[Spec]) -> tuple[Sequence[Step], Sequence[Spec]]:
    """The steps with outlined calls replaced by their bodies, and the types of all values. Drops `after`."""
    if not any(step.type == CALL for step in steps):
        return steps, types
    made: list[Step] = []
    known = list(types)
    for step in steps:
        if step.type != CALL:
            made.append(replace(step, after=()) if step.after else step)
            continue
        inner: Program = step.attrs["inner"].program
        ids = dict(zip((*inner.feeds, *inner.fetches), (*step.inputs, *step.outputs), strict=True))
        for v in range(len(inner.types)):
            if v not in ids:
                ids[v] = len(known)
                known.append(inner.types[v])
        made += [renumbered(each, ids) for each in inner.steps]
    return made, known
