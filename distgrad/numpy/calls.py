"""Functions of NumPy that know traced arrays: each is NumPy's own, unless one of its arguments is traced.

NumPy dispatches on the type of its arguments, but not for lists of tensors, and not for functions that make arrays. So
the functions of this namespace look at their arguments themselves.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from distgrad.graph import Graph, Tensor, current_graph
from distgrad.ops import numpy_api
from distgrad.ops.assignment.concrete import compute, traced

_DISPATCHER = type(np.sum)


def lifted(x: Any) -> Any:
    """A name of NumPy's for this namespace: functions look at their arguments, everything else is NumPy's."""
    if isinstance(x, np.ufunc):
        return Ufunc(x)
    if isinstance(x, type) or not callable(x):
        return x
    return function(x)


def function(f: Callable[..., Any]) -> Callable[..., Any]:
    """A function of NumPy that also takes traced arrays, if distgrad has it; an error that says so, if not."""

    @functools.wraps(f)
    def call(*args: Any, **kwargs: Any) -> Any:
        if current_graph() is None:
            return f(*args, **kwargs)
        if traced(args) or (kwargs and traced(kwargs)):
            return numpy_api.array_function(None, f, (), args, kwargs)
        return compute(f, args, kwargs)

    return call


class Ufunc:
    """A ufunc of NumPy that also takes traced arrays."""

    def __init__(self, ufunc: np.ufunc):
        self.ufunc = ufunc
        self.__name__, self.__doc__ = ufunc.__name__, ufunc.__doc__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._run("__call__", args, kwargs)

    def _run(self, method: str, args: Any, kwargs: Any) -> Any:
        f = self.ufunc if method == "__call__" else getattr(self.ufunc, method)
        if current_graph() is None:
            return f(*args, **kwargs)
        if not (traced(args) or (kwargs and traced(kwargs))):
            return compute(f, args, kwargs)
        if len(args) > self.ufunc.nin and method == "__call__":  # np.add(x, y, out)
            args, kwargs = args[: self.ufunc.nin], {**kwargs, "out": args[self.ufunc.nin :]}
        return numpy_api.array_ufunc(None, self.ufunc, method, *args, **kwargs)

    def at(self, *args: Any, **kwargs: Any) -> Any:
        return self._run("at", args, kwargs)

    def reduce(self, *args: Any, **kwargs: Any) -> Any:
        return self._run("reduce", args, kwargs)

    def accumulate(self, *args: Any, **kwargs: Any) -> Any:
        return self._run("accumulate", args, kwargs)

    def outer(self, *args: Any, **kwargs: Any) -> Any:
        return self._run("outer", args, kwargs)

    def reduceat(self, *args: Any, **kwargs: Any) -> Any:
        return self._run("reduceat", args, kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.ufunc, name)

    def __repr__(self) -> str:
        return repr(self.ufunc)

    def __reduce__(self) -> Any:
        return Ufunc, (self.ufunc,)

    def __eq__(self, other: object) -> bool:
        return self.ufunc == (other.ufunc if isinstance(other, Ufunc) else other)

    def __hash__(self) -> int:
        return hash(self.ufunc)


def tracing(args: Any) -> bool:
    """Whether the arguments are traced, or a graph is being built."""
    return traced(args) or isinstance(current_graph(), Graph)


__all__ = ["Tensor", "Ufunc", "function", "lifted", "tracing"]
