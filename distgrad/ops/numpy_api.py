"""NumPy's functions on tensors: `np.tanh(t)`, `np.einsum("ij,jk", t, w)` and `array * t` record distgrad's ops.

NumPy's two protocols, `__array_ufunc__` and `__array_function__`, use one table, FUNCTIONS. Op families have NumPy's
names, so most of the table comes from them; EXTRA adds functions with other names or static results. A function that is
not in the table is a TypeError, never an array of objects.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from distgrad import nest
from distgrad.graph import Tensor
from distgrad.ops import array, control, index, math, reduce, scan
from distgrad.ops.assignment import statements
from distgrad.ops.assignment.masks import Masked
from distgrad.ops.builder import cast, typed
from distgrad.ops.library import elementwise, fft, search, shapes, statistics, ufunc_methods
from distgrad.ops.library.instead import COUNTERPARTS
from distgrad.ops.matrix import linalg, matmul
from distgrad.types import Shape, normalize_axis, size_of

Function = Callable[..., Any]

# -- static results ----------------------------------------------------------------------------------------------


def is_tensor(x: Any) -> bool:
    return isinstance(x, Tensor) or hasattr(x, "__tensor__")


def shape(a: Any) -> Shape:
    """The static shape, a tuple as in NumPy; `distgrad.shape` is a tensor."""
    return tuple(typed(a).shape)


def ndim(a: Any) -> int:
    """The number of axes."""
    return len(shape(a))


def size(a: Any, axis: int | None = None) -> int:
    """The number of elements, in total or along one axis."""
    dims = shape(a)
    return size_of(dims) if axis is None else dims[normalize_axis(axis, len(dims))]


def result_type(*arrays_and_dtypes: Any) -> Any:
    """The result of NumPy's promotion rules; tensors count with their dtype."""
    return np.result_type(*[x.dtype if is_tensor(x) else x for x in arrays_and_dtypes])


def iscomplexobj(x: Any) -> bool:
    """Whether the dtype is complex."""
    return bool(typed(x).dtype.kind == "c")


def isrealobj(x: Any) -> bool:
    """Whether the dtype is not complex."""
    return not iscomplexobj(x)


# -- functions only in NumPy --------------------------------------------------------------------------------------


def divmod(x: Any, y: Any) -> tuple[Any, Any]:
    """(x // y, x % y)."""
    return math.floor_divide(x, y), math.remainder(x, y)


def matrix_transpose(x: Any) -> Any:
    """Exchange the last two axes."""
    x = typed(x)
    if len(x.shape) < 2:
        raise ValueError(f"a matrix transpose needs at least two axes, got the shape {list(x.shape)}")
    return array.swapaxes(x, -1, -2)


def _matrix_diagonal(x: Any, offset: int = 0) -> Any:
    return array.diagonal(x, offset, -2, -1)


def _conj(x: Any) -> Any:
    """The complex conjugate; a copy also of real arrays, unlike the method."""
    made = math.conj(x)
    return control.identity(made) if made is x else made


def _ravel(a: Any) -> Any:
    """The array as a vector."""
    return statements.ravel(a)


# -- the table ---------------------------------------------------------------------------------------------------

EXTRA: dict[str, Function] = {
    "shape": shape, "ndim": ndim, "size": size, "result_type": result_type, "iscomplexobj": iscomplexobj,
    "isrealobj": isrealobj, "divmod": divmod, "matrix_transpose": matrix_transpose, "astype": cast,
    "reshape": statements.flat(array.reshape), "squeeze": statements.flat(array.squeeze), "ravel": _ravel,
    "conj": _conj, "conjugate": _conj, "copy": control.identity, "empty_like": control.zeros_like, "around": math.round,
    "linalg.matmul": matmul.matmul, "linalg.tensordot": matmul.tensordot, "linalg.diagonal": _matrix_diagonal,
    "linalg.matrix_transpose": matrix_transpose, "gradient": scan.gradient,
}  # fmt: skip


