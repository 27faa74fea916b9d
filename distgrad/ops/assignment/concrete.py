"""Arrays of a trace that depend on no argument: NumPy computes with them at once, until something traced is assigned.

A method of an `Array` that is concrete is NumPy's own method on its NumPy array; what it returns is an `Array` again,
and shares memory with the first where NumPy's arrays do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from distgrad.errors import NoValueError
from distgrad.graph import FuncGraph, Tensor, current_graph
from distgrad.ops.assignment.masks import Masked
from distgrad.ops.assignment.names import Array, assignable, check_sealed, concrete, owner_of, wrapped
from distgrad.ops.assignment.statements import INPLACE

Method = Callable[..., Any]


def traced(x: Any) -> bool:
    """Whether a value depends on what is known only when the trace runs."""
    if isinstance(x, Tensor):
        return concrete(x) is None
    if isinstance(x, list | tuple):
        return any(map(traced, x))
    if isinstance(x, dict):
        return any(map(traced, x.values()))
    return isinstance(x, Masked) or (isinstance(x, slice) and traced((x.start, x.stop, x.step)))


def raw(x: Any) -> Any:
    """A value with NumPy's arrays in place of concrete ones."""
    if type(x) is Array:
        return x.state.shadow if x.state.memory.concrete else x
    if isinstance(x, list | tuple):
        made = [raw(item) for item in x]
        if all(a is b for a, b in zip(made, x, strict=True)):
            return x
        return type(x)(*made) if hasattr(x, "_fields") else type(x)(made)
    if isinstance(x, dict):
        return {key: raw(value) for key, value in x.items()}
    if isinstance(x, slice):
        return slice(raw(x.start), raw(x.stop), raw(x.step))
    return x


def cooked(made: Any, given: Any) -> Any:
    """What NumPy returned, with arrays that can be assigned to; but not those that belong to an array given to it that
    is none of this trace."""
    if not isinstance(current_graph(), FuncGraph):
        return made
    foreign: set[int] = set()
    _note(given, foreign)
    return _cooked(made, foreign)


def _note(x: Any, foreign: set[int]) -> None:
    if isinstance(x, np.ndarray):
        foreign.add(id(owner_of(x)))
    elif isinstance(x, list | tuple):
        for item in x:
            _note(item, foreign)
    elif isinstance(x, dict):
        _note([*x.values()], foreign)


def _cooked(made: Any, foreign: set[int]) -> Any:
    if isinstance(made, np.ndarray):
        plain = type(made) is np.ndarray and made.dtype.kind in "biufc"
        return made if not plain or id(owner_of(made)) in foreign else wrapped(made)
    if isinstance(made, list | tuple):
        items = [_cooked(item, foreign) for item in made]
        return type(made)(*items) if hasattr(made, "_fields") else type(made)(items)
    return made


