"""Backend: one row of the table of array backends, with everything that the rest of distgrad asks about a backend."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from distgrad.scheduler.cluster import Machine
from distgrad.scheduler.execution import EAGER, Execution
from distgrad.workers.backends.base_extras import Array, Extras

if TYPE_CHECKING:
    from distgrad.scheduler.bodies import Body
    from distgrad.scheduler.program import Step
    from distgrad.types import Spec
    from distgrad.workers.backends.eager import EagerStep
    from distgrad.workers.task_monitor import TaskMonitor


#: Steps without constants, the types of all values, the constants, the values that must not be overwritten -> calls.
Rewrite = Callable[
    ["Sequence[Step]", "Sequence[Spec]", Mapping[int, Array], set[int], "Backend"], "Sequence[EagerStep]"
]


class CompiledSteps(Protocol):
    """The steps of a task, ready to run on NumPy arrays."""

    @property
    def calls(self) -> Sequence[Any]: ...

    @property
    def all_native(self) -> bool:
        """Whether nothing is computed with NumPy, which would have to be kept from warning."""

    def run(self, given: Sequence[Any], monitor: TaskMonitor | None = None) -> list[Array]: ...


def _eager(body: Body, backend: Backend) -> CompiledSteps:
    from distgrad.workers.backends.eager import Eager  # late: kernels import this package

    return Eager(body.steps, body.types, body.reads, body.gives, backend)


@dataclass(frozen=True)
class Gpus:
    """How a backend runs on GPUs."""

    #: A context in which new arrays are created on the GPU of this process.
    device: Callable[[], AbstractContextManager[Any]]
    #: Bytes of memory of that GPU; None if the library finds no GPU.
    memory: Callable[[], int | None]
    #: What `distgrad doctor` reports on a machine with GPUs: "ok", "warning" or "problem", the finding, the remedy.
    diagnosis: Callable[[], tuple[str, str, str]]


@dataclass(frozen=True, eq=False)
class Backend:
    """An array backend.

    >>> from distgrad.workers.backends import backend
    >>> b = backend("numpy")
    >>> b.to_numpy(b.xp.exp(b.to_device(np.zeros(2))))
    array([1., 1.])
    """

    #: The name that `Session(backend=...)` takes.
    name: str
    #: Imports the library; returns its array namespace, and what kernels need beyond the Array API standard.
    load: Callable[[], tuple[Any, Extras]]
    #: How to install the library.
    remedy: str = ""
    #: Packages that results depend on: name -> the version that enters the fingerprint.
    packages: Mapping[str, Callable[[], str]] = field(default_factory=dict)
    #: Compiles the steps of a task, which contain no outlined calls.
    compile: Callable[[Body, Backend], CompiledSteps] = _eager
    #: For the eager engine: replaces groups of steps by kernels of the library.
    rewrite: Rewrite | None = None
    #: Arrays are NumPy's own: nothing is moved to a device, and matrix products use NumPy's BLAS.
    is_numpy: bool = False
    #: None if the backend runs on CPUs alone.
    gpus: Gpus | None = None
    #: How tasks run, as far as predicted time and memory depend on it.
    execution: Execution = EAGER
    #: Turns the measured rates of a machine into those of this backend.
    rates: Callable[[Machine], Machine] = lambda machine: machine

    @cached_property
    def _loaded(self) -> tuple[Any, Extras]:
        try:
            return self.load()
        except ModuleNotFoundError as e:
            raise ImportError(f"the array backend {self.name!r} needs a missing package ({e}): {self.remedy}") from e

    @property
    def xp(self) -> Any:
        """The array namespace."""
        return self._loaded[0]

    @property
    def extras(self) -> Extras:
        return self._loaded[1]

    def to_device(self, x: Array) -> Any:
        """A NumPy array as an array of this library, on its current device. May share memory with x."""
        return self.extras.from_numpy(x)

    def to_numpy(self, x: Any) -> Array:
        """The values as a NumPy array that shares memory with nothing else."""
        return np.array(self.extras.to_numpy(x))

    def device(self, gpus: int) -> AbstractContextManager[Any]:
        """A context in which new arrays are created where a task with this many GPUs runs."""
        return self.gpus.device() if gpus and self.gpus else nullcontext()
