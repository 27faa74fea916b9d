"""A user's own ops, gradients and random numbers are sent to the workers, wherever they are defined."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest

import distgrad as dg
from distgrad.scheduler.bodies import bodies
from distgrad.workers.kernels.user_ops import user_ops
from distgrad.workers.on_ray.agreement import NONE
from distgrad.workers.on_ray.task import serialized_body

from ..engines import assert_bits
from .helpers import driver

pytestmark = pytest.mark.ray

SCALE = 3.0


@dg.op("RayTestCube", infer=lambda x: (x.shape, x.dtype))
def cube(x: Any) -> Any:
    return SCALE * x**3


@dg.RegisterGradient("RayTestCube")
def _cube_grad(op: Any, g: Any) -> Any:
    return g * 3 * SCALE * op.inputs[0] ** 2


@dg.op("RayTestPid", infer=lambda x: (x.shape, np.dtype("int64")))
def pid(x: Any) -> Any:
    return np.full(x.shape, os.getpid())


def both(f: Any, *args: Any) -> tuple[Any, Any]:
    """What a function gives in the current session, and in a local one."""
    made = f(*args)
    with dg.Session(threads=1):
        return made, f(*args)


X = np.linspace(-1, 1, 12).reshape(3, 4)


def test_an_own_op_runs_on_a_worker(session: dg.Session) -> None:
    assert os.getpid() not in dg.function(pid)(X)


def test_an_own_op_and_its_gradients_of_two_orders_have_the_same_bits(fine: dg.Session) -> None:
    first = dg.grad(lambda x: dg.sum(cube(x)))
    second = dg.grad(lambda x: dg.sum(first(x) * x))
    for f in (dg.function(cube), dg.function(first), dg.function(second)):
        assert_bits(*[[x] for x in both(f, X)])


def times(factor: float) -> Any:
    """A function of an op that multiplies; the op is redefined by every call."""
    op = dg.op("RayTestRedefined", infer=lambda x: (x.shape, x.dtype), override=True)(lambda x: x * factor)
    return dg.function(lambda x: op(x) + 1.0)


def test_functions_keep_their_kernels_when_an_op_is_redefined(session: dg.Session) -> None:
    """Old and new functions take turns, on every worker: each must have compiled both kernels."""
    double = times(2.0)
    np.testing.assert_array_equal(double(X), X * 2 + 1)
    five = times(5.0)
    for _ in range(8):
        np.testing.assert_array_equal(five(X), X * 5 + 1)
        np.testing.assert_array_equal(double(X), X * 2 + 1)


def test_a_body_that_is_shipped_again_has_the_kernels_that_it_had() -> None:
    (body,), _ = bodies(times(2.0).plan(X))
    ops = user_ops(body.steps)
    times(5.0)
    for given, factor in ((ops, 2.0), (None, 5.0)):
        _, _, data = serialized_body(body, "numpy", False, NONE, given).partition(b"\n")
        (op,) = cloudpickle.loads(data).ops
        assert op.kernel(1.0) == factor


def test_custom_gradients_and_none_gradients(fine: dg.Session) -> None:
    @dg.custom_gradient
    def clipped(x: Any) -> Any:
        return dg.exp(x), lambda g: dg.clip(g, -0.1, 0.1)

    @dg.function
    def f(x: Any, y: Any) -> Any:
        loss = dg.sum(clipped(x) * 2)
        return dg.gradients(loss, [x, y])

    (dx, dy), (expected, none) = both(f, X, X)
    assert dy is None
    assert none is None
    assert_bits([dx], [expected])


def test_random_numbers_depend_on_their_key_alone(fine: dg.Session) -> None:
    @dg.function
    def draws(seed: Any) -> Any:
        key = dg.random.fold_in(dg.random.key(1), seed)
        return [dg.random.normal(key, (50,)), dg.random.uniform(key, (3, 5)), dg.random.permutation(key, dg.arange(20))]

    assert_bits(*both(draws, np.int64(3)))


def test_sparse_gradients_stay_sparse(fine: dg.Session) -> None:
    @dg.function
    def f(table: Any, indices: Any) -> Any:
        return dg.gradients(dg.sum(dg.square(dg.gather(table, indices))), [table])[0]

    made, expected = both(f, X, np.array([2, 0, 2]))
    assert isinstance(made, dg.IndexedSlicesValue)
    assert made.dense_shape == expected.dense_shape
    assert_bits([made.values, made.indices], [expected.values, expected.indices])


# -- ops of a script, and of a module that only the driver has -------------------------------------------------------

MODULE = """
import distgrad as dg

class Refused(Exception):
    pass

def half(x):
    if x[0] < 0:
        raise Refused("below zero")
    return x / 2

halve = dg.op("ScriptHalve", infer=lambda x: (x.shape, x.dtype))(half)
"""
SCRIPT = """
import os, sys
import numpy as np
import distgrad as dg
from beside import Refused, halve

os.remove("beside.py")  # the workers cannot import it any more
OFFSET = 10.0

class Own(Exception):
    def __init__(self, first, second):
        super().__init__(f"{first} {second}")

@dg.op("ScriptShift", infer=lambda x: (x.shape, x.dtype))
def shift(x):
    if x[0] > 100:
        raise Own("too", "large")
    return x + OFFSET

f = dg.function(lambda x: shift(halve(x)) * 2)
with dg.Session("ray", address=sys.argv[1], timeout=60, granularity=1e-9):
    print(f(np.array([4.0, 6.0])))
    for x in (-1.0, 1000.0):
        try:
            f(np.array([x, x]))
        except (Refused, Own) as e:
            print(type(e).__name__, e)
    print(f(np.array([0.0, 2.0])))
"""


@pytest.fixture(scope="module")
def printed(ray_session: dg.Session, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], str]:
    import ray

    folder: Path = tmp_path_factory.mktemp("script")
    (folder / "beside.py").write_text(MODULE)
    (folder / "main.py").write_text(SCRIPT)
    address = ray.get_runtime_context().gcs_address
    out, err = driver("main.py", address, cwd=folder, PYTHONDONTWRITEBYTECODE="1")
    return out.splitlines(), err


def test_ops_of_a_script_and_of_a_module_beside_it_travel_by_value(printed: tuple[list[str], str]) -> None:
    assert (printed[0][0], printed[0][-1]) == ("[24. 26.]", "[20. 22.]")


def test_errors_of_a_script_are_caught_by_their_own_classes(printed: tuple[list[str], str]) -> None:
    assert printed[0][1:-1] == ["Refused below zero", "Own too large"]


def test_ray_prints_no_errors_that_the_driver_handled(printed: tuple[list[str], str]) -> None:
    assert "Unhandled error" not in printed[1]
    assert "Traceback" not in printed[1]
