"""Neural networks: activations, softmax and its losses, normalisation, embedding, dropout. Re-exports `conv`.

Functions are fused into one op for numerical stability (softmax and its losses), or because the backward pass then
reads memory once instead of five times. A fused gradient is differentiable too, so derivatives of any order are exact.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from distgrad.graph import NO_ATTRS, Operation, Tensor
from distgrad.ops.array import broadcast_to, reshape
from distgrad.ops.builder import as_dtype, cast, make, promote, same, typed
from distgrad.ops.control import ones, zeros
from distgrad.ops.conv import avg_pool, conv2d, max_pool
from distgrad.ops.guard import guard_all
from distgrad.ops.index import gather
from distgrad.ops.math import add, exp, greater_equal, multiply, sigmoid, tanh, where
from distgrad.ops.random import uniform
from distgrad.ops.reduce import sum as reduce_sum
from distgrad.registry import Kind, RegisterGradient, define
from distgrad.types import (
    DType,
    Shape,
    Typed,
    brief,
    broadcast_shapes,
    normalize_axes,
    normalize_axis,
    reduced_shape,
    size_of,
    trainable,
)


def _floating(what: str, x: Any) -> Any:
    """x as real floating-point numbers: integers become floats as in np.exp, complex numbers raise TypeError."""
    x = typed(x)
    if x.dtype.kind == "c":
        raise TypeError(f"{what}: takes real numbers, got dtype {x.dtype}; apply it to the real and imaginary parts")
    return x if trainable(x.dtype) else promote(np.exp, x)[0]


def _zero_curvature(x: Typed) -> Tensor:
    """The second derivative of piecewise linear functions.

    Zeros, not None: a gradient penalty on a relu network then has a gradient for every parameter.
    """
    return zeros(x.shape, x.dtype)


# -- activations -------------------------------------------------------------------------------------------------

_relu = define("Relu", same, kind=Kind.ELEMENTWISE)
_relu_grad_op = define("ReluGrad", same, kind=Kind.ELEMENTWISE)
_leaky_relu = define("LeakyRelu", same, kind=Kind.ELEMENTWISE)
_leaky_relu_grad_op = define("LeakyReluGrad", same, kind=Kind.ELEMENTWISE)
_elu = define("Elu", same, kind=Kind.ELEMENTWISE)
_softplus = define("Softplus", same, kind=Kind.ELEMENTWISE)
_gelu = define("Gelu", same, kind=Kind.ELEMENTWISE)
_gelu_grad_op = define("GeluGrad", same, kind=Kind.ELEMENTWISE)


def relu(x: Any, name: str | None = None) -> Tensor:
    """max(x, 0); its derivative at 0 is 0.

    >>> relu(np.array([-1.0, 0.0, 2.0]))
    array([0., 0., 2.])
    """
    x = typed(x)
    return make(_relu, (x if x.dtype.kind in "iu" else _floating("relu", x),), NO_ATTRS, name)


@RegisterGradient("Relu")
def _relu_grad(op: Operation, g: Tensor) -> Any:
    return make(_relu_grad_op, (g, op.outputs[0]))


@RegisterGradient("ReluGrad")
def _relu_grad_grad(op: Operation, h: Tensor) -> Any:
    y = op.inputs[1]
    return make(_relu_grad_op, (h, y)), _zero_curvature(y)


def leaky_relu(x: Any, alpha: float = 0.2, name: str | None = None) -> Tensor:
    """x if positive, alpha * x otherwise.

    >>> leaky_relu(np.array([-1.0, 2.0]))
    array([-0.2,  2. ])
    """
    return make(_leaky_relu, (_floating("leaky_relu", x),), {"alpha": float(alpha)}, name)


@RegisterGradient("LeakyRelu")
def _leaky_relu_grad(op: Operation, g: Tensor) -> Any:
    return make(_leaky_relu_grad_op, (g, op.inputs[0]), op.attrs)


@RegisterGradient("LeakyReluGrad")
def _leaky_relu_grad_grad(op: Operation, h: Tensor) -> Any:
    x = op.inputs[1]
    return make(_leaky_relu_grad_op, (h, x), op.attrs), _zero_curvature(x)


def elu(x: Any, alpha: float = 1.0, name: str | None = None) -> Tensor:
    """x if positive, alpha * (exp(x) - 1) otherwise.

    >>> elu(np.array([-np.inf, 2.0]))
    array([-1.,  2.])
    """
    return make(_elu, (_floating("elu", x),), {"alpha": float(alpha)}, name)


@RegisterGradient("Elu")
def _elu_grad(op: Operation, g: Tensor) -> Any:
    return where(op.inputs[0] > 0, g, g * (op.outputs[0] + op.attrs["alpha"]))


def softplus(x: Any, name: str | None = None) -> Tensor:
    """log(1 + exp(x)), without overflow.

    >>> softplus(np.array([-1000.0, 1000.0]))
    array([   0., 1000.])
    """
    return make(_softplus, (_floating("softplus", x),), NO_ATTRS, name)


@RegisterGradient("Softplus")
def _softplus_grad(op: Operation, g: Tensor) -> Any:
    return g * sigmoid(op.inputs[0])


def silu(x: Any, name: str | None = None) -> Tensor:
    """x * sigmoid(x), also called swish.

    >>> silu(np.array([0.0, 100.0]))
    array([  0., 100.])
    """
    x = _floating("silu", x)
    return multiply(x, sigmoid(x), name=name)


def gelu(x: Any, approximate: bool = False, name: str | None = None) -> Tensor:
    """x times the standard normal CDF of x; `approximate` uses the tanh formula instead of erf.

    >>> gelu(np.array([0.0, 1.0])).round(4)
    array([0.    , 0.8413])
    """
    return make(_gelu, (_floating("gelu", x),), {"approximate": bool(approximate)}, name)


@RegisterGradient("Gelu")
def _gelu_grad(op: Operation, g: Tensor) -> Any:
    return make(_gelu_grad_op, (g, op.inputs[0]), op.attrs)


@RegisterGradient("GeluGrad")
def _gelu_grad_grad(op: Operation, h: Tensor) -> Any:
    g, x = op.inputs
    second = _gelu_second_tanh(x) if op.attrs["approximate"] else _gelu_second(x)
    return make(_gelu_grad_op, (h, x), op.attrs), h * g * second


def _gelu_second(x: Tensor) -> Tensor:
    """The second derivative of x P(x), where P' = p is the normal density and p' = -x p."""
    square = x * x
    return exp(-0.5 * square) * (math.sqrt(0.5 / math.pi) * (2 - square))


def _gelu_second_tanh(x: Tensor) -> Tensor:
    """The second derivative of x s(q), s the sigmoid and q = 2 sqrt(2/pi) (x + 0.044715 x**3): s' = s(q) s(-q)."""
    scale = math.sqrt(8 / math.pi)
    square = x * x
    q, dq, ddq = x * (scale + scale * 0.044715 * square), scale + scale * 0.134145 * square, scale * 0.26829 * x
    up, down = sigmoid(q), sigmoid(-q)
    return up * down * (2 * dq + x * ((down - up) * dq * dq + ddq))


