"""Rows for distgrad/ops/nn.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.special

import distgrad as dg
from distgrad import nn

from .case import Case, apart, arr

LABELS = np.array([[2, 0, 3], [1, 1, 0]])
#: 0-d on both sides of the kink, and empty.
SMALL = (np.array(0.7), np.array(-0.7), np.zeros((0, 3)))
PROBABILITIES = scipy.special.softmax(arr(2, 3, 4, seed=5), axis=-1)


def grad(f: Any) -> Any:
    """The gradient of f at its arguments, in a graph or immediately: builds the ops that only gradients use."""

    def build(*args: Any) -> Any:
        made = [dg.constant(a) for a in args]
        if isinstance(made[0], dg.Tensor):
            moving = [a for a in made if a.dtype.kind in "fc"]
            return dg.gradients(dg.sum(f(*made) ** 2), moving)
        return [np.asarray(x) for x in dg.function(build)(*args)]

    return build


def one_hot(labels: Any, classes: int) -> Any:
    return np.eye(classes)[labels]


def cross_entropy(logits: Any, labels: Any, axis: int = -1) -> Any:
    return -np.sum(labels * scipy.special.log_softmax(logits, axis=axis), axis=axis)


def layer_norm(x: Any, axis: Any = -1, eps: float = 1e-5) -> Any:
    return (x - x.mean(axis, keepdims=True)) / np.sqrt(x.var(axis, keepdims=True) + eps)


def relu_grad(x: Any) -> Any:
    return 2 * np.where(x > 0, x, 0)


def gelu(x: Any) -> Any:
    return x * scipy.special.ndtr(x)


def gelu_tanh(x: Any) -> Any:
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def gelu_grad(x: Any) -> Any:
    density = np.exp(-x * x / 2) / np.sqrt(2 * np.pi)
    return 2 * gelu(x) * (scipy.special.ndtr(x) + x * density)


def gelu_tanh_grad(x: Any) -> Any:
    t = np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))
    return gelu_tanh(x) * (1 + t + x * (1 - t * t) * np.sqrt(2 / np.pi) * (1 + 0.134145 * x * x))


def approximate_gelu(x: Any) -> Any:
    return nn.gelu(x, approximate=True)


def softmax_grad(x: Any) -> Any:
    y = scipy.special.softmax(x, axis=-1)
    return 2 * y * (y - (y * y).sum(-1, keepdims=True))


def sparse_grad(logits: Any) -> Any:
    one = one_hot(LABELS, 4)
    return 2 * cross_entropy(logits, one)[..., None] * (scipy.special.softmax(logits, axis=-1) - one)


def layer_norm_grad(x: Any, axis: Any = -1, eps: float = 1e-5) -> Any:
    y, r = layer_norm(x, axis, eps), 1 / np.sqrt(x.var(axis, keepdims=True) + eps)
    return 2 * r * (y - y.mean(axis, keepdims=True) - y * (y * y).mean(axis, keepdims=True))


def sparse(logits: Any) -> Any:
    return nn.sparse_softmax_cross_entropy(logits, LABELS)


CASES = {
    "Relu": [
        Case(nn.relu, (apart(3, 4),), lambda x: np.maximum(x, 0)),
        Case(nn.relu, (np.float64(-0.5),), lambda x: np.maximum(x, 0)),
        Case(nn.relu, (arr(0, 3),), lambda x: x),
        Case(nn.relu, (np.array([-1, 0, 2]),), lambda x: np.maximum(x, 0), order=0),
    ],
    "ReluGrad": [Case(grad(nn.relu), (apart(3, 4),), relu_grad)],
    "LeakyRelu": [
        *[Case(nn.leaky_relu, (x,), lambda x: np.where(x > 0, x, 0.2 * x)) for x in SMALL],
        Case(nn.leaky_relu, (apart(3, 4),), lambda x: np.where(x > 0, x, 0.2 * x)),
        Case(lambda x: nn.leaky_relu(x, alpha=0.01), (apart(5),), lambda x: np.where(x > 0, x, 0.01 * x)),
    ],
    "LeakyReluGrad": [Case(grad(nn.leaky_relu), (apart(3, 4),), lambda x: 2 * np.where(x > 0, x, 0.04 * x))],
    "Elu": [
        *[Case(nn.elu, (x,), lambda x: np.where(x > 0, x, np.expm1(x))) for x in SMALL],
        Case(nn.elu, (apart(2, 4),), lambda x: np.where(x > 0, x, np.expm1(x))),
        Case(lambda x: nn.elu(x, alpha=0.5), (apart(5),), lambda x: np.where(x > 0, x, 0.5 * np.expm1(x))),
    ],
    "Softplus": [
        *[Case(nn.softplus, (x,), lambda x: np.log1p(np.exp(x))) for x in SMALL],
        Case(nn.softplus, (arr(3, 4),), lambda x: np.log1p(np.exp(x))),
        Case(nn.softplus, (np.array([-800.0, 0.0, 800.0]),), lambda x: np.logaddexp(x, 0), order=0),
    ],
    "Gelu": [
        *[Case(nn.gelu, (x,), gelu) for x in (*SMALL, arr(2, 3))],
        *[Case(approximate_gelu, (x,), gelu_tanh) for x in (*SMALL, arr(2, 3))],
        Case(nn.gelu, (np.array([-30.0, -8.0, 0.0, 8.0]),), gelu, order=0),
    ],
    "GeluGrad": [
        Case(grad(nn.gelu), (arr(3, 4),), gelu_grad),
        Case(grad(approximate_gelu), (arr(3, 4),), gelu_tanh_grad),
    ],
    "Softmax": [
        Case(nn.softmax, (arr(3, 4),), lambda x: scipy.special.softmax(x, axis=-1)),
        Case(lambda x: nn.softmax(x, axis=-2), (arr(2, 3, 4),), lambda x: scipy.special.softmax(x, axis=1)),
        Case(nn.softmax, (np.array([1e4, 1e4 - 1]),), scipy.special.softmax, order=0, float32=False),
        Case(nn.softmax, (arr(0, 3),), lambda x: x),
        Case(nn.softmax, (arr(3, 0),), lambda x: x),
    ],
    "SoftmaxGrad": [Case(grad(nn.softmax), (arr(3, 4),), softmax_grad)],
    "LogSoftmax": [
        Case(nn.log_softmax, (arr(3, 4),), lambda x: scipy.special.log_softmax(x, axis=-1)),
        Case(lambda x: nn.log_softmax(x, axis=0), (arr(3, 4),), lambda x: scipy.special.log_softmax(x, axis=0)),
        Case(nn.log_softmax, (arr(0, 3),), lambda x: x),
        Case(nn.log_softmax, (arr(3, 0),), lambda x: x),
    ],
    "SoftmaxCrossEntropyWithLogits": [
        Case(nn.softmax_cross_entropy, (arr(2, 3, 4), PROBABILITIES), cross_entropy),
        Case(nn.softmax_cross_entropy, (arr(3, 4), arr(4, low=0.1)), cross_entropy),
        Case(
            lambda x, p: nn.softmax_cross_entropy(x, p, axis=0),
            (arr(4, 3), arr(4, 3, low=0.1)),
            lambda x, p: cross_entropy(x, p, axis=0),
        ),
        Case(nn.softmax_cross_entropy, (arr(0, 3), arr(0, 3)), lambda x, p: np.zeros(0)),
    ],
    "SparseSoftmaxCrossEntropyWithLogits": [
        Case(sparse, (arr(2, 3, 4),), lambda x: cross_entropy(x, one_hot(LABELS, 4))),
        Case(lambda x: nn.sparse_softmax_cross_entropy(x, 2), (arr(4),), lambda x: cross_entropy(x, one_hot(2, 4))),
        Case(lambda x: nn.sparse_softmax_cross_entropy(x, np.zeros(0, int)), (arr(0, 3),), lambda x: np.zeros(0)),
    ],
    "SparseSoftmaxCrossEntropyWithLogitsGrad": [Case(grad(sparse), (arr(2, 3, 4),), sparse_grad)],
    "LayerNorm": [
        Case(nn.layer_norm, (arr(3, 5),), layer_norm),
        Case(lambda x: nn.layer_norm(x, eps=0.1), (arr(3, 5),), lambda x: layer_norm(x, eps=0.1)),
        Case(lambda x: nn.layer_norm(x, axis=(-1, 1)), (arr(2, 3, 4),), lambda x: layer_norm(x, axis=(1, 2))),
        Case(nn.layer_norm, (arr(3, 5), arr(5), arr(5, seed=1)), lambda x, a, b: layer_norm(x) * a + b),
        Case(
            lambda x, a, b: nn.layer_norm(x, a, b, axis=1),
            (arr(2, 3, 4), arr(3), arr(3, seed=1)),
            lambda x, a, b: layer_norm(x, axis=1) * a[:, None] + b[:, None],
        ),
        Case(nn.layer_norm, (arr(0, 3),), lambda x: x),
        Case(nn.layer_norm, (arr(3, 0),), lambda x: x),
        Case(nn.layer_norm, (arr(0, 3), arr(3), arr(3, seed=1)), lambda x, a, b: x),
    ],
    "LayerNormGrad": [
        Case(grad(nn.layer_norm), (arr(3, 5),), layer_norm_grad, rtol=1e-9),
        Case(
            grad(lambda x: nn.layer_norm(x, eps=0.5, axis=(0, 1))),
            (arr(3, 2),),
            lambda x: layer_norm_grad(x, (0, 1), 0.5),
        ),
    ],
    "LayerNormScale": [  # what second derivatives are made of
        Case(grad(lambda x: grad(nn.layer_norm)(x)[0]), (arr(3, 5),), None, order=1),
        Case(grad(lambda x: grad(lambda x: nn.layer_norm(x, axis=(0, 1), eps=0.5))(x)[0]), (arr(3, 2),), None, order=1),
    ],
}
