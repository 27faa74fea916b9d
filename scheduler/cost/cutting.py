"""Blocking: into how many blocks the NumPy engine splits a step, and the scratch bytes of each thread.

Time and memory are both predicted from this. Groups run in exactly these blocks; for products and convolutions the
engine has its own copy of the figures, and a test keeps them equal.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from distgrad.registry import Kind, kind_of
from distgrad.scheduler.program import Step
from distgrad.types import Shape, Spec

#: Target elements per block; one row if rows are longer. Smaller blocks would stay in a faster cache, but threads hand
#: over the interpreter lock after every call, which takes as long as a call on a small block.
BLOCK = 192 << 10
#: From this many elements on, a group with sums over its rows has at least this many blocks, so that threads can take
#: some of the rows through many steps; sums are made of whole blocks.
FOLDED, FEWEST = 128 << 10, 4
#: Minimum elements times steps of a group that threads share: below it, waking threads costs more than it saves.
ALONE = 1 << 20
#: Elements per row when whole arrays are summed.
ROW = 1024
#: Minimum number of such rows at which blocks are made of whole rows.
EVEN = 32
#: Minimum flops of each half of a matrix product that is split across threads.
PIECE_FLOPS = 4 << 20
#: Scratch bytes of one block of a convolution, and scratch bytes from which there are at least two blocks.
WINDOW_BYTES = 10 << 20
WINDOWS_ALONE = 1 << 19
#: Maximum number of partial sums of a convolution's gradient, and their maximum bytes unless two are larger.
LANES = 8
SUMS_BYTES = 32 << 20


class Cut(NamedTuple):
    """Number of blocks, rows of the space per block, and whether threads share the blocks."""

    blocks: int
    rows: int
    shared: bool


def cut_group(step: Step) -> Cut:
    """The blocks of a group. Depends on the step alone, because sums depend on it.

    The count is even if above one, so that two threads finish together. For sums over rows it is a power of two, so
    that halves and quarters are whole blocks.
    """
    space: Shape = step.attrs["space"]
    elements, rows = math.prod(space), math.prod(space[: step.attrs["split"]])
    count = -(-elements // BLOCK)
    if len(space) > 1 and elements >= FOLDED and _folds(step):
        count = max(1 << (count - 1).bit_length(), FEWEST)
    elif count > 1:
        count += count % 2
    height = _even(max(-(-rows // max(count, 1)), 1), elements // max(rows, 1))
    count = -(-rows // height)
    return Cut(count, height, count > 1 and is_shared(step))


def is_shared(step: Step) -> bool:
    """Whether a group has enough to do for several threads."""
    space: Shape = step.attrs["space"]
    return math.prod(space) * len(step.body) >= ALONE


def _folds(step: Step) -> bool:
    return any(reduces_rows(inner) for inner in step.body)


def reduces_rows(inner: Step) -> bool:
    """Whether a step of a group reduces leading axes, of which each block makes a part."""
    return kind_of(inner.type) is Kind.REDUCTION and 0 in inner.attrs["axis"]


def _even(height: int, row: int) -> int:
    """Round up the rows per block if that adds little, so that blocks start at cache lines without remainders."""
    step = ROW // math.gcd(ROW, row)
    return -(-height // step) * step if height >= EVEN * step else height


# -- convolutions ------------------------------------------------------------------------------------------------


class Convolution(NamedTuple):
    """A convolution or its gradient, computed as a correlation with a result of size `out`."""

    images: int
    out: tuple[int, int]
    channels: int
    made: int
    taps: int
    stride: int
    itemsize: int
    #: Whether it uses Winograd tiles, its result is a sum over blocks, or windows are added to the image.
    saves: bool
    sums: bool
    spreads: bool

    @property
    def tiles(self) -> int:
        """Number of tiles of 2 x 2 results in one image."""
        return -(-self.out[0] // 2) * -(-self.out[1] // 2)

    @property
    def nbytes(self) -> int:
        """Scratch bytes of all blocks together."""
        if self.saves:
            return 2 * 16 * self.images * self.tiles * max(self.channels, self.made) * self.itemsize
        if self.spreads:
            cells = (self.taps + 2 * self.stride) * self.channels
        else:
            cells = (self.taps + self.stride) * self.channels + self.made
        return self.images * math.prod(self.out) * cells * self.itemsize

    @property
    def sum_bytes(self) -> int:
        """Bytes of one partial sum; 0 if the result is not a sum."""
        taps = 16 if self.saves else self.taps
        return taps * self.channels * self.made * self.itemsize if self.sums else 0

    @property
    def blocks(self) -> int:
        count = -(-self.nbytes // max(WINDOW_BYTES, 2 * self.sum_bytes))
        count += count % 2 if self.nbytes >= WINDOWS_ALONE else 0
        return max(min(count, self.images * self.out[0]), 1)

    @property
    def lanes(self) -> int:
        """Number of partial sums that are accumulated concurrently."""
        return min(self.blocks, LANES, max(SUMS_BYTES // self.sum_bytes, 2)) if self.sum_bytes else 0


def convolution(op_type: str, ins: Sequence[Spec], outs: Sequence[Spec], attrs: Mapping[str, Any]) -> Convolution:
    """The description of a Conv2D op or one of its gradients."""
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
    """The types of image, kernel and result of a convolution or its gradient."""
    if op_type == "Conv2D":
        return ins[0], ins[1], outs[0]
    return (outs[0], ins[0], ins[1]) if op_type == "Conv2DBackpropInput" else (ins[0], outs[0], ins[1])


def _pays(out: tuple[int, int], channels: int, made: int) -> bool:
    """Whether the saved products outweigh the transforms of Winograd tiles."""
    tiles = -(-out[0] // 2) * -(-out[1] // 2)
    return (9 * math.prod(out) - 16 * tiles) * channels * made > 4 * tiles * (35 * channels + 75 * made)
