"""distgrad: gradients of NumPy models as dataflow graphs, on one machine or a Ray cluster."""

from __future__ import annotations

import os as _os

# In a checkout scheduler/ and workers/ lie beside this folder, not in it; installed, they are its subfolders. This makes
# `import distgrad` work in the checkout too, where the current directory shadows the installed package.
if _os.path.exists(_os.path.join(_os.path.dirname(__file__), "..", "pyproject.toml")):
    __path__.append(_os.path.abspath(_os.path.join(_os.path.dirname(__file__), "..")))

from distgrad import raw_ops, testing
from distgrad.custom_gradient import custom_gradient, grad_pass_through, recompute_grad
from distgrad.derivatives import (
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
from distgrad.explain import explain_gradient
from distgrad.function import function
from distgrad.functional import Defun
from distgrad.gradients import AggregationMethod, UnconnectedGradients, gradients
from distgrad.graph import Graph, Operation, Tensor
from distgrad.indexed_slices import IndexedSlices, IndexedSlicesValue
from distgrad.ops import linalg, nn, random
from distgrad.ops.array import *  # noqa: F403
from distgrad.ops.builder import cast
from distgrad.ops.control import *  # noqa: F403
from distgrad.ops.control import tuple_ as tuple
from distgrad.ops.index import *  # noqa: F403
from distgrad.ops.math import *  # noqa: F403
from distgrad.ops.matmul import *  # noqa: F403
from distgrad.ops.reduce import *  # noqa: F403
from distgrad.registry import RegisterGradient, no_gradient
from distgrad.session import Session
from distgrad.user_ops import op
from distgrad.variables import Variable

NotDifferentiable = NoGradient = no_gradient
