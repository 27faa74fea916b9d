"""Tuning of Python's garbage collector while graphs are built."""

from __future__ import annotations

import gc
import threading


class Collector:
    """Makes Python's cyclic garbage collector run less often while graphs are built.

    The objects of a graph live as long as the graph, so collections find nothing; yet at 200,000 ops they took half of
    the time, and more per op the larger the graph. Garbage is still collected, only less often.
    """

    #: Thresholds for `gc.set_threshold` while a graph is built.
    RELAXED = (50_000, 20, 100)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._builders = 0
        self._before = gc.get_threshold()

    def relax(self) -> None:
        with self._lock:
            if self._builders == 0:
                self._before = gc.get_threshold()
                if 0 < self._before[0] < self.RELAXED[0]:
                    gc.set_threshold(*self.RELAXED)
            self._builders += 1

    def restore(self) -> None:
        with self._lock:
            self._builders -= 1
            if self._builders == 0:
                gc.set_threshold(*self._before)


collector = Collector()
