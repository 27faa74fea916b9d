"""Every row of the op table on every array backend, against NumPy: kernels may use the standard and extras, no more."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import distgrad as dg
from distgrad import nest
from distgrad.scheduler.program import Program, lower
from distgrad.testing import random_like
from distgrad.workers import reference
from distgrad.workers.backends import BACKENDS, Backend, backend, extras
from distgrad.workers.kernels import KERNELS, KERNELS_OF, lookup

from ..cases.case import Case
from ..cases.random import CASES as RANDOM
from ..ops.test_op_table import as_dtype, rows

needs_torch = pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="torch is not installed")
NAMES = ["array-api-strict", pytest.param("torch", marks=needs_torch)]
on_backends = pytest.mark.parametrize("name", NAMES)
#: Dtypes of rows that a backend has not, and why.
NOT_THERE = {"array-api-strict": {"float16": "the standard's floats have 32 or 64 bits"}}


def program(case: Case, inputs: tuple[Any, ...]) -> Program:
    """The row's results, and the gradients of a weighted sum of them."""
    with dg.Graph():
        xs = [dg.constant(x) for x in inputs]
        made: list[Any] = nest.flatten(case.build(*xs))
        moving = [x for x in xs if x.dtype.kind in "fc"]
        if case.order and moving:
            rng = np.random.default_rng(0)
            terms = [dg.real(dg.sum(y * as_dtype(random_like(y, rng), y.dtype))) for y in made if y.dtype.kind in "fc"]
            made += [dg.add(g, 0.0) for g in dg.gradients(terms, moving, unconnected_gradients="zero")]
        return lower(made)


def run(b: Backend, p: Program) -> list[Any]:
    """A program on a backend, step by step; what a step makes has the type that its shape rule says."""
    values: dict[int, Any] = {}
    for step in p.steps:
        made = lookup(b.name, step.type)(b.xp, *[values[v] for v in step.inputs], **step.attrs)
        outputs: Sequence[Any] = made if isinstance(made, tuple | list) else (made,)
        for v, x in zip(step.outputs, outputs, strict=True):
            assert (tuple(x.shape), x.dtype) == (p.types[v].shape, b.extras.dtype(p.types[v].dtype)), step.type
            values[v] = x
    return [b.to_numpy(values[v]) for v in p.fetches]


def check(name: str, p: Program) -> None:
    """Floats agree to 1e-9 of the largest one, everything else is equal."""
    for dtype, reason in NOT_THERE.get(name, {}).items():
        if dtype in {t.dtype.name for t in p.types}:
            pytest.skip(f"{dtype}: {reason}")
    expected, _ = reference.run(p, [], {})
    with np.errstate(all="ignore"):
        found = run(backend(name), p)
    for x, y in zip(found, expected, strict=True):
        assert x.dtype == y.dtype
        scale = max(1.0, float(np.abs(y[np.isfinite(y)]).max(initial=0.0))) if y.dtype.kind in "fc" else 0.0
        np.testing.assert_allclose(x, y, rtol=1e-9 if scale else 0.0, atol=1e-9 * scale)


@on_backends
@pytest.mark.parametrize("case", rows())
def test_a_row_gives_what_numpy_gives(name: str, case: Case) -> None:
    check(name, program(case, case.inputs))


@on_backends
@pytest.mark.parametrize("case", rows(lambda case: case.complex))
def test_a_row_of_complex_numbers_gives_what_numpy_gives(name: str, case: Case) -> None:
    rng = np.random.default_rng(7)
    turned = [x + 0.5j * rng.uniform(-1, 1, np.shape(x)) if np.asarray(x).dtype.kind == "f" else x for x in case.inputs]
    check(name, program(case, tuple(turned)))


@on_backends
@pytest.mark.parametrize("op_type", [t for t, cases in RANDOM.items() if cases[0].order == 0])
def test_draws_have_the_same_bits(name: str, op_type: str) -> None:
    p = program(RANDOM[op_type][0], RANDOM[op_type][0].inputs)
    for x, y in zip(run(backend(name), p), reference.run(p, [], {})[0], strict=True):
        np.testing.assert_array_equal(x, y)


# -- the way in and out ------------------------------------------------------------------------------------------

DTYPES = ["bool", "int8", "int16", "int32", "int64", "uint8", "uint64", "float32", "float64", "complex64", "complex128"]


@pytest.mark.parametrize("name", ["numpy", *NAMES])
@pytest.mark.parametrize("dtype", DTYPES)
def test_arrays_come_back_as_they_went(name: str, dtype: str) -> None:
    b, x = backend(name), np.arange(6).reshape(2, 3).astype(dtype)[:, ::-1]
    found = b.to_numpy(b.to_device(x))
    assert found.dtype == x.dtype
    np.testing.assert_array_equal(found, x)


