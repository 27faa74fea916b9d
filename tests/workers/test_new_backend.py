"""A new array backend, as CONTRIBUTING.md says: one row, and a kernel. Nothing else in the tree knows of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import array_api_strict
import numpy as np
import pytest

import distgrad as dg
from distgrad.scheduler.bodies import bodies
from distgrad.scheduler.cluster import Machine
from distgrad.scheduler.execution import EAGER
from distgrad.scheduler.program import Step
from distgrad.types import Spec
from distgrad.workers.backends import BACKENDS, Array, Backend, Extras, Gpus, backend, gpu_backend
from distgrad.workers.backends.eager import EagerStep, eager_step
from distgrad.workers.kernels import KERNELS_OF, kernel
from distgrad.workers.on_ray.agreement import extras_of

# -- workers/backends/<name>/ ------------------------------------------------------------------------------------


class Library:
    """The namespace of an array library: that of array-api-strict under another name."""

    __name__ = "library"

    def __getattr__(self, name: str) -> Any:
        return getattr(array_api_strict, name)


def load() -> tuple[Any, Extras]:
    xp = Library()
    return xp, Extras(xp)


def rewrite(
    steps: Sequence[Step], types: Sequence[Spec], constants: Mapping[int, Array], kept: set[int], backend: Backend
) -> list[EagerStep]:
    calls.append(f"{len(steps)} steps")
    return [eager_step(step, types, backend) for step in steps]


def rates(machine: Machine) -> Machine:
    return replace(machine, kernel_seconds=1e-3)


#: What the library was asked to do.
calls: list[str] = []
EXECUTION = replace(EAGER, splits_steps=False)
ROW = Backend(
    "library", load, "pip install library", {"library": lambda: "1.0"}, rewrite=rewrite,
    gpus=Gpus(nullcontext, lambda: 1 << 30, lambda: ("ok", "library", "")), execution=EXECUTION, rates=rates,
)  # fmt: skip


@pytest.fixture(autouse=True)
def _row(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The row, and a kernel of its own."""
    calls.clear()
    monkeypatch.setitem(BACKENDS, "library", replace(ROW))

    @kernel("Tanh", backend="library")
    def tanh(xp: Any, x: Any) -> Any:
        calls.append("tanh")
        return xp.tanh(x)

    yield
    del KERNELS_OF["library"]


# -- what the row does -------------------------------------------------------------------------------------------

X = np.random.default_rng(0).normal(size=(30, 40))


def loss_and_gradient(x: Any) -> Any:
    y = dg.sum(dg.tanh(x @ dg.transpose(x)) * 2.0)
    return y, dg.gradients(y, x)[0]


def test_a_session_runs_on_it() -> None:
    expected = dg.function(loss_and_gradient)(X)
    with dg.Session(backend="library", threads=1):
        found = dg.function(loss_and_gradient)(X)
    for x, y in zip(found, expected, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-12)
    assert "tanh" in calls
    assert any(call.endswith("steps") for call in calls)


def test_a_plan_is_predicted_for_it_and_says_so() -> None:
    ours, numpys = (dg.Session(backend=name, threads=2) for name in ("library", "numpy"))
    with ours:
        plan = dg.function(loss_and_gradient).plan(X)
    with numpys:
        other = dg.function(loss_and_gradient).plan(X)
    assert (plan.backend, dict(plan.fingerprint)["library"]) == ("library", "1.0")
    assert plan.executions.on_cpus == plan.executions.on_gpus == EXECUTION
    assert plan.cluster.machine.kernel_seconds == 1e-3
    assert plan.predictions.seconds > 4e-3 > other.predictions.seconds
    assert plan.digest != other.digest


def test_gpu_tasks_of_its_sessions_run_on_it() -> None:
    assert gpu_backend("library") is BACKENDS["library"]
    assert gpu_backend("numpy").name == "torch"


def test_workers_must_have_its_packages() -> None:
    with dg.Session(backend="library", threads=1):
        plan = dg.function(loss_and_gradient).plan(X)
    (body,), _ = bodies(plan)
    assert extras_of(body, "library") == ("library",)


def test_a_missing_library_is_an_error_that_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> Any:
        raise ModuleNotFoundError("No module named 'library'")

    monkeypatch.setitem(BACKENDS, "library", replace(ROW, load=missing))
    with pytest.raises(ImportError, match=r"'library' needs a missing package .*: pip install library"):
        backend("library")
