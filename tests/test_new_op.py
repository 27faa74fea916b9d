"""What an elementwise op gets from its definition alone: see new_op.py."""

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

from .engines import UNFUSED
from .new_op import Sign, copy_sign

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
    with dg.Session(**options):
        found = dg.function(chain)(X, Y)
    assert found.tobytes() == expected(X, Y).tobytes()


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
