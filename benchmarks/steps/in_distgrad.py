"""The workloads in distgrad, with its public API only. Tests use these models too: `step(workload)`."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

import distgrad as dg

from . import inputs
from .timing import Step


def mlp(params: Any, x: Any, labels: Any) -> Any:
    *hidden, last = params["layers"]
    for layer in hidden:
        x = dg.nn.relu(_dense(layer, x))
    return dg.mean(dg.nn.sparse_softmax_cross_entropy(_dense(last, x), labels))


def gpt(params: Any, tokens: Any, targets: Any) -> Any:
    x = dg.nn.embedding(params["words"], tokens) + params["positions"]
    for layer in params["layers"]:
        x = x + _attention(layer, _norm(layer["norm1"], x))
        x = x + _dense(layer["down"], dg.nn.gelu(_dense(layer["up"], _norm(layer["norm2"], x)), approximate=True))
    return dg.mean(dg.nn.sparse_softmax_cross_entropy(_norm(params["norm"], x) @ _head(params), targets))


def gpt_numpy(params: Any, tokens: Any, targets: Any) -> Any:
    """`gpt` as one writes it with NumPy alone."""
    x = params["words"][tokens] + params["positions"]
    for layer in params["layers"]:
        x = x + _attention(layer, _own_norm(layer["norm1"], x), _own_softmax)
        x = x + _dense(layer["down"], _own_gelu(_dense(layer["up"], _own_norm(layer["norm2"], x))))
    return _own_cross_entropy(_own_norm(params["norm"], x) @ _head(params), targets)


def elementwise(params: Any) -> Any:
    p, x, y = params["p"], params["x"], params["y"]
    z = dg.tanh(p * x + y)
    return dg.sum((z * dg.exp(-z * z) + dg.log1p(dg.exp(-dg.abs(z)))) * y)


def conv(params: Any, images: Any, labels: Any) -> Any:
    x = dg.nn.relu(_conv(params["stem"], images))
    for stage, layer in zip(inputs.STAGES, params["stages"], strict=True):
        y = _conv(layer["second"], dg.nn.relu(_conv(layer["first"], x, stage.stride)))
        x = dg.nn.relu(y + (_conv(layer["project"], x, stage.stride) if stage.projects else x))
    logits = _dense(params["head"], dg.mean(x, axis=(1, 2)))
    return dg.mean(dg.nn.sparse_softmax_cross_entropy(logits, labels))


def small(params: Any, x: Any) -> Any:
    for i in range(inputs.CHAIN):
        a, b = (params[name][i % inputs.CHAIN_WEIGHTS] for name in "ab")
        x = dg.tanh(x * a + b) * 0.5 + x
    return dg.sum(x)


def call(x: Any, y: Any) -> Any:
    for _ in range(5):
        x = dg.tanh(x) * y
    return x


def _dense(layer: Any, x: Any) -> Any:
    return x @ layer["w"] + layer["b"]


def _norm(layer: Any, x: Any) -> Any:
    return dg.nn.layer_norm(x, layer["gamma"], layer["beta"])


def _own_norm(layer: Any, x: Any) -> Any:
    x = x - np.mean(x, axis=-1, keepdims=True)
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + 1e-5) * layer["gamma"] + layer["beta"]


def _own_gelu(x: Any) -> Any:
    return 0.5 * x * (1 + np.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x * x * x)))


def _own_softmax(x: Any) -> Any:
    e = np.exp(x - np.max(x, axis=-1, keepdims=True))
    return e / np.sum(e, axis=-1, keepdims=True)


def _own_cross_entropy(logits: Any, labels: Any) -> Any:
    shifted = logits - np.max(logits, axis=-1, keepdims=True)
    found = np.take_along_axis(shifted, labels[..., None], axis=-1)[..., 0]
    return np.mean(np.log(np.sum(np.exp(shifted), axis=-1)) - found)


def _head(params: Any) -> Any:
    return params["head"] if "head" in params else params["words"].T


def _attention(layer: Any, x: Any, softmax: Callable[[Any], Any] = dg.nn.softmax) -> Any:
    batch, length, width = x.shape
    heads = width // inputs.GPT_HEAD
    parts = _dense(layer["qkv"], x).reshape(batch, length, 3, heads, width // heads)
    q, k, v = (dg.transpose(parts[:, :, i], (0, 2, 1, 3)) for i in range(3))
    scores = (q @ dg.swapaxes(k, -1, -2)) * (width // heads) ** -0.5
    causal = np.tri(length, dtype=bool)
    weights = softmax(dg.where(causal, scores, -np.inf))
    return _dense(layer["out"], dg.transpose(weights @ v, (0, 2, 1, 3)).reshape(batch, length, width))


def _conv(layer: Any, x: Any, stride: int = 1) -> Any:
    edge = layer["w"].shape[0] // 2
    return dg.nn.conv2d(x, layer["w"], stride, padding=((edge, edge), (edge, edge))) + layer["b"]


LOSSES: dict[str, Callable[..., Any]] = {
    "mlp": mlp,
    "gpt": gpt,
    "gpt-numpy": gpt_numpy,
    "elementwise": elementwise,
    "conv": conv,
    "small": small,
}


def step(workload: str) -> Any:
    """The function of (params, *data) that is timed: the loss and its gradients, or what the tiny call returns."""
    if workload == "call":
        return dg.function(call)
    return dg.function(dg.value_and_grad(LOSSES[workload]), name=workload)


def training(loss: Callable[..., Any], params: Any) -> tuple[Any, Any]:
    """A training step of the data, with Adam as one writes it oneself, and its first moments."""
    params = inputs.map_leaves(dg.Variable, params)
    first, second = (inputs.map_leaves(lambda p: dg.Variable(np.zeros(p.shape, p.dtype)), params) for _ in range(2))
    count = dg.Variable(np.float32(0))
    variables = list(zip(*map(inputs.leaves, (params, first, second)), strict=True))

    @dg.function
    def train(*data: Any) -> Any:
        value = loss(params, *data)
        found = dg.gradients(value, [p for p, _, _ in variables])
        t = count.assign_add(1)
        rate = inputs.RATE * np.sqrt(1 - inputs.DECAY_OF_SQUARES**t) / (1 - inputs.DECAY**t)
        for (p, first, second), g in zip(variables, map(dg.identity, found), strict=True):
            m = first.assign(inputs.DECAY * first + (1 - inputs.DECAY) * g)
            v = second.assign(inputs.DECAY_OF_SQUARES * second + (1 - inputs.DECAY_OF_SQUARES) * g * g)
            p.assign_sub(rate * m / (np.sqrt(v) + inputs.EPSILON))
        return value

    return train, first


# -- for the server ----------------------------------------------------------------------------------------------

VARIANTS: dict[str, Callable[[], Any]] = {
    "torch": lambda: dg.Session(backend="torch"),
    "watched": lambda: dg.Session(trace=True, timeout=600),
}


def load(workload: str, variant: str, threads: int) -> Step:
    """The number of threads comes from the environment."""
    if variant:
        VARIANTS[variant]().__enter__()  # stays open as long as the process
    params, data = inputs.make(workload)
    if workload in inputs.TRAINING:
        function, moments = training(gpt, params)
        return _step(function, data, lambda made: [made, *inputs.told(moments)])
    return _step(step(workload), data if workload == "call" else (params, *data), inputs.leaves)


def _step(function: Any, args: Any, told: Callable[[Any], Any]) -> Step:
    plan = getattr(function, "plan", None)
    return Step(
        run=lambda: function(*args),
        arrays=lambda made: [np.asarray(x) for x in told(made)],
        prepare=lambda: (plan or function.body)(*args),
        predictions=lambda: None if plan is None else _predictions(plan(*args)),
    )


def _predictions(plan: Any) -> dict[str, float]:
    made = plan.predictions
    return {"seconds": float(made.seconds), "peak_bytes": float(made.peak_bytes)}


def warm() -> None:
    """What loads once per process: BLAS and its buffers, and the compiler. No other process has this factor, so that
    there is something to compile."""
    x, factor = np.ones((512, 512), np.float32), 1 + time.time_ns() % 10**9 * 1e-9
    dg.function(dg.value_and_grad(lambda x: dg.sum(dg.tanh(x @ x) * factor + x)))(x)
