"""Building an op: convert the inputs, promote their dtypes as NumPy does, infer the result, append the op.

Outside any graph the same call computes immediately and returns NumPy arrays, so builders based on these helpers work
in both modes.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from math import prod
from typing import Any

import numpy as np

from distgrad import runtime
from distgrad.errors import here
from distgrad.graph import NO_ATTRS, Attrs, FuncGraph, Graph, Tensor, _context
from distgrad.registry import Kind, OpDef, define
from distgrad.types import BOOL, DType, Shape, Typed, brief, broadcast_shapes, dtype_from, native, spec_of, trainable

_SCALARS = (bool, int, float, complex)


def make(d: OpDef, inputs: tuple[Any, ...], attrs: Attrs = NO_ATTRS, name: str | None = None) -> Tensor:
    """Build (or, outside any graph, compute) an op with one output."""
    graph = _context.graph
    for x in inputs:
        if type(x) is not Tensor or x.op.graph is not graph:
            return _make_converted(d, inputs, attrs, name)[0]
    if graph is None:
        return _make_converted(d, inputs, attrs, name)[0]
    try:
        spec = d.infer(*inputs, **attrs)
    except Exception as e:
        raise _noted(e, d, inputs)  # noqa: B904  (the same exception)
    return graph.add(d.type, inputs, (spec,), attrs, name).outputs[0]


def make_n(d: OpDef, inputs: tuple[Any, ...], attrs: Attrs = NO_ATTRS, name: str | None = None) -> list[Tensor]:
    """Build an op with any number of outputs; its shape rule returns a list."""
    return _make_converted(d, inputs, attrs, name)


def _make_converted(d: OpDef, inputs: tuple[Any, ...], attrs: Attrs, name: str | None) -> list[Tensor]:
    graph = graph_for(inputs)
    if graph is None:
        arrays = [as_array(x) for x in inputs]
        specs = _infer(d, arrays, attrs)  # the same errors as in a graph
        for shape, dtype in specs:
            if prod(shape) >= _CHECKED_SIZE:
                check_fits(d.type, shape, dtype)
        return runtime.current().evaluate(d, arrays, attrs, specs)  # type: ignore[return-value]
    if graph is not _context.graph:
        if isinstance(graph, FuncGraph):
            raise _leaked(graph, inputs)
        with graph:
            return _make_converted(d, inputs, attrs, name)
    tensors = tuple([convert(x) for x in inputs])
    op = graph.add(d.type, tensors, _infer(d, tensors, attrs), attrs, name)
    first = inputs[0] if inputs else None
    return list(op.outputs) if type(first) is Tensor or not isinstance(first, Tensor) else first.derived(op)


def _infer(d: OpDef, inputs: Sequence[Typed], attrs: Attrs) -> list[tuple[Shape, DType]]:
    try:
        specs = d.infer(*inputs, **attrs)
    except Exception as e:
        raise _noted(e, d, inputs)  # noqa: B904  (the same exception)
    return specs if isinstance(specs, list) else [specs]


def _noted(e: Exception, d: OpDef, inputs: Sequence[Typed]) -> Exception:
    """The error of a shape rule, with the line of user code, which may be deep in the traceback."""
    got = ", ".join(str(spec_of(x)) for x in inputs)
    e.add_note(f"distgrad: while building op type {d.type} (at {here(3)}) on inputs ({got})")
    return e


#: Elements; smaller arrays are not checked, as they fit into any memory.
_CHECKED_SIZE = 1 << 22


@cache
def _memory() -> int:
    """Physical memory of this machine, in bytes."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):  # Windows
        return 1 << 48


def check_fits(what: str, shape: Sequence[int], dtype: Any) -> None:
    """Raise MemoryError for an array larger than physical memory: the system might overcommit, and kill the process
    when the array is written."""
    if prod(shape) * dtype.itemsize > _memory():
        raise MemoryError(
            f"{what}: an array of shape {list(shape)} and dtype {dtype} would take {prod(shape) * dtype.itemsize:,} "
            f"bytes, but this machine has {_memory():,}"
        )


#: Maximum number of parts of one op, unless its input has more rows.
MAX_PARTS = 100_000


