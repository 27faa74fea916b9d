"""Torch's kernels for the groups of steps that rules.py finds, and kernels that overwrite an input.

torch is imported inside functions, so that this module can be imported without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from distgrad.workers.backends.torch.conv import conv_bias
from distgrad.workers.backends.torch.kernels import METHODS
from distgrad.workers.kernels.nn import GELU_CUBIC, GELU_LINEAR, check_labels
from distgrad.workers.kernels.table import Kernel

# -- attention ---------------------------------------------------------------------------------------------------


def _rows(x: Any) -> Any:
    """With contiguous rows, as the kernels read them."""
    return x if x.stride(-1) == 1 else x.contiguous()


def view(xp: Any, x: Any, *, axes: Any) -> Any:
    return x.permute(axes)


def attention(
    xp: Any, q: Any, k: Any, v: Any, *biases: Any, transposed: bool, causal: bool, scale: float, masks: Sequence[str]
) -> Any:
    """The mixed rows, and the log of the softmax's sums. Rows that are masked out completely are NaN, as softmax's are;
    the kernel would give zeros."""
    import torch

    mask = _mask(q, biases, masks)
    q, k, v, shape = _heads(q), _heads(k.mT if transposed else k), _heads(v), q.shape
    out, sums = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        q, k, v, 0.0, causal, attn_mask=mask, scale=scale
    )
    if mask is not None and (empty := mask.amax(-1) == -torch.inf).any():
        out.masked_fill_(empty[..., None], torch.nan)
        sums.masked_fill_(empty, torch.nan)
    return out.reshape(shape), sums


def attention_grad(
    xp: Any, g: Any, q: Any, k: Any, v: Any, out: Any, sums: Any, *biases: Any, transposed: bool, turned: bool,
    causal: bool, scale: float, masks: Sequence[str],
) -> Any:  # fmt: skip
    import torch

    mask, keys = _mask(q, biases, masks), k.mT if transposed else k
    heads = [_heads(x) for x in (g, q, keys, v, out)]
    backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
    made = backward(*heads, sums, 0.0, causal, attn_mask=mask, scale=scale)
    dq, dk, dv = (d.reshape(x.shape) for d, x in zip(made, (q, keys, v), strict=True))
    return dq, dk.mT if turned else dk, dv


def _heads(x: Any) -> Any:
    """With four axes, and rows that are contiguous."""
    x = _rows(x)
    return x.reshape((1,) * (4 - x.ndim) + tuple(x.shape)) if x.ndim < 4 else x


def _mask(q: Any, biases: Sequence[Any], masks: Sequence[str]) -> Any:
    """All masks as one array that is added to the scores: see attention.py for their kinds."""
    import torch

    total = None
    for kind, x in zip(masks, biases, strict=True):
        if kind != "add":
            zero, out = q.new_zeros(()), q.new_full((), -torch.inf)
            x = torch.where(x, zero, out) if kind == "keep" else torch.where(x, out, zero)
        total = x if total is None else total + x
    return total if total is None else total.reshape((1,) * (4 - total.ndim) + tuple(total.shape)).contiguous()


# -- products, normalisation, losses, convolution ----------------------------------------------------------------


def dense(xp: Any, x: Any, w: Any, b: Any, *, transpose_a: bool, transpose_b: bool) -> Any:
    """addmm adds the bias without another sweep over the result."""
    import torch

    x, w = x.mT if transpose_a else x, w.mT if transpose_b else w
    return torch.addmm(b.reshape(-1), x.flatten(0, -2), w).reshape(*x.shape[:-1], w.shape[-1])


def gelu_slope(xp: Any, x: Any, *, approximate: bool) -> Any:
    """x s and its derivative s + (1 - s) x s (l + 3 c x²), with s = sigmoid(x (l + c x²)). Far out, 1 - s or s is 0."""
    square = x.square()
    gate = square.mul(GELU_CUBIC).add_(GELU_LINEAR).mul_(x).sigmoid_()
    y = x * gate
    rest = (1 - gate).mul_(y)
    return y, gate.addcmul_(rest, square.mul_(3 * GELU_CUBIC).add_(GELU_LINEAR))


def norm(xp: Any, x: Any, *parameters: Any, axis: Any, eps: float) -> Any:
    """The result, the means, and one over the standard deviations."""
    import torch

    shape = x.shape[-len(axis) :]
    weight, bias = [p.reshape(shape) for p in parameters] or (None, None)
    return torch.native_layer_norm(x, shape, weight, bias, eps)


def norm_grad(
    xp: Any, g: Any, x: Any, centre: Any, scale: Any, gamma: Any = None, *, axes: int, wanted: tuple[bool, bool, bool]
) -> Any:
    import torch

    shape = x.shape[-axes:]
    weight = None if gamma is None else gamma.reshape(shape)
    made = torch.ops.aten.native_layer_norm_backward(g, x, shape, centre, scale, weight, weight, wanted)
    return [each for each, wants in zip(made, wanted, strict=True) if wants]


def cross_entropy(xp: Any, logits: Any, labels: Any) -> Any:
    """The loss, and the log-softmax. On CPUs torch checks the labels itself."""
    import torch

    logs, classes = logits.log_softmax(-1), logits.shape[-1]
    if not logits.is_cpu:
        check_labels(xp, labels, classes)
    rows, places = logs.reshape(-1, classes), labels.reshape(-1).long()
    try:
        losses, _ = torch.ops.aten.nll_loss_forward(rows, places, None, 0, _NO_LABEL)
    except IndexError:
        check_labels(xp, labels, classes)
        raise
    return losses.reshape(labels.shape), logs


#: The label of rows that torch ignores: one that never occurs.
_NO_LABEL = -(1 << 62)


def cross_entropy_grad(xp: Any, g: Any, logs: Any, labels: Any) -> Any:
    """Overwrites the log-softmax, which nothing else reads."""
    made, places = logs.exp_(), labels.long()[..., None]
    made.scatter_add_(-1, places, made.new_full((), -1).expand(places.shape))
    return made.mul_(g[..., None])


FUSED_KERNELS: dict[str, Kernel] = {
    "Attention": attention, "AttentionGrad": attention_grad, "ConvBias": conv_bias, "CrossEntropy": cross_entropy,
    "CrossEntropyGrad": cross_entropy_grad, "Dense": dense, "GeluSlope": gelu_slope, "Norm": norm,
    "NormGrad": norm_grad, "View": view,
}  # fmt: skip


# -- overwriting an input ----------------------------------------------------------------------------------------


def _into(name: str) -> Kernel:
    def run(out: Any, *inputs: Any) -> Any:
        import torch

        return getattr(torch, name)(*inputs, out=out)

    return run


def _select(out: Any, condition: Any, x: Any, y: Any) -> Any:
    import torch

    return torch.where(condition, x, y, out=out)


def _relu(out: Any, x: Any) -> Any:
    return x.relu_()


def _relu_grad(out: Any, g: Any, y: Any) -> Any:
    import torch

    return torch.ops.aten.threshold_backward.grad_input(g, y, 0, grad_input=out)


def _gelu_grad(out: Any, g: Any, x: Any, *, approximate: bool) -> Any:
    import torch

    kind = "tanh" if approximate else "none"
    return torch.ops.aten.gelu_backward.grad_input(g, x, approximate=kind, grad_input=out)


OVER: dict[str, Kernel] = {
    **{op_type: _into(name) for op_type, name in METHODS.items()},
    "AddN": _into("add"), "Relu": _relu, "ReluGrad": _relu_grad, "GeluGrad": _gelu_grad, "Select": _select,
}  # fmt: skip
