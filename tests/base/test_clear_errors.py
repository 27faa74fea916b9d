"""Invalid arguments raise immediately, with an error that names the function and the problem."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import distgrad as dg

X = np.arange(6.0)
M = np.ones((2, 3))

#: Arguments that determine the size of the result: huge ones must fail within a second.
RUNAWAY: dict[str, tuple[Callable[[], Any], str]] = {
    "split": (lambda: dg.split(X, 2**40), "split: .*cannot be split into 1099511627776 equal parts"),
    "split nothing": (lambda: dg.split(np.zeros(0), 2**40), "split: 1099511627776 parts exceed the limit"),
    "array_split": (lambda: dg.array_split(X, 10**8), "array_split: 100000000 parts exceed the limit"),
    "array_split at": (lambda: dg.array_split(X, range(10**12)), "array_split: 1000000000000 parts exceed the limit"),
    "unstack": (lambda: in_graph(lambda: dg.unstack(dg.zeros(10**9))), "unstack: 1000000000 parts exceed the limit"),
    "stack": (lambda: dg.stack(range(10**12)), "stack: 1000000000000 parts exceed the limit"),
    "tile": (lambda: dg.tile(X, range(10**12)), "tile: reps has at most 64 entries"),
    "tile bytes": (lambda: dg.tile(X, 10**15), "would take .* bytes, but this machine has"),
    "repeat": (lambda: dg.repeat(X, [10**15] * 6), "repeat: .* would take .* bytes"),
    "pad": (lambda: dg.pad(X, 10**15, "edge"), "pad: .* would take .* bytes"),
    "arange": (lambda: dg.arange(10**15), "arange: .* would take .* bytes"),
    "arange without end": (lambda: dg.arange(float("inf")), "arange: the range from 0 to inf by None is infinite"),
    "arange by nothing": (lambda: dg.arange(0, 5, 0), "arange: step must not be 0"),
    "linspace": (lambda: dg.linspace(0, 1, 10**15), "linspace: .* would take .* bytes"),
    "eye": (lambda: dg.eye(10**9), "eye: .* would take .* bytes"),
    "zeros": (lambda: dg.zeros((10**9, 10**9)), "would take .* bytes"),
    "zeros of axes": (lambda: dg.zeros(range(10**12)), "zeros: a shape has at most 64 sizes"),
    "broadcast_to": (lambda: dg.broadcast_to(1.0, (10**15,)) + 1, "would take .* bytes"),
    "one_hot": (lambda: dg.one_hot([1], 10**15), "one_hot: .* would take .* bytes"),
    "random": (lambda: dg.random.normal(1, (10**15,)), "would take .* bytes"),
    "permutation": (lambda: dg.random.permutation(1, 10**15), "would take .* bytes"),
    "tensordot": (lambda: dg.tensordot(M, M, 10**9), "tensordot: axes=1000000000, but the operands have 2 and 2 axes"),
    "matrix_power": (lambda: dg.linalg.matrix_power(M.T @ M, 10**4000), "matrix_power: .*more than 64 bits"),
    "round": (lambda: dg.round(np.arange(3), -(10**9)), "round: decimals must be between -300 and 300"),
    "jacobian": (lambda: dg.jacobian(lambda x: x)(np.zeros(10**6)), "jacobian .*would take|jacobian .* parts exceed"),
    "load_tensor": (lambda: dg.load_tensor("/nowhere", range(10**12)), "load_tensor: name must be a string"),
}


def in_graph(f: Callable[[], Any]) -> Any:
    with dg.Graph():
        return f()


@pytest.mark.parametrize("what", RUNAWAY)
def test_nothing_runs_away(what: str) -> None:
    call, text = RUNAWAY[what]
    begin = time.perf_counter()
    with pytest.raises((ValueError, TypeError, MemoryError), match=text):
        call()
    assert time.perf_counter() - begin < 10  # a second on an idle machine


def test_differences_of_too_high_order_are_empty_immediately() -> None:
    assert dg.diff(X, 10**9).shape == np.diff(X, 10).shape == (0,)
    assert dg.diff(M, 5, axis=0).shape == (0, 3)
    assert dg.diff(M > 0, 10**9).dtype == bool
    assert dg.diff(X, 6).shape == (0,)
    assert dg.diff(X, 5).shape == (1,)
    assert dg.grad(lambda x: dg.sum(dg.diff(x, 10**9)))(X).tolist() == [0.0] * 6


def test_parts_beyond_the_length_are_empty() -> None:
    assert [x.size for x in dg.array_split(X, 8)] == [x.size for x in np.array_split(X, 8)]


#: Whatever else is wrong, the error names the function, and what it got.
UNCLEAR: dict[str, tuple[Callable[[], Any], str]] = {
    "check_graph": (lambda: dg.check_graph(3), "check_graph takes a Graph, got 3"),  # type: ignore[arg-type]
    "polygamma": (lambda: dg.polygamma(None, 1.0), "polygamma: n must be an int, got None"),
    "polygamma of a float": (lambda: dg.polygamma(1.5, 1.0), "polygamma: n must be an int, got 1.5"),
    "IndexedSlices": (lambda: dg.IndexedSlices(1, [0], (3,)), "IndexedSlices: values must be a tensor or an array"),
    "IndexedSlices at": (lambda: dg.IndexedSlices(X, [0], (3,)), "IndexedSlices: indices must be a tensor"),
    "IndexedSlices of": (lambda: dg.IndexedSlices(M, np.array([0, 1]), "ab"), "a shape must be an int or a sequence"),
    "tensordot": (lambda: dg.tensordot(M, M, None), "tensordot: axes must be an int, got None"),
    "tensordot pairs": (lambda: dg.tensordot(M, M, (None, 1)), "tensordot: an axis must be an int"),
    "tile": (lambda: dg.tile(X, "x"), "tile: reps must be an int, got 'x'"),
    "eye": (lambda: dg.eye("3"), "eye: N must be an int, got '3'"),
    "eye negative": (lambda: dg.eye(-3), "eye: a shape must not be negative"),
    "stack": (lambda: dg.stack(3), "stack: takes a sequence of arrays, got 3"),
    "stack of text": (lambda: dg.stack("ab"), "stack: takes a sequence of arrays, got 'ab'"),
    "concatenate": (lambda: dg.concatenate(None), "concatenate: takes a sequence of arrays, got None"),
    "diag": (lambda: dg.diag(X, 1.5), "diag: k must be an int, got 1.5"),
    "arange": (lambda: dg.arange("3"), "arange: start must be a number, got '3'"),
    "arange to": (lambda: dg.arange(1, [2]), r"arange: stop must be a number, got \[2\]"),
    "round": (lambda: dg.round(X, "2"), "round: decimals must be an int, got '2'"),
    "top_k": (lambda: dg.top_k(X, None), "top_k: k must be an int, got None"),
    "sum": (lambda: dg.sum(X, axis="x"), "sum: an axis must be an int, got 'x'"),
    "full": (lambda: dg.full(3, None), "full: None"),
    "zeros": (lambda: dg.zeros(-1), "zeros: a shape must not be negative"),
    "cast": (lambda: dg.cast(X, {"a": 1}), "cast: {'a': 1} is not a dtype"),
    "a name": (lambda: in_graph(lambda: dg.exp(1.0, name=3)), "a name is a string of letters.*got 3"),
    "control_dependencies": (lambda: in_graph(lambda: dg.control_dependencies(3).__enter__()), "got 3"),
    "get_tensor_by_name": (lambda: dg.Graph().get_tensor_by_name(3), "a string such as 'op:0', got 3"),  # type: ignore[arg-type]
    "assign_add": (lambda: dg.Variable(X).assign_add(slice(3)), "is not a tensor"),
    "check_grads": (lambda: dg.testing.check_grads(X, [X]), "check_grads: f must be a function"),  # type: ignore[arg-type]
    "grad": (lambda: dg.grad(dg.sum, argnums=None)(X), "argnums is the number of an argument"),  # type: ignore[arg-type]
}  # fmt: skip


@pytest.mark.parametrize("what", UNCLEAR)
def test_errors_name_the_function_and_what_it_got(what: str) -> None:
    call, text = UNCLEAR[what]
    with pytest.raises((TypeError, ValueError), match=text):
        call()


def test_an_error_from_below_keeps_its_class_and_cause() -> None:
    """Unchecked arguments fail with NumPy's message, plus the function and its arguments."""
    with pytest.raises(TypeError, match=r"meshgrid: cannot work with|meshgrid: .*called with"):
        dg.meshgrid(object())
    with pytest.raises(np.exceptions.AxisError):
        dg.sum(X, axis=7)
    with pytest.raises(IndexError):
        dg.take(X, 70)


def test_an_object_whose_repr_fails_is_named_by_its_type() -> None:
    class NoRepr:
        def __repr__(self) -> str:
            raise RuntimeError("no repr")

    with pytest.raises(TypeError, match="a NoRepr"):
        dg.exp(NoRepr())
    with pytest.raises(TypeError, match="eye: N must be an int, got a NoRepr"):
        dg.eye(NoRepr())


@pytest.mark.parametrize("in_a_graph", [False, True])
def test_functions_that_work_are_left_as_they_are(in_a_graph: bool) -> None:
    """Names and signatures are those of the functions themselves: help() shows them."""
    import inspect

    assert list(inspect.signature(dg.tile).parameters) == ["A", "reps", "name"]
    assert dg.tile.__name__ == "tile"
    assert (dg.tile.__doc__ or "").startswith("Repeat A as a whole")
    made = in_graph(lambda: dg.tile(X, 2).shape) if in_a_graph else dg.tile(X, 2).shape
    assert made == (12,)
