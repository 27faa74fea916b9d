"""Tables: the rows that a region's threads walk, with their fields, in one block of memory.

Most addresses are known once an arena is: they are written when the table is made. Those of arrays that move from call
to call are written before each call.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from distgrad.workers.native.regions.blas import PLAIN, TRANSPOSED, gemm
from distgrad.workers.native.regions.code import AXES, ELEMENTS, ROW_WORDS, STOP, WHICH, clock, region_code  # fmt: skip

Array = np.ndarray[Any, np.dtype[Any]]

_WORD = np.dtype(np.int64)
#: Nanoseconds after which a thread asks Python whether to go on.
SLICE_NANOSECONDS = 20_000_000


class Place(NamedTuple):
    """An address: some bytes after the begin of one of the region's arrays."""

    array: int
    offset: int


class Row(NamedTuple):
    """A call: the function, its fields, four numbers, which field gets scratch memory (-1: none), and its step."""

    function: int
    fields: Sequence[int | Place]
    step: int
    numbers: tuple[int, int, int, int] = (0, 0, 0, 0)
    scratch: int = -1


class Moving(NamedTuple):
    """Where a table has the address of an array that moves: the words, and the bytes after the address for each."""

    array: int
    words: Array
    offsets: Array


class View(NamedTuple):
    """A part of one of the region's arrays, with a sample of it that has its shape and strides; and whether the array
    moves from call to call."""

    array: int
    base: Array
    sample: Array
    moves: bool

    @property
    def place(self) -> Place:
        return Place(self.array, address(self.sample) - address(self.base))

    def like(self, sample: Array) -> View:
        """Another part of the same array."""
        return View(self.array, self.base, sample, self.moves)


def address(x: Array) -> int:
    return int(x.__array_interface__["data"][0])


class Table:
    """The words of a table. `addresses` has the arrays that do not move, by number."""

    def __init__(self, rows: Sequence[Row], addresses: dict[int, int]):
        head = WHICH + 1
        begins, at = [], head + len(rows) * ROW_WORDS
        for row in rows:
            begins.append(at)
            at += len(row.fields)
        words = self.words = np.zeros(at, _WORD)
        self.address = address(words)
        tells_time, which = clock()
        time_at = ctypes.cast(tells_time, ctypes.c_void_p).value or 0
        words[:head] = [0, self._word(head), SLICE_NANOSECONDS, time_at, which]
        #: For each array that moves: the words that hold its address, and the bytes after it.
        moving: dict[int, list[tuple[int, int]]] = {}
        for i, (row, begin) in enumerate(zip(rows, begins, strict=True)):
            scratch = 0 if row.scratch < 0 else self._word(begin + row.scratch)
            start = head + i * ROW_WORDS
            words[start : start + ROW_WORDS] = [row.function, self._word(begin), *row.numbers, scratch, row.step]
            for k, field in enumerate(row.fields, begin):
                if not isinstance(field, Place):
                    words[k] = field
                elif field.array in addresses:
                    words[k] = addresses[field.array] + field.offset
                else:
                    moving.setdefault(field.array, []).append((k, field.offset))
        self._moving = [Moving(i, *np.array(places, _WORD).transpose()) for i, places in moving.items()]

    def _word(self, i: int) -> int:
        """The address of a word."""
        return self.address + i * _WORD.itemsize

    def move(self, arrays: Mapping[int, Array]) -> None:
        """Write the addresses of the arrays that moved, and let threads begin."""
        self.words[STOP] = 0
        for each in self._moving:
            self.words[each.words] = address(arrays[each.array]) + each.offsets

    def stop(self) -> None:
        """Threads end before their next rows."""
        self.words[STOP] = 1


# -- rows --------------------------------------------------------------------------------------------------------------


