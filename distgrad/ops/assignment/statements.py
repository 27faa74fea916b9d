"""NumPy's statements on traced arrays: `x[key] = v`, `x[key] += v`, `x += v`, `np.add.at(x, key, v)`, `out=`.

They have NumPy's casting rules: an element takes anything (`x[k] = v` truncates), an operator only what 'same_kind'
casts.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from distgrad.errors import NoValueError
from distgrad.graph import FuncGraph, Tensor, current_graph
from distgrad.ops import math
from distgrad.ops.assignment.masks import Masked, mask_key, masked, set_masked
from distgrad.ops.assignment.names import Array, adopt, assign, assignable, concrete, in_order, is_scalar, named
from distgrad.ops.assignment.shadows import same_place
from distgrad.ops.assignment.update import MODES, updated
from distgrad.ops.builder import as_array, cast, convert, has_tensor, typed
from distgrad.ops.control import identity
from distgrad.ops.index import along, getitem
from distgrad.ops.key import Key, parse
from distgrad.ops.layout import broadcast_to, reshape
from distgrad.ops.matrix import matmul
from distgrad.types import DType, brief, broadcasts_to, size_of, spec_of

# -- x[key] ------------------------------------------------------------------------------------------------------


def item(x: Tensor, key: Any) -> Any:
    """x[key]: of a name, a basic key gives a view."""
    if (mask := mask_key(key)) is not None:
        return masked(x, mask)
    if type(x) is not Array:
        made = getitem(x, plain_key(key))
        if not made.shape and has_ellipsis(key) and isinstance(x.graph, FuncGraph) and current_graph() is x.graph:
            return item(adopt(x), key)
        return made
    key = plain_key(key)
    if not _is_basic(key):
        return getitem(x.now(), key)
    shadow = x.state.shadow[key]
    if not isinstance(shadow, np.ndarray):
        return _scalar(x, key)
    made = named(x.state.memory, shadow, x.state.part)
    made.state.refusal, made.state.uncertain = x.state.refusal, x.state.uncertain
    if x.state.uncertain:
        made.state.know(getitem(x.now(), key))
    return made


def _scalar(x: Array, key: Any) -> Any:
    """An element, read from the array that owns the memory."""
    if x.state.uncertain:
        return getitem(x.now(), key)
    shadow = x.state.shadow[(*(key if isinstance(key, tuple) else (key,)), ...)]
    return named(x.state.memory, shadow, x.state.part).now()


def plain_key(key: Any) -> Any:
    """A key with NumPy arrays in place of concrete ones."""
    if isinstance(key, tuple):
        return tuple([plain_key(k) for k in key])
    found = concrete(key)
    if found is not None:
        return found if found.shape or found.dtype.kind == "b" else int(found)
    if isinstance(key, slice):
        return slice(*[plain_key(part) for part in (key.start, key.stop, key.step)])
    if isinstance(key, list) and any(type(k) is Array for k in key):
        return [plain_key(k) for k in key]
    return key


def has_ellipsis(key: Any) -> bool:
    return key is Ellipsis or (isinstance(key, tuple) and any(k is Ellipsis for k in key))


def _is_basic(key: Any) -> bool:
    return all(map(_is_basic_part, key if isinstance(key, tuple) else (key,)))


def _is_basic_part(k: Any) -> bool:
    if k is None or k is Ellipsis:
        return True
    if isinstance(k, slice):
        return not any(isinstance(part, Tensor) for part in (k.start, k.stop, k.step))
    return isinstance(k, int | np.integer) and not isinstance(k, bool)


# -- x[key] = value ----------------------------------------------------------------------------------------------


def set_item(x: Tensor, key: Any, value: Any) -> None:
    """x[key] = value."""
    name = target(x, "x[key] = value", lambda: f"x = x.at[{_key_text(key)}].set(value)")
    mask = mask_key(key)
    if mask is not None or isinstance(value, Masked):
        set_masked(name, mask, value, elements)
        return
    key = plain_key(key)
    if not _is_basic(key):
        _set_elements(name, key, value)
        return
    shadow = name.state.shadow[key if has_ellipsis(key) else (*(key if isinstance(key, tuple) else (key,)), ...)]
    if type(value) is Array and value.state.memory is name.state.memory and _same(value, shadow, name):
        return  # the end of `x[key] += v`, which has been assigned already
    part = named(name.state.memory, shadow, name.state.part)
    part.state.refusal = name.state.refusal
    store(part, elements(value, name.dtype))


def _same(value: Array, shadow: Any, name: Array) -> bool:
    return value.state.part == name.state.part and same_place(value.state.shadow, shadow)


def _key_text(key: Any) -> str:
    if isinstance(key, tuple):
        return ", ".join(map(_key_text, key)) or "()"
    if isinstance(key, slice):
        ends = ["" if k is None else brief(k, 20) for k in (key.start, key.stop)]
        return ":".join(ends if key.step is None else [*ends, brief(key.step, 20)])
    return "..." if key is Ellipsis else brief(key, 20)


def _set_elements(x: Array, key: Any, value: Any, mode: str = "set") -> None:
    """Assign at integer arrays."""
    known = parse(key, x.shape)
    value = elements(value, x.dtype)
    assign_whole(x, updated(x.now(), Key(known.entries, known.arrays), value, mode))


def store(x: Array, value: Any) -> None:
    """Give an array, a view as a rule, a value that broadcasts to it."""
    shape = value.shape
    while len(shape) > len(x.shape) and shape[0] == 1:
        shape = shape[1:]
    if not broadcasts_to(shape, x.shape):
        raise ValueError(f"could not broadcast input array from shape {tuple(value.shape)} into shape {tuple(x.shape)}")
    if shape and value.shape != x.shape:
        value = reshape(value, shape) if shape != value.shape else value
        value = broadcast_to(value, x.shape)
    elif not shape and value.shape:
        value = value.reshape(())
    assign(x, convert(value))


def assign_whole(x: Array, value: Any) -> None:
    assign(x, convert(value))


def elements(value: Any, dtype: DType) -> Any:
    """A value as elements of an array: NumPy's setitem casts anything but complex to real without a question."""
    if isinstance(value, Tensor):
        found = concrete(value)
        value = value.now() if found is None else found
    else:
        value = typed(value) if has_tensor(value) else as_array(value)
    if value.dtype == dtype:
        return value
    if value.dtype.kind == "c" and dtype.kind not in "cb":
        raise TypeError(
            f"assignment: {spec_of(value)} is complex, and elements of {dtype} would lose the imaginary part; assign "
            f".real, or make the array complex"
        )
    return value.astype(dtype) if isinstance(value, np.ndarray) else cast(value, dtype)


