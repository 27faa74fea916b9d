"""How many threads the BLAS behind NumPy uses: one inside of a run, which shares products among its own threads.

The count changes speed and bits, so it is not left to the environment.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

_LOCK = threading.Lock()
#: The counts that runs under way asked for, the last one in force; and what was set before the first of them.
_asked: dict[object, int] = {}
_before: list[int] = []


@cache
def libraries() -> tuple[Any, ...]:
    """The controllers of the BLAS libraries of NumPy and SciPy, in the same order in every process."""
    from threadpoolctl import ThreadpoolController  # late: looks through all loaded libraries

    _load_scipys()
    found = [lib for lib in ThreadpoolController().lib_controllers if lib.user_api == "blas"]
    return tuple(sorted(found, key=lambda lib: str(lib.filepath)))


def _load_scipys() -> None:
    """SciPy from PyPI has a BLAS of its own, loaded when `scipy.linalg` is imported, which takes long: loaded here, it
    is among those whose threads are set. What is loaded by its path already is not loaded twice."""
    spec = find_spec("scipy")
    for folder in (spec and spec.submodule_search_locations) or ():
        for file in [*Path(folder).parent.glob("scipy.libs/*openblas*"), *Path(folder).glob(".dylibs/*openblas*")]:
            with suppress(OSError):  # then SciPy will say so, where it is needed
                ctypes.CDLL(str(file))


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Inside, BLAS uses `count` threads; what was set before comes back when the last run ends.

    The setting is one per process: of runs side by side with different counts, the last to begin is obeyed.

    >>> with threads(1):
    ...     pass
    """
    run = object()
    try:
        _begin(run, count)
        yield
    finally:  # also where an interrupt came in between
        _end(run)


def _begin(run: object, count: int) -> None:
    with _LOCK:
        if not _asked:
            _before[:] = [lib.num_threads for lib in libraries()]
        _asked[run] = count
        _set([count] * len(_before))


def _end(run: object) -> None:
    with _LOCK:
        if _asked.pop(run, None) is not None:
            _set([next(reversed(_asked.values()))] * len(_before) if _asked else _before)


def _set(counts: list[int]) -> None:
    for lib, count in zip(libraries(), counts, strict=True):
        if lib.num_threads != count:
            # threadpoolctl lets the first thread that sets a count set it again, and no other: here all are agreed
            getattr(lib, "_real_set_num_threads", lib.set_num_threads)(count)
