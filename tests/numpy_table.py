"""Every NumPy function that records ops: one example each, which is a test and a row of docs/numpy.md.

Knows neither pytest nor distgrad, so that docs/make_numpy.py can read it too.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np


def _numbers(*shape: int, low: float = -2.0, high: float = 2.0) -> Any:
    """Numbers between low and high that all differ, in an order that is not sorted, and are not near an integer."""
    count = int(np.prod(shape))
    places = np.arange(count) * 7 % count if count % 7 else np.arange(count)[::-1]
    return (low + (high - low) * (places + 0.43) / count).reshape(shape)


#: What the examples compute with.
ARRAYS: dict[str, Any] = {
    "x": _numbers(2, 3),
    "y": _numbers(2, 3, low=-1.7, high=1.9)[::-1],
    "pos": _numbers(2, 3, low=0.3, high=3.0),
    "unit": _numbers(2, 3, low=-0.9, high=0.9),
    "big": _numbers(2, 3, low=1.1, high=4.0),
    "v": _numbers(3),
    "u": _numbers(3, low=-1.0, high=1.5)[::-1],
    "w": _numbers(3, 4),
    "m": _numbers(3, 3) * 0.3 + np.diag([1.5, 3.0, 5.0]),
    "cube": _numbers(2, 3, 4),
    "z": _numbers(2, 3) + 1j * _numbers(2, 3, low=-1.0)[::-1],
    "i": np.array([[3, -1, 4], [-1, 5, 9]]),
    "k": np.array([2, 0]),
    "p": np.array([[True, False, True], [False, False, True]]),
    "q": np.array([[True, True, False], [False, True, True]]),
}


@dataclass(frozen=True)
class Row:
    """One supported function: an example in NumPy's words, and up to which order gradients flow."""

    example: str
    #: Orders of gradients that are compared with finite differences; 0 where there is no gradient.
    order: int = 2
    remark: str = ""

    @property
    def path(self) -> str:
        """The function's name below `numpy`, such as 'linalg.inv' or 'add.reduce'."""
        return self.example.partition("(")[0].removeprefix("np.")

    @cached_property
    def inputs(self) -> dict[str, Any]:
        """The arrays that the example names."""
        names = compile(self.example, self.example, "eval").co_names
        return {name: ARRAYS[name] for name in names if name in ARRAYS}

    def run(self, **values: Any) -> Any:
        """The example's value, on arrays or tensors in place of its inputs."""
        return eval(self.example, {"np": np}, {**self.inputs, **values})


def _outer(name: str) -> Row:
    """The outer product by a function of two arguments."""
    integers = {"bitwise_and": "i, k", "bitwise_or": "i, k", "bitwise_xor": "i, k", "ldexp": "v, k"}
    logic = {"logical_and": "p, q[0]", "logical_or": "p, q[0]", "logical_xor": "p, q[0]"}
    steps = {"copysign": "v, u", "heaviside": "v, u"}
    given = {**integers, **logic, **steps, "float_power": "pos, u", "power": "pos, u", "divide": "v, pos"}
    flat = {*integers, *logic, "floor_divide"} - {"ldexp"}
    without = name in flat or "equal" in name or name in ("less", "greater")
    return Row(f"np.{name}.outer({given.get(name, 'v, u')})", 0 if without else 2)


#: Functions of two arguments, each with a method `outer`.
_PAIRS = (
    "add subtract multiply divide power floor_divide remainder maximum minimum fmax fmin hypot arctan2 logaddexp "
    "logaddexp2 copysign fmod heaviside float_power ldexp equal not_equal less less_equal greater greater_equal "
    "logical_and logical_or logical_xor bitwise_and bitwise_or bitwise_xor"
)

_STATIC = "known while the graph is built, so not a tensor"
_FLAT = "flat almost everywhere"