def target(x: Tensor, what: str, remedy: Callable[[], str]) -> Array:
    """The name that a statement assigns to; errors where statements do not work."""
    if not assignable(x, what):
        raise TypeError(
            f"{what} would modify {x!r}, but a tensor of a hand-built graph is one value, a key of feeds and fetches: "
            f"write {remedy()}, which makes a new tensor. In a @distgrad.function, `x[key] = value` works as in NumPy."
        )
    if is_scalar(x):
        raise TypeError(
            f"{what}: {x!r} is a scalar, as NumPy would have it here, and no array: scalars cannot be assigned to"
        )
    return adopt(x)


# -- x += value --------------------------------------------------------------------------------------------------

INPLACE: dict[str, Callable[..., Any]] = {
    "add": math.add, "sub": math.subtract, "mul": math.multiply, "truediv": math.divide, "floordiv": math.floor_divide,
    "mod": math.remainder, "pow": math.power, "matmul": matmul.matmul, "and": math.bitwise_and, "or": math.bitwise_or,
    "xor": math.bitwise_xor,
}  # fmt: skip


def inplace(name: str) -> Callable[[Any, Any], Any]:
    """The method for an operator such as `+=`."""
    f = INPLACE[name]

    def method(self: Any, other: Any) -> Any:
        if not isinstance(self.graph, FuncGraph) or is_scalar(self) or isinstance(other, Masked):
            return NotImplemented  # Python rebinds the name on the left
        x = target(self, f"`x {_SIGNS[name]}= value`", lambda: f"x = x {_SIGNS[name]} value")
        operate(x, f, other, name)
        return x

    return method


_SIGNS = {
    "add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%", "pow": "**", "matmul": "@",
    "and": "&", "or": "|", "xor": "^",
}  # fmt: skip


