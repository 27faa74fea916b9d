"""NumPy's functions, operators and methods on tensors: each gives the same result as on arrays, or a TypeError."""

from __future__ import annotations

import math
import operator
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import distgrad as dg
from distgrad import nest
from distgrad.ops import builder, methods, numpy_api
from distgrad.ops.library import instead
from distgrad.testing import check_grads
from distgrad.types import trainable

from ..numpy_table import ARRAYS, ROWS, Row

HERE = [row for row in ROWS if numpy_api.numpy_function(row.path) is not None]  # NumPy 2.0 lacks a few
PARAMETERS = [pytest.param(row, id=row.path) for row in HERE]
DIFFERENTIABLE = [p for p in PARAMETERS if p.values[0].order]
DTYPES = [
    np.dtype(t)
    for t in (np.bool, np.int8, np.uint8, np.int32, np.int64, np.float16, np.float32, np.float64, np.complex64)
]


def leaves(result: Any) -> list[Any]:
    return nest.flatten(list(result) if isinstance(result, tuple) else result)


def in_graph(f: Callable[..., Any], *arrays: Any) -> Any:
    """Run f on tensors; other arguments are unchanged."""
    with dg.Graph():
        made = leaves(f(*[dg.constant(a) for a in arrays]))
    tensors = [t for t in made if isinstance(t, dg.Tensor)]
    values = iter(dg.Session().run(tensors))
    return [next(values) if isinstance(t, dg.Tensor) else t for t in made]


def on_tensors(row: Row) -> Callable[..., Any]:
    return lambda *values: row.run(**dict(zip(row.inputs, values, strict=True)))


@pytest.fixture
def t() -> Any:
    with dg.Graph():
        yield dg.constant(ARRAYS["x"])


# -- the table ---------------------------------------------------------------------------------------------------


def test_every_entry_has_a_row_and_every_row_an_entry() -> None:
    assert {numpy_api.numpy_function(row.path) for row in HERE} == numpy_api.FUNCTIONS.keys()


def test_no_function_has_two_rows() -> None:
    assert len({row.path for row in ROWS}) == len(ROWS)


def test_no_public_function_with_a_numpy_name_is_left_out() -> None:
    names = {name for name in dir(dg) if type(getattr(np, name, None)) in (np.ufunc, type(np.sum))}
    assert names - numpy_api.NAMES.keys() == set()


@pytest.mark.parametrize("row", PARAMETERS)
def test_a_graph_gives_numpys_values_shapes_and_dtypes(row: Row) -> None:
    expected = leaves(row.run())
    found = in_graph(on_tensors(row), *row.inputs.values())
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        if isinstance(a, np.ndarray):
            assert (a.shape, a.dtype) == (np.shape(b), np.asarray(b).dtype)
            if row.path != "empty_like":
                np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-13)
        else:
            assert a == b


@pytest.mark.parametrize("row", DIFFERENTIABLE)
def test_gradients_flow_through_numpys_functions(row: Row) -> None:
    check_grads(on_tensors(row), [*row.inputs.values()], row.order)


@pytest.mark.parametrize("row", [p for p in PARAMETERS if not p.values[0].order])
def test_a_row_without_gradient_has_none(row: Row) -> None:
    with dg.Graph():
        xs = [dg.constant(a) for a in row.inputs.values()]
        ys = [y for y in leaves(on_tensors(row)(*xs)) if isinstance(y, dg.Tensor) and trainable(y.dtype)]
        assert [g for y in ys for g in dg.gradients(y, xs)] == [None] * len(xs) * len(ys)


def test_the_table_in_the_docs_is_up_to_date() -> None:
    if len(HERE) < len(ROWS):
        pytest.skip("this NumPy lacks functions of the table")
    root = Path(__file__).parent.parent.parent
    command = [sys.executable, root / "docs/make_numpy.py", "--print"]
    made = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (root / "docs/numpy.md").read_text() == made.stdout, "docs/numpy.md is stale: run `make docs-numpy`"


