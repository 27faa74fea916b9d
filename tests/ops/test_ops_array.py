"""distgrad/ops/layout.py and distgrad/ops/array.py beyond the op table: errors, structure, constants."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import distgrad as dg
from distgrad.testing import check_grads

X = np.arange(6.0).reshape(2, 3)


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (lambda x: dg.reshape(x, (4, -1)), ValueError, r"reshape .* \[2, 3\] into \[4, -1\]"),
        (lambda x: dg.reshape(x, (-1, -1)), ValueError, r"into \[-1, -1\]"),
        (lambda x: dg.reshape(x, (-2, -3)), ValueError, r"into \[-2, -3\]"),
        (lambda x: dg.reshape(x, 6, order="F"), ValueError, "order must be 'C', got 'F'"),
        (lambda x: dg.transpose(x, (0, 0)), ValueError, r"axes \(0, 0\) must name each axis"),
        (lambda x: dg.transpose(x, (0,)), ValueError, "must name each axis"),
        (lambda x: dg.moveaxis(x, (0, 1), 0), ValueError, "must be equally many distinct axes"),
        (lambda x: dg.squeeze(x, 1), ValueError, r"axis 1 of shape \[2, 3\] has size 3"),
        (lambda x: dg.expand_dims(x, 5), np.exceptions.AxisError, "out of bounds"),
        (lambda x: dg.broadcast_to(x, (3, 3)), ValueError, r"\[2, 3\].*\[3, 3\]"),
        (lambda x: dg.broadcast_to(x, (3,)), ValueError, r"\[2, 3\] cannot be broadcast to \[3\]"),
        (lambda x: dg.concatenate([x, x[0]]), ValueError, "differ in axes other than 0"),
        (lambda x: dg.concatenate([]), ValueError, "need at least one array"),
        (lambda x: dg.concatenate([1.0, 2.0]), ValueError, "0-d arrays have no axis"),
        (lambda x: dg.stack([]), ValueError, "need at least one array"),
        (lambda x: dg.stack([x, x[0]]), ValueError, r"\[2, 3\] and \[3\]"),
        (lambda x: dg.split(x, 2, axis=1), ValueError, r"axis 1 of shape \[2, 3\] cannot be split into 2 equal parts"),
        (lambda x: dg.split(x, 0), ValueError, "number of sections must be larger than 0"),
        (lambda x: dg.split(x, [2, 1], axis=1), ValueError, "must not decrease"),
        (lambda x: dg.tile(x, -1), ValueError, "reps must not be negative"),
        (lambda x: dg.repeat(x, -1), ValueError, "repeats must not be negative"),
        (lambda x: dg.repeat(x, 1.5), TypeError, "repeats must be an int"),
        (lambda x: dg.repeat(x, [1, 2, 3], axis=0), ValueError, r"3 repeats for axis 0 of size 2 in shape \[2, 3\]"),
        (lambda x: dg.roll(x, 0.5, 0), TypeError, "must be ints"),
        (lambda x: dg.pad(x, -1), ValueError, "pad_width must not be negative"),
        (lambda x: dg.pad(x, 1.5), TypeError, "pad_width must be made of ints"),
        (lambda x: dg.pad(x, ((1, 1),) * 3), ValueError, "does not fit 2 axes"),
        (lambda x: dg.pad(x, 1, "mean"), ValueError, "mode 'mean' is not one of"),
        (lambda x: dg.pad(x[:0], 1, "edge"), ValueError, r"axis 0 of shape \[0, 3\] is empty"),
        (lambda x: dg.diag(x[None]), ValueError, "must be a vector or a matrix"),
        (lambda x: dg.diagonal(x[0]), ValueError, "at least 2 axes"),
        (lambda x: dg.diagonal(x, 0, 1, -1), ValueError, "axis1 and axis2 must differ"),
        (lambda x: dg.tril(x[0, 0]), ValueError, "at least 1 axis"),
        (lambda x: dg.meshgrid(x, indexing="yx"), ValueError, "'xy' or 'ij'"),
    ],
)
def test_errors_name_argument_and_shapes(build: Callable[[Any], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        build(X)


@pytest.mark.parametrize(
    "build",
    [dg.arange, dg.eye, lambda n: dg.linspace(0, 1, n), lambda n: dg.repeat(X, n), lambda n: dg.arange(0, n)],
)
def test_a_shape_that_would_depend_on_data_is_refused(build: Callable[[Any], Any]) -> None:
    with dg.Graph():
        n = dg.constant(3)
        with pytest.raises(TypeError, match="depend on data"):
            build(n)


def test_the_parts_of_a_split_are_outputs_of_one_op() -> None:
    with dg.Graph():
        a, b = dg.split(dg.constant([1.0, 2.0]), 2)
        rows = dg.unstack(dg.constant(X))
    assert a.op is b.op
    assert (a.index, b.index) == (0, 1)
    assert len({row.op for row in rows}) == 1


def test_gradients_are_kept_apart_by_output() -> None:
    with dg.Graph():
        a, b = dg.split(dg.constant([1.0, 2.0]), 2)
        found = dg.gradients(a * a, [a, b])
    assert found[1] is None
    assert dg.Session().run(found[0]) == [2.0]


def test_a_part_that_nobody_uses_has_zero_gradient() -> None:
    with dg.Graph():
        x = dg.constant([1.0, 2.0, 3.0])
        a, _, _ = dg.unstack(x)
        found = dg.gradients(a * a, x)
    np.testing.assert_array_equal(dg.Session().run(found[0]), [2.0, 0.0, 0.0])


def test_an_axis_of_size_zero_unstacks_to_nothing() -> None:
    assert dg.unstack(np.zeros((0, 2))) == []


@pytest.mark.parametrize("width", [1, (1, 2), ((1, 2),), ((1,), (2,)), ((1, 2), (3, 4)), np.array([[0, 1], [1, 0]])])
@pytest.mark.parametrize("mode", ["constant", "edge", "reflect"])
def test_every_form_of_pad_width_is_read_as_numpy_reads_it(width: Any, mode: Any) -> None:
    np.testing.assert_array_equal(dg.pad(X, width, mode), np.pad(X, width, mode))


def test_pad_width_by_axis() -> None:
    np.testing.assert_array_equal(dg.pad(X, {-1: (1, 2)}), np.pad(X, ((0, 0), (1, 2))))


def test_gradient_of_a_padded_tensor_is_dense() -> None:
    with dg.Graph():
        x = dg.constant(X)
        found = dg.gradients(dg.pad(x, ((1, 0), (0, 0)), "edge"), x)
    np.testing.assert_array_equal(dg.Session().run(found[0]), [[2.0] * 3, [1.0] * 3])


@pytest.mark.parametrize("args", [(5,), (1, 7), (1, 2, 0.25), (5, 0, -2), (0,)])
def test_arange_is_numpys(args: Any) -> None:
    found, expected = dg.arange(*args), np.arange(*args)
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)


def test_constants_are_numpys() -> None:
    np.testing.assert_array_equal(dg.linspace(0, 1, 5, endpoint=False), np.linspace(0, 1, 5, endpoint=False))
    np.testing.assert_array_equal(dg.eye(3, 2, 5), np.eye(3, 2, 5))
    assert dg.arange(3, dtype="float32").dtype == np.float32
    assert dg.eye(2, dtype=bool).dtype == np.bool_


def test_sparse_grids_stay_thin() -> None:
    assert [x.shape for x in dg.meshgrid([1, 2, 3], [4, 5], sparse=True)] == [(1, 3), (2, 1)]


def test_dtypes_are_kept_and_joined_as_numpy_does() -> None:
    i8, f32 = np.ones(2, np.int8), np.ones(2, np.float32)
    assert dg.concatenate([i8, f32]).dtype == np.float32
    assert dg.stack([i8, 1.0 * f32]).dtype == np.float32
    assert [f(i8).dtype for f in (dg.flip, dg.diag, dg.triu)] == [np.int8] * 3
    assert dg.pad(i8, 1, constant_values=3).dtype == np.int8


def test_names_reach_the_graph() -> None:
    with dg.Graph():
        x = dg.constant(X)
        made = [dg.tile(x, 2, name="a"), dg.pad(x, 1, "edge", name="b"), dg.roll(x, 1, name="c")]
    assert [t.op.name for t in made] == ["a", "b", "c"]


@pytest.mark.parametrize("num", [0, 1, 2, 5])
@pytest.mark.parametrize("endpoint", [True, False])
@pytest.mark.parametrize("ends", [(1.0, 3.0), (1, 4), (np.float32(1), np.float32(2)), (np.ones((2, 1)), np.zeros(3))])
def test_linspace_between_tensors_is_that_of_numpy(ends: Any, num: int, endpoint: bool) -> None:
    expected = np.linspace(*ends, num, endpoint=endpoint)
    with dg.Graph():
        made = dg.linspace(dg.constant(ends[0]), ends[1], num, endpoint)
    found = dg.Session().run(made)
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    check_grads(lambda a, b: dg.linspace(a, b, num, endpoint), [np.asarray(x, float) for x in ends], 2)


@pytest.mark.parametrize("k", [-1, 0, 1, 2, 3, 6])
@pytest.mark.parametrize("axes", [(0, 1), (1, 0), (-1, 0)])
def test_rot90_is_that_of_numpy(k: int, axes: Any) -> None:
    x = np.arange(24.0).reshape(2, 3, 4)
    np.testing.assert_array_equal(dg.rot90(x, k, axes), np.rot90(x, k, axes))
    check_grads(lambda x: dg.rot90(x, k, axes), (x,), 2)


def test_rot90_in_no_plane_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"rot90: axes must be two different axes, got \(0, -2\)"):
        dg.rot90(np.ones((2, 2)), 1, (0, -2))


@pytest.mark.parametrize("f", ["dstack", "column_stack"])
@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (2, 3, 4)])
def test_stacking_is_that_of_numpy(f: str, shape: Any) -> None:
    x = np.arange(float(np.prod(shape))).reshape(shape)
    np.testing.assert_array_equal(getattr(dg, f)([x, -x]), getattr(np, f)([x, -x]))


@pytest.mark.parametrize("value", [3, 2.5, True, np.float32(2), np.arange(3)])
@pytest.mark.parametrize("dtype", [None, "float32", "int8"])
def test_full_like_takes_numbers_and_what_broadcasts(value: Any, dtype: Any) -> None:
    for x in (np.ones((2, 3)), np.ones((2, 3), int)):
        found, expected = dg.full_like(x, value, dtype), np.full_like(x, value, dtype)
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)


def test_gradients_flow_to_what_fills() -> None:
    check_grads(lambda v: dg.full_like(np.ones((2, 3)), v), (np.arange(3.0),), 2)
