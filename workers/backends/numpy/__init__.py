"""NumPy, the default: tasks are compiled to a tape of calls on preallocated memory (`workers/numpy_engine/`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from distgrad.scheduler.execution import NATIVE
from distgrad.workers.backends.backend import Backend, CompiledSteps
from distgrad.workers.backends.base_extras import Extras
from distgrad.workers.backends.numpy.extras import NumpyExtras

if TYPE_CHECKING:
    from distgrad.scheduler.bodies import Body


def _load() -> tuple[Any, Extras]:
    return np, NumpyExtras(np)


def _compile(body: Body, backend: Backend) -> CompiledSteps:
    from distgrad.workers.numpy_engine.tape import Tape  # late: kernels import the table of backends
    from distgrad.workers.thread_pool import thread_pool

    return Tape(body.steps, body.types, body.reads, body.gives, thread_pool(body.cpus), body.native, body.stays)


NUMPY = Backend("numpy", _load, compile=_compile, is_numpy=True, execution=NATIVE)