# -- dtypes ------------------------------------------------------------------------------------------------------


def dtype_of(f: Callable[..., Any], *xs: Any) -> Any:
    """The dtype of f(*xs), or that it has none."""
    try:
        with np.errstate(all="ignore"):
            return [y if isinstance(y, np.dtype) else y.dtype for y in leaves(f(*xs))]
    except TypeError:
        return "TypeError"


def example(dtype: Any) -> Any:
    return np.ones((2, 2), dtype)


def ufuncs(nin: int) -> list[str]:
    return sorted(n for n in numpy_api.NAMES if getattr(numpy_api.numpy_function(n), "nin", 0) == nin)


#: Given back as they are, though NumPy refuses them or makes int8 of them.
UNCHANGED = {("conj", "bool"), ("conjugate", "bool"), ("positive", "bool")}


@pytest.mark.parametrize("name", ufuncs(1))
def test_unary_ufuncs_promote_as_numpy_does(name: str) -> None:
    f = numpy_api.numpy_function(name)
    for dtype in DTYPES:
        if (name, dtype.name) not in UNCHANGED:
            with dg.Graph():
                assert dtype_of(f, dg.constant(example(dtype))) == dtype_of(f, example(dtype)), dtype


@pytest.mark.parametrize("name", ufuncs(2))
def test_binary_ufuncs_promote_as_numpy_does(name: str) -> None:
    f = numpy_api.numpy_function(name)
    scalars = [] if name in ("matmul", "vecdot") else [True, 1, 1.5, np.float32(1), np.int8(1)]
    for dtype in DTYPES:
        for other in (*[example(d) for d in DTYPES], *scalars):
            with dg.Graph():
                x = dg.constant(example(dtype))
                y = dg.constant(other) if isinstance(other, np.ndarray) else other
                assert dtype_of(f, x, y) == dtype_of(f, example(dtype), other), (dtype, other)
                assert dtype_of(f, y, x) == dtype_of(f, other, example(dtype)), (other, dtype)
                assert dtype_of(f, other, x) == dtype_of(f, other, example(dtype)), (other, dtype)


JOINING: dict[str, Callable[..., Any]] = {
    "concatenate": lambda x, y: np.concatenate([x, y]),
    "stack": lambda x, y: np.stack([x, y]),
    "where": lambda x, y: np.where(np.array([True, False]), x, y),
    "dot": np.dot,
    "einsum": lambda x, y: np.einsum("ij,jk", x, y),
    "tensordot": np.tensordot,
    "outer": np.outer,
    "isclose": np.isclose,
    "result_type": np.result_type,
}


@pytest.mark.parametrize("name", JOINING)
def test_joining_functions_promote_as_numpy_does(name: str) -> None:
    f = JOINING[name]
    for a in DTYPES:
        for b in DTYPES:
            with dg.Graph():
                assert dtype_of(f, dg.constant(example(a)), example(b)) == dtype_of(f, example(a), example(b)), (a, b)


REDUCTIONS = (
    np.sum, np.prod, np.mean, np.var, np.std, np.max, np.min, np.cumsum, np.cumprod, np.ptp, np.median, np.sort,
    np.argmax, np.any,
)  # fmt: skip


@pytest.mark.parametrize("f", REDUCTIONS, ids=lambda f: f.__name__)
def test_reductions_have_numpys_dtypes(f: Any) -> None:
    for dtype in DTYPES:
        with dg.Graph():
            assert dtype_of(f, dg.constant(example(dtype))) == dtype_of(f, example(dtype)), dtype


# -- arguments ---------------------------------------------------------------------------------------------------


def test_arguments_are_taken_in_numpys_order(t: Any) -> None:
    assert np.sum(t, 0, None, None, True).shape == (1, 3)
    assert np.clip(t, a_max=1.0, a_min=None).shape == (2, 3)


