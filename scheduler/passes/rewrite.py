"""The walk that all peephole rules share: once over the steps, one rule per op type, then dead steps are dropped.

A rule takes the walk and a step that reads what is left of the program. It returns None (keep the step), another step
with the same outputs, or the values that its outputs are. It may ask the walk about the inputs: their types, the
constants among them, and for a few op types the step that made them. Steps that wait for others are shown to no rule.

Rewrites keep every bit, which is more than keeping every value: NumPy adds an array up in the order of its memory. So
the walk knows which values may not be contiguous (`strided`), and rules leave a step alone where its result would lie
otherwise than before. What a program is given counts as contiguous.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from distgrad.registry import OPS, Kind, OpDef, View
from distgrad.scheduler.program import Program, Step
from distgrad.types import Spec, size_of

Array = np.ndarray[Any, np.dtype[Any]]
Evaluate = Callable[[Step, Sequence[Array], Sequence[Spec]], Sequence[Array]]
Made = Step | tuple[int, ...] | None
Rule = Callable[["Rewriter", Step], Made]

#: Folding computes what reads and makes no more bytes than this: beyond, the run has more threads for it, and a
#: program stays small. What only lays out a large constant otherwise is folded too.
FOLDED_BYTES = 1 << 20


@dataclass(frozen=True)
class Rules:
    """Rewrite rules by op type, and by facts about ops: for those a rule stands under the first query that is true."""

    by_type: Mapping[str, Rule]
    by_fact: tuple[tuple[Callable[[OpDef], bool], Rule], ...] = ()

    def of(self, definition: OpDef) -> Rule | None:
        found = self.by_type.get(definition.type)
        return found or next((rule for holds, rule in self.by_fact if holds(definition)), None)


class Rewriter:
    """One run over a program: what is left of it so far, and what is known of its values."""

    def __init__(self, program: Program, rules: Sequence[Rules], evaluate: Evaluate | None = None):
        self.program = program
        self._tables = rules
        #: By op type, as they are needed.
        self._rules: dict[str, Rule | None] = {}
        self.evaluate = evaluate
        self.types = list(program.types)
        self.steps: list[Step] = []
        #: Values that are others now.
        self.alias: dict[int, int] = {}
        #: The step that made a value, where its type is one that rules look through and it waits for nothing.
        self.made: dict[int, Step] = {}
        #: Values that are constants.
        self.known: dict[int, Array] = {}
        #: Values that may not be contiguous.
        self.maybe_strided: set[int] = set()
        self.changed = False
        #: Constants without a step: they get one when something reads them, and most are read by nothing that is left.
        self._pending: dict[int, Step] = {}
        self._numbers: dict[int, int] = {}
        #: Where somebody waits: for which steps, where each step is now, what stands for those that are gone, and
        #: which step made a value.
        self._waited = {i for step in program.steps if step.after for i in step.after}
        self._place = [0] * len(program.steps) if self._waited else []
        self._gone: dict[int, tuple[int, ...]] = {}
        self._maker: dict[int, int] = {}

    def run(self) -> Program:
        others = self.alias.keys()
        for i, step in enumerate(self.program.steps):
            if step.after:
                self._keep(i, self._moved(step))
            else:
                self._visit(i, step if others.isdisjoint(step.inputs) else self._moved(step))
        if not self.changed:
            return self.program
        alias = self.alias
        fetches = tuple([alias.get(v, v) for v in self.program.fetches])
        writes = tuple([(key, alias.get(v, v)) for key, v in self.program.writes])
        made = replace(self.program, types=tuple(self.types), fetches=fetches, writes=writes)
        for v in made.wanted:
            if v in self._pending:
                self._emit(v)
        return replace(made, steps=live(self.steps, self.program, made))

    # -- what rules ask ----------------------------------------------------------------------------------------------

    def number(self, v: int) -> Array | None:
        """The one number that all elements of a value are, where that is known."""
        array = self.known.get(v)
        if array is None and v in self.made:
            step = self.made[v]
            if step.type == "Fill":
                return None if step.attrs["dtype"].kind in "SU" else filled(step, ())
            if step.type == "BroadcastTo":
                array = self.known.get(step.inputs[0])
        return array.reshape(()) if array is not None and array.size == 1 else None

    def scalar(self, v: int, number: Array, like: Step) -> int:
        """The value of shape () that stands for a value that is one number."""
        if v not in self._numbers:
            self._numbers[v] = len(self.types)
            self.types.append(Spec((), self.types[v].dtype))
            self.constant(self._numbers[v], number, like)
        return self._numbers[v]

    def constant(self, v: int, array: Array, like: Step) -> None:
        """Make a value a constant, in place of what made it."""
        array = array.view()
        array.flags.writeable = False
        self.known[v] = array
        if not array.flags.c_contiguous:
            self.maybe_strided.add(v)
        self._pending[v] = Step("Const", (), (v,), {"value": array}, (), like.source, like.name, like.device)

    def computed(self, step: Step, arrays: Sequence[Array]) -> Array | None:
        """What a step with one output makes of these numbers; None where the walk does not compute, or it fails."""
        if self.evaluate is None:
            return None
        try:
            (made,) = self.evaluate(step, arrays, [Spec((), self.types[step.outputs[0]].dtype)])
        except Exception:  # it belongs to the run
            return None
        return made

    # -- the loop ----------------------------------------------------------------------------------------------------

    def _moved(self, step: Step) -> Step:
        """A step that reads and waits for what is left of the program."""
        inputs, after, alias = step.inputs, step.after, self.alias
        for v in inputs:
            if v in alias:
                inputs = tuple([alias.get(v, v) for v in inputs])
                break
        if after:
            places = [self._gone.get(i, (self._place[i],)) for i in after]
            after = tuple(dict.fromkeys([i for place in places for i in place]))
        return step if inputs is step.inputs and after == step.after else moved(step, inputs, after)

    def _visit(self, i: int, step: Step) -> None:
        """Fold a step, or rewrite it until no rule changes it any more."""
        if step.inputs and step.inputs[0] in self.known and self._folded(i, step):
            return
        made: Made = step
        while isinstance(made, Step):
            step = made
            rule = self._rules[step.type] if step.type in self._rules else self._rule(step.type)
            made = None if rule is None else rule(self, step)
            if made is None:
                return self._keep(i, step)
            self.changed = True
        assert made is not None
        if i not in self._waited or self._handed_on(i, made):
            self.alias.update(zip(step.outputs, made, strict=True))
        else:
            self._keep(i, step)

    def _rule(self, op_type: str) -> Rule | None:
        """What rewrites this type: where several tables have a rule for it, the first that has an answer is right."""
        found = [rule for table in self._tables if (rule := table.of(OPS[op_type])) is not None]

        def first(r: Rewriter, step: Step) -> Made:
            return next((made for rule in found if (made := rule(r, step)) is not None), None)

        self._rules[op_type] = first if len(found) > 1 else found[0] if found else None
        return self._rules[op_type]

    def _handed_on(self, i: int, values: Sequence[int]) -> bool:
        """Let what waits for a step that goes wait for the steps that made its values; False where there are none.

        So whatever waited for something goes on waiting: that is how a second computation is told from the first.
        """
        makers = tuple([self._maker[v] for v in values if v in self._maker])
        if makers:
            self._gone[i] = makers
        return bool(makers)

    def _folded(self, i: int, step: Step) -> bool:
        """Compute a step now, if all of its inputs are constants and what it gives is cheap to hold."""
        known, types = self.known, self.types
        for v in step.inputs:
            if v not in known:
                return False
        if self.evaluate is None or not _foldable(step, types):
            return False
        try:
            arrays = self.evaluate(step, [known[v] for v in step.inputs], [types[v] for v in step.outputs])
        except Exception:  # it belongs to the run, which names the op and its line
            return False
        if not all(array.flags.forc for array in arrays):  # it would lie otherwise once the program has travelled
            return False
        self.changed = True
        for v, array in zip(step.outputs, arrays, strict=True):
            self.constant(v, array, step)
        if i in self._waited:
            for v in step.outputs:
                self._emit(v)
            self._place[i] = len(self.steps) - 1
        return True

    def insert(self, step: Step, spec: Spec) -> int:
        """Put a step with one new value before the present one; gives the value."""
        v = len(self.types)
        self.types.append(spec)
        made = Step(step.type, step.inputs, (v,), step.attrs, (), step.source, step.name, step.device)
        self._maker[v] = len(self.steps)
        self.steps.append(made)
        if _looked_at(made):
            self._look_at(made)
        self._lie(made)
        return v

    def _emit(self, v: int) -> None:
        self._maker[v] = len(self.steps)
        self.steps.append(self._pending.pop(v))

    def _keep(self, i: int, step: Step) -> None:
        if self._pending:
            for v in step.inputs:
                if v in self._pending:
                    self._emit(v)
        if self._waited:
            self._place[i] = len(self.steps)
            for v in step.outputs:
                self._maker[v] = len(self.steps)
        self.steps.append(step)
        if not step.after and _looked_at(step):
            self._look_at(step)
        self._lie(step)

    def _lie(self, step: Step) -> None:
        """Note where results may not be contiguous: views and calls may give such, all others lay them out anew."""
        definition = OPS[step.type]
        if definition.view is not None:
            keeps = definition.view in (View.SAME, View.FLAT) and self.maybe_strided.isdisjoint(step.inputs)
        elif step.type == "Const":
            keeps = step.attrs["value"].flags.c_contiguous
        else:
            keeps = definition.kind is not Kind.CALL
        if not keeps:
            self.maybe_strided.update(step.outputs)

    def _look_at(self, step: Step) -> None:
        if step.type == "Const":
            self.known[step.outputs[0]] = step.attrs["value"]
            return
        for v in step.outputs:
            self.made[v] = step
        if step.type == "Fill" and size_of(step.attrs["shape"]) == 1 and step.attrs["dtype"].kind not in "SU":
            self.known[step.outputs[0]] = filled(step, step.attrs["shape"])


def _looked_at(step: Step) -> bool:
    """Whether rules look through it."""
    definition = OPS[step.type]
    return definition.kind is Kind.SOURCE or definition.view is not None or step.type == "Neg"


def moved(step: Step, inputs: tuple[int, ...], after: tuple[int, ...]) -> Step:
    """The same step at another place. (`dataclasses.replace` takes several times as long.)"""
    return Step(step.type, inputs, step.outputs, step.attrs, after, step.source, step.name, step.device, step.body)


def filled(step: Step, shape: tuple[int, ...]) -> Array:
    """The array that a Fill makes, or one of its numbers."""
    return np.full(shape, step.attrs["value"], step.attrs["dtype"])


def _foldable(step: Step, types: Sequence[Spec]) -> bool:
    definition = OPS[step.type]
    if definition.stateful or definition.at_run or definition.kernel is not None:
        return False
    if definition.types_only or step.type == "BroadcastTo":  # a number that repeats is better kept than the array
        return False
    read, made = _bytes(types, step.inputs), _bytes(types, step.outputs)
    lays_out = definition.kind is Kind.LAYOUT or step.type == "Cast"
    return read + made <= FOLDED_BYTES or (lays_out and made <= read)


def _bytes(types: Sequence[Spec], values: Sequence[int]) -> int:
    return sum([size_of(types[v].shape) * types[v].dtype.itemsize for v in values])


def live(steps: Sequence[Step], before: Program, after: Program) -> tuple[Step, ...]:
    """Without the steps that nothing needs any more. What nothing read before runs for its own sake, and stays."""
    used = _used(before) + b"\1" * (len(after.types) - len(before.types))
    live, waited = bytearray(len(used)), set[int]()
    for v in after.wanted:
        live[v] = 1
    kept = []
    for i in range(len(steps) - 1, -1, -1):
        step = steps[i]
        outputs = step.outputs
        if i in waited or 1 in [live[v] for v in outputs] or 1 not in [used[v] for v in outputs]:
            kept.append(i)
            waited.update(step.after)
            for v in step.inputs:
                live[v] = 1
    return taken(steps, kept[::-1], bool(waited))


def _used(program: Program) -> bytearray:
    """For each value, whether anything reads or wants it."""
    used = bytearray(len(program.types))
    for step in program.steps:
        for v in step.inputs:
            used[v] = 1
    for v in program.wanted:
        used[v] = 1
    return used


def taken(steps: Sequence[Step], kept: Sequence[int], waits: bool = True) -> tuple[Step, ...]:
    """Some of the steps, waiting for each other by their new places."""
    if len(kept) == len(steps):
        return tuple(steps)
    if not waits:
        return tuple([steps[i] for i in kept])
    place = {old: new for new, old in enumerate(kept)}
    chosen = [steps[i] for i in kept]
    return tuple([moved(s, s.inputs, tuple([place[i] for i in s.after])) if s.after else s for s in chosen])
