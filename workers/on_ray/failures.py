"""Classifies what Ray raises for a task: the user's own error, a crash, inputs that were never made, a full store, or
a worker that was not admitted."""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from typing import Any, NoReturn

# Both ways use this copy of cloudpickle: it recognizes the classes that it sent, so that errors of the user's own
# classes can be caught by their type. Ray keeps its own copy.
import cloudpickle
from ray import exceptions

from distgrad.workers.fingerprint import Fingerprint
from distgrad.workers.on_ray.objects import FULL
from distgrad.workers.on_ray.shipping import BodyLost


class RemoteTraceback(Exception):
    """The traceback of an error on a worker, as text. It is the `__cause__` of the error that the driver raises."""

    def __init__(self, text: str):
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f"\n{self.text}"


class Raised(Exception):
    """Carries an error of a kernel to the driver: `whole` is the pickled error, `parts` its pickled type, arguments and
    attributes in case the error itself does not survive pickling, and `text` the traceback."""

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
        """The error itself, or one of its type with the parts that could be pickled."""
        whole = _loaded(self.whole)
        if isinstance(whole, BaseException):
            return whole
        made: BaseException
        try:
            kind, args, kept = _loaded(self.parts)
            made = kind.__new__(kind, *args)  # its __init__ may want other arguments
            vars(made).update(kept)
        except Exception:
            made = RuntimeError(f"a worker's error that cannot be pickled: {self.text.splitlines()[-1]}")
        return made


class Differs(Exception):
    """A worker refuses a task because its fingerprint is not the agreed one. `task` is Ray's id of the task: its
    readers fail with the same error."""

    def __init__(self, node: str, task: str, fields: tuple[tuple[str, str], ...]):
        super().__init__(node, task, fields)
        self.node, self.task, self.fields = node, task, fields


def _pickled(x: Any) -> bytes:
    """The pickled value; b"" if it cannot be pickled."""
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
        """Raise it here, with its notes and its traceback from the worker."""
        raise self.error from RemoteTraceback(self.text)


@dataclass(frozen=True, slots=True)
class Crashed:
    """The worker process or the node died, or the task was cancelled."""

    reason: str


@dataclass(frozen=True, slots=True)
class Collateral:
    """The task never began: an input was not made, or was lost. `lost` is the id of the lost object or body."""

    reason: str
    lost: str | None = None


@dataclass(frozen=True, slots=True)
class Full:
    """The task ran, but the object store had no room for its results."""

    reason: str


@dataclass(frozen=True, slots=True)
class Refused:
    """The worker would compute different bits, so it computed nothing."""

    node: str
    fingerprint: Fingerprint


Failure = UserError | Crashed | Collateral | Full | Refused

#: Errors of the system, not of the user's code.
_SYSTEM = (
    exceptions.WorkerCrashedError, exceptions.NodeDiedError, exceptions.LocalRayletDiedError,
    exceptions.OutOfMemoryError, exceptions.TaskCancelledError, exceptions.ObjectLostError,
)  # fmt: skip
#: Ray's text for a task that failed because one of its inputs did.
_READING = "input arguments for this task could not be computed"


#: Ray's text for a worker without a package that a remote function imports.
_NO_IMPORT = "The remote function failed to import on the worker"


def classify(error: exceptions.RayError, task: str = "") -> Failure:
    """Classify an error that arrived in place of a task's token; `task` is Ray's id of the task."""
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
        return refused if cause.task == task else Collateral("an input was not made: its worker was not admitted")
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
