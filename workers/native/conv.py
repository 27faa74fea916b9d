"""Convolutions as native code: threads share the tiles of a convolution, or the parts of its kernel's gradient.

Parts depend on shapes and the number of cpus of the task alone, and are added in order. So neither the number of
threads at work nor their order changes a bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from distgrad.scheduler.program import Step
from distgrad.types import DType, Shape, Spec
from distgrad.workers.kernels.scratch import several
from distgrad.workers.native import windows, winograd
from distgrad.workers.native.code import Function, address, table
from distgrad.workers.native.conv_shapes import Pair, Shapes, Windows, backward, forward, tiles
from distgrad.workers.thread_pool import ThreadPool

Array = np.ndarray[Any, np.dtype[Any]]
#: Called with the inputs, then the result, which it fills and returns.
Convolution = Callable[[Array, Array, Array], Array]

#: Ranges of tiles per thread, and parts of a sum: a thread that is held up takes fewer.
RANGES = 4
PARTS = 2


def convolution(step: Step, types: Sequence[Spec], pool: ThreadPool) -> Convolution | None:
    """A convolution, or one of its gradients; None where native code does not serve the types."""
    specs = [types[v] for v in (*step.inputs, *step.outputs)]
    dtype = specs[0].dtype
    if step.attrs["groups"] != 1 or dtype.char not in "fd" or any(0 in spec.shape for spec in specs):
        return None
    make, order = _KINDS[step.type]
    return make(_shapes(step, [specs[i].shape for i in order], dtype), pool)


def _shapes(step: Step, shapes: Sequence[Shape], dtype: DType) -> Shapes:
    (images, *size, channels), (*window, _, made), (_, *out, _) = shapes
    (top, _), (left, _) = step.attrs["padding"]
    (sh, sw), (dh, dw) = step.attrs["strides"], step.attrs["dilation"]
    pairs = [(pair[0], pair[1]) for pair in (size, window, out)]
    return Shapes(images, pairs[0], channels, pairs[1], made, pairs[2], (sh, sw), (dh, dw), (-top, -left), dtype)


# -- work for threads --------------------------------------------------------------------------------------------------


class _Work(NamedTuple):
    """A call of native code for a range, with so many elements of scratch memory."""

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


def _ranges(n: int, count: int) -> list[Pair]:
    """The numbers below n as ranges of nearly equal length, in order; not more of them than numbers."""
    count = min(count, n)
    return [(i * n // count, (i + 1) * n // count) for i in range(count)]


def _taps(w: Array, chosen: tuple[Sequence[int], Sequence[int]]) -> Array:
    """These taps, each of them transposed."""
    return np.ascontiguousarray(w[np.ix_(*chosen)].transpose(0, 1, 3, 2))


# -- convolutions ------------------------------------------------------------------------------------------------------


class _ByWindows:
    """A convolution by copied windows."""

    def __init__(self, s: Shapes, pool: ThreadPool):
        self._dtype, self._pool = s.dtype, pool
        self._function = windows.functions(s.dtype)["correlate"]
        self._windows = forward(s)

    def __call__(self, x: Array, w: Array, out: Array) -> Array:
        _run(self._work(self._windows, x, w, out), self._dtype, self._pool)
        return out

    def _work(self, seen: Windows, image: Array, kernel: Array, out: Array) -> list[_Work]:
        arrays = {"image": image, "kernel": kernel, "result": out, "runs": seen.runs}
        fields = table(windows.FIELDS, seen.fields, arrays)
        ranges = _ranges(seen.tiles, RANGES * self._pool.size)
        return [_Work(self._function, fields, seen.scratch, *ends) for ends in ranges]


class _ImageByWindows(_ByWindows):
    """The gradient with respect to the image, phase by phase."""

    def __init__(self, s: Shapes, pool: ThreadPool):
        super().__init__(s, pool)
        self._phases = list(backward(s))

    def __call__(self, w: Array, g: Array, out: Array) -> Array:
        kernels = [_taps(w, phase.taps) for phase in self._phases]
        pairs = zip(self._phases, kernels, strict=True)
        _run([work for phase, taps in pairs for work in self._work(phase, g, taps, out)], self._dtype, self._pool)
        return out


class _ByTiles:
    """A convolution by Winograd's tiles."""

    def __init__(self, s: Shapes, pool: ThreadPool):
        self._shapes, self._pool = s, pool
        self._tiles, self._both = tiles(s), winograd.BOTH.astype(s.dtype)
        self._function = winograd.functions(s.dtype)["correlate"]

    def __call__(self, x: Array, w: Array, out: Array) -> Array:
        s = self._shapes
        (kernel,) = several([((16, s.channels * s.made), s.dtype)], "kernel")
        np.matmul(self._both, w.reshape(9, -1), out=kernel)
        fields = table(winograd.FIELDS, self._tiles.fields, {"image": x, "kernel": kernel, "result": out})
        ranges = _ranges(self._tiles.blocks, RANGES * self._pool.size)
        _run([_Work(self._function, fields, self._tiles.scratch, *ends) for ends in ranges], s.dtype, self._pool)
        return out


