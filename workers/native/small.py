"""Small elementwise steps: kernels for arrays of any length, and tables of them that one native loop walks.

A fused step is compiled for its shapes, which would take longer than it saves for arrays of a few elements. A step on
its own needs one kernel per op, dtypes and scalar operands; many steps in a row are a table of kernels, addresses and
lengths. No Python runs between two of them.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir

from distgrad.registry import OPS, Kind, kind_of
from distgrad.scheduler.program import FUSED, Step
from distgrad.types import Spec
from distgrad.workers.calls import TapeCall, nothing
from distgrad.workers.native.compiled import CompiledGroup, compiled
from distgrad.workers.native.llvm import Loaded, compile_module
from distgrad.workers.native.rules import RULES

Array = np.ndarray[Any, np.dtype[Any]]

#: The length that kernels are compiled for in name: they take any.
_LENGTH = 1024
_WORD = np.dtype(np.uint64)


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
    """Called with the inputs, then the result, which it fills and returns."""

    def __init__(self, code: CompiledGroup, length: int):
        self.code, self.length = code, length

    def __call__(self, *arrays: Array) -> Array:
        ordered = [x if x.flags.c_contiguous else np.array(x, order="C") for x in arrays]
        table = (ctypes.c_void_p * len(ordered))(*map(_address, ordered))
        self.code.run(table, 0, self.length, self.length, 0)
        if ordered[-1] is not arrays[-1]:
            np.copyto(arrays[-1], ordered[-1])
        return arrays[-1]


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
            binds.append(TapeCall(walk.bind, walk.static, table, row[0].step))
            made.append(TapeCall(_walk, (table, *walk.moving), new_slot(), row[0].step))
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


class Walk:
    """Small steps in a row. `static` and `moving` are the slots of arrays that an arena has for good, and of others."""

    def __init__(self, calls: Sequence[TapeCall], static: Collection[int]):
        slots = [slot for call in calls for slot in call.args]
        self.static = tuple([slot for slot in dict.fromkeys(slots) if slot in static])
        self.moving = tuple([slot for slot in dict.fromkeys(slots) if slot not in static])
        places: dict[int, list[int]] = {}
        for i, slot in enumerate(slots):
            places.setdefault(slot, []).append(i)
        self._static_places = [places[slot] for slot in self.static]
        self._moving_places = [places[slot] for slot in self.moving]
        self._steps = [call.run for call in calls if isinstance(call.run, SmallStep)]
        self._counts = [len(call.args) for call in calls]

    def bind(self, *arrays: Array) -> BoundWalk:
        """The table, with the addresses of the arrays in static slots."""
        addresses = np.zeros(sum(self._counts), _WORD)
        for x, places in zip(arrays, self._static_places, strict=True):
            addresses[places] = _address(x)
        starts = np.cumsum([0, *self._counts[:-1]], dtype=_WORD) * _WORD.itemsize + _address(addresses)
        rows = [(s.code.address, at, s.length) for s, at in zip(self._steps, starts.tolist(), strict=True)]
        return BoundWalk(np.array(rows, _WORD), addresses, self._moving_places)


class BoundWalk:
    """A table: each row has a kernel, where its addresses begin, and the length of its arrays."""

    def __init__(self, rows: Array, addresses: Array, places: Sequence[Sequence[int]]):
        self.addresses, self.rows = addresses, rows
        self.places = [at[0] if len(at) == 1 else at for at in places]
        self.where, self.count = _address(rows), len(rows)


def _walk(table: BoundWalk, *arrays: Array) -> None:
    addresses = table.addresses
    for x, at in zip(arrays, table.places, strict=True):
        addresses[at] = _address(x)
    _walker()[1](table.where, table.count)


def _address(x: Array) -> int:
    return int(x.__array_interface__["data"][0])


@cache
def _walker() -> tuple[Loaded, Any]:
    loaded = Loaded(compile_module(_walking_loop()))
    return loaded, ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(loaded.address("walk"))


def _walking_loop() -> ir.Module:
    """void walk(row *rows, int64 count): calls the kernel of each row."""
    word, pointer = ir.IntType(64), ir.IntType(8).as_pointer()
    kernel = ir.FunctionType(ir.VoidType(), [pointer.as_pointer(), *[word] * 4])
    row = ir.LiteralStructType([kernel.as_pointer(), pointer.as_pointer(), word])
    module = ir.Module(name="walk")
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [row.as_pointer(), word]), "walk")
    rows, count = function.args
    before, body, after = (function.append_basic_block(name) for name in ("entry", "row", "end"))
    b = ir.IRBuilder(before)
    b.cbranch(b.icmp_signed(">", count, word(0)), body, after)
    b.position_at_end(body)
    i = b.phi(word, "i")
    i.add_incoming(word(0), before)
    fields = [b.load(b.gep(rows, [i, ir.IntType(32)(k)])) for k in range(3)]
    b.call(fields[0], [fields[1], word(0), fields[2], fields[2], word(0)])
    following = b.add(i, word(1))
    i.add_incoming(following, body)
    b.cbranch(b.icmp_signed("<", following, count), body, after)
    b.position_at_end(after)
    b.ret_void()
    return module
