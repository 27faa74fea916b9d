"""The reference executor: runs a program step by step in NumPy. Slow and obvious; it defines every result."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from distgrad.registry import OPS, OpDef
from distgrad.scheduler.outlined_calls import expanded
from distgrad.scheduler.program import Program, Step
from distgrad.types import DType, Shape, Spec
from distgrad.workers import blas
from distgrad.workers.kernels import KERNELS
from distgrad.workers.kernels.sharing import in_turn, shared
from distgrad.workers.kernels.user_ops import checked_results, run_user_op

Array = np.ndarray[Any, np.dtype[Any]]


def run(
    program: Program, feeds: Sequence[Array], state: Mapping[str, Array], cpus: int = 1
) -> tuple[list[Array], dict[str, Array]]:
    """The fetched values, and the values that the program assigns; `state` is not changed.

    `cpus` are those of a task: large matrix products are split into this many pieces, which changes their last bits.
    """
    with blas.threads(1), shared(cpus, in_turn):
        return _run(program, feeds, state)


def _run(program: Program, feeds: Sequence[Array], state: Mapping[str, Array]) -> tuple[list[Array], dict[str, Array]]:
    values: dict[int, Array] = dict(zip(program.feeds, feeds, strict=True))
    values.update((v, state[key]) for key, v in program.reads)
    last = last_uses(program)
    for i, step in enumerate(program.steps):
        run_steps((step,), program.types, values)
        for v in last.get(i, ()):
            del values[v]
    return [values[v] for v in program.fetches], {key: values[v] for key, v in program.writes}


def run_steps(
    steps: Iterable[Step], types: Sequence[Spec], values: dict[int, Array], ops: Mapping[str, OpDef] | None = None
) -> None:
    """Add the results of these steps to the values. The steps of a group run one after another. `ops` has users' ops as
    they were defined when the steps were compiled; by default those of now are used."""
    steps, types = expanded(list(steps), types)
    for step in steps:
        for each in step.body or (step,):
            op = OPS[each.type] if ops is None or each.type not in ops else ops[each.type]
            outputs = _run_step(op, each, [values[v] for v in each.inputs], [types[v] for v in each.outputs])
            values.update(zip(each.outputs, outputs, strict=True))


def last_uses(program: Program) -> dict[int, list[int]]:
    """For each step, the values that it is the last to use."""
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


def _run_step(op: OpDef, step: Step, inputs: Sequence[Array], specs: Sequence[Spec]) -> list[Array]:
    try:
        return apply(op, inputs, step.attrs, specs)
    except Exception as e:
        note(e, step, [Spec(x.shape, x.dtype) for x in inputs])
        raise


def note(error: BaseException, step: Step, inputs: Sequence[Spec]) -> None:
    """Add a note to an error that names its op; only once, even if the same object is raised repeatedly."""
    text = f"distgrad: in {place(step)} on inputs ({', '.join(map(str, inputs))})"
    if text not in getattr(error, "__notes__", ()):
        error.add_note(text)


def place(step: Step) -> str:
    """How errors name an op."""
    return f"op {step.name!r} (type {step.type}, at {step.source})"


def apply(
    definition: OpDef, inputs: Sequence[Array], attrs: Mapping[str, Any], specs: Sequence[tuple[Shape, DType]]
) -> list[Array]:
    """One op on arrays. A user's kernel takes the arrays alone, a built-in one the array namespace as well."""
    if definition.kernel is not None:
        return run_user_op(definition, inputs, attrs, specs)
    with np.errstate(all="ignore"):
        made = KERNELS[definition.type](np, *inputs, **attrs)
    return checked_results(definition.type, made, specs)
