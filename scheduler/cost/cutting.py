"""Cutting: into how many blocks the NumPy engine cuts a step, and in how many bytes each thread works on one of them.

Time and memory are both predicted from this. Groups are run as they are cut here; for products and convolutions the
engine has the same figures, and a test keeps them equal.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from distgrad.registry import Kind, kind_of
from distgrad.scheduler.program import Step
from distgrad.types import Shape, Spec

#: So many elements of its space a block of a group has, where its rows are not longer. Fewer would stay in a nearer
#: cache, but two threads hand the interpreter's lock to each other after every call, and that takes as long as a call
#: on a short block.
BLOCK = 192 << 10
#: A group of so many elements with sums over its rows has at least so many blocks: threads may each take some of the
#: rows through many steps, and sums are made of whole blocks.
FOLDED, FEWEST = 128 << 10, 4
#: A group with fewer elements, counted once per step, runs on one thread: to wake up others costs more than they do.
ALONE = 1 << 20
#: Whole arrays are added up in rows of so many elements.
ROW = 1024
#: Blocks are made of whole such rows if they have at least so many of them.
EVEN = 32
#: A matrix product is cut into pieces for all threads where two halves have at least this many flops each.
PIECE_FLOPS = 4 << 20
#: What a block of a convolution works in, and from how much work on there are at least two blocks.
WINDOW_BYTES = 10 << 20
WINDOWS_ALONE = 1 << 19
#: At most so many sums of a convolution's gradient grow side by side, in at most so many bytes unless two are more.
LANES = 8
SUMS_BYTES = 32 << 20


class Cut(NamedTuple):
    """So many blocks, so many rows of the space in each, and whether threads share them."""

    blocks: int
    rows: int
    shared: bool


def cut_group(step: Step) -> Cut:
    """Decided by the step alone, because sums depend on it. An even number of blocks, where one is not enough, so that
    two threads finish together; for sums over the rows a power of two, so that halves and quarters are whole blocks."""
    space: Shape = step.attrs["space"]
    elements, rows = math.prod(space), math.prod(space[: step.attrs["split"]])
    count = -(-elements // BLOCK)
    if len(space) > 1 and elements >= FOLDED and _folds(step):
        count = max(1 << (count - 1).bit_length(), FEWEST)
    elif count > 1:
        count += count % 2
    height = _even(max(-(-rows // max(count, 1)), 1), elements // max(rows, 1))
    count = -(-rows // height)
    return Cut(count, height, count > 1 and elements * len(step.body) >= ALONE)


def _folds(step: Step) -> bool:
    return any(kind_of(inner.type) is Kind.REDUCTION and 0 in inner.attrs["axis"] for inner in step.body)


def _even(height: int, row: int) -> int:
    """A few rows more, where that is little: then blocks begin where lines of the cache do, and sums of a whole block
    have nothing left over."""
    step = ROW // math.gcd(ROW, row)
    return -(-height // step) * step if height >= EVEN * step else height


# -- convolutions ------------------------------------------------------------------------------------------------


class Convolution(NamedTuple):
    """A convolution or a gradient of one: `out` is the result of the correlation that it is computed as."""

    images: int
    out: tuple[int, int]
    channels: int
    made: int
    taps: int
    stride: int
    itemsize: int
    #: Whether products are saved (Winograd), the result is a sum over blocks, or windows add to the image.
    saves: bool
    sums: bool
    spreads: bool

    @property
    def tiles(self) -> int:
        """Of 2 x 2 results, in one image."""
        return -(-self.out[0] // 2) * -(-self.out[1] // 2)

    @property
    def nbytes(self) -> int:
        """What all blocks together work in."""
        if self.saves:
            return 2 * 16 * self.images * self.tiles * max(self.channels, self.made) * self.itemsize
        if self.spreads:
            cells = (self.taps + 2 * self.stride) * self.channels
        else:
            cells = (self.taps + self.stride) * self.channels + self.made
        return self.images * math.prod(self.out) * cells * self.itemsize

    @property
    def sum_bytes(self) -> int:
        """Of one term of the sum, where there is one."""
        taps = 16 if self.saves else self.taps
        return taps * self.channels * self.made * self.itemsize if self.sums else 0

    @property
    def blocks(self) -> int:
        count = -(-self.nbytes // max(WINDOW_BYTES, 2 * self.sum_bytes))
        count += count % 2 if self.nbytes >= WINDOWS_ALONE else 0
        return max(min(count, self.images * self.out[0]), 1)

    @property
    def lanes(self) -> int:
        """Sums that grow side by side."""
        return min(self.blocks, LANES, max(SUMS_BYTES // self.sum_bytes, 2)) if self.sum_bytes else 0


def convolution(op_type: str, ins: Sequence[Spec], outs: Sequence[Spec], attrs: Mapping[str, Any]) -> Convolution:
    """Of an op of type Conv2D or one of its gradients."""
    x, w, y = image_kernel_result(op_type, ins, outs)
    kh, kw, channels, made = w.shape
    strides, dilation = tuple(attrs["strides"]), tuple(attrs["dilation"])
    spreads = op_type == "Conv2DBackpropInput" and strides != (1, 1)
    out = y.shape[1:3]
    if op_type == "Conv2DBackpropInput" and not spreads:  # a convolution of the result's gradient
        out, channels, made = x.shape[1:3], made, channels
    plain = (kh, kw) == (3, 3) and strides == dilation == (1, 1)
    saves = plain and _pays((out[0], out[1]), channels, made)
    sums = op_type == "Conv2DBackpropFilter"
    size = (out[0], out[1])
    return Convolution(
        x.shape[0], size, channels, made, kh * kw, math.prod(strides), y.dtype.itemsize, saves, sums, spreads
    )


def image_kernel_result(op_type: str, ins: Sequence[Spec], outs: Sequence[Spec]) -> tuple[Spec, Spec, Spec]:
    """Where a convolution or its gradient has its image, kernel and result."""
    if op_type == "Conv2D":
        return ins[0], ins[1], outs[0]
    return (outs[0], ins[0], ins[1]) if op_type == "Conv2DBackpropInput" else (ins[0], outs[0], ins[1])


def _pays(out: tuple[int, int], channels: int, made: int) -> bool:
    """Whether fewer products make up for taking tiles apart and putting them together."""
    tiles = -(-out[0] // 2) * -(-out[1] // 2)
    return (9 * math.prod(out) - 16 * tiles) * channels * made > 4 * tiles * (35 * channels + 75 * made)