ROWS = (
    # arithmetic
    Row("np.add(x, y)"),
    Row("np.subtract(x, v)"),
    Row("np.multiply(x, v)"),
    Row("np.divide(x, pos)"),
    Row("np.floor_divide(x, pos)", 0, _FLAT),
    Row("np.remainder(x, pos)"),
    Row("np.divmod(x, pos)"),
    Row("np.power(pos, x)"),
    Row("np.negative(x)"),
    Row("np.positive(x)"),
    Row("np.reciprocal(pos)"),
    Row("np.square(x)"),
    Row("np.abs(x)"),
    Row("np.fabs(x)"),
    Row("np.sign(x)", 2, "its gradient is zero"),
    Row("np.maximum(x, y)", 2, "a tie gives its gradient to the first"),
    Row("np.minimum(x, y)", 2, "a tie gives its gradient to the first"),
    Row("np.hypot(x, y)"),
    Row("np.fmax(x, y)", 2, "a tie gives its gradient to the first"),
    Row("np.fmin(x, y)", 2, "a tie gives its gradient to the first"),
    Row("np.fmod(x, pos)"),
    Row("np.float_power(pos, x)"),
    Row("np.copysign(x, y)"),
    Row("np.heaviside(x, y)", 2, "its gradient is zero where x is not"),
    Row("np.signbit(x)", 0),
    Row("np.ldexp(v, k[:1])"),
    Row("np.modf(x)"),
    Row("np.clip(x, -1.0, 1.0)"),
    Row("np.nan_to_num(x)"),
    # exponentials, trigonometry
    Row("np.exp(x)"),
    Row("np.exp2(x)"),
    Row("np.expm1(x)"),
    Row("np.log(pos)"),
    Row("np.log2(pos)"),
    Row("np.log10(pos)"),
    Row("np.log1p(pos)"),
    Row("np.logaddexp(x, y)"),
    Row("np.logaddexp2(x, y)"),
    Row("np.sqrt(pos)"),
    Row("np.cbrt(pos)"),
    Row("np.sin(x)"),
    Row("np.cos(x)"),
    Row("np.tan(unit)"),
    Row("np.arcsin(unit)"),
    Row("np.arccos(unit)"),
    Row("np.arctan(x)"),
    Row("np.arctan2(x, y)"),
    Row("np.sinh(x)"),
    Row("np.cosh(x)"),
    Row("np.tanh(x)"),
    Row("np.arcsinh(x)"),
    Row("np.arccosh(big)"),
    Row("np.arctanh(unit)"),
    Row("np.deg2rad(x)"),
    Row("np.radians(x)"),
    Row("np.rad2deg(x)"),
    Row("np.degrees(x)"),
    Row("np.sinc(x)"),
    # rounding
    Row("np.floor(x)", 0, _FLAT),
    Row("np.ceil(x)", 0, _FLAT),
    Row("np.rint(x)", 0, _FLAT),
    Row("np.trunc(x)", 0, _FLAT),
    Row("np.fix(x)", 0, _FLAT),
    Row("np.round(x, 1)", 0, _FLAT),
    Row("np.around(x, decimals=1)", 0, _FLAT),
    # complex numbers
    Row("np.real(z)"),
    Row("np.imag(z)"),
    Row("np.conj(z)"),
    Row("np.angle(z)"),
    # comparison and logic
    Row("np.equal(x, y)", 0),
    Row("np.not_equal(x, y)", 0),
    Row("np.less(x, y)", 0),
    Row("np.less_equal(x, y)", 0),
    Row("np.greater(x, y)", 0),
    Row("np.greater_equal(x, y)", 0),
    Row("np.logical_and(p, q)", 0),
    Row("np.logical_or(p, q)", 0),
    Row("np.logical_xor(p, q)", 0),
    Row("np.logical_not(p)", 0),
    Row("np.bitwise_and(p, q)", 0),
    Row("np.bitwise_or(p, q)", 0),
    Row("np.bitwise_xor(p, q)", 0),
    Row("np.invert(p)", 0),
    Row("np.isfinite(x)", 0),
    Row("np.isinf(x)", 0),
    Row("np.isnan(x)", 0),
    Row("np.iscomplex(z)", 0),
    Row("np.isreal(z)", 0),
    Row("np.isposinf(x)", 0),
    Row("np.isneginf(x)", 0),
    Row("np.isclose(x, y, atol=1.0)", 0),
    Row("np.allclose(x, y)", 0, "a tensor, not a bool"),
    Row("np.where(p, x, y)", 2, "with three arguments"),
    Row("np.select([p, q], [x, y], 1.5)"),
    Row("np.piecewise(x, [x < 0, x > 1], [np.exp, 2.0, np.negative])", 2, "each function is called with all of x"),
    # samples
    Row("np.cov(x, aweights=pos[0])"),
    Row("np.corrcoef(x, y)"),
    Row("np.histogram(v, bins=4, range=(-2, 2), weights=pos[0])", 1, "a number of bins, or edges"),
    Row("np.histogram_bin_edges(x, bins=4)"),
    Row("np.searchsorted(np.array([-1.0, 0.5]), x)", 0),
    Row("np.digitize(x, np.array([-1.0, 0.5]))", 0),
    Row("np.bincount(k, minlength=4)", 0, "minlength is the length of the result"),
    Row("np.interp(x, np.array([-3.0, 0.2, 3.0]), v)"),
    Row("np.gradient(cube, 0.5, axis=1)"),
    # reductions
    Row("np.sum(x, axis=0)"),
    Row("np.prod(x, axis=-1, keepdims=True)"),
    Row("np.mean(x, axis=(0, 1))"),
    Row("np.var(x, axis=1, ddof=1)"),
    Row("np.std(x, axis=1)", 2, "of equal elements its gradient is zero"),
    Row("np.average(x, axis=1, weights=pos)"),
    Row("np.nansum(x, axis=0)"),
    Row("np.nanmean(x, axis=0)"),
    Row("np.trapezoid(x, v)"),
    Row("np.linspace(u, v, 4)"),
    Row("np.diff(x, n=2)"),
    Row("np.max(x, axis=1)", 2, "equal elements share the gradient"),
    Row("np.min(x, axis=1)", 2, "equal elements share the gradient"),
    Row("np.amax(x)"),
    Row("np.amin(x)"),
    Row("np.ptp(x, axis=1)"),
    Row("np.median(x, axis=1)"),
    Row("np.argmax(x, axis=1)", 0),
    Row("np.argmin(x)", 0),
    Row("np.any(p, axis=0)", 0),
    Row("np.all(p, axis=0)", 0),
    Row("np.count_nonzero(i > 0, axis=1)", 0, "always a tensor"),
    Row("np.cumsum(x, axis=1)"),
    Row("np.cumprod(x, axis=1)"),
    Row("np.sort(x, axis=1)"),
    Row("np.argsort(x, axis=1)", 0),
    Row("np.partition(x, 1, axis=1)", 2, "sorted"),
    Row("np.argpartition(x, 1, axis=1)", 0, "sorted"),
    Row("np.add.reduce(x)"),
    Row("np.multiply.reduce(x, axis=1, keepdims=True)"),
    Row("np.maximum.reduce(x)"),
    Row("np.minimum.reduce(x, axis=None)"),
    Row("np.logical_and.reduce(p)", 0),
    Row("np.logical_or.reduce(p)", 0),
    Row("np.add.accumulate(x)"),
    Row("np.multiply.accumulate(x, axis=1)"),
    Row("np.subtract.reduce(x, axis=1)"),
    Row("np.divide.reduce(pos)"),
    Row("np.logaddexp.reduce(x, axis=1)"),
    Row("np.logaddexp2.reduce(x, axis=None)"),
    Row("np.hypot.reduce(x)"),
    Row("np.fmax.reduce(x)"),
    Row("np.fmin.reduce(x, axis=1)"),
    Row("np.subtract.accumulate(x)"),
    Row("np.divide.accumulate(pos, axis=1)"),
    Row("np.maximum.accumulate(x, axis=1)"),
    Row("np.minimum.accumulate(x, axis=1)"),
    Row("np.fmax.accumulate(x, axis=1)"),
    Row("np.fmin.accumulate(x, axis=1)"),
    Row("np.logaddexp.accumulate(x, axis=1)"),
    Row("np.logaddexp2.accumulate(x, axis=1)"),
    Row("np.hypot.accumulate(x, axis=1)"),
    Row("np.logical_and.accumulate(p, axis=1)", 0),
    Row("np.logical_or.accumulate(p, axis=1)", 0),
    *[_outer(name) for name in _PAIRS.split()],
    # products
    Row("np.matmul(x, w)"),
    Row("np.dot(x, w)"),
    Row("np.vdot(x, y)"),
    Row("np.vecdot(x, v)"),
    Row("np.cross(x, v)", 2, "of vectors with 3 elements"),
    Row("np.inner(x, y)"),
    Row("np.outer(v, u)"),
    Row("np.kron(v, u)"),
    Row("np.tensordot(cube, w, axes=([1, 2], [0, 1]))"),
    Row('np.einsum("ij,jk", x, w)', 2, "also with lists of labels; optimize= orders the products"),
    # shapes
    Row("np.reshape(x, (3, -1))", 2, "order 'C'"),
    Row("np.ravel(x)"),
    Row("np.transpose(cube, (2, 0, 1))"),
    Row("np.matrix_transpose(cube)"),
    Row("np.swapaxes(cube, 0, -1)"),
    Row("np.moveaxis(cube, 0, -1)"),
    Row("np.expand_dims(x, (0, -1))"),
    Row("np.squeeze(x[None])"),
    Row("np.atleast_1d(x, v)"),
    Row("np.atleast_2d(v)"),
    Row("np.atleast_3d(x)"),
    Row("np.rollaxis(cube, 2)"),
    Row("np.append(x, y, axis=1)"),
    Row("np.insert(x, 1, v[:2], axis=1)", 2, "static indices"),
    Row("np.delete(x, [0, 2], axis=1)", 2, "static indices"),
    Row("np.block([[x, y], [y, x]])"),
    Row("np.hsplit(x, 3)"),
    Row("np.vsplit(x, 2)"),
    Row("np.dsplit(cube, 2)"),
    Row("np.diagflat(x)"),
    Row("np.vander(v, 4)"),
    Row("np.broadcast_to(v, (2, 3))"),
    Row("np.concatenate([x, y], axis=1)"),
    Row("np.stack([x, y], axis=-1)"),
    Row("np.hstack([x, y])"),
    Row("np.vstack([x, v])"),
    Row("np.dstack([x, y])"),
    Row("np.column_stack([v, u])"),
    Row("np.broadcast_arrays(x, v)"),
    Row("np.split(x, 3, axis=1)"),
    Row("np.array_split(v, 2)"),
    Row("np.unstack(x, axis=1)", 2, "a list"),
    Row("np.tile(x, (2, 1))"),
    Row("np.repeat(x, 2, axis=0)"),
    Row("np.pad(x, ((1, 0), (0, 2)), constant_values=1.5)"),
    Row("np.flip(x, axis=1)"),
    Row("np.fliplr(x)"),
    Row("np.flipud(x)"),
    Row("np.roll(x, 1, axis=1)"),
    Row("np.rot90(x)"),
    Row("np.diag(v, k=1)"),
    Row("np.diagonal(m, offset=1)"),
    Row("np.trace(m)"),
    Row("np.tril(m)"),
    Row("np.triu(m, k=1)"),
    Row("np.meshgrid(v, u)"),
    Row("np.take(x, k, axis=1)"),
    Row("np.take_along_axis(x, np.argsort(x, axis=1), axis=1)"),
    Row("np.zeros_like(x)", 0),
    Row("np.ones_like(x)", 0),
    Row("np.empty_like(i)", 0, "zeros"),
    Row("np.full_like(x, 1.5)", 0),
    Row("np.copy(x)"),
    Row("np.astype(x, np.complex128)"),
    # linear algebra
    Row("np.linalg.cholesky(m + m.T)"),
    Row("np.linalg.det(m)"),
    Row("np.linalg.diagonal(cube, offset=1)"),
    Row("np.linalg.eigh(m + m.T)", 2, "distinct eigenvalues"),
    Row("np.linalg.eigvalsh(m + m.T)"),
    Row("np.linalg.inv(m)"),
    Row("np.linalg.matmul(x, w)"),
    Row("np.linalg.matrix_power(m, 3)"),
    Row("np.linalg.matrix_transpose(cube)"),
    Row("np.linalg.multi_dot([x, m, w])"),
    Row("np.linalg.norm(x, axis=1)"),
    Row("np.linalg.vector_norm(x, axis=1, ord=3)"),
    Row("np.linalg.matrix_norm(cube, ord=1)"),
    Row("np.linalg.vecdot(x, y)"),
    Row("np.linalg.cross(x, y)"),
    Row("np.linalg.outer(v, u)"),
    Row("np.linalg.pinv(x)"),
    Row("np.linalg.qr(m)", 2, "full rank"),
    Row("np.linalg.slogdet(m)"),
    Row("np.linalg.solve(m, v)"),
    Row("np.linalg.svd(m)", 2, "distinct singular values"),
    Row("np.linalg.svdvals(m)"),
    Row("np.linalg.tensordot(x, w, axes=1)"),
    Row("np.linalg.trace(cube[:, :2, :2])"),
    # Fourier transforms
    Row("np.fft.fft(x)"),
    Row("np.fft.ifft(z, n=4)"),
    Row('np.fft.rfft(x, norm="ortho")'),
    Row("np.fft.irfft(z, n=5)"),
    Row("np.fft.hfft(z)"),
    Row("np.fft.ihfft(x)"),
    Row("np.fft.fft2(cube)"),
    Row("np.fft.ifft2(cube)"),
    Row("np.fft.rfft2(cube)"),
    Row("np.fft.irfft2(cube)"),
    Row("np.fft.fftn(cube, axes=(0, 0, 2))", 2, "an axis may be named twice"),
    Row("np.fft.ifftn(cube)"),
    Row("np.fft.rfftn(cube)"),
    Row("np.fft.irfftn(cube, s=(2, 3, 5), axes=(0, 1, 2))"),
    Row("np.fft.fftshift(x, axes=1)"),
    Row("np.fft.ifftshift(x)"),
    # known while the graph is built
    Row("np.shape(x)", 0, _STATIC),
    Row("np.ndim(x)", 0, _STATIC),
    Row("np.size(x, 1)", 0, _STATIC),
    Row("np.result_type(x, np.float32)", 0, _STATIC),
    Row("np.iscomplexobj(z)", 0, _STATIC),
    Row("np.isrealobj(x)", 0, _STATIC),
)
