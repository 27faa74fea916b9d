"""What cannot be copied or pickled says so, and what to do instead."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import cloudpickle
import numpy as np
import pytest

import distgrad as dg


def in_graph() -> dg.Graph:
    with dg.Graph() as graph:
        dg.exp(dg.constant(1.0))
    return graph


THINGS: dict[str, tuple[Callable[[], Any], str]] = {
    "Variable": (lambda: dg.Variable([1.0, 2.0], name="weights"), r"'weights'.*\.numpy\(\).*save_checkpoint"),
    "Function": (lambda: dg.function(np.sin), r"'sin'.*python_function.*decorate it on the other side"),
    "DataParallel": (lambda: dg.data_parallel(lambda x: x, 2), "decorate it on the other side"),
    "Defun": (lambda: dg.Defun()(lambda x: x), "Defun 'lambda'.*decorate it on the other side"),
    "Session": (dg.Session, "open one in the other process"),
    "Graph": (in_graph, "call the function that builds it there"),
    "Tensor": (lambda: in_graph().ops[-1].outputs[0], "its value can"),
    "Operation": (lambda: in_graph().ops[-1], "build it again there"),
    "Handle": (lambda: dg.Session().submit(dg.function(lambda x: x), np.ones(2)), r"send \.numpy\(\)"),
}
WAYS = {
    "pickle": pickle.dumps,
    "old pickle": lambda x: pickle.dumps(x, 0),
    "cloudpickle": cloudpickle.dumps,
    "deepcopy": copy.deepcopy,
    "copy": copy.copy,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("thing", THINGS)
def test_what_belongs_to_this_process_says_what_to_do_instead(thing: str, way: str) -> None:
    make, text = THINGS[thing]
    with pytest.raises(TypeError, match=r"cannot be copied or pickled") as e:
        WAYS[way](make())
    assert e.match(text)


@pytest.mark.parametrize("thing", THINGS)
def test_a_closure_that_holds_it_says_so_too(thing: str) -> None:
    held = THINGS[thing][0]()
    with pytest.raises(TypeError, match="cannot be copied or pickled"):
        cloudpickle.dumps(lambda: held)


def test_a_kernel_that_holds_a_variable_is_named_when_it_is_sent() -> None:
    task = pytest.importorskip("distgrad.workers.on_ray.task", reason="Ray is not installed")
    from distgrad.workers.on_ray.agreement import NONE

    v = dg.Variable(2.0, name="scale")

    @dg.op("HoldsAVariable", override=True)
    def kernel(x: Any) -> Any:
        return x * v.numpy()

    from distgrad.scheduler.bodies import bodies

    (body,), _ = bodies(dg.function(lambda x: kernel(x)).plan(np.ones(3)))
    with pytest.raises(TypeError, match=r"of op type 'HoldsAVariable' cannot be sent.*Variable 'scale'.*\.numpy\(\)"):
        task.serialized_body(body, "numpy", False, NONE)


def test_what_runs_can_be_pickled() -> None:
    plan = dg.function(lambda x: dg.exp(x)).plan(np.ones(3))
    assert pickle.loads(pickle.dumps(plan)).digest == plan.digest
    checkpoints = dg.Checkpoints("somewhere", keep=2)
    assert pickle.loads(pickle.dumps(checkpoints)).keep == 2