def check_parts(what: str, parts: int, rows: int = 0) -> None:
    if parts > max(rows, MAX_PARTS) or parts > 100 * MAX_PARTS:
        raise ValueError(f"{what}: {brief(parts)} parts exceed the limit of one op; use fewer parts, or slices")


def _leaked(graph: FuncGraph, inputs: Sequence[Any]) -> ValueError:
    tensor = next(x for x in inputs if getattr(x, "graph", None) is graph)
    return ValueError(
        f"{tensor!r} belongs to the trace of function {graph.name!r}, which is over: it has no value here. "
        f"Return it from the function, and use the result of the call."
    )


def graph_for(inputs: Sequence[Any]) -> Graph | None:
    """The graph for an op on these inputs: the function being traced, else the inputs' graph, else the current one."""
    current = _context.graph
    return current if isinstance(current, FuncGraph) else _graph_of(inputs) or current


def _graph_of(inputs: Sequence[Any]) -> Graph | None:
    for x in inputs:
        for leaf in _leaves(x) if isinstance(x, list | tuple) else (x,):
            graph = getattr(leaf, "graph", None)
            if isinstance(graph, Graph):
                return graph
    return None


#: Maximum depth at which nested lists are searched for tensors: the maximum number of axes in NumPy.
_MAX_DEPTH = 64


def _leaves(x: Any) -> Iterator[Any]:
    """The leaves of nested lists, down to `_MAX_DEPTH`."""
    stack = [iter((x,))]
    while stack:
        for item in stack[-1]:
            if isinstance(item, list | tuple) and len(stack) <= _MAX_DEPTH:
                stack.append(iter(item))
                break
            yield item
        else:
            stack.pop()


# -- converting --------------------------------------------------------------------------------------------------


def _constant_infer(*, value: Any) -> tuple[Shape, DType]:
    return value.shape, value.dtype


CONST = define("Const", _constant_infer, kind=Kind.SOURCE)

#: Bytes; arrays of at least this size become one constant per graph, however often they are used.
SHARED_BYTES = 1 << 14
#: Bytes; a function that is traced warns of a larger constant.
LARGE_BYTES = 1 << 28


def convert(x: Any, dtype: Any = None, name: str | None = None) -> Tensor:
    """Anything a builder accepts, as a tensor of the current graph (outside any graph: as a NumPy array)."""
    graph = _context.graph
    if isinstance(x, Tensor):
        value = x if type(x) is Tensor else x.now()
        return value if graph is None or value.op.graph is graph else graph.admit(value)
    if hasattr(x, "__tensor__"):
        made: Tensor = x.__tensor__()
        return made
    if graph is None and graph_for((x,)) is None:
        return as_array(x, dtype)  # type: ignore[no-any-return]
    if isinstance(x, list | tuple) and has_tensor(x):
        from distgrad.ops.array import stack  # which imports this module

        return stack([convert(item, dtype) for item in x], name=name)
    value = as_array(x, dtype)
    shares = value is x and value.nbytes >= SHARED_BYTES and name is None and graph is not None and not graph._control
    return _shared_constant(graph, value) if shares else _constant(value, name)  # type: ignore[arg-type]


def _constant(value: Any, name: str | None) -> Tensor:
    if value.nbytes >= LARGE_BYTES and isinstance(_context.graph, FuncGraph):
        _warn_of_large(value, _context.graph.name)
    value = np.array(value)
    value.flags.writeable = False
    return make(CONST, (), {"value": value}, name)


def _warn_of_large(value: Any, function: str) -> None:
    warnings.warn(
        f"{function!r} captures an array of {value.nbytes / 2**20:,.0f} MiB (at {here(3)}), which becomes a constant: "
        f"it is copied, compared with others, and sent along with every plan. Pass it as an argument, or keep it in a "
        f"distgrad.Variable.",
        stacklevel=2,
    )


def _shared_constant(graph: Graph, value: Any) -> Tensor:
    """One constant for all uses of a large array, as long as its content has not changed since the first."""
    known = graph.memo("constants")
    key = id(value), graph._device
    array, made = known.get(key, (None, None))
    if array is not value or not np.array_equal(value, made.op.attrs["value"], equal_nan=value.dtype.kind in "fc"):
        made = _constant(value, None)
        known[key] = value, made  # keep the array alive, so that its id is not reused
    return made  # type: ignore[no-any-return]


