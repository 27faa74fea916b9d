"""A fused step as native code: threads take ranges of rows through one compiled function."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from distgrad.scheduler.cost.cutting import cut_group, is_shared
from distgrad.scheduler.program import Step
from distgrad.types import Spec
from distgrad.workers.fused_run import FusedRun
from distgrad.workers.kernels.math import NAMED
from distgrad.workers.kernels.nn import check_labels
from distgrad.workers.kernels.scratch import several
from distgrad.workers.native.compiled import CompiledGroup, compiled
from distgrad.workers.native.formulas import REDUCTIONS, identity
from distgrad.workers.native.regions.table import Place, Row
from distgrad.workers.thread_pool import ThreadPool

Array = np.ndarray[Any, np.dtype[Any]]

#: Ranges per thread of a step without parts: a thread that is held up takes fewer.
RANGES = 4
#: Elements of which ranges are multiples, so that vectors do not cross their borders.
_ELEMENTS = 1024
_BYTE = np.dtype(np.uint8)


def native_blocks(step: Step, types: Sequence[Spec], pool: ThreadPool) -> NativeBlocks | None:
    """A fused step as native code; None where native code has no rule for one of its steps."""
    code = compiled(step, types)
    return None if code is None else NativeBlocks(step, types, pool, code)


class NativeBlocks(FusedRun):
    """The function of a group, called for ranges of its rows."""

    def __init__(self, step: Step, types: Sequence[Spec], pool: ThreadPool, code: CompiledGroup):
        self.body = step.body
        self._step, self._types, self._pool, self._code = step, types, pool, code
        group = self._group = code.group
        space, split = step.attrs["space"], step.attrs["split"]
        self._lead = space[0] if split else 0
        self._count, height, self.shared = cut_group(step)
        if not group.folds:
            self.shared = is_shared(step)
        inner = math.prod(space[split:]) if group.flat else math.prod(space[split : group.axis])
        #: Rows of the group's loop in a block of the step; without folds, blocks mean nothing.
        self._height = height * inner
        self._values = (*step.inputs, *step.outputs)
        self._table = ctypes.c_void_p * (len(self._values) + len(group.folds) + 1)
        self._identities = [identity(fold.type, fold.node.dtype) for fold in group.folds]
        self._stored = {store.to.array: store for store in group.stores}

    def __call__(self, *given: Array) -> None:
        arrays, late = self._ordered(given)
        parts = self.begin()
        rows = self._group.rows
        if not self.shared:
            self._range(arrays, parts, rows, 1, iter((0,)))
        else:
            count = self._count if parts else min(RANGES * self._pool.size, rows)
            self._pool.each(count, partial(self._range, arrays, parts, rows, count))
        self.end(arrays, parts)
        for out, made in late:
            np.copyto(out, made)

    def begin(self) -> list[Array]:
        """Where blocks put their parts of reductions over rows."""
        return [
            np.full((self._count, *fold.shape), first, fold.node.dtype)
            for fold, first in zip(self._group.folds, self._identities, strict=True)
        ]

    def end(self, arrays: Sequence[Array], parts: Sequence[Array]) -> None:
        """Combine the parts."""
        for fold, part in zip(self._group.folds, parts, strict=True):
            total = getattr(np, NAMED[REDUCTIONS[fold.type]]).reduce(part, axis=0)
            out = arrays[fold.output]
            out[...] = (total if fold.divisor is None else total / fold.divisor).reshape(out.shape)

    def overwritable(self, v: int) -> list[int]:
        """The inputs in whose place this output can be written: no loop reads them after the one that writes it."""
        store = self._stored.get(self._values.index(v))
        if store is None or len(self._types[v].shape) < len(self._step.attrs["space"]):
            return []
        reads, phase = self._code.last_reads, store.node.phase
        return [u for i, u in enumerate(self._step.inputs) if reads.get(i, phase + 1) <= phase]

    def cut_by_items(self, lead: int, count: int) -> tuple[bool, ...] | None:
        """Whether the step can run as `count` equal items of the space's first axis, which has length `lead`: for each
        array if it is cut then. Reductions over rows must find their blocks whole."""
        group, split = self._group, self._step.attrs["split"]
        if self._lead != lead or lead % count or (group.folds and group.rows // count % self._height):
            return None
        space, seen = group.space, {store.to.array: True for store in group.stores}
        for x in group.operands:
            sliced = x.shape[:split] == space[:split]
            if seen.setdefault(x.array, sliced) != sliced:
                return None
        return tuple([seen.get(i, False) for i in range(len(self._values))])

    @property
    def scratch_bytes(self) -> int:
        return self._code.scratch_bytes

    def row(self, number: int, count: int, places: Sequence[Place], step: int) -> Row:
        """One of `count` items as a row of a table, from where its arrays and its partial sums are."""
        group = self._group
        rows = group.rows // count
        numbers = (0, rows, self._height, number * rows // self._height) if group.folds else (0, rows, rows, 0)
        return Row(self._code.address, (*places, 0), step, numbers, len(places) if self.scratch_bytes else -1)

    @property
    def checked(self) -> list[int]:
        return [self._step.inputs[i] for i in self._group.labels]

    def check(self, arrays: Sequence[Array]) -> None:
        """Raise the error of an input that native code takes for granted."""
        for i, classes in self._group.labels.items():
            check_labels(np, arrays[i], classes)

    def _ordered(self, arrays: Sequence[Array]) -> tuple[Sequence[Array], list[tuple[Array, Array]]]:
        """The arrays, contiguous; and which results have to be copied to where they belong."""
        self.check(arrays)
        if all(x.flags.c_contiguous for x in arrays):
            return arrays, []
        inputs = len(self._step.inputs)
        ordered = [x if x.flags.c_contiguous else np.array(x, order="C") for x in arrays]
        pairs = list(zip(arrays, ordered, strict=True))
        return ordered, [(x, made) for x, made in pairs[inputs:] if x is not made]

    def _range(
        self, arrays: Sequence[Array], parts: Sequence[Array], rows: int, count: int, numbers: Iterator[int]
    ) -> None:
        """One thread's share of `count` ranges."""
        for number in numbers:
            if parts:
                blocks = self._count // count if count < self._count else 1
                first = number * blocks
                self._run(arrays, parts, first * self._height, min((first + blocks) * self._height, rows), first)
            else:
                unit = _ELEMENTS if self._group.flat else 1
                start, stop = (rows * k // count // unit * unit if k < count else rows for k in (number, number + 1))
                self._run(arrays, parts, start, stop, 0)

    def _run(self, arrays: Sequence[Array], parts: Sequence[Array], start: int, stop: int, part: int) -> None:
        if start >= stop:
            return
        size = self._code.scratch_bytes
        scratch = several([((size,), _BYTE)], "native") if size else []
        table = self._table(*[x.__array_interface__["data"][0] for x in (*arrays, *parts, *scratch)])
        self._code.run(table, start, stop, self._height if parts else stop - start, part)
