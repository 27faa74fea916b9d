"""Values in the object store, and their lineage: how they are recomputed after the node that held them is lost.

An object on the driver's own node is as safe as the driver. Any other knows the run that made it: a record of that
run's inputs. A record keeps no objects of the store except feeds, so a lineage costs little; before it gets long, it is
cut by copying objects to the driver's node.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np

from distgrad.handles import Handle
from distgrad.types import Spec

if TYPE_CHECKING:
    from distgrad.workers.on_ray.engine import RayEngine
    from distgrad.workers.on_ray.link import Link

Array = np.ndarray[Any, np.dtype[Any]]

_numbers = count()


class Stored:
    """An object of the store; released with the last handle of one of its values. Without a record it is on the
    driver's node, or was put there by the driver."""

    __slots__ = ("__weakref__", "nbytes", "record", "ref")

    def __init__(self, ref: Any, nbytes: int, record: tuple[Record, int] | None = None):
        self.ref, self.nbytes, self.record = ref, nbytes, record


class Value(Handle):
    """A value in the store: the one at `place` of an object."""

    __slots__ = ("_array", "link", "place", "stored")

    def __init__(self, spec: Spec, link: Link, stored: Stored, place: int):
        super().__init__(spec)
        self.link, self.stored, self.place = link, stored, place
        self._array: Array | None = None
        link.values.add(self)

    def value(self) -> Array:
        if self._array is None:
            found: Array = self.link.fetch(self.stored)[self.place]
            return found
        return self._array

    def settle(self) -> None:
        """Copy the array into this process, before the store goes away."""
        self._array = np.array(self.value())
        self._array.flags.writeable = False
        del self.stored


class Input:
    """An input of a run, as its record keeps it: an array, a safe object, or the record that can recompute it."""

    __slots__ = ("_link", "_place", "_spec", "record", "whole")

    def __init__(self, value: Array | Handle):
        self.whole: Array | Stored | None = None
        self.record: tuple[Record, int] | None = None
        if isinstance(value, Value):
            self._spec, self._link, self._place = value.spec, value.link, value.place
            self.record = value.stored.record
            self.whole = value.stored if self.record is None else None
        elif isinstance(value, Handle):
            self.whole = value.value()
        else:
            self.whole = np.array(value)

    @property
    def maker(self) -> Record | None:
        """The run to replay for this input; None if its value exists."""
        if self.record is None or self.record[0].stored(self.record[1]) is not None:
            return None
        return self.record[0]

    def get(self) -> Array | Value:
        """The value; its maker has been replayed if it was missing."""
        if isinstance(self.whole, np.ndarray):
            return self.whole
        stored = self.whole
        if stored is None and self.record is not None:
            stored = self.record[0].stored(self.record[1])
        assert stored is not None
        return Value(self._spec, self._link, stored, self._place)


class Record:
    """A run that made objects: what is needed to replay it, with the same bits."""

    def __init__(self, engine: RayEngine, feeds: Sequence[Array | Handle], state: Mapping[str, Array | Handle]):
        self._engine, self._number = engine, next(_numbers)
        self._feeds = [Input(x) for x in feeds]
        self._state = {key: Input(x) for key, x in state.items()}
        self._made: dict[int, weakref.ref[Stored]] = {}
        self._inputs = inputs = [*self._feeds, *self._state.values()]
        earlier = [x.record[0] for x in inputs if x.record is not None]
        self.depth: int = 1 + max([run.depth for run in earlier], default=0)
        kept = sum([x.whole.nbytes for x in inputs if x.whole is not None])
        self.nbytes: int = kept + max([run.nbytes for run in earlier], default=0)

    def made(self, bundle: int, ref: Any, nbytes: int) -> Stored:
        stored = Stored(ref, nbytes, (self, bundle))
        self._made[bundle] = weakref.ref(stored)
        return stored

    @property
    def link(self) -> Link:
        return self._engine.link

    def stored(self, bundle: int) -> Stored | None:
        """An object of this run, as long as it is referenced."""
        return self._made[bundle]() if bundle in self._made else None

    def again(self, ends: float | None) -> None:
        """Replay the run, after the earlier runs whose lost objects it needs: each once, in their order. Objects that
        are still in use get new references; others are released after the last run that reads them."""
        runs = self._needed()
        last = {maker: run for run in runs for maker in run._makers()}
        held: dict[Record, list[Stored]] = {}
        for run in runs:
            held[run] = run._replay(ends)
            for done in [maker for maker in held if last.get(maker) is run]:
                del held[done]

    def _makers(self) -> list[Record]:
        return [maker for x in self._inputs if (maker := x.maker)]

    def _needed(self) -> list[Record]:
        found, stack = {self}, [self]
        while stack:
            for maker in stack.pop()._makers():
                if maker not in found:
                    found.add(maker)
                    stack.append(maker)
        return sorted(found, key=lambda run: run._number)

    def _replay(self, ends: float | None) -> list[Stored]:
        state = {key: x.get() for key, x in self._state.items()}
        refs = self._engine.run_again([x.get() for x in self._feeds], state, ends)
        made = []
        for bundle, (ref, nbytes) in refs.items():
            stored = self.stored(bundle) or self.made(bundle, ref, nbytes)
            stored.ref = ref
            made.append(stored)
        return made
