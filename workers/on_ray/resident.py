"""Values that stay on a worker's device between calls, so that weights are copied to a GPU once, not at every step.

A value is identified by the object of the store that holds a copy of it, and its position there. Both sides know these:
the driver has the object's id, and a task can compute the ids of the objects that it returns.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from functools import cache
from typing import Any

import ray

from distgrad.workers.backends import Backend

#: The share of a GPU's memory that kept values may use; their bytes if there is no GPU.
SHARE, BYTES = 0.25, 256 << 20

_kept: OrderedDict[tuple[str, int], Any] = OrderedDict()
_size = 0


def moved(backend: Backend, key: str | None, place: int, x: Any) -> Any:
    """A value of an object on the device; the one of an earlier call if it is still there."""
    if key is None:
        return x
    found = _kept.get((key, place))
    if found is None:
        found = backend.to_device(x)
        _keep(backend, key, place, found)
    else:
        _kept.move_to_end((key, place))
    return found


def keep_made(backend: Backend, returned: int, values: Sequence[Any]) -> None:
    """Keep what this task returns as its object number `returned`."""
    task = ray.get_runtime_context().get_task_id()
    assert task is not None
    key = task + (returned + 1).to_bytes(4, "little").hex()  # as ObjectRef.hex() has it, which counts from one
    for place, x in enumerate(values):
        _keep(backend, key, place, x)


def _keep(backend: Backend, key: str, place: int, x: Any) -> None:
    global _size
    _kept[key, place] = x
    _size += x.nbytes
    while _size > _limit(backend) and _kept:
        _, gone = _kept.popitem(last=False)
        _size -= gone.nbytes


@cache
def _limit(backend: Backend) -> int:
    memory = backend.gpus.memory() if backend.gpus else None
    return BYTES if memory is None else int(SHARE * memory)
