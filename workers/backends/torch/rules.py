"""Peephole rules: groups of steps that torch has one kernel for.

A rule replaces a group of `TorchSteps` only if nothing outside the group reads its intermediate values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

from distgrad.registry import OPS
from distgrad.scheduler.program import Step
from distgrad.types import Shape, Spec
from distgrad.workers.backends.backend import Backend
from distgrad.workers.backends.eager import EagerStep, eager_step
from distgrad.workers.backends.torch.attention import attention, view
from distgrad.workers.backends.torch.extras import on_cpu
from distgrad.workers.backends.torch.fused import FUSED_KERNELS, OVER
from distgrad.workers.backends.torch.steps import Array, TorchStep, TorchSteps, write_over
from distgrad.workers.kernels import lookup

_FLOATS = ("float32", "float64")


def compiled(
    steps: Sequence[Step], types: Sequence[Spec], constants: Mapping[int, Array], kept: set[int], backend: Backend
) -> list[EagerStep]:
    """The calls that the eager engine makes for the steps of a task."""
    return [_call(step, types, backend) for step in rewrite(steps, types, constants, kept, on_cpu())]


def _call(step: TorchStep, types: Sequence[Spec], backend: Backend) -> EagerStep:
    if step.over is not None:
        inputs = (step.inputs[step.over], *step.inputs)
        return EagerStep(partial(OVER[step.type], **step.attrs), inputs, step.outputs, step.step)
    if step.type in FUSED_KERNELS:
        kernel = FUSED_KERNELS[step.type]
    elif OPS[step.type].kernel is None:
        kernel = lookup(backend.name, step.type)
    else:
        return eager_step(step.step, types, backend)
    return EagerStep(partial(kernel, backend.xp, **step.attrs), step.inputs, step.outputs, step.step)


def rewrite(
    steps: Sequence[Step], types: Sequence[Spec], constants: Mapping[int, Array], kept: set[int], cpu: bool
) -> list[TorchStep]:
    """The steps as torch runs them. With `cpu`, torch's kernels for CPUs alone are used as well."""
    works = TorchSteps(steps, types, constants, kept)
    if cpu:
        for i in works.of("Softmax"):
            attention(works, i)
        for i in works.of("Transpose"):
            view(works, i)
        for i in works.of("Gelu"):
            gelu(works, i)
    for i in works.of("LayerNorm"):
        layer_norm(works, i)
    for i in works.of("Conv2D"):
        biased(works, i, "ConvBias")
    for i in works.of("MatMul"):
        dense(works, i)
    for i in works.of("SparseSoftmaxCrossEntropyWithLogits"):
        cross_entropy(works, i)
    return write_over([works.at[i] for i in sorted(works.at)], types, {*kept, *constants})


# -- normalisation -----------------------------------------------------------------------------------------------


def layer_norm(works: TorchSteps, i: int) -> None:
    """normalise(x) * gamma + beta and its gradients. If others read intermediate values, only statistics are shared."""
    work, (y,) = works.at[i], works.at[i].outputs
    shape, axes = works.types[y].shape, len(work.attrs["axis"])
    if sorted(work.attrs["axis"]) != list(range(len(shape) - axes, len(shape))) or 0 in shape:
        return
    if works.types[y].dtype.name not in _FLOATS:
        return
    grads = [j for j in works.users(work.inputs[0], "LayerNormGrad") if _is_norm_grad(works.at[j], work)]
    if not _affine(works, i, grads) and grads:
        _share(works, i, grads)


def _is_norm_grad(grad: TorchStep, norm: TorchStep) -> bool:
    return grad.inputs[1:] == norm.inputs and grad.attrs == norm.attrs


def _share(works: TorchSteps, i: int, grads: Sequence[int]) -> None:
    norm, statistics = works.at[i], (works.new_value(), works.new_value())
    axes = len(norm.attrs["axis"])
    works.replace((), i, norm._replace(type="Norm", outputs=(*norm.outputs, *statistics)))
    for j in grads:
        if j > i:
            attrs = {"axes": axes, "wanted": (True, False, False)}
            inputs = (*works.at[j].inputs, *statistics)
            works.replace((), j, works.at[j]._replace(type="NormGrad", inputs=inputs, attrs=attrs))


def _affine(works: TorchSteps, i: int, grads: Sequence[int]) -> bool:
    norm, (y,) = works.at[i], works.at[i].outputs
    axes = len(norm.attrs["axis"])
    inner = works.types[y].shape[-axes:]
    scaled = [j for j in works.users(y, "Mul") if _along(works, works.at[j], y, inner) is not None]
    if len(scaled) != 1:
        return False
    gamma, z = _along(works, works.at[scaled[0]], y, inner), works.at[scaled[0]].outputs[0]
    shift = works.user(z)
    beta = _along(works, works.at[shift], z, inner) if shift is not None and works.at[shift].type == "Add" else None
    if shift is None or gamma is None or beta is None or len(grads) > 1:
        return False
    group, (out,) = {i, scaled[0], shift}, works.at[shift].outputs
    found = _affine_grad(works, grads[0], y, gamma, inner) if grads else None
    if (grads and found is None) or (found and min(found.steps) < shift):
        return False
    inputs, (g, outputs, steps) = (*norm.inputs, gamma, beta), (found.g, found.outputs, found.steps) if found else _NONE
    if not works.closed({*group, *steps}, {*inputs, g}, {out, *outputs}):
        return False
    statistics = (works.new_value(), works.new_value())
    if found:
        attrs, read = {"axes": axes, "wanted": found.wanted}, (found.g, *norm.inputs, *statistics, gamma)
        work = TorchStep("NormGrad", read, found.outputs, attrs, works.at[grads[0]].step)
        works.replace(found.steps, min(found.steps), work)
    works.replace(group, shift, TorchStep("Norm", inputs, (out, *statistics), norm.attrs, norm.step))
    return True


