"""einsum: sums of products of any number of operands.

Any sum is recorded as Einsum ops of one or two operands, so that the cost of each is known and gradients reuse
intermediate results. The gradient of an Einsum is an Einsum with the subscripts exchanged.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from string import ascii_letters
from typing import Any

import numpy as np

from distgrad.graph import Operation, Tensor
from distgrad.ops.array import broadcast_to, diagonal, reshape, transpose
from distgrad.ops.builder import common, loop_dtype, make
from distgrad.ops.guard import guard_all
from distgrad.ops.math import conj
from distgrad.registry import Kind, RegisterGradient, define
from distgrad.types import DType, Shape, Typed

# -- the op ------------------------------------------------------------------------------------------------------


@cache
def _split(equation: str) -> tuple[tuple[str, ...], str]:
    inputs, output = equation.split("->")
    return tuple(inputs.split(",")), output


def _einsum_infer(*xs: Typed, equation: str) -> tuple[Shape, DType]:
    terms, output = _split(equation)
    sizes = {c: n for term, x in zip(terms, xs, strict=True) for c, n in zip(term, x.shape, strict=True)}
    return tuple([sizes[c] for c in output]), xs[0].dtype


# One or two operands, each label of one size. A label that is repeated in the output fills a diagonal, with zeros
# elsewhere: the adjoint of reading a diagonal, so that gradients are Einsums again.
_einsum = define("Einsum", _einsum_infer, kind=Kind.PRODUCT)


def label(i: int) -> str:
    """The i-th subscript: a letter, or another character beyond 52."""
    return ascii_letters[i] if i < len(ascii_letters) else chr(0x100 + i)


def sum_product(terms: Sequence[str], output: str, xs: Sequence[Any], name: str | None = None) -> Tensor:
    """One Einsum op, with labels renamed in order of appearance, so that equal sums have equal attributes."""
    equation = f"{','.join(terms)}->{output}"
    names = {c: label(i) for i, c in enumerate(dict.fromkeys("".join(terms)))}
    return make(_einsum, tuple(xs), {"equation": "".join([names.get(c, c) for c in equation])}, name)


@RegisterGradient("Einsum")
def _einsum_grad(op: Operation, g: Tensor) -> Any:
    return [_exchanged(op, i, g) for i in range(len(op.inputs))]


def _exchanged(op: Operation, i: int, g: Tensor) -> Tensor:
    """The gradient of operand i: the same sum with that operand and the output exchanged."""
    terms, output = _split(op.attrs["equation"])
    term, x = terms[i], op.inputs[i]
    others = [j for j in range(len(terms)) if j != i]
    known = set(output).union(*[terms[j] for j in others])
    unique = "".join(dict.fromkeys(term))
    kept = "".join([c for c in unique if c in known])
    if others or kept != output:
        g = sum_product([output, *[terms[j] for j in others]], kept, [g, *[conj(op.inputs[j]) for j in others]])
    if kept != unique:  # summed in this operand alone: the gradient is constant along such an axis
        size = dict(zip(term, x.shape, strict=True))
        g = reshape(g, tuple(size[c] if c in known else 1 for c in unique))
        g = broadcast_to(g, tuple(size[c] for c in unique))
    return g if unique == term else sum_product([unique], term, [g])


# -- the function ------------------------------------------------------------------------------------------------

#: Maximum operands for an exhaustive search of the order; the number of orders grows too fast.
MAX_OPTIMAL = 4

_TERM = re.compile(r"([A-Za-z]*)(\.\.\.)?([A-Za-z]*)\Z")


def einsum(subscripts: Any, *operands: Any, optimize: Any = True, name: str | None = None) -> Tensor:
    """Einstein summation, with all arguments of NumPy's einsum.

    Three or more operands are multiplied in pairs, in an efficient order unless `optimize` is given: 'greedy',
    'optimal', a path of `np.einsum_path`, or False for left to right.

    >>> einsum("ij,j->i", np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([1.0, 10.0]))
    array([21., 43.])
    """
    if not isinstance(subscripts, str):
        subscripts, operands = _from_sublists((subscripts, *operands))
    xs = common(*operands) if operands else ()
    shapes = [tuple(x.shape) for x in xs]
    terms, output = _parse(subscripts, shapes)
    loop_dtype(np.multiply, xs[0].dtype, xs[0].dtype)  # TypeError if the dtype has no product
    sizes = _sizes(subscripts, terms, shapes)
    work = [_without_unit_axes(x, term, sizes) for x, term in zip(xs, terms, strict=True)]
    if len(work) == 1 and sorted(terms[0]) == sorted({*output}):  # a view, as in NumPy
        return transpose(xs[0], [terms[0].index(label) for label in output], name=name)
    if len(work) == 1 and len(output) == 1 and terms[0] == output * 2:
        return diagonal(xs[0], name=name)
    if len(work) == 1:
        return sum_product([work[0][0]], output, [work[0][1]], name)
    return _pairwise(work, output, _path(work, output, optimize), name)


def _from_sublists(args: Sequence[Any]) -> tuple[str, tuple[Any, ...]]:
    """Convert NumPy's other form, einsum(x, [0, 1], y, [1, 2], [0, 2]), to subscripts and operands."""
    count = len(args) // 2
    operands = args[0 : 2 * count : 2]
    lists = [*args[1 : 2 * count : 2], *args[2 * count :]]
    try:
        terms = ["".join(["..." if i is Ellipsis else ascii_letters[i.__index__()] for i in term]) for term in lists]
    except (AttributeError, IndexError, TypeError):
        raise TypeError(
            "einsum: give a string of subscripts and the operands, or each operand followed by a list of labels, "
            "which are Ellipsis and integers from 0 to 51"
        ) from None
    return ",".join(terms[:count]) + "".join([f"->{t}" for t in terms[count:]]), tuple(operands)


