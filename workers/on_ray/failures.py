"""What Ray raises for a task, sorted: the user's own error, a task that died, one that never had its inputs, and one
whose results had no room."""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from typing import Any, NoReturn

# For what goes to workers as for what comes back: a copy of cloudpickle knows the classes again that it sent, so that
# an error of a user's own class can be caught here as what it is. Ray's own copy is left to Ray.
import cloudpickle
from ray import exceptions

from distgrad.workers.fingerprint import Fingerprint
from distgrad.workers.on_ray.objects import FULL
from distgrad.workers.on_ray.shipping import BodyLost


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


class Differs(Exception):
    """What a worker raises instead of computing: its fingerprint is not the one that was agreed on. `task` is Ray's id
    of the task, because all that would have read of it ends with the same error."""

    def __init__(self, node: str, task: str, fields: tuple[tuple[str, str], ...]):
        super().__init__(node, task, fields)
        self.node, self.task, self.fields = node, task, fields


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
    """The task never began: what it reads was not made, or was lost (then `lost` names the object, or the body)."""

    reason: str
    lost: str | None = None


@dataclass(frozen=True, slots=True)
class Full:
    """The task ran, but what it made found no room in the store."""

    reason: str


@dataclass(frozen=True, slots=True)
class Refused:
    """The process would give other bits, and computed nothing."""

    node: str
    fingerprint: Fingerprint


Failure = UserError | Crashed | Collateral | Full | Refused

#: What is not the user's doing.
_SYSTEM = (
    exceptions.WorkerCrashedError, exceptions.NodeDiedError, exceptions.LocalRayletDiedError,
    exceptions.OutOfMemoryError, exceptions.TaskCancelledError, exceptions.ObjectLostError,
)  # fmt: skip
#: What Ray writes where a task failed with the error of something that it was to read.
_READING = "input arguments for this task could not be computed"


#: What Ray says where a worker lacks a package that a remote function needs.
_NO_IMPORT = "The remote function failed to import on the worker"


def classify(error: exceptions.RayError, task: str = "") -> Failure:
    """What to make of an error that came in place of the token of a task, which has this id of Ray's."""
    if not isinstance(error, exceptions.RayTaskError):
        if isinstance(error, FULL):
            return Full(_reason(error))
        lost = getattr(error, "object_ref_hex", None)
        return Collateral(_reason(error), lost) if lost else Crashed(_reason(error))
    cause: Any = error
    while isinstance(cause, exceptions.RayTaskError):
        cause = cause.cause
    if isinstance(cause, exceptions.ObjectLostError):
        return Collateral(_reason(cause), cause.object_ref_hex)
    if isinstance(cause, BodyLost):
        return Collateral(_reason(cause), cause.name)
    if isinstance(cause, FULL):
        return Collateral(_reason(cause)) if _READING in str(error) else Full(_reason(cause))
    if isinstance(cause, _SYSTEM):
        return Collateral(_reason(cause))
    if isinstance(cause, Differs):
        refused = Refused(cause.node, Fingerprint(cause.fields))
        return refused if cause.task == task else Collateral("what it reads was not made: its worker differs")
    if isinstance(cause, exceptions.RaySystemError | SystemExit):  # a worker that was told to end
        return Crashed(_reason(cause))
    if isinstance(cause, RuntimeError) and str(cause).startswith(_NO_IMPORT):
        return Crashed(f"its worker cannot import distgrad: {str(cause).strip().splitlines()[-1]}")
    if isinstance(cause, Raised):
        return UserError(cause.error(), cause.text)
    return UserError(cause if isinstance(cause, BaseException) else RuntimeError(str(error)), str(error))


def _reason(error: BaseException) -> str:
    first = (str(error).strip().splitlines() or [""])[0]
    return f"{type(error).__name__}: {first.rstrip('.')}" if first else type(error).__name__
