"""Native sums of rows by index: the bits of the plain kernels, for any number of threads."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distgrad.workers import native

if native.unusable():
    pytest.skip(f"native code: {native.unusable()}", allow_module_level=True)

from distgrad.errors import Source
from distgrad.scheduler.program import Step
from distgrad.types import Spec
from distgrad.workers.kernels import KERNELS
from distgrad.workers.native.kernels import scatter
from distgrad.workers.native.kernels.steps import native_step
from distgrad.workers.thread_pool import thread_pool

Array = np.ndarray[Any, np.dtype[Any]]


def made(op_type: str, inputs: list[Array], attrs: dict[str, Any], threads: int = 1) -> tuple[Array | None, Array]:
    """What native code computes, None if it does not serve it, and what the plain kernel does."""
    expected = KERNELS[op_type](np, *inputs, **attrs)
    types = [Spec(x.shape, x.dtype) for x in (*inputs, expected)]
    count = len(inputs)
    step = Step(op_type, tuple(range(count)), (count,), attrs, (), Source("test.py", 1, "f"), op_type)
    run = native_step(step, types, thread_pool(threads))
    return None if run is None else run(*inputs, np.full_like(expected, np.nan)), expected


def sums(
    rng: np.random.Generator, rows: int, width: tuple[int, ...], ids: Array, dtype: Any
) -> list[tuple[str, list[Array], dict[str, Any]]]:
    """The three ops that add rows by index."""
    values = rng.standard_normal((*ids.shape, *width)).astype(dtype)
    values[rng.uniform(size=values.shape) < 0.1] = -0.0
    x = rng.standard_normal((rows, *width)).astype(dtype)
    key = ("array", *[(0, n, 1) for n in width])
    return [
        ("UnsortedSegmentSum", [values, ids], {"num_segments": rows}),
        ("ScatterAdd", [x, ids, values], {}),
        ("AdvancedIndexGrad", [values, ids], {"index": key, "shape": x.shape}),
    ]


@settings(deadline=None)  # the first example compiles
@given(
    rows=st.integers(1, 9),
    width=st.lists(st.sampled_from([1, 3, 16, 17, 50]), max_size=2).map(tuple),
    count=st.lists(st.integers(1, 7), min_size=1, max_size=2).map(tuple),
    dtype=st.sampled_from([np.float32, np.float64]),
    kind=st.sampled_from([np.int32, np.int64, np.uint8]),
    threads=st.integers(1, 8),
)
def test_rows_are_added_with_the_bits_of_the_plain_kernels(
    rows: int, width: tuple[int, ...], count: tuple[int, ...], dtype: Any, kind: Any, threads: int
) -> None:
    rng = np.random.default_rng(rows)
    ids = rng.integers(0 if kind is np.uint8 else -rows, rows, count).astype(kind)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scatter, "SHARED", 0)
        for op_type, inputs, attrs in sums(rng, rows, width, ids, dtype):
            found, expected = made(op_type, inputs, attrs, threads)
            assert found is not None
            assert found.tobytes() == expected.tobytes(), op_type


def test_many_equal_indices_are_added_in_order() -> None:
    rng = np.random.default_rng(0)
    for op_type, inputs, attrs in sums(rng, 3, (64,), rng.integers(0, 3, 5000), np.float32):
        found, expected = made(op_type, inputs, attrs, threads=2)
        assert found is not None
        assert found.tobytes() == expected.tobytes()


def test_indices_out_of_range_are_errors() -> None:
    rng = np.random.default_rng(0)
    for op_type, inputs, attrs in sums(rng, 3, (64,), np.array([0, 1]), np.float32)[:2]:
        types = [Spec(x.shape, x.dtype) for x in (*inputs, np.empty((3, 64), np.float32))]
        numbers = tuple(range(len(inputs)))
        step = Step(op_type, numbers, (len(inputs),), attrs, (), Source("test.py", 1, "f"), op_type)
        run = native_step(step, types, thread_pool(1))
        assert run is not None
        bad = [np.array([0, 3]) if x.dtype.kind == "i" else x for x in inputs]
        with pytest.raises(IndexError, match="index 3 is out of bounds for axis 0 with size 3"):
            run(*bad, np.empty((3, 64), np.float32))


@pytest.mark.parametrize("dtype", [np.float16, np.complex64, np.int64])
def test_other_dtypes_are_left_to_the_plain_kernels(dtype: Any) -> None:
    rng = np.random.default_rng(0)
    for op_type, inputs, attrs in sums(rng, 3, (4,), np.array([0, 2]), dtype):
        assert made(op_type, inputs, attrs)[0] is None


def test_keys_that_are_not_rows_are_left_to_the_plain_kernels() -> None:
    values, ids = np.ones((2, 2), np.float32), np.array([0, 1])
    for index in (((0, 2, 1), "array"), ("array", (0, 2, 2))):
        assert made("AdvancedIndexGrad", [values, ids], {"index": index, "shape": (2, 3)})[0] is None


SIDE_BY_SIDE = """
import numpy as np, distgrad as dg

def loss(table, rows):
    return dg.sum(dg.tanh(dg.nn.embedding(table, rows)))

table = np.random.default_rng(0).normal(size=(64, 32)).astype(np.float32)
rows = np.random.default_rng(1).integers(0, 64, (32, 16))
step = dg.data_parallel(dg.grad(loss), shards=8)
found = []
for options in ({"threads": 4, "cpus_per_task": 1, "granularity": 1e-9}, {"threads": 1}):
    with dg.Session(**options):
        found.append(np.asarray(step(table, rows)).tobytes())
assert found[0] == found[1]
"""


def test_tasks_that_compile_the_same_function_at_the_same_time_all_run_it(tmp_path: Path) -> None:
    """What one of two threads compiled in vain must not be freed while the other's function is part of it."""
    env = {**os.environ, "DISTGRAD_CACHE": str(tmp_path)}
    subprocess.run([sys.executable, "-c", SIDE_BY_SIDE], env=env, check=True, timeout=120)
