"""Native functions that are builtins of Python, called with arrays.

    step(table, *arrays)    calls one kernel, and returns the last array
    walk(table, *arrays)    puts the addresses of the arrays where the table says, and calls the kernel of each row

Python takes a microsecond to tell the address of an array, a hundred times as long as a small kernel runs. A builtin
gets its arguments as pointers, and reads the address of an array from where NumPy's C interface has it, as the macro
PyArray_DATA does. Nothing is checked: whoever compiles a task knows that its arrays are contiguous and how many there
are.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir

from distgrad.workers.native.llvm import Loaded, compile_module, once

Array = np.ndarray[Any, np.dtype[Any]]

#: Number of elements from which on a kernel runs without the GIL: below it, handing that over takes longer.
MANY_ELEMENTS = 1 << 15

_WORD = np.dtype(np.uint64)
#: The first words of each table: two functions of Python that a table of many elements calls, and one that all call.
_SAVE, _RESTORE, _OWN, _HEAD = range(4)
#: Bytes of an array object before the address of its data: those that every object has.
_DATA = object.__basicsize__

_I32, _I64 = ir.IntType(32), ir.IntType(64)
_POINTER = ir.IntType(8).as_pointer()
_KERNEL = ir.FunctionType(ir.VoidType(), [_POINTER.as_pointer(), *[_I64] * 4])
_BUILTIN = ir.FunctionType(_POINTER, [_POINTER, _POINTER.as_pointer(), _I64])


def address(x: Array) -> int:
    return int(x.__array_interface__["data"][0])


# -- tables ------------------------------------------------------------------------------------------------------------


def step_table(kernel: int, length: int) -> Array:
    """The table of a step: the address of its kernel, and the length of its arrays."""
    return np.array([*_head(length), kernel, length], _WORD)


def walk_table(
    kernels: Sequence[tuple[int, int]], counts: Sequence[int], arrays: Array, moving: Sequence[Sequence[int]]
) -> Array:
    """The table of many steps.

    Args:
        kernels: the kernel of each step, and the length of its arrays.
        counts: the number of arrays of each step.
        arrays: the addresses of the arrays of all steps; anything for those that are arguments of `walk`.
        moving: for each argument of `walk`, its places, counted over the arrays of all steps.
    """
    places = [(k, place) for k, at in enumerate(moving, 1) for place in at]  # the first argument is the table
    head = _head(sum([length for _, length in kernels]))
    sizes = [_HEAD + 2, 2 * len(places), 3 * len(kernels), len(arrays)]
    table = np.zeros(sum(sizes), _WORD)
    moves, rows, addresses = np.split(table, np.cumsum(sizes)[:-1])[1:]
    table[: _HEAD + 2] = [*head, len(places), len(kernels)]
    moves[:] = [word for k, place in places for word in (k, address(addresses) + place * _WORD.itemsize)]
    rows = rows.reshape(-1, 3)
    rows[:, :2] = kernels
    rows[:, 2] = np.cumsum([0, *counts[:-1]]) * _WORD.itemsize + address(addresses)
    addresses[:] = arrays
    return table


def _head(elements: int) -> list[int]:
    save, restore, own = _python()
    return [save if elements >= MANY_ELEMENTS else 0, restore, own]


# -- builtins ----------------------------------------------------------------------------------------------------------


class _MethodDef(ctypes.Structure):
    """PyMethodDef of Python's C interface."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


_METH_FASTCALL = 0x80


class Builtins:
    """`step` and `walk`. The code, and what Python knows of it, is kept as long as the process lives."""

    def __init__(self) -> None:
        self._loaded = Loaded(compile_module(_module()))
        self._defined = [self._definition(name) for name in ("step", "walk")]
        self.step, self.walk = map(_builtin, self._defined)

    def _definition(self, name: str) -> _MethodDef:
        return _MethodDef(name.encode(), self._loaded.address(name), _METH_FASTCALL, None)


builtins = once(Builtins)


def _builtin(defined: _MethodDef) -> Callable[..., Any]:
    make = ctypes.pythonapi.PyCFunction_NewEx
    make.restype, make.argtypes = ctypes.py_object, [ctypes.c_void_p] * 3
    made: Callable[..., Any] = make(ctypes.addressof(defined), None, None)
    return made


@cache
def _python() -> tuple[int, int, int]:
    """Where Python's functions are that give up the GIL, take it back, and count a reference."""
    api = ctypes.pythonapi
    found = [ctypes.cast(f, ctypes.c_void_p).value for f in (api.PyEval_SaveThread, api.PyEval_RestoreThread)]
    found.append(ctypes.cast(api.Py_IncRef, ctypes.c_void_p).value)
    save, restore, own = (where or 0 for where in found)
    return save, restore, own


