"""Convolution of float32 and float64 NumPy arrays without groups: block by block, in reused scratch memory.

Two algorithms. For any window, strides and dilation, the windows of a block are copied to a matrix (im2col), as in
conv.py, and multiplied by the kernel. Windows of 3 x 3 with stride 1 can use fewer products: see conv_winograd.py.
"""

from __future__ import annotations

import math
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import as_strided

from distgrad.workers.kernels import conv_winograd as winograd
from distgrad.workers.kernels.conv_blocks import Array, Block, Extent, Range, framed, pieces, run, shaped, total

#: Windows with fewer contiguous elements are copied tap by tap instead of window by window, in longer runs.
FEW_CELLS = 16


def serves(a: Any, b: Any, groups: int) -> bool:
    """Whether the functions below support these two arrays."""
    return (
        type(a) is type(b) is np.ndarray
        and a.dtype == b.dtype
        and a.dtype.char in "fd"
        and groups == 1
        and a.size > 0
        and b.size > 0
    )


def _plain(window: Any, strides: Any, dilation: Any) -> bool:
    return tuple(window) == (3, 3) and tuple(strides) == tuple(dilation) == (1, 1)


class Windows(NamedTuple):
    """The geometry of windows: size, strides, dilation, and the position of the first one."""

    size: Range
    strides: Range
    dilation: Range
    origin: Range

    def span(self, axis: int, positions: Range) -> Range:
        """The cells that the windows at these positions read."""
        start, stop = (p * self.strides[axis] + self.origin[axis] for p in (positions[0], positions[1] - 1))
        return start, stop + self.reach(axis) + 1

    def reach(self, axis: int) -> int:
        return (self.size[axis] - 1) * self.dilation[axis]

    # Conversely, every cell has a position and a phase: cell = origin + position * stride + phase.

    def seeing(self, axis: int, cells: Range, count: int) -> Range:
        """Which of `count` windows read some of these cells."""
        start = max(-(-(cells[0] - self.origin[axis] - self.reach(axis)) // self.strides[axis]), 0)
        stop = min((cells[1] - 1 - self.origin[axis]) // self.strides[axis] + 1, count)
        return min(start, max(stop, 0)), max(stop, 0)

    def phases(self, axis: int, cells: Range, positions: Range) -> Range:
        """The positions of these cells and of all cells that the windows at these positions read."""
        start, stop = ((cell - self.origin[axis]) // self.strides[axis] for cell in (cells[0], cells[1] - 1))
        return min(start, positions[0]), max(stop, positions[1] - 1 + self.reach(axis) // self.strides[axis]) + 1

    def tap(self, axis: int, i: int) -> Range:
        """The position (relative to the window) and the phase of the i-th cell of a window."""
        return divmod(i * self.dilation[axis], self.strides[axis])

    def first(self, axis: int, phase: int, start: int) -> Range:
        """The first cell of this phase at or after `start`, and its position."""
        position = -(-(start - self.origin[axis] - phase) // self.strides[axis])
        return position * self.strides[axis] + phase + self.origin[axis], position


def conv2d(x: Array, w: Array, strides: Any, padding: Any, dilation: Any) -> Array:
    """x[n, h, w, c] and w[kh, kw, c, made] to [n, oh, ow, made]."""
    (top, bottom), (left, right) = padding
    (n, h, wide, channels), (kh, kw, _, made) = x.shape, w.shape
    oh = (h + top + bottom - (kh - 1) * dilation[0] - 1) // strides[0] + 1
    ow = (wide + left + right - (kw - 1) * dilation[1] - 1) // strides[1] + 1
    out = np.empty((n, oh, ow, made), x.dtype)
    if _plain((kh, kw), strides, dilation) and winograd.pays((oh, ow), channels, made):
        winograd.correlate(x, w, (-top, -left), out)
    else:
        _correlate(x, w, Windows((kh, kw), strides, dilation, (-top, -left)), out)
    return out


def backprop_filter(x: Array, g: Array, size: Any, strides: Any, padding: Any, dilation: Any) -> Array:
    """The gradient with respect to w, of the window's `size`."""
    origin = -padding[0][0], -padding[1][0]
    if _plain(size, strides, dilation) and winograd.pays(g.shape[1:3], x.shape[3], g.shape[3]):
        return winograd.filter_gradient(x, g, origin)
    windows = Windows(size, strides, dilation, origin)
    shape = size[0] * size[1] * x.shape[3], g.shape[3]
    made = total(_extent(x, windows, g), shape, x.dtype, partial(_filter_block, x, windows, g))
    return made.reshape(*size, x.shape[3], g.shape[3])


def backprop_input(w: Array, g: Array, size: Any, strides: Any, padding: Any, dilation: Any) -> Array:
    """The gradient with respect to x, whose images have `size`."""
    kh, kw, channels, made = w.shape
    (top, _), (left, _) = padding
    out = np.empty((g.shape[0], *size, channels), g.dtype)
    if tuple(strides) == (1, 1):  # a convolution of g with the taps reversed
        turned = w[::-1, ::-1].swapaxes(2, 3)
        origin = top - (kh - 1) * dilation[0], left - (kw - 1) * dilation[1]
        if _plain((kh, kw), strides, dilation) and winograd.pays(size, made, channels):
            winograd.correlate(g, turned, origin, out)
        else:
            _correlate(g, turned, Windows((kh, kw), (1, 1), dilation, origin), out)
    else:
        _spread(w, g, Windows((kh, kw), strides, dilation, (-top, -left)), out)
    return out


# -- im2col -----------------------------------------------------------------------------------------------------------


def _correlate(x: Array, w: Array, windows: Windows, out: Array) -> None:
    """out[n, i, j] = the sum over the cells of the window at (i, j) of x[n, cell] @ w[cell]."""
    taps = w.reshape(-1, w.shape[3])
    run(_extent(x, windows, out), partial(_correlate_block, x, taps, windows, out))


def _extent(x: Array, windows: Windows, out: Array) -> Extent:
    cells = math.prod(windows.size) + math.prod(windows.strides)  # copied windows and the padded image
    return Extent(out.shape[0], out.shape[1], out.shape[2] * (cells * x.shape[3] + out.shape[3]) * out.itemsize)


def _correlate_block(x: Array, taps: Array, windows: Windows, out: Array, block: Block) -> None:
    (first, last), (top, bottom) = block
    columns = _columns(x, windows, block, out.shape[2])
    np.matmul(columns, taps, out=out[first:last, top:bottom].reshape(columns.shape[0], taps.shape[1]))


def _filter_block(x: Array, windows: Windows, g: Array, block: Block, out: Array) -> None:
    (first, last), (top, bottom) = block
    columns = _columns(x, windows, block, g.shape[2])
    np.matmul(columns.T, g[first:last, top:bottom].reshape(columns.shape[0], g.shape[3]), out=out)


def _columns(x: Array, windows: Windows, block: Block, width: int) -> Array:
    """The windows of a block as rows: [positions, cells * channels]."""
    images, (top, bottom) = block
    rows, cols = windows.span(0, (top, bottom)), windows.span(1, (0, width))
    (kh, kw), (sh, sw), (dh, dw), _ = windows
    n, c = images[1] - images[0], x.shape[3]
    positions, cells = (n, bottom - top, width), (kh, kw, c)
    frame_size = n * (rows[1] - rows[0]) * (cols[1] - cols[0]) * c
    frame, flat = pieces(x.dtype, frame_size, math.prod(positions + cells))
    seen = framed(x, images, rows, cols, frame)
    a, b, d, e = seen.strides
    view = as_strided(seen, positions + cells, (a, sh * b, sw * d, dh * b, dw * d, e), writeable=False)
    if view.flags.c_contiguous:
        return view.reshape(math.prod(positions), math.prod(cells))
    if kw * c < FEW_CELLS:
        columns = shaped(flat, cells + positions)
        columns[...] = view.transpose(3, 4, 5, 0, 1, 2)
        return columns.reshape(math.prod(cells), math.prod(positions)).T
    columns = shaped(flat, positions + cells)
    columns[...] = view
    return columns.reshape(math.prod(positions), math.prod(cells))


# -- col2im -----------------------------------------------------------------------------------------------------------


def _spread(w: Array, g: Array, windows: Windows, out: Array) -> None:
    """The transpose of `_correlate`: every window adds its g, times its taps, to the cells that it reads."""
    taps = np.ascontiguousarray(w.swapaxes(2, 3)).reshape(-1, w.shape[3], w.shape[2])
    rows = -(-out.shape[1] // windows.strides[0])  # a row of a block has `stride` rows of cells
    row_bytes = g.shape[2] * (taps.shape[0] + 2 * math.prod(windows.strides)) * out.shape[3] * out.itemsize
    run(Extent(out.shape[0], rows, row_bytes), partial(_spread_block, taps, g, windows, out))


def _spread_block(taps: Array, g: Array, windows: Windows, out: Array, block: Block) -> None:
    """Windows that read rows of two blocks are computed for both.

    Cells are grouped by their position modulo the stride (their phase), so that each tap adds to contiguous cells.
    """
    (first, last), (a, b) = block
    n, ow, c = last - first, g.shape[2], out.shape[3]
    rows = a * windows.strides[0], min(b * windows.strides[0], out.shape[1])
    start, stop = windows.seeing(0, rows, g.shape[1])
    tall, wide = windows.phases(0, rows, (start, stop)), windows.phases(1, (0, out.shape[2]), (0, ow))
    shape = *windows.strides, n, tall[1] - tall[0], wide[1] - wide[0], c
    flat, memory = pieces(g.dtype, taps.shape[0] * n * (stop - start) * ow * c, math.prod(shape))
    terms = g[first:last, start:stop].reshape(-1, g.shape[3])
    products = np.matmul(terms, taps, out=shaped(flat, (taps.shape[0], terms.shape[0], c)))
    sums = shaped(memory, shape)
    sums[...] = 0
    for (i, j), term in zip(product(*map(range, windows.size)), products, strict=True):
        (y, p), (x, q) = windows.tap(0, i), windows.tap(1, j)
        seen = sums[p, q, :, y + start - tall[0] :, x - wide[0] :][:, : stop - start, :ow]
        np.add(seen, term.reshape(seen.shape), out=seen)
    _interleave(sums, windows, (tall[0], wide[0]), rows[0], out[first:last, slice(*rows)])


def _interleave(sums: Array, windows: Windows, begin: Range, top: int, out: Array) -> None:
    """Copy cells [phase, phase, image, row, column, channel], which begin at these positions, to their place in x."""
    for p, q in product(*map(range, windows.strides)):
        y, x = windows.first(0, p, top), windows.first(1, q, 0)
        cells = out[:, y[0] - top :: windows.strides[0], x[0] :: windows.strides[1]]
        cells[...] = sums[p, q, :, y[1] - begin[0] :, x[1] - begin[1] :][:, : cells.shape[1], : cells.shape[2]]
