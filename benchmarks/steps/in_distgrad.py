"""The workloads in distgrad, with its public API only. Tests use these models too: `step(workload)`."""

from __future__ import annotations

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
    logits = _norm(params["norm"], x) @ params["head"]
    return dg.mean(dg.nn.sparse_softmax_cross_entropy(logits, targets))


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


def _attention(layer: Any, x: Any) -> Any:
    batch, length, width = x.shape
    heads = inputs.GPT_HEADS
    parts = _dense(layer["qkv"], x).reshape(batch, length, 3, heads, width // heads)
    q, k, v = (dg.transpose(parts[:, :, i], (0, 2, 1, 3)) for i in range(3))
    scores = (q @ dg.swapaxes(k, -1, -2)) * (width // heads) ** -0.5
    causal = np.tri(length, dtype=bool)
    weights = dg.nn.softmax(dg.where(causal, scores, -np.inf))
    return _dense(layer["out"], dg.transpose(weights @ v, (0, 2, 1, 3)).reshape(batch, length, width))


def _conv(layer: Any, x: Any, stride: int = 1) -> Any:
    edge = layer["w"].shape[0] // 2
    return dg.nn.conv2d(x, layer["w"], stride, padding=((edge, edge), (edge, edge))) + layer["b"]


LOSSES: dict[str, Callable[..., Any]] = {
    "mlp": mlp,
    "gpt": gpt,
    "elementwise": elementwise,
    "conv": conv,
    "small": small,
}


def step(workload: str) -> Any:
    """The function of (params, *data) that is timed: the loss and its gradients, or what the tiny call returns."""
    if workload == "call":
        return dg.function(call)
    return dg.function(dg.value_and_grad(LOSSES[workload]), name=workload)


# -- for the server ----------------------------------------------------------------------------------------------


def load(workload: str, variant: str, threads: int) -> Step:
    """The number of threads comes from the environment."""
    if variant:
        dg.Session(backend=variant).__enter__()  # stays open as long as the process
    params, data = inputs.make(workload)
    args = data if workload == "call" else (params, *data)
    function = step(workload)
    plan = getattr(function, "plan", None)
    return Step(
        run=lambda: function(*args),
        arrays=lambda made: [np.asarray(x) for x in inputs.leaves(made)],
        prepare=lambda: (plan or function.body)(*args),
        predictions=lambda: None if plan is None else _predictions(plan(*args)),
    )


def _predictions(plan: Any) -> dict[str, float]:
    made = plan.predictions
    return {"seconds": float(made.seconds), "peak_bytes": float(made.peak_bytes)}


def warm() -> None:
    """What loads once per process: BLAS and its buffers, and the compiler."""
    x = np.ones((512, 512), np.float32)
    dg.function(dg.value_and_grad(lambda x: dg.sum(dg.tanh(x @ x))))(x)
