"""The options of a session, one field each: its type, default, kind and text.

The signature, the checks and the documentation of `Session` come from these fields, and so do the options of commands.
Engines have settings of the same names. Nothing that plans or runs is imported here before a session is made.
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

#: Threads of a local session at most: a number beyond is a mistake.
MOST_THREADS = 1024


# -- kinds: what values can be -----------------------------------------------------------------------------------


class Kind(NamedTuple):
    """`check(name, value)` gives the value to use, or raises an error that says what is allowed; it never gets a None
    that is the default. A command line reads a `type`, which its help calls `metavar`."""

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
    if count > MOST_THREADS:
        raise ValueError(f"{name} is {count}; more than {MOST_THREADS} help no machine")
    return count


def _workers(name: str, value: Any) -> int:
    from distgrad.scheduler.cluster import MOST_WORKERS

    return _at_most(MOST_WORKERS, name, _count(name, value))


def _cpus(name: str, value: Any) -> int:
    from distgrad.scheduler.cluster import LIMITS

    return _at_most(LIMITS["cpus"][1], name, _count(name, value))


def _at_most(most: int, name: str, count: int) -> int:
    """ValueError for numbers that no cluster has: Ray would take its own cpus for so many."""
    if count > most:
        raise ValueError(f"{name} is {count}, but {most} are the most")
    return count


def _number(value: Any) -> float:
    """NaN for what is none."""
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
    """A field. `engine`: the only one that has this option. `cli`: `distgrad run` and `submit` take it, too; their help
    is the first sentence of `text`."""
    text = " ".join(text.split())
    return field(default=default, metadata={"kind": kind, "text": text, "engine": engine, "cli": cli})


@dataclass(frozen=True)
class SessionOptions:
    """What a session is told; each value as its kind gives it."""

    # fmt: off
    engine: str = option("local", Kind(_engine), '"local" or "ray".')
    _: KW_ONLY
    threads: int | None = option(
        None, Kind(_threads, int, "N"),
        "how many threads a run may use. All cores that this process may use by default.",
        engine="local", cli=True,
    )
    cpus_per_task: int | None = option(
        None, Kind(_cpus, int, "N"),
        """threads of one task of the plan. Locally `threads` by default; with fewer, independent tasks run side by
        side. On Ray 1 by default, and each worker has so many. Large matrix products are cut into so many pieces,
        which may change their last bits; beside `backend`, nothing else here does.""",
        cli=True,
    )
    memory: int | str | None = option(
        None, BYTES,
        """the bytes that a run may allocate on a worker: a number, or text such as "4 GiB". What needs more is refused
        before it runs.""",
        cli=True,
    )
    backend: str = option(
        "numpy", Kind(_library),
        """the array library that computes: "numpy", or "torch" where it is installed. Torch's fused kernels stand for
        groups of steps inside of a task, so there the last bits may depend on how the plan is cut.""",
    )
    check_numerics: bool = option(
        False, FLAG,
        """raise NumericsError where a NaN or an Inf begins; the error names the op. It tells of those that an op made
        and that are in a result or an assigned value, and of the NaN of a feed or a variable. An Inf that is written
        down (a mask of -inf) is no error, nor is what is masked before it reaches a result.""",
        cli=True,
    )
    timeout: float | None = option(
        None, SECONDS, "seconds after which a run is given up with a TimeoutError.", cli=True
    )
    in_order: bool = option(False, FLAG, "run the tasks of a plan one after another, in its order.", engine="local")
    granularity: float | None = option(
        None, SECONDS, "seconds that a task of the plan should take. Chosen by the planner by default."
    )
    cluster: Cluster | str | os.PathLike[str] | None = option(
        None, Kind(_cluster, Path, "FILE"),
        """the cluster to plan for: the path of a cluster file, or a `Cluster`. This machine, or what Ray says of its
        cluster, by default.""",
    )
    address: str | None = option(
        None, Kind(_address, str, "ADDRESS"),
        """of the cluster to join: HOST:PORT, or "auto". By default that of RAY_ADDRESS, or the Ray that this
        process has joined already. Without any, Ray is started on this machine, and ends with the last session of
        the process.""",
        engine="ray", cli=True,
    )
    workers: int | None = option(
        None, Kind(_workers, int, "N"),
        "how many workers to plan for, or to start Ray with. As many as the cluster's cpus allow by default.",
        engine="ray", cli=True,
    )
    gpus: int | None = option(None, COUNT, "GPUs to start Ray with.", engine="ray")
    object_store_memory: int | str | None = option(
        None, BYTES, "bytes of the object store to start Ray with.", engine="ray"
    )
    in_flight: int | None = option(
        None, COUNT,
        "tasks that Ray has at the same time; more wait here. Fewer where their results would fill the object store.",
        engine="ray",
    )
    attempts: int | None = option(
        None, COUNT,
        "how often a task is tried whose process or node dies, or whose results find no room.",
        engine="ray",
    )
    task_timeout: float | None = option(
        None, SECONDS,
        """seconds after which a task is taken for hung, and run again. They count from when a worker was given the
        task; waiting for a free worker counts for `timeout` alone.""",
        engine="ray", cli=True,
    )
    bits: str | None = option(
        None, Kind(_bits, str, "same|any"),
        """which nodes may run tasks: those that give the "same" bits, which is the default, or "any". With "same"
        workers are brought to the same kernels, and nodes that would give other bits, by other versions of packages,
        say, get no task. With "any" they do, and equal runs may differ in last bits.""",
        engine="ray", cli=True,
    )
    trace: bool | str | os.PathLike[str] | None = option(
        None, Kind(_trace, Path, "FILE"),
        """record runs, and write them to this file when the session is closed: a trace (.json) or a report (.html).
        True records without a file. It is recorded when and where tasks ran, and what their ops took, which costs a
        few percent.""",
        cli=True,
    )
    progress: bool | str | None = option(
        None, Kind(_progress),
        """how progress of more than a second is told: "live", "log" or "off", True or False. By default as
        DISTGRAD_PROGRESS says, or by bars where the error output is a terminal.""",
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


# -- what is made of them ----------------------------------------------------------------------------------------


def takes(made: Callable[P, T]) -> Callable[[Callable[[S, T], None]], Callable[Concatenate[S, P], None]]:
    """Have a method that takes the options object called with its fields, as `inspect` and type checkers see, too."""

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
    """A docstring that names the fields, with what they are in place of that sentence."""
    return text and inspect.cleandoc(text).replace("Its arguments are the fields of `SessionOptions`.", _section())


def _section() -> str:
    fill = textwrap.TextWrapper(112, initial_indent=" " * 4, subsequent_indent=" " * 8, break_on_hyphens=False).fill
    return "\n".join(["Args:", *[fill(f"{name}: {described(name)}") for name in OPTIONS]])


def described(name: str) -> str:
    """What is told of an option, after the engine that it is of."""
    of = {None: "", "local": "(local) ", "ray": "(Ray) "}
    return of[OPTIONS[name].metadata["engine"]] + str(OPTIONS[name].metadata["text"])
