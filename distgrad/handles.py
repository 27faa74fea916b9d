"""Handles: values that stay where they were computed. A session returns them when asked not to fetch; variables with a
value in the cluster hold one."""

from __future__ import annotations

from typing import Any

import numpy as np

from distgrad.types import DType, Shape, Spec, dtype_from

Array = np.ndarray[Any, np.dtype[Any]]


class Handle:
    """A value of known type that is fetched to this process only on request: by `numpy()`, or by a NumPy function.

    Functions and feeds accept handles like arrays; within the session that created it, the value does not move.

    >>> import numpy as np, distgrad as dg
    >>> double = dg.function(lambda x: x * 2)
    >>> session = dg.Session()
    >>> h = session.submit(double, np.ones(2))
    >>> h
    <Handle f64[2]>
    >>> session.submit(double, h).numpy()
    array([4., 4.])
    """

    __slots__ = ("__weakref__", "spec")

    def __init__(self, spec: Spec):
        self.spec = spec

    @property
    def shape(self) -> Shape:
        return self.spec.shape

    @property
    def dtype(self) -> DType:
        return self.spec.dtype

    def value(self) -> Array:
        """The array itself, without a copy. It must not be modified."""
        raise NotImplementedError

    def numpy(self) -> Array:
        """A copy of the value."""
        return np.array(self.value())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        if copy is False:
            raise ValueError("a handle cannot share its array without a copy: use numpy()")
        return np.array(self.value(), dtype=dtype if dtype is None else dtype_from("np.array", dtype))

    def __repr__(self) -> str:
        return f"<Handle {self.spec}>"

    def __reduce__(self) -> Any:
        raise TypeError(f"{self!r} cannot be copied or pickled, because its session keeps the value: send .numpy()")


class LocalHandle(Handle):
    """A handle on an array of this process."""

    __slots__ = ("_value",)

    def __init__(self, value: Array):
        super().__init__(Spec(value.shape, value.dtype))
        self._value = value

    def value(self) -> Array:
        return self._value


def value_of(x: Array | Handle) -> Array:
    """The array, fetched if `x` is a handle."""
    return x.value() if isinstance(x, Handle) else x
