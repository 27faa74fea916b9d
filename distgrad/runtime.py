"""Who computes: the one seam between building and running.

Builders and functions may not import what runs them (layers point downwards), so a session hands itself in here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from distgrad.graph import Attrs, FuncGraph
from distgrad.types import DType, Shape

if TYPE_CHECKING:
    from distgrad.registry import OpDef

Array = np.ndarray[Any, np.dtype[Any]]


class Runtime(Protocol):
    """What building needs of a session."""

    def evaluate(
        self, definition: OpDef, inputs: Sequence[Array], attrs: Attrs, specs: Sequence[tuple[Shape, DType]]
    ) -> list[Array]:
        """Compute one op at once; the results have the types that its shape rule gave."""

    def call(self, body: FuncGraph, arguments: Sequence[Array]) -> list[Array]:
        """Run a root function body on its declared inputs, and commit its assigns."""


_sessions: list[Runtime] = []


def current() -> Runtime:
    """The innermost open session, or the default one."""
    return _sessions[-1]


def push(session: Runtime) -> None:
    _sessions.append(session)


def remove(session: Runtime) -> None:
    """Close a session wherever it stands: threads and notebooks do not always nest."""
    for i in range(len(_sessions) - 1, 0, -1):
        if _sessions[i] is session:
            del _sessions[i]
            return
