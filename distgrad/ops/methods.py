"""NumPy's operators and methods on Tensor, Variable and IndexedSlices. Importing this module hangs them on the classes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from distgrad.graph import Tensor
from distgrad.indexed_slices import IndexedSlices
from distgrad.ops import math


def _reflected(f: Callable[..., Any]) -> Callable[..., Any]:
    def reflected(x: Any, y: Any) -> Any:
        return f(y, x)

    return reflected


BINARY: dict[str, Callable[..., Any]] = {
    "add": math.add, "sub": math.subtract, "mul": math.multiply, "truediv": math.divide, "floordiv": math.floor_divide,
    "mod": math.remainder, "pow": math.power, "and": math.logical_and, "or": math.logical_or, "xor": math.logical_xor,
}  # fmt: skip
COMPARISONS: dict[str, Callable[..., Any]] = {
    "lt": math.less, "le": math.less_equal, "gt": math.greater, "ge": math.greater_equal, "eq": math.equal,
    "ne": math.not_equal,
}  # fmt: skip
UNARY: dict[str, Callable[..., Any]] = {"neg": math.negative, "abs": math.abs, "invert": math.logical_not}


def install(cls: type) -> None:
    """Hang the operators on a class whose instances `convert` understands."""
    for name, f in BINARY.items():
        setattr(cls, f"__{name}__", f)
        setattr(cls, f"__r{name}__", _reflected(f))
    for name, f in (*COMPARISONS.items(), *UNARY.items()):
        if f"__{name}__" not in cls.__dict__:
            setattr(cls, f"__{name}__", f)


def _bool(self: Tensor) -> bool:
    raise TypeError(
        f"{self!r} has no truth value while the graph is built. Use distgrad.where(condition, x, y) to choose by value, "
        f"or `is None` to test for a missing tensor."
    )


def _array(self: Tensor, *_: Any, **__: Any) -> Any:
    raise TypeError(f"{self!r} has no value while the graph is built: run it with a session, or return it from the function")


def _iter(self: Tensor) -> Iterator[Tensor]:
    return iter([self[i] for i in range(len(self))])


def _len(self: Tensor) -> int:
    if not self.shape:
        raise TypeError("len() of a 0-d tensor")
    return self.shape[0]


install(Tensor)
install(IndexedSlices)
Tensor.__bool__ = _bool  # type: ignore[attr-defined]
Tensor.__array__ = _array  # type: ignore[attr-defined]
Tensor.__iter__ = _iter  # type: ignore[method-assign]
Tensor.__len__ = _len  # type: ignore[method-assign]
