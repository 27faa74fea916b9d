"""Small elementwise steps: kernels for arrays of any length, and tables of them that one native loop walks.

A fused step is compiled for its shapes, which would take longer than it saves for arrays of a few elements. A step on
its own needs one kernel per op, dtypes and scalar operands; many steps in a row are a table of kernels, addresses and
lengths. No Python runs between two of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

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


def walked(
    calls: Sequence[TapeCall], static: Collection[int], new_slot: Callable[[], int]
) -> tuple[list[TapeCall], list[TapeCall]]:
    """The calls of a tape with those in a row that are small steps as one; and the calls that bind their tables to the
    arrays in `static` slots, once per arena. `new_slot` makes a slot."""
    made: list[TapeCall] = []
    binds: list[TapeCall] = []
    row: list[TapeCall] = []
    later: list[TapeCall] = []

    def end() -> None:
        if row:
            walk, table = Walk(row, static), new_slot()
            step = _together([call.step for call in row if call.step is not None])
            binds.append(TapeCall(walk.bind, walk.static, table, step))
            made.append(TapeCall(builtins().walk, (table, *walk.moving), table, step))
        made.extend(later)
        row.clear()
        later.clear()

    for call in calls:
        if isinstance(call.run, SmallStep):
            row.append(call)
        elif row and call.run is nothing:
            later.append(call)
        elif row and not call.args:  # an array for a result: it may be made earlier
            made.append(call)
        else:
            end()
            made.append(call)
    end()
    return made, binds


def _together(steps: Sequence[Step]) -> Step:
    """What reports call a row of steps."""
    return steps[0] if len(steps) == 1 else replace(steps[-1], type=FUSED, body=tuple(steps))


def is_native(call: TapeCall) -> bool:
    """Whether a call of a tape computes nothing with NumPy."""
    return call.run is builtins().walk or call.run is nothing or not call.args


class Walk:
    """Small steps in a row. `static` and `moving` are the slots of arrays that an arena has for good, and of others."""

    def __init__(self, calls: Sequence[TapeCall], static: Collection[int]):
        slots = dict.fromkeys([slot for call in calls for slot in call.args])
        self.static = tuple([slot for slot in slots if slot in static])
        self.moving = tuple([slot for slot in slots if slot not in static])
        self._args = [call.args for call in calls]
        self._kernels = [(call.run.code.address, call.run.length) for call in calls if isinstance(call.run, SmallStep)]
        places: dict[int, list[int]] = {slot: [] for slot in self.moving}
        for place, slot in enumerate([slot for args in self._args for slot in args]):
            if slot in places:
                places[slot].append(place)
        self._places = list(places.values())

    def bind(self, *arrays: Array) -> Array:
        """The table, with the addresses of the arrays in static slots."""
        known = dict.fromkeys(self.moving, 0) | {slot: address(x) for slot, x in zip(self.static, arrays, strict=True)}
        return walk_table(self._kernels, [[known[slot] for slot in args] for args in self._args], self._places)
