"""The pipeline: all passes over programs, in their order. Sessions, tests, benchmarks and docs go by this list."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from distgrad.scheduler.outlined_calls import mapped
from distgrad.scheduler.passes.calls import expanded_program
from distgrad.scheduler.passes.canonical import canonical
from distgrad.scheduler.passes.chunks import chunks, joins
from distgrad.scheduler.passes.equal import merge_equal
from distgrad.scheduler.passes.fuse import fuse
from distgrad.scheduler.passes.norms import norms
from distgrad.scheduler.passes.rewrite import Evaluate
from distgrad.scheduler.passes.simplify import simplify
from distgrad.scheduler.passes.slopes import slopes
from distgrad.scheduler.passes.sums import slice_sums, trees
from distgrad.scheduler.program import Program, check_program, planning


@dataclass(frozen=True, slots=True)
class Context:
    """What passes know beside the program."""

    #: The results of a step, as a run would compute them.
    evaluate: Evaluate
    #: Terms that one step of a tree of sums adds.
    fan_in: int = 4
    #: The name of the array library that will run the program.
    backend: str = "numpy"


@dataclass(frozen=True, slots=True)
class Pass:
    """A function from a program to a program, and what is to be known of it."""

    function: Callable[..., Program]
    #: One sentence.
    does: str
    #: What of the results stays as it is.
    keeps: str
    #: Passes that come before it.
    needs: tuple[str, ...] = ()
    #: The fields of the context that the function takes after the program.
    takes: tuple[str, ...] = ()
    #: The backends that it is for; none: all.
    backends: tuple[str, ...] = ()
    #: When cutting the program into tasks asks for it; nothing: `improve` runs it.
    when: str = ""
    #: Whether it goes as soon as groups of steps run as generated code.
    leaving: bool = False

    @property
    def name(self) -> str:
        return self.function.__name__

    def __call__(self, program: Program, context: Context) -> Program:
        return self.function(program, *[getattr(context, field) for field in self.takes])


PASSES = (
    Pass(
        canonical,
        does="Gives each device one spelling, and none to what any worker can run.",
        keeps="every bit",
    ),
    Pass(
        simplify,
        does="Drops steps that only pass a value on, lets steps absorb each other, and computes what is constant.",
        keeps="every bit but the sign of a NaN",
        takes=("evaluate",),
    ),
    Pass(
        merge_equal,
        does="Computes once what several steps compute from the same values.",
        keeps="every bit but the sign of a NaN",
        needs=("canonical", "simplify"),
    ),
    Pass(
        slice_sums,
        does="Adds slices into one buffer instead of arrays that are zero but for a slice.",
        keeps="every bit but the sign of a zero",
        needs=("merge_equal",),
    ),
    Pass(
        trees,
        does="Cuts sums of many or of large terms into trees.",
        keeps="all but the rounding of these sums",
        needs=("slice_sums",),
        takes=("fan_in",),
    ),
    Pass(
        slopes,
        does="Computes the slope of a Gelu beside its value.",
        keeps="every bit",
        needs=("merge_equal",),
        backends=("numpy",),
        leaving=True,
    ),
    Pass(
        norms,
        does="Lets the gradient of a layer norm read what the norm made.",
        keeps="all but the rounding of these gradients",
        needs=("merge_equal",),
        backends=("numpy",),
        leaving=True,
    ),
    Pass(
        fuse,
        does="Makes groups of elementwise and row-wise steps that run in blocks together.",
        keeps="all but the rounding of sums over blocks",
        needs=("canonical", "simplify", "merge_equal", "slice_sums", "trees", "slopes", "norms"),
    ),
    Pass(
        expanded_program,
        does="Lays out the calls that stayed one step each.",
        keeps="every bit",
        needs=("fuse",),
        when="calls do not fit the memory as one task each",
    ),
    Pass(
        joins,
        does="Cuts concatenations of many parts into trees.",
        keeps="every bit",
        needs=("expanded_program",),
        when="the plan is for Ray",
    ),
    Pass(
        chunks,
        does="Cuts large sums, and what follows them element by element, into chunks of rows.",
        keeps="every bit",
        needs=("fuse", "joins"),
        when="several tasks on Ray make the terms of large sums",
    ),
)


def improve(program: Program, context: Context, passes: Iterable[Pass] = PASSES) -> Program:
    """What the passes make of a program: first of the bodies that it calls, each once, then of itself.

    >>> import distgrad as dg
    >>> from distgrad.run.planner import evaluate
    >>> from distgrad.scheduler.program import lower
    >>> with dg.Graph():
    ...     x = dg.placeholder((2, 3))
    ...     grads = dg.gradients(dg.sum(dg.sin(dg.identity(x))), x)
    >>> [[s.type for s in p.steps] for p in (lower(grads, [x]), improve(lower(grads, [x]), Context(evaluate)))]
    [['Identity', 'Fill', 'Reshape', 'BroadcastTo', 'Cos', 'Mul'], ['Cos']]
    """
    chosen = [each for each in passes if not each.when and context.backend in (each.backends or (context.backend,))]

    def run(program: Program) -> Program:
        for each in chosen:
            program = each(program, context)
        return check_program(program)

    with planning():
        return run(mapped(program, run))
