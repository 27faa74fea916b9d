"""The workloads in TensorFlow: tf.function with tf.gradients, variant "xla" with jit_compile=True."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from . import inputs
from .timing import Step


def mlp(params: Any, x: Any, labels: Any) -> Any:
    *hidden, last = params["layers"]
    for layer in hidden:
        x = tf.nn.relu(_dense(layer, x))
    return _cross_entropy(_dense(last, x), labels)


def gpt(params: Any, tokens: Any, targets: Any) -> Any:
    x = tf.nn.embedding_lookup(params["words"], tokens) + params["positions"]
    x = tf.reshape(x, (-1, x.shape[-1]))  # tf.matmul of rank 3 with a matrix is slower than of rank 2
    for layer in params["layers"]:
        x = x + _attention(layer, _norm(layer["norm1"], x), *tokens.shape)
        x = x + _dense(layer["down"], tf.nn.gelu(_dense(layer["up"], _norm(layer["norm2"], x)), approximate=True))
    tied = "head" not in params
    logits = tf.matmul(_norm(params["norm"], x), params["words" if tied else "head"], transpose_b=tied)
    return _cross_entropy(logits, tf.reshape(targets, (-1,)))


def elementwise(params: Any) -> Any:
    p, x, y = params["p"], params["x"], params["y"]
    z = tf.tanh(p * x + y)
    return tf.reduce_sum((z * tf.exp(-z * z) + tf.math.log1p(tf.exp(-tf.abs(z)))) * y)


def conv(params: Any, images: Any, labels: Any) -> Any:
    x = tf.nn.relu(_conv(params["stem"], images))
    for stage, layer in zip(inputs.STAGES, params["stages"], strict=True):
        y = _conv(layer["second"], tf.nn.relu(_conv(layer["first"], x, stage.stride)))
        x = tf.nn.relu(y + (_conv(layer["project"], x, stage.stride) if stage.projects else x))
    return _cross_entropy(_dense(params["head"], tf.reduce_mean(x, axis=(1, 2))), labels)


def small(params: Any, x: Any) -> Any:
    for i in range(inputs.CHAIN):
        a, b = (params[name][i % inputs.CHAIN_WEIGHTS] for name in "ab")
        x = tf.tanh(x * a + b) * 0.5 + x
    return tf.reduce_sum(x)


def call(x: Any, y: Any) -> Any:
    for _ in range(5):
        x = tf.tanh(x) * y
    return x


def _dense(layer: Any, x: Any) -> Any:
    return tf.nn.bias_add(x @ layer["w"], layer["b"])


def _norm(layer: Any, x: Any) -> Any:
    mean, variance = tf.nn.moments(x, axes=[-1], keepdims=True)
    return tf.nn.batch_normalization(x, mean, variance, layer["beta"], layer["gamma"], 1e-5)


def _attention(layer: Any, x: Any, batch: int, length: int) -> Any:
    width = x.shape[-1]
    heads = width // inputs.GPT_HEAD
    parts = tf.reshape(_dense(layer["qkv"], x), (batch, length, 3, heads, width // heads))
    q, k, v = tf.unstack(tf.transpose(parts, (2, 0, 3, 1, 4)))
    scores = tf.matmul(q, k, transpose_b=True) * (width // heads) ** -0.5
    causal = tf.constant(np.tri(length, dtype=bool))
    weights = tf.nn.softmax(tf.where(causal, scores, -np.inf))
    return _dense(layer["out"], tf.reshape(tf.transpose(weights @ v, (0, 2, 1, 3)), (-1, width)))


def _conv(layer: Any, x: Any, stride: int = 1) -> Any:
    edge = [layer["w"].shape[0] // 2] * 2
    return tf.nn.bias_add(tf.nn.conv2d(x, layer["w"], stride, [[0, 0], edge, edge, [0, 0]]), layer["b"])


def _cross_entropy(logits: Any, labels: Any) -> Any:
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))


LOSSES: dict[str, Callable[..., Any]] = {
    "mlp": mlp,
    "gpt": gpt,
    "gpt-numpy": gpt,
    "gpt2": gpt,
    "elementwise": elementwise,
    "conv": conv,
    "small": small,
}


def load(workload: str, variant: str, threads: int) -> Step:
    params, data = inputs.map_leaves(tf.constant, tuple(inputs.make(workload)))
    args = data if workload == "call" else (params, *data)
    compiled = {"jit_compile": True} if variant == "xla" else {}
    if workload in inputs.TRAINING:
        return _training(LOSSES[workload], params, data, compiled)
    function = tf.function(call if workload == "call" else _gradients(LOSSES[workload]), **compiled)

    def run() -> Any:
        made = function(*args)
        next(inputs.leaves(made)).numpy()  # waits, if the call did not
        return made

    return Step(
        run=run,
        arrays=lambda made: [x.numpy() for x in inputs.leaves(made)],
        prepare=lambda: function.get_concrete_function(*args),
    )


def _gradients(loss: Callable[..., Any]) -> Callable[..., Any]:
    def step(params: Any, *data: Any) -> Any:
        value = loss(params, *data)
        found = tf.gradients(value, list(inputs.leaves(params)))
        return value, [tf.convert_to_tensor(g) for g in found]  # dense, as everyone's

    return step


def _training(loss: Callable[..., Any], params: Any, data: Any, compiled: Any) -> Step:
    params = inputs.map_leaves(tf.Variable, params)
    first, second = (inputs.map_leaves(lambda p: tf.Variable(tf.zeros_like(p)), params) for _ in range(2))
    count = tf.Variable(0.0)
    variables = list(zip(*map(inputs.leaves, (params, first, second)), strict=True))

    @tf.function(**compiled)
    def train(*data: Any) -> Any:
        value = loss(params, *data)
        found = tf.gradients(value, [p for p, _, _ in variables])
        t = count.assign_add(1.0)
        rate = inputs.RATE * tf.sqrt(1 - inputs.DECAY_OF_SQUARES**t) / (1 - inputs.DECAY**t)
        for (p, m, v), g in zip(variables, map(tf.convert_to_tensor, found), strict=True):
            m.assign(inputs.DECAY * m + (1 - inputs.DECAY) * g)
            v.assign(inputs.DECAY_OF_SQUARES * v + (1 - inputs.DECAY_OF_SQUARES) * g * g)
            p.assign_sub(rate * m / (tf.sqrt(v) + inputs.EPSILON))
        return value

    return Step(lambda: train(*data).numpy(), lambda made: [np.asarray(x) for x in (made, *inputs.told(first))])


def set_threads(threads: int) -> None:
    """Must come before anything runs."""
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(threads)


def warm() -> None:
    x = tf.ones((256, 256))
    tf.function(lambda x: tf.gradients(tf.reduce_sum(x @ x), x))(x)
