"""Updates in place: which results of updates are computed over the array that they replace some elements of.

An update makes a new version of an array. If nothing reads the old one afterwards, the new one takes its memory, so
that n assignments to one array cost what they assign. Parts of the old version that were taken before the update and
are read after it are copies instead of views, if they have fewer bytes than the whole. Otherwise the update copies all
of the array.

The NumPy engine and the predictions of its memory ask this about the steps of a task, in the order in which they run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from distgrad.registry import OPS, View, view_of
from distgrad.scheduler.program import Step


@dataclass(frozen=True, slots=True)
class Overwriting:
    """What a task does with the arrays that it updates."""

    #: Results that take the memory of the first input of their step.
    in_place: set[int] = field(default_factory=set)
    #: Views that are copies instead, because they are read after the memory that they would see was overwritten.
    copied: set[int] = field(default_factory=set)
    #: Results of updates that copy the whole array, with the step that reads the old version later.
    whole: dict[int, Step | None] = field(default_factory=dict)

    def source(self, step: Step, k: int) -> int | None:
        """The input whose memory the k-th result of a step sees, or takes; None if it has memory of its own."""
        v = step.outputs[k]
        if v in self.in_place:
            return step.inputs[0]
        view = view_of(step.type)
        if view is None or v in self.copied:
            return None
        return step.inputs[k] if view is View.SAME else step.inputs[0]


NOTHING = Overwriting()


def overwriting(steps: Sequence[Step], nbytes: Sequence[int], gives: Iterable[int]) -> Overwriting:
    """What these steps overwrite; `gives` are the results that must be there at the end.

    >>> import distgrad as dg
    >>> from distgrad.scheduler.program import lower
    >>> with dg.Graph():
    ...     x = dg.placeholder((3,))
    ...     old = dg.exp(x)
    ...     part, new = old[1:], old.at[0].set(2.0)
    ...     programs = [lower(fetches, [x]) for fetches in ([new], [new, part], [new, dg.sin(old)])]
    >>> found = [overwriting(p.steps, [24, 24, 16, 8, 24, 24], p.fetches) for p in programs]
    >>> [(len(each.in_place), len(each.copied), len(each.whole)) for each in found]
    [(1, 0, 0), (1, 1, 0), (0, 0, 1)]
    """
    if not any(updates(op_type) for op_type in {step.type for step in steps}):
        return NOTHING
    return _Finder(steps, nbytes, gives).run()


def updates(op_type: str) -> bool:
    """Whether a built-in op makes its first input with some elements replaced."""
    definition = OPS.get(op_type)
    return definition is not None and definition.updates and definition.kernel is None


class _Finder:
    """One pass from the last step to the first finds when each value is read last, one from the first to the last what
    is overwritten."""

    def __init__(self, steps: Sequence[Step], nbytes: Sequence[int], gives: Iterable[int]):
        self.steps, self.nbytes = steps, nbytes
        #: By value: the last step that reads it, itself or through a view. That of results is behind the last one.
        self.last: dict[int, int] = dict.fromkeys(gives, len(steps))
        #: By value: the last step that reads it itself, but for views; and its views.
        self.direct = dict(self.last)
        self.views: dict[int, list[tuple[int, int]]] = {}
        self.maker: dict[int, int] = {}
        self._look_back()

    def _look_back(self) -> None:
        last, direct, views = self.last, self.direct, self.views
        for i in range(len(self.steps) - 1, -1, -1):
            step = self.steps[i]
            for v in step.outputs:
                self.maker[v] = i
            view = view_of(step.type)
            if view is None:
                for v in step.inputs:
                    last.setdefault(v, i)
                    direct.setdefault(v, i)
                continue
            for k, v in enumerate(step.outputs):
                seen = step.inputs[k if view is View.SAME else 0]
                last[seen] = max(last.get(seen, i), last.get(v, i))
                views.setdefault(seen, []).append((i, v))

    def run(self) -> Overwriting:
        found = Overwriting()
        for i, step in enumerate(self.steps):
            if updates(step.type) and self._owned(step.inputs[0]):
                self._decide(i, step, found)
        return found

    def _owned(self, v: int) -> bool:
        """Whether a value is an array that the task makes, no constant and no view."""
        maker = self.maker.get(v)
        return maker is not None and view_of(self.steps[maker].type) is None and self.steps[maker].type != "Const"

    def _decide(self, i: int, step: Step, found: Overwriting) -> None:
        """In place, if all that is read of the old version from here on are parts of it, with fewer bytes."""
        base, (v,) = step.inputs[0], step.outputs
        if self.direct[base] > i or base in step.inputs[1:]:
            found.whole[v] = self._reader(self.direct[base])
            return
        later = [(at, seen) for at, seen in self.views.get(base, ()) if self.last.get(seen, at) >= i]
        if any(at > i or len(self.steps[at].outputs) > 1 for at, _ in later) or (
            sum([self.nbytes[seen] for _, seen in later]) >= self.nbytes[base] > 0 and later
        ):
            found.whole[v] = self._reader(max([max(at, self.last.get(seen, at)) for at, seen in later]))
            return
        found.in_place.add(v)
        found.copied.update([seen for _, seen in later])

    def _reader(self, i: int) -> Step | None:
        return self.steps[i] if i < len(self.steps) else None
