"""NumPy's statements on traced arrays: what they mean, and where they are refused."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import distgrad as dg
import distgrad.numpy as dnp
from distgrad.testing import check_grads

X = np.random.default_rng(0).normal(size=(3, 4))


def same(f: Callable[..., Any], *arrays: Any) -> None:
    """The function gives with tensors what it gives with arrays, and its gradients are those of differences."""
    expected = f(np, *[np.array(x) for x in arrays])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for space in (np, dnp):
            found = dg.function(lambda *xs, space=space: f(space, *xs))(*arrays)
            for a, b in zip(found, expected, strict=True):
                assert np.asarray(a).dtype == np.asarray(b).dtype
                np.testing.assert_allclose(a, b, rtol=1e-12)


def test_an_assignment_is_seen_by_all_who_hold_the_array() -> None:
    def f(np: Any, x: Any) -> Any:
        y = x * 2
        z, w = y, [y]
        y[0] = 1.0
        w[0] += 1
        return y, z, w[0]

    same(f, X)


def test_a_view_is_read_again_and_written_through() -> None:
    def f(np: Any, x: Any) -> Any:
        y = x * 2
        row, turned, flat, part = y[1], y.T, y.reshape(-1), np.split(y, [1])[1]
        y[1, 2] = 10.0
        turned[0] = 5.0
        flat[1] -= 1
        part[-1] *= 2
        return y, row, turned, flat, part

    same(f, X)


def test_views_that_were_made_before_the_first_assignment_are_found() -> None:
    def f(np: Any, x: Any) -> Any:
        y = np.exp(x)
        v = y[1:].T
        w = v[::2]
        total = np.sum(w)
        y[2] = 0.0
        return w, total, np.sum(w)

    same(f, X)


def test_scalars_are_no_arrays() -> None:
    def f(np: Any, x: Any) -> Any:
        s = x[0, 0]
        t = s
        s += 1
        mean = x.mean()
        mean *= 2
        return x, s, t, mean

    same(f, X)


def test_an_array_without_axes_is_an_array() -> None:
    def f(x: Any) -> Any:
        a = dnp.zeros(())
        b = a
        a += x[0, 0]
        c = x[1, 1, ...]
        c += 1
        return a, b, x

    with pytest.warns(UserWarning, match="assigns to its argument x"):
        a, b, x = dg.function(f)(X)
    assert a == b == X[0, 0]
    assert x[1, 1] == X[1, 1] + 1


def test_repeated_indices_keep_the_last_and_add_at_adds() -> None:
    def f(np: Any, x: Any, v: Any) -> Any:
        y, z = x * 1, x * 1
        y[[0, 0, 2]] += v
        np.add.at(z, [0, 0, 2], v)
        return y, z

    same(f, X, X[::-1].copy())
    check_grads(lambda x, v: dg.function(lambda x, v: f(np, x, v))(x, v), (X, X * 2), 2)


def test_an_element_truncates_and_an_operator_does_not() -> None:
    def f(x: Any) -> Any:
        n = dnp.zeros(3, dtype=int)
        n[:] = x[0, :3] * 10
        return n

    np.testing.assert_array_equal(dg.function(f)(X), (X[0, :3] * 10).astype(int))

    def g(x: Any) -> Any:
        n = dnp.zeros(3, dtype=int)
        n += x[0, :3]
        return n

    with pytest.raises(TypeError, match="casting rule 'same_kind'"):
        dg.function(g)(X)


def test_explain_gradient_names_the_line_that_truncates() -> None:
    @dg.function
    def f(x: Any) -> Any:
        n = dnp.zeros(4, dtype=int)
        n[:] = x[0]
        y = n * 1.0
        found.append(str(dg.explain_gradient(y, x)))
        return y

    found: list[str] = []
    f(X)
    assert "Cast" in found[0]


def test_complex_numbers_are_not_assigned_to_real_arrays() -> None:
    def f(x: Any) -> Any:
        y = x * 2
        y[0] = x[0] * 1j
        return y

    with pytest.raises(TypeError, match="would lose the imaginary part"):
        dg.function(f)(X)


def test_masks() -> None:
    def f(np: Any, x: Any) -> Any:
        y = x * 2
        mask = y > 0.3
        y[mask] += 1
        y[mask] = y[mask] ** 2 - 1
        y[y < -1] = -1.0
        return y, y[mask].sum(), y[mask].mean(), np.max(y[mask])

    same(f, X)
    check_grads(lambda x: dg.function(lambda x: f(np, x))(x), (X,), 2)


@pytest.mark.parametrize(
    "use",
    [len, list, lambda v: v.shape, lambda v: v[0], lambda v: v + np.ones(5), np.sort, lambda v: np.ones(3) @ v],
)
def test_a_masked_value_has_no_number_of_elements(use: Callable[[Any], Any]) -> None:
    with pytest.raises(TypeError, match=r"where\(mask, x, 0\) keeps the shape"):
        dg.function(lambda x: use(x[x > 0]))(X)


def test_values_of_different_masks_do_not_mix() -> None:
    def f(x: Any) -> Any:
        y = x * 1
        y[y > 0] = y[y > 1]
        return y

    with pytest.raises(TypeError, match="another mask"):
        dg.function(f)(X)


def test_out() -> None:
    def f(np: Any, x: Any) -> Any:
        y = x * 0
        z = np.sin(x, out=y[1:].T if False else y)
        np.multiply(y[0], 3.0, out=y[1])
        np.sum(x, axis=0, out=y[2])
        return y, z

    same(f, X)


def test_a_numpy_array_that_is_assigned_a_tensor_names_the_remedy() -> None:
    def f(x: Any) -> Any:
        y = np.zeros(3)
        y[0] = x[0, 0]
        return y

    with pytest.raises(TypeError, match=r"`import distgrad\.numpy as np` in place of `import numpy as np`") as e:
        dg.function(f)(X)
    assert e.traceback[-1].name == "f"


def test_a_hand_built_graph_shows_at() -> None:
    with dg.Graph():
        x = dg.constant(X)
        with pytest.raises(TypeError, match=r"x = x\.at\[1:, 0\]\.set\(value\)"):
            x[1:, 0] = 1.0
        y = x
        y += 1
        assert y is not x


@pytest.mark.parametrize("decorate", [dg.recompute_grad, lambda f: dg.custom_gradient(lambda x: (f(x), lambda g: g))])
def test_a_body_may_assign_only_what_it_made(decorate: Callable[[Any], Any]) -> None:
    def good(x: Any) -> Any:
        y = x * 2
        y[0] = 3.0
        return y

    dg.grad(lambda x: np.sum(decorate(good)(x)))(X)

    def run(x: Any) -> Any:
        outer = x * 1

        def bad(x: Any) -> Any:
            outer[0] = 1.0
            return x * outer

        return np.sum(decorate(bad)(x))

    with pytest.raises(TypeError, match=r"made outside .* Return the new value"):
        dg.grad(run)(X)


def test_a_function_called_in_a_trace_may_not_assign_what_it_captures() -> None:
    def run(x: Any) -> Any:
        outer = x * 1

        @dg.function
        def inner(y: Any) -> Any:
            outer[0] = y[0]
            return y

        return inner(x)

    with pytest.raises(TypeError, match=r"from the body of another function.*Return the new value"):
        dg.function(run)(X)


def test_gradients_ask_for_the_value_of_now_and_grad_for_that_of_the_argument() -> None:
    @dg.function
    def f(x: Any) -> Any:
        y = x * 2
        old = np.sum(y * y)
        y[0] = 0.0
        return dg.gradients(np.sum(y * 3), y)[0], dg.gradients(old, y, unconnected_gradients="zero")[0]

    new, old = f(X)
    np.testing.assert_array_equal(new, np.full((3, 4), 3.0))
    np.testing.assert_array_equal(old, np.zeros((3, 4)))

    def g(x: Any) -> Any:
        x[0] = 5.0
        x *= 2
        return np.sum(x)

    found = dg.grad(g)(X)
    np.testing.assert_array_equal(found, [[0.0] * 4, [2.0] * 4, [2.0] * 4])


def test_gradients_are_arrays_of_their_own() -> None:
    @dg.function
    def f(x: Any, y: Any) -> Any:
        a, b = dg.gradients(np.sum(x + y), [x, y])
        a[0] = 7.0
        return a, b

    a, b = f(X, X)
    assert a[0, 0] == 7.0
    assert b[0, 0] == 1.0


def test_a_pullback_keeps_the_value_of_its_time() -> None:
    @dg.function
    def f(x: Any) -> Any:
        y, pullback = dg.vjp(lambda x: x * x, x)
        y[0] = 100.0
        return pullback(np.ones((3, 4)))[0]

    np.testing.assert_allclose(f(X), 2 * X)


def test_whether_numpy_copies_is_not_guessed() -> None:
    def f(x: Any) -> Any:
        y = x[:, [0, 1]]  # its layout is NumPy's secret
        flat = y.reshape(-1)
        flat[0] = 1.0
        return y

    with pytest.raises(ValueError, match=r"depending on the array's layout.*\.copy\(\)"):
        dg.function(f)(X)

    def g(x: Any) -> Any:
        y = x[:, [0, 1]]
        flat = y.reshape(-1)
        y[0] = 1.0
        return flat

    with pytest.raises(ValueError, match="the array that it may be a view of was assigned"):
        dg.function(g)(X)


def test_reading_an_uncertain_view_works() -> None:
    np.testing.assert_array_equal(dg.function(lambda x: x[:, [0, 1]].reshape(-1) * 1)(X), X[:, [0, 1]].reshape(-1))


def test_at_makes_new_tensors() -> None:
    with dg.Graph():
        x = dg.constant(X)
        made = [x.at[0].set(1.0), x.at[[0, 0]].add(1.0), x.at[x > 0].multiply(2.0), x.at[:, 1].max(0.0), x.at[1].min(0)]
        got = dg.Session().run([*made, x, x.at[1, 2].get()])
    expected = [X.copy() for _ in range(5)]
    expected[0][0] = 1.0
    np.add.at(expected[1], [0, 0], 1.0)
    expected[2][X > 0] *= 2.0
    expected[3][:, 1] = np.maximum(X[:, 1], 0)
    expected[4][1] = np.minimum(X[1], 0)
    for a, b in zip(got, [*expected, X, X[1, 2]], strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_chain_of_elements() -> None:
    def f(x: Any) -> Any:
        y = dnp.empty_like(x)
        y[0] = x[0]
        for i in range(1, len(x)):
            y[i] = np.sin(y[i - 1]) + x[i]
        return y

    check_grads(lambda x: dg.function(f)(x), (X[0],), 2)


def test_nothing_is_paid_for_assignments_that_are_not_there() -> None:
    """Tensors of a trace stay what they are, and no op is added for names."""

    @dg.function
    def f(x: Any) -> Any:
        y = x[1:] * 2
        assert type(y) is dg.Tensor
        return y.T

    body = f.body(X)
    assert [op.type for op in body.ops if op.type != "Const"] == ["Placeholder", "StridedSlice", "Mul", "Transpose"]
