"""The steps of a task as torch runs them: groups of steps with a common kernel become one step, and results overwrite
inputs that are not read again.

Pure functions on lists; torch is not imported. The groups are in rules.py and attention.py, their kernels in fused.py.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from distgrad.registry import Kind, kind_of
from distgrad.scheduler.program import Step
from distgrad.types import Spec
from distgrad.workers.backends.torch.fused import FUSED_KERNELS, OVER
from distgrad.workers.kernels.table import KERNELS_OF

Array = np.ndarray[Any, np.dtype[Any]]


class TorchStep(NamedTuple):
    """One call: an op type, or one of fused.py, with the ids of its inputs and outputs."""

    type: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    attrs: Mapping[str, Any]
    #: The step that errors name.
    step: Step
    #: Index of the input that the result overwrites.
    over: int | None = None


class TorchSteps:
    """The steps of a task by position, with indexes to search for groups.

    Args:
        steps: of a task, without constants and with fused groups flattened.
        types: of all values of the program.
        constants: the arrays of constant values.
        kept: the inputs and outputs of the task, which must not be removed or overwritten.
    """

    def __init__(
        self, steps: Sequence[Step], types: Sequence[Spec], constants: Mapping[int, Array], kept: Collection[int]
    ):
        self.at = {i: TorchStep(s.type, s.inputs, s.outputs, s.attrs, s) for i, s in enumerate(steps)}
        self.types, self.constants, self.kept = types, constants, kept
        self._made = {v: i for i, work in self.at.items() for v in work.outputs}
        self._used: dict[int, list[int]] = {}
        for i, work in self.at.items():
            self._use(i, work)
        self._next = len(types)

    def _use(self, i: int, work: TorchStep) -> None:
        for v in dict.fromkeys(work.inputs):
            self._used.setdefault(v, []).append(i)

    def of(self, *types: str) -> Iterator[int]:
        """The positions of the steps of these types at this moment."""
        yield from [i for i, work in self.at.items() if work.type in types]

    def maker(self, v: int, op_type: str) -> int | None:
        """The position of the step that makes a value, if it has this type."""
        i = self._made.get(v)
        return i if i is not None and self.at[i].type == op_type else None

    def users(self, v: int, *types: str) -> list[int]:
        """The positions of the steps that read a value: all of them, or those of some types."""
        return [i for i in self._used.get(v, ()) if not types or self.at[i].type in types]

    def user(self, v: int, *types: str) -> int | None:
        """The position of the only step of these types that reads a value; None if there are several."""
        found = self.users(v, *types)
        return found[0] if len(found) == 1 else None

    def scalar(self, v: int) -> float | None:
        """The number that all elements of a constant are equal to, if v is such a constant."""
        x = self.constants.get(v)
        if x is None or not x.size or x.dtype.kind not in "fiu":
            return None
        first = x.flat[0]
        return float(first) if x.size == 1 or bool((x == first).all()) else None

    def new_value(self) -> int:
        self._next += 1
        return self._next - 1

    def closed(self, group: Collection[int], inputs: Collection[int], outputs: Collection[int]) -> bool:
        """Whether the values that a group makes, except these outputs, are read only inside it, and are not among the
        inputs of the step that will replace it."""
        inner = [v for i in group for v in self.at[i].outputs if v not in outputs]
        alone = [all(i in group for i in self._used.get(v, ())) for v in inner]
        return all(alone) and not any(v in self.kept or v in inputs for v in inner)

    def replace(self, gone: Iterable[int], at: int, work: TorchStep) -> None:
        """Put a step at position `at`, and remove the steps at `gone`."""
        for i in dict.fromkeys((*gone, at)):
            if i in self.at:
                old = self.at[i] if i == at else self.at.pop(i)
                for v in dict.fromkeys(old.inputs):
                    self._used[v].remove(i)
        self.at[at] = work
        self._made.update(dict.fromkeys(work.outputs, at))
        self._use(at, work)


# -- overwriting dead values ------------------------------------------------------------------------------------

#: Kinds of ops whose results never share memory with inputs.
_FRESH = frozenset((Kind.ROWWISE, Kind.CONVOLUTION))


def _is_fresh(work: TorchStep) -> bool:
    """Whether the result shares no memory with inputs. The result of a generic kernel may share that of any input."""
    kind = kind_of(work.type)
    if kind is Kind.ELEMENTWISE:
        return work.type in KERNELS_OF["torch"] and not (work.type == "AddN" and len(work.inputs) == 1)
    if kind is Kind.REDUCTION:
        return work.type in KERNELS_OF["torch"] and bool(work.attrs["axis"])
    if work.type in FUSED_KERNELS:
        return work.type != "View"
    return kind in _FRESH or work.type == "MatMul" or work.type == "Gather"


def _is_elementwise(work: TorchStep) -> bool:
    """Whether it can be computed into any tensor of the result's type, including its inputs. A sum of more than two
    terms cannot: it reads inputs after it has begun to write."""
    return work.type in OVER and (work.type != "AddN" or len(work.inputs) == 2)


def write_over(works: Sequence[TorchStep], types: Sequence[Spec], kept: Collection[int]) -> list[TorchStep]:
    """The same steps, in which elementwise results overwrite an input of the same type that is not read again."""
    memory = _memories(works)
    fresh = {v for work in works if _is_fresh(work) for v in work.outputs if v < len(types)}
    last = {memory(v): i for i, work in enumerate(works) for v in (*work.inputs, *work.outputs)}
    last.update((memory(v), len(works)) for v in kept)

    def is_free(i: int, u: int) -> bool:
        work = works[i]
        alone = all(memory(w) != memory(u) for w in work.inputs if w != u)
        return u in fresh and last[memory(u)] == i and alone and types[u] == types[work.outputs[0]]

    def placed(i: int, work: TorchStep) -> TorchStep:
        if not _is_elementwise(work):
            return work
        return work._replace(over=next((k for k, u in enumerate(work.inputs) if is_free(i, u)), None))

    return [placed(i, work) for i, work in enumerate(works)]


def _memories(works: Sequence[TorchStep]) -> Callable[[int], int]:
    """A function from a value to a name of its memory. Values that may share memory have the same name."""
    above: dict[int, int] = {}

    def name(v: int) -> int:
        while v in above:
            above[v] = v = above.get(above[v], above[v])
        return v

    for work in works:
        if not _is_fresh(work):
            names = {name(v) for v in (*work.inputs, *work.outputs)}
            above.update(dict.fromkeys(names - {chosen := min(names, default=0)}, chosen))
    return name
