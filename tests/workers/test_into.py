"""Ops that write into given arrays have the bits of the kernels that allocate; scratch memory."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest

import distgrad as dg
from distgrad.workers.kernels import KERNELS
from distgrad.workers.kernels.scratch import SCRATCH_BYTES, SEVERAL_BYTES, scratch, several
from distgrad.workers.numpy_engine.into import INTO, Into

from ..cases import all_cases
from ..ops.test_op_table import as_dtype

CASES = all_cases()
Use = tuple[tuple[Any, ...], dict[str, Any]]


@pytest.fixture(autouse=True)
def _values_not_warnings() -> Iterator[None]:
    with np.errstate(all="ignore"):
        yield


@cache
def uses(op_type: str, real: Any) -> list[Use]:
    """The inputs and attributes with which the rows of the op table use an op."""
    found: list[Use] = []
    for case in CASES[op_type]:
        with dg.Graph() as graph:
            case.build(*[dg.constant(as_dtype(x, real)) for x in case.inputs])
        for op in graph.ops:
            if op.type == op_type:
                found.append((tuple(dg.Session().run(list(op.inputs))), dict(op.attrs)))
    return found


def kernel(op_type: str, inputs: tuple[Any, ...], attrs: dict[str, Any]) -> Any:
    return np.asarray(KERNELS[op_type](np, *inputs, **attrs))


def check(op_type: str, found: Any, expected: Any, inputs: tuple[Any, ...]) -> None:
    np.testing.assert_array_equal(found, expected)
    if expected.dtype.kind == "f":
        np.testing.assert_array_equal(np.signbit(found[found == 0]), np.signbit(expected[expected == 0]))


def fresh(like: Any) -> Any:
    return np.full_like(like, 77 if like.dtype.kind in "iufc" else like.dtype.type())


@pytest.mark.parametrize("real", [np.float32, np.float64])
@pytest.mark.parametrize("op_type", sorted(INTO))
def test_a_buffer_gets_what_the_kernel_makes(op_type: str, real: Any) -> None:
    for inputs, attrs in uses(op_type, real):
        expected = kernel(op_type, inputs, attrs)
        out = fresh(expected)
        INTO[op_type](out, *inputs, **attrs)
        check(op_type, out, expected, inputs)


@pytest.mark.parametrize("real", [np.float32, np.float64])
@pytest.mark.parametrize("op_type", sorted(INTO))
def test_a_strided_buffer_gets_what_the_kernel_makes(op_type: str, real: Any) -> None:
    for inputs, attrs in uses(op_type, real):
        expected = kernel(op_type, inputs, attrs)
        whole = fresh(np.empty((*expected.shape, 2), expected.dtype))
        INTO[op_type](whole[..., 0], *inputs, **attrs)
        check(op_type, whole[..., 0], expected, inputs)
        np.testing.assert_array_equal(whole[..., 1], fresh(whole[..., 1]))


@pytest.mark.parametrize("real", [np.float32, np.float64])
@pytest.mark.parametrize("op_type", sorted(op_type for op_type, entry in INTO.items() if entry.overlap))
def test_a_buffer_may_be_the_memory_of_an_input(op_type: str, real: Any) -> None:
    for inputs, attrs in uses(op_type, real):
        expected = kernel(op_type, inputs, attrs)
        for i, x in enumerate(inputs):
            if (x.shape, x.dtype) == (expected.shape, expected.dtype):
                copies = [np.array(v) for v in inputs]
                INTO[op_type](copies[i], *copies, **attrs)
                check(op_type, copies[i], expected, inputs)


def test_dtypes_that_are_left_to_the_kernel_are_copied() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = np.linspace(-3, 3, 60, dtype=np.float32).reshape(6, 10).astype(ml_dtypes.bfloat16)
    uses: list[tuple[str, Use]] = [
        ("MatMul", ((x, x.T.copy()), {"transpose_a": False, "transpose_b": False})),
        ("AddN", ((x, x, x), {})),
    ]
    for op_type, (inputs, attrs) in uses:
        expected = kernel(op_type, inputs, attrs)
        out = np.empty_like(expected)
        INTO[op_type](out, *inputs, **attrs)
        np.testing.assert_array_equal(out.astype(np.float32), expected.astype(np.float32))


def test_plain_functions_are_bare_ufuncs() -> None:
    assert INTO["Exp"] == Into(ufunc=np.exp)
    assert INTO["Add"] == Into(ufunc=np.add)
    assert [op_type for op_type, entry in INTO.items() if (entry.ufunc is None) == (entry.function is None)] == []


# -- scratch memory ----------------------------------------------------------------------------------------------


def test_scratch_is_the_same_memory_again() -> None:
    a = scratch((10, 3), np.dtype("f4"), "test")
    b = scratch((5, 3), np.dtype("f8"), "test")
    assert a.shape == (10, 3)
    assert a.dtype == np.float32
    assert np.shares_memory(a, b)
    assert not np.shares_memory(a, scratch((10, 3), np.dtype("f4"), "another test"))


def test_scratch_grows() -> None:
    scratch((10,), np.dtype("f4"), "growing")
    large = scratch((100_000,), np.dtype("f4"), "growing")
    assert np.shares_memory(large, scratch((10,), np.dtype("f4"), "growing"))


def test_scratch_above_its_bound_is_made_anew() -> None:
    size = SCRATCH_BYTES // 4 + 1
    a, b = scratch((size,), np.dtype("f4"), "test"), scratch((size,), np.dtype("f4"), "test")
    assert not np.shares_memory(a, b)


def test_several_arrays_do_not_overlap() -> None:
    a, b = several([((3, 5), np.dtype("f4")), ((7,), np.dtype("f8"))], "test of several")
    assert (a.shape, b.shape) == ((3, 5), (7,))
    assert not np.shares_memory(a, b)


def test_memory_of_several_arrays_that_is_too_large_to_keep_is_let_go() -> None:
    several([((SEVERAL_BYTES + 1,), np.dtype("u1"))], "test of several")
    (small,) = several([((8,), np.dtype("u1"))], "test of several")
    assert small.base is not None
    assert small.base.nbytes <= SEVERAL_BYTES


def test_scratch_is_a_threads_own() -> None:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(scratch((10,), np.dtype("f4"), "test")))
    thread.start()
    thread.join()
    assert not np.shares_memory(found[0], scratch((10,), np.dtype("f4"), "test"))
