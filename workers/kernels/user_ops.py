"""Runs the kernel of a user's op: plain NumPy in, plain NumPy out, checked against the op's shape rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from distgrad.graph import outside
from distgrad.registry import OPS, OpDef, view_of
from distgrad.scheduler.outlined_calls import all_steps
from distgrad.scheduler.program import Step
from distgrad.types import DType, Shape, Spec

Array = np.ndarray[Any, np.dtype[Any]]


def user_ops(steps: Sequence[Step]) -> dict[str, OpDef]:
    """The users' ops among these steps, as they are defined now: by op type. Keep them with what is compiled from the
    steps, because a user may redefine an op later."""
    types = dict.fromkeys([step.type for step in all_steps(steps)])
    return {t: OPS[t] for t in types if t in OPS and OPS[t].kernel is not None}


def run_user_op(
    op: OpDef, inputs: Sequence[Array], attrs: Mapping[str, Any], specs: Sequence[tuple[Shape, DType]]
) -> list[Array]:
    """The results of a user's op. The kernel is that of `op`, not the one registered now: the user may redefine it."""
    assert op.kernel is not None
    with np.errstate(all="ignore"), outside():  # the kernel computes, even while a graph is being built
        made = op.kernel(*[_read_only(x) for x in inputs], **attrs)
    return checked_results(op.type, made, specs)


def checked_results(op_type: str, made: Any, specs: Sequence[tuple[Shape, DType]]) -> list[Array]:
    """The results of a kernel as a list of arrays; TypeError if they differ from what the shape rule says."""
    outputs = [_contiguous(op_type, x) for x in (made if isinstance(made, tuple | list) else (made,))]
    if [(x.shape, x.dtype) for x in outputs] != list(specs):
        got = ", ".join(str(Spec(x.shape, x.dtype)) for x in outputs)
        want = ", ".join(str(Spec(*spec)) for spec in specs)
        raise TypeError(f"the kernel of {op_type} returned ({got}), but its shape rule says ({want})")
    return outputs


def _contiguous(op_type: str, x: Any) -> Array:
    """Results are C-contiguous in every executor, because the order of a later sum depends on the layout. Views keep
    theirs: a product with a transposed matrix passes a flag to BLAS."""
    return np.asarray(x) if view_of(op_type) else np.asarray(x, order="C")


def _read_only(x: Array) -> Array:
    """A read-only view: a kernel that writes into its input, which other ops may read, gets an error from NumPy."""
    view = x.view()
    view.flags.writeable = False
    return view