def has_tensor(x: Any) -> bool:
    """Whether a value is a tensor, or a nested list that contains one."""
    if isinstance(x, list | tuple):
        return any(isinstance(item, Tensor) or hasattr(item, "__tensor__") for item in _leaves(x))
    return isinstance(x, Tensor) or hasattr(x, "__tensor__")


def as_array(x: Any, dtype: Any = None) -> Any:
    """A NumPy array of numbers, booleans or strings; TypeError for anything else."""
    if isinstance(x, Tensor):
        raise TypeError(f"{x!r} has no value outside its graph: run it with a session, or use it inside `with graph:`")
    if hasattr(x, "__tensor__"):
        x = x.__tensor__()
    try:
        array = np.asarray(plain(x), dtype)
    except (ValueError, TypeError, RecursionError, AttributeError) as e:
        if dtype is not None:
            kind = ValueError if isinstance(e, ValueError) else TypeError
            raise kind(f"{_describe(x)} cannot be converted to an array of dtype {brief(dtype)}: {e}") from None
        raise TypeError(f"{_describe(x)} is not a tensor and cannot be converted to an array: {e}") from None
    if array.dtype == object:
        raise TypeError(f"{_describe(x)} is not a tensor or an array of numbers")
    return array if array.dtype.isnative else array.astype(native(array.dtype))


def plain(x: Any) -> Any:
    """x, unless it is an array type with different semantics; TypeError for these."""
    if type(x).__name__ in ("MaskedArray", "matrix"):  # by name: importing numpy.ma takes time
        raise TypeError(
            f"a NumPy {type(x).__name__} has special semantics that distgrad does not support: "
            f"pass np.asarray(x), or x.filled(value) of a masked array"
        )
    return x


def _describe(x: Any) -> str:
    return f"{brief(x, 80)} (a {type(x).__name__})"


def typed(x: Any) -> Any:
    """x as something with .shape and .dtype: tensors and arrays unchanged, anything else converted."""
    return x if isinstance(x, Tensor) or (type(x) is np.ndarray and x.dtype.isnative) else convert(x)


# -- promoting ---------------------------------------------------------------------------------------------------


def _kind(x: Any) -> Any:
    """The input of NumPy's promotion rules: a dtype, or the Python type of a weak scalar."""
    if type(x) is bool:
        return BOOL  # not weak: it has only one dtype
    return type(x) if type(x) in _SCALARS else x.dtype


@cache
def loop_dtype(ufunc: np.ufunc, *kinds: Any) -> DType:
    """The dtype in which NumPy computes this function for such arguments.

    >>> loop_dtype(np.add, np.dtype("int8"), np.dtype("float16")), loop_dtype(np.exp, np.dtype("int32"))
    (dtype('float16'), dtype('float64'))
    """
    if all(isinstance(k, type) for k in kinds):
        kinds = tuple(np.dtype(k) for k in kinds)
    *ins, out = ufunc.resolve_dtypes((*kinds, None))
    if out == BOOL:  # a comparison; int64 and uint64 have no common integer dtype
        return np.result_type(*ins)
    return ins[0] if out.kind != ins[0].kind == "c" else out