@needs_torch
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_short_floats_come_back_from_torch(dtype: str) -> None:
    import ml_dtypes

    b, x = backend("torch"), np.array([1.5, -np.inf]).astype(getattr(ml_dtypes, dtype, dtype))
    found = b.to_numpy(b.to_device(x))
    assert found.dtype == x.dtype
    np.testing.assert_array_equal(found, x)


@pytest.mark.parametrize("name", ["numpy", *NAMES])
def test_what_comes_back_is_the_callers_own(name: str) -> None:
    b, x = backend(name), np.zeros(3)
    x.flags.writeable = False
    there = b.to_device(x)
    b.to_numpy(there)[:] = 1
    np.testing.assert_array_equal(b.to_numpy(there), [0, 0, 0])


@on_backends
def test_a_dtype_that_is_not_there_is_named(name: str) -> None:
    with pytest.raises(TypeError, match=r"has no dtype str\d+"):
        backend(name).to_device(np.array(["text"]))


@needs_torch
@pytest.mark.parametrize("op", ["Sum", "MatMul", "Softmax", "LayerNorm", "UnsortedSegmentSum", "Relu"])
def test_bfloat16_on_torch_is_rounded_float32(op: str) -> None:
    import ml_dtypes

    b, x = backend("torch"), np.random.default_rng(0).uniform(size=(300, 300)).astype(ml_dtypes.bfloat16)
    segments = (np.zeros(300, int),) if op == "UnsortedSegmentSum" else ()
    inputs, attrs = (x, x) if op == "MatMul" else (x, *segments), {
        "Sum": {"axis": (0,), "keepdims": False}, "MatMul": {"transpose_a": False, "transpose_b": False},
        "Softmax": {"axis": 1}, "LayerNorm": {"axis": (1,), "eps": 1e-5}, "UnsortedSegmentSum": {"num_segments": 1},
    }.get(op, {})  # fmt: skip
    found = b.to_numpy(lookup("torch", op)(b.xp, *map(b.to_device, inputs), **attrs))
    wide = [i.astype(np.float32) if i is x else i for i in inputs]
    assert found.dtype == x.dtype
    np.testing.assert_allclose(found.astype(np.float32), KERNELS[op](np, *wide, **attrs), rtol=2**-7, atol=2**-7)


# -- choosing, and errors ----------------------------------------------------------------------------------------


def test_an_unknown_backend_is_an_error_that_names_the_known() -> None:
    with pytest.raises(ValueError, match=r"no array backend 'tensorflow'; the known ones are 'numpy', 'torch', 'array"):
        backend("tensorflow")


def test_a_missing_package_is_an_error_that_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "array_api_compat.torch", None)
    monkeypatch.setitem(BACKENDS, "torch", replace(BACKENDS["torch"]))  # a row that is not loaded
    with pytest.raises(ImportError, match=r"'torch' needs a missing package .*: install it as https://pytorch"):
        backend("torch")


def test_a_namespace_that_is_no_backends_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"not the namespace of an array backend: use backend\(name\)"):
        extras(sys)


def test_a_backend_is_made_once() -> None:
    assert backend("array-api-strict") is backend("array-api-strict")


def test_the_kernels_of_a_library_are_of_known_op_types() -> None:
    assert {op_type for own in KERNELS_OF.values() for op_type in own} <= KERNELS.keys()


@on_backends
def test_a_row_that_is_not_in_the_table_is_an_error(name: str) -> None:
    b = backend(name)
    table, ids = b.to_device(np.zeros((3, 2))), b.to_device(np.array([0, 3]))
    with pytest.raises(IndexError, match=r"3 is out of bounds for axis 0 with size 3"):
        lookup(name, "Gather")(b.xp, table, ids, axis=0)


@on_backends
def test_a_label_that_is_no_class_is_an_error(name: str) -> None:
    b = backend(name)
    logits, labels = b.to_device(np.zeros((2, 3))), b.to_device(np.array([0, -1]))
    with pytest.raises(ValueError, match=r"labels must be classes from 0 to 2, got values from -1 to 0"):
        lookup(name, "SparseSoftmaxCrossEntropyWithLogits")(b.xp, logits, labels)


@on_backends
def test_a_singular_triangle_is_an_error(name: str) -> None:
    b = backend(name)
    a, x = b.to_device(np.zeros((2, 2))), b.to_device(np.ones((2, 1)))
    with pytest.raises(np.linalg.LinAlgError, match="singular matrix"):
        lookup(name, "MatrixTriangularSolve")(b.xp, a, x, adjoint=False, lower=True, unit_diagonal=False)