def test_defaults_that_are_written_out_change_nothing(t: Any) -> None:
    assert np.sum(t, axis=None, dtype=None, out=None, keepdims=np._NoValue, initial=np._NoValue).shape == ()  # type: ignore[attr-defined]
    assert np.add(t, 1, out=None, where=True, casting="same_kind", subok=True, order="K").shape == (2, 3)
    assert np.reshape(t, -1, order="C", copy=None).shape == (6,)


def test_dtype_of_a_reduction_is_taken(t: Any) -> None:
    assert np.sum(t, dtype=np.float32).dtype == np.float32
    assert np.add.reduce(t, dtype=np.float32).dtype == np.float32


REFUSED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "out": (lambda t: np.add(t, t, out=np.zeros((2, 3))), r"numpy\.add: a NumPy array cannot hold a tensor"),
    "out of a function": (lambda t: np.sum(t, out=np.zeros(())), r"numpy\.sum: a NumPy array cannot hold"),
    "out alone": (lambda t: np.sum(np.ones(3), out=t), r"numpy\.sum\(\.\.\., out=x\) .* hand-built graph"),
    "out of a method": (lambda t: np.add.reduce(t, out=np.zeros(3)), r"numpy\.add: a NumPy array cannot"),
    "where": (lambda t: np.add(t, t, where=np.ones(3, bool)), r"where= .* distgrad\.where"),
    "where of a sum": (lambda t: np.sum(t, where=ARRAYS["p"]), r"numpy\.sum: the argument where="),
    "casting": (lambda t: np.add(t, t, casting="unsafe"), r"numpy\.add: the argument casting= .*astype"),
    "dtype": (lambda t: np.add(t, t, dtype="float32"), r"numpy\.add: the argument dtype= .*astype"),
    "dtype of a maximum": (lambda t: np.maximum.reduce(t, dtype="f4"), r"numpy\.maximum\.reduce: the argument dtype="),
    "initial": (lambda t: np.max(t, initial=0.0), r"numpy\.max: the argument initial="),
    "order": (lambda t: np.ravel(t, "F"), r"numpy\.ravel: the argument order="),
    "keywords": (lambda t: np.pad(t, 1, mode="constant", stat_length=2), r"numpy\.pad: the argument stat_length="),
    "a += tensor": (lambda t: operator.iadd(np.zeros((2, 3)), t), r"numpy\.add: .*`import distgrad\.numpy as np`"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_an_argument_that_is_not_supported_is_named(case: str, t: Any) -> None:
    call, text = REFUSED[case]
    with pytest.raises(TypeError, match=text):
        call(t)


# -- what is not supported ---------------------------------------------------------------------------------------

UNSUPPORTED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "quantile": (lambda t: np.quantile(t, 0.5), r"numpy\.quantile is not supported on tensors\. The .* numpy\.sort;"),
    "histogram": (lambda t: np.histogram(t, "auto"), "histogram: with bins='auto' the number of bins depends on data"),
    "nonzero": (np.nonzero, r"numpy\.nonzero .* depends on data.* numpy\.where;"),
    "unique": (np.unique, r"numpy\.unique .* depends on data"),
    "where alone": (np.where, "where: give both x and y"),
    "copyto": (lambda t: np.copyto(np.zeros((2, 3)), t), r"numpy\.copyto: .*distgrad\.numpy"),
    "add.at": (lambda t: np.add.at(np.zeros((2, 3)), 0, t), r"numpy\.add\.at: .*distgrad\.numpy"),
    "add.reduceat": (lambda t: np.add.reduceat(t, [0]), r"numpy\.add\.reduceat is not supported"),
    "power.reduce": (np.power.reduce, r"numpy\.power\.reduce is not supported"),
    "roots": (np.roots, r"numpy\.roots is not supported on tensors\. distgrad's docs/numpy\.md"),
    "lstsq": (lambda t: np.linalg.lstsq(t, t), r"numpy\.linalg\.lstsq is not supported"),
    "left_shift": (lambda t: np.ones(3, int) << t, r"numpy\.left_shift is not supported"),
    "frompyfunc": (np.frompyfunc(abs, 1, 1), r"the ufunc '.*' is not supported"),
    "asarray": (np.asarray, "has no value while the graph is built: run it with a session"),
    "array": (lambda t: np.array([t, t]), r"has no value while the graph is built: .*is np.stack\(\[x, y\]\)"),
    "a generator": (lambda t: np.random.default_rng(0).normal(t), r"draws .* at once.* distgrad\.random\.normal\(key"),
    "random": (lambda t: np.random.uniform(t), "NumPy draws random numbers at once, while a function is traced"),  # noqa: NPY002
    "a method of an array": (lambda t: np.ones(2).dot(t), "has no value .* use operators and NumPy's functions"),
    "math": (lambda t: math.exp(t[0, 0]), r"math\.exp computes with values, .* Use distgrad\.exp\."),
    "math without": (lambda t: math.nextafter(t[0, 0], 1.0), r"math\.nextafter .* distgrad has no counterpart of it"),
    "float": (lambda t: float(t[0, 0]), r"float\(x\) needs one\. Keep the tensor"),
    "range": (lambda t: range(t[0, 0]), r"range\(x\) needs one: how often a loop runs"),
    "a dtype": (lambda t: np.int64(t[0, 0]), r"Convert with x\.astype\(np\.int64\)"),
    "text": (lambda t: t + "abc", "add computes with numbers, not with strings"),
    "a similar name": (np.linalg.cond, r"numpy\.linalg\.cond is not supported on tensors\. distgrad's docs"),
    "assigning": (lambda t: operator.setitem(np.zeros((2, 3)), 0, t), "has no value while the graph is built"),
    "indexing": (lambda t: operator.getitem(np.zeros(3), dg.constant(1)), "has no value while the graph is built"),
}


