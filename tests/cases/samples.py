"""Rows for the functions on samples, sorted values and shapes that are made of other ops."""

from __future__ import annotations

from typing import Any

import numpy as np

import distgrad as dg

from .case import Case, apart, arr, same_name
from .math import BOOLS, SPECIAL, away, flat

I = np.array
SORTED = I([-1.5, 0.0, 0.5, 2.0])


def weighted(function: str, x: Any, weights: Any, **options: Any) -> Case:
    def run(module: Any) -> Any:
        return lambda x, w: getattr(module, function)(x, weights=w, **options)

    return Case(run(dg), (x, weights), run(np), float32=False)


def cov(x: Any, weights: Any, **options: Any) -> Case:
    return Case(
        lambda x, w: dg.cov(x, aweights=w, **options),
        (x, weights),
        lambda x, w: np.cov(x, aweights=w, **options),
        float32=False,
    )


def of_conditions(f: Any) -> Any:
    return lambda p, q, x, y, z: f([p, q], [x, y], z)


def bincount(x: Any, w: Any) -> Case:
    return Case(lambda x, w: dg.bincount(x, w, length=5), (x, w), lambda x, w: np.bincount(x, w, 5), float32=False)


def insert(obj: Any, axis: int | None, a: Any, values: Any) -> Case:
    return Case(
        lambda a, v: dg.insert(a, obj, v, axis), (a, values), lambda a, v: np.insert(a, obj, v, axis), complex=True
    )


#: Ops.
CASES: dict[str, list[Case]] = {
    "SearchSorted": [
        *flat(dg.searchsorted, np.searchsorted, (SORTED, arr(2, 3)), (SORTED, arr()), (SORTED, np.zeros((0, 2)))),
        *flat(
            lambda a, v: dg.searchsorted(a, v, "right"),
            lambda a, v: np.searchsorted(a, v, "right"),
            (SORTED, SORTED),
            (I([1, 1, 3]), I([[0, 1], [2, 3]])),
        ),
    ],
}

