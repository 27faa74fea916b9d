"""The formulas of native code: their stated bounds on a sample, special values, and equal bits on different CPUs.

`benchmarks/accuracy.py` measures all float32 values.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("llvmlite")

from benchmarks import accuracy
from distgrad.workers.native import llvm
from distgrad.workers.native.functions import FUNCTIONS

OFFERED = [(name, dtype) for name, f in FUNCTIONS.items() for dtype in ("float32", "float64") if f.offers(dtype)]
#: float64 needs a longdouble that has more bits.
WIDE = np.finfo(np.longdouble).nmant > 52


def arguments(name: str, dtype: str, count: int) -> tuple[Any, ...]:
    x = accuracy.samples(dtype, count)
    return (x, np.random.default_rng(1).permutation(x)) if name in accuracy.BINARY else (x,)


@pytest.mark.parametrize(("name", "dtype"), OFFERED)
def test_a_function_is_within_its_bound(name: str, dtype: str) -> None:
    if dtype == "float64" and not WIDE:
        pytest.skip("no precision above float64 on this machine")
    worst, where = accuracy.worst_of(name, accuracy.samples(dtype, 40_000))
    assert worst <= FUNCTIONS[name].ulp(dtype), where


@pytest.mark.parametrize(("name", "dtype"), OFFERED)
def test_zeros_infinities_and_nans_are_numpys(name: str, dtype: str) -> None:
    with np.errstate(all="ignore"):
        x = np.array([0.0, -0.0, 1, -1, np.inf, -np.inf, np.nan, 2.5, -2.5, 3, -3], dtype)
        args = [a.ravel() for a in np.meshgrid(x, x)] if name in accuracy.BINARY else [x]
        want = accuracy.reference(name, *args)
    got = accuracy.compiled(name, dtype)(*args)
    special = ~np.isfinite(want) | (want == 0)
    np.testing.assert_array_equal(got[special], want[special])
    signed = special & ~np.isnan(want)
    np.testing.assert_array_equal(np.signbit(got[signed]), np.signbit(want[signed]))
    assert np.isfinite(got[~special]).all()


@pytest.mark.parametrize(("name", "dtype"), OFFERED)
def test_cpus_with_narrower_vectors_give_the_same_bits(name: str, dtype: str) -> None:
    if "+avx2" not in llvm.host()[1] or "+fma" not in llvm.host()[1]:
        pytest.skip("this CPU does not run x86-64-v3")
    args = arguments(name, dtype, 4_000)
    inputs = len(args)
    narrow = accuracy.elementwise(FUNCTIONS[name].build, dtype, inputs, ("x86-64-v3", ""))(*args)
    here = accuracy.compiled(name, dtype)(*args)
    number = ~np.isnan(here)
    np.testing.assert_array_equal(np.isnan(narrow), ~number)
    kind = f"u{here.dtype.itemsize}"
    np.testing.assert_array_equal(narrow[number].view(kind), here[number].view(kind))


@pytest.mark.parametrize("name", ["sin", "cos", "tan"])
def test_float32_angles_may_be_huge(name: str) -> None:
    x = np.float32(2) ** np.arange(20, 128, dtype=np.float32) * np.float32(1.2345678)
    assert accuracy.worst_of(name, x)[0] <= FUNCTIONS[name].ulp("float32")
