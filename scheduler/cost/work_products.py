"""The work of matrix products, convolutions, pooling and linear algebra."""

from __future__ import annotations

import math

from distgrad.scheduler.cost.convolutions import cut, image_kernel_result, is_native, shapes
from distgrad.scheduler.cost.cutting import PIECE_FLOPS
from distgrad.scheduler.cost.work import (
    Attrs,
    Product,
    Rule,
    Specs,
    Work,
    elementwise_factor,
    nbytes,
    plain,
    rule,
    size,
)
from distgrad.types import DType, Spec

#: Overhead of each further product in a batch, relative to one function call.
ITEM_CALL = 0.2
#: Effective smallest dimension of a product with a vector, which is a memory-bound BLAS routine.
VECTOR_DIM = 4
#: Cost of copying one run of channels, relative to one random access.
RUN = 0.45
#: Passes over the elements of Winograd's tiles and their products, or of copied windows, which stay in cache.
TILE_SWEEPS = 0.75
#: Effective smallest dimension of the products of native code, and function calls of a convolution around it.
NATIVE_DIM, CONV_CALLS = 1024, 10


def product(m: int, k: int, n: int, items: int, dtype: DType) -> Work:
    """`items` products of [m, k] and [k, n]. Integers have no BLAS; 16-bit floats are converted first."""
    flops = 2.0 * m * k * n * items
    if dtype.kind not in "fcV":
        return Work(elementwise=2 * flops)
    dim = max(min(m, k, n), VECTOR_DIM)
    each = Product(flops, dim, _double(dtype))
    if dtype.kind == "c":  # four times the work, but split by the same size
        each = each._replace(flops=4 * flops, shared=flops >= 2 * PIECE_FLOPS)
    converted = (m * k + k * n + m * n) * items * elementwise_factor(dtype) if dtype.itemsize == 2 else 0.0
    return Work((each,), converted, calls=1 + ITEM_CALL * max(items - 1, 0))


def _double(dtype: DType) -> bool:
    return dtype.itemsize == (16 if dtype.kind == "c" else 8)


@rule()
def matmul(ins: Specs, outs: Specs, attrs: Attrs) -> Work:
    a, b = ins
    *batch, m, n = outs[0].shape
    k = a.shape[-1] * a.shape[-2] // m if m else 0  # the axis that is not m, transposed or not
    items = math.prod(batch)
    if len(b.shape) == 2:  # the batch is more rows
        m, items = m * items, 1
    return product(m, k, n, items, a.dtype)._replace(nbytes=nbytes(ins) + nbytes(outs))


@rule("equation")
def einsum(ins: Specs, outs: Specs, attrs: Attrs) -> Work:
    """One matrix product: labels decide which axes are batch, row, column and summed. Operands are permuted first."""
    terms, output = attrs["equation"].split("->")
    if len(ins) == 1:
        return plain.work(ins, outs, attrs)
    labels = terms.split(",")
    sizes = {c: n for term, s in zip(labels, ins, strict=True) for c, n in zip(term, s.shape, strict=True)}
    a, b = (set(term) for term in labels)
    both, wanted = a & b, set(output)
    groups = (a - b) & wanted, both - wanted, (b - a) & wanted, both & wanted
    m, k, n, items = (math.prod([sizes[c] for c in group]) for group in groups)
    return product(m, k, n, items, ins[0].dtype)._replace(nbytes=2 * nbytes(ins) + nbytes(outs))


# -- windows -----------------------------------------------------------------------------------------------------


def conv(op_type: str) -> Rule:
    """The work of a convolution or one of its gradients."""

    @rule("strides", "padding", "dilation", "groups")
    def made(ins: Specs, outs: Specs, attrs: Attrs) -> Work:
        x, w, y = image_kernel_result(op_type, ins, outs)
        if not is_native(attrs["groups"], (x, w, y)):
            return _in_groups(x, w, y)
        return _in_tiles(op_type, ins, outs, attrs)

    return made


def _in_tiles(op_type: str, ins: Specs, outs: Specs, attrs: Attrs) -> Work:
    """Native code copies or transforms tiles, and multiplies them."""
    dtype = outs[0].dtype
    pieces = cut(op_type, shapes(op_type, ins, outs, attrs))
    swept = TILE_SWEEPS * sum([piece.moved for piece in pieces])
    products = Product(float(sum([piece.flops for piece in pieces])), NATIVE_DIM, _double(dtype))
    blocks = sum([piece.blocks for piece in pieces])
    moved = nbytes(ins) + nbytes(outs)
    return Work((products,), swept * elementwise_factor(dtype), nbytes=moved, calls=CONV_CALLS, blocks=blocks)


def _in_groups(x: Spec, w: Spec, y: Spec) -> Work:
    """A product with copied windows (im2col) per group."""
    kh, kw, per, made = w.shape
    taps, rows, groups = kh * kw, math.prod(y.shape[:3]), max(x.shape[3] // max(per, 1), 1)
    moved = nbytes((x, w, y))
    if groups == x.shape[3] == made:  # depthwise: computed tap by tap
        return Work(elementwise=2.0 * taps * size(y) * elementwise_factor(y.dtype), nbytes=moved, calls=2 * taps)
    base = product(rows, taps * per, made // groups, groups, y.dtype)
    if taps == 1:
        return base._replace(nbytes=moved)
    copied = rows * taps * groups  # contiguous runs of channels
    moved += 4.0 * copied * per * x.dtype.itemsize
    return base._replace(irregular=RUN * copied, nbytes=moved, calls=base.calls + taps + 2)


def pool(passes: float) -> Rule:
    """`passes` simple operations per element of each window."""

    @rule("window")
    def made(ins: Specs, outs: Specs, attrs: Attrs) -> Work:
        taps = math.prod(attrs["window"])
        cells = min(size(s) for s in (*ins, *outs))  # the pooled image, whichever of them it is
        elements = passes * taps * cells * elementwise_factor(outs[0].dtype)
        return Work(elementwise=elements, nbytes=nbytes(ins) + nbytes(outs), calls=2.0 * taps + 1)

    return made


# -- linear algebra ----------------------------------------------------------------------------------------------


def factorisation(cubes: float, slower: float) -> Rule:
    """`cubes * m * n * min(m, n)` flops, at the rate of a product with a smallest dimension of `min(m, n) / slower`."""

    @rule()
    def made(ins: Specs, outs: Specs, attrs: Attrs) -> Work:
        a = ins[0]
        *batch, m, n = a.shape
        return _factored(a, cubes * m * n * min(m, n), min(m, n) / slower, math.prod(batch), ins, outs)

    return made


def solve(cubes: float) -> Rule:
    """A factorisation and two triangular solves; for a triangular matrix (`cubes` 0) one solve alone."""

    @rule()
    def made(ins: Specs, outs: Specs, attrs: Attrs) -> Work:
        n, columns = ins[0].shape[-1], outs[0].shape[-1]
        flops = cubes * n**3 + (2.0 if cubes else 1.0) * n * n * columns
        return _factored(ins[0], flops, n / 200, math.prod(outs[0].shape[:-2]), ins, outs)

    return made


def _factored(a: Spec, flops: float, dim: float, items: int, ins: Specs, outs: Specs) -> Work:
    whole = flops * items * (4 if a.dtype.kind == "c" else 1)
    each = Product(whole, max(dim, 0.5), _double(a.dtype), shared=False)  # small ones are dominated by their calls
    return Work((each,), nbytes=nbytes(ins) + nbytes(outs), calls=5 + 2 * max(items - 1, 0))
