"""The state that calls share: taking the values of variables together, and setting them together.

A call that writes has its variables (those that it reads, too) to itself from the first read to the last write, so calls
of several threads happen one after another for each variable. Reading alone waits for nobody: the values of several
variables are taken in one go, and set in one go, so a reader sees all of a call's writes or none.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import repeat
from operator import attrgetter
from typing import Any

import numpy as np

from distgrad.variables import Variable

Array = np.ndarray[Any, np.dtype[Any]]

_value = attrgetter("_value")


def take(variables: Sequence[Variable]) -> list[Array]:
    """The values of several variables at one moment: no other thread runs during one call into C."""
    return list(map(_value, variables))


def put(variables: Sequence[Variable], values: Sequence[Array]) -> None:
    """Set several variables at one moment: no thread and no signal comes between, as all of it is one call into C."""
    deque(map(setattr, variables, repeat("_value"), values), maxlen=0)


@contextmanager
def held(variables: Sequence[Variable]) -> Iterator[None]:
    """Inside, no other thread writes these variables. Always taken in the same order, so nobody waits in a circle."""
    with ExitStack() as stack:
        for variable in sorted(variables, key=attrgetter("number")):
            stack.enter_context(variable.lock)
        yield


def frozen(value: Array, shared: Mapping[int, Any]) -> Array:
    """A value that a variable can keep: nobody else can write into it."""
    if value.base is not None or not value.flags.owndata or not value.flags.writeable or id(value) in shared:
        value = value.copy()
    value.flags.writeable = False
    return value
