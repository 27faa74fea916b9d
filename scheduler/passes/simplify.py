"""Simplifying: the rules of `aliases`, `algebra` and `constants`, in one walk over the steps."""

from __future__ import annotations

from distgrad.scheduler.passes.algebra import ALGEBRA
from distgrad.scheduler.passes.aliases import ALIASES
from distgrad.scheduler.passes.constants import CONSTANTS
from distgrad.scheduler.passes.rewrite import Evaluate, Rewriter
from distgrad.scheduler.program import Program


def simplify(program: Program, evaluate: Evaluate) -> Program:
    """Drop steps that only pass a value on, let steps absorb each other, and compute what depends on constants alone.

    What waits for a step that goes waits for the one that made the value. A step that itself waits for others stays: it
    is a barrier. `evaluate(step, arrays, specs)` gives the results of a step as a run would. It is not asked for a
    user's own ops, nor for what reads or makes more bytes than `FOLDED_BYTES`; where it raises, the step stays.
    """
    return Rewriter(program, (ALIASES, ALGEBRA, CONSTANTS), evaluate).run()
