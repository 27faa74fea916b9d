"""Convolutions as native code computes them: the shapes of a convolution, and the tiles that it is cut into.

Time and memory are predicted from this, and native code runs in exactly these tiles. They depend on shapes alone,
because results depend on them. Threads take tiles, or for a kernel's gradient parts of the sum over all tiles.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

from distgrad.types import DType, Spec

Pair = tuple[int, int]
#: Row, column, and number of cells side by side, of a window; and how many cells of it come before them.
Run = tuple[int, int, int, int]

#: Bytes of copied windows, and of transformed tiles with their products, that are multiplied at a time: they are to
#: stay in a core's cache.
TILE_BYTES = 256 << 10
BLOCK_BYTES = 384 << 10
#: Numbers of positions are multiples of this, so that products have no rest of rows.
UNIT = 48
#: Elements between the planes of Winograd's 16 products: without them, planes whose sizes are powers of two would share
#: the same lines of a cache.
APART = 16
#: Parts of the sum that is the gradient of a kernel, per thread: a thread that is held up takes fewer.
PARTS = 2
#: What it costs to transform an element of a tile, in products.
TRANSFORM = 4


class Shapes(NamedTuple):
    """A convolution of images with a kernel. `origin` is the cell where the first window begins."""

    images: int
    size: Pair
    channels: int
    window: Pair
    made: int
    out: Pair
    strides: Pair
    dilation: Pair
    origin: Pair
    dtype: DType

    @property
    def saves(self) -> bool:
        """Whether Winograd's tiles are used: their fewer products must make up for the transforms."""
        if self.window != (3, 3) or self.strides != (1, 1) or self.dilation != (1, 1):
            return False
        tiles = math.prod(tiles_of(self.out))
        saved = (9 * math.prod(self.out) - 16 * tiles) * self.channels * self.made
        return saved > 16 * tiles * TRANSFORM * (self.channels + self.made)

    def reversed(self) -> Shapes:
        """The convolution that is the gradient of this one with respect to the image, if strides are 1: that of the
        result's gradient with the taps in reverse."""
        (top, left), (kh, kw), (dh, dw) = self.origin, self.window, self.dilation
        origin = -top - (kh - 1) * dh, -left - (kw - 1) * dw
        return self._replace(size=self.out, out=self.size, channels=self.made, made=self.channels, origin=origin)


def is_native(groups: int, specs: Sequence[Spec]) -> bool:
    """Whether native code serves a convolution of arrays of these types."""
    return groups == 1 and specs[0].dtype.char in "fd" and not any(0 in spec.shape for spec in specs)


def shapes(op_type: str, ins: Sequence[Spec], outs: Sequence[Spec], attrs: Mapping[str, Any]) -> Shapes:
    """The convolution that an op computes, or a gradient of."""
    x, w, y = image_kernel_result(op_type, ins, outs)
    (images, *size, channels), (*window, _, made), (_, *out, _) = x.shape, w.shape, y.shape
    (top, _), (left, _) = attrs["padding"]
    (sh, sw), (dh, dw) = attrs["strides"], attrs["dilation"]
    pairs = [(pair[0], pair[1]) for pair in (size, window, out)]
    return Shapes(images, pairs[0], channels, pairs[1], made, pairs[2], (sh, sw), (dh, dw), (-top, -left), y.dtype)


def image_kernel_result(op_type: str, ins: Sequence[Spec], outs: Sequence[Spec]) -> tuple[Spec, Spec, Spec]:
    """The types of image, kernel and result of a convolution or its gradient."""
    if op_type == "Conv2D":
        return ins[0], ins[1], outs[0]
    return (outs[0], ins[0], ins[1]) if op_type == "Conv2DBackpropInput" else (ins[0], outs[0], ins[1])