def _families() -> dict[str, Function]:
    """The public functions of the op families, by NumPy's names."""
    first = array, control, elementwise, index, math, matmul, reduce, search, shapes, statistics
    modules = {"": first, "linalg.": (linalg,), "fft.": (fft,)}
    named = {prefix + name: getattr(m, name) for prefix, ms in modules.items() for m in ms for name in m.__all__}
    return named | ufunc_methods.methods(named)


def numpy_function(path: str) -> Any:
    """NumPy's function of a dotted name, such as 'linalg.inv' or 'add.reduce'; None if it does not exist.

    >>> numpy_function("add.reduce") == np.add.reduce
    True
    """
    found: Any = np
    for part in path.split("."):
        found = getattr(found, part, None)
    return found


def _dispatched(f: Any) -> bool:
    """Whether NumPy dispatches this function on its arguments."""
    return isinstance(f, np.ufunc | type(np.sum)) or isinstance(getattr(f, "__self__", None), np.ufunc)


#: Every NumPy function that records ops, by its dotted name; includes aliases.
NAMES: dict[str, Function] = {
    path: f for path, f in {**_families(), **EXTRA}.items() if _dispatched(numpy_function(path))
}
FUNCTIONS: dict[Any, Function] = {numpy_function(path): f for path, f in NAMES.items()}


# -- the protocols -----------------------------------------------------------------------------------------------

_NONE = inspect.Parameter.empty  # no default; None may have a meaning, such as all axes
#: NumPy's defaults for keywords of ufuncs; passing these is allowed.
_UFUNC_DEFAULTS = {
    "out": None, "where": True, "casting": "same_kind", "order": "K", "dtype": None, "subok": True, "keepdims": False,
}  # fmt: skip


