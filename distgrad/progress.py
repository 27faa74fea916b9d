"""Progress of what takes longer than a second: recording, planning and running tell here how far they are.

Telling costs about a microsecond and nothing is drawn by those who tell: a thread looks now and then at what is under
way. In a terminal it draws bars; in the log of a job it writes lines, seldom; otherwise nobody looks. Which of them is
said by DISTGRAD_PROGRESS (auto, live, log or off), or by `use`.
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

T = TypeVar("T")

MODES = ("auto", "live", "log", "off")
#: Seconds before anything is said, and between two looks.
PATIENCE, LOOK = 1.0, 0.2


class Work:
    """Something under way: what is done of it, of how much, and what it is at. Whoever does it writes these fields."""

    __slots__ = ("began", "detail", "done", "nbytes", "share", "shown", "stage", "total", "unit", "what")

    def __init__(
        self,
        stage: str,
        what: str,
        total: float | None = None,
        unit: str = "",
        detail: Callable[[], str] | None = None,
    ):
        self.stage, self.what, self.total, self.unit = stage, what, total, unit
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
_display: Any = None
_lock, _drawing = threading.Lock(), threading.Lock()


def use(mode: str | bool | None) -> None:
    """Say for this process how progress is told: one of `MODES`, True (live), False (off) or None (as the environment
    says)."""
    global _chosen, _display
    named = {True: "live", False: "off"}.get(mode, mode) if isinstance(mode, bool) else mode
    if named is not None and named not in MODES:
        raise ValueError(f"progress is one of {', '.join(map(repr, MODES))}, True or False, got {mode!r}")
    before, _chosen = _chosen, None if named is None else _resolved(str(named))
    if _display is not None and _chosen != before:
        former, _display = _display, None  # who tells next starts another one
        _show(former)


def mode() -> str:
    """How progress is told: live, log or off."""
    global _chosen
    if _chosen is None:
        _chosen = _resolved(os.environ.get("DISTGRAD_PROGRESS", "auto").lower())
    return _chosen


def _resolved(named: str) -> str:
    if named in ("live", "log", "off"):
        return named
    return "live" if _is_terminal() else "off"


def _is_terminal() -> bool:
    with suppress(AttributeError, ValueError):  # no stream, or a closed one
        return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    return False


def begin(
    stage: str, what: str, total: float | None = None, unit: str = "", detail: Callable[[], str] | None = None
) -> Work:
    """Something begins; it is shown until `end`, if it takes so long that somebody looks."""
    if (_chosen or mode()) == "off":
        return NOBODY
    work = Work(stage, what, total, unit, detail)
    _works.append(work)
    if _display is None:
        _start()
    return work


def end(work: Work) -> None:
    if work is not NOBODY:
        work.detail = None  # whoever does the work has it, and is what it calls: they shall not keep each other alive
        with suppress(ValueError):  # a forked process began without it
            _works.remove(work)
        if work.shown:
            _show(_display)


def track(
    items: Iterable[T], what: str, total: int | None = None, note: Callable[[], str] | None = None
) -> Iterator[T]:
    """Go through a loop of one's own, with its progress shown. `note` says something about it, such as the loss.

    >>> [i * i for i in track(range(4), "squares")]
    [0, 1, 4, 9]
    """
    if total is None and isinstance(items, Sized):
        total = len(items)
    work = begin("", what, total, detail=note)
    try:
        for item in items:
            yield item
            work.done += 1
    finally:
        end(work)


def under_way() -> list[Work]:
    """What somebody should be told of now, outermost first."""
    now = time.monotonic()
    return [work for work in list(_works) if now - work.began >= PATIENCE]


def _start() -> None:
    """Start the thread that looks, once."""
    global _display
    with _lock:
        if _display is None:
            from distgrad.progress_display import Lines, Live

            _display = Live() if mode() == "live" else Lines()
            threading.Thread(target=_watch, args=(_display,), name="distgrad-progress", daemon=True).start()


def _watch(display: Any) -> None:
    while display is _display:
        _show(display)
        time.sleep(LOOK)


def _show(display: Any) -> None:
    """Have what is under way shown; by a display that another one has followed, nothing."""
    with _drawing, suppress(Exception):  # a closed terminal is no reason to disturb a run
        display.show(under_way() if display is _display else [])


def _forget() -> None:
    """A process that was forked has not the thread, and nothing under way; what it prints goes past the bars."""
    global _display, _lock, _drawing
    _works.clear()
    if _display is not None:
        _display.let_go()
    _display, _lock, _drawing = None, threading.Lock(), threading.Lock()


def _leave() -> None:
    """At the end of the process: no bar stays, and the cursor is seen again."""
    _works.clear()
    if _display is not None:
        _show(_display)


atexit.register(_leave)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
