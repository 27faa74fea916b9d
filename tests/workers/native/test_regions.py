"""Rows of regions: products with NumPy's bits, copies of any layout, and tables that stop, pause and move."""

from __future__ import annotations

import ctypes
import itertools
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distgrad.workers import native

if native.unusable():
    pytest.skip(f"native code: {native.unusable()}", allow_module_level=True)

from distgrad.workers import blas
from distgrad.workers.native.regions import blas as numpys
from distgrad.workers.native.regions.code import LAST, NEXT, SPENT, region_code
from distgrad.workers.native.regions.table import Place, Row, Table, View, address, copied, multiplied

from ...engines import Array, assert_bits


def seen(i: int, x: Array, base: Array | None = None, moves: bool = False) -> View:
    return View(i, x if base is None else base, x, moves)


def run(rows: list[Row], arrays: list[Array], last: int | None = None) -> Any:
    """All rows, with arrays that move; the thread's state afterwards."""
    table = Table(rows, {})
    table.move(dict(enumerate(arrays)))
    state = (ctypes.c_int64 * (SPENT + 1))()
    state[NEXT], state[LAST] = 0, len(rows) if last is None else last
    assert region_code().run(table.address, ctypes.addressof(state), None) == 0
    return state


def random(rng: np.random.Generator, dtype: Any, *shape: int) -> Array:
    return rng.standard_normal(shape).astype(dtype)


def test_numpys_products_are_found_here() -> None:
    """Else the tests below would test nothing. NumPy from other sources may have another BLAS."""
    for char in "fd":
        assert numpys.gemm(np.dtype(char)) is not None
    assert numpys.gemm(np.dtype(np.float16)) is None


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@settings(deadline=None, max_examples=150, derandomize=True)
@given(data=st.data())
def test_products_have_numpys_bits(dtype: str, data: st.DataObject) -> None:
    """Of batches, of transposed and cut matrices, beside rows of other lengths."""
    rng = np.random.default_rng(data.draw(st.integers(0, 1 << 20)))
    m, k, n = (data.draw(st.sampled_from((2, 3, 5, 16, 33, 64))) for _ in range(3))
    batch = data.draw(st.sampled_from(((), (1,), (3,), (2, 3), (2, 1, 2))))
    operands = []
    for rows, columns in ((m, k), (k, n)):
        x = random(rng, dtype, *[data.draw(st.sampled_from((1, b))) for b in batch], rows, columns + 2)
        x = x[..., :columns] if data.draw(st.booleans()) else x[..., 1 : columns + 1].copy()
        if data.draw(st.booleans()):
            x = np.ascontiguousarray(x.swapaxes(-1, -2)).swapaxes(-1, -2)
        operands.append(x)
    a, b = operands
    out = np.full((*batch, m, n + 3), np.nan, dtype)[..., :n]
    row = multiplied(seen(0, out, out), seen(1, a, a), seen(2, b, b), 0)
    with blas.threads(1):
        expected = np.matmul(a, b, out=np.full((*batch, m, n + 3), np.nan, dtype)[..., :n])
        assert row is not None
        run([row], [out, a, b])
    assert_bits([out], [expected])


def test_what_numpy_computes_in_another_way_is_left_to_it() -> None:
    x = np.ones((4, 4), np.float32)
    out = np.empty((4, 4), np.float32)
    square = [seen(0, out), seen(1, x), seen(1, x.T, x)]
    cases = {
        "its own transpose": square,
        "perhaps its own transpose": [seen(0, out), seen(1, x, moves=True), seen(2, x.copy().T, moves=True)],
        "a vector": [seen(0, out[:1]), seen(1, x[:1]), seen(2, x)],
        "no matrix that BLAS takes": [seen(0, out), seen(1, np.ones((4, 8), np.float32)[:, ::2]), seen(2, x)],
        "a result by columns": [seen(0, out.T), seen(1, x), seen(2, x)],
        "other dtypes": [seen(0, out), seen(1, x), seen(2, x.astype(np.float64))],
        "complex": [seen(i, x.astype(np.complex64)) for i in range(3)],
        "nothing": [seen(0, out[:0]), seen(1, x[:0]), seen(2, x)],
    }  # fmt: skip
    for name, views in cases.items():
        assert multiplied(*views, 0) is None, name


