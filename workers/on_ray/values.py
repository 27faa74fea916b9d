"""Values in the object store, and how they are made again when the node that held them is gone.

An object that lies on the driver's own node is as safe as the driver. Any other knows the run that made it: a record of
what that run was given. A record holds no object of the store but what was fed; so a chain of records costs little, and
is cut by bringing an object to the driver's node before it gets long.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from distgrad.handles import Handle
from distgrad.types import Spec

if TYPE_CHECKING:
    from distgrad.workers.on_ray.engine import RayEngine
    from distgrad.workers.on_ray.link import Link

Array = np.ndarray[Any, np.dtype[Any]]


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
            return self.link.fetch(self.stored)[self.place]
        return self._array

    def settle(self) -> None:
        """Keep the array in this process: the store is about to go."""
        self._array = np.array(self.value())
        self._array.flags.writeable = False
        del self.stored


class Input:
    """What a run was given, as its record keeps it: an array, a safe object, or the way to make an object again."""

    __slots__ = ("_spec", "_stored", "link", "place", "record", "whole")

    def __init__(self, value: Array | Handle):
        self.whole: Array | Stored | None = None
        if isinstance(value, Value):
            self._spec, self.link, self.place = value.spec, value.link, value.place
            self._stored, self.record = weakref.ref(value.stored), value.stored.record
            self.whole = value.stored if self.record is None else None
        elif isinstance(value, Handle):
            self.whole = value.value()
        else:
            self.whole = np.array(value)

    def get(self) -> Array | Value:
        if isinstance(self.whole, np.ndarray):
            return self.whole
        stored = self.whole or self._stored()
        if stored is None:
            assert self.record is not None
            stored = self.record[0].again()[self.record[1]]
        return Value(self._spec, self.link, stored, self.place)


class Record:
    """A run that made objects: all that is needed to run it again, with the same bits."""

    def __init__(self, engine: RayEngine, feeds: Sequence[Array | Handle], state: Mapping[str, Array | Handle]):
        self._engine = engine
        self._feeds = [Input(x) for x in feeds]
        self._state = {key: Input(x) for key, x in state.items()}
        self._made: dict[int, weakref.ref[Stored]] = {}
        inputs = [*self._feeds, *self._state.values()]
        self.depth = 1 + max([x.record[0].depth for x in inputs if x.whole is None], default=0)
        kept = sum([x.whole.nbytes for x in inputs if x.whole is not None])
        self.nbytes = kept + max([x.record[0].nbytes for x in inputs if x.whole is None], default=0)

    def made(self, bundle: int, ref: Any, nbytes: int) -> Stored:
        stored = Stored(ref, nbytes, (self, bundle))
        self._made[bundle] = weakref.ref(stored)
        return stored

    def again(self) -> dict[int, Stored]:
        """Run it once more; objects that somebody still has get the new references."""
        refs = self._engine.run_again([x.get() for x in self._feeds], {k: x.get() for k, x in self._state.items()})
        found: dict[int, Stored] = {}
        for bundle, (ref, nbytes) in refs.items():
            stored = self._made[bundle]() if bundle in self._made else None
            if stored is None:
                stored = self.made(bundle, ref, nbytes)
            stored.ref = ref
            found[bundle] = stored
        return found