# -- softmax -----------------------------------------------------------------------------------------------------

_softmax = define("Softmax", same, kind=Kind.ROWWISE)
_softmax_grad_op = define("SoftmaxGrad", same, kind=Kind.ROWWISE)
_log_softmax = define("LogSoftmax", same, kind=Kind.ROWWISE)


def softmax(x: Any, axis: int = -1, name: str | None = None) -> Tensor:
    """exp(x) / sum(exp(x)) along an axis, without overflow.

    >>> softmax(np.array([1000.0, 1000.0]))
    array([0.5, 0.5])
    """
    x = _floating("softmax", x)
    return make(_softmax, (x,), {"axis": normalize_axis(axis, len(x.shape))}, name)


@RegisterGradient("Softmax")
def _softmax_grad(op: Operation, g: Tensor) -> Any:
    return make(_softmax_grad_op, (g, op.outputs[0]), op.attrs)


@RegisterGradient("SoftmaxGrad")
def _softmax_grad_grad(op: Operation, h: Tensor) -> Any:
    g, y = op.inputs  # the op is y * (g - <g, y>)
    axis = op.attrs["axis"]
    gy, hy = reduce_sum(g * y, axis, keepdims=True), reduce_sum(h * y, axis, keepdims=True)
    return make(_softmax_grad_op, (h, y), op.attrs), h * (g - gy) - g * hy


