"""What scenes are made of: the table of them, steps that move variables together, and calls that are timed and judged.

A scene is a function that runs as a driver of its own, in its own process with its own Ray. It makes calls with
`Stage.call`: each must give the right result or one clear error, within its time. What it finds wrong it says.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import distgrad as dg

#: What a call may take beyond its timeout; and beyond that where all workers are stopped.
SLACK, ALL_STOPPED = 5.0, 10.0
#: Errors that a mistake of the user may have, none that a fault may lead to.
_UNCLEAR = (AttributeError, KeyError, IndexError, AssertionError, RecursionError, UnboundLocalError, TypeError)


@dataclass(frozen=True)
class Scene:
    """A scene: what happens, and what it needs."""

    name: str
    play: Callable[[Stage], None]
    #: Seconds after which the whole of it is taken for hung.
    limit: float = 150.0
    #: File systems of its own, by folder; and its environment, in which {folder} is its own folder.
    disks: Mapping[str, int] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    #: Seconds in which everything must be gone after the driver; the exit codes that the driver may have.
    gone: float = 20.0
    codes: tuple[int, ...] = (0,)


SCENES: dict[str, Scene] = {}


def scene(**options: Any) -> Callable[[Callable[[Stage], None]], Callable[[Stage], None]]:
    """Put a function into the table, under its name."""

    def put(play: Callable[[Stage], None]) -> Callable[[Stage], None]:
        assert play.__name__ not in SCENES
        SCENES[play.__name__] = Scene(play.__name__, play, **options)
        return play

    return put


@dataclass(frozen=True)
class Call:
    """What came of a call: the result, or the error."""

    what: str
    seconds: float
    value: Any = None
    error: BaseException | None = None

    @property
    def failed(self) -> bool:
        return self.error is not None


class Stage:
    """Where a scene says what happened: lines of JSON in a file of its folder."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._file = folder / "facts"

    def say(self, what: str, wrong: str = "", seconds: float = 0.0, within: float = 0.0) -> None:
        with self._file.open("a") as file:
            file.write(json.dumps({"what": what, "wrong": wrong, "seconds": seconds, "within": within}) + "\n")

    def call(self, what: str, work: Callable[[], Any], within: float, right: Any = None) -> Call:
        """The call, timed: it may give what is `right` (anything, where that is None), or one clear error."""
        start, value, error = time.monotonic(), None, None
        try:
            value = work()
        except BaseException as e:  # KeyboardInterrupt is an outcome, too
            error = e
        seconds = time.monotonic() - start
        wrong = [f"took {seconds:.1f} s"] if seconds > within else []
        if error is not None:
            wrong += _unclear(error)
        elif right is not None and not _equal(value, right):
            wrong.append(f"gave {_short(value)} in place of {_short(right)}")
        text = f"{what}: {_short(value) if error is None else f'{type(error).__name__}: {_short(error)}'}"
        self.say(text, "; ".join(wrong), seconds, within)
        return Call(what, seconds, value, error)

    def result(self, what: str, work: Callable[[], Any], within: float, right: Any = None) -> Any:
        """The same, where an error is wrong, too."""
        found = self.call(what, work, within, right)
        if found.error is not None:
            self.say(what, f"failed: {type(found.error).__name__}: {_short(found.error)}")
        return found.value

    def error(self, what: str, work: Callable[[], Any], within: float) -> BaseException | None:
        """The same, where a result is wrong."""
        found = self.call(what, work, within)
        if found.error is None:
            self.say(what, f"gave {_short(found.value)} in place of an error")
        return found.error

    def check(self, what: str, holds: Any) -> None:
        self.say(what, "" if holds else "does not hold")


def _unclear(error: BaseException) -> list[str]:
    kind = type(error)
    if isinstance(error, KeyboardInterrupt):
        return []
    if kind.__module__.partition(".")[0] not in ("builtins", "distgrad") or isinstance(error, _UNCLEAR):
        return [f"unclear error {kind.__module__}.{kind.__name__}"]
    return [] if len(str(error)) > 20 else [f"an error that says only {str(error)!r}"]


def _equal(found: Any, right: Any) -> bool:
    if isinstance(right, list):
        return len(found) == len(right) and all(map(_equal, found, right))
    return np.asarray(found).tobytes() == np.asarray(right).tobytes()


def _short(x: Any) -> str:
    return (str(x).strip().splitlines() or [""])[0][:150]


# -- steps that move variables together ---------------------------------------------------------------------------


@dg.op("SceneNap", infer=lambda x, t: (x.shape, x.dtype))
def nap(x: Any, t: Any) -> Any:
    """Gives x after some seconds."""
    time.sleep(float(t))
    return x.copy()


class Ledger:
    """Variables that every step moves together, each in a task of its own: what a call did it did to all or to none."""

    def __init__(self, count: int = 3, size: int = 40_000):
        self._variables = [dg.Variable(np.zeros(size), name=f"ledger{i}") for i in range(count)]
        self._ones = np.ones(size)
        #: Steps that gave a result.
        self.steps = 0

        @dg.function
        def step(x: dg.Tensor, t: dg.Tensor) -> None:
            for v in self._variables:
                v.assign_add(nap(x, t))

        self._step = step

    @property
    def variables(self) -> list[dg.Variable]:
        return self._variables

    def step(self, seconds: float = 0.0) -> int:
        """One step, whose tasks take so many seconds."""
        self._step(self._ones, np.float64(seconds))
        self.steps += 1
        return self.steps

    def read(self) -> list[float]:
        """What the variables have: of each its only value, or NaN where it has several."""
        values = [v.numpy() for v in self._variables]
        return [float(x[0]) if (x == x[0]).all() else float("nan") for x in values]

    def is_right(self, stage: Stage, within: float, must: bool = True) -> None:
        """Variables are as the steps that gave a result left them; with `must`, they have to be readable."""
        read = stage.result if must else stage.call
        read("read", self.read, within, [float(self.steps)] * len(self._variables))


@contextmanager
def session(**options: Any) -> Iterator[dg.Session]:
    """A session with a Ray of its own and a task for each variable; not closed where the scene does that itself."""
    with open_session(**options) as made:
        yield made


def open_session(**options: Any) -> dg.Session:
    if "address" not in options:
        options = {"workers": 2, "object_store_memory": 80 << 20} | options
    return dg.Session("ray", **{"timeout": 30.0, "granularity": 1e-9} | options)


# -- processes ---------------------------------------------------------------------------------------------------


def pids(*names: str) -> list[int]:
    """The processes below this one whose names end or begin with one of these."""
    from ..cluster import processes

    return [pid for pid, name in processes() if name.endswith(names) or name.startswith(names)]


def workers() -> list[int]:
    return pids("ray::run_task", "ray::IDLE")


def busy() -> list[int]:
    return pids("ray::run_task")


def send(number: int, targets: list[int]) -> None:
    for pid in targets:
        os.kill(pid, number)


def stop(targets: list[int]) -> None:
    assert targets, "nothing to stop"
    send(signal.SIGSTOP, targets)


def until(condition: Callable[[], Any], seconds: float = 30.0) -> Any:
    ends = time.monotonic() + seconds
    while not (found := condition()) and time.monotonic() < ends:
        time.sleep(0.02)
    return found


def later(seconds: float, work: Callable[[], Any]) -> Any:
    """Something that happens in a thread of its own, in a while."""
    import threading

    timer = threading.Timer(seconds, work)
    timer.daemon = True
    timer.start()
    return timer
