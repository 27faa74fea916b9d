"""One spelling per device: graphs keep any string that a user passes to `dg.device`."""

from __future__ import annotations

from dataclasses import replace

from distgrad.scheduler.devices import ANYWHERE, op_text, parse
from distgrad.scheduler.program import Program, Step


def canonical(program: Program) -> Program:
    """The program with one spelling per device, and None for any worker; ValueError for an invalid device."""
    spelling: dict[str | None, str | None] = {None: None}
    for step in program.steps:
        if step.device not in spelling:
            spelling[step.device] = _spelling(step)
    if all(text == found for text, found in spelling.items()):
        return program
    return replace(program, steps=tuple([_respelled(step, spelling[step.device]) for step in program.steps]))


def _spelling(step: Step) -> str | None:
    try:
        device = parse(step.device)
    except ValueError as e:
        raise ValueError(f"{op_text(step)}: {e}") from None
    return None if device == ANYWHERE else str(device)


def _respelled(step: Step, device: str | None) -> Step:
    if step.device == device:
        return step
    return replace(step, device=device, body=tuple([replace(inner, device=device) for inner in step.body]))
