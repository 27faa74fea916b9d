"""Kernels of distgrad/ops/nn.py."""

from __future__ import annotations

import math
from typing import Any

from distgrad.workers.backends import extras
from distgrad.workers.kernels.math import log1p
from distgrad.workers.kernels.table import KERNELS, kernel


@kernel("Relu")
def relu(xp: Any, x: Any) -> Any:
    return xp.maximum(x, xp.zeros((), dtype=x.dtype))


@kernel("ReluGrad")
def relu_grad(xp: Any, g: Any, y: Any) -> Any:
    return xp.where(y > 0, g, xp.zeros((), dtype=g.dtype))


@kernel("LeakyRelu", single=True)
def leaky_relu(xp: Any, x: Any, *, alpha: float) -> Any:
    return xp.where(x > 0, x, alpha * x)


@kernel("LeakyReluGrad", single=True)
def leaky_relu_grad(xp: Any, g: Any, x: Any, *, alpha: float) -> Any:
    return xp.where(x > 0, g, alpha * g)


@kernel("Elu", single=True)
def elu(xp: Any, x: Any, *, alpha: float) -> Any:
    return xp.where(x > 0, x, alpha * xp.expm1(x))  # an overflow of expm1 for large x is not selected


@kernel("Softplus", single=True)
def softplus(xp: Any, x: Any) -> Any:
    return xp.maximum(x, xp.zeros((), dtype=x.dtype)) + log1p(xp, xp.exp(-xp.abs(x)))


#: The tanh formula of gelu is x * sigmoid(q) with q = x (GELU_LINEAR + GELU_CUBIC x**2).
GELU_LINEAR = math.sqrt(8 / math.pi)
GELU_CUBIC = GELU_LINEAR * 0.044715
SQRT_HALF = math.sqrt(0.5)
NORMAL_PEAK = math.sqrt(0.5 / math.pi)


@kernel("Gelu", single=True)
def gelu(xp: Any, x: Any, *, approximate: bool) -> Any:
    if approximate:
        return x / (xp.exp((x * x * -GELU_CUBIC - GELU_LINEAR) * x) + 1)  # precise in the left tail, unlike 1 + tanh
    return x * 0.5 * KERNELS["Erfc"](xp, x * -SQRT_HALF)  # precise in the left tail, unlike 1 + erf


@kernel("GeluGrad", single=True)
def gelu_grad(xp: Any, g: Any, x: Any, *, approximate: bool) -> Any:
    square = x * x
    if approximate:
        u = xp.exp((square * -GELU_CUBIC - GELU_LINEAR) * x) + 1
        up = 1 / u
        slope = (1 - up) * (x / u) * (square * (3 * GELU_CUBIC) + GELU_LINEAR) + up  # 0 * x or 0 * x**2 for large |x|
    else:
        slope = xp.exp(square * -0.5) * NORMAL_PEAK * x + KERNELS["Erfc"](xp, x * -SQRT_HALF) * 0.5
    return g * slope


# -- softmax and its losses --------------------------------------------------------------------------------------


def _shifted(xp: Any, x: Any, axis: int) -> Any:
    """x minus its maximum along the axis, so that exp cannot overflow."""
    return x - xp.max(x, axis=axis, keepdims=True) if 0 not in x.shape else x


@kernel("Softmax", single=True)
def softmax(xp: Any, x: Any, *, axis: int) -> Any:
    y = xp.exp(_shifted(xp, x, axis))
    y /= xp.sum(y, axis=axis, keepdims=True)
    return y


@kernel("SoftmaxGrad", single=True)
def softmax_grad(xp: Any, g: Any, y: Any, *, axis: int) -> Any:
    made = g * y
    made -= y * xp.sum(made, axis=axis, keepdims=True)
    return made


@kernel("LogSoftmax", single=True)
def log_softmax(xp: Any, x: Any, *, axis: int) -> Any:
    shifted = _shifted(xp, x, axis)
    return shifted - xp.log(xp.sum(xp.exp(shifted), axis=axis, keepdims=True))


@kernel("SoftmaxCrossEntropyWithLogits", single=True)
def softmax_cross_entropy(xp: Any, logits: Any, labels: Any, *, axis: int) -> Any:
    cost = -labels * log_softmax(xp, logits, axis=axis)
    return xp.sum(xp.where(labels == 0, xp.zeros((), dtype=cost.dtype), cost), axis=axis)  # 0 * -inf is 0 here


@kernel("SparseSoftmaxCrossEntropyWithLogits", single=True)
def sparse_softmax_cross_entropy(xp: Any, logits: Any, labels: Any) -> Any:
    shifted = _shifted(xp, logits, -1)
    return xp.log(xp.sum(xp.exp(shifted), axis=-1)) - extras(xp).get(shifted, _at(xp, labels, logits.shape[-1]))


@kernel("SparseSoftmaxCrossEntropyWithLogitsGrad", single=True)
def sparse_softmax_cross_entropy_grad(xp: Any, g: Any, logits: Any, labels: Any) -> Any:
    made = extras(xp).increase(softmax(xp, logits, axis=-1), _at(xp, labels, logits.shape[-1]), -1)
    made *= g[..., None]
    return made


def _at(xp: Any, labels: Any, classes: int) -> tuple[Any, ...]:
    """The index of each row's label."""
    check_labels(xp, labels, classes)
    rows = [xp.reshape(xp.arange(n), (n,) + (1,) * (labels.ndim - i - 1)) for i, n in enumerate(labels.shape)]
    return (*rows, labels)


def check_labels(xp: Any, labels: Any, classes: int) -> None:
    """Raise for labels that are not classes: negative ones do not count from the end."""
    low, high = extras(xp).extremes(labels) if 0 not in labels.shape else (0, classes - 1)
    if low < 0 or high >= classes:
        raise ValueError(f"labels must be classes from 0 to {classes - 1}, got values from {low} to {high}")


# -- normalisation -----------------------------------------------------------------------------------------------


def _normalised(xp: Any, x: Any, axis: Any, eps: float) -> tuple[Any, Any]:
    """x with mean 0 and variance 1, and the factor that scaled its deviations."""
    y = x - xp.mean(x, axis=axis, keepdims=True)
    r = 1 / xp.sqrt(xp.mean(y * y, axis=axis, keepdims=True) + eps)
    y *= r
    return y, r


@kernel("LayerNorm", single=True)
def layer_norm(xp: Any, x: Any, *, axis: Any, eps: float) -> Any:
    return _normalised(xp, x, axis, eps)[0] if 0 not in x.shape else x


@kernel("LayerNormScale", single=True)
def layer_norm_scale(xp: Any, x: Any, *, axis: Any, eps: float) -> Any:
    if 0 in x.shape:
        x = xp.zeros(tuple(1 if i in axis else n for i, n in enumerate(x.shape)), dtype=x.dtype)
    return _normalised(xp, x, axis, eps)[1]


@kernel("LayerNormGrad", single=True)
def layer_norm_grad(xp: Any, g: Any, x: Any, *, axis: Any, eps: float) -> Any:
    if 0 in x.shape:
        return g
    y, r = _normalised(xp, x, axis, eps)
    made = g - xp.mean(g, axis=axis, keepdims=True)
    made -= y * xp.mean(g * y, axis=axis, keepdims=True)
    made *= r
    return made