def test_a_tensor_that_is_written_into_an_array_says_what_to_do_instead() -> None:
    def assigning(w: Any) -> Any:
        a = np.zeros(3)
        a[0] = w[0]
        return np.sum(a * w)

    with pytest.raises(TypeError, match=r"array\[i\] = x works with `import distgrad.numpy as np`") as e:
        dg.grad(assigning)(np.ones(3))
    assert e.traceback[-1].name == "assigning"
    assert e.value.__suppress_context__


@pytest.mark.parametrize("name", numpy_api._INSTEAD)
def test_what_serves_instead_of_an_unsupported_function_is_supported_itself(name: str) -> None:
    assert numpy_api._INSTEAD[name] in numpy_api.NAMES
    assert name not in numpy_api.NAMES


@pytest.mark.parametrize("case", UNSUPPORTED)
def test_what_is_not_supported_is_a_type_error_with_a_remedy(case: str, t: Any) -> None:
    call, text = UNSUPPORTED[case]
    with pytest.raises(TypeError, match=text):
        call(t)


def scipy_functions() -> list[tuple[Any, Callable[[Any], Any], str]]:
    from scipy import linalg, signal, special

    return [
        (special.logsumexp, lambda t: special.logsumexp(t), r"scipy\.special\.logsumexp .* Use distgrad\.logsumexp\."),
        (special.softmax, lambda t: special.softmax(t, axis=0), r"special\.softmax .* Use distgrad\.nn\.softmax"),
        (linalg.inv, lambda t: linalg.inv(t @ t.T), r"scipy\.linalg\.inv .* Use distgrad\.linalg\.inv\."),
        (signal.detrend, signal.detrend, r"scipy\.signal\.detrend .* distgrad has no counterpart of it\."),
    ]


@pytest.mark.parametrize("i", range(4))
def test_scipys_functions_are_named_with_their_counterparts(i: int, t: Any) -> None:
    _, call, text = scipy_functions()[i]
    with pytest.raises(TypeError, match=text):
        call(t)


