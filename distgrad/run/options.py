"""The options of a session, one field each: type, default, kind and help text.

The signature, checks and documentation of `Session` are generated from these fields, and so are command-line options.
The settings of engines have the same names. This module imports the planner and the engines only inside functions.
"""

from __future__ import annotations

import difflib
import inspect
import math
import os
import textwrap
from collections.abc import Callable
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field, fields
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, NamedTuple, ParamSpec, TypeVar

import numpy as np

from distgrad import progress
from distgrad.printing import bytes_from
from distgrad.types import brief

if TYPE_CHECKING:
    from distgrad.scheduler.cluster import Cluster

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")

#: Maximum number of threads of a local session; more is taken for a mistake.
MAX_THREADS = 1024


# -- kinds of values ---------------------------------------------------------------------------------------------


class Kind(NamedTuple):
    """A kind of value. `check(name, value)` returns the value to use, or raises an error that says what is allowed; it
    is not called for a default of None. The command line parses `type` and shows `metavar` in its help."""

    check: Callable[[str, Any], Any]
    type: type = str
    metavar: str | None = None


def _engine(name: str, value: Any) -> str:
    from distgrad.scheduler.cluster import ENGINES

    if not isinstance(value, str) or value not in ENGINES:
        raise ValueError(f"unknown engine {brief(value)}; there are {' and '.join(map(repr, ENGINES))}")
    return value


def _count(name: str, value: Any) -> int:
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name} is a positive whole number, got {brief(value)}")
    return int(value)


def _threads(name: str, value: Any) -> int:
    count = _count(name, value)
    if count > MAX_THREADS:
        raise ValueError(f"{name} is {count}; the maximum is {MAX_THREADS}")
    return count


def _workers(name: str, value: Any) -> int:
    from distgrad.scheduler.cluster import MOST_WORKERS

    return _at_most(MOST_WORKERS, name, _count(name, value))


def _cpus(name: str, value: Any) -> int:
    from distgrad.scheduler.cluster import LIMITS

    return _at_most(LIMITS["cpus"][1], name, _count(name, value))


def _at_most(most: int, name: str, count: int) -> int:
    """Raise ValueError for a number that no cluster has; a local Ray would accept it as its number of CPUs."""
    if count > most:
        raise ValueError(f"{name} is {count}; the maximum is {most}")
    return count


def _number(value: Any) -> float:
    """The value as a float; NaN if it is not a number."""
    if isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool):
        with suppress(OverflowError):  # an integer of hundreds of digits
            return float(value)
    return math.nan


def _seconds(name: str, value: Any) -> float:
    seconds = _number(value)
    if not 0 < seconds < math.inf:
        raise ValueError(f"{name} is a positive number of seconds, got {brief(value)}")
    return seconds


def _bytes(name: str, value: Any) -> int:
    """
    >>> _bytes("memory", "1.5 GiB"), _bytes("memory", 10**9)
    (1610612736, 1000000000)
    """
    found = bytes_from(value) if isinstance(value, str) else _number(value)
    if found is None or not 1 <= found < math.inf:
        raise ValueError(f"{name} is a positive number of bytes or text such as '4 GiB', got {brief(value)}")
    return int(found)


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{name} is True or False, got {brief(value)}")
    return bool(value)


def _library(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name} is the name of an array library, such as 'numpy', got {brief(value)}")
    return value


def _cluster(name: str, value: Any) -> Cluster | str | os.PathLike[str]:
    from distgrad.scheduler.cluster import Cluster

    if not isinstance(value, Cluster | str | os.PathLike):
        raise TypeError(f"{name} is a Cluster or the path of a cluster file, got {brief(value)}")
    return value


def _address(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name} is the address of a Ray cluster, such as 'auto', got {brief(value)}")
    return value


def _bits(name: str, value: Any) -> str:
    if not isinstance(value, str) or value not in ("same", "any"):
        raise ValueError(f"{name} is 'same' or 'any', got {brief(value)}")
    return value


def _trace(name: str, value: Any) -> str | os.PathLike[str] | bool | None:
    if not isinstance(value, bool | str | os.PathLike):
        raise TypeError(f"{name} is True or the path of a .json or .html file, got {brief(value)}")
    return value or None


