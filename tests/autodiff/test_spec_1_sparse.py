"""Section 1.10 of the gradient semantics: IndexedSlices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import distgrad as dg
from distgrad.ops.builder import convert

from ..support import assert_values, f32, run

pytestmark = pytest.mark.usefixtures("graph")

G = dg.gradients


def assert_slices(found: Any, values: Any, indices: Any, dense_shape: tuple[int, ...] | None) -> None:
    assert isinstance(found, dg.IndexedSlices)
    got = run(found)
    np.testing.assert_array_equal(got.values, values)
    np.testing.assert_array_equal(got.indices, indices)
    assert got.values.shape == np.shape(values)
    assert got.dense_shape == dense_shape


@pytest.mark.parametrize("params", [lambda: f32(np.ones((4, 2))), lambda: dg.Variable(np.ones((4, 2), np.float32))])
def test_1_66_the_gradient_of_gather_is_sparse_and_keeps_duplicates(params: Any) -> None:
    p = params()
    (g,) = G(dg.gather(p, [1, 3, 1]), p)
    assert_slices(g, np.ones((3, 2)), [1, 3, 1], (4, 2))


@pytest.mark.parametrize(("indices", "flat"), [(2, [2]), ([[0, 1], [1, 3]], [0, 1, 1, 3]), (np.zeros(0, int), [])])
def test_1_66_indices_of_any_rank_are_flattened(indices: Any, flat: Any) -> None:
    p = f32(np.ones((4, 2)))
    (g,) = G(dg.gather(p, indices), p)
    assert_slices(g, np.ones((len(flat), 2)), flat, (4, 2))


def test_1_66_indices_have_no_gradient_and_another_axis_is_dense() -> None:
    p, indices = f32(np.ones((4, 2))), dg.constant([1, 0])
    assert G(dg.gather(p, indices), indices) == [None]
    (g,) = G(dg.gather(p, [1, 1], axis=1), p)
    assert isinstance(g, dg.Tensor)
    np.testing.assert_array_equal(run(g), np.tile([0.0, 2.0], (4, 1)))


def test_1_67_sparse_terms_are_put_one_after_another() -> None:
    p = f32(np.ones((4, 2)))
    for method in (0, 1):
        (g,) = G([dg.gather(p, [0, 1]), 2 * dg.gather(p, [1, 3])], p, aggregation_method=method)
        assert_slices(g, [[1, 1], [1, 1], [2, 2], [2, 2]], [0, 1, 1, 3], (4, 2))


def test_1_67_indices_of_different_dtypes_become_int64() -> None:
    p = f32(np.ones((4, 2)))
    (g,) = G([dg.gather(p, np.array([i], dtype)) for i, dtype in ((0, np.int32), (1, np.int64))], p)
    assert g.indices.dtype == np.int64


@pytest.mark.parametrize("method", [0, 1, 2])
@pytest.mark.parametrize("shapes", [((3,), None), (None, (3,))])
def test_1_67_the_dense_shape_is_that_of_the_first(shapes: Any, method: int) -> None:
    x = f32([1.0, 2.0, 3.0])
    y = dg.identity(x)
    terms = [dg.IndexedSlices(f32([2.0 + i]), dg.constant([i]), shape) for i, shape in enumerate(shapes)]
    (g,) = G([y, y], x, grad_ys=terms, aggregation_method=method)
    assert_slices(g, [2.0, 3.0], [0, 1], shapes[0])


@pytest.mark.parametrize("method", [0, 1, 2])
def test_1_68_one_dense_term_makes_the_sum_dense(method: int) -> None:
    p = f32(np.ones((4, 2)))
    (g,) = G([dg.gather(p, [0, 1]), p * 3], p, aggregation_method=method)
    assert isinstance(g, dg.Tensor)
    assert_values([g], [[[4, 4], [4, 4], [3, 3], [3, 3]]])


def test_1_69_becoming_dense_adds_duplicates() -> None:
    p = f32(np.ones((4, 2)))
    (g,) = G(dg.gather(p, [1, 3, 1]), p)
    assert_values([convert(g)], [[[0, 0], [2, 2], [0, 0], [1, 1]]])


def test_1_69_without_dense_shape_it_cannot_become_dense() -> None:
    sparse = dg.IndexedSlices(f32([2.0]), dg.constant([0]))
    with pytest.raises(ValueError, match=r"has no dense_shape.*Pass dense_shape= to IndexedSlices"):
        convert(sparse)
    x = f32([1.0, 2.0])
    with pytest.raises(TypeError, match=r"cannot add IndexedSlices.* to a dense gradient of .*: it has no dense_shape"):
        G([dg.identity(x), x], x, grad_ys=[sparse, None])


def test_1_70_identity_and_negation_stay_sparse() -> None:
    p = f32(np.ones((4, 2)))
    (g,) = G(dg.gather(dg.identity(-p), [1, 1]), p)
    assert_slices(g, -np.ones((2, 2)), [1, 1], (4, 2))


def test_1_70_other_ops_densify() -> None:
    x = f32(np.ones((4, 2)))
    p = 5 * x
    gx, gp = G(dg.gather(p, [1, 1]), [x, p])
    assert isinstance(gp, dg.IndexedSlices)
    assert isinstance(gx, dg.Tensor)
    assert_values([gx], [[[0, 0], [10, 10], [0, 0], [0, 0]]])


def test_1_70_a_broadcast_operand_gets_the_dense_sum() -> None:
    p, b = f32(np.ones((4, 2))), f32([1.0, 2.0])
    gp, gb = G(dg.gather(p + b, [1, 3, 1]), [p, b])
    assert_slices(gp, np.ones((3, 2)), [1, 3, 1], (4, 2))
    assert_values([gb], [[3.0, 3.0]])


def test_1_70_gather_of_gather() -> None:
    p = f32(np.ones((5, 2)))
    (g,) = G(dg.gather(dg.gather(p, [4, 2, 0]), [1, 1]), p)
    assert_slices(g, [[0, 0], [2, 2], [0, 0]], [4, 2, 0], (5, 2))


def test_1_71_densifying_a_huge_gradient_warns() -> None:
    def sparse(rows: int) -> dg.IndexedSlices:
        return dg.IndexedSlices(f32(np.ones((1, 100))), dg.constant([0]), (rows, 100))

    convert(sparse(999_999))  # a warning would be an error
    with pytest.warns(UserWarning, match=r"\(1000000, 100\) \(400,000,000 bytes\): this may consume a large amount"):
        convert(sparse(1_000_000))


def test_1_72_fetching_gives_the_three_parts() -> None:
    p = f32([1.0, 2.0, 3.0])
    got = run(G(dg.gather(p, [1, 1]) ** 2, p))[0]
    assert isinstance(got, dg.IndexedSlicesValue)
    np.testing.assert_array_equal(got.values, [4.0, 4.0])
    np.testing.assert_array_equal(got.indices, [1, 1])
    assert got.dense_shape == (3,)


def test_1_72_second_order_through_the_values_or_the_dense_tensor() -> None:
    p = f32([1.0, 2.0, 3.0])
    (g,) = G(dg.gather(p, [1, 1]) ** 2, p)
    (by_values,) = G(g.values, p)
    assert_slices(by_values, [2.0, 2.0], [1, 1], (3,))
    assert_values(G(convert(g), p), [[0.0, 4.0, 0.0]])


def test_1_72_as_y_it_stands_for_its_values() -> None:
    p = f32([1.0, 2.0, 3.0])
    (g,) = G(dg.gather(p, [1, 1]) ** 2, p)
    (found,) = G(g, p)
    assert_slices(found, [2.0, 2.0], [1, 1], (3,))


@pytest.mark.parametrize(
    ("values", "dense_shape"), [([[1.0]], (4, 2)), ([[1.0, 2.0]], ()), ([[1.0, 2.0], [3.0, 4.0]], (4, 2))]
)
def test_values_that_are_not_rows_of_the_dense_shape_are_refused(values: list[list[float]], dense_shape: Any) -> None:
    with pytest.raises(ValueError, match=r"IndexedSlices: values of shape .* are not rows of a tensor of shape"):
        dg.IndexedSlices(dg.constant(values), dg.constant([1]), dense_shape)


def test_sparse_gradients_stay_sparse_through_a_concatenation_of_rows() -> None:
    a, b = f32(np.ones((3, 2))), f32(np.ones((2, 2)))
    first, second = G(dg.gather(dg.concatenate([a, b]), [1, 4, -1, 0]), [a, b])
    assert_slices(first, np.ones((2, 2)), [1, 0], (3, 2))
    assert_slices(second, np.ones((2, 2)), [1, 1], (2, 2))


def test_indices_that_are_known_only_in_the_run_pad_the_rows_of_each_part_with_zeros() -> None:
    a, b, none = f32(np.ones((3, 2))), f32(np.ones((2, 2))), f32(np.ones((0, 2)))
    indices = dg.constant([[1, 4], [-1, 0]]) + 0
    whole = dg.gather(dg.concatenate([a, none, b]), indices)
    first, empty, second = G(whole * np.inf, [a, none, b])
    assert_slices(first, np.float32([[np.inf] * 2, [0, 0], [0, 0], [np.inf] * 2]), [1, 0, 0, 0], (3, 2))
    assert_slices(empty, np.zeros((0, 2)), [], (0, 2))
    assert_slices(second, np.float32([[0, 0], [np.inf] * 2, [np.inf] * 2, [0, 0]]), [0, 1, 1, 0], (2, 2))


def test_sparse_gradients_stay_sparse_through_a_concatenation_of_columns() -> None:
    a, b = f32(np.ones((3, 2))), f32(np.ones((3, 1)))
    first, second = G(dg.gather(dg.concatenate([a, b], axis=1), [2, 2]) * f32([1.0, 2.0, 3.0]), [a, b])
    assert_slices(first, [[1, 2], [1, 2]], [2, 2], (3, 2))
    assert_slices(second, [[3], [3]], [2, 2], (3, 1))
