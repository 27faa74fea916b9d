"""The workloads in PyTorch: eager with autograd.grad, variant "compile" with torch.compile of the loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from . import inputs
from .timing import Step


def mlp(params: Any, x: Any, labels: Any) -> Any:
    *hidden, last = params["layers"]
    for layer in hidden:
        x = F.relu(_dense(layer, x))
    return F.cross_entropy(_dense(last, x), labels)


def gpt(params: Any, tokens: Any, targets: Any) -> Any:
    x = F.embedding(tokens, params["words"]) + params["positions"]
    for layer in params["layers"]:
        x = x + _attention(layer, _norm(layer["norm1"], x))
        x = x + _dense(layer["down"], F.gelu(_dense(layer["up"], _norm(layer["norm2"], x)), approximate="tanh"))
    head = params["head"] if "head" in params else params["words"].T
    logits = _norm(params["norm"], x) @ head
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def elementwise(params: Any) -> Any:
    p, x, y = params["p"], params["x"], params["y"]
    z = torch.tanh(p * x + y)
    return torch.sum((z * torch.exp(-z * z) + torch.log1p(torch.exp(-torch.abs(z)))) * y)


def conv(params: Any, images: Any, labels: Any) -> Any:
    x = F.relu(_conv(params["stem"], images))
    for stage, layer in zip(inputs.STAGES, params["stages"], strict=True):
        y = _conv(layer["second"], F.relu(_conv(layer["first"], x, stage.stride)))
        x = F.relu(y + (_conv(layer["project"], x, stage.stride) if stage.projects else x))
    return F.cross_entropy(_dense(params["head"], x.mean((2, 3))), labels)


def small(params: Any, x: Any) -> Any:
    for i in range(inputs.CHAIN):
        a, b = (params[name][i % inputs.CHAIN_WEIGHTS] for name in "ab")
        x = torch.tanh(x * a + b) * 0.5 + x
    return torch.sum(x)


def call(x: Any, y: Any) -> Any:
    for _ in range(5):
        x = torch.tanh(x) * y
    return x


def _dense(layer: Any, x: Any) -> Any:
    """Weights are [in, out] here as in the other frameworks; a transposed view costs nothing."""
    return F.linear(x, layer["w"].T, layer["b"])


def _norm(layer: Any, x: Any) -> Any:
    return F.layer_norm(x, x.shape[-1:], layer["gamma"], layer["beta"])


def _attention(layer: Any, x: Any) -> Any:
    batch, length, width = x.shape
    parts = _dense(layer["qkv"], x).view(batch, length, 3, -1, inputs.GPT_HEAD)
    q, k, v = parts.permute(2, 0, 3, 1, 4)
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return _dense(layer["out"], mixed.transpose(1, 2).reshape(batch, length, width))


def _conv(layer: Any, x: Any, stride: int = 1) -> Any:
    return F.conv2d(x, layer["w"], layer["b"], stride, padding=layer["w"].shape[-1] // 2)


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
    params, data = inputs.map_leaves(tensor, tuple(inputs.make(workload)))
    function = call if workload == "call" else LOSSES[workload]
    if variant == "compile":
        function = torch.compile(function)
    if workload == "call":
        return Step(lambda: function(*data), lambda made: [made.numpy()])
    xs = [x.requires_grad_() for x in inputs.leaves(params)]
    if workload in inputs.TRAINING:
        return _training(function, params, xs, data)

    def run() -> Any:
        value = function(params, *data)
        return value.detach(), torch.autograd.grad(value, xs)

    return Step(run, lambda made: [_array(x) for x in inputs.leaves(made)])


def _training(function: Any, params: Any, xs: list[Any], data: Any) -> Step:
    decays = inputs.DECAY, inputs.DECAY_OF_SQUARES
    optimizer = torch.optim.Adam(xs, inputs.RATE, decays, inputs.EPSILON)

    def run() -> Any:
        optimizer.zero_grad()
        value = function(params, *data)
        value.backward()
        optimizer.step()
        return value.detach()

    def arrays(made: Any) -> Any:
        moments = inputs.map_leaves(lambda x: optimizer.state[x]["exp_avg"], params)
        return [x.numpy() for x in (made, *inputs.told(moments))]

    return Step(run, arrays)


def tensor(x: np.ndarray[Any, Any]) -> Any:
    """Images and kernels in torch's order of axes, and in memory channels_last, which is a tenth faster than not."""
    made = torch.tensor(x)
    if x.dtype == np.int32:
        return made.long()
    if x.ndim != 4:
        return made
    order = (0, 3, 1, 2) if x.shape == inputs.IMAGES else (3, 2, 0, 1)
    return made.permute(order).contiguous(memory_format=torch.channels_last)


def _array(x: Any) -> np.ndarray[Any, np.dtype[Any]]:
    """A gradient in the order of axes of its parameter; of four axes are the kernels alone."""
    made: np.ndarray[Any, np.dtype[Any]] = x.numpy()
    return made.transpose(2, 3, 1, 0) if made.ndim == 4 else made


def set_threads(threads: int) -> None:
    torch.set_num_threads(threads)


def warm() -> None:
    x = torch.ones((256, 256), requires_grad=True)
    torch.autograd.grad((x @ x).sum(), x)
