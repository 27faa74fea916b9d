"""The native functions of regions. All rows of a table have the signature that fused steps have:

void f(char **fields, int64 a, int64 b, int64 c, int64 d)

multiply    matrix products by BLAS, in two loops over batches
copy        an array into another one of any strides
run         the loop over the rows of a table, which keeps the time of each
"""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir

from distgrad.workers.native.emitter import Emitter
from distgrad.workers.native.llvm import Loaded, compile_module, once
from distgrad.workers.native.regions.blas import ROWS, gemm

_I1, _I32, _I64 = ir.IntType(1), ir.IntType(32), ir.IntType(64)
_POINTER = ir.IntType(8).as_pointer()
_WORDS = _I64.as_pointer()
_ROW = ir.FunctionType(ir.VoidType(), [_WORDS, *[_I64] * 4])
#: The table, the state of the thread, and its scratch memory; whether there is more to do.
_RUN = ir.FunctionType(_I64, [_WORDS, _WORDS, _POINTER])
_CLOCK = ir.FunctionType(_I32, [_I32, _WORDS])

#: Fields of a product: each loop over batches has a length, and the bytes from one matrix to the next of a, b and c.
MULTIPLY = (
    "a", "b", "c", "a_order", "b_order", "rows", "columns", "depth", "a_row", "b_row", "c_row",
    "count", "a_step", "b_step", "c_step", "outer", "a_outer", "b_outer", "c_outer",
)  # fmt: skip
#: Axes that a copy loops over.
AXES = 5
#: Fields of a copy: lengths, then bytes from one element to the next, of the target and of the source.
COPY = ("to", "from", "bytes", *[f"{part}{i}" for part in ("length", "to", "from") for i in range(AXES)])
#: Bytes of elements that are copied one by one; 0 stands for runs of `bytes`.
ELEMENTS = (0, 1, 2, 4, 8, 16)

#: Words at the start of a table: whether threads have to stop, where the rows begin, the nanoseconds after which
#: Python is asked if they have to, and the clock.
STOP, TABLE_ROWS, SLICE, CLOCK, WHICH = range(5)
#: Words of a row: its function and fields, four numbers, where the address of scratch memory goes (0: nowhere), and the
#: place of its time among those that the state keeps.
FUNCTION, FIELDS, NUMBERS, SCRATCH, TIMED, ROW_WORDS = 0, 1, 2, 6, 7, 8
#: Words of a thread's state: its next row, the one to stop before, and then the nanoseconds of each step.
NEXT, LAST, SPENT = range(3)
#: Why a walk returns: it is at its end, a slice of time is over, or the next row, without a function, is Python's.
DONE, MORE, PYTHON = range(3)

_ASK = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(ctypes.c_int64))
_CALL = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)  # without the GIL


class RegionCode:
    """The compiled functions."""

    def __init__(self) -> None:
        loaded = self._loaded = Loaded(compile_module(_module()))
        self.multiply = {char: loaded.address(f"multiply_{char}") for char in _products()}
        self.copy = {nbytes: loaded.address(f"copy_{nbytes}") for nbytes in ELEMENTS}
        self.run = _CALL(loaded.address("run"))


region_code = once(RegionCode)


@cache
def clock() -> tuple[Any, int]:
    """A function that writes seconds and nanoseconds, and what to ask it for: the clock of `time.perf_counter`."""
    if sys.platform == "win32":
        return _ASK(_ask_python), 0
    return ctypes.CDLL(None).clock_gettime, time.CLOCK_MONOTONIC


def _ask_python(_: int, at: Any) -> int:
    at[0], at[1] = divmod(time.perf_counter_ns(), 10**9)
    return 0


def _products() -> list[str]:
    return [char for char in "fd" if gemm(np.dtype(char)) is not None]


def _module() -> ir.Module:
    module = ir.Module(name="regions")
    for char in _products():
        _Multiply(module, char)
    for nbytes in ELEMENTS:
        _Copy(module, nbytes)
    _Run(module)
    return module


class _Function(Emitter):
    """A function under construction, with the words of its first argument."""

    def __init__(self, module: ir.Module, name: str, kind: ir.FunctionType, fields: Sequence[str] = ()):
        self.module, self._fields = module, fields
        self.function = ir.Function(module, kind, name)
        self._b = ir.IRBuilder(self.function.append_basic_block("entry"))

    def _word(self, at: ir.Value, i: int) -> ir.Value:
        return self._b.load(self._b.gep(at, [_I64(i)]))

    def _field(self, name: str) -> ir.Value:
        return self._word(self.function.args[0], self._fields.index(name))

    def _pointer(self, name: str) -> ir.Value:
        return self._b.inttoptr(self._field(name), _POINTER)

    def _moved(self, at: ir.Value, *steps: tuple[ir.Value, ir.Value]) -> ir.Value:
        for index, nbytes in steps:
            at = self._b.gep(at, [self._b.mul(index, nbytes)])
        return at

    @contextmanager
    def _loop(self, length: ir.Value, name: str) -> Iterator[ir.Value]:
        with self._counted(_I64(0), length, 1, name) as i:
            yield i