class _ImageByTiles(_ByTiles):
    """The gradient with respect to the image."""

    def __init__(self, s: Shapes, pool: ThreadPool):
        super().__init__(s.reversed(), pool)

    def __call__(self, w: Array, g: Array, out: Array) -> Array:
        backwards = range(3)[::-1]
        return super().__call__(g, _taps(w, (backwards, backwards)), out)


class _Gradient:
    """The gradient with respect to the kernel: a sum of parts."""

    def __init__(self, s: Shapes, pool: ThreadPool):
        self._shapes, self._pool = s, pool
        self._fields, self._names, self._runs, self._scratch, count = self._cut()
        self._ranges = _ranges(count, PARTS * pool.size)
        self._function = (winograd if s.saves else windows).functions(s.dtype)["gradient"]
        self._both = winograd.BOTH.T.astype(s.dtype)

    def _cut(self) -> tuple[Mapping[str, int], Sequence[str], dict[str, Array], int, int]:
        """What native code is told, the names of that, arrays of it, its scratch memory, and the number of tiles."""
        if self._shapes.saves:
            made = tiles(self._shapes)
            return made.fields, winograd.FIELDS, {}, made.scratch, made.blocks
        seen = forward(self._shapes)
        return seen.fields, windows.FIELDS, {"runs": seen.runs}, seen.scratch, seen.tiles

    def __call__(self, x: Array, g: Array, out: Array) -> Array:
        s = self._shapes
        cells = 16 if s.saves else math.prod(s.window)
        (sums,) = several([((len(self._ranges), cells, s.channels * s.made), s.dtype)], "sums")
        work = []
        for part, ends in zip(sums, self._ranges, strict=True):
            arrays = {"image": x, "result": g, "sums": part, **self._runs}
            fields = table(self._names, self._fields, arrays)
            work.append(_Work(self._function, fields, self._scratch, *ends))
        _run(work, s.dtype, self._pool)
        return self._total(sums, out)

    def _total(self, sums: Array, out: Array) -> Array:
        made = out.reshape(-1, sums.shape[2])
        if self._shapes.saves:
            np.matmul(self._both, np.add.reduce(sums, axis=0, out=sums[0]), out=made)
        else:
            np.add.reduce(sums, axis=0, out=made)
        return out


def _convolution(s: Shapes, pool: ThreadPool) -> Convolution:
    return _ByTiles(s, pool) if s.saves else _ByWindows(s, pool)


def _image_gradient(s: Shapes, pool: ThreadPool) -> Convolution:
    return _ImageByTiles(s, pool) if s.reversed().saves else _ImageByWindows(s, pool)


#: What makes each of them, and which of its inputs and results are the images, the kernel and the results.
_KINDS: dict[str, tuple[Callable[[Shapes, ThreadPool], Convolution], tuple[int, int, int]]] = {
    "Conv2D": (_convolution, (0, 1, 2)),
    "Conv2DBackpropInput": (_image_gradient, (2, 0, 1)),
    "Conv2DBackpropFilter": (_Gradient, (0, 2, 1)),
}