def operate(x: Array, f: Callable[..., Any], other: Any, name: str) -> None:
    """x op= other."""
    other = typed(other) if not isinstance(other, bool | int | float | complex) else other
    if name in ("add", "sub") and _addable(x, other):
        assign(x, convert(math.negative(other) if name == "sub" else other), "add")
        return
    into(x, f(x, other))


def _addable(x: Array, other: Any) -> bool:
    """Whether the value can be added to the elements of a view as it is."""
    same = getattr(other, "dtype", None) == x.dtype and getattr(other, "shape", None) == x.shape
    state = x.state
    if not same or state.part is not None or state.refusal is not None or x.dtype.kind not in "fc":
        return False
    return state.shadow.size < state.memory.root.size and 0 not in state.shadow.strides


def into(x: Array, value: Any) -> None:
    """Assign the result of a function to its `out=`: same_kind casts, and the shape must be that of x."""
    value = typed(value)
    if not np.can_cast(value.dtype, x.dtype, "same_kind"):
        raise TypeError(
            f"Cannot cast from {value.dtype} to {x.dtype} with casting rule 'same_kind': write "
            f"`x = x ...`, which makes a new array, or cast with .astype({str(x.dtype)!r})"
        )
    if value.shape != x.shape and not broadcasts_to(value.shape, x.shape):
        raise ValueError(
            f"non-broadcastable output operand with shape {tuple(x.shape)} doesn't match the broadcast shape "
            f"{tuple(value.shape)}"
        )
    store(x, elements(cast(value, x.dtype), x.dtype))


def out_of(out: Any, value: Any, what: str, broadcast: bool = False) -> Any:
    """The `out=` of a function that gave this value. Only a ufunc itself broadcasts to it."""
    if isinstance(out, tuple):
        (out,) = out
    if isinstance(out, np.ndarray):
        if isinstance(value, Tensor):
            raise NoValueError(plain_array(what))
        np.copyto(out, value, casting="same_kind")
        return out
    x = target(out, f"{what}(..., out=x)", lambda: f"x = {what}(...)")
    if not broadcast and typed(value).shape != x.shape:
        raise ValueError(f"{what}: out= has shape {[*x.shape]}, but the result has shape {[*value.shape]}")
    into(x, value)
    return x


def plain_array(what: str) -> str:
    """What to say where a tensor is to be stored in a NumPy array."""
    return (
        f"{what}: a NumPy array cannot hold a tensor, which has no value while the function is traced. "
        f"Write `import distgrad.numpy as np` in place of `import numpy as np`: its arrays can be assigned to"
    )


# -- views that NumPy makes if it can ----------------------------------------------------------------------------


def ravel(a: Any, order: str = "C") -> Any:
    """`x.ravel()`: a view of a C-contiguous array, a copy of any other. `x.reshape(-1)` may be a view more often."""
    a = typed(a)
    made = reshape(a, -1, order)
    if not isinstance(a, Tensor) or not isinstance(a.graph, FuncGraph):
        return made
    return identity(made) if in_order(a) is False else made


def contiguous_array(a: Any) -> Any:
    """`np.ascontiguousarray(x)`: x itself or a copy."""
    known = in_order(a)
    if known is None:
        return reshape(a, a.shape or (1,))
    return (a if a.shape else reshape(a, (1,))) if known else identity(a)


def flat(f: Callable[..., Any]) -> Callable[..., Any]:
    """A function that reshapes: where its result has no axes it is an array, not a scalar."""

    @functools.wraps(f)
    def run(*args: Any, **kwargs: Any) -> Any:
        made = f(*args, **kwargs)
        if isinstance(made, Tensor) and not made.shape and made.graph is current_graph():
            return adopt(made) if isinstance(made.graph, FuncGraph) else made
        return made

    return run


# -- functions that write ----------------------------------------------------------------------------------------


