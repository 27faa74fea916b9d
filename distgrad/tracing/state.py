"""The state that calls share: having variables to oneself, taking their values together, setting them together.

A call that writes has its variables (those that it reads, too) to itself from the first read to the last write, so
calls of several threads happen one after another for each variable. Reading alone waits for nobody: the values of
several variables are taken in one go, and set in one go, so a reader sees all of a call's writes or none.

An interrupt (Ctrl-C) may come between any two instructions of Python. Nothing has to be put right after one: what a
call claimed is free again when its gate is, and a `with` statement on a lock lets go of it whatever happens.

"At one moment" means: in one call into C, in which no Python code runs. Other threads and signals wait until it is over
(Python hands over between instructions). It lets go of no object, and it makes none that the garbage collector counts,
so no finalizer runs in it either: Python 3.11 collects when such an object is made (`getattr` and `setattr` make not
even a tuple of their arguments), later versions between instructions. All of that rests on the global interpreter lock:
without it (free-threaded builds) a reader could see some of the writes.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Container, Sequence
from contextvars import ContextVar, copy_context
from itertools import repeat
from operator import attrgetter
from typing import Any, Protocol, TypeVar

import numpy as np

from distgrad.result_buffers import ResultBuffer

Array = np.ndarray[Any, np.dtype[Any]]
R = TypeVar("R")


class Shared(Protocol):
    """What calls share: a value (an array or a handle) that is never written into, and the gate of the call that
    claimed it last, which is locked as long as that call is under way."""

    _value: Any
    gate: threading.Lock


_gate = attrgetter("gate")
#: Held while gates are looked at and set.
_claims = threading.Lock()
#: The gates of the calls that this thread is in the middle of; the threads of a run know them, too.
_calls: ContextVar[tuple[threading.Lock, ...]] = ContextVar("distgrad_calls", default=())


def alone(variables: Sequence[Shared], work: Callable[[], R]) -> R:
    """What `work` gives; until it ends, no other call writes these variables.

    All are claimed at once, so nobody has some and waits for others: no two calls wait for each other.
    """
    gate = threading.Lock()
    with gate:
        _claim(variables, gate)
        made = copy_context().run(_known, gate, work)
    return made


def _known(gate: threading.Lock, work: Callable[[], R]) -> R:
    _calls.set((*_calls.get(), gate))
    return work()


def _claim(variables: Sequence[Shared], gate: threading.Lock) -> None:
    while True:
        with _claims:
            closed = [g for g in map(_gate, variables) if g.locked()]
            if not closed:
                _set(variables, "gate", repeat(gate))
                return
        mine = [v for v in variables if v.gate in _calls.get() and v.gate in closed]
        if mine:
            raise RuntimeError(
                f"{mine[0]!r} is written by the call that is under way, and would be written once more inside of it, "
                f"by a kernel or a signal handler. Kernels are pure: return the value, and assign it in the function."
            )
        with closed[0]:  # until that call ends
            pass


def take(variables: Sequence[Shared]) -> list[Any]:
    """The values of several variables at one moment."""
    return list(map(getattr, variables, repeat("_value")))


def put(variables: Sequence[Shared], values: Sequence[Any]) -> None:
    """Set several variables at one moment. Their old values live on until all are set: to let go of one may run any
    code, such as the callback of a weak reference to it, and may let another thread run."""
    old = take(variables)
    _set(variables, "_value", values)
    del old  # not before; what runs now sees the new values


def _set(variables: Sequence[Shared], name: str, values: Any) -> None:
    deque(map(setattr, variables, repeat(name), values), maxlen=0)


def frozen(value: Array, shared: Container[int] = ()) -> Array:
    """A value that a variable can keep: nobody else can write into it. `shared` has the ids of what holds the memory
    of others."""
    flags, base = value.flags, value.base
    own = flags.owndata or isinstance(base, ResultBuffer)
    if not own or not flags.writeable or id(value if base is None else base) in shared:
        value = value.copy()
        flags = value.flags
    flags.writeable = False
    return value
