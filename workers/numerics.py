"""Finds NaN and Inf: whether the results of a run are finite, and if not, which op is to blame.

Only results and assigned values are checked, which costs one sweep over them. If they are not finite, the program is
run once more, op by op. An op is to blame if it makes a NaN from inputs without NaN, or an Inf from finite inputs, and
its output reaches a result. So an Inf that the user wrote (a mask of -inf) is allowed, masked values
(`where(x > 0, log(x), 0)`) are no error, and it does not matter how steps are fused or partitioned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from distgrad.errors import NumericsError, here
from distgrad.registry import OpDef
from distgrad.scheduler.passes.calls import expanded_program
from distgrad.scheduler.program import Program, Step
from distgrad.types import Spec, trainable
from distgrad.workers import reference

Array = np.ndarray[Any, np.dtype[Any]]

FINITE, INF, NAN = 0, 1, 2
_NAMES = {INF: "Inf", NAN: "NaN"}
_NUMBERS = (float, complex, np.ndarray, np.generic)


def worst(x: Array) -> int:
    """Whether an array is finite, has Inf, or has NaN. A finite sum proves that all elements are finite, in one sweep.

    >>> worst(np.ones(2)), worst(np.array([1.0, np.inf])), worst(np.array([np.inf, np.nan]))
    (0, 1, 2)
    """
    if not trainable(x.dtype):
        return FINITE
    with np.errstate(all="ignore"):
        if np.isfinite(np.add.reduce(x, axis=None)):
            return FINITE
    if np.isnan(x).any():
        return NAN
    return FINITE if np.isfinite(x).all() else INF  # the sum alone may overflow


def check(
    program: Program,
    made: Sequence[Array],
    feeds: Sequence[Array],
    state: Mapping[str, Array],
    names: Sequence[str],
    ops: Mapping[str, OpDef] | None = None,
) -> None:
    """Raise NumericsError, which names the op to blame, if an op of a run made NaN or Inf from these feeds and
    variables, or if one of them has NaN. `made` are the results, `names` those of the feeds, and `ops` the users' ops
    as they were when the program was compiled."""
    kinds = [worst(x) for x in made]
    if not any(kinds):
        return
    replay = _Replay(expanded_program(program), feeds, state, names, ops)
    replay.run()
    blamed = [replay.began[v] for v in program.wanted if v in replay.began]
    if blamed:
        raise NumericsError(replay.texts[min(blamed)])
    if any(kind > replay.kinds[v] for v, kind in zip(program.wanted, kinds, strict=True)):
        raise NumericsError(
            f"the run produced {_NAMES[max(kinds)]}, but not when it was repeated op by op with the plain kernels: "
            f"they differ in the last bits, or in what overflows"
        )


def check_op(op_type: str, made: Sequence[Array], inputs: Sequence[Array], attrs: Mapping[str, Any]) -> None:
    """The same for one op that was computed outside any graph."""
    known = max([_written(attrs), *map(worst, inputs)])
    for x in made:
        if worst(x) > known:
            raise NumericsError(blame(f"op type {op_type} (at {here()})", worst(x), x, inputs))


class _Replay:
    """Runs a program op by op, and tracks for each value whether it is finite, and which op it got NaN or Inf from."""

    def __init__(
        self,
        program: Program,
        feeds: Sequence[Array],
        state: Mapping[str, Array],
        names: Sequence[str],
        ops: Mapping[str, OpDef] | None,
    ):
        self.kinds: dict[int, int] = {}
        #: By value: the index of the text that names the op to blame.
        self.began: dict[int, int] = {}
        self.texts: list[str] = []
        self._program, self._ops = program, ops
        self._values: dict[int, Array] = {}
        for name, v, x in zip(names, program.feeds, feeds, strict=True):
            self._give(f"the value of {name!r}", v, x)
        for key, v in program.reads:
            self._give(f"variable {key.rpartition('#')[0]!r}", v, state[key])

    def _give(self, name: str, v: int, x: Array) -> None:
        """A NaN in an input is an error: unlike Inf, it is not used as a mask."""
        self._values[v] = x
        self.kinds[v] = worst(x)
        if self.kinds[v] == NAN:
            self._begin(v, f"{name} contains NaN{_where(np.isnan(x))}")

    def _begin(self, v: int, text: str) -> None:
        self.began[v] = len(self.texts)
        self.texts.append(text)

    def run(self) -> None:
        last = reference.last_uses(self._program)
        for i, step in enumerate(self._program.steps):
            for each in step.body or (step,):
                self._step(each)
            for v in last.get(i, ()):
                del self._values[v]

    def _step(self, step: Step) -> None:
        reference.run_steps((step,), self._program.types, self._values, self._ops)
        earlier = [self.began[v] for v in step.inputs if v in self.began]
        known = max([_written(step.attrs), *[self.kinds[v] for v in step.inputs]])
        for v in step.outputs:
            self.kinds[v] = kind = worst(self._values[v])
            if kind and earlier:
                self.began[v] = min(earlier)
            elif kind > known:
                self._begin(v, self._blame(step, v, kind))

    def _blame(self, step: Step, v: int, kind: int) -> str:
        return blame(reference.place(step), kind, self._values[v], [self._values[u] for u in step.inputs])


def blame(place: str, kind: int, made: Array, inputs: Sequence[Array]) -> str:
    """The error text for an op that made these results from these inputs."""
    bad = np.isnan(made) if kind == NAN else ~np.isfinite(made)
    ranges = ", ".join(f"{Spec(x.shape, x.dtype)}{_range(x)}" for x in inputs)
    return f"{place} produced {_NAMES[kind]}{_where(bad)}. Its inputs: {ranges}"


def _written(attrs: Mapping[str, Any]) -> int:
    """The worst number that the user wrote: the value of a constant, or an attribute of another op."""
    return max([worst(np.asarray(x)) for x in attrs.values() if isinstance(x, _NUMBERS)], default=FINITE)


def _where(bad: Array) -> str:
    if not bad.ndim:
        return ""
    return f" in {int(bad.sum())} of {bad.size} elements, first at {np.argwhere(bad)[0].tolist()}"


def _range(x: Array) -> str:
    if x.dtype.kind not in "iu" and (not trainable(x.dtype) or x.dtype.kind == "c"):
        return ""
    finite = x[np.isfinite(x)]
    if not finite.size:
        return " without a finite element"
    others = "" if finite.size == x.size else f" and {_NAMES[worst(x)]}"
    return f" in [{float(finite.min()):.6g}, {float(finite.max()):.6g}]{others}"
