"""Convolution with windows of 3 x 3 at strides of 1 with 16 products instead of 36: Winograd's F(2 x 2, 3 x 3).

Every tile of 2 x 2 cells of the result reads 4 x 4 cells of the image. Along one axis, with the cells d and the taps w,

    y0 = d0 w0 + d1 w1 + d2 w2 = m0 + m1 + m2     m0 = (d0 - d2) w0     m1 = (d1 + d2) (w0 + w1 + w2) / 2
    y1 = d1 w0 + d2 w1 + d3 w2 = m1 - m2 + m3     m3 = (d3 - d1) w2     m2 = (d2 - d1) (w0 - w1 + w2) / 2

and the same along both axes, one after the other. The multiplications are 16 matrix products over the channels. The
gradient with respect to the taps is the transpose of all this. In float32 the error is that of the plain sum of
products.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from distgrad.workers.kernels.conv_blocks import Array, Block, Extent, Range, framed, pieces, run, shaped, total

#: The transform of the taps along one axis.
_TAPS = np.array([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]])
#: And along both axes: [16, 9].
_BOTH = np.kron(_TAPS, _TAPS)


def pays(out: Any, channels: int, made: int) -> bool:
    """Whether fewer products make up for the transforms of tiles.

    As measured, transforming a cell of the result costs as much as 75 products per channel, and transforming a cell of
    the input 35 more than copying its windows.
    """
    (th, tw), (oh, ow) = _tiles(out), out
    return bool((9 * oh * ow - 16 * th * tw) * channels * made > 4 * th * tw * (35 * channels + 75 * made))


def correlate(x: Array, w: Array, origin: Range, out: Array) -> None:
    """out[n, i, j] = the sum over a and b of x[n, i + a + origin[0], j + b + origin[1]] @ w[a, b]."""
    _, _, channels, made = w.shape
    taps = np.matmul(_BOTH.astype(w.dtype), w.reshape(9, -1)).reshape(16, channels, made)
    run(_extent(out, max(channels, made)), partial(_correlate_block, x, taps, origin, out))


def filter_gradient(x: Array, g: Array, origin: Range) -> Array:
    """The gradient with respect to w, [3, 3, channels, made]; g is that of the result of `correlate`."""
    shape = 16, x.shape[3], g.shape[3]
    made = total(_extent(g, max(shape[1:])), shape, x.dtype, partial(_filter_block, x, g, origin))
    taps: Array = np.matmul(_BOTH.T.astype(x.dtype), made.reshape(16, -1))
    return taps.reshape(3, 3, *shape[1:])


def _tiles(out: Any) -> tuple[int, int]:
    return -(-out[0] // 2), -(-out[1] // 2)


def _extent(out: Array, channels: int) -> Extent:
    """The space to split into blocks; its rows are rows of tiles."""
    th, tw = _tiles(out.shape[1:3])
    return Extent(out.shape[0], th, 2 * 16 * tw * channels * out.itemsize)


def _memory(n: int, th: int, tw: int, x: Array, made: int, more: int = 0) -> list[Array]:
    """Scratch memory: two pieces that steps read and fill in turn, and a third one."""
    size = 16 * n * th * tw * max(x.shape[3], made)
    return pieces(x.dtype, size, size, more)


def _correlate_block(x: Array, taps: Array, origin: Range, out: Array, block: Block) -> None:
    (first, last), (top, bottom) = block
    n, th, tw, made = last - first, bottom - top, _tiles(out.shape[1:3])[1], taps.shape[2]
    one, two, _ = _memory(n, th, tw, x, made)
    products = shaped(two, (16, n * th * tw, made))
    np.matmul(_cells(x, block, tw, origin, one, two), taps, out=products)
    _together(products.reshape(4, 4, n, th, tw, made), out[first:last, 2 * top : 2 * bottom], one, two)


def _filter_block(x: Array, g: Array, origin: Range, block: Block, out: Array) -> None:
    images, (top, bottom) = block
    n, th, tw, made = images[1] - images[0], bottom - top, _tiles(g.shape[1:3])[1], g.shape[3]
    one, two, frame = _memory(n, th, tw, x, made, 4 * n * th * tw * made)
    cells = _cells(x, block, tw, origin, one, two)
    results = _results(framed(g, images, (2 * top, 2 * bottom), (0, 2 * tw), frame), two)
    np.matmul(cells.transpose(0, 2, 1), results, out=out)


def _cells(x: Array, block: Block, tw: int, origin: Range, one: Array, two: Array) -> Array:
    """The transformed tiles of 4 x 4 cells, [16, tiles, channels], in the memory `one`."""
    images, (top, bottom) = block
    n, th, c = images[1] - images[0], bottom - top, x.shape[3]
    rows, cols = (2 * top + origin[0], 2 * bottom + 2 + origin[0]), (origin[1], origin[1] + 2 * tw + 2)
    frame = framed(x, images, rows, cols, two).reshape(n, th + 1, 2, tw + 1, 2, c)
    d = shaped(one, (2, 2, n, th + 1, tw + 1, c))  # even and odd cells separated, for longer contiguous runs
    d[...] = frame.transpose(4, 2, 0, 1, 3, 5)
    across, made = shaped(two, (4, 2, n, th + 1, tw, c)), shaped(one, (4, 4, n, th, tw, c))
    _differences([d[a, ..., b : tw + b, :] for b in (0, 1) for a in (0, 1)], across)
    _differences([across[:, a, :, b : th + b] for b in (0, 1) for a in (0, 1)], made)
    return made.reshape(16, n * th * tw, c)


def _differences(d: Sequence[Array], out: Array) -> None:
    np.subtract(d[0], d[2], out=out[0])
    np.add(d[1], d[2], out=out[1])
    np.subtract(d[2], d[1], out=out[2])
    np.subtract(d[3], d[1], out=out[3])


def _together(m: Array, out: Array, one: Array, two: Array) -> None:
    """The results, in `two`, from the products [4, 4, images, tiles, channels], which are overwritten."""
    n, th, tw, made = m.shape[2:]
    across = shaped(one, (2, 4, n, th, tw, made))
    _sums(m, across)
    y = shaped(two, (2, 2, n, th, tw, made))
    _sums(across.swapaxes(0, 1), y)
    for a, b in product((0, 1), (0, 1)):
        cells = out[:, a::2, b::2]
        cells[...] = y[b, a, :, : cells.shape[1], : cells.shape[2]]


def _sums(m: Array, y: Array) -> None:
    """Overwrites the first two of m."""
    np.add(m[0], m[1], out=m[0])
    np.add(m[0], m[2], out=y[0])
    np.subtract(m[1], m[2], out=m[1])
    np.add(m[1], m[3], out=y[1])


def _results(g: Array, memory: Array) -> Array:
    """The factors of the cells in a gradient: tiles of 2 x 2 results under the transpose of `_sums` along both axes."""
    n, height, width, made = g.shape
    th, tw = height // 2, width // 2
    e = shaped(memory, (4, 4, n, th, tw, made))
    e[::3, ::3] = g.reshape(n, th, 2, tw, 2, made).transpose(2, 4, 0, 1, 3, 5)
    for outer in (e[::3].swapaxes(0, 1), e):
        np.add(outer[0], outer[3], out=outer[1])
        np.subtract(outer[0], outer[3], out=outer[2])
    return e.reshape(16, n * th * tw, made)
