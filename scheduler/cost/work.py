"""Work: what a step does, counted from static types, in units that hardware has rates for. Knows no hardware.

Here are the families of ops that touch elements; `work_products` has those that multiply matrices, and `work_table`
says which op type is of which family.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from distgrad.types import DType, Shape, Spec


class Product(NamedTuple):
    """Matrix products of `flops` together; `dim` is the smallest of their three dimensions.

    Threads share it where it is large enough, unless `shared` is False: in a library, or too small to be cut.
    """

    flops: float
    dim: float
    double: bool = False
    shared: bool = True


class Work(NamedTuple):
    """What a step does. Elements are weighted: in multiplications of float32 (cheap) and in exps of float32 (dear)."""

    products: tuple[Product, ...] = ()
    cheap: float = 0.0
    dear: float = 0.0
    #: Places visited one by one, in starts of short rows: gathered rows, scattered or drawn elements, comparisons.
    irregular: float = 0.0
    #: Read from and written to memory.
    nbytes: float = 0.0
    #: Calls of array functions.
    calls: float = 1.0
    #: So many blocks of it can be worked on at the same time, by a thread each.
    blocks: int = 1


Specs = Sequence[Spec]
Attrs = Mapping[str, Any]
Count = Callable[[Specs, Specs, Attrs], Work]


@dataclass(frozen=True, slots=True)
class Rule:
    """How the work of an op type is counted, and the attributes that this depends on: it gets no others."""

    count: Count
    reads: tuple[str, ...] = ()

    def work(self, ins: Specs, outs: Specs, attrs: Attrs) -> Work:
        return self.count(ins, outs, {name: attrs[name] for name in self.reads if name in attrs})


def rule(*reads: str) -> Callable[[Count], Rule]:
    """Decorator: a function `(inputs, outputs, attrs) -> Work` becomes the rule that reads these attributes."""
    return lambda count: Rule(count, reads)


#: NumPy makes a view in a fraction of the time in which it calls a function on a small array.
VIEW_CALL = 0.3


def size(spec: Spec) -> int:
    return math.prod(spec.shape)


def nbytes(specs: Specs) -> float:
    total = 0.0
    for shape, dtype in specs:
        total += math.prod(shape) * dtype.itemsize
    return total


def cheap_factor(dtype: DType) -> float:
    """How much longer a cheap function takes than on float32: by bytes; 16-bit floats are converted one by one."""
    if dtype.itemsize == 2 and dtype.kind in "fV":
        return 25.0
    return dtype.itemsize / 4 * (1.5 if dtype.kind == "c" else 1.0)


def dear_factor(dtype: DType) -> float:
    """How much longer a dear function takes than on float32; complex numbers have no vectorised one."""
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
    """What is known of nothing but its types: every element is touched once."""
    elements = max([size(s) * cheap_factor(s.dtype) for s in (*ins, *outs)], default=0.0)
    return Work(cheap=elements, nbytes=nbytes(ins) + nbytes(outs))


@rule()
def copy(ins: Specs, outs: Specs, attrs: Attrs) -> Work:
    """Elements that are moved, not computed; in pieces, which takes longer than one long copy."""
    return Work(nbytes=nbytes(ins) + 2 * nbytes(outs), calls=max(len(ins), 1))


@rule()
def fill(ins: Specs, outs: Specs, attrs: Attrs) -> Work:
    """Only the types of the inputs are read. What is written is fetched into the cache first, so it counts twice."""
    return Work(nbytes=2 * nbytes(outs))


def elementwise(cheap: float = 0.0, dear: float = 0.0, calls: float = 1.0) -> Rule:
    """A function of each element, with its weights."""

    @rule()
    def made(ins: Specs, outs: Specs, attrs: Attrs) -> Work:
        out = outs[0]
        dtype = ins[0].dtype if out.dtype.kind == "b" else out.dtype  # a comparison works on what it compares
        n = size(out)
        moved, starts = nbytes(ins) + nbytes(outs), _starts(ins, out)
        return Work((), cheap * n * cheap_factor(dtype), dear * n * dear_factor(dtype), starts, moved, calls)

    return made


def _starts(ins: Specs, out: Spec) -> float:
    """An operand that repeats along rows, or is repeated by them, makes every row a start of its own."""
    for shape, _ in ins:
        if shape and shape != out.shape:
            return float(math.prod(out.shape[:-1]))
    return 0.0


@rule()
def add_n(ins: Specs, outs: Specs, attrs: Attrs) -> Work:
    terms = max(len(ins) - 1, 1)
    cheap = terms * size(outs[0]) * cheap_factor(outs[0].dtype)
    return Work(cheap=cheap, nbytes=nbytes(ins) + nbytes(outs), calls=terms)


def rowwise(cheap: float = 0.0, dear: float = 0.0, reductions: int = 1, calls: float = 1.0, over: int = 0) -> Rule:
    """A function of whole rows: weights per element of input `over`, and so many reductions along the rows."""

    @rule("axis")
    def made(ins: Specs, outs: Specs, attrs: Attrs) -> Work:
        x = ins[over]
        n = size(x)
        rows = n // max(_length(x.shape, attrs.get("axis", -1)), 1)
        plainly, dearly = cheap * n * cheap_factor(x.dtype), dear * n * dear_factor(x.dtype)
        return Work((), plainly, dearly, reductions * rows, nbytes(ins) + nbytes(outs), calls)

    return made


def _length(shape: Shape, axis: Any) -> int:
    return math.prod([shape[i] for i in axis]) if isinstance(axis, tuple) else shape[axis] if shape else 1


def reduction(cheap: float = 1.0, dear: float = 0.0) -> Rule:
    """Along the last axis every row is a start of its own; along the others whole rows are added up."""

    @rule("axis")
    def made(ins: Specs, outs: Specs, attrs: Attrs) -> Work:
        x, n = ins[0], size(ins[0])
        axis = attrs["axis"]
        last = len(x.shape) - 1 in (axis if isinstance(axis, tuple) else (axis,)) or axis == -1
        starts = size(outs[0]) if last and size(outs[0]) > 1 else 0
        moved = nbytes(ins) + nbytes(outs)
        passes = cheap * (1.0 if last else 0.7)
        return Work((), passes * n * cheap_factor(x.dtype), dear * n * dear_factor(x.dtype), starts, moved)

    return made


def irregular(weight: float) -> Rule:
    """Elements of the result, made one by one."""

    @rule()
    def made(ins: Specs, outs: Specs, attrs: Attrs) -> Work:
        return Work(irregular=weight * size(outs[0]), nbytes=nbytes(ins) + nbytes(outs))

    return made