COMPOSED: dict[str, list[Case]] = {
    # statistics
    "cov": [
        same_name("cov", arr(3, 5), float32=False),
        same_name("cov", arr(5), float32=False),
        same_name("cov", arr(3, 5), arr(2, 5), float32=False),
        same_name("cov", arr(5, 3), rowvar=False, ddof=2, float32=False),
        same_name("cov", arr(3, 5), bias=True, fweights=I([1, 2, 1, 3, 1]), complex=False, float32=False),
        cov(arr(3, 5), arr(5, low=0.5)),
        cov(arr(3, 5), arr(5, low=0.5), ddof=0),
    ],
    "corrcoef": [
        same_name("corrcoef", arr(3, 5), complex=False, float32=False),
        same_name("corrcoef", arr(5), arr(5, seed=1), complex=False, float32=False),
        same_name("corrcoef", arr(5, 3), rowvar=False, complex=False, float32=False),
    ],
    "histogram": [
        same_name("histogram", arr(3, 4), bins=4, complex=False, order=0, float32=False, range=(-1, 1)),
        same_name("histogram", arr(30), bins=I([-1.0, 0.0, 0.5, 2.0]), complex=False, order=0, float32=False),
        same_name("histogram", I([1, 2, 2, 5]), bins=3, complex=False, order=0),
        same_name("histogram", np.zeros(0), bins=3, complex=False, order=0),
        weighted("histogram", I([0, 1, 2, 2, 3]), arr(5), bins=[0, 1, 2, 3]),
        weighted("histogram", I([0, 1, 2, 2, 3]), arr(5, low=0.5), bins=[0, 1, 3], density=True),
        weighted("histogram", apart(7), arr(7, low=0.5), bins=2, density=True),
    ],
    "histogram_bin_edges": [
        same_name("histogram_bin_edges", apart(3, 4), bins=4, complex=False, order=1),
        same_name("histogram_bin_edges", I([2.0, 2.0]), bins=2, complex=False, order=0),
    ],
    # sorted values
    "digitize": [
        *flat(lambda x: dg.digitize(x, SORTED), lambda x: np.digitize(x, SORTED), arr(2, 3), SORTED),
        *flat(lambda x: dg.digitize(x, SORTED, True), lambda x: np.digitize(x, SORTED, True), SORTED),
        *flat(lambda x: dg.digitize(x, SORTED[::-1]), lambda x: np.digitize(x, SORTED[::-1]), arr(4), SORTED),
    ],
    "bincount": [
        *flat(lambda x: dg.bincount(x, length=5), lambda x: np.bincount(x, minlength=5), I([0, 1, 1, 4])),
        bincount(I([0, 1, 1, 4]), arr(4)),
    ],
    "interp": [
        Case(dg.interp, (arr(2, 3), SORTED, arr(4)), np.interp, float32=False),
        Case(dg.interp, (arr(), SORTED, arr(4)), np.interp, float32=False),
        Case(dg.interp, (I([-9.0, 9.0]), SORTED, arr(4)), np.interp, float32=False),
        Case(dg.interp, (arr(3), SORTED[:1], arr(1)), np.interp, float32=False),
        Case(
            lambda x, xp, fp: dg.interp(x, xp, fp, left=1.5, right=2),
            (I([-9.0, 0.25, 9.0]), SORTED, arr(4)),
            lambda x, xp, fp: np.interp(x, xp, fp, 1.5, 2),
            float32=False,
        ),
        Case(
            lambda x, xp, fp: dg.interp(x, xp, fp, period=3.0),
            (I([0.4, 1.3, 5.4, -0.6]), I([0.1, -1.0, 3.9, 2.6]), arr(4, seed=2)),
            lambda x, xp, fp: np.interp(x, xp, fp, period=3.0),
            float32=False,
        ),
    ],
    "partition": [
        Case(lambda x: dg.partition(x, 1), (apart(4, 3),), lambda x: np.sort(x)),
        Case(lambda x: dg.partition(x, (0, 2), axis=0), (apart(4, 3),), lambda x: np.sort(x, 0)),
        Case(lambda x: dg.partition(x, -1, axis=None), (apart(2, 2),), lambda x: np.sort(x, None)),
    ],
    "argpartition": flat(lambda x: dg.argpartition(x, 1), lambda x: np.argsort(x), apart(4, 3)),
    # elementwise
    "copysign": [
        Case(dg.copysign, (away(2, 3), away(3, seed=1)), np.copysign),
        *flat(dg.copysign, np.copysign, (I([3.0]), SPECIAL)),
    ],
    "float_power": [Case(dg.float_power, (arr(2, 3, low=0.5), arr(3)), np.float_power, float32=False, complex=True)],
    "fmod": [
        Case(dg.fmod, (I([2.5, -2.5, 3.75]), I([1.5, 2.0, -2.0])), np.fmod),
        *flat(dg.fmod, np.fmod, (I([7, -7, 5]), I([3, 3, -4])), (I([7, 5], "u1"), I([3, 4], "u1"))),
    ],
    "heaviside": [
        Case(dg.heaviside, (SPECIAL[:5], arr(5)), np.heaviside, order=0),
        *flat(dg.heaviside, np.heaviside, (SPECIAL, 0.5)),
    ],
    "iscomplex": flat(dg.iscomplex, np.iscomplex, I([1 + 1j, 1]), arr(2, 3)),
    "isreal": flat(dg.isreal, np.isreal, I([1 + 1j, 1]), arr(2, 3)),
    "isposinf": flat(dg.isposinf, np.isposinf, SPECIAL),
    "isneginf": flat(dg.isneginf, np.isneginf, SPECIAL),
    "ldexp": [Case(dg.ldexp, (arr(2, 3), I([1, -2, 3])), np.ldexp)],
    "modf": [Case(lambda x: dg.modf(x)[0], (away(2, 3),), lambda x: np.modf(x)[0]), *flat(dg.modf, np.modf, SPECIAL)],
    "select": [
        Case(
            of_conditions(dg.select),
            (BOOLS, ~BOOLS[:1], arr(2, 3), arr(3), arr()),
            of_conditions(np.select),
            complex=True,
        ),
        Case(of_conditions(dg.select), (BOOLS[:0], BOOLS[:0], arr(0, 3), arr(3), arr()), of_conditions(np.select)),
        *flat(lambda p, x: dg.select([p], [x], 1), lambda p, x: np.select([p], [x], 1), (BOOLS, I([1, 2, 3]))),
    ],
    "piecewise": [
        Case(
            lambda x: dg.piecewise(x, [x < 0, x > 1], [lambda x: x**3, 2.5, lambda x: -x]),
            (arr(2, 4),),
            lambda x: np.piecewise(x, [x < 0, x > 1], [lambda x: x**3, 2.5, lambda x: -x]),
        ),
        Case(
            lambda x: dg.piecewise(x, [x < 0], [lambda x, k: x * k], 3),
            (arr(4),),
            lambda x: np.piecewise(x, [x < 0], [lambda x, k: x * k], 3),
        ),
    ],
    # shapes
    "append": [
        same_name("append", arr(2, 3), arr(1, 3), axis=0),
        same_name("append", arr(2, 3), arr(2)),
    ],
    "atleast_3d": [same_name("atleast_3d", arr(), arr(3), arr(2, 3), arr(2, 3, 4)), same_name("atleast_3d", arr(0))],
    "block": [
        Case(
            lambda a, b, c: dg.block([[a, b], [c]]),
            (arr(2, 2), arr(2, 1), arr(1, 3)),
            lambda a, b, c: np.block([[a, b], [c]]),
            complex=True,
        ),
        Case(lambda a, b: dg.block([a, b]), (arr(), arr(2)), lambda a, b: np.block([a, b])),
    ],
    "delete": [
        same_name("delete", arr(4, 3), obj=[0, -1], axis=0),
        same_name("delete", arr(2, 3), obj=slice(1, 4)),
        same_name("delete", arr(2, 3), obj=1, axis=1),
        same_name("delete", arr(3), obj=[True, False, True]),
    ],
    "insert": [
        insert(1, 1, arr(2, 3), arr(2)),
        insert(1, 1, arr(2, 3), arr()),
        insert([1], 1, arr(2, 3), arr(2, 1)),
        insert([1, 3], 0, arr(3, 2), arr(2, 2)),
        insert([3, 0, 0], None, arr(2, 2), arr(3)),
        insert(-1, 0, arr(3, 2), arr(2)),
        insert(0, 0, arr(0), arr()),
    ],
    "diagflat": [same_name("diagflat", arr(2, 2)), same_name("diagflat", arr(3), k=-1)],
    "hsplit": [
        same_name("hsplit", arr(2, 4), indices_or_sections=2),
        same_name("hsplit", arr(4), indices_or_sections=[1]),
    ],
    "vsplit": [same_name("vsplit", arr(4, 2), indices_or_sections=2)],
    "dsplit": [same_name("dsplit", arr(2, 2, 4), indices_or_sections=[1, 3])],
    "rollaxis": [
        same_name("rollaxis", arr(2, 3, 4), axis=axis, start=start)
        for axis, start in ((0, 3), (2, 0), (1, -1), (-1, 1), (1, 1))
    ],
    "vander": [
        same_name("vander", away(3), float32=False),
        same_name("vander", away(3), N=4, increasing=True, float32=False),
        *flat(dg.vander, np.vander, I([2, 3])),
    ],
}
