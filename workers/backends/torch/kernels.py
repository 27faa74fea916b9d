"""Torch's own kernels, for op types that it has fused or that the generic kernels compute more slowly.

Inputs have the dtypes that the builders promoted them to, so nothing here promotes. torch is imported inside functions,
so that this module can be imported without it. If torch lacks a dtype, the generic kernel runs.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from distgrad.workers.backends import extras
from distgrad.workers.kernels.index import in_range
from distgrad.workers.kernels.nn import GELU_CUBIC, GELU_LINEAR, check_labels
from distgrad.workers.kernels.table import KERNELS, kernel

#: Op type -> method of a tensor, and function of torch.
METHODS = {
    "Add": "add", "Sub": "sub", "Mul": "mul", "Div": "div", "Maximum": "maximum", "Minimum": "minimum", "Neg": "neg",
    "Square": "square", "Exp": "exp", "Exp2": "exp2", "Expm1": "expm1", "Log": "log", "Log1p": "log1p", "Sqrt": "sqrt",
    "Rsqrt": "rsqrt", "Sin": "sin", "Cos": "cos", "Tanh": "tanh", "Sigmoid": "sigmoid", "Erf": "erf", "Erfc": "erfc",
    "LogAddExp": "logaddexp", "Relu": "relu", "LogicalAnd": "logical_and", "LogicalOr": "logical_or",
    "LogicalXor": "logical_xor", "LogicalNot": "logical_not",
}  # fmt: skip


def _method(name: str) -> Any:
    def run(xp: Any, x: Any, *others: Any) -> Any:
        return getattr(x, name)(*others)

    return run


for _type, _name in METHODS.items():
    kernel(_type, backend="torch")(_method(_name))


@kernel("Select", backend="torch")
def select(xp: Any, condition: Any, x: Any, y: Any) -> Any:
    return x.where(condition, y)


@kernel("AddN", backend="torch", single=True)
def add_n(xp: Any, *xs: Any) -> Any:
    if len(xs) == 1:
        return xs[0]
    total = xs[0] + xs[1]
    for x in xs[2:]:
        total += x
    return total


# -- layout and reductions ---------------------------------------------------------------------------------------


@kernel("Reshape", backend="torch")
def reshape(xp: Any, x: Any, *, shape: Any) -> Any:
    return x.reshape(shape)


@kernel("Transpose", backend="torch")
def transpose(xp: Any, x: Any, *, axes: Any) -> Any:
    made = x.permute(axes)
    if made.ndim < 4:
        return made
    # copy matrices with unusual strides once, instead of in every product that reads them
    return made.mT.contiguous().mT if made.stride(-2) == 1 != made.stride(-1) else made.contiguous()


@kernel("BroadcastTo", backend="torch")
def broadcast_to(xp: Any, x: Any, *, shape: Any) -> Any:
    return x.expand(shape)


@kernel("Sum", backend="torch")
def sum(xp: Any, x: Any, *, axis: Any, keepdims: bool) -> Any:
    if not axis:  # torch would sum everything
        return x
    if x.dtype == xp.uint64:
        return extras(xp).by_numpy(np.sum, x, axis=axis, keepdims=keepdims, dtype=np.uint64)
    return x.sum(axis, keepdim=keepdims, dtype=x.dtype)


@kernel("Mean", backend="torch")
def mean(xp: Any, x: Any, *, axis: Any, keepdims: bool) -> Any:
    return x.mean(axis, keepdim=keepdims) if axis else x


@kernel("TopK", backend="torch")
def top_k(xp: Any, x: Any, *, k: int) -> Any:
    values, indices = x.sort(dim=-1, descending=True, stable=True)  # topk gives equal elements in any order
    return values[..., :k], indices[..., :k]


# -- products ----------------------------------------------------------------------------------------------------


@kernel("MatMul", backend="torch")
def matmul(xp: Any, a: Any, b: Any, *, transpose_a: bool, transpose_b: bool) -> Any:
    if a.dtype == xp.bool:
        return KERNELS["MatMul"](xp, a, b, transpose_a=transpose_a, transpose_b=transpose_b)
    return (a.mT if transpose_a else a).matmul(b.mT if transpose_b else b)


@kernel("Einsum", backend="torch")
def einsum(xp: Any, *operands: Any, equation: str) -> Any:
    output = equation.partition("->")[2]
    floating = extras(xp).kind(operands[0].dtype) in "fc"  # torch sums integers as int64
    if not floating or len(set(output)) < len(output) or not equation.isascii():
        return KERNELS["Einsum"](xp, *operands, equation=equation)
    import torch

    return torch.einsum(equation, *operands)


@kernel("MatrixTriangularSolve", backend="torch")
def triangular_solve(xp: Any, a: Any, b: Any, *, adjoint: bool, lower: bool, unit_diagonal: bool) -> Any:
    import torch

    if not unit_diagonal and bool((a.diagonal(dim1=-2, dim2=-1) == 0).any()):
        raise np.linalg.LinAlgError("singular matrix: a triangular one with a zero on its diagonal")
    a, upper = (a.mH, lower) if adjoint else (a, not lower)
    return torch.linalg.solve_triangular(a, b, upper=upper, unitriangular=unit_diagonal)


# -- rows of tables ----------------------------------------------------------------------------------------------


@kernel("Gather", backend="torch")
def gather(xp: Any, params: Any, indices: Any, *, axis: int) -> Any:
    places = in_range(xp, indices, params.shape[axis], axis).reshape(-1)
    made = params.index_select(axis, places)
    return made.reshape((*params.shape[:axis], *indices.shape, *params.shape[axis + 1 :]))


def _add_rows(xp: Any, out: Any, indices: Any, rows: Any) -> Any:
    places = in_range(xp, indices, out.shape[0]).reshape(-1)
    rows = rows.reshape((places.shape[0], *out.shape[1:]))
    if out.is_cuda:  # index_add_ is not deterministic there; this sorts first
        return out.index_put_((places,), rows, accumulate=True)
    return out.index_add_(0, places, rows)


@kernel("UnsortedSegmentSum", backend="torch", single=True)
def unsorted_segment_sum(xp: Any, values: Any, indices: Any, *, num_segments: int) -> Any:
    return _add_rows(xp, values.new_zeros((num_segments, *values.shape[indices.ndim :])), indices, values)


@kernel("ScatterAdd", backend="torch", single=True)
def scatter_add(xp: Any, x: Any, indices: Any, updates: Any) -> Any:
    return _add_rows(xp, x.clone(), indices, updates)


# -- activations -------------------------------------------------------------------------------------------------


@kernel("ReluGrad", backend="torch")
def relu_grad(xp: Any, g: Any, y: Any) -> Any:
    import torch

    return torch.ops.aten.threshold_backward(g, y, 0)


@kernel("Gelu", backend="torch")
def gelu(xp: Any, x: Any, *, approximate: bool) -> Any:
    import torch

    if not approximate or x.is_cuda or x.dtype.itemsize < 4:
        return torch.ops.aten.gelu(x, approximate="tanh" if approximate else "none")
    # (1 + tanh u) / 2 is sigmoid(2 u), which is better vectorised on CPUs: it takes half the time
    return x.square().mul_(GELU_CUBIC).add_(GELU_LINEAR).mul_(x).sigmoid_().mul_(x)


@kernel("GeluGrad", backend="torch")
def gelu_grad(xp: Any, g: Any, x: Any, *, approximate: bool) -> Any:
    import torch

    return torch.ops.aten.gelu_backward(g, x, approximate="tanh" if approximate else "none")


# -- softmax and its losses --------------------------------------------------------------------------------------


@kernel("Softmax", backend="torch")
def softmax(xp: Any, x: Any, *, axis: int) -> Any:
    return x.softmax(axis)


@kernel("SoftmaxGrad", backend="torch")
def softmax_grad(xp: Any, g: Any, y: Any, *, axis: int) -> Any:
    import torch

    return torch._softmax_backward_data(g, y, axis, y.dtype)


@kernel("LogSoftmax", backend="torch")
def log_softmax(xp: Any, x: Any, *, axis: int) -> Any:
    return x.log_softmax(axis)


@kernel("SoftmaxCrossEntropyWithLogits", backend="torch", single=True)
def softmax_cross_entropy(xp: Any, logits: Any, labels: Any, *, axis: int) -> Any:
    cost = labels * logits.log_softmax(axis)
    return cost.masked_fill_(labels == 0, 0).sum(axis).neg_()  # 0 * -inf is 0 here


@kernel("SparseSoftmaxCrossEntropyWithLogits", backend="torch", single=True)
def sparse_softmax_cross_entropy(xp: Any, logits: Any, labels: Any) -> Any:
    check_labels(xp, labels, logits.shape[-1])
    return logits.log_softmax(-1).gather(-1, labels.long()[..., None])[..., 0].neg()


@kernel("SparseSoftmaxCrossEntropyWithLogitsGrad", backend="torch", single=True)
def sparse_softmax_cross_entropy_grad(xp: Any, g: Any, logits: Any, labels: Any) -> Any:
    check_labels(xp, labels, logits.shape[-1])
    made, places = logits.softmax(-1), labels.long()[..., None]
    made.scatter_add_(-1, places, made.new_full((), -1).expand(places.shape))
    return made.mul_(g[..., None])


# -- normalisation -----------------------------------------------------------------------------------------------


def _trailing(x: Any, axis: Any) -> bool:
    """Whether these are the trailing axes of x, as torch requires, and x is not empty."""
    return sorted(axis) == list(range(x.ndim - len(axis), x.ndim)) and 0 not in x.shape


@kernel("LayerNorm", backend="torch")
def layer_norm(xp: Any, x: Any, *, axis: Any, eps: float) -> Any:
    if not _trailing(x, axis):
        return KERNELS["LayerNorm"](xp, x, axis=axis, eps=eps)
    return _statistics(x, len(axis), eps)[0]


@kernel("LayerNormGrad", backend="torch")
def layer_norm_grad(xp: Any, g: Any, x: Any, *, axis: Any, eps: float) -> Any:
    if not _trailing(x, axis):
        return KERNELS["LayerNormGrad"](xp, g, x, axis=axis, eps=eps)
    import torch

    _, centre, scale = _statistics(x, len(axis), eps)
    backward = torch.ops.aten.native_layer_norm_backward
    return backward(g, x, x.shape[-len(axis) :], centre, scale, None, None, (True, False, False))[0]


def _statistics(x: Any, axes: int, eps: float) -> Any:
    """x normalised along its trailing axes, the means, and the reciprocals of the standard deviations."""
    import torch

    return torch.native_layer_norm(x, x.shape[-axes:], None, None, eps)
