"""Recomputing: a group computes cheap elementwise values again that another group would have to keep for it.

A backward pass reads what the forward pass made: of a gelu written in NumPy, six arrays. Most of them are a few
multiplications away from one that is kept anyway. A group that needs them reads that one array and multiplies again,
which takes less time than reading them all from memory, and their memory is free between the two.

A value is recomputed if all of its readers are groups over its shape, and for each of them there is a recipe: cheap
elementwise steps from values that the group reads already, that are live at that time anyway, or that are small.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from distgrad.registry import Kind, kind_of
from distgrad.scheduler.passes.fuse import role
from distgrad.scheduler.program import FUSED, Program, Step
from distgrad.types import Shape, Spec

#: Maximum work of a recipe, in multiplications per element: the time that a thread takes to write and read an element.
CHEAP = 8.0
#: Steps of a group from which on it takes no more: long loops take long to compile.
MANY = 48
#: A value this much smaller than another may be kept for it: the mean of a row, for what is computed from it.
SMALLER = 16


#: The multiplications per element that take as long as a step; infinite for what takes longer than reading memory.
ElementWork = Callable[[Step, Sequence[Spec]], float]


def recompute(program: Program, element_work: ElementWork | None) -> Program:
    """Recompute cheap values instead of keeping them; not without `element_work`, where groups do not run as loops.

    >>> import distgrad as dg
    >>> from distgrad.scheduler.passes.fuse import fuse
    >>> from distgrad.scheduler.program import lower
    >>> with dg.Graph():
    ...     x, w = dg.placeholder((64, 64)), dg.placeholder((64, 64))
    ...     y = dg.tanh(x)
    ...     z = ((1 - y) @ w) * (1 - y) * y
    >>> fused = fuse(lower([z], [x, w]))
    >>> for program in (fused, recompute(fused, lambda step, types: 1 if step.type == "Sub" else 100)):
    ...     print([len(step.outputs) for step in program.steps if step.type == "Fused"])
    [3, 1]
    [2, 1]
    """
    if element_work is None or sum([step.type == FUSED for step in program.steps]) < 2:
        return program
    return _Recomputed(program, element_work).program()


class _Recomputed:
    """The bodies of groups while steps move into them. Later groups come first: their recipes may need what an earlier
    group keeps, which may then be recomputed in turn."""

    def __init__(self, program: Program, element_work: ElementWork):
        self._element_work = element_work
        self._program, self._types = program, list(program.types)
        self._steps = list(program.steps)
        self._maker = {v: i for i, step in enumerate(program.steps) for v in step.outputs}
        self._readers: dict[int, set[int]] = {}
        for i, step in enumerate(program.steps):
            for v in step.inputs:
                self._readers.setdefault(v, set()).add(i)
        self._kept = {*program.wanted, *program.given}
        self._updates = {self._maker[v] for _, v in program.writes if v in self._maker}
        self._taken: dict[int, list[Step]] = {}  # steps that groups take in, in order
        self._gone: dict[int, set[int]] = {}  # values that groups no longer give
        self._more: dict[int, set[int]] = {}  # values that they give instead

    def program(self) -> Program:
        for i in reversed(range(len(self._steps))):
            if self._steps[i].type == FUSED:
                self._group(i)
        if not self._gone:
            return self._program
        made = [self._put_together(i, step) for i, step in enumerate(self._steps)]
        if any(step is None for step in made) and any(step.after for step in self._steps):
            return self._program  # places of steps would change
        return replace(self._program, steps=tuple([s for s in made if s is not None]), types=tuple(self._types))

    def _group(self, i: int) -> None:
        """Move what can be moved; then what could be if the group kept one value that takes long instead of several."""
        step = self._steps[i]
        makers = {inner.outputs[0]: inner for inner in step.body}
        for v in [v for v in reversed(makers) if v in step.outputs]:
            recipes = self._recipes(v, i, makers, ())
            if recipes:
                self._accept(v, i, recipes)
        for u in [u for u in makers if u not in step.outputs and self._is_large(u, step)]:
            movable = [v for v in makers if v in step.outputs and self._recipes(v, i, makers, (u,))]
            if len(movable) > 1 and sum(map(self._nbytes, movable)) > self._nbytes(u):
                self._more.setdefault(i, set()).add(u)
                for v in reversed(movable):
                    recipes = self._recipes(v, i, makers, (u,))  # again: readers may have become too long
                    if recipes:
                        self._accept(v, i, recipes)

    def _is_large(self, v: int, group: Step) -> bool:
        return bool(self._types[v].shape == group.attrs["space"])

    def _recipes(self, v: int, i: int, makers: Mapping[int, Step], also: Collection[int]) -> dict[int, list[Step]]:
        """How each reader of a value computes it; nothing if one of them cannot. `also` would be there, too."""
        readers = sorted(self._readers.get(v, ()))
        if v in self._kept or not self._is_large(v, self._steps[i]):
            return {}
        found = {reader: self._recipe(v, self._steps[i], makers, reader, also) for reader in readers}
        recipes = {reader: recipe for reader, recipe in found.items() if recipe is not None}
        return recipes if len(recipes) == len(readers) else {}

    def _accept(self, v: int, i: int, recipes: Mapping[int, Sequence[Step]]) -> None:
        for reader, recipe in recipes.items():
            self._move(v, recipe, reader)
        self._readers[v] = set()
        self._gone.setdefault(i, set()).add(v)

    def _recipe(
        self, v: int, group: Step, makers: Mapping[int, Step], reader: int, also: Collection[int]
    ) -> list[Step] | None:
        """The steps of a group that compute a value for a later group, in their order; None if there is no recipe."""
        to = self._steps[reader]
        same = to.type == FUSED and (to.attrs["space"], to.device) == (group.attrs["space"], group.device)
        if not same or reader in self._updates:
            return None
        wanted, work = [v], 0.0
        found: dict[int, Step] = {}
        while wanted:
            u = wanted.pop()
            if u in found or u in also or (u != v and self._is_there(u, makers, group, reader, v)):
                continue
            step = makers.get(u)
            cost = math.inf if step is None else self._work(step, to)
            work += cost
            if step is None or work > CHEAP:
                return None
            found[u] = step
            wanted += step.inputs
        fits = len(to.body) + len(self._taken.get(reader, ())) + len(found) <= MANY
        return [makers[u] for u in makers if u in found] if fits else None

    def _is_there(self, u: int, makers: Mapping[int, Step], group: Step, reader: int, v: int) -> bool:
        """Whether a later group finds a value of this one, without keeping anything large for it."""
        if u in makers and (u not in group.outputs or not self._readers.get(u)):
            return False
        if u in self._kept or self._nbytes(u) * SMALLER <= self._nbytes(v):
            return True
        return max(self._readers.get(u, ()), default=-1) >= reader

    def _work(self, step: Step, to: Step) -> float:
        """Infinite for a step that is not elementwise, or would split the loop in another way."""
        part = role(step, self._types)
        if kind_of(step.type) is not Kind.ELEMENTWISE or part is None or part.split < to.attrs["split"]:
            return math.inf
        if any(self._has_part_of_a_row(v, to) for v in step.inputs):
            return math.inf
        return self._element_work(step, self._types)

    def _has_part_of_a_row(self, v: int, to: Step) -> bool:
        """Whether a value has some of the axes of a row that steps of a group run along: no loop reads it."""
        space: Shape = to.attrs["space"]
        starts = [
            part.split
            for inner in to.body
            if kind_of(inner.type) is not Kind.ELEMENTWISE and 0 not in _axes(inner)
            if (part := role(inner, self._types)) is not None
        ]
        inner = ((1,) * len(space) + self._types[v].shape)[-len(space) :][min(starts, default=len(space)) :]
        return math.prod(inner) != 1 and inner != space[len(space) - len(inner) :]

    def _nbytes(self, v: int) -> int:
        spec: Spec = self._types[v]
        return spec.dtype.itemsize * math.prod(spec.shape)

    def _move(self, v: int, recipe: Sequence[Step], reader: int) -> None:
        """Compute a value in a later group, with new ids for all that its recipe makes."""
        ids: dict[int, int] = {}
        taken = []
        for step in recipe:
            (u,) = step.outputs
            ids[u] = len(self._types)
            self._types.append(self._types[u])
            for w in step.inputs:
                if w not in ids:
                    self._readers.setdefault(w, set()).add(reader)
            taken.append(replace(step, inputs=tuple([ids.get(w, w) for w in step.inputs]), outputs=(ids[u],)))
        before = [_reading(step, v, ids[v]) for step in self._taken.get(reader, ())]
        self._taken[reader] = taken + before
        to = self._steps[reader]
        self._steps[reader] = replace(to, body=tuple([_reading(step, v, ids[v]) for step in to.body]))

    def _put_together(self, i: int, step: Step) -> Step | None:
        """A group with its new body; None if nobody reads it any more."""
        if step.type != FUSED or not (i in self._taken or i in self._gone):
            return step
        given = {*step.outputs, *self._more.get(i, ())}.difference(self._gone.get(i, ()))
        outputs = tuple([v for inner in step.body for v in inner.outputs if v in given])
        body = tuple(_alive([*self._taken.get(i, ()), *step.body], outputs))
        made = {v for inner in body for v in inner.outputs}
        inputs = tuple(dict.fromkeys([v for inner in body for v in inner.inputs if v not in made]))
        return replace(step, inputs=inputs, outputs=outputs, body=body) if outputs else None


def _axes(step: Step) -> tuple[int, ...]:
    axes = step.attrs.get("axis", ())
    return axes if isinstance(axes, tuple) else (axes,)


def _reading(step: Step, v: int, other: int) -> Step:
    """The step with another value in place of one that it reads."""
    return replace(step, inputs=tuple([other if u == v else u for u in step.inputs])) if v in step.inputs else step


def _alive(body: Sequence[Step], outputs: Collection[int]) -> Iterator[Step]:
    """The steps that something reads."""
    read = set(outputs)
    kept = []
    for step in reversed(body):
        if not read.isdisjoint(step.outputs):
            kept.append(step)
            read.update(step.inputs)
    return itertools.chain(reversed(kept))
