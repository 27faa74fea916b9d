"""The peephole rule for attention: softmax(masked(scale * q @ k.T)) @ v and its gradients become torch's kernels.

The scores may pass through any number of masks, constant or computed: `scores + bias`, `where(keep, scores, -inf)`,
`where(drop, -inf, scores)`. A row that is masked out completely gives NaN, as softmax does; so do its gradients.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from distgrad.types import Spec
from distgrad.workers.backends.torch.steps import Array, TorchStep, TorchSteps

_FLOATS = ("float32", "float64")
#: A constant mask may also fill with a finite number up to this one: like -inf, it gives weights of 0.
_MASKED_OUT = -1e9
#: Masks on top of each other that are found.
_MASKS = 4
#: The number of axes that torch's kernel takes.
_AXES = 4


class _Mask(NamedTuple):
    """How scores are masked: 'add' the value, 'keep' where it is true, or 'drop' where it is true. `fill` is the number
    of masked scores."""

    kind: str
    value: int
    fill: float = -np.inf


class _Scores(NamedTuple):
    """The input of softmax. `masks` are in order, the last one first; `steps` are the positions of the steps."""

    q: int
    k: int
    transposed: bool  # k is stored with one column per key
    scale: float
    masks: tuple[_Mask, ...]
    steps: tuple[int, ...]


class _Back(NamedTuple):
    """The gradients of q, k and v, from g."""

    g: int
    outputs: tuple[int, int, int]
    turned: bool  # the gradient of k has one column per key
    first: int
    steps: tuple[int, ...]


def attention(steps: TorchSteps, i: int) -> None:
    """Replace the attention around the softmax at position i, with its gradients if there are any."""
    (weights,), softmax = steps.at[i].outputs, steps.at[i]
    scores, product = _scores(steps, softmax.inputs[0]), _mixed(steps, weights)
    rank = len(steps.types[weights].shape)
    if scores is None or product is None or softmax.attrs["axis"] % rank != rank - 1:
        return
    v, (out,) = steps.at[product].inputs[1], steps.at[product].outputs
    if not _fits(steps, scores, v) or not _masks_fit(steps, scores, steps.types[weights]):
        return
    causal = _is_causal(steps, scores.masks, steps.types[weights])
    masks = () if causal else scores.masks
    forward, back = {*scores.steps, i, product}, _attention_grad(steps, scores, weights, v)
    places, grads = ({back.first, *back.steps}, back.outputs) if back else (set(), ())
    inputs, read = (scores.q, scores.k, v), tuple([mask.value for mask in masks])
    seen = (*read, back.g) if back else read
    if not steps.closed(forward | places, (*inputs, *seen), (out, *grads)) or (back and back.first < product):
        return
    attrs = {
        "transposed": scores.transposed, "causal": causal, "scale": scores.scale,
        "masks": tuple([mask.kind for mask in masks]),
    }  # fmt: skip
    sums = steps.new_value()
    if back:
        read_back = (back.g, *inputs, out, sums, *read)
        more, step = attrs | {"turned": back.turned}, steps.at[back.first].step
        grad = TorchStep("AttentionGrad", read_back, back.outputs, more, step)
        steps.replace(places, back.first, grad)
    steps.replace(forward, product, TorchStep("Attention", (*inputs, *read), (out, sums), attrs, softmax.step))


def _mixed(steps: TorchSteps, weights: int) -> int | None:
    """The position of weights @ v."""
    plain = {"transpose_a": False, "transpose_b": False}
    found = [i for i in steps.users(weights, "MatMul") if steps.at[i].inputs[0] == weights]
    found = [i for i in found if steps.at[i].attrs == plain and steps.at[i].inputs[1] != weights]
    return found[0] if len(found) == 1 else None


# -- scores ------------------------------------------------------------------------------------------------------


def _scores(steps: TorchSteps, v: int) -> _Scores | None:
    places: list[int] = []
    masks: list[_Mask] = []
    while len(masks) < _MASKS and (found := _masked(steps, v)) is not None:
        i, v, mask = found
        places.append(i)
        masks.append(mask)
    scale = 1.0
    if (scaled := _scaled_at(steps, v)) is not None:
        i, v, scale = scaled
        places.append(i)
    product = steps.maker(v, "MatMul")
    if product is None or steps.at[product].attrs["transpose_a"]:
        return None
    q, k = steps.at[product].inputs
    return _Scores(q, k, not steps.at[product].attrs["transpose_b"], scale, tuple(masks), (*places, product))


def _masked(steps: TorchSteps, v: int) -> tuple[int, int, _Mask] | None:
    """The position of the mask that makes v, and the value that it masks."""
    if (i := steps.maker(v, "Add")) is not None:
        for x, bias in (steps.at[i].inputs, steps.at[i].inputs[::-1]):
            if steps.types[x] == steps.types[v] and _are_scores(steps, x):
                return i, x, _Mask("add", bias)
    elif (i := steps.maker(v, "Select")) is not None and (found := _selects(steps, steps.at[i])) is not None:
        x, mask = found
        if mask.fill <= _MASKED_OUT and steps.types[x] == steps.types[v]:
            return i, x, mask
    return None


def _selects(steps: TorchSteps, select: TorchStep) -> tuple[int, _Mask] | None:
    """The value and the mask of where(condition, value, fill) or where(condition, fill, value)."""
    condition, x, y = select.inputs
    if (fill := steps.scalar(y)) is not None:
        return x, _Mask("keep", condition, fill)
    if (fill := steps.scalar(x)) is not None:
        return y, _Mask("drop", condition, fill)
    return None


def _are_scores(steps: TorchSteps, v: int, depth: int = _MASKS) -> bool:
    """Whether a value is a matrix product, perhaps scaled and masked: in a sum, the scores and not the bias."""
    if (scaled := _scaled_at(steps, v)) is not None:
        v = scaled[1]
    if steps.maker(v, "MatMul") is not None or not depth:
        return steps.maker(v, "MatMul") is not None
    if (i := steps.maker(v, "Add")) is not None:
        return any(_are_scores(steps, x, depth - 1) for x in steps.at[i].inputs if steps.types[x] == steps.types[v])
    i = steps.maker(v, "Select")
    found = None if i is None else _selects(steps, steps.at[i])
    return found is not None and _are_scores(steps, found[0], depth - 1)


def _scaled_at(steps: TorchSteps, v: int) -> tuple[int, int, float] | None:
    i = steps.maker(v, "Mul")
    if i is None:
        i = steps.maker(v, "Div")
    found = None if i is None else _scaled(steps, steps.at[i])
    return None if i is None or found is None else (i, *found)


def _scaled(steps: TorchSteps, step: TorchStep) -> tuple[int, float] | None:
    """x and c of a product x * c or a quotient x / (1 / c) with a constant."""
    for x, c in (step.inputs, step.inputs[::-1]):
        number = steps.scalar(c)
        if number is not None and steps.types[x] == steps.types[step.outputs[0]]:
            return (x, number) if step.type == "Mul" else (x, 1 / number) if number and c == step.inputs[1] else None
    return None


# -- what the kernel takes ---------------------------------------------------------------------------------------


def _fits(steps: TorchSteps, scores: _Scores, v: int) -> bool:
    """Whether the kernel takes q, k and v: the same leading axes, and heads of the same size."""
    q, k, values = (steps.types[x] for x in (scores.q, scores.k, v))
    shape = (*k.shape[:-2], k.shape[-1], k.shape[-2]) if scores.transposed else k.shape
    same = q.dtype == k.dtype == values.dtype and q.dtype.name in _FLOATS
    return same and 2 <= len(q.shape) <= _AXES and shape == values.shape and q.shape[:-2] == shape[:-2] and (
        q.shape[-1] == shape[-1] and 0 not in q.shape and 0 not in shape
    )  # fmt: skip


def _masks_fit(steps: TorchSteps, scores: _Scores, weights: Spec) -> bool:
    """Whether masks can be added to the scores as numbers. A finite fill differs from -inf in rows that are masked out
    completely, so that the mask must be known, and the only one."""
    for mask in scores.masks:
        if mask.kind == "add" and steps.types[mask.value].dtype != weights.dtype:
            return False
        if np.isfinite(mask.fill):
            known = _additive(steps, mask)
            if len(scores.masks) > 1 or known is None or not np.isfinite(known).any(axis=-1).all():
                return False
    return True


def _additive(steps: TorchSteps, mask: _Mask) -> Array | None:
    """A constant mask as the numbers that it adds to scores."""
    x = steps.constants.get(mask.value)
    if x is None or mask.kind == "add":
        return x
    return np.where(x if mask.kind == "keep" else np.logical_not(x), 0.0, -np.inf)


def _is_causal(steps: TorchSteps, masks: tuple[_Mask, ...], weights: Spec) -> bool:
    """Whether row i keeps keys 0 to i: the kernel then skips the others. Constants are compared, however written."""
    if len(masks) != 1 or weights.shape[-1] != weights.shape[-2]:
        return False
    known = _additive(steps, masks[0])
    if known is None or known.ndim < 2 or known.shape[-2:] != weights.shape[-2:]:
        return False
    allowed = np.tri(weights.shape[-1], dtype=bool)
    return bool(np.all(np.where(allowed, known == 0, known == -np.inf)))


# -- gradients ---------------------------------------------------------------------------------------------------


def _attention_grad(steps: TorchSteps, scores: _Scores, weights: int, v: int) -> _Back | None:
    softmax = steps.user(weights, "SoftmaxGrad")
    if softmax is None or steps.at[softmax].inputs[1] != weights:
        return None
    dweights = steps.maker(steps.at[softmax].inputs[0], "MatMul")
    if dweights is None or not _is_product(steps.at[dweights], steps.at[dweights].inputs[0], v, False, True):
        return None
    g, (ds,), places = steps.at[dweights].inputs[0], steps.at[softmax].outputs, [dweights, softmax]
    for mask in scores.masks:
        if mask.kind == "add":
            continue
        i = steps.user(ds, "Select")
        if i is None or _selects(steps, steps.at[i]) != (ds, mask._replace(fill=0.0)):
            return None
        ds, places = steps.at[i].outputs[0], [*places, i]
    if scores.scale != 1.0:
        i = steps.user(ds, "Mul", "Div")
        if i is None or _scaled(steps, steps.at[i]) != (ds, scores.scale):
            return None
        ds, places = steps.at[i].outputs[0], [*places, i]
    of_q, of_v = _product(steps, ds, scores.k, False, scores.transposed), _product(steps, weights, g, True, False)
    turned = _product(steps, scores.q, ds, True, False)
    of_k = _product(steps, ds, scores.q, True, False) if turned is None else turned
    if of_q is None or of_k is None or of_v is None:
        return None
    dq, dk, dv = (steps.at[i].outputs[0] for i in (of_q, of_k, of_v))
    return _Back(g, (dq, dk, dv), turned is not None, min(dweights, of_v), (*places, of_q, of_k, of_v))


def _product(steps: TorchSteps, a: int, b: int, transpose_a: bool, transpose_b: bool) -> int | None:
    found = [i for i in steps.users(a, "MatMul") if _is_product(steps.at[i], a, b, transpose_a, transpose_b)]
    return found[0] if len(found) == 1 else None


def _is_product(step: TorchStep, a: int, b: int, transpose_a: bool, transpose_b: bool) -> bool:
    return step.inputs == (a, b) and step.attrs == {"transpose_a": transpose_a, "transpose_b": transpose_b}


def view(steps: TorchSteps, i: int) -> None:
    """A transpose that only attention reads needs no copy: the kernels take any strides."""
    users = steps.users(steps.at[i].outputs[0])
    if users and all(steps.at[j].type in ("Attention", "AttentionGrad") for j in users):
        steps.replace((), i, steps.at[i]._replace(type="View"))
