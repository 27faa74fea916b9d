"""Native code for convolutions with any window: windows are copied side by side, a tile at a time, and multiplied.

A window is given by its runs, cells that lie side by side in a row of the image. Position (i, j) of an image reads the
run (y, x, cells) at row i * row_step + y, from column j * col_step + x on; what lies outside the image is zero. So
the same code serves a convolution, its gradient with respect to the kernel and, with one set of runs per phase of the
strides, the gradient with respect to the image. A tile of windows stays in the cache.
"""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from distgrad.types import DType
from distgrad.workers.native.kernels.code import Code, Functions
from distgrad.workers.native.llvm import once
from distgrad.workers.native.values import Value

FIELDS = (
    "image",  # [images, height, width, channels]
    "height",
    "width",
    "channels",
    "rows",  # positions per image
    "cols",
    "positions",  # of all images
    "row_step",
    "col_step",
    "runs",  # a table: row, column, cells, cells of the window before them
    "run_count",
    "depth",  # elements of a window
    "copied",  # 0 if windows already lie side by side
    "tile",  # positions that are multiplied at a time
    "kernel",  # [depth, made]
    "made",
    "result",  # [images, out_height, out_width, made]
    "out_height",
    "out_width",
    "out_row",  # position (i, j) makes out_row + i * out_row_step, out_col + j * out_col_step
    "out_col",
    "out_row_step",
    "out_col_step",
    "direct",  # 1 if positions are the cells of the result, one after the other
    "sums",  # [depth, made]
)


@once
def functions(dtype: DType) -> Functions:
    """correlate: tiles of positions; gradient: a sum over tiles of positions, of the kernel's gradient."""
    module = ir.Module(name=f"windows of {dtype}")
    pack, place = _pack(module, dtype), _place(module, dtype)
    _correlate(module, dtype, pack, place)
    _gradient(module, dtype, pack)
    return Functions(module)


def _position(code: Code, number: Value) -> tuple[Value, Value, Value]:
    """The image, the row and the column of a position."""
    above, j = code.divided(number, code.field("cols"))
    n, i = code.divided(above, code.field("rows"))
    return n, i, j


def _pack(module: ir.Module, dtype: DType) -> ir.Function:
    """Copy the windows at the positions from `start` to `stop` to `scratch`."""
    code = Code(module, "pack", dtype, FIELDS)
    image, runs, count = code.address("image"), code.address("runs"), code.field("run_count")
    height, width, channels = (code.field(name) for name in ("height", "width", "channels"))
    steps, depth = (code.field("row_step"), code.field("col_step")), code.field("depth")
    with code.loop(code.start, code.stop) as p:
        n, i, j = _position(code, p)
        window = code.after(code.scratch, (p - code.start) * depth)
        top, left = i * steps[0], j * steps[1]
        with code.loop(0, count) as run:
            y, x, cells, before = (code.number_at(runs, run * 4 + k) for k in range(4))
            y, x = top + y, left + x
            to = code.after(window, before * channels)
            source = code.after(image, ((n * height + y) * width + x) * channels)
            rows = (y >= 0) & (y < height)
            with code.either(rows & (x >= 0) & (x + cells <= width)) as (inside, border):
                with inside:
                    code.copy(to, source, cells * channels)
                with border:
                    _clipped(code, to, source, (rows, x, cells, width), channels)
    code.end()
    return code.function


def _clipped(code: Code, to: ir.Value, source: ir.Value, run: Sequence[Value], channels: Value) -> None:
    """A run of which only some cells are inside the image."""
    rows, x, cells, width = run
    code.clear(to, cells * channels)
    with code.when(rows):
        first = code.larger(-x, 0)
        last = code.smaller(width - x, cells)
        with code.when(first < last):
            skipped = first * channels
            code.copy(code.after(to, skipped), code.after(source, skipped), (last - first) * channels)


def _place(module: ir.Module, dtype: DType) -> ir.Function:
    """Copy the products of the positions from `start` to `stop`, which are in `scratch`, to their cells."""
    code = Code(module, "place", dtype, FIELDS)
    result, made = code.address("result"), code.field("made")
    height, width = code.field("out_height"), code.field("out_width")
    origin, steps = ([code.field(f"out_{name}{more}") for name in ("row", "col")] for more in ("", "_step"))
    with code.loop(code.start, code.stop) as p:
        n, i, j = _position(code, p)
        y, x = origin[0] + i * steps[0], origin[1] + j * steps[1]
        to = code.after(result, ((n * height + y) * width + x) * made)
        code.copy(to, code.after(code.scratch, (p - code.start) * made), made)
    code.end()
    return code.function


def _correlate(module: ir.Module, dtype: DType, pack: ir.Function, place: ir.Function) -> None:
    """result = windows @ kernel, for the tiles from `start` to `stop`."""
    code = Code(module, "correlate", dtype, FIELDS)
    tile, depth, made = (code.field(name) for name in ("tile", "depth", "made"))
    direct, kernel = code.field("direct") > 0, code.address("kernel")
    with code.loop(code.start, code.stop) as t:
        first, last, windows = _windows(code, pack, t)
        products = code.after(code.scratch, tile * depth)
        out = code.choice(direct, code.after(code.address("result"), first * made), products)
        code.multiply((windows, depth, code.integer(1)), (kernel, made), (out, made), (last - first, made, depth))
        with code.when(~direct):
            code.call(place, products, first, last)
    code.end()


def _gradient(module: ir.Module, dtype: DType, pack: ir.Function) -> None:
    """sums = the sum of windows.T @ result over the tiles from `start` to `stop`."""
    code = Code(module, "gradient", dtype, FIELDS)
    depth, made, sums = code.field("depth"), code.field("made"), code.address("sums")
    with code.loop(code.start, code.stop) as t:
        first, last, windows = _windows(code, pack, t)
        factors = code.after(code.address("result"), first * made)
        turned, sizes = (windows, code.integer(1), depth), (depth, made, last - first)
        code.multiply(turned, (factors, made), (sums, made), sizes, t > code.start)
    code.end()


def _windows(code: Code, pack: ir.Function, t: Value) -> tuple[Value, Value, ir.Value]:
    """The positions of a tile, from the first to the last, and where their windows are."""
    tile = code.field("tile")
    first = t * tile
    last = code.smaller(first + tile, code.field("positions"))
    copied = code.field("copied") > 0
    with code.when(copied):
        code.call(pack, code.scratch, first, last)
    image = code.after(code.address("image"), first * code.field("depth"))
    return first, last, code.choice(copied, code.scratch, image)
