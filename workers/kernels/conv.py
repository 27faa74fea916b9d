"""Kernels of distgrad/ops/conv.py.

Loops run over the cells of the window (the taps), never over images or pixels: a tap's view of the image is one strided
slice. A convolution copies the views side by side and is then one matrix product per group. Native code has faster
ways: workers/native/conv.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from distgrad.workers.backends import extras
from distgrad.workers.kernels.table import kernel

#: Maximum bytes of copied windows; images are convolved in batches of this size, to bound memory.
_COLUMN_BYTES = 16 << 20


def _taps(window: Any, strides: Any, dilation: Any, out: Any) -> Iterator[tuple[int, int, slice, slice]]:
    """For each tap of the window, the rows and columns of the padded image that it reads."""
    (kh, kw), (sh, sw), (dh, dw), (oh, ow) = window, strides, dilation, out
    for i in range(kh):
        for j in range(kw):
            rows = slice(i * dh, i * dh + (oh - 1) * sh + 1, sh)
            yield i, j, rows, slice(j * dw, j * dw + (ow - 1) * sw + 1, sw)


def _pad(xp: Any, x: Any, padding: Any, value: Any = 0) -> Any:
    (top, bottom), (left, right) = padding
    if not (top or bottom or left or right):
        return x
    n, h, w, c = x.shape
    padded = xp.full((n, top + h + bottom, left + w + right, c), value, dtype=x.dtype)
    padded[:, top : top + h, left : left + w, :] = x
    return padded


def _crop(x: Any, padding: Any) -> Any:
    (top, bottom), (left, right) = padding
    return x[:, top : x.shape[1] - bottom, left : x.shape[2] - right, :]


def _padded_size(size: Any, padding: Any) -> tuple[int, int]:
    return size[0] + sum(padding[0]), size[1] + sum(padding[1])


def _positions(size: Any, window: Any, strides: Any, dilation: Any) -> tuple[int, ...]:
    """Number of windows that fit into a padded image, per axis."""
    return tuple((n - (k - 1) * d - 1) // s + 1 for n, k, s, d in zip(size, window, strides, dilation, strict=True))


# -- convolution: groups are the leading axis everywhere, so one batched product computes all of them -----------------


def _batches(count: int, image_bytes: int) -> Iterator[slice]:
    step = max(1, _COLUMN_BYTES // max(image_bytes, 1))
    for start in range(0, max(count, 1), step):
        yield slice(start, min(start + step, count))


def _column_bytes(window: Sequence[int], out: Sequence[int], channels: int, itemsize: int) -> int:
    return window[0] * window[1] * out[0] * out[1] * channels * itemsize


def _grouped_images(xp: Any, x: Any, groups: int) -> Any:
    """A view of [images, height, width, channels] as [groups, images, height, width, channels per group]."""
    return xp.permute_dims(xp.reshape(x, (*x.shape[:3], groups, x.shape[3] // groups)), (3, 0, 1, 2, 4))


def _columns(xp: Any, x: Any, window: Any, strides: Any, dilation: Any, groups: int, out: Any) -> Any:
    """The windows of padded images side by side: [groups, images * positions, taps * channels]."""
    (kh, kw), (oh, ow), n, per = window, out, x.shape[0], x.shape[3] // groups
    grouped = _grouped_images(xp, x, groups)
    if kh * kw == 1:  # the image itself; not copied if strides are 1
        ((_, _, rows, cols),) = _taps(window, strides, dilation, out)
        return xp.reshape(grouped[:, :, rows, cols, :], (groups, n * oh * ow, per))
    columns = xp.empty((groups, n, oh, ow, kh, kw, per), dtype=x.dtype)
    for i, j, rows, cols in _taps(window, strides, dilation, out):
        columns[:, :, :, :, i, j, :] = grouped[:, :, rows, cols, :]
    return xp.reshape(columns, (groups, n * oh * ow, kh * kw * per))


def _grouped_kernel(xp: Any, w: Any, groups: int) -> Any:
    """[taps, channels per group, outputs] as [groups, taps * channels per group, outputs per group]."""
    rows, made = w.shape[0] * w.shape[1] * w.shape[2], w.shape[3]
    return xp.permute_dims(xp.reshape(w, (rows, groups, made // groups)), (1, 0, 2))


def _grouped_output(xp: Any, g: Any, groups: int) -> Any:
    """[images, positions, outputs] as [groups, images * positions, outputs per group]."""
    n, oh, ow, made = g.shape
    return xp.permute_dims(xp.reshape(g, (n * oh * ow, groups, made // groups)), (1, 0, 2))


def _depthwise(channels: int, groups: int, made: int) -> bool:
    """Whether the convolution is depthwise: products of single columns, which are faster tap by tap."""
    return channels == groups == made


@kernel("Conv2D", single=True, blas=True)
def conv2d(xp: Any, x: Any, w: Any, *, strides: Any, padding: Any, dilation: Any, groups: int) -> Any:
    window, made = w.shape[:2], w.shape[3]
    x = _pad(xp, x, padding)
    n, out = x.shape[0], _positions(x.shape[1:3], window, strides, dilation)
    if _depthwise(x.shape[3], groups, made):
        total = xp.zeros((n, *out, made), dtype=x.dtype)
        for i, j, rows, cols in _taps(window, strides, dilation, out):
            total += x[:, rows, cols, :] * w[i, j, 0, :]
        return total
    taps = _grouped_kernel(xp, w, groups)
    parts = []
    for batch in _batches(n, _column_bytes(window, out, x.shape[3], extras(xp).itemsize(x.dtype))):
        product = xp.matmul(_columns(xp, x[batch, ...], window, strides, dilation, groups, out), taps)
        parts.append(xp.reshape(xp.permute_dims(product, (1, 0, 2)), (batch.stop - batch.start, *out, made)))
    return parts[0] if len(parts) == 1 else xp.concat(parts, axis=0)


@kernel("Conv2DBackpropInput", single=True, blas=True)
def conv2d_backprop_input(
    xp: Any, w: Any, g: Any, *, size: Any, strides: Any, padding: Any, dilation: Any, groups: int
) -> Any:
    (kh, kw, per, made), (n, *out, _) = w.shape, g.shape
    h, wide = _padded_size(size, padding)
    images = xp.zeros((n, h, wide, groups * per), dtype=g.dtype)
    if _depthwise(groups * per, groups, made):
        for i, j, rows, cols in _taps((kh, kw), strides, dilation, out):
            images[:, rows, cols, :] += g * w[i, j, 0, :]
        return _crop(images, padding)
    taps = xp.permute_dims(_grouped_kernel(xp, w, groups), (0, 2, 1))
    grouped = _grouped_images(xp, images, groups)
    for batch in _batches(n, _column_bytes((kh, kw), out, groups * per, extras(xp).itemsize(g.dtype))):
        product = xp.matmul(_grouped_output(xp, g[batch, ...], groups), taps)
        columns = xp.reshape(product, (groups, batch.stop - batch.start, *out, kh, kw, per))
        for i, j, rows, cols in _taps((kh, kw), strides, dilation, out):
            grouped[:, batch, rows, cols, :] += columns[:, :, :, :, i, j, :]
    return _crop(images, padding)


@kernel("Conv2DBackpropFilter", single=True, blas=True)
def conv2d_backprop_filter(
    xp: Any, x: Any, g: Any, *, size: Any, strides: Any, padding: Any, dilation: Any, groups: int
) -> Any:
    (n, *out, made), channels = g.shape, x.shape[3]
    x = _pad(xp, x, padding)
    if _depthwise(channels, groups, made):
        sums = [xp.sum(x[:, r, c, :] * g, axis=(0, 1, 2)) for _, _, r, c in _taps(size, strides, dilation, out)]
        return xp.reshape(xp.stack(sums), (*size, 1, made))
    rows = size[0] * size[1] * (channels // groups)
    total = xp.zeros((groups, rows, made // groups), dtype=x.dtype)
    for batch in _batches(n, _column_bytes(size, out, channels, extras(xp).itemsize(x.dtype))):
        columns = _columns(xp, x[batch, ...], size, strides, dilation, groups, out)
        total += xp.matmul(xp.permute_dims(columns, (0, 2, 1)), _grouped_output(xp, g[batch, ...], groups))
    return xp.reshape(xp.permute_dims(total, (1, 0, 2)), (*size, channels // groups, made))


# -- max pooling -------------------------------------------------------------------------------------------------------


def _lowest(xp: Any, dtype: Any) -> Any:
    kind = extras(xp).kind(dtype)
    if kind == "b":
        return False
    return xp.iinfo(dtype).min if kind in "iu" else -xp.inf


def _pool_views(window: Any, strides: Any, out: Any) -> Iterator[tuple[Any, ...]]:
    """The index of each tap's view of padded images."""
    for _, _, rows, cols in _taps(window, strides, (1, 1), out):
        yield (slice(None), rows, cols, slice(None))


