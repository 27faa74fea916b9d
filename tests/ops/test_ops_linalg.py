"""Products and linear algebra beyond the rows of the op table: composites, errors, dtypes, structure."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import distgrad as dg
from distgrad import nest
from distgrad.testing import check_grads

from ..cases.case import Case, apart, arr
from ..cases.linalg import CASES as LINALG
from ..cases.linalg import adjoint, spectral, well
from ..cases.matmul import CASES as MATMUL

INF = math.inf


def run(build: Callable[..., Any], *inputs: Any) -> Any:
    """The value of build(*inputs) in a graph."""
    with dg.Graph():
        made = build(*[dg.constant(x) for x in inputs])
        return dg.Session().run(made)


def gradient(build: Callable[..., Any], *inputs: Any) -> list[Any]:
    """The gradients of the sum of build(*inputs) in a graph."""
    with dg.Graph():
        xs = [dg.constant(x) for x in inputs]
        return dg.Session().run(dg.gradients(build(*xs), xs))


def recorded(build: Callable[..., Any], *inputs: Any) -> list[str]:
    """The types of the ops that the gradients of build(*inputs) add."""
    with dg.Graph() as graph:
        xs = [dg.constant(x) for x in inputs]
        y = build(*xs)
        before = len(graph.ops)
        dg.gradients(y, xs)
    return [op.type for op in graph.ops[before:]]


# -- functions made of other ops ---------------------------------------------------------------------------------

COMPOSITES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "dot with a scalar": (lambda m, a, b: m.dot(a, b), (arr(2, 3), arr())),
    "inner with a scalar": (lambda m, a, b: m.inner(a, b), (arr(), arr(3))),
    "outer": (lambda m, a, b: m.outer(a, b), (arr(2, 2), arr(3))),
    "outer of nothing": (lambda m, a, b: m.outer(a, b), (arr(0), arr(3))),
    "kron of vectors": (lambda m, a, b: m.kron(a, b), (arr(2), arr(3))),
    "kron of matrices": (lambda m, a, b: m.kron(a, b), (arr(2, 3), arr(3, 2))),
    "kron of different ranks": (lambda m, a, b: m.kron(a, b), (arr(2), arr(2, 3, 2))),
    "trace": (lambda m, a: m.linalg.trace(a), (arr(2, 3, 3),)),
    "trace off the diagonal": (lambda m, a: m.linalg.trace(a, offset=-1), (arr(2, 3, 4),)),
    "matrix_power 0": (lambda m, a: m.linalg.matrix_power(a, 0) * a, (arr(2, 3, 3),)),
    "matrix_power 1": (lambda m, a: m.linalg.matrix_power(a, 1), (arr(3, 3),)),
    "matrix_power 5": (lambda m, a: m.linalg.matrix_power(a, 5), (arr(2, 2, 2),)),
    "matrix_power -3": (lambda m, a: m.linalg.matrix_power(a, -3), (well(2, 2),)),
    "multi_dot of two": (lambda m, a, b: m.linalg.multi_dot([a, b]), (arr(2, 3), arr(3))),
    "multi_dot": (lambda m, *xs: m.linalg.multi_dot(xs), (arr(5, 2), arr(2, 6), arr(6, 1), arr(1, 4))),
    "multi_dot of vectors": (lambda m, *xs: m.linalg.multi_dot(xs), (arr(2), arr(2, 4), arr(4))),
}
NORMS: list[tuple[tuple[int, ...], dict[str, Any]]] = [
    ((4,), {}),
    ((2, 3), {}),
    ((2, 3, 4), {"keepdims": True}),
    *[((5,), {"ord": ord}) for ord in (None, 0, 1, 2, 3, 2.5, -1, INF, -INF)],
    *[((2, 5), {"ord": ord, "axis": -1, "keepdims": True}) for ord in (None, 0, 1, 2, 3, INF, -INF)],
    ((2, 3, 4), {"axis": (1,), "ord": 1}),
    *[((3, 4), {"ord": ord}) for ord in (None, "fro", "nuc", 1, -1, 2, -2, INF, -INF)],
    *[((2, 3, 4), {"ord": ord, "axis": (2, 0), "keepdims": True}) for ord in (None, "fro", "nuc", 1, 2, INF)],
]


@pytest.mark.parametrize(("f", "inputs"), COMPOSITES.values(), ids=COMPOSITES)
@pytest.mark.parametrize("complex", [False, True])
def test_composite_has_numpys_values_and_right_gradients(
    f: Callable[..., Any], inputs: tuple[Any, ...], complex: bool
) -> None:
    inputs = tuple(x + 0.3j * arr(*x.shape, seed=1) for x in inputs) if complex else inputs
    expected = f(np, *inputs)
    np.testing.assert_allclose(f(dg, *inputs), expected, rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(run(lambda *xs: f(dg, *xs), *inputs), f(dg, *inputs))
    check_grads(lambda *xs: f(dg, *xs), inputs)


@pytest.mark.parametrize(("shape", "options"), NORMS, ids=map(str, NORMS))
@pytest.mark.parametrize("complex", [False, True])
def test_norm_has_numpys_values_and_right_gradients(
    shape: tuple[int, ...], options: dict[str, Any], complex: bool
) -> None:
    size = apart(*shape)
    x = (size - size.min() + 0.3) * np.sign(arr(*shape, seed=1))
    x = x + 0.3j * arr(*shape, seed=2) if complex else x
    found = dg.linalg.norm(x, **options)
    expected = np.linalg.norm(x, **options)
    assert np.shape(found) == np.shape(expected)
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    assert dg.linalg.norm(x.astype(np.complex64 if complex else np.float32), **options).dtype == np.float32
    check_grads(lambda x: dg.linalg.norm(x, **options), [x])


@pytest.mark.parametrize("ord", [None, 2, 3, 1])
def test_gradient_of_the_norm_of_zeros_is_zero(ord: Any) -> None:
    (g,) = gradient(lambda x: dg.linalg.norm(x, ord, axis=-1), np.array([[0.0, 0.0], [3.0, 4.0]]))
    np.testing.assert_array_equal(g[0], [0, 0])
    assert np.isfinite(g).all()


def test_norm_of_integers_is_float64() -> None:
    np.testing.assert_equal(dg.linalg.norm(np.array([3, 4])), np.array(5.0))


def test_norm_of_a_scalar_is_its_size() -> None:
    np.testing.assert_equal(dg.linalg.norm(-3.0), np.array(3.0))


# -- products ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("transpose_a", [False, True])
@pytest.mark.parametrize("transpose_b", [False, True])
def test_gradients_of_matmul_record_no_transpose(transpose_a: bool, transpose_b: bool) -> None:
    a = arr(3, 2) if transpose_a else arr(2, 3)
    b = arr(4, 3) if transpose_b else arr(3, 4)
    made = recorded(lambda a, b: dg.matmul(a, b, transpose_a, transpose_b), a, b)
    assert sorted(made) == ["Fill", "MatMul", "MatMul"]


def test_gradient_of_shared_weights_is_one_product_not_a_summed_batch() -> None:
    assert "Sum" not in recorded(dg.matmul, arr(8, 5, 3), arr(3, 4))


def test_einsum_of_many_operands_records_pairs_in_the_cheapest_order() -> None:
    with dg.Graph() as graph:
        dg.einsum("ij,jk,k->i", *[dg.constant(x) for x in (arr(9, 8), arr(8, 7), arr(7))])
    assert [op.attrs["equation"] for op in graph.ops if op.type == "Einsum"] == ["ab,b->a", "ab,b->a"]


def draw_einsum(rng: np.random.Generator) -> tuple[str, list[Any]]:
    """Random subscripts and operands: diagonals, ellipses, unit and empty axes, one to four operands; not all valid."""
    size = {c: int(rng.choice([1, 2, 3, 0], p=[0.2, 0.4, 0.35, 0.05])) for c in "abcAB"}
    batch = rng.integers(1, 4, rng.integers(0, 3))
    terms, operands = [], []
    for _ in range(rng.integers(1, 5)):
        term = list(rng.choice([*size], rng.integers(0, 4)))
        unit = {c: rng.random() < 0.15 for c in term}
        shape = [1 if unit[c] else size[c] for c in term]
        if rng.random() < 0.4:
            at, skipped = rng.integers(0, len(term) + 1), rng.integers(0, len(batch) + 1)
            term.insert(at, "...")
            shape[at:at] = batch[skipped:]
        terms.append("".join(term))
        operands.append(rng.normal(size=shape))
    subscripts = ",".join(terms)
    if rng.random() < 0.6:
        letters = rng.permutation([*dict.fromkeys(c for c in subscripts if c.isalpha())])
        kept = [str(c) for c in letters[: rng.integers(0, len(letters) + 1)]]
        subscripts += "->" + "".join(["...", *kept] if "..." in subscripts else kept)
    return subscripts, operands


def value_or_error(f: Callable[..., Any], *args: Any) -> Any:
    try:
        return f(*args)
    except ValueError:
        return ValueError


@pytest.mark.parametrize("seed", range(10))
def test_einsum_takes_and_refuses_what_numpys_does(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(40):
        subscripts, operands = draw_einsum(rng)
        found, expected = (value_or_error(f, subscripts, *operands) for f in (dg.einsum, np.einsum))
        if found is ValueError or expected is ValueError:
            assert found is expected, subscripts
        else:
            assert found.shape == expected.shape, subscripts
            np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-10, err_msg=subscripts)


@pytest.mark.parametrize("seed", range(10))
def test_gradients_of_random_einsums_are_right(seed: int) -> None:
    rng = np.random.default_rng(seed)
    drawn = [draw_einsum(rng) for _ in range(20)]
    subscripts, operands = next(d for d in drawn if value_or_error(dg.einsum, d[0], *d[1]) is not ValueError)
    check_grads(lambda *xs: dg.einsum(subscripts, *xs), operands)


@pytest.mark.parametrize(
    ("a", "b", "dtype"),
    [
        (np.ones((2, 2), np.int8), np.ones((2, 2), np.float32), np.float32),
        (np.ones((2, 2), np.int64), np.ones((2, 2), np.float32), np.float64),
        (np.ones((2, 2), np.float32), np.ones((2, 2), np.complex64), np.complex64),
        (np.ones((2, 2), bool), np.ones((2, 2), bool), bool),
    ],
)
def test_products_promote_as_numpy(a: Any, b: Any, dtype: Any) -> None:
    products = (dg.matmul, dg.dot, dg.inner, dg.outer, dg.kron, dg.tensordot, lambda a, b: dg.einsum("ij,jk", a, b))
    for f in products:
        assert f(a, b).dtype == dtype
    assert dg.dot(np.ones(2, np.float32), 2.0).dtype == np.float32


@pytest.mark.parametrize(
    ("f", "message"),
    [
        (lambda: dg.matmul(arr(2, 3), arr(4, 5)), r"matmul: shapes \[2, 3\] and \[4, 5\] do not match: a has 3"),
        (lambda: dg.matmul(arr(3), arr(4)), r"matmul: shapes \[3\] and \[4\] do not match"),
        (lambda: dg.matmul(arr(2, 2, 3), arr(3, 3, 4)), r"leading axes of shapes \[2, 2, 3\] and \[3, 3, 4\]"),
        (lambda: dg.matmul(arr(2, 3), 2.0), r"shapes \[2, 3\] and \[\]: each operand needs at least one axis"),
        (lambda: dg.matmul(arr(3), arr(3, 4), transpose_a=True), "a vector has no axes to transpose"),
        (lambda: dg.vdot(arr(3), arr(4)), r"vdot: shapes \[3\] and \[4\]"),
        (lambda: dg.inner(arr(2, 3), arr(2, 4)), r"inner: the last axes of shapes \[2, 3\] and \[2, 4\]"),
        (lambda: dg.tensordot(arr(2, 3), arr(4, 5), 1), r"\[1\] of shape \[2, 3\] and axes \[0\] of shape \[4, 5\]"),
        (lambda: dg.tensordot(arr(2, 3), arr(4), 2), "the operands have 2 and 1 axes"),
        (lambda: dg.tensordot(arr(2, 2), arr(2, 2), ([0, 0], [0, 1])), "named twice"),
        (lambda: dg.einsum("ij,jk", arr(2, 3)), "has 2 operands, got 1"),
        (lambda: dg.einsum("ijk", arr(2, 3)), r"'ijk' in 'ijk' does not match operand 0 of shape \[2, 3\]"),
        (lambda: dg.einsum("i", arr(2, 3)), "does not match operand 0"),
        (lambda: dg.einsum("ij,jk", arr(2, 3), arr(4, 3)), r"'j' in 'ij,jk' differ .* \[2, 3\], \[4, 3\]"),
        (lambda: dg.einsum("ii", arr(1, 3)), "'i' in 'ii' differ in size"),
        (lambda: dg.einsum("...i,...i", arr(2, 3), arr(4, 3)), "'...' in"),
        (lambda: dg.einsum("i->ii", arr(2)), "the subscript 'i' more than once"),
        (lambda: dg.einsum("i->j", arr(2)), "the subscript 'j' but no operand does"),
        (lambda: dg.einsum("i...->i", arr(2, 3)), "needs '...' too"),
        (lambda: dg.einsum("i..j", arr(2, 3)), "not made of letters"),
        (lambda: dg.einsum("i1", arr(2, 3)), "not made of letters"),
        (lambda: dg.einsum("ij->j->i", arr(2, 3)), "not made of letters"),
        (lambda: dg.linalg.multi_dot([arr(2, 2)]), "at least two arrays"),
    ],
)
def test_products_that_do_not_fit_say_why(f: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        f()


def test_einsum_without_subscripts_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="give a string of subscripts"):
        dg.einsum(arr(2, 3), arr(3))


# -- single precision --------------------------------------------------------------------------------------------

ROWS = [
    pytest.param(case, complex, id=f"{op_type}-{i}-{'complex' if complex else 'real'}")
    for op_type, rows in {**MATMUL, **LINALG}.items()
    for i, case in enumerate(rows)
    for complex in (False, True)
    if case.order and (case.complex or not complex)
]


@pytest.mark.parametrize(("case", "complex"), ROWS)
def test_gradients_in_single_precision_are_those_in_double_rounded(case: Case, complex: bool) -> None:
    inputs = tuple(x + 0.3j * arr(*x.shape, seed=3) if complex else x for x in case.inputs)
    dtype = np.complex64 if complex else np.float32

    def scalars(*xs: Any) -> Any:
        return [dg.sum(dg.real(y) + 0.5 * dg.imag(y)) for y in nest.flatten(case.build(*xs))]

    single = gradient(scalars, *[x.astype(dtype) for x in inputs])
    double = gradient(scalars, *inputs)
    for x, y in zip(single, double, strict=True):
        assert x.dtype == dtype
        np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-3 * np.abs(y).max(initial=1))


# -- linear algebra ----------------------------------------------------------------------------------------------

SQUARE = {
    "inv": dg.linalg.inv,
    "solve": lambda a: dg.linalg.solve(a, arr(2)),
    "triangular_solve": lambda a: dg.linalg.triangular_solve(a, arr(2)),
    "cholesky": dg.linalg.cholesky,
    "det": dg.linalg.det,
    "slogdet": dg.linalg.slogdet,
    "eigh": dg.linalg.eigh,
    "eigvalsh": dg.linalg.eigvalsh,
    "matrix_power": lambda a: dg.linalg.matrix_power(a, 2),
}


@pytest.mark.parametrize("name", SQUARE)
def test_what_needs_square_matrices_refuses_others_when_built(name: str) -> None:
    with dg.Graph(), pytest.raises(np.linalg.LinAlgError, match=rf"{name}: .* must be equal, got shape \[5, 2, 3\]"):
        SQUARE[name](dg.constant(arr(5, 2, 3)))


@pytest.mark.parametrize(
    "f",
    [
        lambda a: dg.linalg.inv(a),
        lambda a: dg.linalg.solve(a, np.ones(2)),
        lambda a: dg.linalg.triangular_solve(a * np.array([[1.0], [0.0]]), np.ones(2)),
        lambda a: dg.linalg.cholesky(-a),
    ],
)
def test_singular_matrix_is_a_linalg_error_when_run(f: Callable[..., Any]) -> None:
    with dg.Graph():
        y = f(dg.constant(np.ones((2, 2))))
        with pytest.raises(np.linalg.LinAlgError):
            dg.Session().run(y)


@pytest.mark.parametrize(
    ("f", "error", "message"),
    [
        (lambda: dg.linalg.inv(np.ones((2, 2), np.float16)), TypeError, "inv: LAPACK does not support float16; cast"),
        (lambda: dg.linalg.svd(arr(3)), ValueError, r"svd: a must be a matrix or a stack of matrices, got shape \[3\]"),
        (lambda: dg.linalg.solve(well(2, 2, 2), arr(3, 2, 2)), ValueError, r"shapes \[2, 2, 2\] and \[3, 2, 2\]"),
        (lambda: dg.linalg.solve(well(2, 2), arr(3)), ValueError, r"a of shape \[2, 2\] and b of shape \[3\]"),
        (lambda: dg.linalg.qr(arr(2, 2), "raw"), ValueError, "mode must be 'reduced', 'complete' or 'r', got 'raw'"),
        (lambda: dg.linalg.eigh(arr(2, 2), "X"), ValueError, "UPLO must be 'L' or 'U', got 'X'"),
        (lambda: dg.linalg.triangular_solve(arr(2, 2), arr(2), trans=3), ValueError, "trans must be .* got 3"),
        (lambda: dg.linalg.norm(arr(2, 2, 2), 1), ValueError, r"ord=1 of an array of shape \[2, 2, 2\] needs axis="),
        (lambda: dg.linalg.norm(arr(2), "fro"), ValueError, "ord='fro' is not a norm of vectors"),
        (lambda: dg.linalg.norm(arr(2, 2), 3), ValueError, "ord=3 is not a norm of matrices"),
        (lambda: dg.linalg.norm(arr(2, 2, 2), axis=(0, 1, 2)), ValueError, "has 3 axes"),
        (lambda: dg.linalg.norm(arr(2, 2), axis=(0, -2)), ValueError, "duplicate"),
        (lambda: dg.linalg.matrix_power(arr(2, 2), 0.5), TypeError, "exponent must be an integer, got 0.5"),
    ],
)
def test_wrong_arguments_say_what_is_wrong(f: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        f()


def test_integers_are_solved_in_float64() -> None:
    np.testing.assert_array_equal(dg.linalg.inv([[2, 0], [0, 4]]), [[0.5, 0], [0, 0.25]])
    assert dg.linalg.matrix_power(np.eye(2, dtype=int), 3).dtype == np.int64


def test_cholesky_gradient_is_shared_by_both_triangles() -> None:
    (g,) = gradient(dg.linalg.cholesky, np.array([[4.0, 2.0], [2.0, 3.0]]))
    np.testing.assert_allclose(g, g.T)


def test_triangular_solve_gives_no_gradient_to_what_it_does_not_read() -> None:
    ga, _ = gradient(lambda a, b: dg.linalg.triangular_solve(a, b, unit_diagonal=True), well(3, 3), arr(3))
    np.testing.assert_array_equal(np.triu(ga), np.zeros((3, 3)))
    assert np.all(np.tril(ga, -1)[np.tril_indices(3, -1)] != 0)


@pytest.mark.parametrize(
    "f",
    [
        dg.linalg.eigvalsh,
        lambda a: dg.linalg.eigh(a).eigenvalues,
        dg.linalg.svdvals,
        lambda a: dg.linalg.svd(a).S,
        lambda a: dg.linalg.norm(a, "nuc"),
    ],
)
def test_values_that_are_equal_have_gradients(f: Callable[..., Any]) -> None:
    np.testing.assert_allclose(gradient(f, np.eye(3))[0], np.eye(3), atol=1e-14)


@pytest.mark.parametrize("f", [lambda a: dg.linalg.eigh(a).eigenvectors, lambda a: dg.linalg.svd(a).U])
def test_vectors_of_equal_values_have_no_finite_gradient(f: Callable[..., Any]) -> None:
    assert not np.isfinite(gradient(f, np.eye(3))[0]).all()


@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
def test_factors_make_the_matrix_and_its_gradient_is_the_identity(dtype: Any) -> None:
    a = arr(3, 3).astype(dtype) + (0.5j * arr(3, 3, seed=1) if dtype == np.complex128 else 0)
    g = arr(3, 3, seed=2).astype(dtype)

    def from_svd(a: Any) -> Any:
        u, s, vh = dg.linalg.svd(a, full_matrices=False)
        return dg.matmul(u * dg.reshape(s, (1, 3)), vh)

    def from_qr(a: Any) -> Any:
        q, r = dg.linalg.qr(a)
        return dg.matmul(q, r)

    for rebuild in (from_svd, from_qr):
        with dg.Graph():
            x = dg.constant(a)
            y = rebuild(x)
            value, back = dg.Session().run([y, dg.gradients(y, x, grad_ys=[dg.constant(g)])[0]])
        np.testing.assert_allclose(value, a, atol=1e-12)
        np.testing.assert_allclose(back, g, atol=1e-12)


@pytest.mark.parametrize("f", [lambda a: dg.linalg.qr(a, "complete")[0], lambda a: dg.linalg.svd(a)[0]])
def test_full_factors_of_tall_matrices_have_values_but_no_gradient(f: Callable[..., Any]) -> None:
    assert run(f, arr(4, 2)).shape == (4, 4)
    with pytest.raises(LookupError, match=r"no gradient for matrices of shape \[4, 2\] .*the .* beyond the rank"):
        gradient(f, arr(4, 2))


def test_results_have_numpys_field_names() -> None:
    assert dg.linalg.eigh(np.eye(2))._fields == ("eigenvalues", "eigenvectors")
    assert dg.linalg.qr(np.eye(2))._fields == ("Q", "R")
    assert dg.linalg.svd(np.eye(2))._fields == ("U", "S", "Vh")
    assert dg.linalg.slogdet(np.eye(2))._fields == ("sign", "logabsdet")


def test_eigenvectors_in_float32_are_close_to_those_in_float64() -> None:
    _, single = spectral(dg, apart(3, 3).astype(np.float32))
    _, double = spectral(dg, apart(3, 3))
    assert single.dtype == np.float32
    np.testing.assert_allclose(single, double, atol=1e-4)


def test_gaussian_log_likelihood_through_cholesky_equals_that_through_solve_and_slogdet() -> None:
    a, x = arr(3, 3), arr(3)

    def cholesky(a: Any) -> Any:
        l = dg.linalg.cholesky(dg.matmul(a, adjoint(dg, a)) + np.eye(3))
        z = dg.linalg.triangular_solve(l, x)
        return dg.sum(z * z) + 2 * dg.sum(dg.log(dg.diagonal(l)))

    def direct(a: Any) -> Any:
        k = dg.matmul(a, adjoint(dg, a)) + np.eye(3)
        return dg.dot(x, dg.linalg.solve(k, x)) + dg.linalg.slogdet(k).logabsdet

    np.testing.assert_allclose(gradient(cholesky, a)[0], gradient(direct, a)[0], rtol=1e-10)


def test_many_triangular_systems_with_a_zero_on_a_diagonal_are_an_error() -> None:
    a = np.ones((4, 2, 2)) * [[1.0, 0.0], [1.0, 1.0]]
    a[3, 1, 1] = 0
    with pytest.raises(np.linalg.LinAlgError, match="singular"):
        dg.linalg.triangular_solve(a, np.ones((4, 2, 1)))
    made = dg.linalg.triangular_solve(a, np.ones((4, 2, 1)), unit_diagonal=True)
    np.testing.assert_array_equal(made, np.broadcast_to([[1.0], [0.0]], (4, 2, 1)))


@pytest.mark.parametrize("ord", [-2, -3.0])
def test_a_negative_norm_is_infinite_where_its_sum_underflows(ord: Any) -> None:
    assert dg.linalg.norm(np.full(3, 1e200), ord) == INF


@pytest.mark.parametrize("axis", [None, 1, (0, 2), (2, 1, 0)])
@pytest.mark.parametrize("ord", [2, 1, 3, INF])
def test_vector_norms_take_any_axes(axis: Any, ord: Any) -> None:
    x = apart(2, 3, 2)
    expected = np.linalg.vector_norm(x, axis=axis, ord=ord, keepdims=True)
    np.testing.assert_allclose(dg.linalg.vector_norm(x, axis, True, ord), expected)
    check_grads(lambda x: dg.linalg.vector_norm(x, axis, ord=ord), (x,), 2)


def test_cross_along_other_axes() -> None:
    a, b = arr(3, 2, 4), arr(2, 3, 4)
    np.testing.assert_allclose(dg.cross(a, b, 0, 1, 2), np.cross(a, b, axisa=0, axisb=1, axisc=2))
    check_grads(lambda a, b: dg.cross(a, b, 0, 1, 0), (a, b), 2)


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (lambda: dg.cross(np.ones(2), np.ones(3)), r"cross: vectors have 3 elements, not 2 \(axisa=-1\), 3"),
        (lambda: dg.vecdot(np.ones((2, 3)), np.ones((2, 1))), r"vecdot: axis -1 of shapes \[2, 3\] and \[2, 1\]"),
    ],
)
def test_vectors_that_do_not_fit_are_an_error(build: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        build()


@pytest.mark.parametrize("uplo", ["L", "U"])
@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
def test_eigh_has_gradients_where_it_reads_the_matrix_alone(uplo: str, dtype: Any) -> None:
    a = arr(3, 3).astype(dtype) + (0.5j * arr(3, 3, seed=1) if dtype == np.complex128 else 0)
    check_grads(lambda a: dg.linalg.eigh(a, uplo).eigenvalues, [a], 2)
    check_grads(lambda a: dg.linalg.eigvalsh(a, uplo), [a], 2)
    check_grads(lambda a: dg.abs(dg.linalg.eigh(a, uplo).eigenvectors), [a], 1)
    (g,) = gradient(lambda a: dg.real(dg.sum(dg.linalg.eigvalsh(a, uplo) ** 3)), a)
    unread = np.triu_indices(3, 1) if uplo == "L" else np.tril_indices(3, -1)
    np.testing.assert_array_equal(g[unread], 0)


@pytest.mark.parametrize("uplo", ["L", "U"])
@pytest.mark.parametrize("shape", [(2, 2), (4, 4), (2, 3, 3)])
def test_eigenvectors_have_numpys_signs(uplo: str, shape: Any) -> None:
    a = arr(*shape)
    for found, expected in zip(run(lambda a: dg.linalg.eigh(a, uplo), a), np.linalg.eigh(a, uplo), strict=True):
        np.testing.assert_array_equal(found, expected)
