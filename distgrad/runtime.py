"""Who computes: the one seam between building and running.

Builders and functions may not import what runs them (layers point downwards), so a session hands itself in here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
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
        """Run a root function body on its declared inputs, and commit its assigns; the results are the caller's own."""

    def initial(self, make: Callable[[], Any], dtype: Any) -> Any:
        """What a function of no arguments gives, as the first value of a variable: an array or a handle."""

    def plan_call(self, body: FuncGraph) -> Any:
        """The plan that `call` would run."""

    @property
    def progress(self) -> str | None:
        """How it tells progress; None: as the process does."""


#: The open sessions, innermost last. Each thread (and each asyncio task) has its own, as each builds its own graphs.
_open: ContextVar[tuple[Runtime, ...]] = ContextVar("distgrad_sessions", default=())


def current() -> Runtime:
    """The innermost session that this thread has open, or the default one."""
    sessions = _open.get()
    return sessions[-1] if sessions else _default()


def progress() -> str | None:
    """How the innermost session that this thread has open tells progress; None: as the process does."""
    sessions = _open.get()
    return sessions[-1].progress if sessions else None


def _default() -> Runtime:
    raise RuntimeError("nothing runs yet: import distgrad.run.session")


def set_default(session: Callable[[], Runtime]) -> None:
    """What gives the session that runs where none is open; `distgrad.run.session` sets it when it is imported."""
    global _default
    _default = session


def push(session: Runtime) -> None:
    _open.set((*_open.get(), session))


def remove(session: Runtime) -> None:
    """Close a session wherever it stands: notebooks do not always nest."""
    sessions = _open.get()
    for i in range(len(sessions) - 1, -1, -1):
        if sessions[i] is session:
            _open.set((*sessions[:i], *sessions[i + 1 :]))
            return
