"""Small elementwise steps: kernels for arrays of any length, and tables of them that one native loop walks.

A fused step is compiled for its shapes, which would take longer than it saves for arrays of a few elements. A step on
its own needs one kernel per op, dtypes and scalar operands; many steps in a row are a table of kernels, addresses and
lengths. No Python runs between two of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from distgrad.errors import UNKNOWN
from distgrad.registry import OPS, Kind, kind_of
from distgrad.scheduler.program import FUSED, Step
from distgrad.types import Spec
from distgrad.workers.calls import TapeCall, nothing
from distgrad.workers.native.compiled import CompiledGroup, compiled
from distgrad.workers.native.direct import address, builtins, step_table, walk_table
from distgrad.workers.native.rules import RULES

Array = np.ndarray[Any, np.dtype[Any]]

#: The length that kernels are compiled for in name: they take any.
_LENGTH = 1024


class SmallSteps:
    """The small steps of one task: those that do the same to arrays of the same types share one object."""

    def __init__(self, types: Sequence[Spec]):
        numbers: dict[Spec, int] = {}
        self._types = types
        self._numbers = [numbers.setdefault(spec, len(numbers)) for spec in types]
        self._known: dict[Any, SmallStep | None] = {}

    def of(self, step: Step) -> SmallStep | None:
        """A step as native code, if it is a small one."""
        numbers = self._numbers
        key = step.type, *[numbers[v] for v in step.inputs], *[numbers[v] for v in step.outputs]
        if step.attrs:
            key = *key, repr(sorted(step.attrs.items())) if step.type in RULES else ""
        if key not in self._known:
            self._known[key] = small_step(step, self._types)
        return self._known[key]

    def copy(self, v: int) -> SmallStep | None:
        """What copies a value to an array of the same type."""
        key = self._numbers[v]
        if key not in self._known:
            step = Step("Cast", (v,), (v,), {"dtype": self._types[v].dtype}, (), UNKNOWN, "copy")
            self._known[key] = small_step(step, self._types)
        return self._known[key]


def small_step(step: Step, types: Sequence[Spec]) -> SmallStep | None:
    """An elementwise step as native code; None where there is no rule for it, or an operand is broadcast to rows."""
    if step.type not in RULES or kind_of(step.type) is not Kind.ELEMENTWISE or OPS[step.type].kernel is not None:
        return None
    (v,) = step.outputs
    length = math.prod(types[v].shape)
    sizes = [math.prod(types[u].shape) for u in step.inputs]
    if not length or not sizes or any(size not in (1, length) for size in sizes):
        return None
    code = _kernel(step, types, [size == length for size in sizes])
    return None if code is None else SmallStep(code, length)


def _kernel(step: Step, types: Sequence[Spec], is_full: Sequence[bool]) -> CompiledGroup | None:
    """The kernel of a step like this on arrays of any length."""
    specs = [Spec((_LENGTH,) if full else (), types[v].dtype) for v, full in zip(step.inputs, is_full, strict=True)]
    specs.append(Spec((_LENGTH,), types[step.outputs[0]].dtype))
    inputs, made = tuple(range(len(step.inputs))), len(step.inputs)
    attrs = {name: value for name, value in step.attrs.items() if name != "shape"}  # of a broadcast
    inner = replace(step, inputs=inputs, outputs=(made,), attrs=attrs)
    whole = replace(inner, type=FUSED, attrs={"space": (_LENGTH,), "split": 1}, body=(inner,))
    return compiled(whole, specs)


class SmallStep:
    """Called with the inputs, then the result, which it fills and returns. All are contiguous."""

    def __init__(self, code: CompiledGroup, length: int):
        self.code, self.length = code, length
        self._run, self._table = builtins().step, step_table(code.address, length)

    def __call__(self, *arrays: Array) -> Array:
        made: Array = self._run(self._table, *arrays)
        return made


# -- tables ------------------------------------------------------------------------------------------------------------


class Known(NamedTuple):
    """What is known of slots before a run."""

    #: Those of arrays in the arena, with their offsets.
    places: Mapping[int, int]
    #: Those of arrays that an arena has for good, such as constants and views.
    static: Collection[int]
    #: Those of views that each run makes, which reads no elements.
    views: Collection[int]
    #: That of the arena's memory.
    memory: int


def walked(
    calls: Sequence[TapeCall], known: Known, new_slot: Callable[[], int]
) -> tuple[list[TapeCall], list[TapeCall]]:
    """The calls of a tape with those in a row that are small steps as one; and the calls that bind their tables to an
    arena. `new_slot` makes a slot."""
    made: list[TapeCall] = []
    binds: list[TapeCall] = []
    row: list[TapeCall] = []
    later: list[TapeCall] = []

    def end() -> None:
        if row:
            walk, table = Walk(row, known), new_slot()
            step = _together([call.step for call in row if call.step is not None])
            binds.append(TapeCall(walk.bind, (known.memory, *walk.static), table, step))
            made.append(TapeCall(builtins().walk, (table, *walk.moving), table, step))
        made.extend(later)
        row.clear()
        later.clear()

    for call in calls:
        if isinstance(call.run, SmallStep):
            row.append(call)
        elif row and call.run is nothing:
            later.append(call)
        elif row and _reads_nothing(call, known):
            made.append(call)
        else:
            end()
            made.append(call)
    end()
    return made, binds


def _reads_nothing(call: TapeCall, known: Known) -> bool:
    """Whether a call makes an array for a result, or a view, and may be made earlier. What fills a view gives that view
    again."""
    return not call.args or (call.out in known.views and call.out not in call.args)


def _together(steps: Sequence[Step]) -> Step:
    """What reports call a row of steps."""
    return steps[0] if len(steps) == 1 else replace(steps[-1], type=FUSED, body=tuple(steps))


def is_native(call: TapeCall) -> bool:
    """Whether a call of a tape computes nothing with NumPy."""
    return call.run is builtins().walk or call.run is nothing or not call.args


class Walk:
    """Small steps in a row. `static` and `moving` are the slots of arrays that an arena has for good, and of others;
    arrays in the memory of the arena are known by their offsets."""

    def __init__(self, calls: Sequence[TapeCall], known: Known):
        every = [slot for call in calls for slot in call.args]
        slots, places, static = dict.fromkeys(every), known.places, known.static
        placed = [slot for slot in slots if slot in places]
        others = [slot for slot in slots if slot not in places]
        self.static = tuple([slot for slot in others if slot in static])
        self.moving = tuple([slot for slot in others if slot not in static])
        self._kernels = [(call.run.code.address, call.run.length) for call in calls if isinstance(call.run, SmallStep)]
        self._counts = [len(call.args) for call in calls]
        self._offsets = np.array([places[slot] for slot in placed], np.uint64)
        number = {slot: k for k, slot in enumerate((*placed, *self.static, *self.moving))}
        self._numbers = np.array([number[slot] for slot in every], np.intp)
        first = len(placed) + len(self.static)
        self._moved: list[list[int]] = [[] for _ in self.moving]
        for place in np.flatnonzero(self._numbers >= first).tolist():
            self._moved[self._numbers[place] - first].append(place)

    def bind(self, memory: Array, *arrays: Array) -> Array:
        """The table, with the addresses of the arrays in the memory of an arena, and of those in static slots."""
        others = np.array([*map(address, arrays), *[0] * len(self.moving)], np.uint64)
        addresses = np.concatenate([self._offsets + address(memory), others])[self._numbers]
        return walk_table(self._kernels, self._counts, addresses, self._moved)
