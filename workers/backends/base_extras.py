"""Extras: what kernels need beyond the Python Array API standard, for any library, by its functions or via NumPy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

#: Function -> the kinds of dtypes for which NumPy has it but the standard does not.
_LACKING = {
    "less": "c", "less_equal": "c", "greater": "c", "greater_equal": "c", "max": "bc", "min": "bc", "argmax": "bc",
    "argmin": "bc", "sort": "bc", "argsort": "bc", "matmul": "b", "exp2": "fc", "cbrt": "f",
}  # fmt: skip


class Extras:
    """What the standard lacks. A subclass overrides methods for which its library has functions."""

    #: Function -> the kinds of dtypes for which it is computed by NumPy.
    lacking: Mapping[str, str] = _LACKING

    def __init__(self, xp: Any) -> None:
        self.xp = xp
        self._functions: dict[str, Callable[..., Any]] = {}
        known = xp.__array_namespace_info__().dtypes()
        self._itemsizes: dict[Any, int] = {dtype: np.dtype(name).itemsize for name, dtype in known.items()}
        self.kinds: dict[Any, str] = {dtype: np.dtype(name).kind for name, dtype in known.items()}

    # -- in and out

    def from_numpy(self, x: Array) -> Any:
        self.dtype(x.dtype)  # an error that names the dtype
        return self.xp.asarray(x, copy=True)

    def mover(self) -> Callable[[Array], Any]:
        """A function like `from_numpy`, faster for many arrays in a row."""
        return self.from_numpy

    def to_numpy(self, x: Any) -> Array:
        """A NumPy array that may share memory with x, so it must not be modified."""
        return np.asarray(x)

    def hand_out(self, xs: Sequence[Any]) -> list[Array]:
        """The results of a task as NumPy arrays that share memory with nothing else."""
        return [np.array(self.to_numpy(x)) for x in xs]

    def by_numpy(self, f: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Apply a function of NumPy arrays to arrays of this library."""
        return self.from_numpy(np.asarray(f(*[self.to_numpy(a) for a in args], **options)))

    # -- dtypes

    def dtype(self, dtype: np.dtype[Any]) -> Any:
        """This library's dtype of the same name."""
        found = getattr(self.xp, dtype.name, None)
        if found is None:
            raise TypeError(f"{self.xp.__name__} has no dtype {dtype.name}; cast it, or use the NumPy backend")
        return found

    def kind(self, dtype: Any) -> str:
        """NumPy's letter for the kind of dtype: b, i, u, f, c."""
        return self.kinds[dtype]

    def itemsize(self, dtype: Any) -> int:
        """Bytes per element."""
        return self._itemsizes[dtype]

    def extremes(self, x: Any) -> tuple[int, int]:
        """The minimum and the maximum of an integer array."""
        return int(self.xp.min(x)), int(self.xp.max(x))

    def is_short(self, dtype: Any) -> bool:
        """Whether this is float16 or bfloat16, which the standard lacks."""
        return False

    def astype(self, x: Any, dtype: Any) -> Any:
        """x converted to a dtype of this library. May return x itself."""
        return self.xp.astype(x, dtype, copy=False)

    def cast(self, x: Any, dtype: np.dtype[Any]) -> Any:
        """x converted to the dtype with NumPy's name. Complex numbers are cast to their real part, as in TensorFlow."""
        if self.kind(x.dtype) == "c" and dtype.kind != "c":
            x = x != 0 if dtype.kind == "b" else self.xp.real(x)
        return self.astype(x, self.dtype(dtype))

    # -- indexing

    def get(self, x: Any, key: Sequence[Any]) -> Any:
        """x[key], for ints, slices, None and integer arrays in any combination."""
        return self.by_numpy(lambda x, *arrays: x[_with(key, arrays)], x, *_arrays(key))

    def put(self, out: Any, key: Sequence[Any], values: Any) -> Any:
        """Set out[key] = values, for ints, slices and None. May overwrite `out`; returns the result."""
        sizes = zip([e for e in key if not isinstance(e, int)], values.shape, strict=True)
        values = self.xp.reshape(values, tuple(n for e, n in sizes if e is not None))
        out[(*[e for e in key if e is not None], ...)] = values
        return out

    def increase(self, out: Any, key: Sequence[Any], by: Any) -> Any:
        """Add a number to out[key], for integer arrays without duplicates. May overwrite `out`; returns the result."""

        def run(out: Array, *arrays: Array) -> Array:
            out = np.array(out)
            out[_with(key, arrays)] += by
            return out

        return self.by_numpy(run, out, *_arrays(key))

    def combine_at(self, out: Any, key: Sequence[Any], values: Any, mode: str) -> Any:
        """Set out[key], for integer arrays that may have duplicates, or combine it with the values by the ufunc `mode`,
        in order. May overwrite `out`; returns the result."""

        def run(out: Array, values: Array, *arrays: Array) -> Array:
            return combine_at(np.array(out), _with(key, arrays), values, mode)

        return self.by_numpy(run, out, values, *_arrays(key))

    def add_at(self, flat: Any, places: Any, values: Any) -> Any:
        """Add values to a vector at places, in order; places may repeat. May overwrite `flat`; returns the result."""

        def run(flat: Array, places: Array, values: Array) -> Array:
            flat = np.array(flat)
            np.add.at(flat, places, values)
            return flat

        return self.by_numpy(run, flat, places, values)

    # -- functions

    def function(self, name: str) -> Callable[..., Any]:
        """The function of this name, for every dtype that NumPy supports."""
        return self._functions.get(name) or self._functions.setdefault(name, self._function(name))

    def _function(self, name: str) -> Callable[..., Any]:
        own: Callable[..., Any] = getattr(self, f"_{name}", None) or getattr(self.xp, name, getattr(np, name))
        lacking = self.lacking.get(name)
        if not lacking:
            return own

        def run(x: Any, *more: Any, **options: Any) -> Any:
            if self.kind(x.dtype) in lacking:
                return self.by_numpy(getattr(np, name), x, *more, **options)
            return own(x, *more, **options)

        return run

    def _truth(self, x: Any) -> Any:
        return x if x.dtype == self.xp.bool else x != self.xp.zeros((), dtype=x.dtype)

    def _logical_and(self, x: Any, y: Any) -> Any:
        return self.xp.logical_and(self._truth(x), self._truth(y))

    def _logical_or(self, x: Any, y: Any) -> Any:
        return self.xp.logical_or(self._truth(x), self._truth(y))

    def _logical_xor(self, x: Any, y: Any) -> Any:
        return self.xp.logical_xor(self._truth(x), self._truth(y))

    def _logical_not(self, x: Any) -> Any:
        return self.xp.logical_not(self._truth(x))

    def _abs(self, x: Any) -> Any:
        return x if x.dtype == self.xp.bool else self.xp.abs(x)

    def special(self, name: str, x: Any, *before: int) -> Any:
        """scipy.special's function of this name, in the dtype of x."""
        import scipy.special  # late: slow to import, and not always needed

        f = getattr(scipy.special, name)
        return self.by_numpy(lambda x: f(*before, x).astype(x.dtype, copy=False), x)

    def partition(self, x: Any, kth: int) -> Any:
        """x partitioned along its last axis around the element that sorting would put at index kth."""
        return self.xp.sort(x, axis=-1)

    def solve_triangular(self, a: Any, b: Any, adjoint: bool, lower: bool, unit_diagonal: bool) -> Any:
        """The solution of one triangular system."""
        return self.by_numpy(lambda a, b: solve_triangular(a, b, adjoint, lower, unit_diagonal), a, b)


def solve_triangular(a: Array, b: Array, adjoint: bool, lower: bool, unit_diagonal: bool) -> Array:
    import scipy.linalg  # late: slow to import, and rarely needed

    made: Array = scipy.linalg.solve_triangular(
        a, b, trans=2 if adjoint else 0, lower=lower, unit_diagonal=unit_diagonal, check_finite=False
    )
    return made


def combine_at(out: Array, key: Any, values: Array, mode: str) -> Array:
    if mode == "set":
        out[key] = values
    else:
        getattr(np, mode).at(out, key, values)
    return out


def _arrays(key: Sequence[Any]) -> list[Any]:
    return [e for e in key if hasattr(e, "dtype")]


def _with(key: Sequence[Any], arrays: Sequence[Any]) -> tuple[Any, ...]:
    """The key with its index arrays replaced by these."""
    rest = iter(arrays)
    return tuple(next(rest) if hasattr(e, "dtype") else e for e in key)
