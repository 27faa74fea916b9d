"""The rewriter of all peephole rules: one pass over the steps, one rule per op type, then dead steps are removed.

A rule takes the rewriter and a step of the rewritten program. It returns None (keep the step), a replacement step with
the same outputs, or existing values in place of the outputs. It may query the rewriter about the inputs: their types,
which are constants, and for some op types the step that made them. Rules never see steps that wait for others.

Rewrites preserve every bit, which is stricter than preserving every value: NumPy sums an array in memory order. So the
rewriter tracks which values may not be contiguous (`maybe_strided`), and rules keep a step if replacing it would change
the memory layout of its result. Inputs of a program count as contiguous.
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

#: Maximum bytes that a folded step reads and makes: larger ones run faster on several threads, and would bloat the
#: program. Steps that only change the layout of a large constant are folded anyway.
FOLDED_BYTES = 1 << 20


@dataclass(frozen=True)
class Rules:
    """Rewrite rules by op type, or by the first predicate on the op definition that is true."""

    by_type: Mapping[str, Rule]
    by_fact: tuple[tuple[Callable[[OpDef], bool], Rule], ...] = ()

    def of(self, definition: OpDef) -> Rule | None:
        found = self.by_type.get(definition.type)
        return found or next((rule for holds, rule in self.by_fact if holds(definition)), None)


class Rewriter:
    """One pass over a program: the rewritten steps so far, and what is known about their values."""

    def __init__(self, program: Program, rules: Sequence[Rules], evaluate: Evaluate | None = None):
        self.program = program
        self._tables = rules
        #: Cached rules by op type.
        self._rules: dict[str, Rule | None] = {}
        self.evaluate = evaluate
        self.types = list(program.types)
        self.steps: list[Step] = []
        #: Values that were replaced, and by which.
        self.alias: dict[int, int] = {}
        #: The step that made a value, if rules inspect steps of its type and it waits for nothing.
        self.made: dict[int, Step] = {}
        #: Values that are constants.
        self.known: dict[int, Array] = {}
        #: Values that may not be contiguous.
        self.maybe_strided: set[int] = set()
        self.changed = False
        #: Constants without a step: one is added when a remaining step reads them, which is rare.
        self._pending: dict[int, Step] = {}
        self._numbers: dict[int, int] = {}
        #: For `after`: the steps that others wait for, the new index of each step, the replacements of removed steps,
        #: and the step that made each value.
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

    # -- queries of rules --------------------------------------------------------------------------------------------

    def number(self, v: int) -> Array | None:
        """The number that all elements of a value are equal to, if known."""
        array = self.known.get(v)
        if array is None and v in self.made:
            step = self.made[v]
            if step.type == "Fill":
                return None if step.attrs["dtype"].kind in "SU" else filled(step, ())
            if step.type == "BroadcastTo":
                array = self.known.get(step.inputs[0])
        return array.reshape(()) if array is not None and array.size == 1 else None

    def scalar(self, v: int, number: Array, like: Step) -> int:
        """A value of shape () for a value with all elements equal to `number`."""
        if v not in self._numbers:
            self._numbers[v] = len(self.types)
            self.types.append(Spec((), self.types[v].dtype))
            self.constant(self._numbers[v], number, like)
        return self._numbers[v]

    def constant(self, v: int, array: Array, like: Step) -> None:
        """Replace the step that makes a value by a constant."""
        array = array.view()
        array.flags.writeable = False
        self.known[v] = array
        if not array.flags.c_contiguous:
            self.maybe_strided.add(v)
        self._pending[v] = Step("Const", (), (v,), {"value": array}, (), like.source, like.name, like.device)

    def computed(self, step: Step, arrays: Sequence[Array]) -> Array | None:
        """The result of a step with one output on these numbers; None if there is no `evaluate`, or it fails."""
        if self.evaluate is None:
            return None
        try:
            (made,) = self.evaluate(step, arrays, [Spec((), self.types[step.outputs[0]].dtype)])
        except Exception:  # the run will raise it
            return None
        return made

    # -- the loop ----------------------------------------------------------------------------------------------------

    def _moved(self, step: Step) -> Step:
        """The step with its inputs and waits updated to the rewritten program."""
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
        """Fold a step, or rewrite it until no rule applies."""
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
        if i not in self._waited or self._redirect_waits(i, made):
            self.alias.update(zip(step.outputs, made, strict=True))
        else:
            self._keep(i, step)

    def _rule(self, op_type: str) -> Rule | None:
        """The rule of this op type; if several tables have one, the first that applies."""
        found = [rule for table in self._tables if (rule := table.of(OPS[op_type])) is not None]

        def first(r: Rewriter, step: Step) -> Made:
            return next((made for rule in found if (made := rule(r, step)) is not None), None)

        self._rules[op_type] = first if len(found) > 1 else found[0] if found else None
        return self._rules[op_type]

    def _redirect_waits(self, i: int, values: Sequence[int]) -> bool:
        """Make steps that wait for a removed step wait for the makers of its values; False if there are none.

        Waits are never dropped: they distinguish a recomputation from the original.
        """
        makers = tuple([self._maker[v] for v in values if v in self._maker])
        if makers:
            self._gone[i] = makers
        return bool(makers)

    def _folded(self, i: int, step: Step) -> bool:
        """Constant folding: compute a step now if all inputs are constants and the results are small."""
        known, types = self.known, self.types
        for v in step.inputs:
            if v not in known:
                return False
        if self.evaluate is None or not _foldable(step, types):
            return False
        try:
            arrays = self.evaluate(step, [known[v] for v in step.inputs], [types[v] for v in step.outputs])
        except Exception:  # the run will raise it with the op and its line
            return False
        if not all(array.flags.forc for array in arrays):  # serializing the program would change its layout
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
        """Insert a step before the current one; returns its new value."""
        v = len(self.types)
        self.types.append(spec)
        made = Step(step.type, step.inputs, (v,), step.attrs, (), step.source, step.name, step.device)
        self._maker[v] = len(self.steps)
        self.steps.append(made)
        if _is_inspected(made):
            self._record_maker(made)
        self._record_layout(made)
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
        if not step.after and _is_inspected(step):
            self._record_maker(step)
        self._record_layout(step)

    def _record_layout(self, step: Step) -> None:
        """Record results that may not be contiguous: those of views and calls. Other steps allocate their results."""
        definition = OPS[step.type]
        if definition.view is not None:
            keeps = definition.view in (View.SAME, View.FLAT) and self.maybe_strided.isdisjoint(step.inputs)
        elif step.type == "Const":
            keeps = step.attrs["value"].flags.c_contiguous
        else:
            keeps = definition.kind is not Kind.CALL
        if not keeps:
            self.maybe_strided.update(step.outputs)

    def _record_maker(self, step: Step) -> None:
        if step.type == "Const":
            self.known[step.outputs[0]] = step.attrs["value"]
            return
        for v in step.outputs:
            self.made[v] = step
        if step.type == "Fill" and size_of(step.attrs["shape"]) == 1 and step.attrs["dtype"].kind not in "SU":
            self.known[step.outputs[0]] = filled(step, step.attrs["shape"])


def _is_inspected(step: Step) -> bool:
    """Whether rules inspect steps of this type."""
    definition = OPS[step.type]
    return definition.kind is Kind.SOURCE or definition.view is not None or step.type == "Neg"


def moved(step: Step, inputs: tuple[int, ...], after: tuple[int, ...]) -> Step:
    """The step with new inputs and waits. (`dataclasses.replace` is several times slower.)"""
    return Step(step.type, inputs, step.outputs, step.attrs, after, step.source, step.name, step.device, step.body)


def filled(step: Step, shape: tuple[int, ...]) -> Array:
    """The array that a Fill makes, in this shape."""
    return np.full(shape, step.attrs["value"], step.attrs["dtype"])


def _foldable(step: Step, types: Sequence[Spec]) -> bool:
    definition = OPS[step.type]
    if definition.stateful or definition.at_run or definition.kernel is not None:
        return False
    if definition.types_only or step.type == "BroadcastTo":  # keep a broadcast number instead of the full array
        return False
    read, made = _bytes(types, step.inputs), _bytes(types, step.outputs)
    changes_layout = definition.kind is Kind.LAYOUT or step.type == "Cast"
    return read + made <= FOLDED_BYTES or (changes_layout and made <= read)


def _bytes(types: Sequence[Spec], values: Sequence[int]) -> int:
    return sum([size_of(types[v].shape) * types[v].dtype.itemsize for v in values])


def live(steps: Sequence[Step], before: Program, after: Program) -> tuple[Step, ...]:
    """Remove dead steps. Steps with results that were never read run for side effects, and are kept."""
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
    """For each value, whether a step reads it or it is an output."""
    used = bytearray(len(program.types))
    for step in program.steps:
        for v in step.inputs:
            used[v] = 1
    for v in program.wanted:
        used[v] = 1
    return used


def taken(steps: Sequence[Step], kept: Sequence[int], waits: bool = True) -> tuple[Step, ...]:
    """The steps at these indices, with `after` renumbered."""
    if len(kept) == len(steps):
        return tuple(steps)
    if not waits:
        return tuple([steps[i] for i in kept])
    place = {old: new for new, old in enumerate(kept)}
    chosen = [steps[i] for i in kept]
    return tuple([moved(s, s.inputs, tuple([place[i] for i in s.after])) if s.after else s for s in chosen])
