"""Native code for convolutions with windows of 3 x 3 at strides of 1, with 16 products instead of 36: Winograd's
F(2 x 2, 3 x 3).

Every tile of 2 x 2 cells of the result reads 4 x 4 cells of the image. Along one axis, with the cells d and the taps w,

    y0 = d0 w0 + d1 w1 + d2 w2 = m0 + m1 + m2     m0 = (d0 - d2) w0     m1 = (d1 + d2) (w0 + w1 + w2) / 2
    y1 = d1 w0 + d2 w1 + d3 w2 = m1 - m2 + m3     m3 = (d3 - d1) w2     m2 = (d2 - d1) (w0 - w1 + w2) / 2

and the same along both axes, one after the other. The multiplications are 16 matrix products over the channels. The
gradient with respect to the taps is the transpose of all this. In float32 the error is that of the plain sum of
products.

Some tiles at a time are transformed to [16, tiles, channels], multiplied and transformed back; all of it stays in the
cache.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from llvmlite import ir

from distgrad.scheduler.cost.convolutions import APART
from distgrad.types import DType
from distgrad.workers.native.kernels.code import Code, Functions
from distgrad.workers.native.llvm import once
from distgrad.workers.native.values import Value, select

#: The transform of the taps along one axis.
_TAPS = np.array([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]])
#: And along both axes: [16, 9].
BOTH = np.kron(_TAPS, _TAPS)

FIELDS = (
    "image",  # [images, height, width, channels]
    "height",
    "width",
    "channels",
    "top",  # where the first tile begins
    "left",
    "rows",  # tiles per image
    "cols",
    "tiles",  # of all images
    "block",  # tiles that are multiplied at a time
    "kernel",  # [16, channels, made]
    "made",
    "result",  # [images, out_height, out_width, made]
    "out_height",
    "out_width",
    "sums",  # [16, channels, made]
)


@once
def functions(dtype: DType) -> Functions:
    """correlate: blocks of tiles; gradient: a sum over blocks of tiles, of the kernel's transformed gradient."""
    module = ir.Module(name=f"winograd of {dtype}")
    split = _split(module, dtype)
    _correlate(module, dtype, split, _join(module, dtype))
    _gradient(module, dtype, split, _factors(module, dtype))
    return Functions(module)


def _place(code: Code, tile: Value) -> tuple[Value, Value, Value]:
    """The image, and the row and column of tiles."""
    above, j = code.divided(tile, code.field("cols"))
    n, i = code.divided(above, code.field("rows"))
    return n, i, j


def _along(transform: Callable[..., list[Value]], grid: Sequence[Sequence[Value]]) -> list[list[Value]]:
    """A transform along both axes of a grid: first in each row, then in each column."""
    rows = [transform(*row) for row in grid]
    return [list(row) for row in zip(*[transform(*column) for column in zip(*rows, strict=True)], strict=True)]


def _differences(d0: Value, d1: Value, d2: Value, d3: Value) -> list[Value]:
    return [d0 - d2, d1 + d2, d2 - d1, d3 - d1]


def _sums(m0: Value, m1: Value, m2: Value, m3: Value) -> list[Value]:
    return [m0 + m1 + m2, m1 - m2 + m3]


def _transposed_sums(y0: Value, y1: Value) -> list[Value]:
    return [y0, y0 + y1, y0 - y1, y1]


def _split(module: ir.Module, dtype: DType) -> ir.Function:
    """The transformed cells of the tiles from `start` to `stop`, in `scratch`: [16, block, channels]; after them is
    room for the 16 cells of a tile."""
    code = Code(module, "split", dtype, FIELDS)
    image, height, width, channels = (code.address("image"), *(code.field(x) for x in ("height", "width", "channels")))
    top, left = code.field("top"), code.field("left")
    plane = _plane(code, channels)
    frame = code.after(code.scratch, plane * 16)
    with code.loop(code.start, code.stop) as t:
        n, i, j = _place(code, t)
        y, x = i * 2 + top, j * 2 + left
        cells = code.after(image, ((n * height + y) * width + x) * channels)
        inside = (y >= 0) & (y + 4 <= height) & (x >= 0) & (x + 4 <= width)
        with code.when(~inside):
            _framed(code, frame, cells, (y, x, height, width), channels)
        source = code.choice(inside, cells, frame)
        row = select(inside, width, 4) * channels
        to = code.after(code.scratch, (t - code.start) * channels)

        def body(c: Value, mask: ir.Value | None) -> None:
            at = [[code.after(source, row * a + channels * b + c) for b in range(4)] for a in range(4)]
            made = _along(_differences, [[code.read(cell, mask) for cell in cells] for cells in at])
            for k, value in enumerate([value for values in made for value in values]):
                code.write(code.after(to, plane * k + c), value, mask)

        code.vectors(channels, body)
    code.end()
    return code.function


