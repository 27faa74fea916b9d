"""Kernels that write into given buffers, against the kernels that allocate: values, memory, bits of rows."""

from __future__ import annotations

import itertools
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest

import distgrad as dg
from distgrad.workers.blocked.into import INTO, PAIRS, Into
from distgrad.workers.kernels import KERNELS
from distgrad.workers.kernels.math import NAMED
from distgrad.workers.kernels.scratch import SCRATCH_BYTES, SEVERAL_BYTES, scratch, several

from ..cases import all_cases
from ..ops.test_op_table import as_dtype

CASES = all_cases()
EXACT = sorted(op_type for op_type, entry in INTO.items() if entry.exact)
ROUNDED = sorted(INTO.keys() - set(EXACT))
#: Rounded ops differ from the kernel by this many ulps of the largest number that takes part.
ULPS = 8

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
    if INTO[op_type].exact or expected.dtype.kind not in "fc" or not expected.size:
        np.testing.assert_array_equal(found, expected)
        if expected.dtype.kind == "f":
            np.testing.assert_array_equal(np.signbit(found[found == 0]), np.signbit(expected[expected == 0]))
    else:
        moving = [x for x in (*inputs, expected) if x.dtype.kind in "fc"]
        scale = max(float(np.abs(x[np.isfinite(x)]).max(initial=1)) for x in moving)
        np.testing.assert_allclose(found, expected, rtol=0, atol=ULPS * np.finfo(expected.dtype).eps * scale)


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


# -- elementwise -------------------------------------------------------------------------------------------------


