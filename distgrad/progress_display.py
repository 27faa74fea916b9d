"""How progress is shown: bars in a terminal, lines in a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any, TextIO

from distgrad.progress import Work

#: Bars that are drawn at most.
MOST = 3
#: Seconds after which the next line of a log is written: the first soon, the later ones seldom.
FIRST, GROWTH, LONGEST = 2.0, 1.5, 60.0


class Live:
    """Bars that go away with what they tell of. rich draws them; it is imported when the first one is."""

    def __init__(self) -> None:
        self._progress: Any = None
        self._bars: dict[Work, Any] = {}

    def show(self, works: Sequence[Work]) -> None:
        shown = list(works[-MOST:])
        for work in [work for work in self._bars if work not in shown]:
            self._progress.remove_task(self._bars.pop(work))
        if not shown:
            if self._progress is not None:
                self._progress.stop()
                self._progress = None
            return
        if self._progress is None:
            if any(map(_proxied, _STREAMS)):  # the user's own bars are in the terminal: they would overwrite each other
                return
            self._progress = _rich_progress()
            self._progress.start()
        now = time.monotonic()
        for work in shown:
            work.shown = True
            if work not in self._bars:
                self._bars[work] = self._progress.add_task(_title(work), total=None, text="")
            fraction = work.fraction
            self._progress.update(
                self._bars[work],
                total=None if fraction is None else 1.0,
                completed=0.0 if fraction is None else fraction,
                text=" · ".join([*_amount(work), _seconds(now - work.began), *_more(work, now)]),
            )
        self._progress.refresh()

    def let_go(self) -> None:
        """Without drawing: what is printed goes where it went before there were bars."""
        for name in _STREAMS if self._progress is not None else ():
            setattr(sys, name, _proxied(name) or getattr(sys, name))


#: What rich has pass through itself, while it draws, so that it stands above the bars.
_STREAMS = ("stdout", "stderr")


def _proxied(name: str) -> Any:
    """The stream behind the one of that name, where rich has put itself before it."""
    return getattr(getattr(sys, name), "rich_proxied_file", None)


def _rich_progress() -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn
    from rich.table import Column

    rest = Column(ratio=1, no_wrap=True, overflow="ellipsis")
    return Progress(
        TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True)),
        BarColumn(bar_width=16, table_column=Column(width=16)),
        TextColumn("{task.fields[text]}", markup=False, table_column=rest),
        console=Console(file=sys.stderr),  # this very stream: code that catches the error output shall not get bars
        transient=True,
        expand=True,
        auto_refresh=False,  # rich would start a thread of its own
        redirect_stdout=sys.stdout.isatty(),  # what is printed stands above the bars; in a file it stays there
    )


class Lines:
    """Lines without colours or motion, ever more seldom."""

    def __init__(self, stream: TextIO | None = None):
        self._stream = stream
        self._next: dict[Work, tuple[float, float]] = {}

    def show(self, works: Sequence[Work]) -> None:
        now = time.monotonic()
        self._next = {work: when for work, when in self._next.items() if work in works}
        for work in works:
            at, wait = self._next.setdefault(work, (work.began + FIRST, FIRST))
            if now >= at:
                wait = min(wait * GROWTH, LONGEST)
                self._next[work] = now + wait, wait
                print(f"distgrad: {line(work, now)}", file=self._stream or sys.stderr, flush=True)

    def let_go(self) -> None:
        """Nothing is held."""


def line(work: Work, now: float) -> str:
    """One line about something under way.

    >>> work = Work("running", "step", 40, "tasks")
    >>> work.done, work.nbytes, work.detail = 10, 31_000_000, lambda: "MatMul at model.py:12"
    >>> line(work, work.began + 20)
    'running step: 10 of 40 tasks, 31 MB, 20 s so far, about 60 s left, MatMul at model.py:12'
    """
    return f"{_title(work)}: {', '.join([*_amount(work), f'{_seconds(now - work.began)} so far', *_more(work, now)])}"


def _title(work: Work) -> str:
    return f"{work.stage} {work.what}".strip()


def _amount(work: Work) -> list[str]:
    unit = f" {work.unit}" if work.unit else ""
    of = f" of {work.total:,.0f}" if work.total else ""
    said = [f"{work.done:,.0f}{of}{unit}"] if of or work.done else []
    return said + ([_bytes(work.nbytes)] if work.nbytes else [])


def _more(work: Work, now: float) -> list[str]:
    """The time that is left, and what it is at."""
    left = work.left(now)
    said = [] if left is None or left < 0.5 else [f"about {_seconds(left)} left"]
    ask = work.detail  # which another thread may take away
    detail = "" if ask is None else ask()
    return said + ([detail] if detail else [])


def _bytes(n: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if n < 1000:
            return f"{n:.0f} {unit}"
        n /= 1000
    return f"{n:.1f} TB"


def _seconds(seconds: float) -> str:
    """
    >>> _seconds(4.2), _seconds(75), _seconds(1500), _seconds(9000)
    ('4 s', '75 s', '25 min', '2.5 h')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
