"""Peephole rules of `simplify` for steps that return their input, or only reshape it."""

from __future__ import annotations

from distgrad.registry import View
from distgrad.scheduler.passes.rewrite import Made, Rewriter, Rules
from distgrad.scheduler.program import Step


def _passed(r: Rewriter, step: Step) -> Made:
    return step.inputs


def _same_type(r: Rewriter, step: Step) -> Made:
    """A view of the whole input in the same order."""
    return step.inputs if r.types[step.inputs[0]] == r.types[step.outputs[0]] else None


def _copied(r: Rewriter, step: Step) -> Made:
    """A copy is contiguous, which its input might not be."""
    return _same_type(r, step) if len(step.inputs) == 1 and step.inputs[0] not in r.maybe_strided else None


def _one_term(r: Rewriter, step: Step) -> Made:
    return step.inputs if len(step.inputs) == 1 else None


def _transpose(r: Rewriter, step: Step) -> Made:
    axes = step.attrs["axes"]
    return step.inputs if axes == tuple(range(len(axes))) else None


def _slice(r: Rewriter, step: Step) -> Made:
    """x[:, :]: no index, no new axis, no stride."""
    shape = r.types[step.inputs[0]].shape
    return step.inputs if step.attrs["index"] == tuple([(0, n, 1) for n in shape]) else None


def _reduction(r: Rewriter, step: Step) -> Made:
    """A reduction over axes of size 1 is a reshape. (Not a Sum of floats, which turns -0.0 into 0.0.)"""
    (x,), (y,) = step.inputs, step.outputs
    shape = r.types[x].shape
    if x in r.maybe_strided or any(shape[i] != 1 for i in step.attrs["axis"]):
        return None
    if step.type == "Sum" and r.types[x].dtype.kind not in "iu":
        return None
    attrs = {"shape": r.types[y].shape}
    return Step("Reshape", step.inputs, step.outputs, attrs, (), step.source, step.name, step.device)


_BY_TYPE = {
    "Reshape": _same_type,
    "BroadcastTo": _same_type,
    "StridedSlice": _slice,
    "Transpose": _transpose,
    "Cast": _copied,
    "Concat": _copied,
    "AddN": _one_term,
    "Sum": _reduction,
    "Max": _reduction,
    "Min": _reduction,
}

ALIASES = Rules(_BY_TYPE, ((lambda op: op.view is View.SAME, _passed),))
