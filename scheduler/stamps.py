"""Stamps: calls that stay one step each. A body that is called often is optimised once, priced once and compiled once;
what runs it, or looks at its steps, takes it apart here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from distgrad.scheduler.program import CALL, Inner, Program, Step, check_program
from distgrad.types import Spec


def is_stamped(program: Program) -> bool:
    return any(step.type == CALL for step in program.steps)


def mapped(program: Program, f: Callable[[Program], Program]) -> Program:
    """The program with `f` of each body that is called, once for all calls of it."""
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
    """Every step, those inside of groups and called bodies too; each body once."""
    seen: set[Inner] = set()
    for step in steps:
        yield step
        yield from step.body
        if step.type == CALL and step.attrs["inner"] not in seen:
            seen.add(step.attrs["inner"])
            yield from all_steps(step.attrs["inner"].program.steps)


def expanded(steps: Sequence[Step], types: Sequence[Spec]) -> tuple[Sequence[Step], Sequence[Spec]]:
    """The same steps with the bodies of calls in their place, and the types of all values. Waits are left out."""
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
        made += [_renamed(each, ids) for each in inner.steps]
    return made, known


def expanded_program(program: Program) -> Program:
    """The program with all calls laid out. What waited for a call waits for what the call gives."""
    if not is_stamped(program):
        return program
    place: list[int] = []  # the last step of each, where it is now
    count = 0
    for step in program.steps:
        count += len(step.attrs["inner"].program.steps) if step.type == CALL else 1
        place.append(count - 1)
    steps, types = expanded(program.steps, program.types)
    made = list(steps)
    for step, at in zip(program.steps, place, strict=True):
        if step.after:
            made[at] = replace(made[at], after=tuple([place[j] for j in step.after]))
    return check_program(replace(program, steps=tuple(made), types=tuple(types)))


def _renamed(step: Step, ids: Mapping[int, int]) -> Step:
    inputs, outputs = tuple([ids[v] for v in step.inputs]), tuple([ids[v] for v in step.outputs])
    body = tuple([_renamed(inner, ids) for inner in step.body])
    return Step(step.type, inputs, outputs, step.attrs, (), step.source, step.name, step.device, body)