def at(ufunc: np.ufunc, x: Any, key: Any, *values: Any) -> None:
    """`np.add.at(x, key, value)`: with repeated indices every value counts."""
    what = f"numpy.{ufunc.__name__}.at"
    if not isinstance(x, Tensor):
        raise NoValueError(plain_array(what))
    name = target(x, what, lambda: f"x = x.at[key].{ufunc.__name__}(value)")
    mode: str = ufunc.__name__
    value, *rest = values or (None,)
    if mode == "subtract":
        mode, value = "add", math.negative(value)
    if mode not in MODES or rest:
        raise TypeError(f"{what} is not supported on tensors: use numpy.add.at, or x[key] = ... without repetitions")
    value = typed(value)
    if not np.can_cast(value.dtype, name.dtype, "same_kind"):
        raise TypeError(f"{what}: cannot cast {value.dtype} to {name.dtype} with casting rule 'same_kind'")
    if mask_key(key) is not None:
        raise TypeError(f"{what}: a mask that is a tensor; write x[mask] += value, which has no repetitions")
    _set_elements(name, plain_key(key), value, mode)


def copyto(dst: Any, src: Any, casting: str = "same_kind", where: Any = True) -> None:
    """`np.copyto(x, value)`."""
    if not isinstance(dst, Tensor):
        raise NoValueError(plain_array("numpy.copyto"))
    x = target(dst, "numpy.copyto", lambda: "x = x.at[...].set(value)")
    value = typed(src)
    if casting != "unsafe" and not np.can_cast(value.dtype, x.dtype, casting):  # type: ignore[arg-type]
        raise TypeError(f"numpy.copyto: cannot cast {value.dtype} to {x.dtype} with casting rule {casting!r}")
    if where is not True:
        value = math.where(where, elements(value, x.dtype), x)
    store(x, elements(value, x.dtype))


def fill_diagonal(a: Any, val: Any, wrap: bool = False) -> None:
    """`np.fill_diagonal(x, value)`."""
    if not isinstance(a, Tensor):
        raise NoValueError(plain_array("numpy.fill_diagonal"))
    places = np.zeros(a.shape, bool)
    np.fill_diagonal(places, True, wrap)
    value = typed(val)
    if value.shape:
        raise TypeError("numpy.fill_diagonal: with a tensor, the value must be one number; assign x[i, i] for others")
    set_item(a, places.nonzero(), value)


def put(a: Any, ind: Any, v: Any, mode: str = "raise") -> None:
    """`np.put(x, indices, values)`: indices of the flat array; values are repeated as needed."""
    if not isinstance(a, Tensor):
        raise NoValueError(plain_array("numpy.put"))
    indices, values = as_array(plain_key(ind)).reshape(-1), typed(v).reshape(-1)
    indices = np.where(indices < 0, indices + size_of(a.shape), indices)
    if mode != "raise" or not values.shape[0]:
        raise TypeError("numpy.put: only mode='raise' and at least one value are supported on tensors")
    repeated = getitem(values, np.arange(indices.size) % values.shape[0])
    set_item(a, np.unravel_index(indices, a.shape), repeated)


def putmask(a: Any, mask: Any, values: Any) -> None:
    """`np.putmask(x, mask, values)` with one value, or values of the shape of x."""
    if not isinstance(a, Tensor):
        raise NoValueError(plain_array("numpy.putmask"))
    x, value = target(a, "numpy.putmask", lambda: "x = numpy.where(mask, values, x)"), elements(values, a.dtype)
    if value.shape not in ((), x.shape):
        raise TypeError("numpy.putmask: on tensors, values must be one number, or have the shape of the array")
    store(x, math.where(mask, value, x))


def put_along_axis(arr: Any, indices: Any, values: Any, axis: int | None) -> None:
    """`np.put_along_axis(x, indices, values, axis)`."""
    if not isinstance(arr, Tensor):
        raise NoValueError(plain_array("numpy.put_along_axis"))
    if axis is None:
        raise TypeError("numpy.put_along_axis: on tensors, axis must be an int")
    set_item(arr, along(arr.shape, typed(indices), axis % len(arr.shape)), values)


def set_part(read: Callable[[Any], Any]) -> Callable[[Any, Any], None]:
    """`x.real = value`."""

    def assign_part(x: Any, value: Any) -> None:
        name = target(x, "x.real = value", lambda: "x = value + 1j * x.imag")
        set_item(read(name), Ellipsis, value)

    return assign_part


def fill(x: Any, value: Any) -> None:
    """`x.fill(value)`."""
    set_item(x, Ellipsis, value)


WRITERS: dict[Any, Callable[..., Any]] = {
    np.copyto: copyto, np.fill_diagonal: fill_diagonal, np.put: put, np.putmask: putmask,
    np.put_along_axis: put_along_axis,
}  # fmt: skip
