"""Whether the memory of a training stays bounded: samples of the object store and of every process, and their growth.

    python -m tests.faults.memory 500       prints it for an undisturbed training of 500 steps
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import distgrad as dg

from .training import GRANULARITY, Training, same_bits, undisturbed

#: Steps between two samples of the memory, and steps at the start that do not count.
EVERY, WARM = 25, 100
#: Seconds before a sample: Ray lets go of objects in batches, about once a second.
PAUSE = 1.5

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


def left_alone(steps: int) -> tuple[bool, list[dict[str, int]]]:
    """Whether the weights of a training to which nothing happens have the bits they should, and its memory."""
    from .cluster import OwnCluster

    # Ray keeps a record of the last tasks: a short one is full before the memory counts.
    cluster, samples = OwnCluster(task_events_max_num_task_in_gcs=1000), []
    try:
        with dg.Session("ray", timeout=300, granularity=GRANULARITY):
            training = Training()
            for i in range(WARM + steps + 1):
                if i >= WARM and i % EVERY == 0:
                    time.sleep(PAUSE)
                    samples.append(sample(cluster.address))
                training.step(i)
            return same_bits(training.values(), undisturbed(i + 1)), samples
    finally:
        cluster.end()


def main(steps: int) -> int:
    same, samples = left_alone(steps)
    found = growth(samples)
    print(f"memory over {EVERY * (len(samples) - 1)} steps, in MB; same bits: {'yes' if same else 'NO'}")
    for name, (mean, grown) in found.items():
        verdict = "flat" if is_flat(mean, grown) else "GROWS"
        print(f"{name:>15}{mean / 1e6:>10.1f}{grown / 1e6:>+10.2f}  {verdict}")
    return 0 if same and all(is_flat(*series) for series in found.values()) else 1


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