def _adapted(xs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Convert Python numbers next to a bfloat16 operand to bfloat16, which NumPy does not treat as a float."""
    short = next((x.dtype for x in xs if type(x) not in _SCALARS and x.dtype.kind == "V" and trainable(x.dtype)), None)
    return xs if short is None else tuple([np.asarray(x, short) if type(x) in (int, float) else x for x in xs])


def promote(ufunc: np.ufunc, *xs: Any, name: str | None = None) -> tuple[Any, ...]:
    """Cast operands to the dtype in which NumPy computes `ufunc`; Python numbers adapt to the others."""
    xs = _adapted(tuple([x if type(x) in _SCALARS else typed(x) for x in xs]))
    try:
        dtype = loop_dtype(ufunc, *[_kind(x) for x in xs])
    except TypeError:
        if any(type(x) not in _SCALARS and x.dtype.kind in "US" for x in xs):
            raise TypeError(f"{name or ufunc.__name__} computes with numbers, not with strings") from None
        kinds = " and ".join(getattr(k, "__name__", str(k)) for k in map(_kind, xs))
        raise TypeError(f"{name or ufunc.__name__} is not defined for {kinds}; cast the arguments") from None
    return tuple([as_dtype(x, dtype) for x in xs])


def common(*xs: Any) -> tuple[Any, ...]:
    """Cast operands to their common dtype (np.result_type), for ops that do no arithmetic."""
    xs = _adapted(tuple([x if type(x) in _SCALARS else typed(x) for x in xs]))
    try:
        dtype = np.result_type(*[x if type(x) in _SCALARS else x.dtype for x in xs])
    except TypeError as e:
        raise TypeError(f"there is no common dtype: {e}") from None
    return tuple([as_dtype(x, dtype) for x in xs])


def as_dtype(x: Any, dtype: DType) -> Any:
    if type(x) in _SCALARS:
        if type(x) is not bool and dtype.kind in "iu":
            np.array(0, dtype) + x  # raises OverflowError if the number does not fit
        return convert(np.asarray(x, dtype))
    return x if x.dtype == dtype else cast(x, dtype)


def _cast_infer(x: Typed, *, dtype: DType) -> tuple[Shape, DType]:
    return x.shape, dtype


CAST = define("Cast", _cast_infer, kind=Kind.ELEMENTWISE)


def cast(x: Any, dtype: Any, name: str | None = None) -> Tensor:
    """Convert x to another dtype, like `ndarray.astype`.

    >>> import numpy as np
    >>> cast(np.array([1.9, -1.9]), "int32")
    array([ 1, -1], dtype=int32)
    """
    x = typed(x)
    dtype = dtype_from("cast", dtype)
    try:
        return x if x.dtype == dtype and name is None else make(CAST, (x,), {"dtype": dtype}, name)
    except ValueError as e:  # a string that is not a number
        raise ValueError(f"cast: {spec_of(x)} cannot be converted to {dtype}: {e}") from None


# -- elementwise ops ---------------------------------------------------------------------------------------------


def same(x: Typed, *_: Typed, **__: Any) -> tuple[Shape, DType]:
    return x.shape, x.dtype


def elementwise(x: Typed, y: Typed) -> tuple[Shape, DType]:
    a, b = x.shape, y.shape
    return (a if a == b else broadcast_shapes(a, b)), x.dtype


def comparison(x: Typed, y: Typed) -> tuple[Shape, DType]:
    return broadcast_shapes(x.shape, y.shape), BOOL


def unary(
    op_type: str,
    ufunc: np.ufunc,
    doc: str,
    infer: Callable[..., Any] = same,
    name: str | None = None,
    rounded: bool = False,
) -> Callable[..., Tensor]:
    """Define an elementwise op of one argument, with the dtype rules of `ufunc`; see `OpDef.rounded`."""
    d = define(op_type, infer, kind=Kind.ELEMENTWISE, rounded=rounded)
    called = name or op_type.lower()

    def build(x: Any, name: str | None = None) -> Tensor:
        if type(x) is not Tensor or x.dtype.kind not in "fc":
            (x,) = promote(ufunc, x, name=called)
        return make(d, (x,), NO_ATTRS, name)

    return _with_docs(build, called, doc)


def binary(
    op_type: str,
    ufunc: np.ufunc,
    doc: str,
    infer: Callable[..., Any] = elementwise,
    name: str | None = None,
    rounded: bool = False,
) -> Callable[..., Tensor]:
    """Define a broadcasting elementwise op of two arguments, with the dtype rules of `ufunc`; see `OpDef.rounded`."""
    d = define(op_type, infer, kind=Kind.ELEMENTWISE, rounded=rounded, broadcasting=True)
    called = name or op_type.lower()

    def build(x: Any, y: Any, name: str | None = None) -> Tensor:
        if type(x) is not Tensor or type(y) is not Tensor or x.dtype is not y.dtype or x.dtype.kind not in "fc":
            x, y = promote(ufunc, x, y, name=called)
        return make(d, (x, y), NO_ATTRS, name)

    return _with_docs(build, called, doc)


def _with_docs(build: Callable[..., Tensor], name: str, doc: str) -> Callable[..., Tensor]:
    build.__name__ = build.__qualname__ = name
    build.__doc__ = doc
    build.of_arrays = True  # type: ignore[attr-defined]
    return build
