"""Simplifying: the rules of `aliases`, `algebra` and `constants`, in one walk over the steps."""

from __future__ import annotations

from collections.abc import Callable

from distgrad.scheduler.passes.algebra import ALGEBRA
from distgrad.scheduler.passes.aliases import ALIASES
from distgrad.scheduler.passes.constants import CONSTANTS
from distgrad.scheduler.passes.rewrite import Evaluate, Made, Rules, Walk
from distgrad.scheduler.program import Program, Step


def simplify(program: Program, evaluate: Evaluate) -> Program:
    """Drop steps that only pass a value on, let steps absorb each other, and compute what depends on constants alone.

    What waits for a step that goes waits for the one that made the value. A step that itself waits for others stays: it
    is a barrier. `evaluate(step, arrays, specs)` gives the results of a step as a run would. It is not asked for a
    user's own ops, nor for what reads or makes more bytes than `FOLDED_BYTES`; where it raises, the step stays.
    """
    return Walk(program, _ALL, evaluate).run()


def _one_table(*tables: Rules) -> Rules:
    """All rules in one table; where several have a rule for an op type, the first that has an answer is right."""
    kinds = dict.fromkeys([kind for table in tables for kind in table])
    return {kind: _first([table[kind] for table in tables if kind in table]) for kind in kinds}


def _first(rules: list[Callable[[Walk, Step], Made]]) -> Callable[[Walk, Step], Made]:
    if len(rules) == 1:
        return rules[0]

    def rule(walk: Walk, step: Step) -> Made:
        for each in rules:
            made = each(walk, step)
            if made is not None:
                return made
        return None

    return rule


_ALL = _one_table(ALIASES, ALGEBRA, CONSTANTS)
