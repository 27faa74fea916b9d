"""`x[mask]` with a mask that depends on data: a masked value.

Its number of elements is not known while a function is traced, so it keeps the shape of x. It may be combined
elementwise with numbers and with values of the same mask, assigned under that mask, and reduced. Anything else would
need the number of elements, and is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from distgrad.graph import Tensor
from distgrad.ops import math, reduce
from distgrad.ops.array import full_like
from distgrad.ops.assignment.names import Array, assign, concrete
from distgrad.ops.assignment.update import aligned
from distgrad.ops.builder import cast, convert, typed
from distgrad.registry import OPS, Kind
from distgrad.types import DType, brief, broadcasts_to


def mask_key(key: Any) -> Tensor | None:
    """The mask of a key that consists of one whose values are not known."""
    if isinstance(key, tuple):
        rest = [k for k in key if not (k is Ellipsis or (isinstance(k, slice) and k == slice(None)))]
        if len(rest) != 1 or key[0] is not rest[0]:
            return None
        (key,) = rest
    return key if isinstance(key, Tensor) and key.dtype.kind == "b" and concrete(key) is None else None


def masked(x: Any, mask: Tensor) -> Masked:
    """x[mask]."""
    aligned(mask, x.shape)  # an error if it does not fit
    return Masked(convert(x), convert(mask))


#: How deep the expressions of two masks are compared.
_DEPTH = 12


def same_value(a: Tensor, b: Tensor, depth: int = _DEPTH) -> bool:
    """Whether two tensors are the same, or the same expression: as in x[x > 0] = x[x > 0] ** 2."""
    if a.op is b.op:
        return a.index == b.index
    p, q = a.op, b.op
    d = OPS.get(p.type)
    if not depth or p.type != q.type or a.index != b.index or len(p.inputs) != len(q.inputs) or d is None or d.stateful:
        return False
    if d.kind is Kind.ARGUMENT or p.attrs.keys() != q.attrs.keys():
        return False
    same = all(_same_attribute(p.attrs[name], q.attrs[name]) for name in p.attrs)
    return same and all(same_value(x, y, depth - 1) for x, y in zip(p.inputs, q.inputs, strict=True))


def _same_attribute(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    return type(a) is type(b) and bool(a == b)


class Masked:
    """The elements of an array at which a mask is true, with the shape of the array."""

    __slots__ = ("full", "mask")

    def __init__(self, full: Any, mask: Tensor):
        self.full, self.mask = full, mask

    @property
    def dtype(self) -> DType:
        made: DType = self.full.dtype
        return made

    def _where(self) -> Any:
        return aligned(self.mask, self.full.shape)

    def _apply(self, f: Callable[..., Any], *args: Any) -> Any:
        """f elementwise; guarded, so that no element outside the mask has an undefined value or gradient."""
        return Masked(f(*[self._operand(a) for a in args]), self.mask)

    def _operand(self, x: Any) -> Any:
        if isinstance(x, Masked):
            if not same_value(x.mask, self.mask):
                raise self._refused("a value of another mask")
            return x._safe()
        if isinstance(x, bool | int | float | complex):
            return x
        x = typed(x)
        if not broadcasts_to(x.shape, self.full.shape[len(self.mask.shape) :]):
            raise self._refused(f"an array of shape {list(x.shape)}")
        return x

    def _safe(self) -> Any:
        """The elements, and ones outside the mask, which are in the domain of most functions."""
        return math.where(self._where(), self.full, full_like(self.full, 1))

    def _refused(self, what: str) -> TypeError:
        return TypeError(
            f"{what} cannot be combined with x[mask], where the mask {brief(self.mask)} depends on data: the shape of "
            f"the result would depend on data. Combine it with numbers and with values of the same mask, assign "
            f"it under that mask, or reduce it; where(mask, x, 0) keeps the shape."
        )

    # -- reductions

    def _reduced(self, f: Callable[..., Any], neutral: Any, axis: Any = None, **kwargs: Any) -> Any:
        rest = len(self.full.shape) - len(self.mask.shape)
        if axis not in ((None, 0) if rest or len(self.mask.shape) == 1 else (None, 0, -1)):
            raise self._refused(f"a reduction along axis {axis}")
        axes = None if axis is None else tuple(range(len(self.mask.shape)))
        return f(math.where(self._where(), self.full, neutral), axis=axes, **kwargs)

    def sum(self, axis: Any = None) -> Any:
        """The sum of the selected elements."""
        return self._reduced(reduce.sum, 0, axis)

    def prod(self, axis: Any = None) -> Any:
        """The product of the selected elements."""
        return self._reduced(reduce.prod, 1, axis)

    def any(self, axis: Any = None) -> Any:
        """Whether a selected element is true."""
        return self._reduced(reduce.any, False, axis)

    def all(self, axis: Any = None) -> Any:
        """Whether all selected elements are true."""
        return self._reduced(reduce.all, True, axis)

    def mean(self, axis: Any = None) -> Any:
        """The mean of the selected elements."""
        count = self._reduced_count(axis)
        total = self.sum(axis)
        return math.divide(total, cast(count, total.dtype if total.dtype.kind in "fc" else float))

    def _reduced_count(self, axis: Any) -> Any:
        ones = math.where(self._where(), full_like(self.full, 1, dtype=int), 0)
        return reduce.sum(ones, axis=None if axis is None else tuple(range(len(self.mask.shape))))

    def max(self, axis: Any = None) -> Any:
        """The largest selected element; there must be one."""
        return self._reduced(reduce.max, _lowest(self.dtype), axis)

    def min(self, axis: Any = None) -> Any:
        """The smallest selected element; there must be one."""
        return self._reduced(reduce.min, _highest(self.dtype), axis)

    # -- what needs the number of elements

    @property
    def shape(self) -> Any:
        raise self._refused("its shape")

    @property
    def size(self) -> Any:
        """The number of selected elements, a tensor."""
        return self._reduced_count(None)

    def __len__(self) -> int:
        raise self._refused("its length")

    def __iter__(self) -> Any:
        raise self._refused("iteration")

    def __getitem__(self, key: Any) -> Any:
        raise self._refused("a key")

    def __setitem__(self, key: Any, value: Any) -> None:
        raise self._refused("assignment to its elements, which NumPy would do on a copy,")

    def __bool__(self) -> bool:
        raise self._refused("its truth value")

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise self._refused("a conversion to an array")

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        from distgrad.ops.numpy_api import FUNCTIONS

        ours = FUNCTIONS.get(ufunc)
        if method != "__call__" or kwargs or ours is None or ufunc.signature is not None:
            raise self._refused(f"numpy.{ufunc.__name__}")
        return self._apply(ours, *inputs)

    def __array_function__(self, f: Any, types: Any, args: Any, kwargs: Any) -> Any:
        method = {np.sum: "sum", np.prod: "prod", np.mean: "mean", np.max: "max", np.min: "min", np.any: "any",
                  np.all: "all"}.get(f)  # fmt: skip
        if method is None or not args or args[0] is not self:
            raise self._refused(f"numpy.{f.__name__}")
        return getattr(self, method)(*args[1:], **kwargs)


def _lowest(dtype: DType) -> Any:
    return -np.inf if dtype.kind == "f" else False if dtype.kind == "b" else np.iinfo(dtype).min


def _highest(dtype: DType) -> Any:
    return np.inf if dtype.kind == "f" else True if dtype.kind == "b" else np.iinfo(dtype).max


def install(binary: Mapping[str, Callable[..., Any]], unary: Mapping[str, Callable[..., Any]]) -> None:
    """Give masked values Python's operators; those that are not elementwise refuse in `_apply`."""
    for name, f in binary.items():
        if name not in ("matmul", "divmod"):
            setattr(Masked, f"__{name}__", lambda self, other, f=f: self._apply(f, self, other))
            setattr(Masked, f"__r{name}__", lambda self, other, f=f: self._apply(f, other, self))
    for name, f in unary.items():
        setattr(Masked, f"__{name}__", lambda self, f=f: self._apply(f, self))


def set_masked(x: Array, mask: Tensor | None, value: Any, elements: Callable[[Any, DType], Any]) -> None:
    """x[mask] = value, where the mask, the value, or both depend on data."""
    if mask is None:
        raise TypeError(
            "x[key] = y[mask]: the number of elements of y[mask] depends on data. Assign it under the same mask, as "
            "in x[mask] = y[mask], or use where(mask, y, x)."
        )
    place = aligned(mask, x.shape)
    if isinstance(value, Masked):
        if not same_value(value.mask, convert(mask)):
            raise value._refused("a place of another mask")
        value = elements(value.full, x.dtype)
    else:
        value = elements(value, x.dtype)
        if not broadcasts_to(value.shape, x.shape[len(mask.shape) :]) and value.shape != (1,):
            raise TypeError(
                f"x[mask] = value: a value of shape {list(value.shape)} fits only if the mask {brief(mask)} selects as "
                f"many elements, which depends on data. Write x[mask] = value[mask] with a value of the shape of x."
            )
        value = (
            value.reshape(()) if value.shape == (1,) and not broadcasts_to((1,), x.shape[len(mask.shape) :]) else value
        )
    made = math.where(place, value, x.now())
    assign(x, convert(made))
