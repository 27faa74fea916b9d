"""Signatures: each argument is looked at once, calls that differ have different keys, and unusual arrays are values."""

from __future__ import annotations

import threading
from collections import OrderedDict, namedtuple
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import distgrad as dg
from distgrad import nest
from distgrad.tracing import function as tracing
from distgrad.tracing import signature
from distgrad.tracing.signature import look, native_key

Pair = namedtuple("Pair", "a b")
Named = type("Named", (np.ndarray,), {})


@dataclass
class Layer:
    w: Any
    b: Any


X = np.arange(6.0).reshape(2, 3)

TREES: list[Any] = [
    X,
    [X, X],
    (X, X),
    Pair(X, X),
    Layer(X, X),
    {"a": X, "b": X},
    OrderedDict(a=X, b=X),
    [[X], X],
    [X, [X]],
    [],
    {},
    (),
    None,
    0.0,
    -0.0,
    0,
    False,
    "X",
    X[0],
    X.astype(np.float32),
    X.astype(np.complex64),
]


def test_calls_that_differ_have_different_keys() -> None:
    calls: list[Any] = [((), {}), ((X, X, X), {})]
    for tree in TREES:
        calls += [((tree,), {}), ((tree, X), {}), ((), {"a": tree})]
    assert len({look(*call)[0] for call in calls}) == len(calls)


def test_values_that_hash_alike_are_told_apart() -> None:
    """True is 1 and 1.0 to Python, but not to a trace."""
    keys = {look((value, X), {})[0] for value in (1, 1.0, True, 1 + 0j, np.float64(1), float("nan"), -float("nan"))}
    assert len(keys) == 6  # nan is nan


def test_keywords_are_not_a_dict_in_the_last_position() -> None:
    assert look((X, {"a": X}), {})[0] != look((X,), {"a": X})[0]


@pytest.mark.parametrize("tree", TREES, ids=lambda tree: type(tree).__name__)
def test_arrays_are_found_in_the_order_of_flatten(tree: Any) -> None:
    marked = nest.map_structure(lambda x: x.copy() if isinstance(x, np.ndarray) else x, tree)
    found, expected = look((marked,), {})[1], [x for x in nest.flatten(marked) if isinstance(x, np.ndarray)]
    assert [id(x) for x in found] == [id(x) for x in expected]


def test_a_key_of_foreign_arrays_is_that_of_native_ones() -> None:
    foreign, _, _ = look((X.astype(">f8"),), {})
    assert foreign != look((X,), {})[0] == native_key(foreign)


def test_a_call_looks_at_its_arguments_once(monkeypatch: Any) -> None:
    """A known signature: one traversal, no conversion."""
    f = dg.function(lambda params, x: [x @ params["w"] + b for b in params["b"]])
    args = {"w": np.ones((3, 2)), "b": [np.ones(2), np.zeros(2)]}, X
    expected = f(*args)
    looks = []
    monkeypatch.setattr(tracing, "look", lambda *call: looks.append(call) or signature.look(*call))
    monkeypatch.setattr(tracing, "is_array", None)
    monkeypatch.setattr(tracing.Function, "_value", None)
    monkeypatch.setattr(tracing.nest, "flatten", None)
    found = f(*args)
    assert len(looks) == 1
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    "unusual",
    [
        X.astype(">f8"),
        np.asfortranarray(X),
        np.repeat(X, 2, axis=1)[:, ::2],
        X.view(Named),
        np.ma.array(X).data,
        np.frombuffer(b"0" + X.tobytes(), np.float64, offset=1).reshape(2, 3),
    ],
    ids=["foreign", "fortran", "strided", "subclass", "masked", "unaligned"],
)
def test_unusual_arrays_are_values_like_any_other(unusual: Any) -> None:
    """Whether the signature is known already or not, and for small and large programs."""
    for known in (False, True):
        f = dg.function(lambda x: (x * 2.0 + 1.0, x[1] - 1.0, x.T @ x))
        plain = [f(X)] if known else [(X * 2.0 + 1.0, X[1] - 1.0, X.T @ X)]
        for _ in range(2):
            for a, b in zip(f(unusual), plain[0], strict=True):
                assert type(a) is np.ndarray
                assert a.dtype == np.float64
                np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("x", [np.float32(3), np.array(3, np.float32), np.float32(3).astype(">f4")])