#: The g, outputs and steps if there are no gradients.
_NONE: tuple[int, tuple[int, ...], tuple[int, ...]] = (-1, (), ())


def _along(works: TorchSteps, work: TorchStep, x: int, shape: Shape) -> int | None:
    """The other input of x * p or x + p, if it has this shape, with or without leading axes of size 1."""
    if len(work.inputs) != 2 or x not in work.inputs or works.types[x] != works.types[work.outputs[0]]:
        return None
    other = work.inputs[work.inputs[0] == x]
    ones = len(works.types[other].shape) - len(shape)
    fits = ones >= 0 and works.types[other].shape == (1,) * ones + tuple(shape)
    return other if fits and works.types[other].dtype == works.types[x].dtype else None


class _NormBack(NamedTuple):
    """The gradients of x and, if `wanted`, of gamma and beta."""

    g: int
    outputs: tuple[int, ...]
    wanted: tuple[bool, bool, bool]
    steps: tuple[int, ...]


def _affine_grad(works: TorchSteps, grad: int, y: int, gamma: int, inner: Shape) -> _NormBack | None:
    scaled = works.maker(works.at[grad].inputs[0], "Mul")
    if scaled is None or gamma not in works.at[scaled].inputs:
        return None
    g = works.at[scaled].inputs[works.at[scaled].inputs[0] == gamma]
    if works.types[g] != works.types[y]:
        return None
    outer = tuple(range(len(works.types[y].shape) - len(inner)))
    products = [i for i in works.users(g, "Mul") if {*works.at[i].inputs} == {g, y}]
    of_gamma = [(*products, i) for p in products[:1] for i in _sums(works, works.at[p].outputs[0], outer)]
    of_beta = [(i,) for i in _sums(works, g, outer)]
    wanted = (True, bool(of_gamma), bool(of_beta))
    groups = [(grad,), *of_gamma[:1], *of_beta[:1]]
    outputs = tuple(works.at[group[-1]].outputs[0] for group in groups)
    return _NormBack(g, outputs, wanted, (scaled, *(i for group in groups for i in group)))


def _sums(works: TorchSteps, v: int, axes: tuple[int, ...]) -> list[int]:
    attrs = {"axis": axes, "keepdims": False}
    return [i for i in works.users(v, "Sum") if axes and works.at[i].attrs == attrs]


# -- pairs -------------------------------------------------------------------------------------------------------


def dense(works: TorchSteps, i: int) -> None:
    """x @ w + b, with one matrix w."""
    x, w = (works.types[v].shape for v in works.at[i].inputs)
    if len(w) == 2 <= len(x) and not (len(x) > 2 and works.at[i].attrs["transpose_a"]):
        biased(works, i, "Dense")


def biased(works: TorchSteps, i: int, kind: str) -> None:
    """conv2d(x, w) + b, or x @ w + b."""
    (y,) = works.at[i].outputs
    add = works.user(y)
    if add is None or works.at[add].type != "Add" or works.types[y].dtype.name not in _FLOATS:
        return
    bias = _along(works, works.at[add], y, works.types[y].shape[-1:])
    work, outputs = works.at[i], works.at[add].outputs
    if bias is not None and works.closed({i, add}, (*work.inputs, bias), outputs):
        works.replace((i,), add, TorchStep(kind, (*work.inputs, bias), outputs, work.attrs, work.step))


def gelu(works: TorchSteps, i: int) -> None:
    """With the tanh formula: computes the derivative together with the value, which share most of the work."""
    value, (x,) = works.at[i], works.at[i].inputs
    grads = [j for j in works.users(x, "GeluGrad") if works.at[j].inputs[1] == x and works.at[j].attrs == value.attrs]
    if not grads or min(grads) < i or not value.attrs["approximate"] or works.types[x].dtype.name not in _FLOATS:
        return
    slope = works.new_value()
    works.replace((), i, value._replace(type="GeluSlope", outputs=(*value.outputs, slope)))
    for j in grads:
        works.replace((), j, works.at[j]._replace(type="Mul", inputs=(works.at[j].inputs[0], slope), attrs={}))


def cross_entropy(works: TorchSteps, i: int) -> None:
    """The loss and its gradient share the log-softmax."""
    loss, kind = works.at[i], "SparseSoftmaxCrossEntropyWithLogitsGrad"
    grads = [j for j in works.users(loss.inputs[0], kind) if works.at[j].inputs[1:] == loss.inputs]
    if len(grads) != 1 or grads[0] < i or works.types[loss.inputs[0]].dtype.name not in _FLOATS:
        return
    logs, grad = works.new_value(), works.at[grads[0]]
    works.replace((), i, loss._replace(type="CrossEntropy", outputs=(*loss.outputs, logs)))
    inputs = (grad.inputs[0], logs, grad.inputs[2])
    works.replace((), grads[0], grad._replace(type="CrossEntropyGrad", inputs=inputs))
