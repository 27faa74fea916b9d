"""Functions of native code that are written by hand: loops over runtime sizes, shared by all shapes.

    void name(int64 *fields, char *scratch, int64 start, int64 stop)

`fields` has the addresses and sizes that the function names. Where fused steps are compiled for their shapes, such a
function is compiled once per dtype.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from llvmlite import ir

from distgrad.types import DType
from distgrad.workers.native.emitter import Emitter
from distgrad.workers.native.kernels.products import multiply
from distgrad.workers.native.llvm import HOST, Loaded, Target, compile_module
from distgrad.workers.native.values import LANES, Value, constant, select

_I1, _I64 = ir.IntType(1), ir.IntType(64)
_POINTER = ir.IntType(8).as_pointer()
_SIGNATURE = ir.FunctionType(ir.VoidType(), [_I64.as_pointer(), _POINTER, _I64, _I64])
_CALL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)  # without the GIL
_INT = np.dtype(np.int64)

Array = np.ndarray[Any, np.dtype[Any]]
#: Called with fields, scratch memory and a range.
Function = Callable[[Any, int, int, int], None]
#: A vector of elements: where it begins, and which of its lanes there are; None stands for all.
Body = Callable[[Value, "ir.Value | None"], None]


class Code(Emitter):
    """A function under construction. Integers are `Value`s, addresses are those of bytes."""

    def __init__(self, module: ir.Module, name: str, dtype: DType, fields: Sequence[str]):
        self.module, self.dtype = module, dtype
        self.function = ir.Function(module, _SIGNATURE, name)
        table, self.scratch, start, stop = self.function.args
        self._b = ir.IRBuilder(self.function.append_basic_block("entry"))
        self.start, self.stop = self.integer(start), self.integer(stop)
        self._table, self._fields = table, fields

    def end(self) -> None:
        self._b.ret_void()

    # -- numbers and addresses -----------------------------------------------------------------------------------------

    def integer(self, number: Any) -> Value:
        return Value(self._b, _I64(number) if isinstance(number, int) else number, _INT)

    def field(self, name: str) -> Value:
        return self.integer(self._b.load(self._b.gep(self._table, [_I64(self._fields.index(name))])))

    def address(self, name: str) -> ir.Value:
        return self._b.inttoptr(self.field(name).raw, _POINTER)

    def after(self, at: ir.Value, elements: Value) -> ir.Value:
        """The address of an element after another one."""
        return self._b.gep(at, [(elements * self.dtype.itemsize).raw])

    def smaller(self, a: Value, b: Value | int) -> Value:
        return select(a < b, a, b)

    def larger(self, a: Value, b: Value | int) -> Value:
        return select(a > b, a, b)

    def divided(self, a: Value, b: Value) -> tuple[Value, Value]:
        """Quotient and rest of numbers that are not negative."""
        return self.integer(self._b.udiv(a.raw, b.raw)), self.integer(self._b.urem(a.raw, b.raw))

    def choice(self, condition: Value, a: ir.Value, b: ir.Value) -> ir.Value:
        return self._b.select(condition.raw, a, b)

    # -- flow ----------------------------------------------------------------------------------------------------------

    @contextmanager
    def loop(self, start: Value | int, stop: Value, step: int = 1) -> Iterator[Value]:
        first = start if isinstance(start, Value) else self.integer(start)
        with self._counted(first.raw, stop.raw, step, "i") as i:
            yield self.integer(i)

    @contextmanager
    def when(self, condition: Value) -> Iterator[None]:
        with self._b.if_then(condition.raw):
            yield

    @contextmanager
    def either(self, condition: Value) -> Iterator[tuple[Any, Any]]:
        with self._b.if_else(condition.raw) as branches:
            yield branches

    def vectors(self, count: Value, body: Body) -> None:
        """Call `body` for loops over the elements 0 to count - 1, a vector at a time."""
        rest = count & (LANES - 1)
        whole = count - rest
        with self.loop(0, whole, LANES) as i:
            body(i, None)
        with self.when(rest > 0):
            body(whole, self._mask(rest.raw))

    # -- memory --------------------------------------------------------------------------------------------------------

    def read(self, at: ir.Value, mask: ir.Value | None) -> Value:
        return self._load(at, self.dtype, LANES, mask)

    def write(self, at: ir.Value, value: Value, mask: ir.Value | None) -> None:
        self._save(at, self.dtype, value, mask)

    def number_at(self, at: ir.Value, index: Value) -> Value:
        """An entry of a table of integers."""
        return self.integer(self._b.load(self._b.gep(self._b.bitcast(at, _I64.as_pointer()), [index.raw])))

    def copy(self, to: ir.Value, source: ir.Value, elements: Value) -> None:
        def body(i: Value, mask: ir.Value | None) -> None:
            self.write(self.after(to, i), self.read(self.after(source, i), mask), mask)

        self.vectors(elements, body)

    def clear(self, to: ir.Value, elements: Value) -> None:
        zeros = Value(self._b, constant(0, self.dtype, LANES), self.dtype)
        self.vectors(elements, lambda i, mask: self.write(self.after(to, i), zeros, mask))

    # -- calls ---------------------------------------------------------------------------------------------------------

    def call(self, function: ir.Function, scratch: ir.Value, start: Value, stop: Value) -> None:
        """Another function of the module, with the same fields."""
        self._b.call(function, [self._table, scratch, start.raw, stop.raw])

    def multiply(
        self,
        a: tuple[ir.Value, Value, Value],
        b: tuple[ir.Value, Value],
        c: tuple[ir.Value, Value],
        sizes: tuple[Value, Value, Value],
        add: Value | None = None,
    ) -> None:
        """c = a @ b, or c += a @ b where `add` holds. Matrices are given with the elements from a row to the next, and
        for a also from a column to the next; `sizes` are the rows and columns of the result, and the depth."""
        integers = [(at, *[n.raw for n in steps]) for at, *steps in (a, b, c)]
        arguments = [*integers[0], *integers[1], *integers[2], *[n.raw for n in sizes]]
        self._b.call(multiply(self.module, self.dtype), [*arguments, _I1(0) if add is None else add.raw])


class Functions:
    """The functions of a compiled module."""

    def __init__(self, module: ir.Module, target: Target = HOST):
        self._loaded = Loaded(compile_module(module, target))
        names = [function.name for function in module.functions if not function.is_declaration]
        self._functions = {name: _CALL(self._loaded.address(name)) for name in names}

    def __getitem__(self, name: str) -> Function:
        return self._functions[name]


def table(names: Sequence[str], numbers: Mapping[str, int], arrays: Mapping[str, Array]) -> Any:
    """The fields of a call; those that it has no use for are zero. The arrays must outlive it."""
    values = {**numbers, **{name: address(x) for name, x in arrays.items()}}
    return (ctypes.c_int64 * len(names))(*[values.get(name, 0) for name in names])


def address(x: Array) -> int:
    return int(x.__array_interface__["data"][0])