def layouts(x: Array) -> list[Array]:
    """Views of the same shape in memory of other layouts."""
    wide = np.zeros((*[2 * n for n in x.shape],), x.dtype)
    return [
        np.empty_like(x), np.zeros(x.shape[::-1], x.dtype).transpose(), wide[(*[slice(0, n) for n in x.shape], ...)],
        wide[(*[slice(None, None, 2)] * x.ndim, ...)], wide[(*[slice(None, None, -2)] * x.ndim, ...)],
    ]  # fmt: skip


@pytest.mark.parametrize("dtype", ["bool", "float16", "float32", "float64", "complex128"])
@pytest.mark.parametrize("shape", [(), (5,), (3, 4), (2, 3, 5), (2, 3, 2, 3), (2, 2, 2, 3, 2), (0, 3), (1, 4, 1)])
def test_copies_of_any_layout(dtype: str, shape: tuple[int, ...]) -> None:
    x = (np.arange(np.prod(shape, dtype=int)).reshape(shape) % 7).astype(dtype)
    for to, source in itertools.product(layouts(x), layouts(x)):
        source[...] = x
        row = copied(seen(0, to), seen(1, source), 0)
        assert row is not None
        to[...] = 0
        run([row], [to, source])
        assert_bits([to], [x])


def test_a_copy_of_too_many_axes_or_of_objects_is_left_to_numpy() -> None:
    x = np.zeros((2,) * 7, np.float32)
    assert copied(seen(0, np.empty((4,) * 7, np.float32)[(slice(None, None, 2),) * 7]), seen(1, x), 0) is None
    assert copied(seen(0, np.empty(2, object)), seen(1, np.empty(2, object)), 0) is None


def test_arrays_that_move_are_found_where_they_are() -> None:
    x, out = np.arange(6.0), np.zeros(3)
    row = copied(seen(0, out, moves=True), View(1, x, x[2:5], True), 0)
    assert row is not None
    table = Table([row], {})
    for start in (0, 10):
        x, out = np.arange(6.0) + start, np.zeros(3)
        table.move({0: out, 1: x})
        state = (ctypes.c_int64 * 3)(0, 1, 0)
        region_code().run(table.address, ctypes.addressof(state), None)
        assert out.tolist() == [start + 2, start + 3, start + 4]


def test_threads_that_are_stopped_call_no_row_more() -> None:
    called: list[int] = []

    def second(_: int, k: int, *__: int) -> None:
        called.append(k)
        if k == 1:
            table.stop()

    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, *[ctypes.c_int64] * 4)(second)
    at = ctypes.cast(function, ctypes.c_void_p).value or 0
    table = Table([Row(at, (), 0, (k, 0, 0, 0)) for k in range(5)], {})
    table.move({})
    state = (ctypes.c_int64 * 3)(0, 5, 0)
    assert region_code().run(table.address, ctypes.addressof(state), None) == 0
    assert called == [0, 1]
    assert state[NEXT] == 2


def test_after_a_slice_of_time_python_is_back_and_goes_on() -> None:
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, *[ctypes.c_int64] * 4)(lambda *_: time.sleep(0.015))
    at = ctypes.cast(function, ctypes.c_void_p).value or 0
    table = Table([Row(at, (), 0)] * 5, {})
    table.move({})
    state = (ctypes.c_int64 * 3)(0, 5, 0)
    pauses = 0
    while region_code().run(table.address, ctypes.addressof(state), None):
        pauses += 1
    assert pauses >= 1
    assert state[NEXT] == 5
    assert state[SPENT] >= 5 * 15_000_000


def test_scratch_memory_is_that_of_the_thread() -> None:
    found: list[int] = []
    kind = ctypes.CFUNCTYPE(None, ctypes.POINTER(ctypes.c_int64), *[ctypes.c_int64] * 4)
    function = kind(lambda fields, *_: found.append(fields[1]))
    memory = np.zeros(8)
    row = Row(ctypes.cast(function, ctypes.c_void_p).value or 0, (Place(0, 0), 0), 0, scratch=1)
    table = Table([row], {0: address(memory)})
    state = (ctypes.c_int64 * 3)(0, 1, 0)
    region_code().run(table.address, ctypes.addressof(state), address(memory))
    assert found == [address(memory)]
