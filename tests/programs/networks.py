"""Layers of networks by loops."""

import numpy as np

from tests.programs.table import program


def conv2d(x, weights):
    k, n = weights.shape[0], x.shape[0]
    height, width = x.shape[1] - k + 1, x.shape[2] - k + 1
    out = np.empty((n, height, width, weights.shape[3]), dtype=x.dtype)
    for i in range(height):
        for j in range(width):
            out[:, i, j, :] = np.sum(
                x[:, i : i + k, j : j + k, :, np.newaxis] * weights[np.newaxis, :, :, :], axis=(1, 2, 3)
            )
    return out


def maxpool(x):
    out = np.empty([x.shape[0], x.shape[1] // 2, x.shape[2] // 2, x.shape[3]], dtype=x.dtype)
    for i in range(x.shape[1] // 2):
        for j in range(x.shape[2] // 2):
            out[:, i, j, :] = np.max(x[:, 2 * i : 2 * i + 2, 2 * j : 2 * j + 2, :], axis=(1, 2))
    return out


@program(lambda rng: (rng.normal(size=(1, 4, 4, 2)), rng.normal(size=(2, 2, 2, 2)), rng.normal(size=2)))
def conv2d_bias(x, weights, bias):
    return conv2d(x, weights) + bias


@program(lambda rng: (rng.normal(size=(2, 6, 6, 1)), rng.normal(size=(3, 3, 1, 2)), rng.normal(size=(8, 3))))
def lenet(x, weights, dense):
    x = np.maximum(conv2d(x, weights), 0)
    x = maxpool(x)
    x = np.reshape(x, (x.shape[0], 8))
    return np.maximum(x @ dense, 0)


def batchnorm(x, eps=1e-5):
    return (x - np.mean(x, axis=0, keepdims=True)) / np.sqrt(np.std(x, axis=0, keepdims=True) + eps)


@program(lambda rng: (rng.normal(size=(3, 4, 4, 2)), rng.normal(size=(1, 1, 2, 2)), rng.normal(size=(3, 3, 2, 2))))
def residual_block(x, w1, w2):
    padded = np.zeros((x.shape[0], x.shape[1] + 2, x.shape[2] + 2, w1.shape[3]))
    padded[:, 1:-1, 1:-1, :] = conv2d(x, w1)
    y = np.maximum(batchnorm(padded), 0)
    y = batchnorm(conv2d(y, w2))
    return np.maximum(y + x, 0)


@program(lambda rng: (rng.normal(size=(2, 3)), rng.normal(size=(3, 4)), rng.normal(size=4), rng.normal(size=(4, 2))))
def mlp(x, w1, b1, w2):
    x = np.maximum(x @ w1 + b1, 0)
    x = x @ w2
    top = np.max(x, axis=-1, keepdims=True)
    out = np.exp(x - top)
    out /= np.sum(out, axis=-1, keepdims=True)
    return out


@program(lambda rng: (rng.normal(size=(2, 3, 4)),))
def softmax(x):
    e = np.exp(x - np.max(x, axis=-1, keepdims=True))
    return e / np.sum(e, axis=-1, keepdims=True)


@program(lambda rng: (rng.normal(size=(4, 3)), rng.normal(size=(3, 3)), rng.normal(size=(3, 3))))
def recurrent(x, w, u):
    h = np.zeros(3)
    out = np.zeros((len(x), 3))
    for t, row in enumerate(x):
        h = np.tanh(w @ row + u @ h)
        out[t] = h
    return out


@program(lambda rng: (rng.normal(size=(4, 3)), rng.normal(size=(3, 3))))
def causal_attention(x, w):
    scores = x @ w @ x.T
    scores[np.triu_indices(4, 1)] = -1e9
    e = np.exp(scores - scores.max(axis=1)[:, None])
    e /= e.sum(axis=1)[:, None]
    return e @ x
