"""NumPy has everything that kernels need: these methods are thin wrappers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from distgrad.workers.backends.base_extras import Array, Extras, combine_at, solve_triangular


class NumpyExtras(Extras):
    def __init__(self, xp: Any) -> None:
        self.xp = xp

    def from_numpy(self, x: Array) -> Any:
        return x

    def dtype(self, dtype: np.dtype[Any]) -> Any:
        return dtype

    def kind(self, dtype: Any) -> str:
        return dtype.kind  # type: ignore[no-any-return]

    def itemsize(self, dtype: Any) -> int:
        return dtype.itemsize  # type: ignore[no-any-return]

    def is_short(self, dtype: Any) -> bool:
        return dtype.itemsize == 2 and dtype.kind in "fV"  # V: NumPy does not know bfloat16 as a float

    def astype(self, x: Any, dtype: Any) -> Any:
        return x.astype(dtype)

    def cast(self, x: Any, dtype: np.dtype[Any]) -> Any:
        if x.dtype.kind == "c" and dtype.kind not in "cb":
            x = x.real  # astype would warn that the imaginary part is lost
        return x.astype(dtype)

    def get(self, x: Any, key: Sequence[Any]) -> Any:
        return x[(*key, ...)]  # the ellipsis makes it a view, not a scalar, if all keys are integers

    def put(self, out: Any, key: Sequence[Any], values: Any) -> Any:
        out[key] = values
        return out

    def increase(self, out: Any, key: Sequence[Any], by: Any) -> Any:
        out[key] += by
        return out

    def combine_at(self, out: Any, key: Sequence[Any], values: Any, mode: str) -> Any:
        return combine_at(out, tuple(key), values, mode)

    def add_at(self, flat: Any, places: Any, values: Any) -> Any:
        np.add.at(flat, places, values)
        return flat

    def function(self, name: str) -> Callable[..., Any]:
        return getattr(np, name)  # type: ignore[no-any-return]

    def special(self, name: str, x: Any, *before: int) -> Any:
        import scipy.special

        return getattr(scipy.special, name)(*before, x).astype(x.dtype)  # float16 comes back as float32

    def partition(self, x: Any, kth: int) -> Any:
        return np.partition(x, kth, axis=-1)

    def solve_triangular(self, a: Any, b: Any, adjoint: bool, lower: bool, unit_diagonal: bool) -> Any:
        return solve_triangular(a, b, adjoint, lower, unit_diagonal)
