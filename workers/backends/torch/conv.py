"""Torch's own kernels for distgrad/ops/conv.py. NHWC images with permuted axes are what torch calls channels last."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from distgrad.workers.kernels.table import KERNELS, kernel


def _nchw(x: Any) -> Any:
    return x.permute(0, 3, 1, 2)


def _nhwc(x: Any) -> Any:
    return x.permute(0, 2, 3, 1)


def _empty(like: Any, n: int, size: Any, channels: int) -> Any:
    """An NCHW image of which only shape and strides are used."""
    return _nchw(like.new_empty((n, *size, channels)))


def _pads(padding: Any) -> tuple[tuple[int, int], tuple[int, int, int, int]]:
    """The symmetric padding that torch adds itself, and the remaining padding at left, right, ..."""
    (top, bottom), (left, right) = padding
    both = (top, left) if (top, left) == (bottom, right) else (0, 0)
    return both, (0, 0, 0, 0) if any(both) else (left, right, top, bottom)


def _padded(x: Any, extra: tuple[int, int, int, int], value: float = 0.0) -> Any:
    import torch

    return torch.nn.functional.pad(x, (0, 0, *extra), value=value) if any(extra) else x


def _grown(size: Any, extra: tuple[int, int, int, int]) -> tuple[int, int]:
    left, right, top, bottom = extra
    return size[0] + top + bottom, size[1] + left + right


def _crop(x: Any, extra: tuple[int, int, int, int]) -> Any:
    left, right, top, bottom = extra
    return x[:, top : x.shape[1] - bottom, left : x.shape[2] - right, :] if any(extra) else x


# -- convolution: linear in each input, so a complex one is four real ones -------------------------------------------


def _by_parts(f: Callable[[Any, Any], Any], a: Any, b: Any) -> Any:
    """Apply f, which is bilinear on real arrays, to real or complex ones."""
    import torch

    if not a.is_complex():
        return f(a, b)
    return torch.complex(f(a.real, b.real) - f(a.imag, b.imag), f(a.real, b.imag) + f(a.imag, b.real))


def _oihw(w: Any) -> Any:
    return w.permute(3, 2, 0, 1)


def _integers(x: Any) -> bool:
    return not (x.is_floating_point() or x.is_complex())


@kernel("Conv2D", backend="torch")
def conv2d(xp: Any, x: Any, w: Any, **attrs: Any) -> Any:
    return KERNELS["Conv2D"](xp, x, w, **attrs) if _integers(x) else _by_parts(lambda x, w: _conv(x, w, **attrs), x, w)


def _conv(x: Any, w: Any, b: Any = None, *, strides: Any, padding: Any, dilation: Any, groups: int) -> Any:
    import torch

    both, extra = _pads(padding)
    return _nhwc(torch.conv2d(_nchw(_padded(x, extra)), _oihw(w), b, strides, both, dilation, groups))


def conv_bias(xp: Any, x: Any, w: Any, b: Any, **attrs: Any) -> Any:
    """A real convolution plus a bias per channel."""
    return _conv(x, w, b.reshape(-1), **attrs)


def _backward(g: Any, x: Any, w: Any, strides: Any, both: Any, dilation: Any, groups: int, which: int) -> Any:
    """The gradient of a convolution of NCHW images with respect to the images (0) or the kernel (1)."""
    import torch

    mask = (which == 0, which == 1, False)
    backward = torch.ops.aten.convolution_backward
    return backward(_nchw(g), x, w, None, strides, both, dilation, False, (0, 0), groups, mask)[which]


@kernel("Conv2DBackpropInput", backend="torch")
def conv2d_backprop_input(xp: Any, w: Any, g: Any, **attrs: Any) -> Any:
    if _integers(g):
        return KERNELS["Conv2DBackpropInput"](xp, w, g, **attrs)
    return _by_parts(lambda w, g: _to_images(w, g, **attrs), w, g)


def _to_images(w: Any, g: Any, *, size: Any, strides: Any, padding: Any, dilation: Any, groups: int) -> Any:
    both, extra = _pads(padding)
    x = _empty(g, g.shape[0], _grown(size, extra), w.shape[2] * groups)
    return _crop(_nhwc(_backward(g, x, _oihw(w), strides, both, dilation, groups, 0)), extra)


@kernel("Conv2DBackpropFilter", backend="torch")
def conv2d_backprop_filter(xp: Any, x: Any, g: Any, **attrs: Any) -> Any:
    if _integers(x):
        return KERNELS["Conv2DBackpropFilter"](xp, x, g, **attrs)
    return _by_parts(lambda x, g: _to_kernel(x, g, **attrs), x, g)


def _to_kernel(x: Any, g: Any, *, size: Any, strides: Any, padding: Any, dilation: Any, groups: int) -> Any:
    both, extra = _pads(padding)
    w = x.new_empty((g.shape[3], x.shape[3] // groups, *size))
    made = _backward(g, _nchw(_padded(x, extra)), w, strides, both, dilation, groups, 1)
    return made.permute(2, 3, 1, 0)


# -- pooling -----------------------------------------------------------------------------------------------------


def _pool_pads(padding: Any, window: Any) -> tuple[tuple[int, int], tuple[int, int, int, int]]:
    """Like `_pads`, for pooling: torch pads by at most half a window."""
    both, extra = _pads(padding)
    if all(2 * p <= k for p, k in zip(both, window, strict=True)):
        return both, extra
    return (0, 0), (both[1], both[1], both[0], both[0])


def _winners(x: Any, window: Any, strides: Any, padding: Any) -> tuple[Any, Any, Any, tuple[int, int, int, int]]:
    """In NCHW: the padded images, the maxima and their positions in them, and the padding."""
    import torch

    both, extra = _pool_pads(padding, window)
    x = _nchw(_padded(x, extra, float("-inf")))
    best, places = torch.ops.aten.max_pool2d_with_indices(x, window, strides, both)
    return x, best, places, extra


@kernel("MaxPool", backend="torch")
def max_pool(xp: Any, x: Any, *, window: Any, strides: Any, padding: Any) -> Any:
    if not x.is_floating_point():
        return KERNELS["MaxPool"](xp, x, window=window, strides=strides, padding=padding)
    return _nhwc(_winners(x, window, strides, padding)[1])


@kernel("MaxPoolGrad", backend="torch")
def max_pool_grad(xp: Any, x: Any, g: Any, *, window: Any, strides: Any, padding: Any) -> Any:
    import torch

    images, _, places, extra = _winners(x, window, strides, padding)
    both = _pool_pads(padding, window)[0]
    backward = torch.ops.aten.max_pool2d_with_indices_backward
    return _crop(_nhwc(backward(_nchw(g), images, window, strides, both, (1, 1), False, places)), extra)


@kernel("MaxPoolGradGrad", backend="torch")
def max_pool_grad_grad(xp: Any, x: Any, h: Any, *, window: Any, strides: Any, padding: Any) -> Any:
    _, _, places, extra = _winners(x, window, strides, padding)
    cells = _nchw(_padded(h, extra)).flatten(2)
    return _nhwc(cells.gather(2, places.flatten(2)).reshape(places.shape))


@kernel("AvgPool", backend="torch")
def avg_pool(xp: Any, x: Any, *, window: Any, strides: Any, padding: Any) -> Any:
    import torch

    both, extra = _pool_pads(padding, window)
    if any(extra) or x.is_complex():
        return KERNELS["AvgPool"](xp, x, window=window, strides=strides, padding=padding)
    return _nhwc(torch.ops.aten.avg_pool2d(_nchw(x), window, strides, both, False, False))


@kernel("AvgPoolGrad", backend="torch")
def avg_pool_grad(xp: Any, g: Any, *, size: Any, window: Any, strides: Any, padding: Any) -> Any:
    import torch

    both, extra = _pool_pads(padding, window)
    if any(extra) or g.is_complex():
        return KERNELS["AvgPoolGrad"](xp, g, size=size, window=window, strides=strides, padding=padding)
    x = _empty(g, g.shape[0], size, g.shape[3])
    return _nhwc(torch.ops.aten.avg_pool2d_backward(_nchw(g), x, window, strides, both, False, False, None))