def multiplied(c: View, a: View, b: View, step: int) -> Row | None:
    """c = a @ b as NumPy computes it with BLAS; None where NumPy would do it in another way."""
    x, y, z = a.sample, b.sample, c.sample
    function = gemm(z.dtype)
    if function is None or not x.dtype == y.dtype == z.dtype or min(x.ndim, y.ndim) < 2:
        return None
    (m, k), n = x.shape[-2:], y.shape[-1]
    orders = [order for order in (_order(x), _order(y), _order(z)) if order is not None]
    if min(m, k, n) < 2 or 0 in z.shape or len(orders) < 3:
        return None
    (a_order, a_row), (b_order, b_row), (c_order, c_row) = orders
    if c_order != PLAIN:
        return None
    if a_order != b_order and _may_be_its_own_transpose(a, b):
        return None
    loops = _loops(z.shape[:-2], [_batch_strides(w, z.ndim) for w in (x, y, z)], 2)
    if loops is None:
        return None
    (outer, outer_steps), (count, steps) = loops
    fields = [function.address, a.place, b.place, c.place, a_order, b_order, m, n, k, a_row, b_row, c_row]
    return Row(region_code().multiply[z.dtype.char], [*fields, count, *steps, outer, *outer_steps], step)


def copied(to: View, source: View, step: int) -> Row | None:
    """An array copied into another one of its shape and dtype; None where that takes more loops than there are."""
    x, y = to.sample, source.sample
    if x.shape != y.shape or x.dtype != y.dtype or x.dtype.itemsize not in ELEMENTS or x.dtype.hasobject:
        return None
    size, shape, strides = x.dtype.itemsize, x.shape, [x.strides, y.strides]
    run, axes = size, len(shape)
    while axes and all(each[axes - 1] == run for each in strides):
        axes -= 1
        run *= shape[axes]
    loops = _loops(shape[:axes], [each[:axes] for each in strides], AXES)
    if loops is None:
        return None
    function = region_code().copy[0 if run > size else size]
    lengths, steps = [n for n, _ in loops], [*zip(*[each for _, each in loops], strict=True)]
    return Row(function, [to.place, source.place, run, *lengths, *steps[0], *steps[1]], step)


def _order(x: Array) -> tuple[int, int] | None:
    """How BLAS can take the matrices of an array, and elements from one row or column to the next; None if it cannot.
    NumPy takes rows where both would do."""
    size, (rows, columns), (row, column) = x.itemsize, x.shape[-2:], x.strides[-2:]
    if column == size and row % size == 0 and row // size >= columns:
        return PLAIN, row // size
    if row == size and column % size == 0 and column // size >= rows:
        return TRANSPOSED, column // size
    return None


def _may_be_its_own_transpose(a: View, b: View) -> bool:
    """Whether the second may be the first's transpose in the same memory, which NumPy multiplies in another way. Arrays
    that move may be the same ones in the next call."""
    x, y = a.sample, b.sample
    return x.shape[-2:] == y.shape[-2:][::-1] and ((a.moves and b.moves) or address(x) == address(y))


def _batch_strides(x: Array, ndim: int) -> tuple[int, ...]:
    """Bytes from one matrix to the next along each axis of the result's batch."""
    own = [0 if n == 1 else stride for n, stride in zip(x.shape[:-2], x.strides[:-2], strict=True)]
    return (0,) * (ndim - x.ndim) + tuple(own)


def _loops(
    shape: Sequence[int], strides: Sequence[Sequence[int]], most: int
) -> list[tuple[int, tuple[int, ...]]] | None:
    """As few loops over these axes as there can be, with the bytes from one to the next of each array; outer ones
    first, with loops of length one where there are fewer than `most`. None where there are more."""
    found: list[tuple[int, tuple[int, ...]]] = []
    for n, steps in zip(shape, zip(*strides, strict=True), strict=True):
        if n == 1:
            continue
        if found and all(before == step * n for before, step in zip(found[-1][1], steps, strict=True)):
            found[-1] = (found[-1][0] * n, steps)
        else:
            found.append((n, steps))
    nothing = (1, (0,) * len(strides))
    return None if len(found) > most else [nothing] * (most - len(found)) + found
