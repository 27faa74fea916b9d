"""What ops get from their definition alone: see new_op.py."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

import distgrad as dg
from distgrad.run.planner import evaluate
from distgrad.scheduler.cluster import Machine
from distgrad.scheduler.cost.rates import CostModel
from distgrad.scheduler.passes.fuse import fuse
from distgrad.scheduler.passes.pipeline import Context, improve
from distgrad.scheduler.program import Program, lower

from .engines import UNFUSED, tiny_blocks
from .new_op import Sign, centred, copy_sign, sum_of_squares

X = np.linspace(-2.0, 3.0, 6400).reshape(64, 100)
Y = np.where(np.arange(100) % 3 == 0, -1.0, 1.0)


def expected(x: Any, y: Any) -> Any:
    return np.tanh(np.where(y < 0, np.abs(x), -np.abs(x)) * 2.0)


def chain(x: Any, y: Any) -> Any:
    return dg.tanh(copy_sign(x, y, Sign.OPPOSITE) * 2.0)


def lowered(build: Any, *shapes: tuple[int, ...]) -> Program:
    with dg.Graph():
        feeds = [dg.placeholder(shape) for shape in shapes]
        return lower([build(*feeds)], feeds)


def improved(program: Program) -> Program:
    return improve(program, Context(evaluate), UNFUSED)


def test_it_fuses() -> None:
    made = fuse(lowered(chain, (64, 100), (100,)))
    (group,) = [step for step in made.steps if step.body]
    assert [inner.type for inner in group.body] == ["TestCopySign", "Mul", "Tanh"]


def test_it_is_priced_as_its_kind() -> None:
    program = lowered(lambda x, y: copy_sign(x, y) * y, (64, 100), (100,))
    costs = [CostModel(Machine(), 1).cost(step, program.types) for step in program.steps]
    assert costs[0] == costs[1]  # of a product of the same types
    assert costs[0].seconds > 0


def test_it_is_rewritten() -> None:
    """A number that is repeated is read as the number; what is made of numbers alone is computed once."""
    made = improved(lowered(lambda x: copy_sign(x, dg.full((64, 100), -1.0)), (64, 100)))
    (step,) = [step for step in made.steps if step.type == "TestCopySign"]
    assert made.types[step.inputs[1]].shape == ()
    program = lowered(lambda x: x + copy_sign(dg.full((64, 100), 3.0), dg.full((64, 100), -1.0)), (64, 100))
    assert "TestCopySign" not in [step.type for step in improved(program).steps]


@pytest.mark.parametrize("options", [{"threads": 1}, {"threads": 2}, {"threads": 2, "cpus_per_task": 1}])
def test_it_runs_here_with_the_same_bits(options: dict[str, Any]) -> None:
    with dg.Session(**options, native=False):
        found = dg.function(chain)(X, Y)
    assert found.tobytes() == expected(X, Y).tobytes()
    with dg.Session(**options):
        np.testing.assert_allclose(dg.function(chain)(X, Y), found, rtol=1e-15)


@pytest.mark.parametrize(
    "backend",
    [
        "array-api-strict",
        pytest.param("torch", marks=pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")),
    ],
)
def test_it_runs_on_other_backends(backend: str) -> None:
    with dg.Session(threads=1, backend=backend):
        np.testing.assert_allclose(dg.function(chain)(X, Y), expected(X, Y), rtol=1e-12)


def test_it_has_gradients() -> None:
    dg.testing.check_grads(lambda x: chain(x, Y[:5]), [np.array([0.3, -1.2, 2.0, 0.7, -0.4])], order=2)


def test_it_runs_on_ray_with_the_same_bits(ray_session: dg.Session) -> None:
    def loss(x: Any, y: Any) -> Any:
        return dg.sum(chain(x, y) * x)

    step = dg.function(dg.value_and_grad(loss))
    here = step(X, Y)
    with dg.Session("ray", timeout=120, granularity=1e-9):
        there = step(X, Y)
    assert [np.asarray(x).tobytes() for x in there] == [np.asarray(x).tobytes() for x in here]


# -- a reduction and a row-wise op ---------------------------------------------------------------------------------

#: What is built, the same in NumPy, and the types of the group that it becomes.
OTHERS: dict[str, tuple[Any, Any, list[str]]] = {
    "all axes": (lambda x: sum_of_squares(dg.tanh(x)), lambda x: np.sum(np.tanh(x) ** 2), ["Tanh", "TestSumOfSquares"]),
    "leading axis": (
        lambda x: sum_of_squares(dg.tanh(x), axis=0),
        lambda x: np.sum(np.tanh(x) ** 2, axis=0),
        ["Tanh", "TestSumOfSquares"],
    ),
    "rows": (
        lambda x: dg.tanh(x) * sum_of_squares(x, axis=1, keepdims=True),
        lambda x: np.tanh(x) * np.sum(x**2, axis=1, keepdims=True),
        ["TestSumOfSquares", "Tanh", "Mul"],
    ),
    "row-wise": (
        lambda x: dg.tanh(centred(x * 2.0)),
        lambda x: np.tanh(2 * x - np.mean(2 * x, axis=1, keepdims=True)),
        ["Mul", "TestCentred", "Tanh"],
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_reductions_and_row_wise_ops_fuse(name: str) -> None:
    made = fuse(lowered(OTHERS[name][0], (64, 100)))
    (group,) = [step for step in made.steps if step.body]
    assert sorted([inner.type for inner in group.body]) == sorted(OTHERS[name][2])


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", OTHERS)
def test_reductions_and_row_wise_ops_run_in_blocks(name: str, threads: int) -> None:
    build, same, _ = OTHERS[name]
    with tiny_blocks(), dg.Session(threads=threads):
        np.testing.assert_allclose(dg.function(build)(X), same(X), rtol=1e-12)


@pytest.mark.parametrize("name", OTHERS)
def test_reductions_and_row_wise_ops_have_gradients_and_costs(name: str) -> None:
    dg.testing.check_grads(OTHERS[name][0], [X[:3, :5]], order=2)
    program = lowered(OTHERS[name][0], (64, 100))
    assert all(CostModel(Machine(), 1).cost(step, program.types).seconds > 0 for step in program.steps if step.inputs)
