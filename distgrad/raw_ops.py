"""Ops with the names and arguments of TensorFlow's raw_ops."""

from __future__ import annotations

from typing import Any

from distgrad.autodiff.defun import symbolic_gradient


def SymbolicGradient(*, input: Any, Tout: Any, f: Any, name: str | None = None) -> list[Any]:
    """The gradient of a function, as one op.

    With `(y1, ..., yM) = f(x1, ..., xN)` and a loss L, `input` is `[x1, ..., xN, dL/dy1, ..., dL/dyM]` and the result
    is `[dL/dx1, ..., dL/dxN]`. Tensors that f captured count as inputs, after the declared ones. No gradient is None:
    without a path, past an op without gradient, and for integers it is zeros.

    Args:
        input: the inputs of f, then the gradients of its outputs.
        Tout: the dtypes of the N inputs.
        f: a function decorated with @Defun, or the name of one that was called in this graph.
        name: name of the op.

    Raises:
        LookupError: f is not known, or an op in it has no registered gradient.
        ValueError, TypeError: the counts, shapes or dtypes do not match f.

    >>> import distgrad as dg
    >>> import numpy as np
    >>> @dg.Defun()
    ... def f(x, y):
    ...     return x * y, x + y
    >>> SymbolicGradient(input=[2.0, 3.0, 10.0, 100.0], Tout=[np.float64] * 2, f=f)
    [array(130.), array(120.)]
    """
    return symbolic_gradient(input, Tout, f, name)


__all__ = ["SymbolicGradient"]