def _progress(name: str, value: Any) -> str:
    named = ("live" if value else "off") if isinstance(value, bool) else value
    if not isinstance(named, str) or named not in progress.MODES:
        modes = ", ".join(map(repr, progress.MODES))
        raise ValueError(f"{name} is one of {modes}, True or False, got {brief(value)}")
    return progress.resolved(named)


COUNT = Kind(_count, int, "N")
SECONDS = Kind(_seconds, float, "SECONDS")
BYTES = Kind(_bytes, str, "BYTES")
FLAG = Kind(_flag, bool)


# -- the options -------------------------------------------------------------------------------------------------


def option(default: Any, kind: Kind, text: str, *, engine: str | None = None, cli: bool = False) -> Any:
    """A field. `engine`: the only engine with this option, if any. `cli`: `distgrad run` and `submit` have it too, with
    the first sentence of `text` as help."""
    text = " ".join(text.split())
    return field(default=default, metadata={"kind": kind, "text": text, "engine": engine, "cli": cli})


@dataclass(frozen=True)
class SessionOptions:
    """The options of a session, each value as returned by its kind."""

    # fmt: off
    engine: str = option("local", Kind(_engine), '"local" or "ray".')
    _: KW_ONLY
    threads: int | None = option(
        None, Kind(_threads, int, "N"),
        "number of threads of a run. The default is all cores that this process may use.",
        engine="local", cli=True,
    )
    cpus_per_task: int | None = option(
        None, Kind(_cpus, int, "N"),
        """number of threads of one task. The local default is `threads`; with fewer, independent tasks run in
        parallel. The default on Ray is 1, and each worker gets this number of CPUs. Large matrix products are split
        into this number of pieces, which may change their last bits; of the other options only `backend`,
        `native` and `bits="any"` can.""",
        cli=True,
    )
    memory: int | str | None = option(
        None, BYTES,
        """memory limit of a run on each worker: a number of bytes, or text such as "4 GiB". A plan that needs more is
        refused before it runs.""",
        cli=True,
    )
    backend: str = option(
        "numpy", Kind(_library),
        """the array library: "numpy", or "torch" if it is installed. Torch's fused kernels replace groups of steps
        within a task, so with torch the last bits may depend on how the plan is partitioned.""",
    )
    native: bool | None = option(
        None, FLAG,
        """run fused steps as native code, which is compiled when a function is called first. The default is True where
        llvmlite is installed and the CPU has FMA instructions, unless DISTGRAD_NATIVE is 0. Without it they run as
        NumPy calls: slower, and with other last bits.""",
        cli=True,
    )
    check_numerics: bool = option(
        False, FLAG,
        """raise NumericsError if a NaN or an Inf appears; the error names the op that produced it. It is raised if an
        op produces one that reaches a result or an assigned value, and for a NaN in a feed or a variable. A constant
        Inf, such as a mask of -inf, is not an error, nor are values that are masked before they reach a result.""",
        cli=True,
    )
    timeout: float | None = option(
        None, SECONDS, "seconds after which a run is stopped with TimeoutError.", cli=True
    )
    in_order: bool = option(False, FLAG, "run the tasks of a plan one at a time, in plan order.", engine="local")
    granularity: float | None = option(
        None, SECONDS, "target duration of a task, in seconds. By default the planner chooses it."
    )
    cluster: Cluster | str | os.PathLike[str] | None = option(
        None, Kind(_cluster, Path, "FILE"),
        """the cluster to plan for: the path of a cluster file, or a `Cluster`. The default is this machine or, on Ray,
        the cluster that Ray reports.""",
    )
    address: str | None = option(
        None, Kind(_address, str, "ADDRESS"),
        """address of the cluster to join: HOST:PORT, or "auto". The default is RAY_ADDRESS, or the Ray that this
        process has already joined. If there is neither, Ray is started on this machine and stopped with the last
        session of the process.""",
        engine="ray", cli=True,
    )
    workers: int | None = option(
        None, Kind(_workers, int, "N"),
        "number of workers to plan for, or to start Ray with. The default is the most that the cluster's CPUs allow.",
        engine="ray", cli=True,
    )
    gpus: int | None = option(None, COUNT, "number of GPUs to start Ray with.", engine="ray")
    object_store_memory: int | str | None = option(
        None, BYTES, "size in bytes of the object store to start Ray with.", engine="ray"
    )
    in_flight: int | None = option(
        None, COUNT,
        """maximum number of tasks submitted to Ray at a time; the others wait in this process. Fewer are submitted if
        their results would fill the object store.""",
        engine="ray",
    )
    attempts: int | None = option(
        None, COUNT,
        """maximum number of attempts for a task if its worker or node dies or hangs, or if the object store has no room
        for its results.""",
        engine="ray",
    )
    task_timeout: float | None = option(
        None, SECONDS,
        """seconds after which a task is considered hung and is retried. The time starts when a worker gets the task;
        waiting for a free worker counts only towards `timeout`.""",
        engine="ray", cli=True,
    )
    bits: str | None = option(
        None, Kind(_bits, str, "same|any"),
        """nodes that may run tasks: those that compute the "same" bits, the default, or "any". With "same" all workers
        use the same kernels, and nodes that would compute different bits, for example with other package versions,
        get no tasks. With "any" they get tasks, and repeated runs may differ in the last bits.""",
        engine="ray", cli=True,
    )
    trace: bool | str | os.PathLike[str] | None = option(
        None, Kind(_trace, Path, "FILE"),
        """record runs and write them to this file when the session is closed: a trace (.json) or a report (.html). True
        records without writing a file. A recording has the time and place of each task and the duration of its ops;
        the overhead is a few percent.""",
        cli=True,
    )
    progress: bool | str | None = option(
        None, Kind(_progress),
        """how to show the progress of anything that takes over a second: "live", "log" or "off", True or False. The
        default is DISTGRAD_PROGRESS or, if it is not set, live bars if the error output is a terminal.""",
    )
    # fmt: on

    def __post_init__(self) -> None:
        for each in fields(self):
            value, only = getattr(self, each.name), each.metadata["engine"]
            if value is not None or each.default is not None:
                value = _checked(each.metadata["kind"], each.name, value)
                object.__setattr__(self, each.name, value)
            if only not in (None, self.engine) and value != each.default:
                raise ValueError(f"Session: {each.name} is an option of Session({only!r}), not of {self.engine!r}")


