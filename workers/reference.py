"""The reference executor: runs a program step by step in NumPy. Slow and obvious; it defines every result."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from distgrad.errors import NumericsError
from distgrad.graph import outside
from distgrad.registry import OPS, OpDef
from distgrad.scheduler.memory import VIEWS
from distgrad.scheduler.program import Program, Step
from distgrad.types import DType, Shape, Spec
from distgrad.workers.kernels import KERNELS

Array = np.ndarray[Any, np.dtype[Any]]


def run(program: Program, feeds: Sequence[Array], state: Mapping[str, Array]) -> tuple[list[Array], dict[str, Array]]:
    """The fetched values, and what the program assigned: `state` itself is never changed."""
    values: dict[int, Array] = dict(zip(program.feeds, feeds, strict=True))
    values.update((v, state[key]) for key, v in program.reads)
    last = _last_uses(program)
    for i, step in enumerate(program.steps):
        run_steps((step,), program.types, values)
        for v in last.get(i, ()):
            del values[v]
    return [values[v] for v in program.fetches], {key: values[v] for key, v in program.writes}


def run_steps(steps: Iterable[Step], types: Sequence[Spec], values: dict[int, Array]) -> None:
    """Add what these steps make to the values. A group is what its steps are, one after another."""
    for step in steps:
        for each in step.body or (step,):
            outputs = _run_step(each, [values[v] for v in each.inputs], [types[v] for v in each.outputs])
            values.update(zip(each.outputs, outputs, strict=True))


def _last_uses(program: Program) -> dict[int, list[int]]:
    """After which step each value is dead."""
    last: dict[int, int] = {}
    for i, step in enumerate(program.steps):
        for each in (step, *step.body):
            last.update(dict.fromkeys((*each.inputs, *each.outputs), i))
    kept = {*program.wanted, *program.given}
    uses: dict[int, list[int]] = {}
    for v, i in last.items():
        if v not in kept:
            uses.setdefault(i, []).append(v)
    return uses


def _run_step(step: Step, inputs: Sequence[Array], specs: Sequence[Spec]) -> list[Array]:
    try:
        return apply(OPS[step.type], inputs, step.attrs, specs)
    except Exception as e:
        e.add_note(note(step, [Spec(x.shape, x.dtype) for x in inputs]))
        raise


def note(step: Step, inputs: Sequence[Spec]) -> str:
    """What an error says about the op in which it happened."""
    got = ", ".join(map(str, inputs))
    return f"distgrad: in op {step.name!r} (type {step.type}, at {step.source}) on inputs ({got})"


def apply(
    definition: OpDef, inputs: Sequence[Array], attrs: Mapping[str, Any], specs: Sequence[tuple[Shape, DType]]
) -> list[Array]:
    """One op on arrays. A user's own kernel takes the arrays alone, a built-in one the array namespace too."""
    with np.errstate(all="ignore"):
        if definition.kernel is not None:
            with outside():  # a kernel computes, also while somebody builds a graph
                made = definition.kernel(*[_read_only(x) for x in inputs], **attrs)
        else:
            made = KERNELS[definition.type](np, *inputs, **attrs)
    outputs = [_laid_out(definition.type, x) for x in (made if isinstance(made, tuple | list) else (made,))]
    if [(x.shape, x.dtype) for x in outputs] != list(specs):
        got = ", ".join(str(Spec(x.shape, x.dtype)) for x in outputs)
        want = ", ".join(str(Spec(*spec)) for spec in specs)
        raise TypeError(f"the kernel of {definition.type} made ({got}) where its shape rule says ({want})")
    return outputs


def _laid_out(op_type: str, x: Any) -> Array:
    """Results lie in memory row by row, as every executor lays them out: the order of a later sum depends on it. Views
    keep their order."""
    return np.asarray(x) if op_type in VIEWS else np.asarray(x, order="C")


def check_finite(steps: Iterable[Step], types: Sequence[Spec], values: dict[int, Array]) -> None:
    """Run steps one by one; NumericsError at the first that makes NaN or Inf of inputs that have neither, or NaN of
    inputs without NaN."""
    for step in steps:
        for each in step.body or (step,):
            run_steps((each,), types, values)
            inputs = [values[v] for v in each.inputs]
            for v in each.outputs:
                bad = _made_bad(values[v], inputs)
                if bad is not None and each.type != "Const":
                    raise NumericsError(_numerics_text(each, inputs, values[v], bad))


def _made_bad(made: Array, inputs: Sequence[Array]) -> Any:
    """Where the result is not finite through this op alone, as a mask; None where it is not."""
    if made.dtype.kind not in "fc" or np.isfinite(made).all():
        return None
    floating = [x for x in inputs if x.dtype.kind in "fc"]
    if all(np.isfinite(x).all() for x in floating):
        return ~np.isfinite(made)
    nan = np.isnan(made)
    return nan if nan.any() and not any(np.isnan(x).any() for x in floating) else None


def _numerics_text(step: Step, inputs: Sequence[Array], made: Array, bad: Array) -> str:
    first = tuple(int(i) for i in np.argwhere(bad)[0]) if made.ndim else ()
    what = "NaN" if np.isnan(made[bad]).any() else "Inf"
    ranges = ", ".join(f"{Spec(x.shape, x.dtype)} {_range(x)}" for x in inputs) or "none"
    return (
        f"op {step.name!r} (type {step.type}, at {step.source}) made {what} in {int(bad.sum())} of {made.size} elements, "
        f"first at {list(first)}. Its inputs: {ranges}"
    )


def _range(x: Array) -> str:
    if x.dtype.kind not in "fiu" or not x.size:
        return ""
    finite = x[np.isfinite(x)]
    return f"in [{finite.min():.6g}, {finite.max():.6g}]" if finite.size else "not finite"


def _read_only(x: Array) -> Array:
    """A user's kernel that writes into its input would change what other ops read: NumPy refuses, and says so."""
    view = x.view()
    view.flags.writeable = False
    return view
