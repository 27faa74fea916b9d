"""Progress of operations that take longer than a second: tracing, planning and running report it here.

A report costs about a microsecond and draws nothing: a background thread polls the active items. In a terminal it draws
bars; in the log of a job it writes a line now and then; otherwise nothing is shown. DISTGRAD_PROGRESS (auto, live, log
or off) chooses, or the `progress` option of a session for its own operations.
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
#: Seconds that an operation takes before it is shown, and between two refreshes.
SHOW_AFTER, REFRESH_EVERY = 1.0, 0.2


class ProgressItem:
    """An operation in progress: how much is done, of how much, and its current detail. Its owner updates the fields."""

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
        #: The fraction that is done; None: `done` / `total`.
        self.share: float | None = None
        #: Whether it has a bar, to be removed when it ends.
        self.shown = False
        #: Returns a text about the current step.
        self.detail = detail

    @property
    def fraction(self) -> float | None:
        if self.share is not None:
            return min(self.share, 1.0)
        return None if not self.total else min(self.done / self.total, 1.0)

    def left(self, now: float) -> float | None:
        """Estimated seconds left, at the speed so far."""
        fraction = self.fraction
        return None if not fraction else (now - self.began) * (1 / fraction - 1)


#: The item of every operation while progress is off.
NOT_SHOWN = ProgressItem("", "")

_active: list[ProgressItem] = []
_chosen: str | None = None
_displays: dict[str, Any] = {}
_lock, _drawing = threading.Lock(), threading.Lock()


def mode(session_mode: str | None = None) -> str:
    """How progress is shown: live, log or off. The environment decides unless the session has a mode."""
    global _chosen
    if _chosen is None:
        _chosen = resolved(os.environ.get("DISTGRAD_PROGRESS", "auto").lower())
    return session_mode or _chosen


def resolved(named: str) -> str:
    """Resolve one of `MODES` to live, log or off."""
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
    session_mode: str | None = None,
) -> ProgressItem:
    """Begin an operation. It is shown, if it takes long enough, until `end`. `session_mode` is the mode of its session,
    if that has one."""
    shown_as = session_mode or _chosen or mode()
    if shown_as == "off":
        return NOT_SHOWN
    item = ProgressItem(stage, what, total, unit, detail, shown_as)
    _active.append(item)
    if shown_as not in _displays:
        _start(shown_as)
    return item


def end(item: ProgressItem) -> None:
    if item is not NOT_SHOWN:
        item.detail = None  # breaks the reference cycle between the item and its owner
        with suppress(ValueError):  # a forked process has an empty list
            _active.remove(item)
        if item.shown:
            _show(item.mode)


def track(
    items: Iterable[T], what: str, total: int | None = None, note: Callable[[], str] | None = None
) -> Iterator[T]:
    """Iterate over `items` and show the progress. `note` returns a text to show with it, such as the loss. The open
    session decides how progress is shown, if it has a mode.

    >>> [i * i for i in track(range(4), "squares")]
    [0, 1, 4, 9]
    """
    if total is None and isinstance(items, Sized):
        total = len(items)
    tracked = begin("", what, total, detail=note, session_mode=runtime.progress())
    try:
        for item in items:
            yield item
            tracked.done += 1
    finally:
        end(tracked)


def visible(mode: str) -> list[ProgressItem]:
    """The items to show now in this mode, outermost first."""
    now = time.monotonic()
    return [item for item in list(_active) if item.mode == mode and now - item.began >= SHOW_AFTER]


def _start(mode: str) -> None:
    """Create the display of this mode. One thread serves all displays."""
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
        time.sleep(REFRESH_EVERY)


def _show(mode: str) -> None:
    """Show the active items."""
    with _drawing, suppress(Exception):  # a closed terminal must not disturb a run
        _displays[mode].show(visible(mode))


def _forget() -> None:
    """After a fork: the child has no display thread and no active items, and its output bypasses the bars."""
    global _lock, _drawing
    _active.clear()
    for display in _displays.values():
        display.detach()
    _displays.clear()
    _lock, _drawing = threading.Lock(), threading.Lock()


def _leave() -> None:
    """At exit: remove the bars and show the cursor again."""
    _active.clear()
    for mode in list(_displays):
        _show(mode)


atexit.register(_leave)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
