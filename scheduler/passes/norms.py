"""Normalisation whose gradient takes what the forward step made, the normalised x and its scale, instead of x.

Only where steps are fused: there the scale, one number per row, is made with the normalised x at no cost.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from distgrad.scheduler.passes.fuse import role
from distgrad.scheduler.passes.sums import inserted
from distgrad.scheduler.program import Program, Step
from distgrad.types import Spec


def norms(program: Program) -> Program:
    """Let each LayerNormGrad read the results of its LayerNorm, if these live longer than x does without it.

    >>> import distgrad as dg
    >>> from distgrad.scheduler.program import lower
    >>> with dg.Graph():
    ...     x, w = dg.placeholder((64, 64)), dg.placeholder((64,))
    ...     y = dg.nn.layer_norm(dg.sin(x)) * w
    ...     program = norms(lower(dg.gradients(y, [x, w]), [x, w]))
    >>> [step.type for step in program.steps if step.type.startswith("LayerNorm")]
    ['LayerNorm', 'LayerNormScale', 'LayerNormGrad']
    """
    found = _gradients(program)
    types, steps, early = list(program.types), list(program.steps), {}
    for first, later in found.items():
        norm = steps[first]
        shape, dtype = types[norm.outputs[0]]
        axes = norm.attrs["axis"]
        scale = len(types)
        types.append(Spec(tuple([1 if i in axes else n for i, n in enumerate(shape)]), dtype))
        early[first] = [_like(norm, "LayerNormScale", norm.inputs, scale)]
        for i in later:
            grad = steps[i]
            steps[i] = _like(grad, grad.type, (grad.inputs[0], norm.outputs[0], scale), grad.outputs[0])
    return replace(program, steps=inserted(steps, early), types=tuple(types)) if found else program


def _like(step: Step, kind: str, inputs: tuple[int, ...], made: int) -> Step:
    return Step(kind, inputs, (made,), step.attrs, (), step.source, step.name, step.device)


def _gradients(program: Program) -> dict[int, list[int]]:
    """By the place of a LayerNorm: the places of the gradients that shall read its results."""
    given = set(program.given)
    forward: dict[object, int] = {}
    found: dict[int, list[int]] = {}
    for i, step in enumerate(program.steps):
        if step.type not in ("LayerNorm", "LayerNormGrad") or step.after or role(step, program.types) is None:
            continue
        key = step.inputs[-1], step.attrs["axis"], step.attrs["eps"]
        if step.type == "LayerNorm" and step.inputs[0] not in given:  # groups do not share what is given
            forward[key] = i
        elif step.type == "LayerNormGrad" and len(step.inputs) == 2 and key in forward:
            found.setdefault(forward[key], []).append(i)
    last = _last_uses(program, {i for later in found.values() for i in later}) if found else {}
    return {first: later for first, later in found.items() if _lives_longer(program.steps[first], last)}


def _lives_longer(norm: Step, last: Mapping[int, int]) -> bool:
    """Whether x can be let go earlier than the normalised x, which is kept for others anyway."""
    return last.get(norm.outputs[0], -1) > last.get(norm.inputs[0], -1)


def _last_uses(program: Program, without: set[int]) -> dict[int, int]:
    """The last step that reads each value, not counting those at some places."""
    last = {v: i for i, step in enumerate(program.steps) if i not in without for v in step.inputs}
    return last | dict.fromkeys(program.wanted, len(program.steps))
