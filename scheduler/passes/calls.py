"""Inlining of outlined calls."""

from __future__ import annotations

from dataclasses import replace

from distgrad.scheduler.outlined_calls import expanded, has_outlined_calls
from distgrad.scheduler.program import CALL, Program, check_program


def expanded_program(program: Program) -> Program:
    """The program with all outlined calls inlined. Steps that waited for a call wait for its last step."""
    if not has_outlined_calls(program):
        return program
    place: list[int] = []  # the new index of the last step of each
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
