"""distgrad: gradients of NumPy models as dataflow graphs.

Build: `function`, `Graph`, `Variable`, `constant`, `placeholder`, `Defun`, `op`; NumPy's functions under NumPy's names,
and `nn`, `linalg`, `random`. Differentiate: `gradients`, `grad`, `value_and_grad`, `vjp`, `jvp`, `jacobian`, `hessian`,
`hvp`; `RegisterGradient`, `no_gradient`, `custom_gradient`, `recompute_grad`; `explain_gradient` says why one is None.
Run: call a function, on shards of a batch with `data_parallel`, or `Session().run(fetches, feed_dict)`; `Session` sets
threads, memory and more. `function.plan(...)` and `Session.plan` return the `Plan` without running anything.
`Session("ray")` runs on a Ray cluster; a `Handle` is a value that stays there.
Errors: `BudgetError` and `DeviceError` refuse a run before it begins; `NumericsError` reports a NaN or Inf,
`TaskFailed` a task that failed on all attempts, `ClusterLost` a cluster that has ended or does not answer.
Save: `Checkpoints`, `save_checkpoint`, `restore_checkpoint`, `from_checkpoint`; `load_tensor` reads a file in a run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING as _CHECKING
from typing import Any as _Any

from distgrad import checkout as _checkout

_checkout.install()  # first: the imports below may need it

from distgrad import ops as _ops
from distgrad import raw_ops, testing
from distgrad.autodiff.custom_gradient import custom_gradient
from distgrad.autodiff.data_parallel import data_parallel
from distgrad.autodiff.defun import Defun
from distgrad.autodiff.derivatives import (
    grad,
    hessian,
    hessian_vector_product,
    hessians,
    hvp,
    jacobian,
    jvp,
    value_and_grad,
    vjp,
)
from distgrad.autodiff.explain import explain_gradient
from distgrad.autodiff.gradients import AggregationMethod, UnconnectedGradients, gradients
from distgrad.autodiff.recompute import grad_pass_through, recompute_grad
from distgrad.errors import (
    BudgetError,
    CheckpointError,
    ClusterLost,
    DeviceError,
    FingerprintError,
    NumericsError,
    StoreFull,
    TaskFailed,
)
from distgrad.graph import Graph, Operation, Tensor, check_graph
from distgrad.handles import Handle
from distgrad.ops import math, nn, random
from distgrad.ops.array import *
from distgrad.ops.builder import cast
from distgrad.ops.control import *
from distgrad.ops.control import tuple_ as tuple
from distgrad.ops.files import *
from distgrad.ops.index import *
from distgrad.ops.indexed_slices import IndexedSlices, IndexedSlicesValue
from distgrad.ops.library import fft
from distgrad.ops.library.elementwise import *
from distgrad.ops.library.search import *
from distgrad.ops.library.shapes import *
from distgrad.ops.library.statistics import *
from distgrad.ops.math import *
from distgrad.ops.matrix import linalg
from distgrad.ops.matrix.matmul import *
from distgrad.ops.reduce import *
from distgrad.registry import RegisterGradient, no_gradient
from distgrad.run.session import Session
from distgrad.store.checkpoints import (
    Checkpoints,
    from_checkpoint,
    latest_checkpoint,
    restore_checkpoint,
    save_checkpoint,
)
from distgrad.tracing.function import function
from distgrad.tracing.scopes import control_dependencies, device, name_scope
from distgrad.tracing.user_ops import op
from distgrad.tracing.variables import Variable

if _CHECKING:
    from distgrad import scheduler
    from distgrad.scheduler.plan import Plan

NotDifferentiable = NoGradient = no_gradient

__version__ = "0.1.0"
__all__ = [
    "AggregationMethod", "BudgetError", "CheckpointError", "Checkpoints", "ClusterLost", "Defun", "DeviceError",
    "FingerprintError", "Graph", "Handle", "IndexedSlices", "IndexedSlicesValue", "NoGradient", "NotDifferentiable",
    "NumericsError", "Operation", "Plan", "RegisterGradient", "Session", "StoreFull", "TaskFailed", "Tensor",
    "UnconnectedGradients", "Variable", "cast", "check_graph", "control_dependencies", "custom_gradient",
    "data_parallel", "device", "explain_gradient", "fft",
    "from_checkpoint", "function", "grad", "grad_pass_through", "gradients", "hessian", "hessian_vector_product",
    "hessians", "hvp", "jacobian", "jvp", "latest_checkpoint", "linalg", "math", "name_scope", "nn", "no_gradient",
    "op", "random", "raw_ops", "recompute_grad", "restore_checkpoint", "save_checkpoint", "scheduler", "testing",
    "tuple", "value_and_grad", "vjp",
]  # fmt: skip
__all__ += _ops.array.__all__
__all__ += _ops.control.__all__
__all__ += _ops.library.elementwise.__all__
__all__ += _ops.files.__all__
__all__ += _ops.index.__all__
__all__ += _ops.math.__all__
__all__ += _ops.matrix.matmul.__all__
__all__ += _ops.reduce.__all__
__all__ += _ops.library.search.__all__
__all__ += _ops.library.shapes.__all__
__all__ += _ops.library.statistics.__all__


def __getattr__(name: str) -> _Any:
    """Import the scheduler on first use, here or in a session: building graphs does not need it."""
    if name not in ("Plan", "scheduler"):
        raise AttributeError(f"module 'distgrad' has no attribute {name!r}")
    import distgrad.scheduler as late

    return late if name == "scheduler" else late.Plan
