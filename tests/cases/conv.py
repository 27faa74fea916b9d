"""Rows for distgrad/ops/conv.py. The references are loops over every output cell: slow and obvious."""

from __future__ import annotations

from typing import Any

import numpy as np

from distgrad import nn

from .case import Case, apart, arr
from .nn import grad


def pads(padding: Any, size: Any, window: Any, strides: Any, dilation: Any = (1, 1)) -> Any:
    """TensorFlow's documented rule: SAME has ceil(n / stride) windows; an uneven cell of padding goes to the end."""
    if padding == "VALID":
        return [(0, 0), (0, 0)]
    if padding != "SAME":
        return padding
    made = []
    for n, k, s, d in zip(size, window, strides, dilation, strict=True):
        reach = (k - 1) * d + 1
        total = max(reach - s, 0) if n % s == 0 else max(reach - n % s, 0)
        made.append((total // 2, total - total // 2))
    return made


def conv(x: Any, w: Any, strides: Any = (1, 1), padding: Any = "SAME", dilation: Any = (1, 1), groups: int = 1) -> Any:
    (kh, kw, per, made), (dh, dw), (sh, sw) = w.shape, dilation, strides
    x = np.pad(x, [(0, 0), *pads(padding, x.shape[1:3], (kh, kw), strides, dilation), (0, 0)])
    h, wide = (x.shape[1] - (kh - 1) * dh - 1) // sh + 1, (x.shape[2] - (kw - 1) * dw - 1) // sw + 1
    y = np.zeros((x.shape[0], h, wide, made), np.result_type(x, w))
    for n, i, j, o in np.ndindex(*y.shape):
        first = o // (made // groups) * per
        rows, cols = i * sh + np.arange(kh) * dh, j * sw + np.arange(kw) * dw
        y[n, i, j, o] = np.sum(x[n, rows[:, None], cols, first : first + per] * w[:, :, :, o])
    return y


def pool(x: Any, f: Any, window: Any, strides: Any, padding: Any = "VALID") -> Any:
    x = np.pad(x, [(0, 0), *pads(padding, x.shape[1:3], window, strides), (0, 0)], constant_values=np.nan)
    (kh, kw), (sh, sw) = window, strides
    y = np.zeros((x.shape[0], (x.shape[1] - kh) // sh + 1, (x.shape[2] - kw) // sw + 1, x.shape[3]))
    for n, i, j, c in np.ndindex(*y.shape):
        y[n, i, j, c] = f(x[n, i * sh : i * sh + kh, j * sw : j * sw + kw, c])
    return y


def conv_grads(
    x: Any, w: Any, strides: Any = (1, 1), padding: Any = "SAME", dilation: Any = (1, 1), groups: int = 1
) -> Any:
    """The gradients of the sum of squares of a convolution, accumulated per output cell."""
    y = conv(x, w, strides, padding, dilation, groups)
    (kh, kw, per, made), (dh, dw), (sh, sw) = w.shape, dilation, strides
    (top, _), (left, _) = around = pads(padding, x.shape[1:3], (kh, kw), strides, dilation)
    padded = np.pad(x, [(0, 0), *around, (0, 0)])
    to_x, to_w = np.zeros_like(padded), np.zeros_like(w)
    for n, i, j, o in np.ndindex(*y.shape):
        first = o // (made // groups) * per
        rows, cols = i * sh + np.arange(kh) * dh, j * sw + np.arange(kw) * dw
        read = (n, rows[:, None], cols, slice(first, first + per))
        to_x[read] += 2 * y[n, i, j, o] * w[:, :, :, o]
        to_w[:, :, :, o] += 2 * y[n, i, j, o] * padded[read]
    return to_x[:, top : top + x.shape[1], left : left + x.shape[2]], to_w


def shares(x: Any, share: Any, window: Any, strides: Any, padding: Any) -> Any:
    """For every cell the sum of share(the cells of a window) over the windows that contain it; NaN is padding."""
    (kh, kw), (sh, sw) = window, strides
    (top, _), (left, _) = around = pads(padding, x.shape[1:3], window, strides)
    padded = np.pad(x, [(0, 0), *around, (0, 0)], constant_values=np.nan)
    out = np.zeros_like(padded)
    height, width = (padded.shape[1] - kh) // sh + 1, (padded.shape[2] - kw) // sw + 1
    for n, i, j, c in np.ndindex(x.shape[0], height, width, x.shape[3]):
        read = (n, slice(i * sh, i * sh + kh), slice(j * sw, j * sw + kw), c)
        out[read] += share(padded[read])
    return out[:, top : top + x.shape[1], left : left + x.shape[2]]


def wins(x: Any) -> Any:
    """How often each cell is the largest of a window of `padded`."""
    return shares(x, lambda cells: cells == np.nanmax(cells), (2, 3), (1, 2), "SAME")


def averaged_grad(x: Any) -> Any:
    """The gradient of the sum of squares of the means of windows: 2 * mean / count to each of their cells."""

    def share(cells: Any) -> Any:
        return 2 * np.nanmean(cells) / np.sum(~np.isnan(cells))

    return shares(x, share, (3, 3), (2, 2), "SAME")


def conv_case(x: Any, w: Any, **options: Any) -> Case:
    return Case(lambda x, w: nn.conv2d(x, w, **options), (x, w), lambda x, w: conv(x, w, **options), complex=True)


def max_case(x: Any, **options: Any) -> Case:
    return Case(lambda x: nn.max_pool(x, **options), (x,), lambda x: pool(x, np.nanmax, **options))


def avg_case(x: Any, **options: Any) -> Case:
    return Case(lambda x: nn.avg_pool(x, **options), (x,), lambda x: pool(x, np.nanmean, **options))


def padded(x: Any) -> Any:
    return nn.max_pool(x, (2, 3), (1, 2), "SAME")


def strided(x: Any, w: Any) -> Any:
    return nn.conv2d(x, w, (2, 1), ((1, 0), (2, 1)))


def grouped(x: Any, w: Any) -> Any:
    return nn.conv2d(x, w, dilation=2, groups=2)


CASES = {
    "Conv2D": [
        conv_case(arr(2, 4, 5, 3), arr(3, 3, 3, 2)),
        conv_case(arr(2, 5, 4, 2), arr(2, 3, 2, 3), padding="VALID"),
        conv_case(arr(1, 7, 6, 2), arr(3, 2, 2, 2), strides=(2, 3)),
        conv_case(arr(1, 6, 6, 1), arr(1, 1, 1, 2), strides=(2, 2)),
        conv_case(arr(1, 7, 6, 2), arr(2, 3, 2, 2), dilation=(3, 2)),
        conv_case(arr(1, 6, 6, 1), arr(3, 2, 1, 2), strides=(2, 1), padding="VALID", dilation=(2, 3)),
        conv_case(arr(1, 4, 4, 2), arr(3, 3, 2, 1), padding=((2, 0), (1, 3))),
        conv_case(arr(2, 4, 4, 4), arr(2, 2, 2, 6), groups=2),
        conv_case(arr(1, 4, 4, 3), arr(3, 3, 1, 3), groups=3, strides=(2, 2)),
        Case(nn.conv2d, (arr(0, 4, 4, 2), arr(3, 3, 2, 5)), lambda x, w: np.zeros((0, 4, 4, 5))),
        Case(
            lambda x, w: nn.conv2d(x, w, data_format="NCHW"),
            (arr(2, 3, 4, 5), arr(3, 3, 3, 2)),
            lambda x, w: conv(x.transpose(0, 2, 3, 1), w).transpose(0, 3, 1, 2),
        ),
    ],
    "Conv2DBackpropInput": [
        Case(
            grad(strided),
            (arr(1, 5, 4, 2), arr(3, 2, 2, 2)),
            lambda x, w: conv_grads(x, w, (2, 1), ((1, 0), (2, 1))),
        ),
        Case(grad(nn.conv2d), (arr(0, 3, 3, 2), arr(2, 2, 2, 1)), conv_grads),
    ],
    "Conv2DBackpropFilter": [
        Case(
            grad(grouped),
            (arr(1, 4, 4, 2), arr(2, 2, 1, 2)),
            lambda x, w: conv_grads(x, w, dilation=(2, 2), groups=2),
        ),
        Case(grad(nn.conv2d), (arr(0, 3, 3, 2), arr(2, 2, 2, 1)), conv_grads),
    ],
    "MaxPool": [
        max_case(apart(2, 4, 6, 2), window=(2, 2), strides=(2, 2)),
        max_case(apart(1, 5, 5, 1), window=(3, 2), strides=(1, 2)),
        max_case(apart(1, 5, 4, 2), window=(3, 3), strides=(2, 2), padding="SAME"),
        max_case(apart(1, 4, 4, 1), window=(2, 3), strides=(2, 2), padding=((1, 0), (1, 2))),
        Case(
            lambda x: nn.max_pool(x, 2, data_format="NCHW"),
            (apart(2, 3, 4, 4),),
            lambda x: pool(x.transpose(0, 2, 3, 1), np.max, (2, 2), (2, 2)).transpose(0, 3, 1, 2),
        ),
        Case(lambda x: nn.max_pool(x, 2), (arr(0, 4, 4, 1),), lambda x: np.zeros((0, 2, 2, 1))),
    ],
    # of a sum of squares, to which each cell that wins n windows adds n * x**2
    "MaxPoolGrad": [Case(grad(padded), (apart(n, 4, 5, 2),), lambda x: 2 * wins(x) * x) for n in (1, 0)],
    "MaxPoolGradGrad": [
        Case(grad(lambda x: grad(padded)(x)[0]), (apart(1, 4, 5, 2),), lambda x: 8 * wins(x) ** 2 * x),
    ],
    "AvgPool": [
        avg_case(arr(2, 4, 6, 2), window=(2, 2), strides=(2, 2)),
        avg_case(arr(1, 5, 5, 1), window=(3, 2), strides=(1, 2)),
        avg_case(arr(1, 5, 4, 2), window=(3, 3), strides=(2, 2), padding="SAME"),
        avg_case(arr(1, 4, 4, 1), window=(2, 3), strides=(2, 2), padding=((1, 0), (1, 2))),
        Case(lambda x: nn.avg_pool(x, 2), (arr(0, 4, 4, 1),), lambda x: np.zeros((0, 2, 2, 1))),
    ],
    "AvgPoolGrad": [
        Case(grad(lambda x: nn.avg_pool(x, 3, 2, "SAME")), (arr(n, 5, 4, 2),), averaged_grad) for n in (1, 0)
    ],
}
