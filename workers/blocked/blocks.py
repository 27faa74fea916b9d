"""A fused step, compiled: its body runs block by block, each block small enough to stay in the cache.

A block is a number of rows of the step's space. What comes in and goes out is cut into views; what lives only inside
has one scratch buffer per thread, shared by values that do not live at the same time. A reduction over the rows makes
one partial result per block, and those are combined in the order of the blocks, so neither the number of threads nor
their order changes a bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from distgrad.registry import OPS, Kind, kind_of
from distgrad.scheduler.cost.cutting import cut_group
from distgrad.scheduler.joined import joined
from distgrad.scheduler.program import Step
from distgrad.types import DType, Shape, Spec
from distgrad.workers.blocked.into import INTO, PAIRS, Into, into_of
from distgrad.workers.blocked.into_rows import whole_dot, whole_sum
from distgrad.workers.fused_run import FusedRun
from distgrad.workers.kernels import KERNELS
from distgrad.workers.kernels.math import NAMED
from distgrad.workers.kernels.scratch import several
from distgrad.workers.thread_pool import ThreadPool

Array = np.ndarray[Any, np.dtype[Any]]
#: A function and how to pick its arguments from the values of a block.
Call = tuple[Callable[..., Any], Callable[[Any], Any]]
#: The same while a body is compiled: each argument is named by a pair.
Named = tuple[Callable[..., Any], list[tuple[str, int]]]

#: Reductions of which a part is what the ufunc that combines parts reduces it to.
_FOLDS = dict.fromkeys(("Sum", "Mean", "Max", "Min"))


class _Cut(NamedTuple):
    """How a block sees an array of the step: reshaped, then cut along its first axis or taken whole."""

    array: int
    shape: Shape
    sliced: bool


class _Fold(NamedTuple):
    """A reduction over rows: the shape of a block's part of it, and how the parts become the output."""

    output: int
    ufunc: Any
    shape: Shape
    dtype: DType
    divisor: int | None


