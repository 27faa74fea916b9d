"""Progress of what takes longer than a second: recording, planning and running tell here how far they are.

Telling costs about a microsecond and nothing is drawn by those who tell: a thread looks now and then at what is under
way. In a terminal it draws bars; in the log of a job it writes lines, seldom; otherwise nobody looks. Which of them is
said by DISTGRAD_PROGRESS (auto, live, log or off), or by a session for what it does.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import suppress
from typing import Any, TypeVar

from distgrad import runtime

T = TypeVar("T")

MODES = ("auto", "live", "log", "off")
#: Seconds before anything is said, and between two looks.
PATIENCE, LOOK = 1.0, 0.2


class Work:
    """Something under way: what is done of it, of how much, and what it is at. Whoever does it writes these fields."""

    __slots__ = ("began", "detail", "done", "mode", "nbytes", "share", "shown", "stage", "total", "unit", "what")

    def __init__(
        self,
        stage: str,
        what: str,
        total: float | None = None,
        unit: str = "",
        detail: Callable[[], str] | None = None,
        mode: str = "off",
    ):
        self.stage, self.what, self.total, self.unit, self.mode = stage, what, total, unit, mode
        self.began = time.monotonic()
        self.done: float = 0
        self.nbytes = 0
        #: How much of it is done, of 1; None: as much as `done` is of `total`.
        self.share: float | None = None
        #: Whether there is a bar of it, which must go away with it.
        self.shown = False
        #: Says what it is at now.
        self.detail = detail

    @property
    def fraction(self) -> float | None:
        if self.share is not None:
            return min(self.share, 1.0)
        return None if not self.total else min(self.done / self.total, 1.0)

    def left(self, now: float) -> float | None:
        """Seconds that the rest should take, if it goes on as so far."""
        fraction = self.fraction
        return None if not fraction else (now - self.began) * (1 / fraction - 1)


#: What is under way where nobody looks.
NOBODY = Work("", "")

_works: list[Work] = []
_chosen: str | None = None
_displays: dict[str, Any] = {}
_lock, _drawing = threading.Lock(), threading.Lock()


def mode(own: str | None = None) -> str:
    """How progress is told, live, log or off: by whoever has no mode of its `own`, as the environment says."""
    global _chosen
    if _chosen is None:
        _chosen = resolved(os.environ.get("DISTGRAD_PROGRESS", "auto").lower())
    return own or _chosen


def resolved(named: str) -> str:
    """Live, log or off: what one of `MODES` means here."""
    if named in ("live", "log", "off"):
        return named
    return "live" if _is_terminal() else "off"


def _is_terminal() -> bool:
    with suppress(AttributeError, ValueError):  # no stream, or a closed one
        return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    return False


def begin(
    stage: str,
    what: str,
    total: float | None = None,
    unit: str = "",
    detail: Callable[[], str] | None = None,
    own: str | None = None,
) -> Work:
    """Something begins; it is shown until `end`, if it takes so long that somebody looks. `own` is the mode of the
    session that does it, if it has one."""
    told = own or _chosen or mode()
    if told == "off":
        return NOBODY
    work = Work(stage, what, total, unit, detail, told)
    _works.append(work)
    if told not in _displays:
        _start(told)
    return work


def end(work: Work) -> None:
    if work is not NOBODY:
        work.detail = None  # whoever does the work has it, and is what it calls: they shall not keep each other alive
        with suppress(ValueError):  # a forked process began without it
            _works.remove(work)
        if work.shown:
            _show(work.mode)


def track(
    items: Iterable[T], what: str, total: int | None = None, note: Callable[[], str] | None = None
) -> Iterator[T]:
    """Go through a loop of one's own, with its progress shown. `note` says something about it, such as the loss. It is
    shown as the session tells progress that is open, if that has a mode of its own.

    >>> [i * i for i in track(range(4), "squares")]
    [0, 1, 4, 9]
    """
    if total is None and isinstance(items, Sized):
        total = len(items)
    work = begin("", what, total, detail=note, own=runtime.progress())
    try:
        for item in items:
            yield item
            work.done += 1
    finally:
        end(work)


def under_way(mode: str) -> list[Work]:
    """What somebody should be told of now in this mode, outermost first."""
    now = time.monotonic()
    return [work for work in list(_works) if work.mode == mode and now - work.began >= PATIENCE]


def _start(mode: str) -> None:
    """Have somebody look at what is told in this mode: one thread looks at all."""
    with _lock:
        if mode not in _displays:
            from distgrad.progress_display import Lines, Live

            _displays[mode] = Live() if mode == "live" else Lines()
            if len(_displays) == 1:
                threading.Thread(target=_watch, name="distgrad-progress", daemon=True).start()


def _watch() -> None:
    while True:
        for mode in list(_displays):
            _show(mode)
        time.sleep(LOOK)


def _show(mode: str) -> None:
    """Have what is under way shown."""
    with _drawing, suppress(Exception):  # a closed terminal is no reason to disturb a run
        _displays[mode].show(under_way(mode))


def _forget() -> None:
    """A process that was forked has not the thread, and nothing under way; what it prints goes past the bars."""
    global _lock, _drawing
    _works.clear()
    for display in _displays.values():
        display.let_go()
    _displays.clear()
    _lock, _drawing = threading.Lock(), threading.Lock()


def _leave() -> None:
    """At the end of the process: no bar stays, and the cursor is seen again."""
    _works.clear()
    for mode in list(_displays):
        _show(mode)


atexit.register(_leave)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
