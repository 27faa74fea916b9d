"""Error classes, and the user's file and line that an op comes from. Knows nothing of graphs."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import NamedTuple

# Installed, the other two source folders are inside this one; in a checkout scheduler/ and workers/ are its siblings.
_HERE = os.path.dirname(os.path.abspath(__file__))
_SIBLINGS = () if os.path.isdir(os.path.join(_HERE, "workers")) else ("scheduler", "workers")
_ROOTS = tuple(path + os.sep for path in (_HERE, *(os.path.join(os.path.dirname(_HERE), name) for name in _SIBLINGS)))
_verdicts: dict[str, bool] = {}


class Source(NamedTuple):
    """A line of the user's code.

    >>> str(Source("/home/me/train.py", 41, "loss"))
    'train.py:41'
    """

    filename: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.filename.rpartition(os.sep)[2]}:{self.line}"


UNKNOWN = Source("<unknown>", 0, "<unknown>")


def is_internal(filename: str) -> bool:
    """Whether a file belongs to distgrad; its doctests and tests count as user code."""
    verdict = _verdicts.get(filename)
    if verdict is None:
        verdict = _verdicts[filename] = os.path.abspath(filename).startswith(_ROOTS) or filename.startswith("<frozen")
    return verdict


def user_frame(depth: int = 1) -> FrameType | None:
    """The innermost frame outside distgrad. Runs once per op, hence the cache."""
    frame: FrameType | None = sys._getframe(depth)
    verdicts = _verdicts
    while frame is not None:
        filename = frame.f_code.co_filename
        verdict = verdicts.get(filename)
        if verdict is None:
            verdict = is_internal(filename)
        if not verdict:
            return frame
        frame = frame.f_back
    return None


# By id: hashing a code object costs more than finding its line. Holding the code object keeps its id from being reused.
_sources: dict[int, tuple[CodeType, dict[int, Source]]] = {}


def resolve(code: CodeType | None, lasti: int) -> Source:
    """The source line of an instruction. Resolved lazily: finding a line costs more than building an op."""
    if code is None:
        return UNKNOWN
    known = _sources.setdefault(id(code), (code, {}))[1]
    found = known.get(lasti)
    if found is None:
        lines = (line for start, end, line in code.co_lines() if start <= lasti < end and line is not None)
        found = known[lasti] = Source(code.co_filename, next(lines, code.co_firstlineno), code.co_name)
    return found


def here(depth: int = 2) -> Source:
    """The user's line that is running now."""
    frame = user_frame(depth)
    return UNKNOWN if frame is None else resolve(frame.f_code, frame.f_lasti)


class BudgetError(MemoryError):
    """A run was refused before it began, because its predicted peak memory exceeds the limit.

    >>> import numpy, distgrad as dg
    >>> outer = dg.function(lambda x: x[:, None] * x)
    >>> with dg.Session(memory="1 MiB"):
    ...     outer(numpy.ones(1000))
    Traceback (most recent call last):
    distgrad.errors.BudgetError: the run would need 7.6 MiB at its peak, but may use only 1.0 MiB. ...
    """


class DeviceError(ValueError):
    """A run was refused before it began, because the cluster lacks a device that an op asks for.

    >>> import distgrad as dg
    >>> with dg.Graph(), dg.device("gpu"):
    ...     y = dg.constant([1.0, 2.0])
    >>> dg.Session(threads=2).run(y)
    Traceback (most recent call last):
    distgrad.errors.DeviceError: op 'Const' (type Const, ...) asks for device 'gpu', but no worker has a GPU. ...
    """


class TaskFailed(RuntimeError):
    """On a cluster: a task failed on all of its attempts, because its process or node died or hung each time. Errors of
    user code are raised unchanged and are not retried.

    >>> import distgrad as dg
    >>> issubclass(dg.TaskFailed, RuntimeError)
    True
    """


class StoreFull(TaskFailed):
    """On a cluster: the arguments or results of a call fit neither in Ray's object store nor on the disk that it spills
    to. Variables are unchanged.

    >>> import distgrad as dg
    >>> issubclass(dg.StoreFull, dg.TaskFailed)
    True
    """


class FingerprintError(RuntimeError):
    """On a cluster: no node can compute the bits that the session promises, because package versions differ, or CPUs
    and settings do not allow the same kernels. `Session("ray", bits="any")` runs without that guarantee.

    >>> import distgrad as dg
    >>> issubclass(dg.FingerprintError, RuntimeError)
    True
    """


class ClusterLost(ConnectionError):
    """On a cluster: Ray has ended or no longer answers. The session cannot be used any more: every call to it raises
    this error. Values in this process stay usable.

    >>> import distgrad as dg
    >>> issubclass(dg.ClusterLost, ConnectionError)
    True
    """


class CheckpointError(ValueError):
    """A checkpoint or tensor file is damaged, or does not match what was requested.

    >>> import tempfile, numpy, distgrad as dg
    >>> path = tempfile.mkdtemp()
    >>> dg.save_checkpoint(path, [dg.Variable([1.0, 2.0], name="w")])
    >>> dg.restore_checkpoint(path, [dg.Variable([1.0, 2.0, 3.0], name="w")])
    Traceback (most recent call last):
    distgrad.errors.CheckpointError: variable 'w' is f64[3], but ... has f64[2] under this name. ...
    """


class NumericsError(FloatingPointError):
    """With `check_numerics=True`: an op produced a NaN or an Inf, or an input contains NaN.

    >>> import numpy, distgrad as dg
    >>> root = dg.function(lambda x: dg.sqrt(x) + 1)
    >>> with dg.Session(check_numerics=True):
    ...     root(numpy.array([4.0, -4.0]))
    Traceback (most recent call last):
    distgrad.errors.NumericsError: op 'Sqrt' (type Sqrt, ...) produced NaN in 1 of 2 elements, first at [1]. ...
    """


class NoValueError(TypeError):
    """The value of a tensor was used while the graph is being built."""


@contextmanager
def unwrap_tensor_errors() -> Iterator[None]:
    """For user code. If it writes a tensor into an array, NumPy wraps the tensor's NoValueError in a ValueError about
    sequences; raise the original error instead."""
    try:
        yield
    except ValueError as e:
        cause = e.__cause__
        if isinstance(cause, NoValueError):
            raise cause.with_traceback(e.__traceback__) from None
        raise
