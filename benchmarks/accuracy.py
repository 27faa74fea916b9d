"""The largest error of every function of native code, in ulp, and the argument where it occurs.

    python benchmarks/accuracy.py                                       every function, a sample
    python benchmarks/accuracy.py --function exp --dtype float32 --exhaustive    all 2**32 float32 values

float32 is measured against NumPy's and SciPy's float64, float64 against NumPy's longdouble, which needs a machine where
it has more than 53 bits (x86). The error function has no longdouble in NumPy: a series and a continued fraction give
it. Functions of two arguments are sampled. The exit code is 1 if an error is larger than its bound.
"""

from __future__ import annotations

import argparse
import ctypes
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir

from distgrad.workers.native.functions import FUNCTIONS
from distgrad.workers.native.llvm import HOST, Loaded, Target, compile_module
from distgrad.workers.native.values import LANES, Value, memory_type

WIDE = np.longdouble
CHUNK = 1 << 20
BINARY = ("power", "arctan2")


# -- the functions, compiled ---------------------------------------------------------------------------------------


def elementwise(build: Callable[..., Value], dtype: Any, inputs: int = 1, target: Target = HOST) -> Callable[..., Any]:
    """A formula as a function of arrays of one size."""
    dtype = np.dtype(dtype)
    loaded = Loaded(compile_module(_loop(build, dtype, inputs), target))
    kind = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * (inputs + 1), ctypes.c_int64)
    function = kind(loaded.address("loop"))

    def run(*arrays: Any) -> Any:
        size = arrays[0].size
        padded = np.ones((inputs + 1, -(-size // LANES) * LANES), dtype)
        for row, array in zip(padded, arrays, strict=False):
            row[:size] = array
        function(*[row.ctypes.data for row in padded], padded.shape[1])
        return padded[-1, :size]

    run.loaded = loaded  # type: ignore[attr-defined]
    return run


def _loop(build: Callable[..., Value], dtype: Any, inputs: int) -> ir.Module:
    module, index = ir.Module(), ir.IntType(64)
    pointer = memory_type(dtype).as_pointer()
    several = ir.VectorType(memory_type(dtype), LANES).as_pointer()
    kind = ir.FunctionType(ir.VoidType(), [pointer] * (inputs + 1) + [index])
    function = ir.Function(module, kind, "loop")
    *arrays, size = function.args
    start, body, end = [function.append_basic_block(name) for name in ("start", "body", "end")]
    b = ir.IRBuilder(start)
    b.branch(body)
    b.position_at_end(body)
    i = b.phi(index)
    i.add_incoming(index(0), start)
    places = [b.bitcast(b.gep(array, [i]), several) for array in arrays]
    values = [Value(b, b.load(place, align=dtype.itemsize), dtype) for place in places[:-1]]
    b.store(build(*values).raw, places[-1], align=dtype.itemsize)
    following = b.add(i, index(LANES))
    i.add_incoming(following, b.block)
    b.cbranch(b.icmp_signed("<", following, size), body, end)
    b.position_at_end(end)
    b.ret_void()
    return module


@cache
def compiled(name: str, dtype: str) -> Callable[..., Any]:
    return elementwise(FUNCTIONS[name].build, dtype, 2 if name in BINARY else 1)


# -- what they should give -----------------------------------------------------------------------------------------


def reference(name: str, *args: Any) -> Any:
    """The function in the precision of its arguments: float64 or longdouble."""
    with np.errstate(all="ignore"):
        if name == "sigmoid":
            z = np.exp(-abs(args[0]))
            return np.where(args[0] < 0, z, 1) / (1 + z)
        if name == "softplus":
            return np.maximum(args[0], 0) + np.log1p(np.exp(-abs(args[0])))
        if name in ("erf", "erfc"):
            return _error_function(name, args[0])
        return getattr(np, name)(*args)


def _error_function(name: str, x: Any) -> Any:
    import scipy.special

    if x.dtype != WIDE:
        return getattr(scipy.special, name)(x)
    size = np.minimum(abs(x), 28)
    inner, outer = _erf_series(np.minimum(size, 2.5)), _erfc_fraction(np.maximum(size, 2))
    if name == "erf":
        y = np.copysign(np.where(size < 2.5, inner, 1 - outer), x)
    else:
        y = np.where(size < 2, 1 - inner, outer)
        y = np.where(x < 0, 2 - y, y)
    return np.where(np.isnan(x), x, y)


def _square_exp(x: Any) -> Any:
    """exp(-x**2); x is split, because the rounding of its square would be magnified."""
    high = x.astype(np.float32).astype(WIDE)
    return np.exp(-high * high) * np.exp(-(x - high) * (x + high))


def _erf_series(x: Any) -> Any:
    """2 / sqrt(pi) exp(-x**2) times the sum of 2**n x**(2 n + 1) / (1 · 3 ··· (2 n + 1))."""
    term = total = x.copy()
    for n in range(1, 90):
        term = term * (2 * x * x) / (2 * n + 1)
        total = total + term
    return total * _square_exp(x) * 2 / np.sqrt(4 * np.arctan(WIDE(1)))


def _erfc_fraction(x: Any) -> Any:
    """exp(-x**2) / sqrt(pi) times 1 / (x + (1/2) / (x + (2/2) / (x + ...)))."""
    tail = x.copy()
    for n in range(160, 0, -1):
        tail = x + WIDE(n) / 2 / tail
    return _square_exp(x) / tail / np.sqrt(4 * np.arctan(WIDE(1)))


def errors(got: Any, want: Any) -> Any:
    """The distance in ulp of the exact value's binade. Infinite where a special value is not as it should be."""
    info = np.finfo(got.dtype)
    with np.errstate(all="ignore"):
        exponent = np.maximum(np.frexp(want)[1] - info.nmant - 1, info.minexp - info.nmant)
        distance = np.abs(np.ldexp(got.astype(want.dtype) - want, -exponent))
        rounded = want.astype(got.dtype)
        same = (got == rounded) | (np.isnan(got) & np.isnan(rounded))
        distance = np.where(np.isfinite(got) & np.isfinite(want), distance, np.where(same, 0, np.inf))
    # A correctly rounded result may be infinite while the wider one is not.
    return np.where(same & ~np.isfinite(rounded), 0, distance)


# -- arguments -----------------------------------------------------------------------------------------------------


def samples(dtype: str, count: int, seed: int = 0) -> Any:
    """All bit patterns alike, numbers of usual sizes, numbers around 0 and 1, and special ones."""
    rng, kind = np.random.default_rng(seed), np.dtype(dtype)
    n = max(count // 8, 1)
    sign = rng.choice([-1.0, 1.0], n)
    parts = [
        rng.integers(0, 2 ** (8 * kind.itemsize), n, dtype=f"u{kind.itemsize}").view(kind),
        *[rng.normal(scale=scale, size=n) for scale in (1, 10, 300)],
        10.0 ** rng.uniform(-20, 20, n) * sign,
        1 + 10.0 ** rng.uniform(-16, 0, n) * sign,
        rng.uniform(-1, 1, n),
        np.rint(rng.normal(scale=1e4, size=n)) * (np.pi / 4),
    ]
    with np.errstate(over="ignore"):
        return np.concatenate([SPECIAL.astype(kind), *[part.astype(kind) for part in parts]])


_SIZES = np.array([0, 1, 2, 0.5, 3, 1e300, 1e38, 1e10, 5e-324, 1e-310, 1e-45, 1e-40, 30, 88.8, 104, 710, 746, np.inf])
SPECIAL = np.concatenate([_SIZES, -_SIZES, [np.nan]])


def _chunks(dtype: str, count: int, exhaustive: bool) -> Iterator[Any]:
    if exhaustive and dtype == "float32":
        for start in range(0, 2**32, CHUNK):
            yield np.arange(start, start + CHUNK, dtype=np.uint64).astype(np.uint32).view(np.float32)
    else:
        for seed in range(-(-count // CHUNK)):
            yield samples(dtype, min(count, CHUNK), seed)


def worst_of(name: str, x: Any) -> tuple[float, tuple[Any, ...]]:
    """The largest error for these arguments, and where; of two arguments, the second is the first in another order."""
    args: tuple[Any, ...] = (x,)
    with np.errstate(all="ignore"):
        if name in BINARY:
            special, other = SPECIAL.astype(x.dtype), np.random.default_rng(x.size).permutation(x)
            pairs = np.meshgrid(special, special)
            args = tuple([np.concatenate([a, pair.ravel()]) for a, pair in zip((x, other), pairs, strict=True)])
        wide = np.float64 if x.dtype == np.float32 else WIDE
        off = errors(compiled(name, x.dtype.name)(*args), reference(name, *[a.astype(wide) for a in args]))
    at = int(np.argmax(off))
    return float(off[at]), tuple([a[at] for a in args])


def measure(name: str, dtype: str, count: int, exhaustive: bool = False) -> tuple[float, tuple[Any, ...]]:
    compiled(name, dtype)
    with ThreadPoolExecutor(2) as pool:
        return max(pool.map(lambda x: worst_of(name, x), _chunks(dtype, count, exhaustive)), key=lambda found: found[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--function", action="append", choices=list(FUNCTIONS))
    parser.add_argument("--dtype", action="append", choices=["float32", "float64"])
    parser.add_argument("--exhaustive", action="store_true", help="all float32 values")
    parser.add_argument("--samples", type=int, default=10_000_000)
    options = parser.parse_args()
    failed = False
    print(f"{'function':10}{'dtype':9}{'worst ulp':>10}{'bound':>7}  ok   argument")
    for name in options.function or FUNCTIONS:
        for dtype in options.dtype or ["float32", "float64"]:
            bound = FUNCTIONS[name].ulp(dtype)
            if bound is None:
                print(f"{name:10}{dtype:9}  not offered")
                continue
            worst, where = measure(name, dtype, options.samples, options.exhaustive)
            failed |= worst > bound
            place = ", ".join([repr(float(a)) for a in where])
            verdict = "yes" if worst <= bound else "NO"
            print(f"{name:10}{dtype:9}{worst:10.3f}{bound:7}  {verdict:4} {place}", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
