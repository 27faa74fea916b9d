"""The work of a step, counted from static types in units that hardware has rates for. Knows no hardware.

This module counts ops that touch elements; `work_products` counts those that multiply matrices, and `work_table` maps
each op type to its rule.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from distgrad.types import DType, Shape, Spec


class Product(NamedTuple):
    """Matrix products with `flops` operations in total; `dim` is the smallest of their three dimensions.

    Threads share a product if it is large enough, unless `shared` is False: a library call, or too small to split.
    """

    flops: float
    dim: float
    double: bool = False
    shared: bool = True


class Work(NamedTuple):
    """The work of one step.

    `elementwise` counts elements in units of one float32 multiplication, `transcendental` in units of one float32 exp.
    """

    products: tuple[Product, ...] = ()
    elementwise: float = 0.0
    transcendental: float = 0.0
    #: Random accesses, in units of starting one short row: gathered rows, scattered or drawn elements, comparisons.
    irregular: float = 0.0
    #: Bytes read from and written to memory.
    nbytes: float = 0.0
    #: Calls of array functions.
    calls: float = 1.0
    #: Number of blocks that can run at the same time, one thread each.
    blocks: int = 1
    #: Steps that native code computes, if it does.
    native: int = 0


Specs = Sequence[Spec]
Attrs = Mapping[str, Any]
Count = Callable[[Specs, Specs, Attrs], Work]


@dataclass(frozen=True, slots=True)
class Rule:
    """How to count the work of an op type. `count` is given only the attributes named in `reads`."""

    count: Count
    reads: tuple[str, ...] = ()

    def work(self, ins: Specs, outs: Specs, attrs: Attrs) -> Work:
        return self.count(ins, outs, {name: attrs[name] for name in self.reads if name in attrs})


def rule(*reads: str) -> Callable[[Count], Rule]:
    """Decorator: turns a function `(inputs, outputs, attrs) -> Work` into a rule that reads these attributes."""
    return lambda count: Rule(count, reads)


#: Time to create a view, relative to one function call on a small array.
VIEW_CALL = 0.3


def size(spec: Spec) -> int:
    return math.prod(spec.shape)


def nbytes(specs: Specs) -> float:
    total = 0.0
    for shape, dtype in specs:
        total += math.prod(shape) * dtype.itemsize
    return total


def elementwise_factor(dtype: DType) -> float:
    """Cost of simple arithmetic relative to float32. Scales with bytes; 16-bit floats are converted one by one."""
    if dtype.itemsize == 2 and dtype.kind in "fV":
        return 25.0
    return dtype.itemsize / 4 * (1.5 if dtype.kind == "c" else 1.0)


def transcendental_factor(dtype: DType) -> float:
    """Cost of a transcendental function relative to float32. Complex numbers have no vectorised version."""
    if dtype.kind == "c":
        return 20.0
    return 3.0 if dtype.itemsize == 8 else 6.0 if dtype.itemsize == 2 else 1.0


# -- families ----------------------------------------------------------------------------------------------------


@rule()
def nothing(ins: Specs, outs: Specs, attrs: Attrs) -> Work:
    return Work(calls=0.0)


@rule()
def view(ins: Specs, outs: Specs, attrs: Attrs) -> Work:
    return Work(calls=VIEW_CALL * max(len(outs), 1))


@rule()
def plain(ins: Specs, outs: Specs, attrs: Attrs) -> Work:
    """For ops of which only the types are known: touch every element once."""
    elements = max([size(s) * elementwise_factor(s.dtype) for s in (*ins, *outs)], default=0.0)
    return Work(elementwise=elements, nbytes=nbytes(ins) + nbytes(outs))


@rule()
def copy(ins: Specs, outs: Specs, attrs: Attrs) -> Work:
    """Elements are moved, not computed. Copying in pieces is slower than one long copy."""
    return Work(nbytes=nbytes(ins) + 2 * nbytes(outs), calls=max(len(ins), 1))


@rule()
def fill(ins: Specs, outs: Specs, attrs: Attrs) -> Work:
    """Reads no input data. Written lines are fetched into the cache first, so they count twice."""
    return Work(nbytes=2 * nbytes(outs))


def per_element(elementwise: float = 0.0, transcendental: float = 0.0, calls: float = 1.0) -> Rule:
    """A function of each element, with its weights per element."""

    @rule()
    def made(ins: Specs, outs: Specs, attrs: Attrs) -> Work:
        out = outs[0]
        dtype = ins[0].dtype if out.dtype.kind == "b" else out.dtype  # comparisons cost by their operands
        n = size(out)
        moved, starts = nbytes(ins) + nbytes(outs), _starts(ins, out)
        simple = elementwise * n * elementwise_factor(dtype)
        return Work((), simple, transcendental * n * transcendental_factor(dtype), starts, moved, calls)

    return made


def _starts(ins: Specs, out: Spec) -> float:
    """Row starts: with a broadcast operand, every row is processed separately."""
    for shape, _ in ins:
        if shape and shape != out.shape:
            return float(math.prod(out.shape[:-1]))
    return 0.0


@rule()
def add_n(ins: Specs, outs: Specs, attrs: Attrs) -> Work:
    terms = max(len(ins) - 1, 1)
    elements = terms * size(outs[0]) * elementwise_factor(outs[0].dtype)
    return Work(elementwise=elements, nbytes=nbytes(ins) + nbytes(outs), calls=terms)


def rowwise(
    elementwise: float = 0.0, transcendental: float = 0.0, reductions: int = 1, calls: float = 1.0, over: int = 0
) -> Rule:
    """A function of whole rows: weights per element of input `over`, and the number of reductions along each row."""

    @rule("axis")
    def made(ins: Specs, outs: Specs, attrs: Attrs) -> Work:
        x = ins[over]
        n = size(x)
        rows = n // max(_length(x.shape, attrs.get("axis", -1)), 1)
        simple = elementwise * n * elementwise_factor(x.dtype)
        costly = transcendental * n * transcendental_factor(x.dtype)
        return Work((), simple, costly, reductions * rows, nbytes(ins) + nbytes(outs), calls)

    return made


def _length(shape: Shape, axis: Any) -> int:
    return math.prod([shape[i] for i in axis]) if isinstance(axis, tuple) else shape[axis] if shape else 1


def reduction(elementwise: float = 1.0, transcendental: float = 0.0) -> Rule:
    """Along the last axis each row is reduced separately; along other axes whole rows are added up."""

    @rule("axis")
    def made(ins: Specs, outs: Specs, attrs: Attrs) -> Work:
        x, n = ins[0], size(ins[0])
        axis = attrs["axis"]
        last = len(x.shape) - 1 in (axis if isinstance(axis, tuple) else (axis,)) or axis == -1
        starts = size(outs[0]) if last and size(outs[0]) > 1 else 0
        moved = nbytes(ins) + nbytes(outs)
        simple = elementwise * (1.0 if last else 0.7) * n * elementwise_factor(x.dtype)
        return Work((), simple, transcendental * n * transcendental_factor(x.dtype), starts, moved)

    return made


def irregular(weight: float) -> Rule:
    """Elements of the result are produced one at a time."""

    @rule()
    def made(ins: Specs, outs: Specs, attrs: Attrs) -> Work:
        return Work(irregular=weight * size(outs[0]), nbytes=nbytes(ins) + nbytes(outs))

    return made
