"""distgrad/ops/index.py beyond the op table: all keys of NumPy, sparse gradients, errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import distgrad as dg
from distgrad.ops.indexed_slices import densify
from distgrad.testing import check_grads
from distgrad.workers.kernels import KERNELS

from ..cases.index import scattered

X = np.arange(6.0).reshape(2, 3)

# -- any key that NumPy takes ------------------------------------------------------------------------------------


def slices(n: int) -> st.SearchStrategy[slice]:
    bound = st.none() | st.integers(-n - 2, n + 2)
    return st.builds(slice, bound, bound, st.none() | st.integers(-3, 3).filter(bool))


def index_arrays(draw: Any, n: int, shape: tuple[int, ...]) -> Any:
    """Integers for an axis of size n in a shape that broadcasts to `shape`."""
    cut = draw(st.integers(0, len(shape)))
    mine = tuple(draw(st.sampled_from([1, size])) for size in shape[cut:])
    count = int(np.prod(mine, dtype=int))
    return np.array(draw(st.lists(st.integers(-n, n - 1), min_size=count, max_size=count)), int).reshape(mine)


def masks(draw: Any, n: int, count: int) -> Any:
    mask = np.zeros(n, bool)
    mask[draw(st.permutations(range(n)))[:count]] = True
    return mask


@st.composite
def keys(draw: Any) -> tuple[tuple[int, ...], Any]:
    """A shape, and a key for it: ints, slices, index arrays, masks, new axes, perhaps one ellipsis."""
    shape = tuple(draw(st.lists(st.integers(0, 4), max_size=4)))
    common = tuple(draw(st.lists(st.integers(0, 3), max_size=2)))
    entries: list[Any] = []
    for n in shape[: draw(st.integers(0, len(shape)))]:
        kinds = ["slice", "slice", "int", "array", "array", "mask"] if n else ["slice"]
        kind = draw(st.sampled_from(kinds))
        if kind == "int":
            entries.append(draw(st.integers(-n, n - 1)))
        elif kind == "array":
            entries.append(index_arrays(draw, n, common))
        elif kind == "mask":
            entries.append(masks(draw, n, 1))
        else:
            entries.append(draw(slices(n)))
    for _ in range(draw(st.integers(0, 2))):
        entries.insert(draw(st.integers(0, len(entries))), None)
    if draw(st.booleans()):
        entries.append(Ellipsis)
    return shape, tuple(entries)


def is_array(k: Any) -> bool:
    return isinstance(k, np.ndarray) and k.dtype.kind != "b"


@settings(max_examples=300, deadline=None)
@given(keys())
def test_a_key_gives_what_numpy_gives(drawn: Any) -> None:
    shape, key = drawn
    x = np.arange(np.prod(shape, dtype=int), dtype=float).reshape(shape)
    found = dg.getitem(x, key)
    np.testing.assert_array_equal(found, x[key], strict=True)


@settings(max_examples=100, deadline=None)
@given(keys())
def test_index_arrays_may_be_tensors(drawn: Any) -> None:
    shape, key = drawn
    x = np.arange(np.prod(shape, dtype=int), dtype=float).reshape(shape)
    with dg.Graph():
        holes = {dg.placeholder(k.shape, int): k for k in key if is_array(k)}
        rest = iter(holes)
        y = dg.getitem(dg.constant(x), tuple(next(rest) if is_array(k) else k for k in key))
    assert y.shape == x[key].shape
    np.testing.assert_array_equal(dg.Session().run(y, holes), x[key], strict=True)


@settings(max_examples=100, deadline=None)
@given(keys())
def test_the_gradient_of_a_key_adds_up_what_it_took(drawn: Any) -> None:
    shape, key = drawn
    x = np.zeros(shape)
    g = np.arange(1.0, 1.0 + x[key].size).reshape(x[key].shape)
    with dg.Graph():
        t = dg.constant(x)
        found = dg.gradients(dg.getitem(t, key), t, grad_ys=g)
    np.testing.assert_array_equal(dg.Session().run(found[0]), scattered(g, key, shape), strict=True)


@settings(max_examples=40, deadline=None)
@given(keys(), st.integers(0, 99))
def test_gradients_of_a_key_equal_finite_differences(drawn: Any, seed: int) -> None:
    shape, key = drawn
    x = np.random.default_rng(seed).uniform(-1, 1, shape)
    check_grads(lambda x: dg.getitem(x, key) * dg.getitem(dg.sin(x), key), [x])


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 5), st.integers(0, 3), st.data())
def test_rows_are_added_in_their_order(n: int, width: int, data: Any) -> None:
    ids = np.array(data.draw(st.lists(st.integers(0, n - 1), max_size=20)), int)
    rows = np.random.default_rng(len(ids)).standard_normal((len(ids), width)).astype(np.float32)
    expected = np.zeros((n, width), np.float32)
    for i, row in zip(ids, rows, strict=True):
        expected[i] += row
    np.testing.assert_array_equal(dg.unsorted_segment_sum(rows, ids, n), expected, strict=True)
    np.testing.assert_array_equal(dg.scatter_add(np.zeros_like(expected), ids, rows), expected, strict=True)
    np.testing.assert_array_equal(dg.scatter(rows, (ids,), (n, width)), expected, strict=True)


# -- errors ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "error", "message"),
    [
        (2, IndexError, "index 2 is out of bounds for axis 0 with size 2"),
        ((0, -4), IndexError, "index -4 is out of bounds for axis 1 with size 3"),
        (([0], [1], [0]), IndexError, r"too many indices: 3 for a tensor of shape \[2, 3\]"),
        ((..., 0, ...), IndexError, "only one ellipsis"),
        (1.5, IndexError, "only ints, slices"),
        ("a", IndexError, "only ints, slices"),
        ([0.0, 1.0], IndexError, "only ints, slices"),
        ([0, 5], IndexError, "index 5 is out of bounds for axis 0 with size 2"),
        ((slice(None), [-4]), IndexError, "index -4 is out of bounds for axis 1 with size 3"),
        (([0, 1], [0, 1, 2]), IndexError, r"shapes \[2\], \[3\] cannot be broadcast together"),
        (np.ones(3, bool), IndexError, r"mask of shape \[3\] does not match axes of shape \[2\]"),
        (True, IndexError, "True is a boolean, not an index"),
        (slice(None, None, 0), ValueError, "slice step cannot be zero"),
    ],
)
def test_a_bad_key_is_an_error_when_built(key: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        dg.getitem(X, key)
    with dg.Graph(), pytest.raises(error, match=message):
        dg.getitem(dg.constant(X), key)


def test_a_mask_that_is_a_tensor_is_refused() -> None:
    with dg.Graph():
        x = dg.constant(X)
        with pytest.raises(TypeError, match=r"shape of the result would depend on data. Use where\(mask, x, 0\)"):
            dg.getitem(x, x > 2)


def test_slice_bounds_that_are_tensors_are_refused() -> None:
    with dg.Graph():
        x = dg.constant(X)
        with pytest.raises(TypeError, match="depend on data"):
            dg.getitem(x, slice(dg.constant(0), None))


@pytest.mark.parametrize(
    "build",
    [
        dg.gather,
        lambda x, i: dg.gather(x, i, 1),
        lambda x, i: dg.getitem(x, i),
        lambda x, i: dg.take(x, i, axis=0),
        lambda x, i: dg.scatter_add(x, i, 1.0),
        lambda x, i: dg.scatter(1.0, (i,), 3),
        lambda x, i: dg.unsorted_segment_sum(x, i, 3),
    ],
)
@pytest.mark.parametrize("bad", [7, -7])
def test_indices_out_of_range_are_an_error_as_soon_as_they_are_known(build: Callable[..., Any], bad: int) -> None:
    with dg.Graph():
        x = dg.constant(X)
        with pytest.raises(IndexError, match=f"index {bad} is out of bounds"):
            build(x, [0, bad])
        with pytest.raises(IndexError, match=f"index {bad} is out of bounds"):
            build(x, dg.constant([0, bad]))
        i = dg.placeholder((2,), int)
        y = build(x, i)
    with pytest.raises(IndexError, match=f"index {bad} is out of bounds"):
        dg.Session().run(y, {i: [0, bad]})


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (lambda x: dg.gather(x, [0.5]), TypeError, "indices must be integers, got dtype float64"),
        (lambda x: dg.gather(1.0, [0]), ValueError, "params is 0-d"),
        (lambda x: dg.gather(x, [0], 2), np.exceptions.AxisError, "out of bounds"),
        (lambda x: dg.take(x, [0], mode="no"), ValueError, "mode must be"),
        (lambda x: dg.take_along_axis(x, [0]), ValueError, r"shape \[1\] must have the same number of axes as arr"),
        (lambda x: dg.scatter_add(x, [0], np.ones((2, 3))), ValueError, r"\[2, 3\].*\[1, 3\]"),
        (lambda x: dg.scatter_nd(0, x, 3), ValueError, "indices must have at least 1 axis"),
        (lambda x: dg.unsorted_segment_sum(x, [0, 0, 0], 2), ValueError, r"\[2, 3\] must begin with the shape \[3\]"),
    ],
)
def test_errors_name_the_argument(build: Callable[[Any], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        build(X)


# -- sparse gradients: p has 4 rows of ones ----------------------------------------------------------------------


def sparse_gradient(indices: Any, build: Callable[[Any, Any], Any] = dg.gather) -> Any:
    with dg.Graph():
        p = dg.constant(np.ones((4, 2)))
        (g,) = dg.gradients(build(p, indices), p)
    assert isinstance(g, dg.IndexedSlices)
    assert g.dense_shape == (4, 2)
    return dg.Session().run(g)


@pytest.mark.parametrize(
    ("indices", "flat"), [([1, 3, 1], [1, 3, 1]), (2, [2]), ([[0, 1], [1, 3]], [0, 1, 1, 3]), ([], []), ([-1], [3])]
)
def test_gather_along_axis_0_has_a_sparse_gradient_with_duplicates_kept(indices: Any, flat: list[int]) -> None:
    found = sparse_gradient(indices)
    np.testing.assert_array_equal(found.indices, flat)
    np.testing.assert_array_equal(found.values, np.ones((len(flat), 2)), strict=True)


def test_negative_indices_that_are_fed_name_rows_from_the_start_in_the_gradient() -> None:
    with dg.Graph():
        p, i = dg.constant(np.ones((300, 2))), dg.placeholder((2,), "int8")
        (g,) = dg.gradients(dg.gather(p, i), p)
    np.testing.assert_array_equal(dg.Session().run(g, {i: [-1, 5]}).indices, [299, 5])


def test_sparse_terms_are_put_one_after_another() -> None:
    found = sparse_gradient([0, 1], lambda p, i: dg.gather(p, i) + 2 * dg.gather(p, [1, 3]))
    assert sorted(found.indices) == [0, 1, 1, 3]
    assert sorted(found.values[:, 0]) == [1, 1, 2, 2]


def test_a_dense_term_makes_the_sum_dense() -> None:
    with dg.Graph():
        p = dg.constant(np.ones((4, 2)))
        (g,) = dg.gradients([dg.gather(p, [0, 1]), p * 3], p)
    np.testing.assert_array_equal(dg.Session().run(g)[:, 0], [4, 4, 3, 3])


def test_gather_along_another_axis_has_a_dense_gradient_and_indices_none() -> None:
    with dg.Graph():
        p, i = dg.constant(np.ones((4, 2))), dg.constant([1, 1])
        g, none = dg.gradients(dg.gather(p, i, axis=1), [p, i])
    assert none is None
    np.testing.assert_array_equal(dg.Session().run(g), [[0, 2]] * 4)


def test_gather_of_a_gather_is_sparse_on_the_first() -> None:
    with dg.Graph():
        p = dg.constant(np.ones((5, 1)))
        (g,) = dg.gradients(dg.gather(dg.gather(p, [4, 2, 0]), [1, 1]), p)
    found = dg.Session().run(g)
    np.testing.assert_array_equal(found.indices, [4, 2, 0])
    np.testing.assert_array_equal(found.values, [[0], [2], [0]])


def test_second_order_flows_through_sparse_values_and_through_the_dense_sum() -> None:
    with dg.Graph():
        p = dg.constant([1.0, 2.0, 3.0])
        (g,) = dg.gradients(dg.square(dg.gather(p, [1, 1])), p)
        (of_values,) = dg.gradients(g.values, p)
        (of_dense,) = dg.gradients(dg.square(densify(g)), p)
        first, second, third = dg.Session().run([g, of_values, densify(of_dense)])
    np.testing.assert_array_equal(first.values, [4, 4])
    np.testing.assert_array_equal(second.values, [2, 2])
    np.testing.assert_array_equal(second.indices, [1, 1])
    np.testing.assert_array_equal(third, [0, 64, 0])  # (2 p + 2 p)^2 = 16 p^2 at p = 2


def test_a_variable_that_is_gathered_has_a_sparse_gradient() -> None:
    v = dg.Variable(np.ones((4, 2)))

    @dg.function
    def gradient() -> Any:
        return dg.gradients(dg.gather(v, [3, 3]), v)[0]

    made = gradient()
    assert isinstance(made, dg.IndexedSlicesValue)
    np.testing.assert_array_equal(made.indices, [3, 3])
    np.testing.assert_array_equal(made.values, np.ones((2, 2)))
    np.testing.assert_array_equal(made.dense_shape, [4, 2])


# -- the rest ----------------------------------------------------------------------------------------------------


def test_one_hot_has_ones_at_the_index_and_nothing_out_of_range() -> None:
    np.testing.assert_array_equal(dg.one_hot([[0, 2], [3, -1]], 3), [[[1, 0, 0], [0, 0, 1]], [[0] * 3] * 2])
    assert dg.one_hot([0], 2).dtype == np.float64
    assert dg.one_hot([0], 2, dtype="int8").dtype == np.int8


def test_basic_keys_are_one_op_each_way() -> None:
    with dg.Graph() as graph:
        x = dg.constant(X)
        dg.gradients(dg.getitem(x, (None, 0, slice(None, None, -1))), x)
    assert [op.type for op in graph.ops if op.type not in ("Const", "Fill")] == ["StridedSlice", "StridedSliceGrad"]


def test_equal_keys_have_equal_attributes() -> None:
    with dg.Graph():
        x = dg.constant(X)
        keys: list[Any] = [(slice(None), slice(0, 3)), (..., slice(None)), (), slice(0, 99)]
        assert len({dg.getitem(x, key).op.attrs["index"] for key in keys}) == 1


@pytest.mark.parametrize("op_type", ["ScatterAdd", "UnsortedSegmentSum", "AdvancedIndexGrad"])
def test_scattering_leaves_its_inputs_alone(op_type: str) -> None:
    x, i, u = np.zeros(3), np.array([0, 0]), np.ones(2)
    for array in (x, i, u):
        array.flags.writeable = False
    inputs = {"ScatterAdd": (x, i, u)}.get(op_type, (u, i))
    attrs: dict[str, Any] = {
        "UnsortedSegmentSum": {"num_segments": 3},
        "AdvancedIndexGrad": {"index": ("array",), "shape": (3,)},
    }.get(op_type, {})
    np.testing.assert_array_equal(KERNELS[op_type](np, *inputs, **attrs), [2, 0, 0])