def test_every_counterpart_exists() -> None:
    for path in instead.COUNTERPARTS.values():
        assert callable(operator.attrgetter(path)(dg))


def test_a_call_that_is_not_in_a_file_is_told_what_holds_for_all(t: Any) -> None:
    with pytest.raises(TypeError, match=r"has no value while the graph is built: run it with a session"):
        eval("float(t[0, 0])", {"t": t})


def test_a_large_constant_of_a_function_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builder, "LARGE_BYTES", 1 << 20)
    big = np.zeros(1 << 17)
    f = dg.function(lambda t: dg.sum(big) + t)
    text = r"captures an array of 1 MiB \(at .*_api.py:\d+\), .* Pass it as an argument, or .* distgrad.Variable"
    with pytest.warns(UserWarning, match=text):
        f(1.0)
    with dg.Graph():  # whose constants are meant
        dg.constant(big)


def test_a_string_has_no_derivative() -> None:
    with pytest.raises(TypeError, match=r"argument 'mode' of .* is a string: leave it out with argnums"):
        dg.grad(lambda mode, x: x)("sum", 1.0)


# -- mixing ------------------------------------------------------------------------------------------------------

OPERATORS = (
    operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod, operator.pow, divmod,
    operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne,
)  # fmt: skip


@pytest.mark.parametrize("f", OPERATORS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("other", [ARRAYS["pos"], np.float64(1.5), np.float32(1.5), np.int64(2), 1.5, 2], ids=repr)
def test_operators_record_on_both_sides(f: Any, other: Any) -> None:
    x = ARRAYS["pos"]
    for call in (lambda t: f(t, other), lambda t: f(other, t)):
        for found, expected in zip(in_graph(call, x), leaves(call(x)), strict=True):
            assert found.dtype == expected.dtype
            np.testing.assert_allclose(found, expected, rtol=1e-14)


def test_matmul_records_on_both_sides() -> None:
    x, w = ARRAYS["x"], ARRAYS["w"]
    for call in (lambda t: t @ w, lambda t: np.tanh(t) @ w):
        np.testing.assert_allclose(in_graph(call, x)[0], call(x))
    np.testing.assert_allclose(in_graph(lambda t: x @ t, w)[0], x @ w)


@pytest.mark.parametrize("f", [operator.and_, operator.or_, operator.xor])
def test_bitwise_operators_on_booleans(f: Any) -> None:
    p, q = ARRAYS["p"], ARRAYS["q"]
    np.testing.assert_array_equal(in_graph(f, p, q)[0], f(p, q))
    np.testing.assert_array_equal(in_graph(lambda t: f(p, t), q)[0], f(p, q))


@pytest.mark.parametrize("f", [operator.neg, operator.pos, operator.abs, round], ids=lambda f: f.__name__)
def test_unary_operators(f: Any) -> None:
    x = ARRAYS["x"]
    np.testing.assert_array_equal(in_graph(f, x)[0], np.round(x) if f is round else f(x))


def test_arrays_alone_stay_numpys() -> None:
    x = ARRAYS["x"]
    with dg.Graph() as graph:
        made = [np.tanh(x), np.sum(x, axis=0), x @ ARRAYS["w"], np.histogram(x)[0]]
    assert all(type(y) is np.ndarray for y in made)
    assert graph.ops == []


def test_an_op_made_by_numpy_has_the_users_line(t: Any) -> None:
    assert Path(np.tanh(t).op.source.filename).name == Path(__file__).name
    assert Path(np.sum(t).op.source.filename).name == Path(__file__).name
    assert (np.ones(3) * t).op.source.function == "test_an_op_made_by_numpy_has_the_users_line"


def test_outside_its_graph_a_tensor_still_records() -> None:
    with dg.Graph() as graph:
        t = dg.constant(ARRAYS["x"])
    assert np.sum(np.ones(3) * np.exp(t)).graph is graph


# -- variables and sparse gradients ------------------------------------------------------------------------------


def test_a_variable_speaks_numpy_in_a_graph() -> None:
    v = dg.Variable(ARRAYS["x"], name="v")

    @dg.function
    def f(w: Any) -> Any:
        return np.tanh(v) @ w, np.ones((2, 3)) * v, v.T, v[0], v.sum(axis=0), np.concatenate([v, v]), v.reshape(3, 2)

    x, w = ARRAYS["x"], ARRAYS["w"]
    expected = np.tanh(x) @ w, x, x.T, x[0], x.sum(axis=0), np.concatenate([x, x]), x.reshape(3, 2)
    for a, b in zip(f(w), expected, strict=True):
        np.testing.assert_allclose(a, b)


def test_a_variable_outside_any_graph_is_its_value() -> None:
    v = dg.Variable(2.5)
    assert (float(v), int(v), v.item(), v.tolist(), bool(v)) == (2.5, 2, 2.5, 2.5, True)
    assert type(np.tanh(dg.Variable([1.0, 2.0]))) is np.ndarray
    assert dg.Variable([1, 2]).nbytes == 16


BY_VALUE: dict[str, Callable[[Any], Any]] = {
    "a function that is not supported": np.unique,
    "a ufunc that is not supported": np.spacing,
    "a method that is not supported": lambda x: np.add.reduceat(x, [0, 1]),
    "an argument that is not supported": lambda x: np.sum(x, where=[True, False, True]),
    "an output": lambda x: np.add(x, x, out=np.zeros(3)),
    "several arguments": lambda x: np.union1d(x, x),
}


@pytest.mark.parametrize("case", BY_VALUE)
def test_outside_any_graph_numpy_computes_with_a_variables_value(case: str) -> None:
    x = np.array([3.0, 1.0, 3.0])
    np.testing.assert_array_equal(BY_VALUE[case](dg.Variable(x)), BY_VALUE[case](x))
    with dg.Graph(), pytest.raises(TypeError, match=r"not supported|cannot hold a tensor"):
        BY_VALUE[case](dg.Variable(x))


def test_a_variable_in_a_graph_has_no_value() -> None:
    v = dg.Variable(2.5)
    with dg.Graph(), pytest.raises(TypeError, match="has no value while the graph is built"):
        float(v)


def test_indexed_slices_become_dense() -> None:
    with dg.Graph():
        s = dg.IndexedSlices(dg.constant([[1.0, 2.0], [3.0, 4.0]]), dg.constant([2, 0]), (3, 2))
        made = [np.sum(s, axis=0), np.ones((3, 2)) * s, s.T, np.exp(s)]
    dense = np.array([[3.0, 4.0], [0.0, 0.0], [1.0, 2.0]])
    for a, b in zip(dg.Session().run(made), [dense.sum(0), dense, dense.T, np.exp(dense)], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-15)


# -- methods and attributes --------------------------------------------------------------------------------------

METHODS: dict[str, Callable[[Any], Any]] = {
    "all": lambda x: x.all(axis=0),
    "any": lambda x: x.any(),
    "argmax": lambda x: x.argmax(axis=1),
    "argmin": lambda x: x.argmin(),
    "argsort": lambda x: x.argsort(axis=0),
    "astype": lambda x: x.astype("float32"),
    "clip": lambda x: x.clip(-1, 1),
    "conj": lambda x: x.conj(),
    "conjugate": lambda x: x.conjugate(),
    "copy": lambda x: x.copy(),
    "cumprod": lambda x: x.cumprod(axis=0),
    "cumsum": lambda x: x.cumsum(),
    "diagonal": lambda x: x.diagonal(1),
    "dot": lambda x: x.dot(ARRAYS["w"]),
    "flatten": lambda x: x.flatten(),
    "max": lambda x: x.max(axis=1, keepdims=True),
    "mean": lambda x: x.mean(0),
    "min": lambda x: x.min(),
    "prod": lambda x: x.prod(axis=1),
    "ravel": lambda x: x.ravel(),
    "repeat": lambda x: x.repeat(2, axis=1),
    "reshape": lambda x: (x.reshape(3, 2), x.reshape((3, -1)), x.reshape(-1)),
    "round": lambda x: x.round(1),
    "squeeze": lambda x: x.reshape(1, 6).squeeze(0),
    "std": lambda x: x.std(axis=1, ddof=1),
    "sum": lambda x: x.sum(axis=-1, dtype="float32"),
    "swapaxes": lambda x: x.swapaxes(0, 1),
    "take": lambda x: x.take([0, 2], axis=1),
    "trace": lambda x: x.trace(),
    "transpose": lambda x: (x.transpose(), x.transpose(1, 0), x.transpose((1, 0))),
    "var": lambda x: x.var(),
}
PROPERTIES = {
    name: operator.attrgetter(name) for name in ("T", "imag", "itemsize", "mT", "nbytes", "ndim", "real", "size")
}


def test_every_method_has_a_row() -> None:
    assert METHODS.keys() == methods.METHODS.keys()
    assert PROPERTIES.keys() == methods.PROPERTIES.keys()


@pytest.mark.parametrize("name", [*METHODS, *PROPERTIES])
def test_methods_and_attributes_equal_ndarrays(name: str) -> None:
    f = (METHODS | PROPERTIES)[name]
    for found, expected in zip(in_graph(f, ARRAYS["x"]), leaves(f(ARRAYS["x"])), strict=True):
        assert type(found) is int if isinstance(expected, int) else found.dtype == expected.dtype
        np.testing.assert_allclose(found, expected, rtol=1e-6 if name == "sum" else 1e-13)


def test_an_operator_is_the_builder_itself() -> None:
    assert dg.Tensor.__mul__ is dg.multiply
    assert dg.Tensor.__matmul__ is dg.matmul


def test_tensors_have_no_dict(t: Any) -> None:
    assert not hasattr(t, "__dict__")


def test_iterating_and_unpacking(t: Any) -> None:
    first, second = t
    np.testing.assert_array_equal(dg.Session().run([first, second]), ARRAYS["x"])
    assert len(t) == 2


VALUELESS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "float": (float, "has no value while the graph is built"),
    "int": (int, "has no value while the graph is built"),
    "complex": (complex, "has no value while the graph is built"),
    "index": (lambda t: range(t), "has no value while the graph is built"),
    "item": (lambda t: t.item(), "has no value while the graph is built"),
    "tolist": (lambda t: t.tolist(), "has no value while the graph is built"),
    "bool": (bool, r"has no truth value .* distgrad\.where"),
    "in": (lambda t: 1.0 in t, r"\(x == item\)\.any\(\)"),
    "iter": (lambda t: list(t[0, 0]), "iteration over a 0-d tensor"),
    "len": (lambda t: len(t[0, 0]), r"len\(\) of a 0-d tensor"),
    "setitem": (lambda t: operator.setitem(t, 0, 1.0), r"hand-built graph .* x = x\.at\[0\]\.set\(value\)"),
    "sort": (lambda t: t.sort(), r"hand-built graph .*\.set\(value\)"),
    "fill": (lambda t: t.fill(0), r"hand-built graph .*\.set\(value\)"),
}


@pytest.mark.parametrize("case", VALUELESS)
def test_what_needs_a_value_or_writes_one_is_refused(case: str, t: Any) -> None:
    call, text = VALUELESS[case]
    with pytest.raises(TypeError, match=text):
        call(t)


def test_the_last_axes_of_a_vector_cannot_be_exchanged(t: Any) -> None:
    with pytest.raises(ValueError, match="at least two axes"):
        _ = t[0].mT
