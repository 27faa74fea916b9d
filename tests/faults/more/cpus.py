"""Scenes of mixed CPUs: nodes and drivers whose libraries choose other kernels. The bits are the same, or the session
refuses with one clear error."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

import distgrad as dg

from ..training import GRANULARITY, Training, undisturbed
from .stage import Stage, scene

STEPS, WITHIN = 8, 65.0
#: All features that NumPy has loops for and this CPU has, so that none of them is used.
_FEATURES = """
import numpy._core._multiarray_umath as u
print(" ".join([name for name in u.__cpu_dispatch__ if u.__cpu_features__.get(name)]))
"""


@contextmanager
def environment(more: Mapping[str, str]) -> Iterator[None]:
    """What processes get that are started meanwhile."""
    before = dict(os.environ)
    os.environ.update(more)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _bits(values: list[Any]) -> bytes:
    return b"".join([x.tobytes() for x in values])


def _trained() -> bytes:
    """The weights of a training whose tasks run on both nodes."""
    with dg.Session("ray", timeout=60.0, granularity=GRANULARITY):
        training = Training(("worker:0", "worker:1", "worker:1"))
        for i in range(STEPS):
            training.step(i)
        return _bits(training.values())


def _mixed(stage: Stage, more: Mapping[str, str]) -> None:
    """A node has another environment than the head: three trainings give the bits of one process, or are refused."""
    from ..cluster import OwnCluster

    cluster = OwnCluster(cpus=1)
    try:
        with environment(more):
            cluster.add()
        right = _bits(undisturbed(STEPS))
        for _ in range(3):
            found = stage.call("training", lambda: _told(_trained(), right), WITHIN + STEPS)
            stage.check(f"the bits of one process: {found.value or found.error}", found.failed or found.value == "same")
    finally:
        cluster.end()


def _told(found: bytes, right: bytes) -> str:
    return "same" if found == right else "different"


def _scenes_of_kernels() -> None:
    for name in ("Prescott", "Nehalem", "Haswell"):

        def play(stage: Stage, name: str = name) -> None:
            _mixed(stage, {"OPENBLAS_CORETYPE": name})

        play.__name__ = f"mixed_cpus_{name.lower()}"
        scene(limit=300)(play)


_scenes_of_kernels()


@scene(limit=300)
def mixed_cpus_numpy_features(stage: Stage) -> None:
    """A CPU without the features that NumPy's loops use: its exp and tanh may have other last bits."""
    features = subprocess.run([sys.executable, "-c", _FEATURES], text=True, capture_output=True, check=True).stdout
    _mixed(stage, {"NPY_DISABLE_CPU_FEATURES": features.strip()})


@scene(limit=300)
def mixed_cpus_threads(stage: Stage) -> None:
    """A node that was told to use more threads."""
    _mixed(stage, {"OPENBLAS_NUM_THREADS": "8", "OMP_NUM_THREADS": "8"})


@scene(limit=300)
def mixed_cpus_joins_later(stage: Stage) -> None:
    """A node with other kernels joins while a training goes on; its tasks may come to it."""
    from ..cluster import OwnCluster

    cluster = OwnCluster(cpus=1)
    try:
        with dg.Session("ray", timeout=60.0, granularity=GRANULARITY):
            training = Training()
            for i in range(STEPS):
                if i == 2:
                    with environment({"OPENBLAS_CORETYPE": "Prescott"}):
                        cluster.add()
                stage.result(f"step {i}", lambda i=i: training.step(i), WITHIN)
            stage.check("the bits of one process", _bits(training.values()) == _bits(undisturbed(STEPS)))
        found = stage.call("another session", _trained, WITHIN + STEPS)
        stage.check("its bits", found.failed or found.value == _bits(undisturbed(STEPS)))
    finally:
        cluster.end()


@scene(limit=300, env={"OPENBLAS_CORETYPE": "Prescott"})
def mixed_cpus_driver_differs(stage: Stage) -> None:
    """The driver's kernels are not those of the cluster: what it folds must not differ from what workers compute.
    The same on a cluster whose driver has the usual kernels."""
    from ..cluster import OwnCluster

    with environment({"OPENBLAS_CORETYPE": ""}):
        del os.environ["OPENBLAS_CORETYPE"]
        cluster = OwnCluster(cpus=1)
        cluster.add()
    try:
        found = [stage.call("training", lambda: _folded_and_trained(), WITHIN + STEPS) for _ in range(2)]
        if not any(each.failed for each in found):
            stage.check("equal trainings are equal", found[0].value == found[1].value)
            folded, computed = found[0].value[0]
            stage.check("what is folded is what workers compute", folded == computed)
    finally:
        cluster.end()


def _folded_and_trained() -> Any:
    """A product of constants, which may be folded, and the same product of what is fed; and a training."""
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 200, 200)).astype(np.float32)
    with dg.Session("ray", timeout=60.0, granularity=GRANULARITY):
        folded = dg.function(lambda: dg.tanh(dg.constant(a) @ dg.constant(b)))()
        computed = dg.function(lambda x, y: dg.tanh(x @ y))(a, b)
    return (folded.tobytes(), computed.tobytes()), _trained()
