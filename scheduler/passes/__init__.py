"""Passes over programs: each takes a program and returns one that computes the same with less, or in better pieces.

`pipeline.PASSES` lists them in their order, with what each does, needs and keeps of the bits. Each is a few loops over
the steps and checks nothing: `pipeline.improve` runs them and checks what they made. Those that cutting asks for, one
by one, check their own result.
"""
<<<<<<< HEAD

from __future__ import annotations

from distgrad.scheduler.passes.algebra import ALGEBRA
from distgrad.scheduler.passes.aliases import ALIASES
from distgrad.scheduler.passes.constants import CONSTANTS
from distgrad.scheduler.passes.equal import merge_equal
from distgrad.scheduler.passes.rewrite import Evaluate, Walk
from distgrad.scheduler.passes.slopes import slopes
from distgrad.scheduler.passes.sums import slice_sums, trees
from distgrad.scheduler.program import Program, planning

__all__ = ["Evaluate", "alias", "fold", "merge_equal", "optimize", "simplify", "slice_sums", "slopes", "trees"]


def optimize(program: Program, evaluate: Evaluate, fan_in: int = 4) -> Program:
    """All passes, once: what they leave, none of them makes smaller.

    >>> import distgrad as dg
    >>> from distgrad.registry import OPS
    >>> from distgrad.scheduler.program import lower
    >>> from distgrad.workers import reference
    >>> def evaluate(step, arrays, specs):
    ...     return reference.apply(OPS[step.type], arrays, step.attrs, specs)
    >>> with dg.Graph():
    ...     x = dg.placeholder((2, 3))
    ...     grads = dg.gradients(dg.sum(dg.sin(dg.identity(x))), x)
    >>> [[step.type for step in p.steps] for p in (lower(grads, [x]), optimize(lower(grads, [x]), evaluate))]
    [['Identity', 'Fill', 'Reshape', 'BroadcastTo', 'Cos', 'Mul'], ['Cos']]
    """
    with planning():
        program = Walk(program, (ALIASES, ALGEBRA, CONSTANTS), evaluate).run()
        return trees(slice_sums(merge_equal(program)), fan_in)


def alias(program: Program) -> Program:
    """Drop the steps that only pass a value on: identities, reshapes to the same shape, sums of one term.

    What waits for such a step waits for the one that made the value. A step that itself waits for others stays: it is
    a barrier.
    """
    return Walk(program, (ALIASES,)).run()


def fold(program: Program, evaluate: Evaluate) -> Program:
    """Compute what depends on constants alone, and let numbers take the place of arrays that repeat them.

    `evaluate(step, arrays, specs)` gives the results of a step as a run would. It is not asked for a user's own ops,
    nor for what reads or makes more bytes than `FOLDED_BYTES`; where it raises, the step stays.
    """
    return Walk(program, (CONSTANTS,), evaluate).run()


def simplify(program: Program) -> Program:
    """Let steps absorb each other: transposes become flags of MatMul, what is cut and joined again was never cut."""
    return Walk(program, (ALGEBRA,)).run()
=======
>>>>>>> passes
