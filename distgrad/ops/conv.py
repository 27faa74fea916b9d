"""Convolution and pooling of images. The builders resolve padding, so ops have explicit pad widths.

Convolution is linear in each input, and so are its two gradients: the three ops are each other's derivatives. Max
pooling selects and average pooling adds; their gradients scatter, and the gradients of these select or add again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from distgrad.graph import Operation, Tensor
from distgrad.ops.array import transpose
from distgrad.ops.builder import common, make, same, typed
from distgrad.ops.control import zeros
from distgrad.ops.guard import guard_all
from distgrad.ops.math import conj
from distgrad.registry import Kind, RegisterGradient, define
from distgrad.types import DType, Shape, Typed, brief, trainable

Pair = tuple[int, int]
Pads = tuple[Pair, Pair]

# -- geometry ----------------------------------------------------------------------------------------------------


def _pair(what: str, value: Any) -> Pair:
    """A positive int for height and width, or one for each."""
    items = tuple(value) if isinstance(value, Sequence | np.ndarray) and not isinstance(value, str) else (value, value)
    if len(items) != 2 or not all(isinstance(n, int | np.integer) and not isinstance(n, bool) and n > 0 for n in items):
        raise ValueError(f"{what} must be a positive int, or two of them for height and width; got {brief(value)}")
    return int(items[0]), int(items[1])


def _pads(what: str, padding: Any, size: Pair, window: Pair, strides: Pair, dilation: Pair) -> Pads:
    """Resolve padding to the number of cells before and after, in height and width."""
    if isinstance(padding, str):
        if padding == "VALID":
            return (0, 0), (0, 0)
        if padding == "SAME":
            pads = [_same_pads(*axis) for axis in zip(size, window, strides, dilation, strict=True)]
            return pads[0], pads[1]
    else:
        try:
            (top, bottom), (left, right) = ((int(a.__index__()), int(b.__index__())) for a, b in padding)
        except (AttributeError, TypeError, ValueError):
            pass
        else:
            if min(top, bottom, left, right) >= 0:
                return (top, bottom), (left, right)
    raise ValueError(
        f"{what}: padding must be 'SAME', 'VALID' or ((top, bottom), (left, right)), not negative; got {brief(padding)}"
    )


def _same_pads(n: int, k: int, stride: int, dilation: int) -> Pair:
    """TensorFlow's SAME: ceil(n / stride) windows; an uneven cell of padding goes to the end."""
    total = max((-(-n // stride) - 1) * stride + (k - 1) * dilation + 1 - n, 0)
    return total // 2, total - total // 2


def _positions(n: int, k: int, stride: int, dilation: int, pads: Pair) -> int:
    """The number of windows that fit into n cells; `_check_fits` ensures at least one."""
    return (n + sum(pads) - (k - 1) * dilation - 1) // stride + 1


def _output_size(shape: Shape, window: Pair, strides: Pair, dilation: Pair, padding: Pads) -> Pair:
    size = [_positions(*axis) for axis in zip(shape[1:3], window, strides, dilation, padding, strict=True)]
    return size[0], size[1]


def _check_fits(what: str, shape: Shape, window: Pair, dilation: Pair, pads: Pads) -> None:
    for name, n, k, d, pad in zip(("height", "width"), shape[1:3], window, dilation, pads, strict=True):
        if n + sum(pad) < (k - 1) * d + 1:
            raise ValueError(
                f"{what}: the window is larger than the input: it covers {(k - 1) * d + 1} cells in {name}, and x "
                f"{list(shape)} (NHWC) has {n} plus {sum(pad)} of padding. Use padding='SAME' or a smaller window."
            )


def _channels_last(what: str, x: Any, data_format: str, build: Callable[[Any], Tensor]) -> Tensor:
    """Call `build` with NHWC images; NCHW is transposed before and after."""
    if len(x.shape) != 4:
        raise ValueError(f"{what}: x must have 4 axes, {data_format}; got shape {list(x.shape)}")
    if data_format == "NHWC":
        return build(x)
    if data_format != "NCHW":
        raise ValueError(f"{what}: data_format must be 'NHWC' or 'NCHW', got {brief(data_format)}")
    return transpose(build(transpose(x, (0, 2, 3, 1))), (0, 3, 1, 2))


# -- convolution -------------------------------------------------------------------------------------------------


def _conv_infer(
    x: Typed, w: Typed, *, strides: Pair, padding: Pads, dilation: Pair, groups: int
) -> tuple[Shape, DType]:
    kh, kw, _, channels = w.shape
    return (x.shape[0], *_output_size(x.shape, (kh, kw), strides, dilation, padding), channels), x.dtype


def _backprop_input_infer(w: Typed, g: Typed, *, size: Pair, groups: int, **_: Any) -> tuple[Shape, DType]:
    return (g.shape[0], *size, w.shape[2] * groups), g.dtype


def _backprop_filter_infer(x: Typed, g: Typed, *, size: Pair, groups: int, **_: Any) -> tuple[Shape, DType]:
    return (*size, x.shape[3] // groups, g.shape[3]), x.dtype


_conv2d = define("Conv2D", _conv_infer, kind=Kind.CONVOLUTION)
_backprop_input = define("Conv2DBackpropInput", _backprop_input_infer, kind=Kind.CONVOLUTION)
_backprop_filter = define("Conv2DBackpropFilter", _backprop_filter_infer, kind=Kind.CONVOLUTION)


def conv2d(
    x: Any,
    w: Any,
    strides: Any = 1,
    padding: Any = "SAME",
    dilation: Any = 1,
    groups: int = 1,
    data_format: str = "NHWC",
    name: str | None = None,
) -> Tensor:
    """Correlate images with a kernel, like TensorFlow's conv2d.

    Args:
        x: images [batch, height, width, channels], or with data_format 'NCHW' [batch, channels, height, width].
        w: kernel [height, width, channels / groups, output channels], in either format.
        strides, dilation: an int, or two for height and width.
        padding: 'SAME' (ceil(n / stride) positions), 'VALID' (whole windows only), or ((top, bottom), (left, right)).
        groups: number of groups into which input and output channels are split.

    >>> conv2d(np.ones((1, 3, 3, 1)), np.ones((2, 2, 1, 1)), padding="VALID")[0, :, :, 0]
    array([[4., 4.],
           [4., 4.]])
    """
    x, w = common(x, w)
    strides, dilation = _pair("conv2d: strides", strides), _pair("conv2d: dilation", dilation)
    if len(w.shape) != 4 or 0 in w.shape[:2]:
        raise ValueError(
            f"conv2d: w must be [height, width, channels / groups, output channels], got shape {list(w.shape)}"
        )

    def build(x: Any) -> Tensor:
        window = w.shape[:2]
        _check_channels(x, w, groups)
        pads = _pads("conv2d", padding, x.shape[1:3], window, strides, dilation)
        _check_fits("conv2d", x.shape, window, dilation, pads)
        attrs = {"strides": strides, "padding": pads, "dilation": dilation, "groups": int(groups)}
        return make(_conv2d, (x, w), attrs, name)

    return _channels_last("conv2d", x, data_format, build)


def _check_channels(x: Typed, w: Typed, groups: int) -> None:
    channels, per_group, made = x.shape[3], *w.shape[2:]
    if not isinstance(groups, int | np.integer) or groups < 1 or channels % groups or made % groups:
        raise ValueError(
            f"conv2d: groups={brief(groups)} must divide both the {channels} channels of x {list(x.shape)} (NHWC) "
            f"and the {made} output channels of w {list(w.shape)}"
        )
    if per_group * groups != channels:
        raise ValueError(
            f"conv2d: x {list(x.shape)} (NHWC) has {channels} channels, so with groups={groups} the kernel must have "
            f"{channels // groups} input channels, but w {list(w.shape)} has {per_group}"
        )


def _images(w: Any, g: Any, like: Tensor, attrs: Any) -> Tensor:
    """The gradient of the images."""
    return make(_backprop_input, (w, g), {**attrs, "size": like.shape[1:3]})


def _kernel(x: Any, g: Any, like: Tensor, attrs: Any) -> Tensor:
    """The gradient of the kernel."""
    return make(_backprop_filter, (x, g), {**attrs, "size": like.shape[:2]})


def _geometry(op: Operation) -> dict[str, Any]:
    return {key: op.attrs[key] for key in ("strides", "padding", "dilation", "groups")}


@RegisterGradient("Conv2D")
def _conv2d_grad(op: Operation, g: Tensor) -> Any:
    x, w = op.inputs
    return _images(conj(w), g, x, op.attrs), _kernel(conj(x), g, w, op.attrs)


@RegisterGradient("Conv2DBackpropInput")
def _backprop_input_grad(op: Operation, h: Tensor) -> Any:
    w, g = op.inputs
    attrs = _geometry(op)
    return _kernel(h, conj(g), w, attrs), make(_conv2d, (h, conj(w)), attrs)


@RegisterGradient("Conv2DBackpropFilter")
def _backprop_filter_grad(op: Operation, h: Tensor) -> Any:
    x, g = op.inputs
    attrs = _geometry(op)
    return _images(h, conj(g), x, attrs), make(_conv2d, (conj(x), h), attrs)


# -- pooling -----------------------------------------------------------------------------------------------------


def _pool_infer(x: Typed, *_: Typed, window: Pair, strides: Pair, padding: Pads) -> tuple[Shape, DType]:
    return (x.shape[0], *_output_size(x.shape, window, strides, (1, 1), padding), x.shape[3]), x.dtype


def _avg_pool_grad_infer(g: Typed, *, size: Pair, **_: Any) -> tuple[Shape, DType]:
    return (g.shape[0], *size, g.shape[3]), g.dtype


_max_pool = define("MaxPool", _pool_infer, kind=Kind.WINDOW)
_max_pool_scatter = define("MaxPoolGrad", same, kind=Kind.WINDOW)
_max_pool_pick = define("MaxPoolGradGrad", _pool_infer, kind=Kind.WINDOW)
_avg_pool = define("AvgPool", _pool_infer, kind=Kind.WINDOW)
_avg_pool_scatter = define("AvgPoolGrad", _avg_pool_grad_infer, kind=Kind.WINDOW)


def max_pool(
    x: Any,
    window: Any,
    strides: Any = None,
    padding: Any = "VALID",
    data_format: str = "NHWC",
    name: str | None = None,
) -> Tensor:
    """The maximum of each window; among equal elements the first gets the gradient. Padding is ignored.

    >>> max_pool(np.arange(16.0).reshape(1, 4, 4, 1), 2)[0, :, :, 0]
    array([[ 5.,  7.],
           [13., 15.]])
    """
    x = typed(x)
    if x.dtype.kind == "c":
        raise TypeError(f"max_pool: complex numbers have no order, got dtype {x.dtype}")
    return _pool(_max_pool, "max_pool", x, window, strides, padding, data_format, name)


def avg_pool(
    x: Any,
    window: Any,
    strides: Any = None,
    padding: Any = "VALID",
    data_format: str = "NHWC",
    name: str | None = None,
) -> Tensor:
    """The mean of each window. Padding is not counted.

    >>> avg_pool(np.ones((1, 3, 3, 1)), 2, padding="SAME")[0, :, :, 0]
    array([[1., 1.],
           [1., 1.]])
    """
    x = typed(x)
    if not trainable(x.dtype):
        raise TypeError(f"avg_pool: a mean needs a floating dtype, got {x.dtype}; cast x")
    return _pool(_avg_pool, "avg_pool", x, window, strides, padding, data_format, name)


def _pool(
    definition: Any, what: str, x: Any, window: Any, strides: Any, padding: Any, data_format: str, name: str | None
) -> Tensor:
    window = _pair(f"{what}: window", window)
    strides = window if strides is None else _pair(f"{what}: strides", strides)

    def build(x: Any) -> Tensor:
        pads = _pads(what, padding, x.shape[1:3], window, strides, (1, 1))
        _check_fits(what, x.shape, window, (1, 1), pads)
        if any(max(pad) >= k for pad, k in zip(pads, window, strict=True)):
            raise ValueError(f"{what}: padding {pads} must be smaller than the window {window}")
        return make(definition, (x,), {"window": window, "strides": strides, "padding": pads}, name)

    return _channels_last(what, x, data_format, build)


@RegisterGradient("MaxPool")
def _max_pool_grad(op: Operation, g: Tensor) -> Any:
    return make(_max_pool_scatter, (op.inputs[0], g), op.attrs)


@RegisterGradient("MaxPoolGrad")
def _max_pool_grad_grad(op: Operation, h: Tensor) -> Any:
    x = op.inputs[0]
    return zeros(x.shape, x.dtype), make(_max_pool_pick, (x, h), op.attrs)


@RegisterGradient("MaxPoolGradGrad")
def _max_pool_grad_grad_grad(op: Operation, g: Tensor) -> Any:
    x = op.inputs[0]
    return zeros(x.shape, x.dtype), make(_max_pool_scatter, (x, g), op.attrs)


@RegisterGradient("AvgPool")
def _avg_pool_grad(op: Operation, g: Tensor) -> Any:
    return make(_avg_pool_scatter, (g,), {**op.attrs, "size": op.inputs[0].shape[1:3]})


@RegisterGradient("AvgPoolGrad")
def _avg_pool_grad_grad(op: Operation, h: Tensor) -> Any:
    return make(_avg_pool, (h,), {key: op.attrs[key] for key in ("window", "strides", "padding")})


__all__ = ["avg_pool", "conv2d", "max_pool"]
guard_all(globals(), __all__)
