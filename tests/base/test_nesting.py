"""Nesting: functions in functions, gradients of gradients, structures in structures. None of it is bounded by Python's
stack. Where a function calls itself for ever, that is one clear error."""

from __future__ import annotations

import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import distgrad as dg
from distgrad import nest, nesting
from distgrad.scheduler.program import lower

DEEP = 200
X = np.array([1.0, 2.0])


def wrapped(f: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x: f(x) * 1.01


def tower(decorate: Callable[..., Any], levels: int = DEEP) -> Any:
    """sin(x) * 1.01 ** levels, by nested functions, one per level."""
    f = decorate(dg.sin)
    for _ in range(levels):
        f = decorate(wrapped(f))
    return f


def passing(f: Callable[..., Any]) -> Any:
    """custom_gradient, with the gradient of the function inside."""

    @dg.custom_gradient
    def g(x: Any) -> Any:
        y = f(x)
        return y, lambda dy: dg.gradients(y, x, dy)[0]

    return g


DECORATORS: dict[str, tuple[Callable[..., Any], int]] = {
    "function": (dg.function, DEEP),
    "Defun": (lambda f: dg.Defun()(f if f is not dg.sin else lambda x: dg.sin(x)), DEEP),
    "custom_gradient": (passing, DEEP),
    "recompute_grad": (dg.recompute_grad, 60),  # its ops grow with the square of the levels
}


@pytest.mark.parametrize("name", DECORATORS)
def test_functions_nest(name: str) -> None:
    decorate, levels = DECORATORS[name]
    f = tower(decorate, levels)
    np.testing.assert_allclose(f(X), np.sin(X) * 1.01**levels)
    with dg.Graph() as graph:
        x = dg.constant(X)
        y = f(x)
        (dx,) = dg.gradients(y, x)
    np.testing.assert_allclose(dg.Session().run(dx), np.cos(X) * 1.01**levels)
    assert dg.check_graph(graph) is graph
    assert len(str(graph)) < 10_000_000  # names do not grow with the power of the levels
    if name != "custom_gradient":  # a grad_fn that calls gradients() itself cannot be asked without a graph
        assert dg.explain_gradient(y, x).connected
    program = lower([dx])
    assert pickle.loads(pickle.dumps(program)).fetches == program.fetches


def test_two_thousand_functions_nest() -> None:
    np.testing.assert_allclose(tower(dg.function, 2000)(X), np.sin(X) * 1.01**2000)


def test_derivatives_nest() -> None:
    """sin, 12 times over: each derivative is traced in the one before."""
    f: Callable[..., Any] = dg.sin
    for _ in range(12):
        f = dg.grad(f)
    np.testing.assert_allclose(f(0.5), np.sin(0.5))


def test_a_tensor_and_a_variable_are_captured_through_all_levels() -> None:
    v = dg.Variable(3.0)
    with dg.Graph():
        outer = dg.constant(X)
        f: Any = dg.function(lambda x: x * outer * v)
        for _ in range(DEEP):
            f = dg.function(wrapped(f))
        y = f(dg.constant(1.0))
        dy = dg.gradients(y, [outer, v])
    y, (by_outer, by_v) = dg.Session().run([y, dy])
    np.testing.assert_allclose(y, 3 * X * 1.01**DEEP)
    np.testing.assert_allclose(by_outer, 3 * np.ones(2) * 1.01**DEEP)
    np.testing.assert_allclose(by_v, X.sum() * 1.01**DEEP)


def test_a_session_that_is_open_runs_what_deep_levels_compute() -> None:
    """Thread-local state is passed on: the open session, and the graph being built."""
    with dg.Session(threads=1) as session, np.errstate(all="raise"):
        seen: list[Any] = []

        def innermost(x: Any) -> Any:
            seen.append((threading.current_thread(), dg.runtime.current() is session, np.geterr()["over"]))
            return dg.sin(x)

        f: Any = dg.function(innermost)
        for _ in range(DEEP):
            f = dg.function(wrapped(f))
        f(X)
    ((thread, same, errors),) = seen
    assert thread is not threading.current_thread()
    assert same
    assert errors == "raise"


def ended() -> bool:
    """Whether the threads of nested levels end; each has returned its result before."""
    for thread in threading.enumerate():
        if thread.name == "distgrad-nesting":
            thread.join(10)
    return not any(thread.name == "distgrad-nesting" for thread in threading.enumerate())


class Mine(Exception):
    pass


def test_an_error_comes_back_through_all_levels() -> None:
    def fail(x: Any) -> Any:
        raise Mine("at the end")

    with pytest.raises(Mine, match="at the end"):
        tower(lambda f: dg.function(fail if f is dg.sin else f))(X)
    assert ended()


def test_ctrl_c_ends_a_deep_trace() -> None:
    """The main thread waits for the tracing thread; an interrupt of the one reaches the other."""
    inside = threading.Event()

    def slow(x: Any) -> Any:
        inside.set()
        for _ in range(3000):
            time.sleep(0.01)
        return x

    def interrupt() -> None:
        inside.wait(30)
        signal.raise_signal(signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        tower(lambda f: dg.function(slow if f is dg.sin else f))(X)
    thread.join()
    assert ended()
    np.testing.assert_allclose(tower(dg.function)(X), np.sin(X) * 1.01**DEEP)


def test_infinite_recursion_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nesting, "MAX_STACKS", 5)  # the real limit takes a few seconds to reach

    @dg.function
    def forever(x: Any) -> Any:
        return forever(x + 1)

    with pytest.raises(RuntimeError, match=r"nested too deeply.*'forever' in 'forever'.*infinitely recursive") as e:
        forever(X)
    assert not isinstance(e.value, RecursionError)


# -- structures --------------------------------------------------------------------------------------------------


def deep(leaf: Any, levels: int = 5000) -> Any:
    for i in range(levels):
        leaf = [leaf] if i % 3 == 0 else (leaf,) if i % 3 == 1 else {"a": leaf}
    return leaf


def test_structures_nest_deeper_than_pythons_stack() -> None:
    assert sys.getrecursionlimit() < 5000
    tree = deep(X)
    assert nest.flatten(tree)[0] is X
    assert nest.flatten(nest.map_structure(lambda x: x + 1, tree))[0].tolist() == [2.0, 3.0]
    f = dg.function(lambda tree: (nest.map_structure(dg.exp, tree), None))
    found, nothing = f(tree)
    assert nothing is None
    np.testing.assert_allclose(nest.flatten(found)[0], np.exp(X))
    f(deep(X + 1))
    with dg.Graph():
        x = dg.placeholder(2)
        y = x * 2
    (fetched,) = nest.flatten(dg.Session().run(deep(y), {x: X}))
    assert fetched.tolist() == [2.0, 4.0]


def test_a_structure_that_contains_itself_is_an_error() -> None:
    tree: Any = [1.0]
    tree.append({"a": tree})
    for call in (nest.flatten, lambda t: list(nest.paths(t)), dg.function(lambda t: t), dg.Session().run):
        with pytest.raises((ValueError, TypeError), match="contains itself"):
            call(tree)


def test_lists_that_are_too_deep_for_an_array_are_a_type_error() -> None:
    for call in (dg.exp, dg.stack, dg.constant, dg.Variable):
        with pytest.raises((TypeError, ValueError)):
            call(deep(1.0))


def test_long_chains_through_control_dependencies_run() -> None:
    with dg.Graph():
        y = dg.constant(1.0)
        for _ in range(5000):
            with dg.control_dependencies([y]):
                y = dg.constant(2.0)
    assert dg.Session().run(y) == 2.0
