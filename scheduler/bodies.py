"""Task bodies: what a task computes, independent of its position in the program. Equal tasks share one body.

A worker compiles a body once and runs it for every task that has it, so a plan of a thousand shards ships and compiles
only a handful of bodies.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from distgrad.scheduler.plan import Plan, Task
from distgrad.scheduler.program import Step, renumbered
from distgrad.types import Spec


@dataclass(frozen=True, slots=True, eq=False)
class Body:
    """Steps with value ids numbered from 0, starting with those of `reads`; `types` has one entry per value.

    Compared by identity: `bodies` has already merged equal ones, and attributes may hold objects without equality.
    """

    steps: tuple[Step, ...]
    types: tuple[Spec, ...]
    reads: tuple[int, ...]
    gives: tuple[int, ...]
    cpus: int
    gpus: int
    #: Whether fused steps run as native code.
    native: bool = False
    #: Results that whoever runs it reads before the next run, and not later: they need no memory of their own.
    stays: tuple[int, ...] = ()


def bodies(plan: Plan) -> tuple[list[Body], list[int]]:
    """The distinct bodies of a plan's tasks in order of appearance, and the index of each task's body.

    Tasks share a body if they do the same with values of the same types. Names, source lines, waits and workers are
    ignored; the body keeps those of its first task. Attributes are compared by content, user-defined objects by
    identity. Takes time linear in the size of the plan.

    >>> import numpy, distgrad as dg
    >>> plan = dg.function(lambda x: dg.exp(x) + 1.0).plan(numpy.ones(3))
    >>> (body,), of = bodies(plan)
    >>> [(step.type, step.inputs, step.outputs) for step in body.steps], body.gives, of
    ([('Exp', (0,), (1,)), ('Const', (), (2,)), ('Add', (1, 2), (3,))], (3,), [0])
    """
    specs: dict[Spec, int] = {}
    kinds = [specs.setdefault(spec, len(specs)) for spec in plan.program.types]
    attrs = _Attrs()
    known: dict[Any, int] = {}
    found: list[Body] = []
    of = []
    for task in plan.tasks:
        steps = [plan.program.steps[i] for i in task.steps]
        ids = _ids(task, steps)
        key = _key(task, steps, ids, kinds, attrs)
        place = known.setdefault(key, len(found))
        if place == len(found):
            found.append(_body(task, steps, ids, plan))
        of.append(place)
    return found, of


def _ids(task: Task, steps: Sequence[Step]) -> dict[int, int]:
    """The new id of each value, in order of appearance."""
    ids = dict.fromkeys(task.reads)
    for step in steps:
        for inner in step.body:
            ids.update(dict.fromkeys(inner.inputs))
            ids.update(dict.fromkeys(inner.outputs))
        ids.update(dict.fromkeys(step.outputs))
    return {v: i for i, v in enumerate(ids)}


def _key(task: Task, steps: Sequence[Step], ids: Mapping[int, int], kinds: Sequence[int], attrs: _Attrs) -> Any:
    """Equal for tasks that compute the same."""
    done = tuple([_step_key(step, ids, attrs) for step in steps])
    types = tuple([kinds[v] for v in ids])
    return done, types, len(task.reads), tuple([ids[v] for v in task.gives]), task.cpus, task.gpus


def _step_key(step: Step, ids: Mapping[int, int], attrs: _Attrs) -> tuple[Any, ...]:
    inputs, outputs = [ids[v] for v in step.inputs], [ids[v] for v in step.outputs]
    held = attrs.number(step.attrs) if step.attrs else -1
    body = tuple([_step_key(inner, ids, attrs) for inner in step.body]) if step.body else ()  # bodies hold no bodies
    return step.type, tuple(inputs), tuple(outputs), held, body


def _body(task: Task, steps: Sequence[Step], ids: Mapping[int, int], plan: Plan) -> Body:
    made = tuple([renumbered(step, ids) for step in steps])
    reads, gives = tuple([ids[v] for v in task.reads]), tuple([ids[v] for v in task.gives])
    types = plan.program.types
    return Body(made, tuple([types[v] for v in ids]), reads, gives, task.cpus, task.gpus, plan.options.native)


# -- attributes --------------------------------------------------------------------------------------------------


class _Attrs:
    """Assigns numbers to attributes, equal numbers to equal attributes. Each mapping is inspected once: copies of a
    step, and copies of a function's body, share theirs."""

    def __init__(self) -> None:
        self._by_identity: dict[int, int] = {}
        self._by_content: dict[Any, int] = {}

    def number(self, attrs: Mapping[str, Any]) -> int:
        found = self._by_identity.get(id(attrs))  # the plan keeps them alive, so an id stays theirs
        if found is None:
            key = (*attrs, *[_plain(value) for value in attrs.values()])
            found = self._by_identity[id(attrs)] = self._by_content.setdefault(key, len(self._by_content))
        return found


def _plain(value: Any) -> Any:
    """A hashable key that is equal for values of the same type and content, and only for those."""
    kind = type(value)
    if value is None or kind is int or kind is bool or kind is str or kind is bytes:
        return kind, value
    if kind is float or kind is complex:
        return kind, repr(value)  # 0.0 equals -0.0, and nan not itself
    if kind is tuple or kind is list:
        return kind, tuple([_plain(item) for item in value])
    if isinstance(value, np.dtype):
        return kind, value.name, value.str
    if isinstance(value, np.ndarray | np.generic) and not value.dtype.hasobject:
        return kind, value.shape, _plain(value.dtype), hashlib.sha256(value.tobytes()).digest()
    return kind, id(value)
