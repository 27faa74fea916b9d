"""Convolutions as native code: threads share the blocks of a convolution, or the parts of its kernel's gradient.

Parts depend on shapes and the number of cpus of the task alone, and are added in order. So neither the number of
threads at work nor their order changes a bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from distgrad.scheduler.cost.convolutions import Shapes, Tiles, Windows, cut, is_native, parts, shapes
from distgrad.scheduler.program import Step
from distgrad.types import DType, Spec
from distgrad.workers.kernels.scratch import several
from distgrad.workers.native.kernels import windows, winograd
from distgrad.workers.native.kernels.code import Array, Function, address, table
from distgrad.workers.thread_pool import ThreadPool

#: Called with the inputs, then the result, which it fills and returns.
Convolution = Callable[[Array, Array, Array], Array]

#: Ranges of blocks per thread: a thread that is held up takes fewer.
RANGES = 4


def convolution(step: Step, types: Sequence[Spec], pool: ThreadPool) -> Convolution | None:
    """A convolution, or one of its gradients; None where native code does not serve the types."""
    ins, outs = [types[v] for v in step.inputs], [types[v] for v in step.outputs]
    if not is_native(step.attrs["groups"], [*ins, *outs]):
        return None
    s = shapes(step.type, ins, outs, step.attrs)
    pieces = cut(step.type, s)
    if step.type == "Conv2DBackpropFilter":
        return _KernelGradient(s, pieces[0], pool)
    return (_ImageGradient if step.type == "Conv2DBackpropInput" else _Forward)(s.dtype, pieces, pool)


# -- work for threads --------------------------------------------------------------------------------------------------


class _Work(NamedTuple):
    """A call of native code for a range of blocks, with the elements of scratch memory that it needs."""

    function: Function
    fields: Any
    scratch: int
    start: int
    stop: int


def _run(work: Sequence[_Work], dtype: DType, pool: ThreadPool) -> None:
    def some(numbers: Iterator[int]) -> None:
        for i in numbers:
            function, fields, size, start, stop = work[i]
            (scratch,) = several([((size,), dtype)], "windows")
            function(fields, address(scratch), start, stop)

    pool.each(len(work), some)


class _Piece:
    """A function of native code, with what it is told of the windows or tiles of a convolution."""

    def __init__(self, piece: Windows | Tiles, function: str, dtype: DType):
        module = winograd if isinstance(piece, Tiles) else windows
        self.cut = piece
        self._function, self._names = module.functions(dtype)[function], module.FIELDS
        self._tables = {"runs": np.array(piece.runs, np.int64)} if isinstance(piece, Windows) else {}

    def fields(self, **arrays: Array) -> Any:
        return table(self._names, self.cut.fields, {**arrays, **self._tables})

    def ranges(self, count: int) -> list[tuple[int, int]]:
        """The blocks as ranges of nearly equal length, in order; not more of them than blocks."""
        n = self.cut.blocks
        count = min(count, n)
        return [(i * n // count, (i + 1) * n // count) for i in range(count)]

    def work(self, fields: Any, start: int, stop: int) -> _Work:
        return _Work(self._function, fields, self.cut.scratch, start, stop)


# -- convolutions ------------------------------------------------------------------------------------------------------


class _Forward:
    """A convolution."""

    def __init__(self, dtype: DType, pieces: Sequence[Windows | Tiles], pool: ThreadPool):
        self._dtype, self._pool = dtype, pool
        self._pieces = [_Piece(piece, "correlate", dtype) for piece in pieces]

    def __call__(self, x: Array, w: Array, out: Array, /) -> Array:
        return self._correlate(x, [w], out)

    def _correlate(self, image: Array, taps: Sequence[Array], out: Array) -> Array:
        work: list[_Work] = []
        kernels = [self._kernel(piece, own) for piece, own in zip(self._pieces, taps, strict=True)]
        for piece, kernel in zip(self._pieces, kernels, strict=True):
            fields = piece.fields(image=image, kernel=kernel, result=out)
            work += [piece.work(fields, *ends) for ends in piece.ranges(RANGES * self._pool.size)]
        _run(work, self._dtype, self._pool)
        return out

    def _kernel(self, piece: _Piece, taps: Array) -> Array:
        """What windows or tiles are multiplied with."""
        if isinstance(piece.cut, Windows):
            return taps
        (kernel,) = several([((16, taps.size // 9), self._dtype)], "kernel")
        return np.matmul(winograd.BOTH.astype(self._dtype), taps.reshape(9, -1), out=kernel)


class _ImageGradient(_Forward):
    """The gradient with respect to the image: a convolution of the result's gradient, for each phase of the strides."""

    def __call__(self, w: Array, g: Array, out: Array, /) -> Array:
        met = [_met(w, piece.cut) for piece in self._pieces]
        taps = several([(x.shape, x.dtype) for x in met], "taps")
        for x, own in zip(met, taps, strict=True):
            np.copyto(own, x)
        return self._correlate(g, taps, out)


def _met(w: Array, piece: Windows | Tiles) -> Array:
    """A view of the taps that cells of the image meet, in the order of the results, each of them transposed."""
    rows, cols = map(_steps, piece.taps) if isinstance(piece, Windows) else (slice(None, None, -1),) * 2
    return w[rows, cols].transpose(0, 1, 3, 2)


def _steps(taps: Sequence[int]) -> slice:
    """Taps of equal distance, the last first."""
    if not taps:
        return slice(0, 0)
    step = taps[0] - taps[1] if len(taps) > 1 else 1
    return slice(taps[0], taps[-1] - 1 if taps[-1] else None, -step)


class _KernelGradient:
    """The gradient with respect to the kernel: a sum of parts."""

    def __init__(self, s: Shapes, piece: Windows | Tiles, pool: ThreadPool):
        self._dtype, self._pool = s.dtype, pool
        self._piece = _Piece(piece, "gradient", s.dtype)
        self._ranges = self._piece.ranges(parts(piece.blocks, pool.size))
        cells = 16 if isinstance(piece, Tiles) else math.prod(s.window)
        self._shape = len(self._ranges), cells, s.channels * s.made

    def __call__(self, x: Array, g: Array, out: Array, /) -> Array:
        (sums,) = several([(self._shape, self._dtype)], "sums")
        work = []
        for part, ends in zip(sums, self._ranges, strict=True):
            work.append(self._piece.work(self._piece.fields(image=x, result=g, sums=part), *ends))
        _run(work, self._dtype, self._pool)
        total = sums[0]
        for part in sums[1:]:
            np.add(total, part, out=total)
        taps = out.reshape(-1, self._shape[2])
        if isinstance(self._piece.cut, Windows):
            taps[...] = total
        else:
            np.matmul(winograd.BOTH.T.astype(self._dtype), total, out=taps)
        return out
