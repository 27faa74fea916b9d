"""Whole plans on other array libraries than NumPy: every row of the op table with its gradients, through a session."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import pytest

import distgrad as dg

from ..cases.case import Case
from ..ops.test_op_table import rows
from ..workers.test_local_engine import with_gradients

BACKENDS = [
    "array-api-strict",
    pytest.param("torch", marks=pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="no torch here")),
]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", rows())
def test_a_row_and_its_gradients_are_numpys(case: Case, backend: str) -> None:
    inputs = [np.asarray(x) for x in case.inputs]
    if backend == "array-api-strict" and any(x.dtype == np.float16 for x in inputs):
        pytest.skip("the standard has no float16")
    with dg.Graph():
        xs = [dg.placeholder(x.shape, x.dtype) for x in inputs]
        fetches = with_gradients(case, xs)
    feeds: Any = dict(zip(xs, inputs, strict=True))
    expected = dg.Session(threads=1).run(fetches, feeds)
    for x, y in zip(dg.Session(threads=1, backend=backend).run(fetches, feeds), expected, strict=True):
        assert (type(x), x.shape, x.dtype) == (np.ndarray, y.shape, y.dtype)
        if y.dtype.kind in "fc":
            scale = np.abs(y[np.isfinite(y)]).max(initial=1)
            np.testing.assert_allclose(x, y, rtol=1e-6, atol=1e-6 * scale)
        else:
            np.testing.assert_array_equal(x, y)
