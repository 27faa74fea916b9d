"""Thread-safe access to variables: exclusive writers, atomic reads and writes of several variables.

A call that writes has exclusive access to its variables, including those that it only reads, from the first read to the
last write. So calls of several threads are serialized per variable. The values of several variables are read atomically
and set atomically, so a reader sees all of a call's writes or none.

A call may write over an array that nobody else refers to. It closes its variables first: from then to its end, readers
wait. Without the lock of the interpreter it would not be enough: a reader first takes its references and then looks
whether the variables are closed, a writer first closes them and then counts references, so one of them notices.

An interrupt (Ctrl-C) may arrive between any two Python instructions and needs no cleanup: a variable is free as soon as
the gate of its last call is unlocked, and a `with` statement on a lock always releases it.

"Atomically" means in one call into C that runs no Python code: other threads and signals wait until it returns, since
Python switches threads between instructions. The call frees no object and allocates none that the garbage collector
tracks, so no finalizer runs in it either: Python 3.11 collects on allocation (`getattr` and `setattr` do not even
allocate a tuple for their arguments), later versions between instructions. All of this relies on the global interpreter
lock; in free-threaded builds a reader could see only some of the writes.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Container, Sequence
from contextvars import ContextVar, copy_context
from itertools import chain, repeat
from operator import attrgetter, call
from typing import Any, Protocol, TypeVar

import numpy as np

from distgrad.result_buffers import ResultBuffer

Array = np.ndarray[Any, np.dtype[Any]]
R = TypeVar("R")


class Shared(Protocol):
    """A variable as calls see it: its value (an array or a handle), the gate of the last call that claimed it, which is
    locked while that call is running, and the gate of the last call that closed it for readers."""

    _value: Any
    gate: threading.Lock
    closed: threading.Lock


_gate, _closed = attrgetter("gate"), attrgetter("closed")
#: Held while gates are checked and set.
_claims = threading.Lock()
#: Gates of the calls that this thread is running; the threads of a run inherit them.
_calls: ContextVar[tuple[threading.Lock, ...]] = ContextVar("distgrad_calls", default=())


def alone(variables: Sequence[Shared], work: Callable[[], R]) -> R:
    """Run `work` with exclusive write access to these variables, and return its result.

    All variables are claimed together: no call holds some while it waits for others, so there is no deadlock.
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
                f"{mine[0]!r} is written by the call that is running, and a kernel or a signal handler inside this "
                f"call tries to write it too. Kernels must be pure: return the value, and assign it in the function."
            )
        with closed[0]:  # until that call ends
            pass


def take(variables: Sequence[Shared]) -> list[Any]:
    """The values of several variables, read atomically. As long as the caller refers to one, it does not change."""
    while True:
        values = _values(variables)
        closed = [gate for gate in map(_closed, variables) if gate.locked()]
        if not closed:
            return values
        if any(gate in _calls.get() for gate in closed):  # a signal handler or a finalizer inside that call
            return [x.copy() if isinstance(x, np.ndarray) else x for x in values]
        del values
        with closed[0]:  # until that call ends
            pass


def close(variables: Sequence[Shared]) -> None:
    """Keep readers from these variables until the call ends that has them alone, which is the innermost one here. Who
    has read a value before refers to it: the call may modify the others."""
    _set(variables, "closed", repeat(_calls.get()[-1]))


def put(variables: Sequence[Shared], values: Sequence[Any], first: Sequence[Callable[[], Any]] = ()) -> None:
    """Make some calls of C functions, and set several variables, all atomically. The old values are kept until all are
    set, because freeing one may run any code, such as a weak reference's callback, and may switch threads."""
    old = _values(variables)
    deque(chain(map(call, first), map(setattr, variables, repeat("_value"), values)), maxlen=0)
    del old  # any finalizer that runs here sees the new values


def _values(variables: Sequence[Shared]) -> list[Any]:
    return list(map(getattr, variables, repeat("_value")))


def _set(variables: Sequence[Shared], name: str, values: Any) -> None:
    deque(map(setattr, variables, repeat(name), values), maxlen=0)


def frozen(value: Array, shared: Container[int] = ()) -> Array:
    """A value that a variable can keep, because nobody else can write to it. `shared` has the ids of arrays that share
    memory with others."""
    flags, base = value.flags, value.base
    own = flags.owndata or isinstance(base, ResultBuffer)
    if not own or not flags.writeable or id(value if base is None else base) in shared:
        value = value.copy()
        flags = value.flags
    flags.writeable = False
    return value
