"""Sums of rows by index as native code: gradients of embeddings, and scatter-adds.

Rows are added in the order of their indices, as the NumPy kernels do, with the same bits. Threads share the columns,
never the order of additions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from llvmlite import ir

from distgrad.scheduler.program import Step
from distgrad.types import DType, Shape, Spec
from distgrad.workers.kernels.index import in_range
from distgrad.workers.native.kernels.code import Array, Code, Functions, table
from distgrad.workers.native.llvm import once
from distgrad.workers.native.values import LANES, Value
from distgrad.workers.thread_pool import ThreadPool

#: Elements from which threads share the columns.
SHARED = 1 << 16

FIELDS = (
    "out",  # [rows, width]
    "rows",
    "width",
    "start",  # what rows are added to, [rows, width]; 0 stands for zeros
    "values",  # [count, width]
    "places",  # a row of the result for each of them
    "count",
)


@once
def functions(dtype: DType) -> Functions:
    """scatter: the columns from `start` to `stop`."""
    module = ir.Module(name=f"scatter of {dtype}")
    code = Code(module, "scatter", dtype, FIELDS)
    out, values, before, places = (code.address(name) for name in ("out", "values", "start", "places"))
    width, columns, empty = code.field("width"), code.stop - code.start, code.field("start") == 0
    with code.loop(0, code.field("rows")) as row:
        at = row * width + code.start
        with code.either(empty) as (zeros, given):
            with zeros:
                code.clear(code.after(out, at), columns)
            with given:
                code.copy(code.after(out, at), code.after(before, at), columns)
    with code.loop(0, code.field("count")) as i:
        to = code.after(out, code.number_at(places, i) * width + code.start)
        term = code.after(values, i * width + code.start)

        def add(c: Value, mask: ir.Value | None) -> None:
            at = code.after(to, c)
            code.write(at, code.read(at, mask) + code.read(code.after(term, c), mask), mask)

        code.vectors(columns, add)
    code.end()
    return Functions(module)


def scatter(step: Step, types: Sequence[Spec], pool: ThreadPool) -> Callable[..., Array] | None:
    """A sum of rows by index, called with the inputs, then the result, which it fills and returns; None where native
    code does not serve its types, or its key is not that of rows."""
    (v,) = step.outputs
    shape, dtype = types[v]
    if dtype.char not in "fd" or 0 in shape or any(0 in types[u].shape for u in step.inputs):
        return None
    if step.type == "AdvancedIndexGrad" and not _is_rows(step.attrs["index"], shape, types[step.inputs[1]]):
        return None
    add = partial(_add, shape[0], math.prod(shape[1:]), functions(dtype)["scatter"], pool)
    return partial(_added, add) if step.type == "ScatterAdd" else partial(_summed, add)


def _is_rows(index: Sequence[Any], shape: Shape, places: Spec) -> bool:
    """Whether a key is an array of integers and then whole axes."""
    whole = [(0, n, 1) for n in shape[1 : len(index)]]
    return places.dtype.kind in "iu" and list(index) == ["array", *whole]


def _summed(add: Callable[..., None], values: Array, indices: Array, out: Array) -> Array:
    add(None, indices, values, out)
    return out


def _added(add: Callable[..., None], x: Array, indices: Array, updates: Array, out: Array) -> Array:
    add(x, indices, updates, out)
    return out


def _add(
    rows: int,
    width: int,
    function: Callable[..., None],
    pool: ThreadPool,
    before: Array | None,
    indices: Array,
    values: Array,
    out: Array,
) -> None:
    places = np.ascontiguousarray(in_range(np, indices, rows))
    arrays = {"out": out, "values": values, "places": places, **({} if before is None else {"start": before})}
    fields = table(FIELDS, {"rows": rows, "width": width, "count": places.size}, arrays)
    count = max(min(pool.size, width // LANES), 1) if out.size + values.size >= SHARED else 1
    ends = [width * k // count // LANES * LANES for k in range(count)] + [width]

    def some(numbers: Iterator[int]) -> None:
        for k in numbers:
            function(fields, 0, ends[k], ends[k + 1])

    pool.each(count, some)
