"""Liveness analysis: the peak memory of a run before anything runs, and the error if it exceeds the budget.

Only values that the run itself allocates are counted; feeds, variables and constants exist already. A view allocates
nothing and keeps its base alive. `footprint` predicts what a task needs in addition to its values.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import TYPE_CHECKING, NamedTuple

from distgrad.errors import BudgetError
from distgrad.printing import bytes_text
from distgrad.registry import Kind, View, kind_of, view_of
from distgrad.scheduler.overwriting import NOTHING, Overwriting
from distgrad.scheduler.program import Program, Step
from distgrad.types import Spec

if TYPE_CHECKING:
    from distgrad.scheduler.plan import Plan

#: The last use of a buffer that is kept to the end.
NEVER = 1 << 62


class Live(NamedTuple):
    """A buffer that is live at the peak: the value it was allocated for, and its bytes."""

    value: int
    nbytes: int


class Peak(NamedTuple):
    """The peak in bytes, the position of the step at which it occurs, and the live buffers, largest first."""

    nbytes: int
    position: int
    live: tuple[Live, ...]

    @property
    def largest(self) -> tuple[Live, ...]:
        """The three largest live buffers."""
        return self.live[:3]


def value_bytes(types: Sequence[Spec]) -> list[int]:
    """The bytes of every value."""
    return [prod(shape) * dtype.itemsize for shape, dtype in types]


def given_bytes(program: Program) -> dict[int, int]:
    """The bytes of the input values."""
    given = program.given
    return dict(zip(given, value_bytes([program.types[v] for v in given]), strict=True))


def peak(program: Program, order: Sequence[int] | None = None, kept: Iterable[int] | None = None) -> Peak:
    """The peak of running these steps in this order (default: all), with `kept` (default: the outputs) live to the end.

    >>> import distgrad as dg
    >>> from distgrad.scheduler.program import lower
    >>> with dg.Graph():
    ...     x = dg.placeholder((1000,))
    ...     y = dg.sum(dg.exp(x) @ dg.constant(1.0, shape=(1000, 10)))
    >>> peak(lower([y], [x])).nbytes  # exp(x) and what the product makes of it
    8080
    """
    steps = program.steps if order is None else [program.steps[i] for i in order]
    liveness = Liveness(steps, value_bytes(program.types), program.types, program.wanted if kept is None else kept)
    nbytes, position, _ = liveness.run()
    held = liveness.run(stop=position)[2]
    live = sorted([Live(v, n) for v, n in held.items()], key=lambda item: (-item.nbytes, item.value))
    return Peak(nbytes, position, tuple(live))


class Liveness:
    """Liveness of buffers over a list of steps: the buffer of each value, and the last step that uses it."""

    def __init__(
        self,
        steps: Sequence[Step],
        nbytes: Sequence[int],
        types: Sequence[Spec],
        kept: Iterable[int],
        overwriting: Overwriting = NOTHING,
    ):
        self.steps = steps
        self.overwriting = overwriting
        self.nbytes = nbytes
        self.types = types
        self.buffer: dict[int, int] = {}
        self.last: dict[int, int] = {}
        self._find_buffers()
        for v in kept:
            if v in self.buffer:
                self.last[self.buffer[v]] = NEVER

    def _find_buffers(self) -> None:
        buffer, last = self.buffer, self.last
        strided: set[int] = set()
        in_place, copied = self.overwriting.in_place, self.overwriting.copied
        views = {op_type: view_of(op_type) for op_type in {step.type for step in self.steps}}
        for k, step in enumerate(self.steps):
            for v in step.inputs:
                if v in buffer:
                    last[buffer[v]] = k
            view = views[step.type]
            if (
                view is not None
                and not (view is View.FLAT and step.inputs[0] in strided)
                and copied.isdisjoint(step.outputs)
            ):
                self._add_view(step, view, strided)
            elif in_place and not in_place.isdisjoint(step.outputs):
                buffer[step.outputs[0]] = buffer[step.inputs[0]]
            elif step.type != "Const":
                for v in step.outputs:
                    buffer[v] = v
                    last[v] = k

    def _add_view(self, step: Step, view: View, strided: set[int]) -> None:
        """The outputs of a view share the buffer of its input; views of inputs have no buffer."""
        read = step.inputs if view is View.SAME else step.inputs[:1] * len(step.outputs)
        for v, seen in zip(step.outputs, read, strict=True):
            if seen in self.buffer:
                self.buffer[v] = self.buffer[seen]
            if view in (View.STRIDED, View.PART) or seen in strided:
                strided.add(v)

    def ends(self) -> dict[int, list[int]]:
        """The buffers that each step is the last to use."""
        ends: dict[int, list[int]] = {}
        for b, k in self.last.items():
            ends.setdefault(k, []).append(b)
        return ends

    def run(self, stop: int = -1) -> tuple[int, int, dict[int, int]]:
        """The peak in bytes, the position of its step, and the buffers live at the end, or during step `stop`."""
        held: dict[int, int] = {}
        top, where, total = 0, 0, 0
        buffer, last, nbytes = self.buffer, self.last, self.nbytes
        for k, step in enumerate(self.steps):
            made = [v for v in step.outputs if buffer.get(v) == v]
            if len(made) == 1 and kind_of(step.type) is Kind.ELEMENTWISE:
                total -= self._overwritten_bytes(k, step, nbytes[made[0]], held)
            for v in made:
                held[v] = nbytes[v]
                total += nbytes[v]
            if total > top:
                top, where = total, k
            if k == stop:
                break
            for v in (*step.inputs, *made):
                b = buffer.get(v)
                if b in held and last[b] == k:
                    total -= held.pop(b)
        return top, where, held

    def _overwritten_bytes(self, k: int, step: Step, size: int, held: dict[int, int]) -> int:
        """The bytes of an input that an elementwise step overwrites: of the same size, and last used here."""
        for v in step.inputs:
            b = self.buffer.get(v)
            if b in held and self.last[b] == k and held[b] == size:
                return held.pop(b)
        return 0


# -- the budget --------------------------------------------------------------------------------------------------


def refuse(program: Program, plan: Plan, budget: int | None) -> Plan:
    """Return the plan; raise BudgetError if its predicted peak exceeds the budget."""
    if budget is None or plan.predictions.peak_bytes <= budget:
        return plan
    raise BudgetError(refusal(program, plan.predictions.peak_bytes, budget, largest(program, plan)))


def largest(program: Program, plan: Plan) -> tuple[Live, ...]:
    """The three largest values at the peak of the task that needs the most, including its inputs from other tasks."""
    if not plan.tasks:
        return ()
    task = max(plan.tasks, key=lambda task: task.memory)
    nbytes, given = value_bytes(program.types), set(program.given)
    read = [Live(v, nbytes[v]) for v in task.reads if v not in given]
    found = [*peak(program, task.steps, task.gives).live, *read]
    return tuple(sorted(found, key=lambda item: (-item.nbytes, item.value))[:3])


def refusal(program: Program, predicted: int, budget: int, top: Sequence[Live]) -> str:
    """The text of a BudgetError: cause, place, remedy."""
    names = "; ".join(named(program, top))
    return (
        f"the run would need {bytes_text(predicted)} at its peak, but may use only {bytes_text(budget)}. "
        f"The largest tensors at that point: {names or 'none'}. What would help: {', '.join(_remedies(program, top))}."
    )


def named(program: Program, top: Sequence[Live]) -> list[str]:
    """One line per value: op, type, bytes and source line."""
    maker = {v: each for step in program.steps for each in (step, *step.body) for v in each.outputs}
    lines = []
    for value, nbytes in top:
        step = maker[value]
        lines.append(f"{step.name!r} {program.types[value]}, {bytes_text(nbytes)} ({step.type}, at {step.source})")
    return lines


def _remedies(program: Program, top: Sequence[Live]) -> list[str]:
    """The remedies that apply."""
    found = ["a smaller batch"]
    if any("gradients/" in step.name for step in program.steps):
        found.append("wrapping the code that computes them in recompute_grad")
    if any(program.types[v].dtype.name in ("float64", "complex128") for v, _ in top):
        found.append("float32 instead of float64")
    if any(v in program.wanted for v, _ in top):
        found.append("fetching fewer results")
    return [*found, "or a larger memory budget"]
