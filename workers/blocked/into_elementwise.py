"""Elementwise ops into given buffers, with the bits of their kernels.

Few sweeps over memory, and none that branches: on blocks that lie in the cache, `where` and masked copies take ten
times as long as arithmetic. Constants are 0-d arrays of the right dtype, which a ufunc takes without converting.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np

from distgrad.workers.blocked.into_table import INTO, JOINED, Array, Function, Into, into
from distgrad.workers.kernels.math import NAMED, log1p_single
from distgrad.workers.kernels.nn import GELU_CUBIC, GELU_LINEAR, NORMAL_PEAK, SQRT_HALF
from distgrad.workers.kernels.scratch import apart, scratch

_BOOL = np.dtype(bool)
_BITS = {size: np.dtype(f"i{size}") for size in (1, 2, 4, 8)}
_SIGNS = {size: np.array(-1 << (8 * size - 1), _BITS[size]) for size in (4, 8)}


@lru_cache(maxsize=1024)
def constant(value: float, dtype: np.dtype[Any]) -> Array:
    made = np.array(value, dtype)
    made.flags.writeable = False
    return made


# -- ufuncs ------------------------------------------------------------------------------------------------------

for _type, _name in NAMED.items():
    if isinstance(_ufunc := getattr(np, _name), np.ufunc):
        INTO[_type] = Into(ufunc=_ufunc)


# NumPy deprecates the positional out of these two.
@into("Maximum", fast="?bhilqBHILQefd")
def maximum(out: Array, x: Array, y: Array) -> None:
    np.maximum(x, y, out=out)


@into("Minimum", fast="?bhilqBHILQefd")
def minimum(out: Array, x: Array, y: Array) -> None:
    np.minimum(x, y, out=out)


@into("Rint", fast="efdFD")
def rint(out: Array, x: Array) -> None:
    np.rint(x, out)


@into("Rsqrt")
def rsqrt(out: Array, x: Array) -> None:
    np.sqrt(x, out)
    np.divide(constant(1, out.dtype), out, out)  # twice as fast as np.reciprocal


def _special(name: str, out: Array, x: Array) -> None:
    import scipy.special

    getattr(scipy.special, name)(x, out)


for _type, _name in {"Erf": "erf", "Erfc": "erfc", "Lgamma": "gammaln", "Digamma": "digamma"}.items():
    into(_type)(partial(_special, _name))


# -- copies ------------------------------------------------------------------------------------------------------


def _copy(out: Array, x: Array, **_: Any) -> None:
    np.copyto(out, x)


def _real(out: Array, x: Array) -> None:
    np.copyto(out, x.real)


def _imag(out: Array, x: Array) -> None:
    np.copyto(out, x.imag)


def _cast(out: Array, x: Array, *, dtype: Any) -> None:
    if x.dtype.kind == "c" and dtype.kind not in "cb":
        x = x.real
    np.copyto(out, x, casting="unsafe")


def _fill(out: Array, *, shape: Any, dtype: Any, value: Any) -> None:
    np.copyto(out, np.zeros((), dtype) if dtype.kind in "SU" else np.array(value, dtype))


def _zeros(out: Array, x: Array, *, dtype: Any) -> None:
    np.copyto(out, np.zeros((), dtype))


def _ones(out: Array, x: Array, *, dtype: Any) -> None:
    np.copyto(out, np.ones((), dtype))


_COPIES: dict[str, Function] = {
    "Identity": _copy, "StopGradient": _copy, "PreventGradient": _copy, "BroadcastTo": _copy, "Real": _real,
    "Imag": _imag, "Cast": _cast, "Fill": _fill, "ZerosLike": _zeros, "OnesLike": _ones,
}  # fmt: skip
for _type, _function in _COPIES.items():
    INTO[_type] = Into(function=_function)


@into("AddN", fast="?bhilqBHILQfdFD")
def add_n(out: Array, *xs: Array, minus: Sequence[bool] = ()) -> None:
    """`minus`, which a fused step has, says of each term whether it is subtracted; of the first it is not."""
    if len(xs) == 1:
        return np.copyto(out, xs[0])
    add = [np.subtract if less else np.add for less in minus or (False,) * len(xs)]
    grown, total = apart(out, *xs[2:], slot="a"), xs[0]
    for k in range(1, len(xs) - 1):
        add[k](total, xs[k], grown)
        total = grown
    add[-1](total, xs[-1], out)


def minus_abs(out: Array, x: Array) -> None:
    """A number with its sign set."""
    bits = _BITS[out.dtype.itemsize]
    np.bitwise_or(x.view(bits), _SIGNS[out.dtype.itemsize], out.view(bits))


JOINED["MinusAbs"] = Into(function=minus_abs)


# -- choosing ----------------------------------------------------------------------------------------------------


@into("Select", fast="?bhilqBHILQefdF")
def select(out: Array, condition: Array, x: Array, y: Array) -> None:
    _choose(out, condition if condition.dtype == _BOOL else condition.astype(bool), x, y)


def _choose(out: Array, mask: Array, x: Array, y: Array) -> None:
    """On the bits, as integers: y ^ ((x ^ y) * mask). No branch that a random mask would make slow."""
    bits = _BITS[out.dtype.itemsize]
    if y.size == 1 and 2 * mask.size <= out.size:
        return _or_number(out.view(bits), mask, x.view(bits), y.view(bits).reshape(()))
    x, y, t = x.view(bits), y.view(bits), scratch(out.shape, bits, "chosen")
    np.bitwise_xor(x, y, t)
    np.multiply(t, mask, t)
    np.bitwise_xor(t, y, out.view(bits))


def _or_number(out: Array, mask: Array, x: Array, y: Array) -> None:
    """x & bits | y & ~bits, where the bits and what they leave of the number are made once for all that they repeat."""
    chosen = scratch(mask.shape, out.dtype, "chosen")
    np.multiply(mask, constant(-1, out.dtype), chosen)
    np.bitwise_and(x, chosen, out)
    if y.any():
        np.invert(chosen, chosen)
        np.bitwise_and(chosen, y, chosen)
        np.bitwise_or(out, chosen, out)


def keep(out: Array, x: Array, mask: Array) -> None:
    """x where the mask is 1, 0 where it is 0: as integers, because NaN times 0.0 is NaN."""
    bits = _BITS[out.dtype.itemsize]
    np.multiply(x.view(bits), mask, out.view(bits))


def _positive(x: Array, out: Array) -> Array:
    """Where x > 0, as integers of the size of out's elements: NumPy casts faster while it compares than later."""
    mask = scratch(out.shape, _BITS[out.dtype.itemsize], "mask")
    np.greater(x, constant(0, x.dtype), mask)
    return mask