def compute(f: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """A function of NumPy on arrays of which none is traced."""
    out = kwargs.get("out")
    made = f(*raw(args), **raw(kwargs))
    if out is not None:
        return out[0] if isinstance(out, tuple) and len(out) == 1 else out
    return cooked(made, (args, kwargs))


# -- methods -----------------------------------------------------------------------------------------------------


def _method(name: str, base: Method) -> Method:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        state = self.state
        if state.memory.concrete and not any(map(traced, args)) and not (kwargs and traced(kwargs)):
            own = getattr(state.shadow, name, None)
            if own is not None:
                made = own(*raw(args), **raw(kwargs))
                return made if made is NotImplemented else cooked(made, args)
        return base(self, *args, **kwargs)

    method.__name__ = name
    return method


def _inplace(name: str, base: Method) -> Method:
    def method(self: Any, other: Any) -> Any:
        if self.state.memory.concrete and not traced(other):
            _writable(self)
            getattr(self.state.shadow, name)(raw(other))
            return self
        return base(self, other)

    method.__name__ = name
    return method


def _writable(x: Array) -> None:
    assignable(x, "an assignment")
    check_sealed(x.state.memory)


def _value(name: str, base: Method) -> Method:
    def method(self: Any, *args: Any) -> Any:
        found = concrete(self)
        return base(self, *args) if found is None else getattr(found, name)(*args)

    method.__name__ = name
    return method


def _property(name: str, base: Any) -> property:
    before = Tensor.__dict__[name]

    def read(self: Any) -> Any:
        found = concrete(self)
        return before.fget(self) if found is None else cooked(getattr(found, name), ())

    return property(read, before.fset, doc=before.__doc__)


def _set_item(base: Method) -> Method:
    def method(self: Any, key: Any, value: Any) -> None:
        if self.state.memory.concrete and not traced(value) and not traced(key):
            _writable(self)
            self.state.shadow[raw(key)] = raw(value)
        else:
            base(self, key, value)

    return method


def _writer(name: str, base: Method) -> Method:
    def method(self: Any, *args: Any, **kwargs: Any) -> None:
        if self.state.memory.concrete and not traced(args):
            _writable(self)
            getattr(self.state.shadow, name)(*raw(args), **raw(kwargs))
        else:
            base(self, *args, **kwargs)

    method.__name__ = name
    return method


def _array_ufunc(self: Any, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
    if traced(inputs) or traced(kwargs):
        return Tensor.__array_ufunc__(self, ufunc, method, *inputs, **kwargs)  # type: ignore[attr-defined]
    f = ufunc if method == "__call__" else getattr(ufunc, method)
    return compute(f, inputs, kwargs)


def _array_function(self: Any, f: Any, types: Any, args: Any, kwargs: Any) -> Any:
    if traced(args) or traced(kwargs):
        return Tensor.__array_function__(self, f, types, args, kwargs)  # type: ignore[attr-defined]
    return compute(f, args, kwargs)


def _array(self: Any, dtype: Any = None, copy: bool | None = None) -> Any:
    found = concrete(self)
    if found is None:
        raise NoValueError(f"{self!r} has no value while the function is traced: use NumPy's functions on it")
    return np.array(found, dtype)  # a copy: writes to it would not be seen


def _attribute(self: Any, name: str) -> Any:
    """Methods that only NumPy's arrays have, while the array is concrete."""
    found = concrete(self) if name != "state" else None
    if found is None or name.startswith("__"):
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
    own = getattr(found, name)
    if not callable(own):
        return cooked(own, ())
    return lambda *args, **kwargs: cooked(own(*raw(args), **raw(kwargs)), args)


def _hash(self: Any) -> int:
    return object.__hash__(self)


_VALUES = ("item", "tolist", "__float__", "__int__", "__index__", "__complex__", "__bool__", "__contains__")
_WRITERS = ("fill", "sort", "partition", "put")


def install_concrete(methods: Mapping[str, Method], properties: Mapping[str, Method]) -> None:
    """Give `Array` its methods: NumPy's while it is concrete, else those of all tensors."""
    for name, base in methods.items():
        if name.startswith("__array_"):
            continue
        if name[3:-2] in INPLACE and name.startswith("__i"):
            made = _inplace(name, base)
        elif name in _VALUES:
            made = _value(name, base)
        elif name in _WRITERS:
            made = _writer(name, base)
        elif name == "__setitem__":
            made = _set_item(base)
        else:
            made = _method(name, base)
        setattr(Array, name, made)
    for name in properties:
        setattr(Array, name, _property(name, None))
    for name in ("__lshift__", "__rlshift__", "__rshift__", "__rrshift__"):
        setattr(Array, name, _method(name, lambda self, other: NotImplemented))
    Array.__hash__ = _hash  # type: ignore[method-assign, assignment]
    Array.__array_ufunc__ = _array_ufunc  # type: ignore[attr-defined]
    Array.__array_function__ = _array_function  # type: ignore[attr-defined]
    Array.__array__ = _array  # type: ignore[attr-defined]
    Array.__getattr__ = _attribute  # type: ignore[method-assign]
