"""The workloads in JAX: jit of value_and_grad."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from . import inputs
from .timing import Step


def mlp(params: Any, x: Any, labels: Any) -> Any:
    *hidden, last = params["layers"]
    for layer in hidden:
        x = jax.nn.relu(_dense(layer, x))
    return _cross_entropy(_dense(last, x), labels)


def gpt(params: Any, tokens: Any, targets: Any) -> Any:
    x = params["words"][tokens] + params["positions"]
    for layer in params["layers"]:
        x = x + _attention(layer, _norm(layer["norm1"], x))
        x = x + _dense(layer["down"], jax.nn.gelu(_dense(layer["up"], _norm(layer["norm2"], x)), approximate=True))
    head = params["head"] if "head" in params else params["words"].T
    return _cross_entropy(_norm(params["norm"], x) @ head, targets)


def elementwise(params: Any) -> Any:
    p, x, y = params["p"], params["x"], params["y"]
    z = jnp.tanh(p * x + y)
    return jnp.sum((z * jnp.exp(-z * z) + jnp.log1p(jnp.exp(-jnp.abs(z)))) * y)


def conv(params: Any, images: Any, labels: Any) -> Any:
    x = jax.nn.relu(_conv(params["stem"], images))
    for stage, layer in zip(inputs.STAGES, params["stages"], strict=True):
        y = _conv(layer["second"], jax.nn.relu(_conv(layer["first"], x, stage.stride)))
        x = jax.nn.relu(y + (_conv(layer["project"], x, stage.stride) if stage.projects else x))
    return _cross_entropy(_dense(params["head"], jnp.mean(x, axis=(1, 2))), labels)


def small(params: Any, x: Any) -> Any:
    for i in range(inputs.CHAIN):
        a, b = (params[name][i % inputs.CHAIN_WEIGHTS] for name in "ab")
        x = jnp.tanh(x * a + b) * 0.5 + x
    return jnp.sum(x)


def call(x: Any, y: Any) -> Any:
    for _ in range(5):
        x = jnp.tanh(x) * y
    return x


def _dense(layer: Any, x: Any) -> Any:
    return x @ layer["w"] + layer["b"]


def _norm(layer: Any, x: Any) -> Any:
    x = jax.nn.standardize(x, epsilon=1e-5)
    return x * layer["gamma"] + layer["beta"]


def _attention(layer: Any, x: Any) -> Any:
    batch, length, width = x.shape
    parts = _dense(layer["qkv"], x).reshape(batch, length, 3, -1, inputs.GPT_HEAD)
    mixed = jax.nn.dot_product_attention(*(parts[:, :, i] for i in range(3)), is_causal=True)
    return _dense(layer["out"], mixed.reshape(batch, length, width))


def _conv(layer: Any, x: Any, stride: int = 1) -> Any:
    edge = layer["w"].shape[0] // 2
    padding, names = ((edge, edge), (edge, edge)), ("NHWC", "HWIO", "NHWC")
    made = jax.lax.conv_general_dilated(x, layer["w"], (stride, stride), padding, dimension_numbers=names)
    return made + layer["b"]


def _cross_entropy(logits: Any, labels: Any) -> Any:
    found = jnp.take_along_axis(jax.nn.log_softmax(logits), labels[..., None], axis=-1)
    return -jnp.mean(found)


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
    """XLA takes as many threads as the process may use cores."""
    params, data = jax.tree.map(jnp.asarray, tuple(inputs.make(workload)))
    if workload in inputs.TRAINING:
        return _training(LOSSES[workload], params, data)
    args = data if workload == "call" else (params, *data)
    function = jax.jit(call if workload == "call" else jax.value_and_grad(LOSSES[workload]))
    return Step(
        run=lambda: jax.block_until_ready(function(*args)),
        arrays=lambda made: [np.asarray(x) for x in inputs.leaves(made)],
    )


def _training(loss: Callable[..., Any], params: Any, data: Any) -> Step:
    train = jax.jit(partial(_adam, loss), donate_argnums=0)
    state = params, *(jax.tree.map(jnp.zeros_like, params) for _ in range(2)), jnp.zeros(())

    def run() -> Any:
        nonlocal state
        value, state = jax.block_until_ready(train(state, *data))
        return value

    return Step(run, lambda made: [np.asarray(x) for x in (made, *inputs.told(state[1]))])


def _adam(loss: Callable[..., Any], state: Any, *data: Any) -> Any:
    params, first, second, t = state
    value, found = jax.value_and_grad(loss)(params, *data)
    t = t + 1
    rate = inputs.RATE * jnp.sqrt(1 - inputs.DECAY_OF_SQUARES**t) / (1 - inputs.DECAY**t)
    first = jax.tree.map(lambda m, g: inputs.DECAY * m + (1 - inputs.DECAY) * g, first, found)
    square = 1 - inputs.DECAY_OF_SQUARES
    second = jax.tree.map(lambda v, g: inputs.DECAY_OF_SQUARES * v + square * g * g, second, found)
    params = jax.tree.map(lambda p, m, v: p - rate * m / (jnp.sqrt(v) + inputs.EPSILON), params, first, second)
    return value, (params, first, second, t)


def warm() -> None:
    x = jnp.ones((256, 256), jnp.float32)
    jax.block_until_ready(jax.jit(jax.value_and_grad(lambda x: jnp.sum(x @ x)))(x))