@into("Relu", fast="bhilqBHILQefd")
def relu(out: Array, x: Array) -> None:
    np.maximum(x, _zeros_for(out), out=out)


def _zeros_for(out: Array) -> Array:
    """A row of zeros rather than one zero, where rows are long: NumPy's maximum has vector code for two arrays only."""
    n = out.shape[-1] if out.ndim else 1
    return _zero_row(n, out.dtype) if 128 <= n <= 1 << 16 else constant(0, out.dtype)


@lru_cache(maxsize=32)
def _zero_row(n: int, dtype: np.dtype[Any]) -> Array:
    return np.zeros(n, dtype)


@into("ReluGrad", fast="bhilqBHILQefdF")
def relu_grad(out: Array, g: Array, y: Array) -> None:
    keep(out, g, _positive(y, out))


@into("LeakyRelu")
def leaky_relu(out: Array, x: Array, *, alpha: float) -> None:
    t = apart(out, x, slot="a")
    np.multiply(x, constant(alpha, out.dtype), t)
    if 0 < alpha <= 1:  # 0 times inf is not less than inf
        np.maximum(x, t, out=out)
    else:
        _choose(out, _positive(x, out), x, t)


@into("LeakyReluGrad")
def leaky_relu_grad(out: Array, g: Array, x: Array, *, alpha: float) -> None:
    t = apart(out, g, x, slot="a")
    np.multiply(g, constant(alpha, out.dtype), t)
    _choose(out, _positive(x, out), g, t)


@into("Elu")
def elu(out: Array, x: Array, *, alpha: float) -> None:
    t = apart(out, x, slot="a")
    np.expm1(x, t)
    np.multiply(t, constant(alpha, out.dtype), t)
    _choose(out, _positive(x, out), x, t)