def _highest(xp: Any, padded: Any, window: Any, strides: Any) -> Any:
    first, *others = _pool_views(window, strides, _positions(padded.shape[1:3], window, strides, (1, 1)))
    best = padded[first]
    for view in others:
        best = xp.maximum(best, padded[view])
    return best


def _winners(xp: Any, x: Any, window: Any, strides: Any, padding: Any) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """For each tap its view, and the windows in which it has the maximum (the first of equal elements)."""
    x = _pad(xp, x, padding, _lowest(xp, x.dtype))
    best = _highest(xp, x, window, strides)
    free = xp.ones(best.shape, dtype=xp.bool)
    for view in _pool_views(window, strides, best.shape[1:3]):
        hit = x[view] == best
        hit &= free
        free ^= hit
        yield view, hit


@kernel("MaxPool")
def max_pool(xp: Any, x: Any, *, window: Any, strides: Any, padding: Any) -> Any:
    return _highest(xp, _pad(xp, x, padding, _lowest(xp, x.dtype)), window, strides)


@kernel("MaxPoolGrad")
def max_pool_grad(xp: Any, x: Any, g: Any, *, window: Any, strides: Any, padding: Any) -> Any:
    n, h, w, c = x.shape
    images = xp.zeros((n, *_padded_size((h, w), padding), c), dtype=g.dtype)
    for view, hit in _winners(xp, x, window, strides, padding):
        images[view] += xp.where(hit, g, xp.zeros((), dtype=g.dtype))
    return _crop(images, padding)


