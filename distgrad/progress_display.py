"""How progress is shown: bars in a terminal, lines in a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any, TextIO

from distgrad.progress import ProgressItem

#: Maximum number of bars.
MAX_BARS = 3
#: Seconds until the first line of a log; the factor by which the wait for the next one grows; the longest wait.
FIRST_WAIT, WAIT_GROWTH, MAX_WAIT = 2.0, 1.5, 60.0


class Live:
    """Bars, each removed when its item ends. rich draws them; it is imported with the first bar."""

    def __init__(self) -> None:
        self._progress: Any = None
        self._bars: dict[ProgressItem, Any] = {}

    def show(self, items: Sequence[ProgressItem]) -> None:
        shown = list(items[-MAX_BARS:])
        for item in [item for item in self._bars if item not in shown]:
            self._progress.remove_task(self._bars.pop(item))
        if not shown:
            if self._progress is not None:
                self._progress.stop()
                self._progress = None
            return
        if self._progress is None:
            if any(map(_proxied, _STREAMS)):  # the user draws bars too: they would overwrite each other
                return
            self._progress = _rich_progress()
            self._progress.start()
        now = time.monotonic()
        for item in shown:
            item.shown = True
            if item not in self._bars:
                self._bars[item] = self._progress.add_task(_title(item), total=None, text="")
            fraction = item.fraction
            self._progress.update(
                self._bars[item],
                total=None if fraction is None else 1.0,
                completed=0.0 if fraction is None else fraction,
                text=" · ".join([*_amount(item), _seconds(now - item.began), *_more(item, now)]),
            )
        self._progress.refresh()

    def detach(self) -> None:
        """Restore the streams that rich redirected, without drawing."""
        for name in _STREAMS if self._progress is not None else ():
            setattr(sys, name, _proxied(name) or getattr(sys, name))


#: Streams that rich redirects while it draws, to print above the bars.
_STREAMS = ("stdout", "stderr")


def _proxied(name: str) -> Any:
    """The stream that rich redirected under this name, if any."""
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
        console=Console(file=sys.stderr),  # the stream of now: code that redirects stderr later gets no bars
        transient=True,
        expand=True,
        auto_refresh=False,  # rich would start another thread
        redirect_stdout=sys.stdout.isatty(),  # print above the bars, unless stdout is a file
    )


class Lines:
    """Plain lines, at growing intervals."""

    def __init__(self, stream: TextIO | None = None):
        self._stream = stream
        self._next: dict[ProgressItem, tuple[float, float]] = {}

    def show(self, items: Sequence[ProgressItem]) -> None:
        now = time.monotonic()
        self._next = {item: when for item, when in self._next.items() if item in items}
        for item in items:
            at, wait = self._next.setdefault(item, (item.began + FIRST_WAIT, FIRST_WAIT))
            if now >= at:
                wait = min(wait * WAIT_GROWTH, MAX_WAIT)
                self._next[item] = now + wait, wait
                print(f"distgrad: {line(item, now)}", file=self._stream or sys.stderr, flush=True)

    def detach(self) -> None:
        """Nothing to restore."""


def line(item: ProgressItem, now: float) -> str:
    """The line of one item.

    >>> item = ProgressItem("running", "step", 40, "tasks")
    >>> item.done, item.nbytes, item.detail = 10, 31_000_000, lambda: "MatMul at model.py:12"
    >>> line(item, item.began + 20)
    'running step: 10 of 40 tasks, 31 MB, 20 s so far, about 60 s left, MatMul at model.py:12'
    """
    return f"{_title(item)}: {', '.join([*_amount(item), f'{_seconds(now - item.began)} so far', *_more(item, now)])}"


def _title(item: ProgressItem) -> str:
    return f"{item.stage} {item.what}".strip()


def _amount(item: ProgressItem) -> list[str]:
    unit = f" {item.unit}" if item.unit else ""
    of = f" of {item.total:,.0f}" if item.total else ""
    said = [f"{item.done:,.0f}{of}{unit}"] if of or item.done else []
    return said + ([_bytes(item.nbytes)] if item.nbytes else [])


def _more(item: ProgressItem, now: float) -> list[str]:
    """The time left, and the detail."""
    left = item.left(now)
    said = [] if left is None or left < 0.5 else [f"about {_seconds(left)} left"]
    ask = item.detail  # another thread may clear it
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