def test_scalars_and_arrays_without_axes_share_a_trace(x: Any) -> None:
    traces = []
    f = dg.function(lambda x: (traces.append(1), x * x + 1.0)[1])
    assert [float(f(each)) for each in (x, np.float32(3), np.array(3, np.float32), x)] == [10.0] * 4
    assert len(traces) == 1


def test_a_known_signature_with_another_dtype_is_traced_again() -> None:
    f = dg.function(lambda x: x * x)
    assert [f(X.astype(dtype)).dtype for dtype in ("f4", "f8", "i4", "f4")] == ["f4", "f8", "i4", "f4"]


def test_defaults_and_keywords_are_one_signature() -> None:
    traces = []

    @dg.function
    def f(x: Any, n: int = 2, *, m: int = 1) -> Any:
        traces.append((n, m))
        return x * n + m

    @dg.function
    def g(x: Any, n: int = 2) -> Any:
        traces.append(n)
        return x * n

    for found in (f(X), f(X, 2), f(X, n=2), f(x=X, m=1)):
        np.testing.assert_array_equal(found, X * 2 + 1)
    for found in (g(X), g(X, 2), g(X, n=2), g(n=2, x=X)):
        np.testing.assert_array_equal(found, X * 2)
    assert traces == [(2, 1), 2]
    for wrong in ((), (X, 1, 2)):
        with pytest.raises(TypeError, match="g"):
            g(*wrong)


def test_results_belong_to_the_caller() -> None:
    """Also those that are an argument, a view of one, or a constant, behind a handle or not."""
    f = dg.function(lambda x: [x, x[0], x * 1.0, x + 1.0, dg.constant(X), x])
    session = dg.Session()
    (handle, *_), x = session.submit(f, X), X.copy()
    for given in (x, x[:], handle, X.astype(">f8")):
        first = f(given)
        expected = [each.copy() for each in first]
        for each in first:
            each[...] = -1
        for a, b in zip(f(given), expected, strict=True):
            np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(np.asarray(given), X)


def test_threads_call_one_function_at_once() -> None:
    """Each call has its own arguments and results, whatever the others do in between."""

    @dg.function
    def f(params: Any, x: Any) -> Any:
        y = x
        for _ in range(20):
            y = y * params["a"] + params["b"]
        return {"y": y, "total": dg.sum(y)}

    start = threading.Barrier(4)

    def called(k: int) -> bool:
        start.wait(60)
        a, b, x = np.full(16, 0.5), np.full(16, float(k)), np.full(16, 2.0 * k)
        made = [f({"a": a, "b": b}, x) for _ in range(200)]
        return all((each["y"] == 2.0 * k).all() and each["total"] == 32.0 * k for each in made)

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(called, range(4)))


@pytest.mark.parametrize("options", [{}, {"trace": True}, {"timeout": 60.0}, {"progress": "log"}])
@pytest.mark.parametrize("threads", [1, 2])
def test_watched_runs_have_the_same_bits(options: Any, threads: int) -> None:
    def f(params: Any, x: Any) -> Any:
        for w in params:
            x = dg.tanh(x * w + 0.5)
        return x, dg.sum(x), dg.gradients(dg.sum(x), params)

    rng = np.random.default_rng(0)
    params, x = [rng.standard_normal(16).astype(np.float32) for _ in range(9)], rng.standard_normal(16, np.float32)
    expected = nest.flatten(dg.function(f)(params, x))
    with dg.Session(threads=threads, **options):
        found = nest.flatten(dg.function(f)(params, x))
    assert [x.tobytes() for x in found] == [x.tobytes() for x in expected]
