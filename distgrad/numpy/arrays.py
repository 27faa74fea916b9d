"""What makes arrays in this namespace: `np.array`, `np.full`, `np.ndarray`, `*_like`, `np.r_`, `np.c_`, ..."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from distgrad.graph import Tensor, current_graph
from distgrad.numpy.calls import function
from distgrad.ops.array import atleast_1d, broadcast_to, concatenate, reshape
from distgrad.ops.assignment.concrete import compute, raw, traced
from distgrad.ops.assignment.masks import Masked
from distgrad.ops.assignment.names import fresh, is_scalar
from distgrad.ops.assignment.statements import contiguous_array
from distgrad.ops.builder import cast, convert
from distgrad.ops.control import identity
from distgrad.ops.layout import expand_dims, stack

# -- from values -------------------------------------------------------------------------------------------------


def array(object: Any, dtype: Any = None, *, copy: Any = True, order: str = "K", subok: bool = False, ndmin: int = 0,
          **kwargs: Any) -> Any:  # fmt: skip
    """`numpy.array`; also of tensors, and of nested lists with tensors in them."""
    if not traced(object):
        options = {"dtype": dtype, "copy": copy, "order": order, "subok": subok, "ndmin": ndmin, **kwargs}
        return compute(np.array, (object,), options) if current_graph() is not None else np.array(object, **options)
    if isinstance(object, Masked):
        return np.asarray(object)  # an error that says why
    if isinstance(object, Tensor) and not copy and dtype in (None, object.dtype) and len(object.shape) >= ndmin:
        return object
    made = _stacked(object)
    if dtype is not None:
        made = cast(made, dtype)
    if len(made.shape) < ndmin:
        made = reshape(made, (1,) * (ndmin - len(made.shape)) + made.shape)
    return fresh(identity(made.now()), scalars=True)


def _stacked(x: Any) -> Any:
    """A nested list of tensors, arrays and numbers as one tensor."""
    if isinstance(x, list | tuple):
        return stack([_stacked(item) for item in x]) if traced(x) else convert(np.array(raw(x)))
    return convert(raw(x))


def asarray(a: Any, dtype: Any = None, order: Any = None, **kwargs: Any) -> Any:
    """`numpy.asarray`: a tensor is returned as it is."""
    if not traced(a):
        return _asarray(a, dtype, order, **kwargs)
    if isinstance(a, Tensor) and (dtype is None or np.dtype(dtype) == a.dtype):
        return a
    return array(a, dtype)


_asarray = function(np.asarray)


def ascontiguousarray(a: Any, dtype: Any = None, **kwargs: Any) -> Any:
    """`numpy.ascontiguousarray`: a itself, if it is C-contiguous."""
    if not traced(a):
        return _contiguous(a, dtype, **kwargs)
    made = asarray(a, dtype)
    return contiguous_array(made) if made is a else made


_contiguous = function(np.ascontiguousarray)


def full(shape: Any, fill_value: Any, dtype: Any = None, order: str = "C", **kwargs: Any) -> Any:
    """`numpy.full`; the value may be a tensor."""
    if not traced(fill_value):
        return _full(shape, fill_value, dtype, order, **kwargs)
    made = _stacked(fill_value)
    return fresh(identity(broadcast_to(made if dtype is None else cast(made, dtype), raw(shape))), scalars=True)


_full = function(np.full)


def _like(make: Callable[..., Any], name: str) -> Callable[..., Any]:
    ours = function(getattr(np, name))

    def like(a: Any, dtype: Any = None, order: str = "K", subok: bool = True, shape: Any = None, **kwargs: Any) -> Any:
        if isinstance(a, Masked) or not traced(a):
            return ours(a, dtype, order, subok, shape, **kwargs)
        a = a if isinstance(a, Tensor) else _stacked(a)
        return compute(make, (a.shape if shape is None else shape, a.dtype if dtype is None else dtype), {})

    like.__name__, like.__doc__ = name, f"`numpy.{name}`: a concrete array, also for a tensor."
    return like


def full_like(a: Any, fill_value: Any, dtype: Any = None, order: str = "K", subok: bool = True, shape: Any = None,
              **kwargs: Any) -> Any:  # fmt: skip
    """`numpy.full_like`; the array and the value may be tensors."""
    if not traced(a) and not traced(fill_value):
        return _full_like(a, fill_value, dtype, order, subok, shape, **kwargs)
    a = a if isinstance(a, Tensor) else _stacked(a)
    return full(a.shape if shape is None else shape, fill_value, a.dtype if dtype is None else dtype)


_full_like = function(np.full_like)


def copy(a: Any, order: str = "K", subok: bool = False) -> Any:
    """`numpy.copy`."""
    return array(a, order=order, subok=subok)


def fromfunction(f: Callable[..., Any], shape: Any, *, dtype: Any = float, **kwargs: Any) -> Any:
    """`numpy.fromfunction`."""
    return f(*indices(shape, dtype=dtype), **kwargs)


indices = function(np.indices)


def isscalar(element: Any) -> bool:
    """`numpy.isscalar`."""
    return is_scalar(element) if isinstance(element, Tensor) else np.isscalar(element)


def ndenumerate(arr: Any) -> Iterator[Any]:
    """`numpy.ndenumerate`: pairs of an index and an element."""
    if not isinstance(arr, Tensor):
        return np.ndenumerate(arr)
    return ((index, arr[index]) for index in np.ndindex(*arr.shape))


# -- the type ----------------------------------------------------------------------------------------------------


class _Type(type):
    def __instancecheck__(cls, x: Any) -> bool:
        return isinstance(x, np.ndarray) or (isinstance(x, Tensor) and not is_scalar(x))

    def __subclasscheck__(cls, x: Any) -> bool:
        return issubclass(x, np.ndarray | Tensor)

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return function(np.ndarray)(*args, **kwargs) if current_graph() is None else compute(np.ndarray, args, kwargs)

    def __getattr__(cls, name: str) -> Any:
        return getattr(np.ndarray, name)


class ndarray(metaclass=_Type):
    """`numpy.ndarray`: called with a shape it makes an array; arrays that are traced are instances of it too."""


# -- np.r_ and np.c_ ---------------------------------------------------------------------------------------------


class _Joined:
    """`np.r_` and `np.c_`; keys with tensors join them along the first or the last axis."""

    def __init__(self, own: Any, columns: bool):
        self._own, self._columns = own, columns

    def __getitem__(self, key: Any) -> Any:
        if current_graph() is None:
            return self._own[key]
        if not traced(key):
            return compute(self._own.__getitem__, (key,), {})
        parts = [self._part(k) for k in (key if isinstance(key, tuple) else (key,))]
        return concatenate(parts, -1 if self._columns else 0)

    def _part(self, k: Any) -> Any:
        if isinstance(k, str):
            raise TypeError("np.r_ and np.c_ with a string and tensors: use np.concatenate or np.stack")
        made = atleast_1d(_stacked(np.r_[raw(k)] if isinstance(k, slice) else k))
        return expand_dims(made, -1) if self._columns and len(made.shape) == 1 else made


class _Grid:
    """`np.mgrid` and `np.ogrid`."""

    def __init__(self, own: Any):
        self._own = own

    def __getitem__(self, key: Any) -> Any:
        return self._own[key] if current_graph() is None else compute(self._own.__getitem__, (key,), {})


#: The names of this namespace that are not NumPy's own function with an eye on its arguments.
OWN: dict[str, Any] = {
    "array": array, "asarray": asarray, "asanyarray": asarray, "ascontiguousarray": ascontiguousarray, "full": full,
    "full_like": full_like, "zeros_like": _like(np.zeros, "zeros_like"), "ones_like": _like(np.ones, "ones_like"),
    "empty_like": _like(np.zeros, "empty_like"), "empty": function(np.zeros), "copy": copy, "isscalar": isscalar,
    "fromfunction": fromfunction, "ndenumerate": ndenumerate, "ndarray": ndarray, "r_": _Joined(np.r_, False),
    "c_": _Joined(np.c_, True), "mgrid": _Grid(np.mgrid), "ogrid": _Grid(np.ogrid),
}  # fmt: skip