def array_ufunc(self: Any, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
    """`__array_ufunc__`: a ufunc, or one of its methods, with a tensor among the arguments."""
    for x in inputs:
        if isinstance(x, Masked):
            return x.__array_ufunc__(ufunc, method, *inputs, **kwargs)
    if method == "at":
        return statements.at(ufunc, *inputs)
    if (out := kwargs.pop("out", None)) is not None:
        made = array_ufunc(self, ufunc, method, *inputs, **kwargs)
        return statements.out_of(out, made, _name(ufunc), broadcast=method == "__call__")
    f = ufunc if method == "__call__" else getattr(ufunc, method)
    ours = FUNCTIONS.get(f)
    if ours is None:
        return _on_values(f, inputs, kwargs, TypeError(_unsupported(f)))
    if not kwargs:
        return ours(*inputs)
    try:
        given = {k: v for k, v in kwargs.items() if _given(f, k, v, _UFUNC_DEFAULTS.get(k, _NONE))}
    except TypeError as e:
        return _on_values(f, inputs, kwargs, e)
    return ours(*inputs, **given)


def array_function(self: Any, f: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`__array_function__`: any other NumPy function. Arguments are bound to NumPy's signature."""
    if args and isinstance(args[0], Masked):
        return args[0].__array_function__(f, types, args, kwargs)
    if f in statements.WRITERS:
        return statements.WRITERS[f](*args, **kwargs)
    if (out := kwargs.get("out")) is not None:
        rest = {key: value for key, value in kwargs.items() if key != "out"}
        return statements.out_of(out, array_function(self, f, types, args, rest), _name(f))
    ours = FUNCTIONS.get(f)
    if ours is None:
        return _on_values(f, args, kwargs, TypeError(_unsupported(f)))
    try:
        required, optional = _bound(f, args, kwargs)
    except TypeError as e:
        return _on_values(f, args, kwargs, e)
    return ours(*required, **optional)


def _bound(f: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """What our function takes: required arguments by position, and optional ones that differ from NumPy's defaults."""
    signature = _signature(f)
    required: list[Any] = []
    optional: dict[str, Any] = {}
    for name, value in signature.bind(*args, **kwargs).arguments.items():
        parameter = signature.parameters[name]
        if parameter.kind is parameter.VAR_POSITIONAL:
            required += value
        elif parameter.kind is parameter.VAR_KEYWORD:
            optional.update({k: v for k, v in value.items() if _given(f, k, v, _NONE)})
        elif parameter.default is parameter.empty:
            required.append(value)
        elif _given(f, name, value, parameter.default):
            optional[name] = value
    return required, optional


def _on_values(f: Any, args: Any, kwargs: dict[str, Any], refusal: TypeError) -> Any:
    """What distgrad refuses, computed by NumPy: outside any graph, where variables are their values."""

    def value(x: Any) -> Any:
        x = x.__tensor__() if hasattr(x, "__tensor__") else x
        if isinstance(x, Tensor):
            raise refusal
        return x

    return f(*nest.map_structure(value, list(args)), **nest.map_structure(value, kwargs))


@cache
def _signature(f: Any) -> inspect.Signature:
    """NumPy's signature; ours for C functions of older NumPy versions, which have none."""
    try:
        return inspect.signature(f)
    except ValueError:
        signature = inspect.signature(FUNCTIONS[f])
        return signature.replace(parameters=[p for p in signature.parameters.values() if p.name != "name"])


@cache
def _keywords(f: Any) -> frozenset[str]:
    return frozenset(inspect.signature(FUNCTIONS[f]).parameters) - {"name"}


_PLAIN = (bool, int, float, str)
_REMEDIES = {
    "out": "tensors are immutable and have no value yet: use the result, as in `a = a + t` instead of `a += t`",
    "where": "choose with distgrad.where(condition, x, y)",
    "dtype": "convert with .astype(dtype), before or after",
    "casting": "convert with .astype(dtype), which is explicit",
    "initial": "combine the result with it",
    "order": "tensors have no memory layout; transpose instead",
}


def _given(f: Any, name: str, value: Any, default: Any) -> bool:
    """Whether an optional argument differs from its default; TypeError if distgrad does not support it."""
    if value is default or (type(value) in _PLAIN and type(default) in _PLAIN and value == default):
        return False
    if name in _keywords(f):
        return True
    remedy = _REMEDIES.get(name, "leave it out")
    raise TypeError(f"{_name(f)}: the argument {name}= is not supported on tensors: {remedy}.")


# -- unsupported functions ---------------------------------------------------------------------------------------

_DATA_DEPENDENT = {
    "argwhere", "compress", "extract", "flatnonzero", "intersect1d", "nonzero", "setdiff1d", "setxor1d", "trim_zeros",
    "union1d", "unique", "unique_all", "unique_counts", "unique_inverse", "unique_values",
}  # fmt: skip
_IN_PLACE = {"at", "copyto", "fill_diagonal", "place", "put", "put_along_axis", "putmask"}
#: Alternatives to unsupported functions, better than a similar name.
_INSTEAD = {
    "apply_along_axis": "moveaxis",
    "choose": "where", "convolve": "einsum", "correlate": "einsum",

    "lexsort": "argsort", "nanmax": "where", "nanmin": "where",
    "nonzero": "where", "percentile": "sort", "polyval": "power",
    "put": "where", "quantile": "sort", "unique": "sort",
}  # fmt: skip


def _name(f: Any) -> str:
    name: str = f.__name__
    owner = getattr(f, "__self__", None)
    if isinstance(owner, np.ufunc):
        return f"{_name(owner)}.{name}"
    if isinstance(f, np.ufunc):
        return f"numpy.{name}" if numpy_function(name) is f else f"the ufunc {name!r}"
    return f"{f.__module__}.{name}"


def _unsupported(f: Any) -> str:
    """Why a function is not supported, and what to use instead."""
    reason = ""
    if f.__name__ in _DATA_DEPENDENT:
        reason = ": the shape of its result depends on data, and shapes are static"
    elif f.__name__ in _IN_PLACE:
        reason = ": it modifies its argument, but tensors are immutable (scatter_add and where return new ones)"
    name = _name(f)
    path = name.removeprefix("numpy.")
    if path == name and f.__name__ in COUNTERPARTS:  # such as scipy.special.erf
        return f"{name} is not supported on tensors. Use distgrad.{COUNTERPARTS[f.__name__]}."
    instead = [_INSTEAD[path]] if path in _INSTEAD else []
    hint = f"The nearest supported function is numpy.{instead[0]}; " if instead else ""
    return f"{name} is not supported on tensors{reason}. {hint}distgrad's docs/numpy.md lists what is."
