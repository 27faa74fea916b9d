"""What Ray raises for a task, sorted: the user's own error, a task that died, and one that never had its inputs."""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from typing import Any, NoReturn

import ray
from ray import exceptions

#: Ray's own, for what goes to workers as for what comes back: it knows the classes again that it sent, so that an error
#: of a user's own class can be caught here as what it is.
cloudpickle: Any = ray.cloudpickle


class RemoteTraceback(Exception):
    """The traceback of an error on a worker, as text: the cause of the error that is raised here."""

    def __init__(self, text: str):
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f"\n{self.text}"


class Raised(Exception):
    """What a kernel raised, on its way to the driver, in a form that every error has: `whole` as pickle has it, `parts`
    for errors that pickle cannot make or cannot read again, and `text`, the traceback."""

    def __init__(self, whole: bytes, parts: bytes, text: str):
        super().__init__(whole, parts, text)
        self.whole, self.parts, self.text = whole, parts, text

    @classmethod
    def of(cls, error: BaseException) -> Raised:
        text = "".join(traceback.format_exception(error)).rstrip()
        kept = {name: value for name, value in vars(error).items() if _pickled(value)}
        args = error.args if _pickled(error.args) else (str(error),)
        return cls(_pickled(error), _pickled((type(error), args, kept)), text)

    def error(self) -> BaseException:
        """The error itself, or one of its type with what of it can travel."""
        whole = _loaded(self.whole)
        if isinstance(whole, BaseException):
            return whole
        made: BaseException
        try:
            kind, args, kept = _loaded(self.parts)
            made = kind.__new__(kind, *args)  # its __init__ may want other arguments
            vars(made).update(kept)
        except Exception:
            made = RuntimeError(f"an error that cannot leave its process: {self.text.splitlines()[-1]}")
        return made


def _pickled(x: Any) -> bytes:
    """As bytes; none where that cannot be."""
    try:
        made: bytes = cloudpickle.dumps(x)
        return made
    except Exception:
        return b""


def _loaded(data: bytes) -> Any:
    try:
        return cloudpickle.loads(data) if data else None
    except Exception:
        return None


@dataclass(frozen=True, slots=True)
class UserError:
    """A kernel raised."""

    error: BaseException
    text: str

    def throw(self) -> NoReturn:
        """Raise it here, once: with the notes that it got on the worker and the traceback from there."""
        raise self.error from RemoteTraceback(self.text)


@dataclass(frozen=True, slots=True)
class Crashed:
    """The process or the node of the task ended, or it was cancelled."""

    reason: str


@dataclass(frozen=True, slots=True)
class Collateral:
    """The task never began: what it reads was not made, or was lost (then `lost` names the object)."""

    reason: str
    lost: str | None = None


Failure = UserError | Crashed | Collateral

#: What is not the user's doing.
_SYSTEM = (
    exceptions.WorkerCrashedError, exceptions.NodeDiedError, exceptions.LocalRayletDiedError,
    exceptions.OutOfMemoryError, exceptions.TaskCancelledError, exceptions.ObjectLostError,
    exceptions.ObjectStoreFullError,
)  # fmt: skip


def classify(error: exceptions.RayError) -> Failure:
    """What to make of an error that came in place of a token."""
    if not isinstance(error, exceptions.RayTaskError):
        lost = getattr(error, "object_ref_hex", None)
        return Collateral(_reason(error), lost) if lost else Crashed(_reason(error))
    cause: Any = error
    while isinstance(cause, exceptions.RayTaskError):
        cause = cause.cause
    if isinstance(cause, exceptions.ObjectLostError):
        return Collateral(_reason(cause), cause.object_ref_hex)
    if isinstance(cause, _SYSTEM):
        return Collateral(_reason(cause))
    if isinstance(cause, Raised):
        return UserError(cause.error(), cause.text)
    return UserError(cause if isinstance(cause, BaseException) else RuntimeError(str(error)), str(error))


def _reason(error: BaseException) -> str:
    first = (str(error).strip().splitlines() or [""])[0]
    return f"{type(error).__name__}: {first.rstrip('.')}" if first else type(error).__name__