class _Multiply(_Function):
    """c = a @ b for each matrix of a batch."""

    def __init__(self, module: ir.Module, char: str):
        super().__init__(module, f"multiply_{char}", _ROW, ("function", *MULTIPLY))
        found = gemm(np.dtype(char))
        assert found is not None
        integer, real = ir.IntType(found.bits), ir.FloatType() if char == "f" else ir.DoubleType()
        matrix = [_POINTER, integer]
        kind = ir.FunctionType(ir.VoidType(), [*[_I32] * 3, *[integer] * 3, real, *matrix, *matrix, real, *matrix])
        b = self._b
        function = b.inttoptr(self._field("function"), kind.as_pointer())
        orders = [_I32(ROWS), *[b.trunc(self._field(name), _I32) for name in ("a_order", "b_order")]]
        sizes = [self._integer(name, integer) for name in ("rows", "columns", "depth")]
        starts = [(self._pointer(name), self._integer(f"{name}_row", integer)) for name in "abc"]
        steps = [(self._field(f"{name}_outer"), self._field(f"{name}_step")) for name in "abc"]
        with self._loop(self._field("outer"), "outer") as i, self._loop(self._field("count"), "count") as j:
            a, x, c = [
                (self._moved(at, (i, outer), (j, step)), row)
                for (at, row), (outer, step) in zip(starts, steps, strict=True)
            ]
            b.call(function, [*orders, *sizes, real(1), *a, *x, real(0), *c])
        b.ret_void()

    def _integer(self, name: str, kind: ir.IntType) -> ir.Value:
        found = self._field(name)
        return found if kind == _I64 else self._b.trunc(found, kind)


class _Copy(_Function):
    """Elements of this number of bytes; with 0, runs of bytes of any length."""

    def __init__(self, module: ir.Module, nbytes: int):
        super().__init__(module, f"copy_{nbytes}", _ROW, COPY)
        self._nbytes = nbytes
        lengths = [self._field(f"length{i}") for i in range(AXES)]
        steps = [(self._field(f"to{i}"), self._field(f"from{i}")) for i in range(AXES)]
        self._axis(
            self._pointer("to"), self._pointer("from"), self._field("bytes"), [*zip(lengths, steps, strict=True)]
        )
        self._b.ret_void()

    def _axis(self, to: ir.Value, source: ir.Value, nbytes: ir.Value, axes: Sequence[Any]) -> None:
        if not axes:
            self._element(to, source, nbytes)
            return
        (length, (to_step, step)), *inner = axes
        with self._loop(length, f"axis{len(inner)}") as i:
            self._axis(self._moved(to, (i, to_step)), self._moved(source, (i, step)), nbytes, inner)

    def _element(self, to: ir.Value, source: ir.Value, nbytes: ir.Value) -> None:
        b = self._b
        if self._nbytes:
            kind = ir.IntType(8 * self._nbytes).as_pointer()
            b.store(b.load(b.bitcast(source, kind), align=1), b.bitcast(to, kind), align=1)
            return
        kind = ir.FunctionType(ir.VoidType(), [_POINTER, _POINTER, _I64, _I1])
        name = "llvm.memcpy.p0.p0.i64"
        known = self.module.globals.get(name)
        b.call(ir.Function(self.module, kind, name) if known is None else known, [to, source, nbytes, _I1(0)])


class _Run(_Function):
    """Calls the rows from `next` to `last`. Returns 1 after a slice of time, if there are rows left; else 0."""

    def __init__(self, module: ir.Module):
        super().__init__(module, "run", _RUN)
        b, (table, state, scratch) = self._b, self.function.args
        self._instant = b.alloca(ir.ArrayType(_I64, 2))
        rows = b.inttoptr(self._word(table, TABLE_ROWS), _WORDS)
        last, begun = self._word(state, LAST), self._now()
        entry = b.block
        head, body, more, done, later = (
            b.append_basic_block(name) for name in ("head", "body", "more", "done", "later")
        )
        b.branch(head)
        b.position_at_end(head)
        before = b.phi(_I64)
        before.add_incoming(begun, entry)
        row = self._word(state, NEXT)
        stop = b.load_atomic(b.gep(table, [_I64(STOP)]), "monotonic", 8)
        b.cbranch(b.and_(b.icmp_signed("<", row, last), b.icmp_signed("==", stop, _I64(0))), body, done)
        b.position_at_end(body)
        at = b.gep(rows, [b.mul(row, _I64(ROW_WORDS))])
        with b.if_then(b.icmp_signed("==", self._word(at, FUNCTION), _I64(0))):
            b.ret(_I64(PYTHON))
        self._row(at, state, scratch, before)
        now = self._after
        b.store(b.add(row, _I64(1)), b.gep(state, [_I64(NEXT)]))
        b.cbranch(b.icmp_signed(">", b.sub(now, begun), self._word(table, SLICE)), later, more)
        b.position_at_end(more)
        before.add_incoming(now, more)
        b.branch(head)
        b.position_at_end(done)
        b.ret(_I64(DONE))
        b.position_at_end(later)
        b.ret(_I64(MORE))

    def _row(self, at: ir.Value, state: ir.Value, scratch: ir.Value, before: ir.Value) -> None:
        """Call one row, and add its time."""
        b = self._b
        place = self._word(at, SCRATCH)
        with b.if_then(b.icmp_signed("!=", place, _I64(0))):
            b.store(scratch, b.inttoptr(place, _POINTER.as_pointer()))
        function = b.inttoptr(self._word(at, FUNCTION), _ROW.as_pointer())
        fields = b.inttoptr(self._word(at, FIELDS), _WORDS)
        b.call(function, [fields, *[self._word(at, NUMBERS + i) for i in range(4)]])
        self._after = self._now()
        spent = b.gep(state, [b.add(self._word(at, TIMED), _I64(SPENT))])
        b.store(b.add(b.load(spent), b.sub(self._after, before)), spent)

    def _now(self) -> ir.Value:
        """Nanoseconds."""
        b, table = self._b, self.function.args[0]
        instant = b.bitcast(self._instant, _WORDS)
        b.call(
            b.inttoptr(self._word(table, CLOCK), _CLOCK.as_pointer()),
            [b.trunc(self._word(table, WHICH), _I32), instant],
        )
        return b.add(b.mul(self._word(instant, 0), _I64(10**9)), self._word(instant, 1))