def log_softmax(x: Any, axis: int = -1, name: str | None = None) -> Tensor:
    """The logarithm of softmax, accurate even if softmax would round to 0.

    >>> log_softmax(np.array([0.0, -1000.0]))
    array([    0., -1000.])
    """
    x = _floating("log_softmax", x)
    return make(_log_softmax, (x,), {"axis": normalize_axis(axis, len(x.shape))}, name)


@RegisterGradient("LogSoftmax")
def _log_softmax_grad(op: Operation, g: Tensor) -> Any:
    return g - softmax(op.inputs[0], **op.attrs) * reduce_sum(g, op.attrs["axis"], keepdims=True)


# -- losses ------------------------------------------------------------------------------------------------------


def _cross_entropy_infer(logits: Typed, labels: Typed, *, axis: int) -> tuple[Shape, DType]:
    return reduced_shape(logits.shape, (axis,), False), logits.dtype


_cross_entropy = define("SoftmaxCrossEntropyWithLogits", _cross_entropy_infer, kind=Kind.REDUCTION)


def softmax_cross_entropy(logits: Any, labels: Any, axis: int = -1, name: str | None = None) -> Tensor:
    """-sum(labels * log_softmax(logits)) along the class axis; labels are probabilities, and differentiable too.

    Classes of probability 0 contribute nothing, even if the logit is -inf. Labels need not sum to 1.

    >>> softmax_cross_entropy(np.array([[0.0, -np.inf]]), np.array([[1.0, 0.0]]))
    array([0.])
    """
    logits, labels = _floating("softmax_cross_entropy", logits), typed(labels)
    labels = cast(labels, logits.dtype) if labels.dtype.kind in "biu" else _floating("softmax_cross_entropy", labels)
    dtype = np.result_type(logits.dtype, labels.dtype)
    logits, labels = as_dtype(logits, dtype), as_dtype(labels, dtype)
    if logits.shape != labels.shape:
        logits, labels = _broadcast_pair(logits, labels)
    return make(_cross_entropy, (logits, labels), {"axis": normalize_axis(axis, len(logits.shape))}, name)


def _broadcast_pair(logits: Any, labels: Any) -> tuple[Any, Any]:
    try:
        shape = broadcast_shapes(logits.shape, labels.shape)
    except ValueError:
        raise ValueError(
            f"softmax_cross_entropy: logits {list(logits.shape)} and labels {list(labels.shape)} must have the same "
            f"shape, or shapes that broadcast; for integer class labels use sparse_softmax_cross_entropy"
        ) from None
    return broadcast_to(logits, shape), broadcast_to(labels, shape)


@RegisterGradient("SoftmaxCrossEntropyWithLogits")
def _cross_entropy_grad(op: Operation, g: Tensor) -> Any:
    logits, labels = op.inputs
    axis = op.attrs["axis"]
    g = reshape(g, reduced_shape(logits.shape, (axis,), True))
    total = reduce_sum(labels, axis, keepdims=True)
    return g * (softmax(logits, axis) * total - labels), -g * log_softmax(logits, axis)


def _sparse_infer(logits: Typed, labels: Typed) -> tuple[Shape, DType]:
    return labels.shape, logits.dtype