# -- exponentials ------------------------------------------------------------------------------------------------


def _exp_minus_abs(x: Array, t: Array) -> None:
    np.abs(x, t)
    np.negative(t, t)
    np.exp(t, t)


@into("Sigmoid")
def sigmoid(out: Array, x: Array) -> None:
    """where(x < 0, z, 1) / (1 + z) with z = exp(-abs(x)): as z <= 1, the numerator is max(z, x >= 0)."""
    z, t = scratch(out.shape, out.dtype, "a"), apart(out, x, slot="b")
    _exp_minus_abs(x, z)
    np.greater_equal(x, constant(0, out.dtype), t)
    np.maximum(z, t, out=t)
    np.add(z, constant(1, out.dtype), z)
    np.divide(t, z, out)


@into("Log1p")
def log1p(out: Array, x: Array) -> None:
    if out.dtype.char == "d":
        np.log1p(x, out)
    else:
        log1p_single(x, out, scratch(out.shape, out.dtype, "log1p"))


@into("Softplus")
def softplus(out: Array, x: Array) -> None:
    t = scratch(out.shape, out.dtype, "a")
    _exp_minus_abs(x, t)
    log1p(t, t)
    relu(out, x)
    np.add(out, t, out)


@into("Gelu")
def gelu(out: Array, x: Array, *, approximate: bool) -> None:
    (_gelu_tanh if approximate else _gelu_erf)(out, x)


@into("GeluGrad")
def gelu_grad(out: Array, g: Array, x: Array, *, approximate: bool) -> None:
    (_gelu_tanh_grad if approximate else _gelu_erf_grad)(out, g, x)


def _gelu_tanh(out: Array, x: Array) -> None:
    """x / (1 + exp(-q)): NumPy's exp takes half the time of its tanh, and a division no more than a product."""
    t = apart(out, x, slot="a")
    np.multiply(x, x, t)
    _one_plus_exp(t, x, t)
    np.divide(x, t, out)


def _one_plus_exp(square: Array, x: Array, t: Array) -> None:
    """1 + exp(-q) into t, q the polynomial of the tanh formula."""
    np.multiply(square, constant(-GELU_CUBIC, t.dtype), t)
    np.subtract(t, constant(GELU_LINEAR, t.dtype), t)
    np.multiply(t, x, t)
    np.exp(t, t)
    np.add(t, constant(1, t.dtype), t)


def _gelu_tanh_grad(out: Array, g: Array, x: Array) -> None:
    one, down = constant(1, out.dtype), apart(out, g, x, slot="d")
    square, up, t = (scratch(out.shape, out.dtype, slot) for slot in "abc")
    np.multiply(x, x, square)
    _one_plus_exp(square, x, up)
    np.divide(x, up, t)
    np.divide(one, up, up)
    np.subtract(one, up, down)
    np.multiply(down, t, t)
    np.multiply(square, constant(3 * GELU_CUBIC, out.dtype), square)
    np.add(square, constant(GELU_LINEAR, out.dtype), square)
    np.multiply(t, square, t)
    np.add(t, up, t)
    np.multiply(g, t, out)


def _gelu_erf(out: Array, x: Array) -> None:
    t = scratch(out.shape, out.dtype, "a")
    _erfc_of(x, t)
    np.multiply(x, constant(0.5, out.dtype), out)
    np.multiply(out, t, out)


def _erfc_of(x: Array, t: Array) -> None:
    np.multiply(x, constant(-SQRT_HALF, t.dtype), t)
    _special("erfc", t, t)


def _gelu_erf_grad(out: Array, g: Array, x: Array) -> None:
    density, t = scratch(out.shape, out.dtype, "a"), scratch(out.shape, out.dtype, "b")
    np.multiply(x, x, density)
    np.multiply(density, constant(-0.5, out.dtype), density)
    np.exp(density, density)
    np.multiply(density, constant(NORMAL_PEAK, out.dtype), density)
    np.multiply(density, x, density)
    _erfc_of(x, t)
    np.multiply(t, constant(0.5, out.dtype), t)
    np.add(density, t, t)
    np.multiply(g, t, out)