@kernel("MaxPoolGradGrad")
def max_pool_grad_grad(xp: Any, x: Any, h: Any, *, window: Any, strides: Any, padding: Any) -> Any:
    h = _pad(xp, h, padding)
    out = _positions(h.shape[1:3], window, strides, (1, 1))
    made = xp.zeros((h.shape[0], *out, h.shape[3]), dtype=h.dtype)
    for view, hit in _winners(xp, x, window, strides, padding):
        made = xp.where(hit, h[view], made)
    return made


# -- average pooling ---------------------------------------------------------------------------------------------------


def _counts(xp: Any, size: Any, window: Any, strides: Any, padding: Any, out: Any, dtype: Any) -> Any:
    """Number of image cells in each window, [1, height, width, 1], without padding."""
    inside = _pad(xp, xp.ones((1, *size, 1), dtype=dtype), padding)
    counts = xp.zeros((1, *out, 1), dtype=dtype)
    for view in _pool_views(window, strides, out):
        counts += inside[view]
    return counts


@kernel("AvgPool", single=True)
def avg_pool(xp: Any, x: Any, *, window: Any, strides: Any, padding: Any) -> Any:
    size, x = x.shape[1:3], _pad(xp, x, padding)
    out = _positions(x.shape[1:3], window, strides, (1, 1))
    total = xp.zeros((x.shape[0], *out, x.shape[3]), dtype=x.dtype)
    for view in _pool_views(window, strides, out):
        total += x[view]
    total /= _counts(xp, size, window, strides, padding, out, x.dtype)
    return total


@kernel("AvgPoolGrad", single=True)
def avg_pool_grad(xp: Any, g: Any, *, size: Any, window: Any, strides: Any, padding: Any) -> Any:
    n, *out, c = g.shape
    share = g / _counts(xp, size, window, strides, padding, out, g.dtype)
    images = xp.zeros((n, *_padded_size(size, padding), c), dtype=g.dtype)
    for view in _pool_views(window, strides, out):
        images[view] += share
    return _crop(images, padding)
