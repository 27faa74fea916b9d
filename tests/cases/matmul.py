"""Rows for distgrad/ops/matrix/matmul.py and distgrad/ops/matrix/einsum.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import distgrad as dg

from .case import Case, arr


def product(a: Any, b: Any, order: int = 2) -> Case:
    return Case(dg.matmul, (a, b), np.matmul, order, complex=a.dtype.kind == "f")


def flagged(a: Any, b: Any, transpose_a: bool, transpose_b: bool) -> Case:
    def reference(a: Any, b: Any) -> Any:
        return (np.swapaxes(a, -1, -2) if transpose_a else a) @ (np.swapaxes(b, -1, -2) if transpose_b else b)

    return Case(lambda a, b: dg.matmul(a, b, transpose_a, transpose_b), (a, b), reference, complex=True)


def same_name(name: str, *inputs: Any, **options: Any) -> Case:
    """A function of distgrad against NumPy's of the same name."""

    def run(module: Any) -> Callable[..., Any]:
        return lambda *xs: getattr(module, name)(*xs, **options)

    return Case(run(dg), inputs, run(np), complex=True)


def einsum(subscripts: str, *inputs: Any, order: int = 2, **options: Any) -> Case:
    return Case(
        lambda *xs: dg.einsum(subscripts, *xs, **options),
        inputs,
        lambda *xs: np.einsum(subscripts, *xs),
        order,
        complex=inputs[0].dtype.kind == "f",
    )


CASES: dict[str, list[Case]] = {
    "MatMul": [
        product(arr(2, 3), arr(3, 4)),
        product(arr(3), arr(3)),
        product(arr(3), arr(3, 4)),
        product(arr(2, 3), arr(3)),
        product(arr(3), arr(2, 3, 4)),
        product(arr(2, 4, 3), arr(3)),
        product(arr(2, 5, 3), arr(3, 4)),
        product(arr(2, 3), arr(5, 3, 4)),
        product(arr(2, 2, 3), arr(2, 3, 4)),
        product(arr(3, 1, 2, 3), arr(2, 3, 4)),
        product(arr(1, 2, 3), arr(5, 3, 1)),
        product(arr(2, 0), arr(0, 3)),
        product(arr(0, 2), arr(2, 3)),
        product(arr(0, 2, 3), arr(3, 2)),
        product(np.arange(6).reshape(2, 3), np.arange(12).reshape(3, 4), order=0),
        product(np.eye(3, dtype=bool), np.ones((3, 2), bool), order=0),
        flagged(arr(3, 2), arr(3, 4), True, False),
        flagged(arr(2, 3), arr(4, 3), False, True),
        flagged(arr(3, 2), arr(4, 3), True, True),
        flagged(arr(2, 3, 5), arr(3, 4), True, False),
        flagged(arr(2, 5, 3), arr(4, 3), False, True),
        flagged(arr(2, 3, 5), arr(4, 3), True, True),
        flagged(arr(3, 5), arr(2, 1, 4, 3), True, True),
        same_name("dot", arr(3), arr(3)),
        same_name("dot", arr(2, 3), arr(3, 4)),
        same_name("dot", arr(2, 4, 3), arr(3)),
        same_name("dot", arr(5, 2, 3), arr(3, 4)),
        same_name("dot", arr(3), arr(3, 4)),
        same_name("inner", arr(3), arr(5, 3)),
        same_name("vdot", arr(2, 3), arr(3, 2)),
        same_name("inner", arr(2, 4, 3), arr(3)),
        same_name("inner", arr(2, 4, 3), arr(5, 3)),
    ],
    "Einsum": [
        einsum("ij,jk->ik", arr(2, 3), arr(3, 4)),
        einsum("ij,jk", arr(2, 3), arr(3, 4)),
        einsum("ba,b", arr(2, 3), arr(2)),
        einsum("ij->", arr(2, 3)),
        einsum("ij->j", arr(2, 3)),
        einsum("ii", arr(3, 3)),
        einsum("iij->ji", arr(3, 3, 2)),
        einsum("iiijj->ij", arr(2, 2, 2, 3, 3)),
        einsum("ijij->", arr(2, 3, 2, 3)),
        einsum("ii,i->i", arr(3, 3), arr(3)),
        einsum("ii,jj->ij", arr(2, 2), arr(3, 3)),
        einsum("i,j->ji", arr(2), arr(3)),
        einsum("i,i->i", arr(3), arr(3)),
        einsum("ij,kl->il", arr(2, 3), arr(4, 5)),
        einsum("bij,bjk->bik", arr(2, 3, 4), arr(2, 4, 5)),
        einsum("bhid,bhjd->bijh", arr(2, 3, 4, 5), arr(2, 3, 2, 5)),
        einsum("abc,cb->a", arr(2, 3, 4), arr(4, 3)),
        einsum("...ij,...jk->...ik", arr(2, 1, 3, 4), arr(5, 4, 2)),
        einsum("...ij,jk", arr(2, 3, 4), arr(4, 2)),
        einsum("i...,i...->...", arr(3, 2, 4), arr(3, 1, 4)),
        einsum("B...a,A", arr(2, 3, 4), arr(5)),
        einsum("ij,ij->ij", arr(1, 3), arr(2, 3)),
        einsum("ij,jk", arr(2, 1), arr(3, 4)),
        einsum("ii,i->i", arr(1, 1), arr(3)),
        einsum("i j, j -> i", arr(2, 3), arr(3)),
        einsum("i,,i", arr(3), arr(), arr(3)),
        einsum(",->", arr(), arr()),
        einsum("ij,jk,kl->il", arr(2, 3), arr(3, 4), arr(4, 2)),
        einsum("ij,jk,kl,li", arr(2, 3), arr(3, 4), arr(4, 5), arr(5, 2), optimize="optimal"),
        einsum("i,ij,j,jk->k", arr(2), arr(2, 3), arr(3), arr(3, 4), optimize=False),
        einsum("ij,jk,kl->il", arr(2, 3), arr(3, 4), arr(4, 2), optimize=["einsum_path", (0, 1), (0, 1)]),
        einsum("ij,jk->ik", arr(2, 0), arr(0, 3)),
        einsum("ij,jk->ik", arr(0, 2), arr(2, 3)),
        einsum("ij->j", arr(0, 3)),
        einsum("ij,jk->ik", np.arange(6).reshape(2, 3), np.arange(12).reshape(3, 4), order=0),
        einsum("ij->i", np.arange(6, dtype=np.int32).reshape(2, 3), order=0),
        einsum("ij,jk->i", np.eye(3, dtype=bool), np.ones((3, 2), bool), order=0),
        Case(
            lambda a, b: dg.einsum(a, [0, ..., 1], b, [1, 2], [..., 2, 0]),
            (arr(2, 3, 4), arr(4, 5)),
            lambda a, b: np.einsum(a, [0, ..., 1], b, [1, 2], [..., 2, 0]),
        ),
        same_name("dot", arr(2, 3), arr(2, 3, 4)),
        same_name("inner", arr(2, 3), arr(4, 2, 3)),
        same_name("tensordot", arr(2, 3, 4), arr(3, 4, 5)),
        same_name("tensordot", arr(2, 3), arr(4), axes=0),
        same_name("tensordot", arr(2, 3, 4), arr(5, 4, 2), axes=([0, -1], [2, 1])),
        same_name("tensordot", arr(2, 3), arr(3, 2), axes=(1, 0)),
    ],
}
