"""The pipeline: all passes over programs, in order. Sessions, tests, benchmarks and docs use this list."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from distgrad.scheduler.outlined_calls import mapped
from distgrad.scheduler.passes.calls import expanded_program
from distgrad.scheduler.passes.canonical import canonical
from distgrad.scheduler.passes.chunks import chunks, joins
from distgrad.scheduler.passes.equal import merge_equal
from distgrad.scheduler.passes.fuse import always, fuse
from distgrad.scheduler.passes.recompute import ElementWork, recompute
from distgrad.scheduler.passes.rewrite import Evaluate
from distgrad.scheduler.passes.simplify import simplify
from distgrad.scheduler.passes.sums import slice_sums, trees
from distgrad.scheduler.passes.updates import updates
from distgrad.scheduler.program import Program, Step, check_program, planning
from distgrad.types import Spec


@dataclass(frozen=True, slots=True)
class Context:
    """What passes are given in addition to the program."""

    #: Computes the results of a step as a run would.
    evaluate: Evaluate
    #: Terms per addition of a reduce tree.
    fan_in: int = 4
    #: Whether the workers can run a step as part of a group.
    can_fuse: Callable[[Step, Sequence[Spec]], bool] = always
    #: The work of an elementwise step per element, if the workers run groups as loops.
    element_work: ElementWork | None = None


@dataclass(frozen=True, slots=True)
class Pass:
    """A function from a program to a program, with its description and requirements."""

    function: Callable[..., Program]
    #: What it does, in one sentence.
    does: str
    #: What it preserves of the results.
    keeps: str
    #: Passes that must run before it.
    needs: tuple[str, ...] = ()
    #: Fields of the context that the function takes after the program.
    takes: tuple[str, ...] = ()
    #: When partitioning calls it; empty if `improve` runs it.
    when: str = ""

    @property
    def name(self) -> str:
        return self.function.__name__

    def __call__(self, program: Program, context: Context) -> Program:
        return self.function(program, *[getattr(context, field) for field in self.takes])


PASSES = (
    Pass(
        canonical,
        does="Gives each device one spelling, and no device to steps that any worker can run.",
        keeps="every bit",
    ),
    Pass(
        simplify,
        does="Removes steps that return their input, applies algebraic peephole rules, and folds constants.",
        keeps="every bit except the sign of NaNs",
        takes=("evaluate",),
    ),
    Pass(
        merge_equal,
        does="Merges steps that compute the same from the same values.",
        keeps="every bit except the sign of NaNs",
        needs=("canonical", "simplify"),
    ),
    Pass(
        slice_sums,
        does="Adds slices into one buffer, or to another term, instead of adding arrays that are zero outside a slice.",
        keeps="every bit except the sign of zeros",
        needs=("merge_equal",),
    ),
    Pass(
        trees,
        does="Splits sums of many or large terms into trees.",
        keeps="all but the rounding of these sums",
        needs=("slice_sums",),
        takes=("fan_in",),
    ),
    Pass(
        updates,
        does="Fuses the elementwise steps that compute new values of variables from old ones.",
        keeps="all but the rounding of mathematical functions",
        needs=("canonical", "simplify", "merge_equal", "slice_sums", "trees"),
        takes=("can_fuse",),
    ),
    Pass(
        fuse,
        does="Fuses elementwise and row-wise steps into groups that run as one loop.",
        keeps="all but the rounding of sums and of mathematical functions",
        needs=("canonical", "simplify", "merge_equal", "slice_sums", "trees"),
        takes=("can_fuse",),
    ),
    Pass(
        recompute,
        does="Recomputes cheap elementwise values in the groups that read them, instead of keeping them.",
        keeps="every bit",
        needs=("fuse",),
        takes=("element_work",),
    ),
    Pass(
        expanded_program,
        does="Inlines outlined calls.",
        keeps="every bit",
        needs=("fuse",),
        when="outlined calls do not fit the memory",
    ),
    Pass(
        joins,
        does="Splits concatenations of many parts into trees.",
        keeps="every bit",
        needs=("expanded_program",),
        when="the plan is for Ray",
    ),
    Pass(
        chunks,
        does="Splits large sums, and the elementwise steps that follow them, into chunks of rows.",
        keeps="every bit",
        needs=("fuse", "joins"),
        when="the terms of large sums come from several tasks on Ray",
    ),
)


def improve(program: Program, context: Context, passes: Iterable[Pass] = PASSES) -> Program:
    """Run the passes on a program: first on each outlined body, once per body, then on the program itself.

    >>> import distgrad as dg
    >>> from distgrad.run.planner import evaluate
    >>> from distgrad.scheduler.program import lower
    >>> with dg.Graph():
    ...     x = dg.placeholder((2, 3))
    ...     grads = dg.gradients(dg.sum(dg.sin(dg.identity(x))), x)
    >>> [[s.type for s in p.steps] for p in (lower(grads, [x]), improve(lower(grads, [x]), Context(evaluate)))]
    [['Identity', 'Fill', 'Reshape', 'BroadcastTo', 'Cos', 'Mul'], ['Cos']]
    """
    chosen = [each for each in passes if not each.when]

    def run(program: Program) -> Program:
        for each in chosen:
            program = each(program, context)
        return check_program(program)

    with planning():
        return run(mapped(program, run))
