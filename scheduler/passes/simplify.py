"""Simplification: the rules of `aliases`, `algebra` and `constants` in one pass over the steps."""

from __future__ import annotations

from distgrad.scheduler.passes.algebra import ALGEBRA
from distgrad.scheduler.passes.aliases import ALIASES
from distgrad.scheduler.passes.constants import CONSTANTS
from distgrad.scheduler.passes.rewrite import Evaluate, Rewriter
from distgrad.scheduler.program import Program


def simplify(program: Program, evaluate: Evaluate) -> Program:
    """Remove steps that return their input, apply algebraic rules, and fold constants.

    Steps that wait for a removed step wait for the maker of its value instead. Steps that wait for others are barriers
    and are kept. `evaluate(step, arrays, specs)` returns the results of a step as a run would. It is not called for
    user-defined ops, nor for steps that read and make more than `FOLDED_BYTES`; if it raises, the step is kept.
    """
    return Rewriter(program, (ALIASES, ALGEBRA, CONSTANTS), evaluate).run()
