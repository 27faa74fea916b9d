"""The current session: the only link from building graphs to running them.

Builders and functions must not import the layers that run them, so a session registers itself here.
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
    """The part of a session that building graphs needs."""

    def evaluate(
        self, definition: OpDef, inputs: Sequence[Array], attrs: Attrs, specs: Sequence[tuple[Shape, DType]]
    ) -> list[Array]:
        """Compute one op immediately; the results have the types given by its shape rule."""

    def call(self, body: FuncGraph, arguments: Sequence[Array]) -> list[Array]:
        """Run a root function body on its declared inputs (native arrays or handles) and commit its assigns. The caller
        owns the results."""

    def initial(self, make: Callable[[], Any], dtype: Any) -> Any:
        """The initial value of a variable, from a function without arguments: an array or a handle."""

    def plan_call(self, body: FuncGraph) -> Any:
        """The plan that `call` would run."""

    @property
    def progress(self) -> str | None:
        """How progress is shown; None: the default of the process."""


#: The open sessions, innermost last, per thread and asyncio task.
_open: ContextVar[tuple[Runtime, ...]] = ContextVar("distgrad_sessions", default=())


def current() -> Runtime:
    """The innermost open session of this thread, or the default one."""
    sessions = _open.get()
    return sessions[-1] if sessions else _default()


def progress() -> str | None:
    """How the innermost open session of this thread shows progress; None: the default of the process."""
    sessions = _open.get()
    return sessions[-1].progress if sessions else None


def _default() -> Runtime:
    raise RuntimeError("there is no session yet: import distgrad.run.session")


def set_default(session: Callable[[], Runtime]) -> None:
    """Set the function that returns the default session; `distgrad.run.session` calls this when imported."""
    global _default
    _default = session


def push(session: Runtime) -> None:
    _open.set((*_open.get(), session))


def remove(session: Runtime) -> None:
    """Remove a session from any position: notebooks do not always nest them."""
    sessions = _open.get()
    for i in range(len(sessions) - 1, -1, -1):
        if sessions[i] is session:
            _open.set((*sessions[:i], *sessions[i + 1 :]))
            return
