"""Values in the object store, and how they are made again when the node that held them is gone.

An object that lies on the driver's own node is as safe as the driver. Any other knows the run that made it: a record of
what that run was given. A record holds no object of the store but what was fed; so a chain of records costs little, and
is cut by bringing an object to the driver's node before it gets long.
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
    """An object of the store; let go with the last handle on a value of it. Without a record it lies on the driver's
    node, or was put there by the driver."""

    __slots__ = ("__weakref__", "nbytes", "record", "ref")

    def __init__(self, ref: Any, nbytes: int, record: tuple[Record, int] | None = None):
        self.ref, self.nbytes, self.record = ref, nbytes, record


class Value(Handle):
    """A value that lies in the store, one of the values of an object."""

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
        """Keep the array in this process: the store is about to go."""
        self._array = np.array(self.value())
        self._array.flags.writeable = False
        del self.stored


class Input:
    """What a run was given, as its record keeps it: an array, a safe object, or the way to make an object again."""

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
        """The run that has to run again for it; None where it is there."""
        if self.record is None or self.record[0].stored(self.record[1]) is not None:
            return None
        return self.record[0]

    def get(self) -> Array | Value:
        """The value, which has been made again if it was not there."""
        if isinstance(self.whole, np.ndarray):
            return self.whole
        stored = self.whole
        if stored is None and self.record is not None:
            stored = self.record[0].stored(self.record[1])
        assert stored is not None
        return Value(self._spec, self._link, stored, self._place)


class Record:
    """A run that made objects: all that is needed to run it again, with the same bits."""

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
        """An object of this run, as long as somebody has it."""
        return self._made[bundle]() if bundle in self._made else None

    def again(self, ends: float | None) -> None:
        """Run it once more, and before it the earlier runs whose objects it needs and nobody has: each of them once,
        in their order. Objects that somebody has get new references; others go after the last run that reads them."""
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
