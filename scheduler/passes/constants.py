"""Peephole rules of `simplify` for constants. Constant folding itself is part of the rewriter."""

from __future__ import annotations

from typing import Any

import numpy as np

from distgrad.registry import OPS, Kind
from distgrad.scheduler.passes.rewrite import Array, Made, Rewriter, Rules, moved
from distgrad.scheduler.program import Step
from distgrad.types import INT, DType, Shape, size_of


def _lean(r: Rewriter, step: Step) -> Made:
    """Read the source of an explicitly broadcast operand instead, because the step broadcasts it anyway.

    An array of one repeated number becomes a scalar.
    """
    inputs, made, known = step.inputs, r.made, r.known
    for v in inputs:
        if v in made or v in known:
            break
    else:
        return None
    uniform = _uniform(r, step)
    if uniform is not None:
        return uniform
    shape, types = r.types[step.outputs[0]].shape, r.types
    lean = list(inputs)
    for k, v in enumerate(inputs):
        if types[v].shape and any(types[u].shape == shape for j, u in enumerate(lean) if j != k):
            lean[k] = _source(r, step, v)
    others = _without_one(r, step, lean, shape)
    if others is not None:
        return others
    return moved(step, tuple(lean), ()) if lean != list(inputs) else None


def _uniform(r: Rewriter, step: Step) -> Made:
    """A function of uniform arrays is uniform: compute one number. (Not for NaN, which would lose its bits.)"""
    shape, dtype = r.types[step.outputs[0]]
    if dtype.kind not in "biuf" or not OPS[step.type].rounded:
        return None
    numbers = []
    for v in step.inputs:
        number = r.number(v)
        if number is None:
            return None
        numbers.append(number)
    made = r.computed(step, numbers)
    return None if made is None or made != made else _fill(step, shape, dtype, made.item())


def _fill(step: Step, shape: Shape, dtype: DType, value: Any) -> Step:
    attrs = {"shape": shape, "dtype": dtype, "value": value}
    return Step("Fill", (), step.outputs, attrs, (), step.source, step.name, step.device)


def _reshape(r: Rewriter, step: Step) -> Made:
    maker = r.made.get(step.inputs[0])
    if maker is None or maker.type != "Fill":
        return None
    return _fill(step, step.attrs["shape"], maker.attrs["dtype"], maker.attrs["value"])


def _source(r: Rewriter, step: Step, v: int) -> int:
    """The value to read in place of an operand, given another operand of the full shape."""
    maker = r.made.get(v)
    repeated = maker is not None and maker.type == "BroadcastTo"
    if OPS[step.type].rounded:
        number = r.number(v)
        # Next to a strided array, a full array of one number decides the memory layout of the result.
        if number is not None and (repeated or number.size == size_of(r.types[v].shape) or _all_rows(r, step)):
            return r.scalar(v, number, step if maker is None else maker)
    return maker.inputs[0] if repeated and maker is not None else v


def _all_rows(r: Rewriter, step: Step) -> bool:
    return r.maybe_strided.isdisjoint(step.inputs)


#: Pairs of inputs: if the first is 1, the result is the second.
_ONES = {"Mul": ((1, 0), (0, 1)), "Div": ((1, 0),)}


def _without_one(r: Rewriter, step: Step, inputs: list[int], shape: tuple[int, ...]) -> Made:
    """x * 1 and x / 1 are bitwise equal to x, for real x."""
    if r.types[step.outputs[0]].dtype.kind not in "iufV":
        return None
    for one, x in _ONES.get(step.type, ()):
        number, v = r.number(inputs[one]), inputs[x]
        if number is not None and number == 1 and r.types[v].shape == shape and v not in r.maybe_strided:
            return (v,)
    return None


def _like(value: int) -> Any:
    """Zeros or ones in the shape of a value do not need the value itself."""

    def rule(r: Rewriter, step: Step) -> Made:
        (x,), (y,) = step.inputs, step.outputs
        shape, dtype = r.types[y]
        if x in r.maybe_strided or dtype.kind not in "biufcV":
            return None
        return _fill(step, shape, dtype, value)

    return rule


def _static(what: Any) -> Any:
    """A number or vector that is known from the type of the input."""

    def rule(r: Rewriter, step: Step) -> Made:
        array: Array = np.asarray(what(r.types[step.inputs[0]].shape), INT)
        array.flags.writeable = False
        return Step("Const", (), step.outputs, {"value": array}, (), step.source, step.name, step.device)

    return rule


_BY_TYPE = {
    "Reshape": _reshape,
    "ZerosLike": _like(0),
    "OnesLike": _like(1),
    "Size": _static(size_of),
    "Rank": _static(len),
    "Shape": _static(list),
}

CONSTANTS = Rules(
    _BY_TYPE,
    (
        (lambda op: op.kind is Kind.ELEMENTWISE and op.broadcasting, _lean),
        (lambda op: op.kind is Kind.ELEMENTWISE and op.rounded, _uniform),
    ),
)