def numbers(dtype: Any, seed: int = 0) -> Any:
    """Enough for vector code and its rest, small and large, with all that is special and random signs."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((3, 171)) * 10.0 ** rng.integers(-6, 6, (3, 171))
    x[:, ::17], x[:, 1::19], x[:, 2::23] = 0.0, np.nan, np.inf
    return (x * rng.choice([-1, 1], x.shape)).astype(dtype)


ELEMENTWISE: dict[str, tuple[int, list[dict[str, Any]]]] = {
    "Maximum": (2, [{}]), "Minimum": (2, [{}]), "Rint": (1, [{}]), "Rsqrt": (1, [{}]), "Sigmoid": (1, [{}]),
    "Relu": (1, [{}]), "ReluGrad": (2, [{}]), "Softplus": (1, [{}]),
    "LeakyRelu": (1, [{"alpha": a} for a in (0.2, 0.0, 1.0, 1.5, -0.5)]),
    "LeakyReluGrad": (2, [{"alpha": a} for a in (0.2, 1.5, -0.5)]),
    "Elu": (1, [{"alpha": 1.0}, {"alpha": 0.3}]),
    "Gelu": (1, [{"approximate": True}, {"approximate": False}]),
    "GeluGrad": (2, [{"approximate": True}, {"approximate": False}]),
    "AddN": (4, [{}]),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("op_type", sorted(ELEMENTWISE))
def test_special_numbers_have_the_kernels_bits(op_type: str, dtype: Any) -> None:
    count, variants = ELEMENTWISE[op_type]
    inputs = tuple(numbers(dtype, seed) for seed in range(count))
    for attrs in variants:
        expected = kernel(op_type, inputs, attrs)
        for i in range(-1, count):
            copies = [x.copy() for x in inputs]
            out = fresh(expected) if i < 0 else copies[i]
            INTO[op_type](out, *copies, **attrs)
            check(op_type, out, expected, inputs)


@pytest.mark.parametrize(
    "dtype", ["bool", "int8", "uint16", "int32", "int64", "float16", "float32", "complex64", "complex128"]
)
def test_select_takes_every_dtype(dtype: str) -> None:
    x, y = (np.random.default_rng(seed).integers(0, 99, (5, 60)).astype(dtype) for seed in (0, 1))
    condition = np.random.default_rng(2).random((5, 60)) < 0.5
    for mask in (condition, condition[:1], condition.astype(int), np.array(True)):
        for out in (fresh(x), x.copy(), y.copy()):
            INTO["Select"](out, mask, x, y)
            np.testing.assert_array_equal(out, np.where(mask, x, y))


@pytest.mark.parametrize("number", [0.0, -0.0, -1e9, np.nan])
def test_select_of_a_number_under_a_mask_that_repeats(number: float) -> None:
    x = numbers(np.float32)
    for mask in (x[:1] > 0, x[0] > 0, x[:, :1] > 0, np.array(False)):
        for y in (np.array(number, np.float32), np.array([[[number]]], np.float32)):
            out = fresh(x)
            INTO["Select"](out, mask, x, y)
            np.testing.assert_array_equal(out.view(np.int32), np.where(mask, x, y.reshape(())).view(np.int32))


def test_bfloat16_is_left_to_the_kernel() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = numbers(np.float32).astype(ml_dtypes.bfloat16)
    for op_type in ("Relu", "Softplus", "Sigmoid", "Maximum"):
        inputs = (x,) * (2 if op_type == "Maximum" else 1)
        out = np.empty_like(x)
        INTO[op_type](out, *inputs)
        np.testing.assert_array_equal(out.astype(np.float32), kernel(op_type, inputs, {}).astype(np.float32))


def test_every_named_function_is_in_the_table() -> None:
    assert NAMED.keys() - INTO.keys() == set()


def test_plain_functions_are_bare_ufuncs() -> None:
    assert INTO["Exp"] == Into(ufunc=np.exp)
    assert INTO["Add"] == Into(ufunc=np.add)
    assert [op_type for op_type, entry in INTO.items() if (entry.ufunc is None) == (entry.function is None)] == []


# -- rows --------------------------------------------------------------------------------------------------------

Draw = Callable[..., Any]


def softmax_of(x: Any) -> Any:
    return kernel("Softmax", (x,), {"axis": 1})


#: By op type, the inputs made of (m, n) random numbers, and the attributes.
ROW_OPS: dict[str, Callable[[Draw, int, int], Use]] = {
    "Softmax": lambda draw, m, n: ((draw(m, n),), {"axis": 1}),
    "SoftmaxGrad": lambda draw, m, n: ((draw(m, n), softmax_of(draw(m, n))), {"axis": 1}),
    "LogSoftmax": lambda draw, m, n: ((draw(m, n),), {"axis": 1}),
    "SoftmaxCrossEntropyWithLogits": lambda draw, m, n: ((draw(m, n), softmax_of(draw(m, n))), {"axis": 1}),
    "SparseSoftmaxCrossEntropyWithLogits": lambda draw, m, n: ((draw(m, n), np.arange(m) % n), {}),
    "SparseSoftmaxCrossEntropyWithLogitsGrad": lambda draw, m, n: ((draw(m), draw(m, n), np.arange(m) % n), {}),
    "LogSumExp": lambda draw, m, n: ((draw(m, n),), {"axis": (1,), "keepdims": False}),
    "LayerNorm": lambda draw, m, n: ((draw(m, n),), {"axis": (1,), "eps": 1e-5}),
    "LayerNormGrad": lambda draw, m, n: ((draw(m, n), draw(m, n)), {"axis": (1,), "eps": 1e-5}),
    "LayerNormScale": lambda draw, m, n: ((draw(m, n),), {"axis": (1,), "eps": 1e-5}),
    "Max": lambda draw, m, n: ((draw(m, n),), {"axis": (1,), "keepdims": True}),
    "Min": lambda draw, m, n: ((draw(m, n),), {"axis": (1,), "keepdims": False}),
    "Sum": lambda draw, m, n: ((draw(m, n),), {"axis": (1,), "keepdims": False}),
    "Mean": lambda draw, m, n: ((draw(m, n),), {"axis": (1,), "keepdims": True}),
}
#: Row lengths on both sides of every choice of loop, even and odd.
LENGTHS = [1, 2, 7, 31, 32, 63, 64, 100, 129, 1024, 4095, 4097, 8193]


def row_use(op_type: str, m: int, n: int, dtype: Any) -> Use:
    rng = np.random.default_rng([m, n])
    return ROW_OPS[op_type](lambda *shape: (rng.standard_normal(shape) * 3).astype(dtype), m, n)


def computed(op_type: str, inputs: tuple[Any, ...], attrs: dict[str, Any]) -> Any:
    out = fresh(kernel(op_type, inputs, attrs))
    INTO[op_type](out, *inputs, **attrs)
    return out


def test_every_rounded_op_is_tested_by_rows() -> None:
    assert ROW_OPS.keys() == set(ROUNDED)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("op_type", ROUNDED)
def test_a_row_has_the_same_bits_in_every_block(op_type: str, dtype: Any) -> None:
    for n in LENGTHS:
        inputs, attrs = row_use(op_type, 11, n, dtype)
        whole = computed(op_type, inputs, attrs)
        for height in (1, 2, 3, 5):
            blocks = [tuple(x[i : i + height] for x in inputs) for i in range(0, 11, height)]
            parts = [computed(op_type, block, attrs) for block in blocks]
            np.testing.assert_array_equal(np.concatenate(parts), whole)


@pytest.mark.parametrize("op_type", ROUNDED)
def test_a_row_has_the_same_bits_wherever_its_numbers_lie(op_type: str) -> None:
    for n in (31, 64, 129):
        inputs, attrs = row_use(op_type, 6, n, np.float32)
        columns = tuple(np.asfortranarray(x) for x in inputs)
        shifted = tuple(np.concatenate([x.reshape(-1)[:1], x.reshape(-1)])[1:].reshape(x.shape) for x in inputs)
        for same in (columns, shifted):
            np.testing.assert_array_equal(computed(op_type, same, attrs), computed(op_type, inputs, attrs))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("op_type", ROUNDED)
def test_rows_are_the_kernels_but_for_rounding(op_type: str, dtype: Any) -> None:
    for n in LENGTHS:
        inputs, attrs = row_use(op_type, 3, n, dtype)
        exact = tuple(x.astype(np.longdouble) if x.dtype.kind == "f" else x for x in inputs)
        found, expected = computed(op_type, inputs, attrs), kernel(op_type, exact, attrs)
        check(op_type, found, expected.astype(dtype), inputs)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n", LENGTHS)
def test_a_normalised_x_and_its_scale_have_the_gradient_of_x(n: int, dtype: Any) -> None:
    (g, x), attrs = row_use("LayerNormGrad", 3, n, dtype)
    exact = tuple(v.astype(np.longdouble) for v in (g, x))
    y, scale = computed("LayerNorm", (x,), attrs), computed("LayerNormScale", (x,), attrs)
    found = computed("LayerNormGrad", (g, y, scale), attrs)
    check("LayerNormGrad", found, kernel("LayerNormGrad", exact, attrs).astype(dtype), (g, x, scale))
    check("LayerNormGrad", kernel("LayerNormGrad", (g, y, scale), attrs), found, (g, x, scale))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("second", sorted(PAIRS))
def test_two_ops_computed_together_have_the_bits_of_each(second: str, dtype: Any) -> None:
    pair = PAIRS[second]
    for n, strided in itertools.product(LENGTHS, (False, True)):
        inputs, attrs = row_use(second, 5, n, dtype)
        expected = [computed(pair.first, inputs[pair.own :], attrs), computed(second, inputs, attrs)]
        found = [fresh(np.empty((*x.shape, 2), dtype))[..., 0] if strided else fresh(x) for x in expected]
        pair.function(*found, *inputs, **attrs)
        for x, y in zip(found, expected, strict=True):
            np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("axis", [(0,), (0, 1), (0, 1, 2), (1, 2), (2,), (1,), (0, 2), ()])
@pytest.mark.parametrize("op_type", ["Sum", "Mean"])
def test_sums_along_any_axes(op_type: str, axis: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).standard_normal((13, 17, 130)).astype(np.float32)
    for given in (x, np.asfortranarray(x), x[::2, :, ::-1]):
        for keepdims in (True, False):
            attrs = {"axis": axis, "keepdims": keepdims}
            found, expected = computed(op_type, (given,), attrs), kernel(op_type, (given.astype(float),), attrs)
            np.testing.assert_allclose(found, expected, rtol=0, atol=2e-7 * 300)


def test_sums_of_infinities_are_infinite() -> None:
    x = np.ones((40, 50), np.float32)
    x[3, 4] = np.inf
    assert np.isposinf(computed("Sum", (x,), {"axis": (0,), "keepdims": False})).sum() == 1
    assert np.isposinf(computed("Sum", (x,), {"axis": (1,), "keepdims": False})).sum() == 1


@pytest.mark.parametrize("op_type", ["Softmax", "LogSoftmax", "LogSumExp"])
def test_rows_of_infinities_are_what_the_kernel_makes(op_type: str) -> None:
    x = np.array([[1e4, 1e4 - 1, -np.inf], [-np.inf] * 3, [np.inf, 0, 1], [np.nan, 0, 1], [88.8, 0, -1e30]], np.float32)
    for rows in (x, np.tile(x, 40)):
        attrs: dict[str, Any] = {"axis": (1,), "keepdims": False} if op_type == "LogSumExp" else {"axis": 1}
        np.testing.assert_allclose(computed(op_type, (rows,), attrs), kernel(op_type, (rows,), attrs), rtol=1e-6)


def test_a_class_of_probability_0_costs_nothing() -> None:
    logits, labels = np.array([[0.0, -np.inf]] * 2, np.float32), np.array([[1.0, 0.0]] * 2, np.float32)
    found = computed("SoftmaxCrossEntropyWithLogits", (logits, labels), {"axis": 1})
    np.testing.assert_array_equal(found, 0)
    assert not np.signbit(found).any()


@pytest.mark.parametrize("label", [-1, 4])
def test_a_label_that_is_no_class_is_refused(label: int) -> None:
    logits, labels = np.zeros((2, 4), np.float32), np.array([0, label])
    with pytest.raises(ValueError, match="labels must be classes from 0 to 3"):
        INTO["SparseSoftmaxCrossEntropyWithLogits"](np.empty(2, np.float32), logits, labels)
    with pytest.raises(ValueError, match="labels must be classes from 0 to 3"):
        INTO["SparseSoftmaxCrossEntropyWithLogitsGrad"](np.empty_like(logits), np.ones(2, np.float32), logits, labels)


# -- memory ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op_type", sorted({*ELEMENTWISE, *ROUNDED}))
def test_a_second_call_makes_no_large_array(op_type: str) -> None:
    if op_type in ELEMENTWISE:
        count, (attrs, *_) = ELEMENTWISE[op_type]
        inputs = tuple(np.ones((128, 512), np.float32) for _ in range(count))
    else:
        inputs, attrs = row_use(op_type, 128, 512, np.float32)
    out = computed(op_type, inputs, attrs)
    tracemalloc.start()
    try:
        INTO[op_type](out, *inputs, **attrs)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 128 * 512  # what an array of booleans would take; NumPy's iterators have buffers of half as much


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