class Blocks(FusedRun):
    """Called with the arrays of the step's inputs, then of its outputs, which it fills."""

    def __init__(self, step: Step, types: Sequence[Spec], pool: ThreadPool):
        self.body = joined(step, types)
        body = _Body(step, self.body, types)
        self._pool = pool
        self._types, self._inputs, self._rank = types, step.inputs, len(step.attrs["space"])
        self._lead = step.attrs["space"][0] if step.attrs["split"] else 0
        self._rows = body.rows
        self._cuts, self._folds, self._scratch, self._calls = body.cuts, body.folds, body.scratch, body.calls
        self._arrays = len(step.inputs) + len(step.outputs)
        self._sliced = [i for i, cut in enumerate(body.cuts) if cut.sliced]
        self._count, self._height, self.shared = cut_group(step)

    def __call__(self, *arrays: Array) -> None:
        views = [arrays[cut.array].reshape(cut.shape) for cut in self._cuts]
        parts = self.begin()
        work = partial(self._work, views, parts, self._rows, 0)
        if self.shared:
            self._pool.each(self._count, work)
        else:
            work(iter(range(self._count)))
        self.end(arrays, parts)

    def begin(self) -> list[Array]:
        """Where the blocks put their parts of the reductions over rows."""
        return [np.empty((self._count, *fold.shape), fold.dtype) for fold in self._folds]

    def end(self, arrays: Sequence[Array], parts: Sequence[Array]) -> None:
        """Combine the parts."""
        for fold, part in zip(self._folds, parts, strict=True):
            total = fold.ufunc.reduce(part, axis=0)
            out = arrays[fold.output]
            out[...] = (total if fold.divisor is None else total / fold.divisor).reshape(out.shape)

    def overwritable(self, v: int) -> list[int]:
        """The inputs in whose place this output can be written: all that reads them comes before, in the same block. A
        result of lower rank than the space has rows where an input of its shape may be read whole."""
        at = next(i for i, inner in enumerate(self.body) if v in inner.outputs)
        if len(self._types[v].shape) < self._rank:
            return []
        last = {u: i for i, inner in enumerate(self.body) for u in inner.inputs}
        meanwhile = entry_of(self.body[at], self._types).overlap
        return [u for u in self._inputs if last[u] < at or (last[u] == at and meanwhile)]

    def cut_by_items(self, lead: int, count: int) -> tuple[bool, ...] | None:
        """Whether the step can run as `count` equal items of the space's first axis, which has length `lead`: for each
        array if it is cut then. Reductions over rows must find their blocks whole. Complex products must not be cut:
        NumPy computes the last ones of an array by other code."""
        if self._lead != lead or lead % count or (self._folds and self._rows // count % self._height):
            return None
        if any(self._types[v].dtype.kind == "c" for inner in self.body for v in inner.outputs):
            return None
        seen: dict[int, bool] = {}
        for cut in self._cuts:
            if seen.setdefault(cut.array, cut.sliced) != cut.sliced:
                return None
        return tuple([seen.get(i, False) for i in range(self._arrays)])

    def item(self, number: int, count: int, parts: Sequence[Array], *arrays: Array) -> None:
        """One of `count` items, of arrays that are cut already."""
        rows = self._rows // count
        views = [arrays[cut.array].reshape((rows, *cut.shape[1:]) if cut.sliced else cut.shape) for cut in self._cuts]
        self._work(views, parts, rows, number * rows // self._height, iter(range(-(-rows // self._height))))

    def _work(
        self, views: Sequence[Array], parts: Sequence[Array], rows: int, before: int, numbers: Iterator[int]
    ) -> None:
        """One thread's share of views with so many rows, of which so many blocks lie before. The values of a block are
        in one list: views, scratch, parts of reductions."""
        height = min(self._height, rows)
        scratch = several([((height, *shape), dtype) for shape, dtype in self._scratch], "blocks")
        first, last = len(views), len(views) + len(scratch)
        values: list[Any] = [*views, *scratch, *parts]
        for number in numbers:
            start = number * height
            stop = min(start + height, rows)
            for i in self._sliced:
                values[i] = views[i][start:stop]
            values[first:last] = scratch if stop - start == height else [x[: stop - start] for x in scratch]
            values[last:] = [part[before + number, ...] for part in parts]
            for run, arguments in self._calls:
                run(*arguments(values))


class _Body:
    """What compiling finds out: the views that blocks need, the scratch buffers, and the calls in order.

    While it is found, a value of a block is named by a pair: ("view", i), ("scratch", i) or ("part", i).
    """

    def __init__(self, step: Step, body: Sequence[Step], types: Sequence[Spec]):
        self.space: Shape = step.attrs["space"]
        self.split: int = step.attrs["split"]
        self.rows = math.prod(self.space[: self.split])
        self.cuts: list[_Cut] = []
        self._numbers: dict[_Cut, int] = {}
        self.folds: list[_Fold] = []
        self.scratch: list[tuple[Shape, DType]] = []
        self._types = types
        self._array = {v: i for i, v in enumerate((*step.inputs, *step.outputs))}
        self._given = set(step.inputs)
        self._inner: dict[int, int] = {}  # value -> its scratch buffer
        self._free: list[int] = []
        self._last = {v: i for i, inner in enumerate(body) for v in inner.inputs}
        named = self._named(body)
        starts = {"view": 0, "scratch": len(self.cuts), "part": len(self.cuts) + len(self.scratch)}
        self.calls: list[Call] = [(run, picker([starts[kind] + i for kind, i in places])) for run, places in named]

    def _named(self, body: Sequence[Step]) -> list[Named]:
        """The calls, of which one may compute two steps."""
        earlier = pairs(body)
        alone = [i for i in range(len(body)) if i not in earlier.values()]
        return [self._both(i, body[earlier[i]], body[i]) if i in earlier else self._call(i, body[i]) for i in alone]

    def _both(self, i: int, first: Step, step: Step) -> Named:
        """The step at place i, and with it an earlier one."""
        inputs = [self._operand(step, v) for v in step.inputs]
        made = [first.outputs[0], step.outputs[0]]
        outs = [self._result(v) for v in made]
        dying = [v for v in dict.fromkeys([*step.inputs, *made]) if v in self._inner and self._last.get(v, i) <= i]
        self._release(dying)
        return partial(PAIRS[step.type].function, **self._attrs(step)), [*outs, *inputs]

    def _call(self, i: int, step: Step) -> Named:
        inputs = [self._operand(step, v) for v in step.inputs]
        entry, attrs = entry_of(step, self._types), self._attrs(step)
        out_of = step.outputs[0]
        dying = [v for v in dict.fromkeys(step.inputs) if v in self._inner and self._last[v] == i]
        if kind_of(step.type) is Kind.REDUCTION and 0 in step.attrs["axis"]:
            self._release(dying)
            return self._fold(step), [*inputs, ("part", len(self.folds) - 1)]
        if entry.overlap:
            self._release(dying)
        out = self._result(out_of)
        if not entry.overlap:
            self._release(dying)
        if self._last.get(out_of, i) <= i:
            self._release([v for v in (out_of,) if v in self._inner])
        if entry.ufunc is not None:
            return entry.ufunc, [*inputs, out]
        assert entry.function is not None
        return partial(entry.function, **attrs) if attrs else entry.function, [out, *inputs]

    def _release(self, values: Sequence[int]) -> None:
        self._free += [self._inner[v] for v in values]

    def _result(self, v: int) -> tuple[str, int]:
        shape = self._types[v].shape
        if v in self._array:
            return self._view(v, _Cut(self._array[v], (self.rows, *shape[self.split :]), True))
        wanted = shape[self.split :], self._types[v].dtype
        for at, buffer in enumerate(self._free):
            if self.scratch[buffer] == wanted:
                self._inner[v] = self._free.pop(at)
                return "scratch", self._inner[v]
        self._inner[v] = len(self.scratch)
        self.scratch.append(wanted)
        return "scratch", self._inner[v]

    def _operand(self, step: Step, v: int) -> tuple[str, int]:
        if v in self._inner:
            return "scratch", self._inner[v]
        shape, split, space = self._types[v].shape, self.split, self.space
        if v not in self._given or (kind_of(step.type) is Kind.ROWWISE and shape == space[:-1]):
            return self._view(v, _Cut(self._array[v], (self.rows, *shape[split:]), True))
        aligned = (1,) * (len(space) - len(shape)) + shape
        if aligned[:split] == space[:split]:
            return self._view(v, _Cut(self._array[v], (self.rows, *aligned[split:]), True))
        return self._view(v, _Cut(self._array[v], aligned[split:], False))

    def _view(self, v: int, cut: _Cut) -> tuple[str, int]:
        if cut not in self._numbers:
            self._numbers[cut] = len(self.cuts)
            self.cuts.append(cut)
        return "view", self._numbers[cut]

    def _attrs(self, step: Step) -> dict[str, Any]:
        """The attributes, with axes as a block has them: its first axis stands for all that were split off."""
        attrs = dict(step.attrs)
        axis = attrs.get("axis")
        if isinstance(axis, tuple):
            attrs["axis"] = tuple(a - self.split + 1 for a in axis)
        elif axis is not None:
            attrs["axis"] = axis - self.split + 1
        return attrs

    def _fold(self, step: Step) -> Callable[..., Any]:
        axes, spec = step.attrs["axis"], self._types[step.outputs[0]]
        shape = tuple(n for i, n in enumerate(self.space) if i >= self.split and i not in axes)
        count = math.prod(self.space[i] for i in axes) if step.type == "Mean" else None
        ufunc = getattr(np, NAMED[str(OPS[step.type].combine)])
        self.folds.append(_Fold(self._array[step.outputs[0]], ufunc, shape, spec.dtype, count))
        if len(step.inputs) == 2:
            return _fold_products
        inner = (0, *(a - self.split + 1 for a in axes if a >= self.split))
        if step.type in _FOLDS:
            return partial(_fold_block, ufunc, inner)
        return partial(_fold_by_kernel, KERNELS[step.type], dict(step.attrs, axis=inner, keepdims=False))


def pairs(body: Sequence[Step]) -> dict[int, int]:
    """The steps that are computed together with an earlier one, which nobody reads before: for each where that is."""
    places: dict[Any, int] = {}
    found: dict[int, int] = {}
    for i, step in enumerate(body):
        places[step.type, step.inputs] = i
        pair = PAIRS.get(step.type)
        k = None if pair is None else places.get((pair.first, step.inputs[pair.own :]))
        if k is None or k in found.values() or body[k].attrs != step.attrs:
            continue
        if not any(body[k].outputs[0] in between.inputs for between in body[k + 1 : i + 1]):
            found[i] = k
    return found


def entry_of(step: Step, types: Sequence[Spec]) -> Into:
    """How a step is computed into a buffer. A sum of two is an addition, which is one call less."""
    if step.type == "AddN" and len(step.inputs) == 2 and types[step.outputs[0]].dtype.itemsize > 2:
        return INTO["Add"]
    entry = into_of(step.type)
    assert entry is not None
    return entry


def _fold_products(x: Array, y: Array, out: Array) -> None:
    out[...] = whole_dot(x.reshape(-1), y.reshape(-1))


def _fold_by_kernel(kernel: Any, attrs: dict[str, Any], x: Array, out: Array) -> None:
    out[...] = kernel(np, x, **attrs)


def _fold_block(ufunc: Any, axes: tuple[int, ...], x: Array, out: Array) -> None:
    """Without BLAS, which would wait for the threads of the pool."""
    if ufunc is np.add and len(axes) == x.ndim and x.dtype.char in "fd":
        out[...] = whole_sum(x.reshape(-1))
    else:
        ufunc.reduce(x, axis=axes, dtype=x.dtype, out=out)


def picker(places: Sequence[int]) -> Callable[[Any], Any]:
    """What takes these places of a list as a tuple."""
    if len(places) > 1:
        return itemgetter(*places)
    return partial(_picked, tuple(places))  # an itemgetter of one gives the item itself


def _picked(places: Sequence[int], values: Sequence[Any]) -> tuple[Any, ...]:
    return tuple([values[i] for i in places])
