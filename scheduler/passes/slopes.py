"""Functions whose slope is computed with them: what both need is computed once, and x need not be kept.

Only where steps are fused, since every op here is a sweep over memory otherwise. A library with kernels of its own for
these ops is better served by the ops themselves.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from distgrad.scheduler.passes.sums import inserted
from distgrad.scheduler.program import Program, Step
from distgrad.types import Spec

_LINEAR = math.sqrt(8 / math.pi)
_CUBIC = _LINEAR * 0.044715


def slopes(program: Program) -> Program:
    """Compute the slope of each Gelu beside its value, if its gradient is computed too: that keeps every bit.

    >>> import distgrad as dg
    >>> from distgrad.scheduler.program import lower
    >>> with dg.Graph():
    ...     x = dg.placeholder((3,))
    ...     y = dg.nn.gelu(x, approximate=True)
    ...     fetches = [y, *dg.gradients(y, x)]
    >>> [step.type for step in slopes(lower(fetches, [x])).steps if step.type in ("Exp", "Gelu", "GeluGrad")]
    ['Exp']
    """
    forward = {(s.inputs, s.attrs["approximate"]): i for i, s in enumerate(program.steps) if _is(s, "Gelu", program)}
    backward: dict[int, list[int]] = {}
    for i, step in enumerate(program.steps):
        if forward and _is(step, "GeluGrad", program):
            first = forward.get((step.inputs[1:], step.attrs["approximate"]))
            if first is not None and first < i:
                backward.setdefault(first, []).append(i)
    if not backward:
        return program
    writer = _Writer(program)
    steps = list(program.steps)
    early: dict[int, list[Step]] = {}
    for first, later in backward.items():
        gelu = steps[first]
        before, steps[first], after, slope = writer.expanded(gelu)
        early.setdefault(first - 1, []).extend(before)
        early.setdefault(first, []).extend(after)
        for i in later:
            grad = steps[i]
            inputs = (grad.inputs[0], slope)
            steps[i] = Step("Mul", inputs, grad.outputs, {}, (), grad.source, grad.name, grad.device)
    return replace(program, steps=inserted(steps, early), types=tuple(writer.types))


def _is(step: Step, kind: str, program: Program) -> bool:
    return step.type == kind and not step.after and program.types[step.outputs[0]].dtype.char in "fd"


class _Writer:
    """Writes steps with new values, in the place of one that is there."""

    def __init__(self, program: Program):
        self.types = list(program.types)
        self._steps: list[Step] = []
        self._like: Step

    def expanded(self, gelu: Step) -> tuple[list[Step], Step, list[Step], int]:
        """The steps before the one that makes the value, that one, those after it, and the value of the slope."""
        (x,), self._like, self._steps = gelu.inputs, gelu, []
        make = self._tanh if gelu.attrs["approximate"] else self._erf
        slope = make(x, gelu.outputs[0])
        at = next(i for i, step in enumerate(self._steps) if step.outputs == gelu.outputs)
        return self._steps[:at], self._steps[at], self._steps[at + 1 :], slope

    def _tanh(self, x: int, y: int) -> int:
        """y = x / u and the slope (1 - s) y (3 c x² + l) + s with s = 1 / u, u = 1 + exp(-x (c x² + l))."""
        square = self("Mul", x, x)
        u = self("Add", self("Exp", self("Mul", self("Sub", self("Mul", square, -_CUBIC), _LINEAR), x)), 1.0)
        self("Div", x, u, out=y)
        s = self("Div", 1.0, u)
        steep = self("Add", self("Mul", square, 3 * _CUBIC), _LINEAR)
        return self("Add", self("Mul", self("Mul", self("Sub", 1.0, s), y), steep), s)

    def _erf(self, x: int, y: int) -> int:
        """y = x / 2 erfc(-x / √2) and the slope x times the normal density plus half of erfc."""
        tail = self("Erfc", self("Mul", x, -math.sqrt(0.5)))
        self("Mul", self("Mul", x, 0.5), tail, out=y)
        density = self("Mul", self("Exp", self("Mul", self("Mul", x, x), -0.5)), math.sqrt(0.5 / math.pi))
        return self("Add", self("Mul", density, x), self("Mul", tail, 0.5))

    def __call__(self, kind: str, *operands: Any, out: int | None = None) -> int:
        inputs = tuple([self._number(v) if isinstance(v, float) else v for v in operands])
        made = self._value(self._spec) if out is None else out
        self._add(kind, inputs, made, {})
        return made

    @property
    def _spec(self) -> Spec:
        return self.types[self._like.outputs[0]]

    def _value(self, spec: Spec) -> int:
        self.types.append(spec)
        return len(self.types) - 1

    def _number(self, number: float) -> int:
        value = np.array(number, self._spec.dtype)
        value.flags.writeable = False
        made = self._value(Spec((), value.dtype))
        self._add("Const", (), made, {"value": value})
        return made

    def _add(self, kind: str, inputs: tuple[int, ...], made: int, attrs: dict[str, Any]) -> None:
        like = self._like
        self._steps.append(Step(kind, inputs, (made,), attrs, (), like.source, like.name, like.device))
