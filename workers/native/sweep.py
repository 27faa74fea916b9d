"""Runs a list of compiled groups as one native call that threads may join, and that nothing can stop half-way.

Python looks at signals between instructions of its own, never inside a call like this one. Before that call nothing
happens, whoever else has been asked to help; when it returns, all is done.
"""

from __future__ import annotations

import ctypes
import itertools
import sys
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir

from distgrad.workers.native.compiled import CompiledGroup
from distgrad.workers.native.llvm import Loaded, compile_module, once

Array = np.ndarray[Any, np.dtype[Any]]

#: Bytes of all arrays that a thread takes at a time.
_AT_A_TIME = 1 << 20
#: Elements of which ranges are multiples, so that vectors do not cross their borders.
_ELEMENTS = 1024
#: Where the counters of taken and of finished ranges are, in words: on cache lines of their own.
_TAKEN, _DONE, _COUNTERS = 0, 8, 16
_WORD = np.dtype(np.int64)


class Sweep:
    """Groups with the arrays of each: its inputs, then its outputs, all contiguous. They stay alive as long as this."""

    def __init__(self, groups: Sequence[tuple[CompiledGroup, Sequence[Array]]]):
        self._alive = groups
        self._tables = [np.array([_address(x) for x in arrays], _WORD) for _, arrays in groups]
        found = [
            (code.address, _address(table), start, stop)
            for (code, arrays), table in zip(groups, self._tables, strict=True)
            for start, stop in _ranges(code, arrays)
        ]
        ranges, counters = np.array(found, _WORD).reshape(-1, 4), np.zeros(_COUNTERS, _WORD)
        counters[_TAKEN] = len(found)  # nothing can be taken before the sweep begins
        where = _address(ranges), len(found), _address(counters)
        #: Does it all, with whoever joins.
        self.begin: Callable[[], None] = partial(_code().sweep, *where, _yields())
        self.part = Part(partial(_code().join, *where), ranges, counters)


class Part(NamedTuple):
    """`run` takes part in a sweep, and does nothing before that has begun and after it has ended. Keeps no array of the
    groups alive: whoever comes late must not seem to read them."""

    run: Callable[[], None]
    ranges: Array
    counters: Array


def _ranges(code: CompiledGroup, arrays: Sequence[Array]) -> list[tuple[int, int]]:
    rows = code.group.rows
    unit = _ELEMENTS if code.group.flat else 1
    count = max(1, sum([x.nbytes for x in arrays]) // _AT_A_TIME)
    ends = [rows * k // count // unit * unit for k in range(count)] + [rows]
    return [(a, b) for a, b in itertools.pairwise(ends) if a < b]


def _address(x: Array) -> int:
    return int(x.__array_interface__["data"][0])


class _Code(NamedTuple):
    loaded: Loaded
    sweep: Callable[..., None]
    join: Callable[..., None]


@once
def _code() -> _Code:
    loaded = Loaded(compile_module(_module()))
    pointer, word = ctypes.c_void_p, ctypes.c_int64
    sweep = ctypes.CFUNCTYPE(None, pointer, word, pointer, pointer)(loaded.address("sweep"))
    join = ctypes.CFUNCTYPE(None, pointer, word, pointer)(loaded.address("join"))
    return _Code(loaded, sweep, join)


@cache
def _yields() -> int:
    """The address of the system's function that lets other threads run."""
    library = ctypes.CDLL("kernel32") if sys.platform == "win32" else ctypes.CDLL(None)
    function = library.SwitchToThread if sys.platform == "win32" else library.sched_yield
    return int(ctypes.cast(function, ctypes.c_void_p).value or 0)


def _module() -> ir.Module:
    """void join(range *ranges, int64 count, int64 *counters): takes ranges until none is left.

    void sweep(range *ranges, int64 count, int64 *counters, int32 (*yield)()): lets ranges be taken, joins, and waits
    for the ranges that others have taken.
    """
    word, pointer = ir.IntType(64), ir.IntType(8).as_pointer()
    kernel = ir.FunctionType(ir.VoidType(), [pointer.as_pointer(), *[word] * 4])
    row = ir.LiteralStructType([kernel.as_pointer(), pointer.as_pointer(), word, word])
    module = ir.Module(name="sweep")
    taking = [row.as_pointer(), word, word.as_pointer()]
    join = ir.Function(module, ir.FunctionType(ir.VoidType(), taking), "join")
    _take_ranges(join)
    wait = ir.FunctionType(ir.IntType(32), []).as_pointer()
    sweep = ir.Function(module, ir.FunctionType(ir.VoidType(), [*taking, wait]), "sweep")
    ranges, count, counters, give_way = sweep.args
    entry, look, waiting, end = (sweep.append_basic_block(name) for name in ("entry", "look", "wait", "end"))
    b = ir.IRBuilder(entry)
    b.store_atomic(word(0), b.gep(counters, [word(_TAKEN)]), "release", 8)
    b.call(join, [ranges, count, counters])
    b.branch(look)
    b.position_at_end(look)
    done = b.load_atomic(b.gep(counters, [word(_DONE)]), "acquire", 8)
    b.cbranch(b.icmp_signed("<", done, count), waiting, end)
    b.position_at_end(waiting)
    b.call(give_way, [])
    b.branch(look)
    b.position_at_end(end)
    b.ret_void()
    return module


def _take_ranges(join: ir.Function) -> None:
    word = ir.IntType(64)
    ranges, count, counters = join.args
    entry, take, run, end = (join.append_basic_block(name) for name in ("entry", "take", "run", "end"))
    b = ir.IRBuilder(entry)
    b.branch(take)
    b.position_at_end(take)
    i = b.atomic_rmw("add", b.gep(counters, [word(_TAKEN)]), word(1), "acq_rel")
    b.cbranch(b.icmp_signed("<", i, count), run, end)
    b.position_at_end(run)
    code, table, start, stop = (b.load(b.gep(ranges, [i, ir.IntType(32)(k)])) for k in range(4))
    b.call(code, [table, start, stop, b.sub(stop, start), word(0)])
    b.atomic_rmw("add", b.gep(counters, [word(_DONE)]), word(1), "acq_rel")
    b.branch(take)
    b.position_at_end(end)
    b.ret_void()
