"""The driver's memory over many steps: what is in use does not grow. What a process holds beyond that does for a while,
and ends: pages of the object store that it has seen count as its own, up to the size of the store, and the allocator
keeps what was freed."""

from __future__ import annotations

import ctypes
import gc
import time
from typing import Any, NamedTuple

import numpy as np
import pytest

import distgrad as dg

pytestmark = pytest.mark.ray

WARM, STEPS = 60, 240


FIELDS = (
    "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"
)  # fmt: skip


class _Malloc(ctypes.Structure):
    """What mallinfo2(3) gives."""

    _fields_ = [(name, ctypes.c_size_t) for name in FIELDS]


class Use(NamedTuple):
    """Bytes in use, of all libraries in this process; objects of Python's; references to objects of Ray's."""

    nbytes: int
    objects: int
    references: int


def used() -> Use:
    import ray

    time.sleep(1.2)  # Ray lets go in batches, about once a second
    gc.collect()
    found = ctypes.CDLL(None).mallinfo2
    found.restype = _Malloc
    malloc = found()
    references = ray._private.worker.global_worker.core_worker.get_all_reference_counts()
    return Use(malloc.uordblks + malloc.hblkhd, len(gc.get_objects()), len(references))


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="the C library does not tell what is in use")
def test_what_the_driver_uses_does_not_grow_with_the_steps(session: dg.Session) -> None:
    rng = np.random.default_rng(0)
    w, b = dg.Variable(rng.normal(size=(160, 160))), dg.Variable(np.zeros(160))

    @dg.function
    def step(x: dg.Tensor) -> Any:
        y = dg.tanh(x @ w + b)
        gw, gb = dg.gradients(dg.mean(y**2), [w, b])
        w.assign_sub(0.1 * gw)
        b.assign_sub(0.1 * gb)
        return dg.mean(y)

    def run(steps: int) -> None:
        for _ in range(steps):
            step(rng.normal(size=(64, 160)))

    run(WARM)
    before = used()
    run(STEPS)
    after = used()
    assert after.nbytes - before.nbytes < 1 << 20  # a step alone is given 80 KB
    assert after.objects - before.objects < STEPS
    assert after.references <= before.references