def _parse(subscripts: str, shapes: Sequence[Shape]) -> tuple[list[str], str]:
    """The labels of each operand and of the output; the axes of an ellipsis get labels too."""
    left, arrow, right = "".join(subscripts.split()).partition("->")
    written = left.split(",")
    for term in (*written, right):
        if not _TERM.match(term):
            raise ValueError(f"einsum: {term!r} in {subscripts!r} is not made of letters and at most one '...'")
    if len(written) != len(shapes):
        raise ValueError(f"einsum: {subscripts!r} has {len(written)} operands, got {len(shapes)}")
    ranks = [_ellipsis_rank(subscripts, i, term, shapes[i]) for i, term in enumerate(written)]
    ellipsis = "".join([chr(0x400 + i) for i in range(max(ranks))])
    terms = [t.replace("...", ellipsis[len(ellipsis) - n :]) for t, n in zip(written, ranks, strict=True)]
    letters = left.replace(",", "").replace("...", "")
    if not arrow:
        return terms, ellipsis + "".join(sorted(c for c in letters if letters.count(c) == 1))
    if ellipsis and "..." not in right:
        raise ValueError(
            f"einsum: the output of {subscripts!r} needs '...' too, for {len(ellipsis)} axes"
        )
    for c in right.replace("...", ""):
        if c not in letters or right.count(c) > 1:
            why = "more than once" if c in letters else "but no operand does"
            raise ValueError(f"einsum: the output of {subscripts!r} has the subscript {c!r} {why}")
    return terms, right.replace("...", ellipsis)


def _ellipsis_rank(subscripts: str, i: int, term: str, shape: Shape) -> int:
    rank = len(shape) - len(term.replace("...", ""))
    if rank < 0 or (rank > 0 and "..." not in term):
        raise ValueError(f"einsum: {term!r} in {subscripts!r} does not match operand {i} of shape {list(shape)}")
    return rank


def _sizes(subscripts: str, terms: Sequence[str], shapes: Sequence[Shape]) -> dict[str, int]:
    """The size of each label; axes of size 1 broadcast."""
    sizes: dict[str, int] = {}
    for term, shape in zip(terms, shapes, strict=True):
        own: dict[str, int] = {}
        for c, n in zip(term, shape, strict=True):
            if sizes.setdefault(c, n) == 1:
                sizes[c] = n
            if n not in (1, sizes[c]) or own.setdefault(c, n) != n:
                what = repr(c) if c.isascii() else "'...'"
                raise ValueError(
                    f"einsum: the axes of {what} in {subscripts!r} differ in size; "
                    f"the operands have shapes {', '.join([str(list(s)) for s in shapes])}"
                )
    return sizes


def _without_unit_axes(x: Any, term: str, sizes: dict[str, int]) -> tuple[str, Any]:
    """The operand without its broadcast axes of size 1."""
    kept = [i for i, c in enumerate(term) if x.shape[i] == sizes[c]]
    if len(kept) == len(term):
        return term, x
    return "".join([term[i] for i in kept]), reshape(x, tuple(x.shape[i] for i in kept))


def _path(work: Sequence[tuple[str, Any]], output: str, optimize: Any) -> list[tuple[int, ...]]:
    """The order of products, as a path of `np.einsum_path`."""
    everything = tuple(range(len(work)))
    if len(work) == 2 or optimize is False:
        return [everything]
    if optimize is True:
        optimize = "optimal" if len(work) <= MAX_OPTIMAL else "greedy"
    names = {c: label(i) for i, c in enumerate(dict.fromkeys("".join([term for term, _ in work])))}
    terms = ["".join([names[c] for c in term]) for term in (*[term for term, _ in work], output)]
    stand_ins = [np.broadcast_to(np.float64(0), x.shape) for _, x in work]
    path, _ = np.einsum_path(f"{','.join(terms[:-1])}->{terms[-1]}", *stand_ins, optimize=optimize)
    return [tuple(step) for step in path[1:]]


def _pairwise(work: list[tuple[str, Any]], output: str, path: list[tuple[int, ...]], name: str | None) -> Tensor:
    """Einsum ops of two operands each, in the order of the path; a label is summed after its last use."""
    for step in path:
        group = [work[i] for i in step]
        work = [item for i, item in enumerate(work) if i not in step]
        while len(group) > 1:
            (left, x), (right, y), *group = group
            if not group and not work:
                return sum_product([left, right], output, [x, y], name)
            needed = set(output).union(*[term for term, _ in (*group, *work)])
            kept = "".join([c for c in dict.fromkeys(left + right) if c in needed])
            group.insert(0, (kept, sum_product([left, right], kept, [x, y])))
        work += group
    raise ValueError(f"einsum: the path {path} leaves {len(work)} operands unmultiplied")


__all__ = ["einsum"]
guard_all(globals(), __all__)
