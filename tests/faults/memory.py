"""Whether a training holds its memory: samples of the object store and of every process, and how they grow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

#: Growth over all samples below which a series is flat: bytes, or this part of its mean.
FLAT_BYTES, FLAT_PART = 6 << 20, 0.05

_OWN = {"ray::run_task": "workers", "ray::IDLE": "workers"}


def sample(address: str) -> dict[str, int]:
    """Bytes in use: of the object store, and of the driver, raylet, gcs_server and workers without what they share."""
    import ray  # brings psutil
    from ray._private.internal_api import get_memory_info_reply, get_state_from_address

    assert ray.is_initialized()
    import psutil

    stats = get_memory_info_reply(get_state_from_address(address)).store_stats
    found = {"store": int(stats.object_store_bytes_used), "driver": _own_bytes(psutil.Process())}
    for process in psutil.Process().children(recursive=True):
        try:
            name = process.cmdline()[0].rpartition("/")[2]
            name = _OWN.get(name, name)
            if name in ("workers", "raylet", "gcs_server"):
                found[name] = found.get(name, 0) + _own_bytes(process)
        except (psutil.Error, IndexError):
            continue
    return found


def _own_bytes(process: Any) -> int:
    info = process.memory_info()
    return int(info.rss - getattr(info, "shared", 0))


def growth(samples: Sequence[Mapping[str, int]]) -> dict[str, tuple[float, float]]:
    """Of each series its mean, and how much it grows from the first sample to the last along the line of best fit."""
    found = {}
    for name in samples[0]:
        series = np.array([s.get(name, 0) for s in samples], float)
        slope = np.polyfit(np.arange(len(series)), series, 1)[0]
        found[name] = float(series.mean()), float(slope * (len(series) - 1))
    return found


def is_flat(mean: float, grown: float) -> bool:
    return grown < max(FLAT_BYTES, FLAT_PART * mean)
