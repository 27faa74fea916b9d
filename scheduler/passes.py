"""Passes over programs: each takes a program and returns one that computes the same bits with fewer steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from distgrad.registry import OPS
from distgrad.scheduler.program import Program, Step, check_program

#: Arrays among the attributes are compared by their bytes up to this size, above it by identity: copies of a body share
#: their attributes, so equal large constants of one model are one object.
SMALL = 1024


def merge_equal(program: Program) -> Program:
    """Compute once what several steps compute from the same values (common subexpressions).

    The gradient of a call copies the forward body, so most of what it merges is that. Steps that wait
    for others are left alone: `recompute_grad` computes again on purpose, and says so by waiting.

    >>> import distgrad as dg
    >>> from distgrad.scheduler import lower
    >>> with dg.Graph():
    ...     x = dg.placeholder(())
    ...     y = dg.exp(x) + dg.exp(x)
    >>> [len(p.steps) for p in (lower([y], [x]), merge_equal(lower([y], [x])))]
    [3, 2]
    """
    known: dict[Any, int] = {}
    alias: dict[int, int] = {}
    place: list[int] = []
    kept: list[Step] = []
    for step in program.steps:
        moved = _moved(step, alias, place)
        key = _key(moved)
        same = known.get(key) if key is not None else None
        if same is None:
            place.append(len(kept))
            if key is not None:
                known[key] = len(kept)
            kept.append(moved)
        else:
            place.append(same)
            alias.update(zip(step.outputs, kept[same].outputs, strict=True))
    if len(kept) == len(program.steps):
        return program
    fetches = tuple(alias.get(v, v) for v in program.fetches)
    writes = tuple((key, alias.get(v, v)) for key, v in program.writes)
    return check_program(replace(program, steps=tuple(kept), fetches=fetches, writes=writes))


def _moved(step: Step, alias: Mapping[int, int], place: Sequence[int]) -> Step:
    """A step that reads and waits for what is left of the program."""
    inputs = tuple([alias.get(v, v) for v in step.inputs])
    after = tuple(dict.fromkeys([place[i] for i in step.after]))
    return step if (inputs, after) == (step.inputs, step.after) else replace(step, inputs=inputs, after=after)


def _key(step: Step) -> Any:
    """What makes two steps equal; None where a step equals no other."""
    if step.after or OPS[step.type].stateful:
        return None
    attrs = tuple([(name, _plain(value)) for name, value in step.attrs.items()])
    try:
        hash(attrs)
    except TypeError:
        return None
    return step.type, step.inputs, attrs, step.device


def _plain(value: Any) -> Any:
    """An attribute by value and kind: 1, 1.0 and True are equal and hash alike, 0.0 and -0.0 too."""
    if isinstance(value, np.ndarray):
        return (value.shape, value.dtype, value.tobytes()) if value.nbytes <= SMALL else id(value)
    if isinstance(value, tuple | list):
        return type(value), tuple([_plain(item) for item in value])
    return type(value), repr(value) if isinstance(value, float | complex) else value
