"""Sets the number of BLAS threads: one during a run, which splits products among its own threads.

The number changes both speed and bits, so it is not left to the environment.
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
#: The numbers that active runs asked for, the last of which applies; and the numbers before the first of them began.
_asked: dict[object, int] = {}
_before: list[int] = []


@cache
def libraries() -> tuple[Any, ...]:
    """The controllers of the BLAS libraries of NumPy and SciPy, in the same order in every process."""
    from threadpoolctl import ThreadpoolController  # late: it inspects all loaded libraries

    _load_scipys()
    found = [lib for lib in ThreadpoolController().lib_controllers if lib.user_api == "blas"]
    return tuple(sorted(found, key=lambda lib: str(lib.filepath)))


def _load_scipys() -> None:
    """Load the BLAS that SciPy wheels bundle, so that its threads are set as well. Importing `scipy.linalg` would load
    it too, but takes long. A library that is already loaded from this path is not loaded twice."""
    spec = find_spec("scipy")
    for folder in (spec and spec.submodule_search_locations) or ():
        for file in [*Path(folder).parent.glob("scipy.libs/*openblas*"), *Path(folder).glob(".dylibs/*openblas*")]:
            with suppress(OSError):  # SciPy reports it when it is needed
                ctypes.CDLL(str(file))


@contextmanager
def threads(count: int) -> Iterator[None]:
    """A context in which BLAS uses `count` threads. The previous number is restored when the last run ends.

    The setting is per process: if concurrent runs ask for different numbers, the last one to begin wins.

    >>> with threads(1):
    ...     pass
    """
    run = object()
    try:
        _begin(run, count)
        yield
    finally:  # also after an interrupt
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
            # threadpoolctl allows only the thread that first set the number to set it again; here any thread may
            getattr(lib, "_real_set_num_threads", lib.set_num_threads)(count)
