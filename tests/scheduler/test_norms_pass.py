"""Layer norms with gradients that reuse their results: when, with equal gradients and less memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import distgrad as dg
from distgrad.scheduler.passes.fuse import fuse
from distgrad.scheduler.passes.norms import norms
from distgrad.scheduler.program import Program, Step, lower
from distgrad.workers import reference
from distgrad.workers.blocked import blocks

pytestmark = pytest.mark.usefixtures("graph")

SHAPE = (40, 60)


def norm_and_gradient(also: Any = None, shape: tuple[int, ...] = SHAPE) -> Program:
    """sin(x) normalised, times w, with both gradients; `also` makes of sin(x) what is wanted too."""
    x, w = dg.placeholder(shape, "float32"), dg.placeholder(shape[-1:], "float32")
    inner = dg.sin(x)
    grads = dg.gradients(dg.nn.layer_norm(inner) * w, [x, w])
    return lower([*grads, *([also(inner)] if also else [])], [x, w])


def only(program: Program, kind: str) -> Step:
    (step,) = [each for step in program.steps for each in step.body or (step,) if each.type == kind]
    return step


def test_the_gradient_of_a_norm_reads_what_the_norm_made() -> None:
    program = norms(norm_and_gradient())
    norm, scale = only(program, "LayerNorm"), only(program, "LayerNormScale")
    assert only(program, "LayerNormGrad").inputs[1:] == (*norm.outputs, *scale.outputs)
    assert program.types[scale.outputs[0]].shape == (40, 1)


def test_the_gradient_is_the_same_but_for_rounding() -> None:
    before = norm_and_gradient()
    feeds = [np.random.default_rng(0).standard_normal(shape).astype(np.float32) for shape in (SHAPE, SHAPE[-1:])]
    expected, found = (reference.run(program, feeds, {})[0] for program in (before, norms(before)))
    for x, y in zip(found, expected, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5)


def test_the_scale_is_computed_with_the_norm() -> None:
    (group,) = [step for step in fuse(norms(norm_and_gradient())).steps if step.type == "Fused"]
    kinds = [step.type for step in group.body]
    assert blocks.pairs(group.body) == {kinds.index("LayerNormScale"): kinds.index("LayerNorm")}


def test_what_is_kept_anyway_is_read_as_before() -> None:
    program = norm_and_gradient(also=dg.identity)
    assert norms(program) is program


def test_a_norm_that_is_not_fused_is_left_as_it_is() -> None:
    program = norm_and_gradient(shape=(4, 5))
    assert norms(program) is program


def test_a_norm_of_a_feed_is_left_as_it_is() -> None:
    x, w = dg.placeholder(SHAPE), dg.placeholder(SHAPE[-1:])
    program = lower(dg.gradients(dg.nn.layer_norm(x) * w, [x, w]), [x, w])
    assert norms(program) is program