_sparse_cross_entropy = define("SparseSoftmaxCrossEntropyWithLogits", _sparse_infer, kind=Kind.ROWWISE)
_sparse_cross_entropy_grad_op = define(
    "SparseSoftmaxCrossEntropyWithLogitsGrad", lambda g, logits, labels: (logits.shape, logits.dtype), kind=Kind.ROWWISE
)


def sparse_softmax_cross_entropy(logits: Any, labels: Any, name: str | None = None) -> Tensor:
    """-log_softmax(logits) at integer class labels. The classes are the last axis of logits.

    >>> sparse_softmax_cross_entropy(np.zeros((2, 4)), np.array([3, 0])) / np.log(4)
    array([1., 1.])
    """
    logits, labels = _floating("sparse_softmax_cross_entropy", logits), typed(labels)
    if labels.dtype.kind not in "iu":
        raise TypeError(
            f"sparse_softmax_cross_entropy: labels must be integer classes, got dtype {labels.dtype}; "
            f"for probabilities use softmax_cross_entropy"
        )
    if not logits.shape or logits.shape[:-1] != labels.shape:
        raise ValueError(
            f"sparse_softmax_cross_entropy: labels {list(labels.shape)} must have the shape of logits "
            f"{list(logits.shape)} without its last axis, the classes"
        )
    return make(_sparse_cross_entropy, (logits, labels), NO_ATTRS, name)


@RegisterGradient("SparseSoftmaxCrossEntropyWithLogits")
def _sparse_cross_entropy_grad(op: Operation, g: Tensor) -> Any:
    return make(_sparse_cross_entropy_grad_op, (g, *op.inputs)), None


@RegisterGradient("SparseSoftmaxCrossEntropyWithLogitsGrad")
def _sparse_cross_entropy_grad_grad(op: Operation, h: Tensor) -> Any:
    g, logits, labels = op.inputs  # the op is g * (softmax(logits) - one_hot(labels))
    slope = make(_sparse_cross_entropy_grad_op, (ones(g.shape, g.dtype), logits, labels))
    weighted = h * reshape(g, (*g.shape, 1))
    to_logits = make(_softmax_grad_op, (weighted, softmax(logits)), {"axis": len(logits.shape) - 1})
    return reduce_sum(h * slope, axis=-1), to_logits, None


# -- normalisation -----------------------------------------------------------------------------------------------

_layer_norm = define("LayerNorm", same, kind=Kind.ROWWISE)
_layer_norm_grad_op = define("LayerNormGrad", same, kind=Kind.ROWWISE)


def _scale_infer(x: Typed, *, axis: tuple[int, ...], eps: float) -> tuple[Shape, DType]:
    return reduced_shape(x.shape, axis, True), x.dtype


_layer_norm_scale = define("LayerNormScale", _scale_infer, kind=Kind.ROWWISE)


def layer_norm(
    x: Any, gamma: Any = None, beta: Any = None, axis: Any = -1, eps: float = 1e-5, name: str | None = None
) -> Tensor:
    """Normalize x to mean 0 and variance 1 along `axis` (one or several), then multiply by gamma and add beta.

    gamma and beta have the shape of x along `axis`. `eps` is added to the variance.

    >>> layer_norm(np.array([[1.0, 3.0], [5.0, 9.0]]), eps=0.0)
    array([[-1.,  1.],
           [-1.,  1.]])
    """
    x = _floating("layer_norm", x)
    axes = normalize_axes(axis, len(x.shape))
    scale, shift = (_norm_parameter(what, p, x, axes) for what, p in (("gamma", gamma), ("beta", beta)))
    last = None if scale is not None or shift is not None else name
    y = make(_layer_norm, (x,), {"axis": axes, "eps": float(eps)}, last)
    if scale is not None:
        y = multiply(y, scale, name=name if shift is None else None)
    return y if shift is None else add(y, shift, name=name)


