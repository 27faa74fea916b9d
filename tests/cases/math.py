"""Rows for distgrad/ops/math.py and distgrad/ops/arithmetic.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.special

import distgrad as dg

from .case import Case, arr

INTS = np.array([[-3, 0, 2], [7, 5, -1]])
BOOLS = np.array([[True, False, True], [False, False, True]])
COMPLEX = arr(2, 3) + 1j * arr(2, 3, seed=1)
SPECIAL = np.array([0.0, -0.0, 1.5, -np.inf, np.inf, np.nan])


def away(*shape: int, low: float = 0.3, high: float = 2.0, seed: int = 0) -> Any:
    """Numbers of both signs that stay away from 0, where abs, sign and reciprocal are not smooth."""
    x = arr(*shape, low=low, high=high, seed=seed)
    return x * np.where(arr(*shape, seed=seed + 100) > 0, 1, -1)


def unary(f: Any, reference: Any, low: float = -2, high: float = 2, complex: bool = True, **more: Any) -> list[Case]:
    """A smooth function of one argument: a matrix, a 0-d and an empty array."""
    return [
        Case(f, (arr(2, 3, low=low, high=high),), reference, complex=complex, **more),
        Case(f, (arr(low=low, high=high),), reference, complex=complex, **more),
        Case(f, (np.zeros((0, 3)),), reference, **more),
    ]


def binary(f: Any, reference: Any, make: Any = arr, complex: bool = False, **more: Any) -> list[Case]:
    """A smooth function of two arguments: equal shapes, broadcasting both ways, scalars, and an empty array."""
    pairs = [
        (make(2, 3), make(2, 3, seed=1)),
        (make(2, 1, 3), make(4, 1, seed=1)),
        (make(3), make(seed=1)),
        (make(1, 1), make(2, 3, seed=1)),
        (make(0, 3), make(3, seed=1)),
    ]
    return [Case(f, pair, reference, complex=complex and pair[0].size > 0, **more) for pair in pairs]


def flat(f: Any, reference: Any, *inputs: Any) -> list[Case]:
    """A function without gradient on several inputs, each a tuple of arguments or one argument."""
    return [Case(f, x if isinstance(x, tuple) else (x,), reference, order=0) for x in inputs]


def constant(f: Any, reference: Any) -> list[Case]:
    """A step function, with zero gradients: a matrix, a 0-d and an empty array."""
    return [Case(f, (x,), reference) for x in (arr(2, 3), arr(), np.zeros((0, 3)))]


def positive(*shape: int, seed: int = 0) -> Any:
    return arr(*shape, low=0.3, seed=seed)


def comparison(f: Any, reference: Any) -> list[Case]:
    x = arr(2, 3)
    equal_or_not, special = (x, np.where(x > 0, x, 0)), (SPECIAL, SPECIAL[::-1])
    return flat(f, reference, equal_or_not, special, (x, arr(3)), (INTS, 2), (np.zeros((0, 2)), 1.0), (x + 1j, x))


def logic(f: Any, reference: Any) -> list[Case]:
    empty = np.zeros((0, 3))
    return flat(f, reference, (BOOLS, BOOLS[:1]), (INTS, BOOLS), (arr(2, 3), np.bool_(True)), (empty, BOOLS[0]))


CASES: dict[str, list[Case]] = {
    # arithmetic
    "Add": [*binary(dg.add, np.add, complex=True), Case(lambda x: 1 + x, (arr(3),), lambda x: 1 + x)],
    "Sub": [*binary(dg.subtract, np.subtract, complex=True), Case(lambda x: 1 - x, (arr(3),), lambda x: 1 - x)],
    "Mul": [*binary(dg.multiply, np.multiply, complex=True), Case(lambda x: x * x, (arr(3),), lambda x: x * x)],
    "Div": [*binary(dg.divide, np.divide, away, complex=True), *flat(dg.divide, np.divide, (INTS, 2), (SPECIAL, 0.0))],
    "FloorDiv": flat(dg.floor_divide, np.floor_divide, (arr(2, 3), away(3)), (INTS, 2), (INTS, -2), (arr(0, 3), 2.0)),
    "Mod": [
        Case(dg.remainder, (np.array([2.5, -2.5, 3.75]), np.array([1.5, 2.0, -2.0])), np.remainder),
        Case(dg.remainder, (np.array([[2.5], [-2.5]]), np.array([1.5, 2.0, -0.7])), np.remainder),
        Case(dg.remainder, (np.zeros((0, 3)), np.array([1.5, 2.0, -0.7])), np.remainder),
        *flat(dg.remainder, np.remainder, (INTS, 3), (INTS, -3)),
    ],
    "Maximum": [
        *binary(dg.maximum, np.maximum),
        *flat(dg.maximum, np.maximum, (INTS, 1), (SPECIAL, SPECIAL[::-1])),
        Case(lambda x: dg.clip(x, -0.5, None), (arr(2, 3),), lambda x: np.clip(x, -0.5, None)),
    ],
    "Minimum": [
        *binary(dg.minimum, np.minimum),
        *flat(dg.minimum, np.minimum, (INTS, 1), (SPECIAL, SPECIAL[::-1])),
        Case(lambda x: dg.clip(x, -0.5, 0.7), (arr(2, 3),), lambda x: np.clip(x, -0.5, 0.7)),
    ],
    "Pow": [
        *binary(dg.power, np.power, positive, complex=True),
        Case(lambda x: x**3, (away(2, 3),), lambda x: x**3, complex=True),
        Case(lambda x: x**-0.5, (positive(3),), lambda x: x**-0.5, complex=True),
        Case(lambda y: 2**y, (arr(3),), lambda y: 2**y, complex=True),
        Case(lambda x: dg.power(x, np.float16([0, 1, 3, 4])), (arr(2, 4),), lambda x: x ** [0.0, 1.0, 3.0, 4.0]),
        Case(lambda x: dg.power(x, np.float16([1, 3, 4])), (np.zeros(3),), lambda x: x ** [1.0, 3.0, 4.0]),
        *flat(dg.power, np.power, (INTS, 3), (np.zeros(2), np.zeros(2))),
    ],
    "Neg": unary(dg.negative, np.negative),
    "Square": [*unary(dg.square, np.square), Case(lambda x: x**2, (arr(2, 3),), lambda x: x * x, complex=True)],
    "Reciprocal": unary(dg.reciprocal, np.reciprocal, 0.4),
    "Atan2": [*binary(dg.arctan2, np.arctan2, away), Case(dg.angle, (arr(3) + 1j * away(3),), np.angle)],
    "Hypot": [*binary(dg.hypot, np.hypot, away), *flat(dg.hypot, np.hypot, (1e30, np.array([1e30, 0.0])))],
    "LogAddExp": [
        *binary(dg.logaddexp, np.logaddexp),
        Case(dg.logaddexp, (arr(3), arr(3)), np.logaddexp),
        *flat(dg.logaddexp, np.logaddexp, (SPECIAL, -np.inf), (1e3, np.array([1e3, -1e3]))),
    ],
    "Fmax": [*binary(dg.fmax, np.fmax), *flat(dg.fmax, np.fmax, (INTS, 1), (SPECIAL, SPECIAL[::-1]))],
    "Fmin": [*binary(dg.fmin, np.fmin), *flat(dg.fmin, np.fmin, (INTS, 1), (SPECIAL, SPECIAL[::-1]))],
    "LogAddExp2": [
        *binary(dg.logaddexp2, np.logaddexp2),
        Case(dg.logaddexp2, (arr(3), arr(3)), np.logaddexp2),
        *flat(dg.logaddexp2, np.logaddexp2, (SPECIAL, -np.inf), (1e3, np.array([1e3, -1e3]))),
    ],
    "SignBit": flat(dg.signbit, np.signbit, SPECIAL, arr(2, 3), np.zeros((0, 3))),
    # comparison, logic, bits
    "Equal": comparison(dg.equal, np.equal),
    "NotEqual": comparison(dg.not_equal, np.not_equal),
    "Less": comparison(dg.less, np.less),
    "LessEqual": comparison(dg.less_equal, np.less_equal),
    "Greater": comparison(dg.greater, np.greater),
    "GreaterEqual": comparison(dg.greater_equal, np.greater_equal),
    "LogicalAnd": [
        *logic(dg.logical_and, np.logical_and),
        *flat(dg.isclose, np.isclose, (SPECIAL, SPECIAL), (np.array([1.0, 1.1]), 1.000001), (np.inf, SPECIAL)),
    ],
    "LogicalOr": logic(dg.logical_or, np.logical_or),
    "LogicalXor": logic(dg.logical_xor, np.logical_xor),
    "LogicalNot": flat(dg.logical_not, np.logical_not, BOOLS, INTS, SPECIAL, np.zeros((0, 3))),
    "IsNan": flat(dg.isnan, np.isnan, SPECIAL, SPECIAL + 1j, INTS, np.zeros((0, 3))),
    "IsInf": flat(dg.isinf, np.isinf, SPECIAL, SPECIAL + 1j, INTS, np.zeros((0, 3))),
    "IsFinite": flat(dg.isfinite, np.isfinite, SPECIAL, SPECIAL + 1j, INTS, np.zeros((0, 3))),
    "BitwiseAnd": flat(dg.bitwise_and, np.bitwise_and, (INTS, 3), (BOOLS, BOOLS[:1]), (INTS.astype("u1"), np.uint8(6))),
    "BitwiseOr": flat(dg.bitwise_or, np.bitwise_or, (INTS, 3), (BOOLS, BOOLS[:1])),
    "BitwiseXor": flat(dg.bitwise_xor, np.bitwise_xor, (INTS, 3), (BOOLS, BOOLS[:1])),
    "Invert": flat(dg.invert, np.invert, INTS, BOOLS, INTS.astype("uint8")),
    # exponentials and roots
    "Exp": unary(dg.exp, np.exp),
    "Exp2": unary(dg.exp2, np.exp2),
    "Expm1": unary(dg.expm1, np.expm1),
    "Log": unary(dg.log, np.log, 0.3),
    "Log2": unary(dg.log2, np.log2, 0.3),
    "Log10": unary(dg.log10, np.log10, 0.3),
    "Log1p": unary(dg.log1p, np.log1p, -0.6),
    "Sqrt": unary(dg.sqrt, np.sqrt, 0.3),
    "Rsqrt": unary(dg.rsqrt, lambda x: 1 / np.sqrt(x), 0.3),
    "Cbrt": [*unary(dg.cbrt, np.cbrt, 0.3, complex=False), Case(dg.cbrt, (away(2, 3),), np.cbrt)],
    "Sigmoid": [
        *unary(dg.sigmoid, lambda x: 1 / (1 + np.exp(-x))),
        *flat(dg.sigmoid, scipy.special.expit, np.array([-800.0, -40.0, 40.0, 800.0]), SPECIAL),
    ],
    # trigonometry
    "Sin": [*unary(dg.sin, np.sin), Case(dg.sinc, (np.array([-1.3, -0.02, 0.0, 0.01, 0.5]),), np.sinc, complex=True)],
    "Cos": unary(dg.cos, np.cos),
    "Tan": unary(dg.tan, np.tan, -1.0, 1.0),
    "Asin": unary(dg.arcsin, np.arcsin, -0.8, 0.8),
    "Acos": unary(dg.arccos, np.arccos, -0.8, 0.8),
    "Atan": unary(dg.arctan, np.arctan),
    "Sinh": unary(dg.sinh, np.sinh),
    "Cosh": unary(dg.cosh, np.cosh),
    "Tanh": unary(dg.tanh, np.tanh),
    "Asinh": unary(dg.arcsinh, np.arcsinh),
    "Acosh": unary(dg.arccosh, np.arccosh, 1.5, 4.0),
    "Atanh": unary(dg.arctanh, np.arctanh, -0.8, 0.8),
    # special functions
    "Erf": unary(dg.erf, scipy.special.erf, complex=False),
    "Erfc": unary(dg.erfc, scipy.special.erfc, complex=False),
    "Lgamma": [
        *unary(dg.lgamma, scipy.special.gammaln, 0.5, complex=False),
        Case(dg.lgamma, (np.array([-0.6, -1.4]),), scipy.special.gammaln),
    ],
    "Digamma": unary(dg.digamma, scipy.special.digamma, 0.5, complex=False),
    "Polygamma": [
        *unary(lambda x: dg.polygamma(1, x), lambda x: scipy.special.polygamma(1, x), 0.5, complex=False),
        Case(lambda x: dg.polygamma(0, x), (positive(3),), lambda x: scipy.special.polygamma(0, x)),
        Case(lambda x: dg.polygamma(3, x), (arr(3, low=1.0),), lambda x: scipy.special.polygamma(3, x)),
    ],
    # rounding, sign, complex parts
    "Floor": [*constant(dg.floor, np.floor), *flat(dg.floor, np.floor, SPECIAL, INTS)],
    "Ceil": [*constant(dg.ceil, np.ceil), *flat(dg.ceil, np.ceil, SPECIAL, INTS)],
    "Trunc": [*constant(dg.trunc, np.trunc), *constant(dg.fix, np.fix), *flat(dg.trunc, np.trunc, SPECIAL, INTS)],
    "Rint": [
        *constant(dg.rint, np.rint),
        *flat(dg.rint, np.rint, np.array([0.5, 1.5, -0.5]), INTS, arr(3) + 2.5j),
        *flat(lambda x: dg.round(x, 2), lambda x: np.round(x, 2), arr(2, 3)),
        *flat(lambda x: dg.round(x, -1), lambda x: np.round(x, -1), arr(2, 3) * 20, np.array([15, 25, -37])),
    ],
    "Sign": [
        *[Case(dg.sign, (away(*shape),), np.sign, complex=True) for shape in ((2, 3), (), (0, 3))],
        *flat(dg.sign, np.sign, INTS, SPECIAL),
    ],
    "Abs": [
        *[Case(dg.abs, (away(*shape),), np.abs, complex=True) for shape in ((2, 3), (), (0, 3))],
        *flat(dg.abs, np.abs, INTS, BOOLS, SPECIAL),
        *flat(dg.fabs, np.fabs, arr(2, 3), INTS),
    ],
    "Real": [Case(dg.real, (z,), np.real) for z in (COMPLEX, COMPLEX[0, 0], COMPLEX[:0])],
    "Imag": [Case(dg.imag, (z,), np.imag) for z in (COMPLEX, COMPLEX[0, 0], COMPLEX[:0])],
    "Conj": [Case(dg.conj, (z,), np.conj) for z in (COMPLEX, COMPLEX[0, 0], COMPLEX[:0])],
    # choosing and casting
    "Select": [
        Case(dg.where, (BOOLS, arr(2, 3), arr(2, 3, seed=1)), np.where, complex=True),
        Case(dg.where, (BOOLS[:, :1], arr(3), arr(4, 1, 1)), np.where),
        Case(dg.where, (np.bool_(True), arr(), arr(0, 2)), np.where),
        Case(lambda x: dg.where(x > 0, x, 0), (arr(2, 3),), lambda x: np.where(x > 0, x, 0)),
        *flat(dg.where, np.where, (INTS, arr(2, 3), INTS.astype("i1"))),
        *flat(dg.nan_to_num, np.nan_to_num, SPECIAL[[0, 2, 5]], SPECIAL[[2, 5]] + 1j),
        *flat(lambda x: dg.nan_to_num(x, 1.0, 2.0, 3.0), lambda x: np.nan_to_num(x, True, 1.0, 2.0, 3.0), SPECIAL),
    ],
    "Cast": [
        Case(lambda x: dg.cast(x, "complex128"), (arr(2, 3),), lambda x: x.astype(complex), float32=False),
        Case(lambda x: dg.cast(x, "complex128"), (arr(),), lambda x: x.astype(complex), float32=False),
        Case(lambda x: dg.cast(x, "complex128"), (arr(0, 3),), lambda x: x.astype(complex), float32=False),
        Case(lambda x: dg.cast(x, "float64"), (COMPLEX,), np.real, float32=False),
        Case(lambda x: dg.cast(x, "int64"), (arr(),), lambda x: x.astype("int64"), order=0),
        Case(lambda x: dg.cast(x, "bool"), (np.array([0j, 1j, 1.0]),), lambda x: x.astype(bool), order=0),
        Case(lambda x: dg.cast(x, "int32"), (arr(2, 3),), lambda x: x.astype("int32"), order=0),
        Case(lambda x: dg.cast(x, "float32"), (INTS,), lambda x: x.astype("float32"), order=0),
        Case(lambda x: dg.cast(x, "int8"), (np.zeros((0, 3)),), lambda x: x.astype("int8"), order=0),
    ],
}