# -- their code --------------------------------------------------------------------------------------------------------


def _module() -> ir.Module:
    module = ir.Module(name="direct")
    _Code(module, "step").step()
    _Code(module, "walk").walk()
    return module


class _Code:
    """The code of one builtin: PyObject *f(PyObject *self, PyObject *const *args, Py_ssize_t count)."""

    def __init__(self, module: ir.Module, name: str):
        function = ir.Function(module, _BUILTIN, name)
        _, self._args, self._count = function.args
        self._b = ir.IRBuilder(function.append_basic_block("entry"))
        self._table = self._b.bitcast(self._data(_I64(0)), _I64.as_pointer())

    def step(self) -> None:
        b = self._b
        kernel, length = (self._word(_HEAD + i) for i in range(2))
        addresses = b.alloca(_POINTER, b.sub(self._count, _I64(1)))
        with self._counted(_I64(1), self._count) as i:
            b.store(self._data(i), b.gep(addresses, [b.sub(i, _I64(1))]))
        with self._perhaps_without_gil():
            self._call(kernel, addresses, length)
        self._return(b.sub(self._count, _I64(1)))

    def walk(self) -> None:
        b = self._b
        moves, rows = (self._word(_HEAD + i) for i in range(2))
        at = b.gep(self._table, [_I64(_HEAD + 2)])
        with self._counted(_I64(0), moves) as i:
            k, place = (b.load(b.gep(at, [b.add(b.mul(i, _I64(2)), _I64(j))])) for j in range(2))
            b.store(self._data(k), b.inttoptr(place, _POINTER.as_pointer()))
        at = b.gep(at, [b.mul(moves, _I64(2))])
        with self._perhaps_without_gil(), self._counted(_I64(0), rows) as i:
            kernel, length, arrays = (b.load(b.gep(at, [b.add(b.mul(i, _I64(3)), _I64(j))])) for j in range(3))
            self._call(kernel, b.inttoptr(arrays, _POINTER.as_pointer()), length)
        self._return(_I64(0))

    def _word(self, i: int) -> ir.Value:
        return self._b.load(self._b.gep(self._table, [_I64(i)]))

    def _data(self, i: ir.Value) -> ir.Value:
        """The address of an argument's data."""
        b = self._b
        at = b.gep(b.load(b.gep(self._args, [i])), [_I64(_DATA)])
        return b.load(b.bitcast(at, _POINTER.as_pointer()))

    def _call(self, kernel: ir.Value, arrays: ir.Value, length: ir.Value) -> None:
        """All rows of a kernel as one block."""
        function = self._b.inttoptr(kernel, _KERNEL.as_pointer())
        self._b.call(function, [arrays, _I64(0), length, length, _I64(0)])

    def _python(self, word: int, result: ir.Type, arguments: Sequence[ir.Value]) -> ir.Value:
        b, types = self._b, [x.type for x in arguments]
        function = b.inttoptr(self._word(word), ir.FunctionType(result, types).as_pointer())
        return b.call(function, arguments)

    @contextmanager
    def _perhaps_without_gil(self) -> Iterator[None]:
        b = self._b
        kept = b.alloca(_POINTER)
        releases = b.icmp_unsigned("!=", self._word(_SAVE), _I64(0))
        with b.if_then(releases):
            b.store(self._python(_SAVE, _POINTER, []), kept)
        yield
        with b.if_then(releases):
            self._python(_RESTORE, ir.VoidType(), [b.load(kept)])

    def _return(self, i: ir.Value) -> None:
        """Return an argument, which the caller then owns once more."""
        b = self._b
        made = b.load(b.gep(self._args, [i]))
        self._python(_OWN, ir.VoidType(), [made])
        b.ret(made)

    @contextmanager
    def _counted(self, start: ir.Value, stop: ir.Value) -> Iterator[ir.Value]:
        """for (i = start; i < stop; i++)"""
        b = self._b
        before = b.block
        head, body, end = (b.append_basic_block(name) for name in ("head", "body", "end"))
        b.branch(head)
        b.position_at_end(head)
        i = b.phi(_I64)
        i.add_incoming(start, before)
        b.cbranch(b.icmp_signed("<", i, stop), body, end)
        b.position_at_end(body)
        yield i
        i.add_incoming(b.add(i, _I64(1)), b.block)
        b.branch(head)
        b.position_at_end(end)