def _checked(kind: Kind, name: str, value: Any) -> Any:
    try:
        return kind.check(name, value)
    except (TypeError, ValueError) as e:
        raise type(e)(f"Session: {e}") from None


#: The fields by name.
OPTIONS = {each.name: each for each in fields(SessionOptions)}


# -- signature and documentation ---------------------------------------------------------------------------------


def takes(made: Callable[P, T]) -> Callable[[Callable[[S, T], None]], Callable[Concatenate[S, P], None]]:
    """Decorator for a method that takes an options object: it is called with the object's fields as arguments."""

    known = inspect.signature(made).parameters

    def decorate(method: Callable[[S, T], None]) -> Callable[Concatenate[S, P], None]:
        @wraps(method)
        def called(self: S, /, *args: P.args, **options: P.kwargs) -> None:
            for name in options:
                if name not in known:
                    raise TypeError(f"Session: there is no option {name!r}; {_nearest(name, list(known))}")
            method(self, made(*args, **options))

        own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        called.__signature__ = inspect.Signature([own, *known.values()])  # type: ignore[attr-defined]
        return called

    return decorate


def _nearest(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name.lower(), known, 1, 0.6)
    return f"did you mean {close[0]!r}?" if close else f"its options are {', '.join(known)}"


def documented(text: str | None) -> str | None:
    """A docstring in which the sentence that refers to the fields is replaced by their list."""
    return text and inspect.cleandoc(text).replace("Its arguments are the fields of `SessionOptions`.", _section())


def _section() -> str:
    fill = textwrap.TextWrapper(112, initial_indent=" " * 4, subsequent_indent=" " * 8, break_on_hyphens=False).fill
    return "\n".join(["Args:", *[fill(f"{name}: {described(name)}") for name in OPTIONS]])


def described(name: str) -> str:
    """The text of an option, prefixed by its engine."""
    of = {None: "", "local": "(local) ", "ray": "(Ray) "}
    return of[OPTIONS[name].metadata["engine"]] + str(OPTIONS[name].metadata["text"])