def _norm_parameter(what: str, p: Any, x: Typed, axes: tuple[int, ...]) -> Any:
    if p is None:
        return None
    p = typed(p)
    expected = tuple(x.shape[i] for i in axes)
    if p.shape != expected:
        raise ValueError(
            f"layer_norm: {what} has shape {list(p.shape)}, but x {list(x.shape)} is normalised along axis {axes}: "
            f"it must have shape {list(expected)}"
        )
    return reshape(p, tuple(n if i in axes else 1 for i, n in enumerate(x.shape)))


@RegisterGradient("LayerNorm")
def _layer_norm_grad(op: Operation, g: Tensor) -> Any:
    return make(_layer_norm_grad_op, (g, op.inputs[0]), op.attrs)


@RegisterGradient("LayerNormGrad")
def _layer_norm_grad_grad(op: Operation, h: Tensor) -> Any:
    """With y the normalised x and r = 1 / sqrt(var + eps), the op is r * (g - mean(g) - y * mean(g * y)).

    It is linear in g, and symmetric like the Jacobian of the normalization.
    """
    g, x = op.inputs
    axes = op.attrs["axis"]
    y, r = make(_layer_norm, (x,), op.attrs), make(_layer_norm_scale, (x,), op.attrs)
    to_g = make(_layer_norm_grad_op, (h, x), op.attrs)
    gy, hy = _mean(g * y, axes), _mean(h * y, axes)
    spread = _mean(h * (g - _mean(g, axes)), axes) - gy * hy
    return to_g, -r * (r * y * spread + gy * to_g + hy * make(_layer_norm_grad_op, (g, x), op.attrs))


@RegisterGradient("LayerNormScale")
def _layer_norm_scale_grad(op: Operation, g: Tensor) -> Any:
    """r = (mean(c * c) + eps) ** -0.5 with c the centred x: its derivative is -r**3 * c / n, and r * c = y."""
    (x,), (r,), axes = op.inputs, op.outputs, op.attrs["axis"]
    y = make(_layer_norm, (x,), op.attrs)
    return g * r * r * y / -max(size_of(x.shape[i] for i in axes), 1)


def _mean(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    return reduce_sum(x, axes, keepdims=True) / max(size_of(x.shape[i] for i in axes), 1)


# -- embedding and dropout ---------------------------------------------------------------------------------------


def embedding(table: Any, ids: Any, name: str | None = None) -> Tensor:
    """The rows of a table at integer ids; the gradient of the table is an IndexedSlices of these rows.

    >>> embedding(np.array([[1.0, 2.0], [3.0, 4.0]]), [1, 1])
    array([[3., 4.],
           [3., 4.]])
    """
    return gather(table, ids, axis=0, name=name)


def dropout(x: Any, rate: float, key: Any, training: bool = True, name: str | None = None) -> Tensor:
    """Set a random fraction `rate` of the elements to 0 and divide the others by 1 - rate, to preserve the mean.

    The mask depends on the key alone (see `distgrad.random`): use a new key in each step. Returns x if not `training`.

    >>> dropout(np.ones(4), 0.5, key=0, training=False)
    array([1., 1., 1., 1.])
    """
    if not isinstance(rate, int | float | np.number) or not 0 <= rate < 1:
        raise ValueError(
            f"dropout: rate must be the fraction of elements to drop, 0 <= rate < 1, got {brief(rate)}"
        )
    x = _floating("dropout", x)
    if not training or rate == 0:
        return x  # type: ignore[no-any-return]
    keep = greater_equal(uniform(key, x.shape, np.float32), float(rate))
    return where(keep, x / (1 - float(rate)), 0, name=name)


__all__ = [
    "avg_pool", "conv2d", "dropout", "elu", "embedding", "gelu", "layer_norm", "leaky_relu", "log_softmax", "max_pool",
    "relu", "sigmoid", "silu", "softmax", "softmax_cross_entropy", "softplus", "sparse_softmax_cross_entropy", "tanh",
]  # fmt: skip
guard_all(globals(), __all__)
