"""What kernels need beyond the Python Array API standard, in its terms or by way of NumPy: right for every library."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

#: For which kinds of numbers NumPy has a function and the standard has not.
_LACKING = {
    "less": "c", "less_equal": "c", "greater": "c", "greater_equal": "c", "max": "bc", "min": "bc", "argmax": "bc",
    "argmin": "bc", "sort": "bc", "argsort": "bc", "matmul": "b", "exp2": "fc", "cbrt": "f",
}  # fmt: skip


class Extras:
    """One array library's way to do what the standard leaves out. A subclass replaces what its library does itself."""

    #: By function, for which kinds of numbers it goes by way of NumPy.
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
        """What moves many arrays at one time."""
        return self.from_numpy

    def to_numpy(self, x: Any) -> Array:
        """A NumPy array that may share memory with x, only to be read."""
        return np.asarray(x)

    def hand_out(self, xs: Sequence[Any]) -> list[Array]:
        """The results of a task as NumPy arrays that share memory with nothing else."""
        return [np.array(self.to_numpy(x)) for x in xs]

    def by_numpy(self, f: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """What f of NumPy arrays makes of arrays of this library."""
        return self.from_numpy(np.asarray(f(*[self.to_numpy(a) for a in args], **options)))

    # -- dtypes

    def dtype(self, dtype: np.dtype[Any]) -> Any:
        """This library's dtype of the same name."""
        found = getattr(self.xp, dtype.name, None)
        if found is None:
            raise TypeError(f"{self.xp.__name__} has no dtype {dtype.name}; cast what has it, or run it on NumPy")
        return found

    def kind(self, dtype: Any) -> str:
        """NumPy's letter for what the numbers are: b, i, u, f, c."""
        return self.kinds[dtype]

    def itemsize(self, dtype: Any) -> int:
        """How many bytes a number has."""
        return self._itemsizes[dtype]

    def extremes(self, x: Any) -> tuple[int, int]:
        """The least and the largest of some integers."""
        return int(self.xp.min(x)), int(self.xp.max(x))

    def is_short(self, dtype: Any) -> bool:
        """Whether this is float16 or bfloat16: the standard has neither."""
        return False

    def astype(self, x: Any, dtype: Any) -> Any:
        """x in another dtype of this library, which may be x itself."""
        return self.xp.astype(x, dtype, copy=False)

    def cast(self, x: Any, dtype: np.dtype[Any]) -> Any:
        """x in the dtype of NumPy's name. Of complex numbers it is the real part, as TensorFlow casts."""
        if self.kind(x.dtype) == "c" and dtype.kind != "c":
            x = x != 0 if dtype.kind == "b" else self.xp.real(x)
        return self.astype(x, self.dtype(dtype))

    # -- indexing

    def get(self, x: Any, key: Sequence[Any]) -> Any:
        """x[key], for ints, slices, None and integer arrays in any mixture."""
        return self.by_numpy(lambda x, *arrays: x[_with(key, arrays)], x, *_arrays(key))

    def put(self, out: Any, key: Sequence[Any], values: Any) -> Any:
        """An array that the caller made with values set at [key], of ints, slices and None."""
        sizes = zip([e for e in key if not isinstance(e, int)], values.shape, strict=True)
        values = self.xp.reshape(values, tuple(n for e, n in sizes if e is not None))
        out[(*[e for e in key if e is not None], ...)] = values
        return out

    def increase(self, out: Any, key: Sequence[Any], by: Any) -> Any:
        """out with a number added at [key], integer arrays that name no place twice; out is the caller's own."""

        def run(out: Array, *arrays: Array) -> Array:
            out = np.array(out)
            out[_with(key, arrays)] += by
            return out

        return self.by_numpy(run, out, *_arrays(key))

    def add_at(self, flat: Any, places: Any, values: Any) -> Any:
        """A vector that the caller made with values added at places, in order; the places may repeat."""

        def run(flat: Array, places: Array, values: Array) -> Array:
            flat = np.array(flat)
            np.add.at(flat, places, values)
            return flat

        return self.by_numpy(run, flat, places, values)

    # -- functions

    def function(self, name: str) -> Callable[..., Any]:
        """The function of this name, for every dtype for which NumPy has it."""
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
        import scipy.special  # late: half of distgrad's users never need it, and it takes a while to import

        f = getattr(scipy.special, name)
        return self.by_numpy(lambda x: f(*before, x).astype(x.dtype, copy=False), x)

    def partition(self, x: Any, kth: int) -> Any:
        """x along its last axis with the element at kth where sorting would put it, nothing larger before it."""
        return self.xp.sort(x, axis=-1)

    def solve_triangular(self, a: Any, b: Any, adjoint: bool, lower: bool, unit_diagonal: bool) -> Any:
        """The solution of one triangular system."""
        return self.by_numpy(lambda a, b: solve_triangular(a, b, adjoint, lower, unit_diagonal), a, b)


def solve_triangular(a: Array, b: Array, adjoint: bool, lower: bool, unit_diagonal: bool) -> Array:
    import scipy.linalg  # late: few need it, and it takes a while to import

    made: Array = scipy.linalg.solve_triangular(
        a, b, trans=2 if adjoint else 0, lower=lower, unit_diagonal=unit_diagonal, check_finite=False
    )
    return made


def _arrays(key: Sequence[Any]) -> list[Any]:
    return [e for e in key if hasattr(e, "dtype")]


def _with(key: Sequence[Any], arrays: Sequence[Any]) -> tuple[Any, ...]:
    """The key with these in the places of its index arrays."""
    rest = iter(arrays)
    return tuple(next(rest) if hasattr(e, "dtype") else e for e in key)