def tiles_of(out: Pair) -> Pair:
    """Winograd's tiles of 2 x 2 results."""
    return -(-out[0] // 2), -(-out[1] // 2)


def _multiple(wanted: int, most: int) -> int:
    """About this number of positions, and not more than there are."""
    return min(max(wanted // UNIT, 1) * UNIT, most)


# -- windows -----------------------------------------------------------------------------------------------------------


class Windows(NamedTuple):
    """The windows of some positions: what native code is told of them, and the taps of the kernel that they meet."""

    fields: Mapping[str, int]
    runs: tuple[Run, ...]
    taps: tuple[Sequence[int], Sequence[int]]

    @property
    def blocks(self) -> int:
        return -(-self.fields["positions"] // self.fields["tile"])

    @property
    def flops(self) -> int:
        return 2 * self.fields["positions"] * self.fields["depth"] * self.fields["made"]

    @property
    def moved(self) -> int:
        """Elements of copied windows, and of products that are copied to their place."""
        depth, made, copied, direct = (self.fields[name] for name in ("depth", "made", "copied", "direct"))
        return self.fields["positions"] * (copied * depth + (1 - direct) * made)

    @property
    def scratch(self) -> int:
        """Elements of the windows of a tile, and of their products."""
        return self.fields["tile"] * (self.fields["depth"] + self.fields["made"])

    @property
    def sum_size(self) -> int:
        """Elements of a part of the kernel's gradient."""
        return self.fields["depth"] * self.fields["made"]


def forward(s: Shapes) -> Windows:
    """The windows of a convolution."""
    offsets = [[at + k * d for k in range(n)] for at, n, d in zip(s.origin, s.window, s.dilation, strict=True)]
    taps = range(s.window[0]), range(s.window[1])
    return _windows(s, s.out, s.strides, (offsets[0], offsets[1]), (0, 0), (1, 1), taps)


def backward(s: Shapes) -> Iterator[Windows]:
    """The results that each cell of the image has a part in, for each phase: rows that are equal modulo the stride meet
    the same taps, and so do columns."""
    for phase in product(*map(range, s.strides)):
        axes = [_met(s, axis, phase[axis]) for axis in (0, 1)]
        rows, cols = (tuple([offset for offset, _ in axis]) for axis in axes)
        taps = tuple([k for _, k in axes[0]]), tuple([k for _, k in axes[1]])
        count = [-(-(n - p) // stride) for n, p, stride in zip(s.size, phase, s.strides, strict=True)]
        if min(count) > 0:
            at = phase[0], phase[1]
            yield _windows(s.reversed(), (count[0], count[1]), (1, 1), (rows, cols), at, s.strides, taps)


def _met(s: Shapes, axis: int, phase: int) -> list[Pair]:
    """Along an axis, the offsets of the results that cells of this phase have a part in, in order, with their taps."""
    found = []
    for k in reversed(range(s.window[axis])):
        offset, rest = divmod(phase - s.origin[axis] - k * s.dilation[axis], s.strides[axis])
        if not rest:
            found.append((offset, k))
    return found


def _windows(
    s: Shapes,
    count: Pair,
    steps: Pair,
    offsets: tuple[Sequence[int], Sequence[int]],
    out_first: Pair,
    out_steps: Pair,
    taps: tuple[Sequence[int], Sequence[int]],
) -> Windows:
    """`count` positions per image, `steps` apart, whose windows have cells at these offsets."""
    runs = _runs(*offsets)
    depth = len(offsets[0]) * len(offsets[1]) * s.channels
    positions = s.images * math.prod(count)
    plain = steps == (1, 1) and count == s.size and runs == ((0, 0, 1, 0),)
    fields = {
        "height": s.size[0],
        "width": s.size[1],
        "channels": s.channels,
        "rows": count[0],
        "cols": count[1],
        "positions": positions,
        "row_step": steps[0],
        "col_step": steps[1],
        "run_count": len(runs),
        "depth": depth,
        "copied": int(not plain),
        "tile": _multiple(TILE_BYTES // (max(depth, 1) * s.dtype.itemsize), positions),
        "made": s.made,
        "out_height": s.out[0],
        "out_width": s.out[1],
        "out_row": out_first[0],
        "out_col": out_first[1],
        "out_row_step": out_steps[0],
        "out_col_step": out_steps[1],
        "direct": int(out_steps == (1, 1)),
    }
    return Windows(fields, runs, taps)


def _runs(rows: Sequence[int], cols: Sequence[int]) -> tuple[Run, ...]:
    """The cells of a window at these rows and columns."""
    starts = [k for k, x in enumerate(cols) if not k or x != cols[k - 1] + 1]
    sides = [(a, b - a) for a, b in zip(starts, [*starts[1:], len(cols)], strict=False)]
    return tuple([(y, cols[a], n, k * len(cols) + a) for k, y in enumerate(rows) for a, n in sides])


# -- tiles -------------------------------------------------------------------------------------------------------------


class Tiles(NamedTuple):
    """Winograd's tiles, in blocks."""

    fields: Mapping[str, int]

    @property
    def blocks(self) -> int:
        return -(-self.fields["tiles"] // self.fields["block"])

    @property
    def flops(self) -> int:
        return 2 * 16 * self.fields["tiles"] * self.fields["channels"] * self.fields["made"]

    @property
    def moved(self) -> int:
        """Elements of transformed tiles and of their products."""
        return 16 * self.fields["tiles"] * (self.fields["channels"] + self.fields["made"])

    @property
    def scratch(self) -> int:
        """Elements of a block's tiles, of their products, and of a tile more of each."""
        block, channels, made = (self.fields[name] for name in ("block", "channels", "made"))
        return 16 * ((block + 1) * channels + APART) + 16 * (block * made + APART) + made

    @property
    def sum_size(self) -> int:
        """Elements of a transformed kernel, and of a part of its gradient."""
        return 16 * self.fields["channels"] * self.fields["made"]


def tiles(s: Shapes) -> Tiles:
    rows, cols = tiles_of(s.out)
    count = s.images * rows * cols
    fields = {
        "height": s.size[0],
        "width": s.size[1],
        "channels": s.channels,
        "top": s.origin[0],
        "left": s.origin[1],
        "rows": rows,
        "cols": cols,
        "tiles": count,
        "block": _multiple(BLOCK_BYTES // (16 * (s.channels + s.made) * s.dtype.itemsize), count),
        "made": s.made,
        "out_height": s.out[0],
        "out_width": s.out[1],
    }
    return Tiles(fields)


# -- ops ---------------------------------------------------------------------------------------------------------------


def cut(op_type: str, s: Shapes) -> list[Windows] | list[Tiles]:
    """What a convolution, or one of its gradients, consists of."""
    if op_type == "Conv2DBackpropInput":
        return [tiles(s.reversed())] if s.reversed().saves else list(backward(s))
    return [tiles(s)] if s.saves else [forward(s)]


def parts(blocks: int, cpus: int) -> int:
    """The number of parts that the sum over blocks, which is the gradient of a kernel, is cut into."""
    return min(blocks, PARTS * cpus)