def _framed(code: Code, frame: ir.Value, cells: ir.Value, place: Sequence[Value], channels: Value) -> None:
    """The 4 x 4 cells at (y, x), of which some are outside the image, and zero."""
    y, x, height, width = place
    code.clear(frame, channels * 16)
    first, last = code.larger(-x, 0), code.smaller(width - x, 4)
    with code.loop(code.larger(-y, 0), code.smaller(height - y, 4)) as a, code.when(first < last):
        source = code.after(cells, (a * width + first) * channels)
        code.copy(code.after(frame, (a * 4 + first) * channels), source, (last - first) * channels)


def _join(module: ir.Module, dtype: DType) -> ir.Function:
    """The cells of the result from the products, [16, block, made] in `scratch`; after them is room for a cell."""
    code = Code(module, "join", dtype, FIELDS)
    made = code.field("made")
    plane = _plane(code, made)
    nowhere = code.after(code.scratch, plane * 16)
    with code.loop(code.start, code.stop) as t:
        products = code.after(code.scratch, (t - code.start) * made)
        out = _results(code, t, nowhere)

        def body(c: Value, mask: ir.Value | None) -> None:
            m = [code.read(code.after(products, plane * k + c), mask) for k in range(16)]
            y = _along(_sums, [m[4 * a : 4 * a + 4] for a in range(4)])
            for value, to in zip([value for values in y for value in values], out, strict=True):
                code.write(code.after(to, c), value, mask)

        code.vectors(made, body)
    code.end()
    return code.function


def _results(code: Code, t: Value, outside: ir.Value) -> list[ir.Value]:
    """Where the 2 x 2 cells of a tile of the result are; `outside` stands for those that the result does not have."""
    result, height, width = code.address("result"), code.field("out_height"), code.field("out_width")
    n, i, j = _place(code, t)
    made = []
    for a in range(2):
        for b in range(2):
            y, x = i * 2 + a, j * 2 + b
            at = code.after(result, ((n * height + y) * width + x) * code.field("made"))
            made.append(code.choice((y < height) & (x < width), at, outside))
    return made


def _factors(module: ir.Module, dtype: DType) -> ir.Function:
    """The factors of the transformed cells in a gradient, of the tiles from `start` to `stop`: [16, block, made] in
    `scratch`; after them is room for a cell of zeros."""
    code = Code(module, "factors", dtype, FIELDS)
    made = code.field("made")
    plane = _plane(code, made)
    zeros = code.after(code.scratch, plane * 16)
    code.clear(zeros, made)
    with code.loop(code.start, code.stop) as t:
        to = code.after(code.scratch, (t - code.start) * made)
        cells = _results(code, t, zeros)

        def body(c: Value, mask: ir.Value | None) -> None:
            g = [code.read(code.after(cell, c), mask) for cell in cells]
            e = _along(_transposed_sums, [g[:2], g[2:]])
            for k, value in enumerate([value for values in e for value in values]):
                code.write(code.after(to, plane * k + c), value, mask)

        code.vectors(made, body)
    code.end()
    return code.function


def _correlate(module: ir.Module, dtype: DType, split: ir.Function, join: ir.Function) -> None:
    """The blocks of tiles from `start` to `stop`."""
    code = Code(module, "correlate", dtype, FIELDS)
    channels, made, kernel = code.field("channels"), code.field("made"), code.address("kernel")
    with code.loop(code.start, code.stop) as number:
        first, last, products = _block(code, number)
        code.call(split, code.scratch, first, last)
        with code.loop(0, code.integer(16)) as k:
            cells = code.after(code.scratch, _plane(code, channels) * k)
            to = code.after(products, _plane(code, made) * k)
            factor, sizes = code.after(kernel, channels * made * k), (last - first, made, channels)
            code.multiply((cells, channels, code.integer(1)), (factor, made), (to, made), sizes)
        code.call(join, products, first, last)
    code.end()


def _gradient(module: ir.Module, dtype: DType, split: ir.Function, factors: ir.Function) -> None:
    """Sums over the blocks of tiles from `start` to `stop`."""
    code = Code(module, "gradient", dtype, FIELDS)
    channels, made, sums = code.field("channels"), code.field("made"), code.address("sums")
    with code.loop(code.start, code.stop) as number:
        first, last, others = _block(code, number)
        code.call(split, code.scratch, first, last)
        code.call(factors, others, first, last)
        with code.loop(0, code.integer(16)) as k:
            cells = code.after(code.scratch, _plane(code, channels) * k)
            factor = code.after(others, _plane(code, made) * k)
            to = code.after(sums, channels * made * k)
            turned, sizes = (cells, code.integer(1), channels), (channels, made, last - first)
            code.multiply(turned, (factor, made), (to, made), sizes, number > code.start)
    code.end()


def _plane(code: Code, channels: Value) -> Value:
    """Elements from one of the 16 to the next."""
    return code.field("block") * channels + APART


def _block(code: Code, number: Value) -> tuple[Value, Value, ir.Value]:
    """The tiles of a block, from the first to the last, and the second half of scratch memory."""
    block = code.field("block")
    first = number * block
    last = code.smaller(first + block, code.field("tiles"))
    channels = code.field("channels")
    return first, last, code.after(code.scratch, (_plane(code, channels) + channels) * 16)
