"""Peephole rules of `simplify` for steps that cancel or absorb each other."""

from __future__ import annotations

from typing import Any

from distgrad.scheduler.passes.rewrite import Made, Rewriter, Rules, moved
from distgrad.scheduler.program import Step
from distgrad.types import Spec


def _with(step: Step, inputs: tuple[int, ...], attrs: dict[str, Any]) -> Step:
    return Step(step.type, inputs, step.outputs, attrs, (), step.source, step.name, step.device)


def _maker(r: Rewriter, v: int, kind: str) -> Step | None:
    step = r.made.get(v)
    return step if step is not None and step.type == kind else None


def _neg(r: Rewriter, step: Step) -> Made:
    inner = _maker(r, step.inputs[0], "Neg")
    return inner.inputs if inner is not None and inner.inputs[0] not in r.maybe_strided else None


def _positive(r: Rewriter, v: int) -> int:
    """The x of a value that is known to be -x, otherwise the value itself."""
    inner = _maker(r, v, "Neg")
    return v if inner is None or inner.inputs[0] in r.maybe_strided else inner.inputs[0]


def _product(r: Rewriter, step: Step) -> Made:
    """Two negations cancel. -x * x becomes -(x * x), because x * x may exist already or be used again."""
    a, b = step.inputs
    if (a != b and a not in r.made and b not in r.made) or r.types[step.outputs[0]].dtype.kind not in "fiu":
        return None
    x, y = _positive(r, a), _positive(r, b)
    if x != a and y != b:
        return moved(step, (x, y), ())
    if step.type == "Div" or x != y:
        return None
    square = _as(step, "Square", (x,))
    return square if a == b else _as(step, "Neg", (r.insert(square, r.types[step.outputs[0]]),))


def _sum(r: Rewriter, step: Step) -> Made:
    """a + -b becomes a - b, and a - -b becomes a + b."""
    a, b = step.inputs
    if (a not in r.made and b not in r.made) or r.types[step.outputs[0]].dtype.kind not in "fiu":
        return None
    other = "Sub" if step.type == "Add" else "Add"
    if (y := _positive(r, b)) != b:
        return _as(step, other, (a, y))
    if step.type == "Add" and (x := _positive(r, a)) != a:
        return _as(step, other, (b, x))
    return None


def _as(step: Step, kind: str, inputs: tuple[int, ...]) -> Step:
    return Step(kind, inputs, step.outputs, {}, (), step.source, step.name, step.device)


def _reshape(r: Rewriter, step: Step) -> Made:
    """Merge two reshapes, unless the first may have been a contiguous copy of a strided array."""
    inner = _maker(r, step.inputs[0], "Reshape")
    return moved(step, inner.inputs, ()) if inner is not None and inner.inputs[0] not in r.maybe_strided else None


def _transpose(r: Rewriter, step: Step) -> Made:
    inner = _maker(r, step.inputs[0], "Transpose")
    if inner is None:
        return None
    axes = tuple([inner.attrs["axes"][i] for i in step.attrs["axes"]])
    return inner.inputs if axes == tuple(range(len(axes))) else _with(step, inner.inputs, {"axes": axes})


def _matmul(r: Rewriter, step: Step) -> Made:
    """Turn a transposed operand into a flag. Not for the batch in a batch-by-matrix product: its flag selects the
    algorithm."""
    a, b = step.inputs
    if a not in r.made and b not in r.made:
        return None
    flags, inputs = dict(step.attrs), [a, b]
    batch_by_matrix = len(r.types[a].shape) > 2 == len(r.types[b].shape)
    for k, flag in enumerate(("transpose_a", "transpose_b")):
        inner = _maker(r, inputs[k], "Transpose")
        if inner is not None and _turns_last(inner.attrs["axes"]) and not (k == 0 and batch_by_matrix):
            inputs[k], flags[flag] = _without_swap(r, inner), not flags[flag]
    return None if tuple(inputs) == step.inputs else _with(step, tuple(inputs), flags)


def _turns_last(axes: tuple[int, ...]) -> bool:
    """Whether the last axis becomes the second to last: BLAS then reads rows as columns."""
    return len(axes) >= 2 and axes[-2] == len(axes) - 1


def _without_swap(r: Rewriter, step: Step) -> int:
    """The result of a Transpose without the swap of its last two axes."""
    *others, a, b = step.attrs["axes"]
    axes = (*others, b, a)
    if axes == tuple(range(len(axes))):
        return step.inputs[0]
    shape, dtype = r.types[step.inputs[0]]
    return r.insert(_with(step, step.inputs, {"axes": axes}), Spec(tuple([shape[i] for i in axes]), dtype))


def _join(cut: str) -> Any:
    """Joining all parts of a value along the axis it was split on gives the value."""

    def rule(r: Rewriter, step: Step) -> Made:
        inner = _maker(r, step.inputs[0], cut)
        if inner is None or inner.outputs != step.inputs or inner.attrs["axis"] != step.attrs["axis"]:
            return None
        return inner.inputs if inner.inputs[0] not in r.maybe_strided else None

    return rule


def _select(r: Rewriter, step: Step) -> Made:
    """A constant condition selects its branch at planning time."""
    number = r.number(step.inputs[0])
    if number is None:
        return None
    chosen = step.inputs[1 if number else 2]
    fits = r.types[chosen] == r.types[step.outputs[0]]
    return (chosen,) if fits and r.maybe_strided.isdisjoint(step.inputs) else None


_BY_TYPE = {
    "Neg": _neg,
    "Mul": _product,
    "Div": _product,
    "Add": _sum,
    "Sub": _sum,
    "Reshape": _reshape,
    "Transpose": _transpose,
    "MatMul": _matmul,
    "Concat": _join("Split"),
    "Stack": _join("Unstack"),
    "Select": _select,
}

ALGEBRA = Rules(_BY_TYPE)
