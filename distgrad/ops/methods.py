"""NumPy's operators, attributes and methods for Tensor, Variable and IndexedSlices, added to the classes on import.

Most are the builders themselves: `Tensor.__mul__` is `multiply`. The others are methods with different arguments,
properties, and methods that raise because a tensor has no value while the graph is built, or is immutable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from distgrad.errors import NoValueError
from distgrad.graph import Tensor
from distgrad.ops import array, control, index, math, numpy_api, reduce
from distgrad.ops.assignment import masks, statements, update
from distgrad.ops.assignment.concrete import install_concrete
from distgrad.ops.assignment.names import Array
from distgrad.ops.builder import cast, typed
from distgrad.ops.indexed_slices import IndexedSlices
from distgrad.ops.library import instead
from distgrad.ops.matrix import matmul
from distgrad.types import Shape, brief

Method = Callable[..., Any]

# -- operators ---------------------------------------------------------------------------------------------------

BINARY: dict[str, Method] = {
    "add": math.add, "sub": math.subtract, "mul": math.multiply, "truediv": math.divide, "floordiv": math.floor_divide,
    "mod": math.remainder, "divmod": numpy_api.divmod, "pow": math.power, "matmul": matmul.matmul,
    "and": math.bitwise_and, "or": math.bitwise_or, "xor": math.bitwise_xor,
}  # fmt: skip
COMPARISONS: dict[str, Method] = {
    "lt": math.less, "le": math.less_equal, "gt": math.greater, "ge": math.greater_equal, "eq": math.equal,
    "ne": math.not_equal,
}  # fmt: skip
UNARY: dict[str, Method] = {
    "neg": math.negative, "pos": math.positive, "abs": math.abs, "invert": math.invert, "round": math.round,
}  # fmt: skip

def _reflected(f: Method) -> Method:
    def reflected(x: Any, y: Any) -> Any:
        return f(y, x)

    return reflected


def _len(self: Any) -> int:
    dims: Shape = self.shape
    if not dims:
        raise TypeError("len() of a 0-d tensor")
    return dims[0]


def _iter(self: Any) -> Iterator[Any]:
    if not self.shape:
        raise TypeError("iteration over a 0-d tensor")
    if type(self) is Array:  # each row is read when it is reached
        return (self[i] for i in range(self.shape[0]))
    return iter(array.unstack(self))


# -- methods with different arguments ----------------------------------------------------------------------------


def _unpacked(given: tuple[Any, ...]) -> Any:
    """`reshape(2, 3)` and `reshape((2, 3))` mean the same."""
    return given[0] if len(given) == 1 else given


@statements.flat
def _reshape(self: Any, *shape: Any, order: str = "C") -> Any:
    return array.reshape(self, _unpacked(shape), order)


def _transpose(self: Any, *axes: Any) -> Any:
    return array.transpose(self, _unpacked(axes) if axes else None)


def _flatten(self: Any, order: str = "C") -> Any:
    return _copy(array.reshape(self, -1, order))


def _astype(self: Any, dtype: Any) -> Any:
    made = cast(self, dtype)
    return _copy(self) if made is self else made


def _sort(self: Any, axis: int = -1) -> None:
    statements.set_item(self, Ellipsis, reduce.sort(self, axis))


def _copy(self: Any) -> Any:
    return control.identity(typed(self))


METHODS: dict[str, Method] = {
    "all": reduce.all, "any": reduce.any, "argmax": reduce.argmax, "argmin": reduce.argmin, "argsort": reduce.argsort,
    "astype": _astype, "clip": math.clip, "conj": math.conj, "conjugate": math.conj, "copy": _copy,
    "cumprod": reduce.cumprod, "cumsum": reduce.cumsum, "diagonal": array.diagonal, "dot": matmul.dot,
    "flatten": _flatten, "max": reduce.max, "mean": reduce.mean, "min": reduce.min, "prod": reduce.prod,
    "ravel": statements.ravel, "repeat": array.repeat, "reshape": _reshape, "round": math.round,
    "squeeze": statements.flat(array.squeeze), "std": reduce.std,
    "sum": reduce.sum, "swapaxes": array.swapaxes, "take": index.take, "trace": array.trace, "transpose": _transpose,
    "var": reduce.var,
}  # fmt: skip

# -- properties --------------------------------------------------------------------------------------------------


def _itemsize(self: Any) -> int:
    """Bytes of one element."""
    return int(self.dtype.itemsize)


def _nbytes(self: Any) -> int:
    """Bytes of all elements."""
    return numpy_api.size(self) * _itemsize(self)


PROPERTIES: dict[str, Method] = {
    "T": array.transpose, "mT": numpy_api.matrix_transpose, "real": math.real, "imag": math.imag,
    "ndim": numpy_api.ndim, "size": numpy_api.size, "itemsize": _itemsize, "nbytes": _nbytes,
}  # fmt: skip

# -- methods that raise ------------------------------------------------------------------------------------------

#: Methods that need a value, which a variable has outside any graph, and a tensor never.
VALUES = ("item", "tolist", "__float__", "__int__", "__index__", "__complex__")
#: Methods that modify an array, and their alternatives.
WRITES = {
    "partition": "distgrad.sort(x) returns a sorted tensor",
    "resize": "x.reshape(shape) returns a tensor of another shape",
}


def _no_value(self: Any) -> NoValueError:
    known = instead.advice()
    if known:
        return NoValueError(f"{self!r} has no value while the graph is built: {known}")
    return NoValueError(
        f"{self!r} has no value while the graph is built: run it with a session, or return it from the function. "
        f"To compute with it, use operators and NumPy's functions, which record ops; np.array([x, y]) of tensors is "
        f"np.stack([x, y]), max(x, 0) is np.maximum(x, 0), and array[i] = x works with "
        f"`import distgrad.numpy as np` in place of `import numpy as np`"
    )


def _value(name: str) -> Method:
    def method(self: Any, *args: Any) -> Any:
        x = typed(self)
        if isinstance(x, Tensor):
            raise _no_value(self)
        try:
            return getattr(x, name)(*args)
        except (TypeError, ValueError) as e:
            raise type(e)(f".{name}() of {brief(self)}: {e}") from None

    return method


def _write(name: str, remedy: str) -> Method:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(f".{name}() would modify {self!r}, but tensors are immutable: {remedy}")

    return method


def _bool(self: Any) -> bool:
    x = typed(self)
    if isinstance(x, Tensor):
        raise TypeError(
            f"{self!r} has no truth value while the graph is built. Use distgrad.where(condition, x, y) to choose by "
            f"value, or `is None` to test for a missing tensor."
        )
    return bool(x)


def _contains(self: Any, item: Any) -> bool:
    raise TypeError(f"`in` cannot be evaluated for {self!r} while the graph is built: use (x == item).any()")


def _array(self: Any, *_: Any, **__: Any) -> Any:
    raise _no_value(self)


# -- installation ------------------------------------------------------------------------------------------------


def _special() -> dict[str, Method]:
    """All special methods, by name."""
    table = {f"__{name}__": f for name, f in (BINARY | COMPARISONS | UNARY).items()}
    table |= {f"__r{name}__": _reflected(f) for name, f in BINARY.items()}
    table |= {"__getitem__": statements.item, "__len__": _len, "__iter__": _iter, "__contains__": _contains}
    table |= {f"__i{name}__": statements.inplace(name) for name in statements.INPLACE}
    table |= {"__setitem__": statements.set_item, "fill": statements.fill, "sort": _sort, "put": statements.put}
    table |= {"__bool__": _bool, "__array_ufunc__": numpy_api.array_ufunc}
    return table | {"__array_function__": numpy_api.array_function}


def _refused() -> dict[str, Method]:
    return {name: _value(name) for name in VALUES} | {name: _write(name, remedy) for name, remedy in WRITES.items()}


def _property(name: str, f: Method) -> property:
    """The builder as a property, without its example, which doctest would run in the module of the class."""
    setter = statements.set_part(f) if name in ("real", "imag") else None
    return property(f, setter, doc=(f.__doc__ or "").partition("\n")[0])


PLAIN: dict[str, Any] = _special() | METHODS | _refused()
_TABLE: dict[str, Any] = PLAIN | {name: _property(name, f) for name, f in PROPERTIES.items()}
_TABLE["at"] = property(update.At, doc="`x.at[key].set(value)`: a copy of x with some elements replaced; see `At`.")


def install(cls: type) -> None:
    """Add all methods to a class that `convert` supports, except those that the class defines."""
    for name, f in _TABLE.items():
        if name not in cls.__dict__:
            setattr(cls, name, f)


install(Tensor)
install(IndexedSlices)
masks.install(BINARY | COMPARISONS, UNARY)
install_concrete(PLAIN, PROPERTIES)
Tensor.__array__ = _array  # type: ignore[attr-defined]
