"""The same work as a user of Ray would write it by hand, with distgrad's local engine as the library that computes."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import ray
from steps import in_distgrad, inputs

import distgrad as dg

Array = np.ndarray[Any, np.dtype[Any]]


@cache
def _gradients() -> Any:
    """Compiled once per process, with one thread as the task has one cpu."""
    session, step = dg.Session(threads=1), in_distgrad.step("gpt")

    def run(params: Any, tokens: Array, targets: Array) -> list[Array]:
        with session:
            return list(inputs.leaves(step(params, tokens, targets)))

    return run


@ray.remote(num_cpus=1)
def gradients(params: Any, tokens: Array, targets: Array) -> list[Array]:
    return _gradients()(params, tokens, targets)  # type: ignore[no-any-return]


@ray.remote(num_cpus=1)
def mean(a: list[Array], b: list[Array]) -> list[Array]:
    found = []
    for x, y in zip(a, b, strict=True):
        total = np.add(x, y)
        total *= 0.5
        found.append(total)
    return found


class Tasks:
    """Parameters put once; per step two tasks, a third that adds up."""

    def __init__(self, params: Any):
        self.params = ray.put(params)

    def __call__(self, tokens: Array, targets: Array) -> Any:
        half = len(tokens) // 2
        a = gradients.remote(self.params, tokens[:half], targets[:half])
        b = gradients.remote(self.params, tokens[half:], targets[half:])
        return mean.remote(a, b)


@ray.remote(num_cpus=0)  # beside the tasks of the other rows, which do not run when these do
class Replica:
    """Has the parameters and half of the work."""

    def __init__(self, params: Any):
        self.params = params

    def gradients(self, tokens: Array, targets: Array) -> list[Array]:
        return _gradients()(self.params, tokens, targets)  # type: ignore[no-any-return]

    def mean_with(self, tokens: Array, targets: Array, other: Any) -> list[Array]:
        """Own gradients first, then those of the other one, which come by reference in a list."""
        mine = self.gradients(tokens, targets)
        theirs = ray.get(other[0])
        found = []
        for x, y in zip(mine, theirs, strict=True):
            total = np.add(x, y)
            total *= 0.5
            found.append(total)
        return found


class Actors:
    """Two actors that keep the parameters; one of them adds up what both made."""

    def __init__(self, params: Any):
        placed = ray.put(params)
        self.replicas = [Replica.options(runtime_env=ONE_THREAD).remote(placed) for _ in range(2)]

    def __call__(self, tokens: Array, targets: Array) -> Any:
        half = len(tokens) // 2
        a, b = self.replicas
        other = b.gradients.remote(tokens[half:], targets[half:])
        return a.mean_with.remote(tokens[:half], targets[:half], [other])


#: Ray sets no number of threads for an actor without cpus.
ONE_THREAD = {"env_vars": {"OMP_NUM_THREADS": "1"}}


# -- sums --------------------------------------------------------------------------------------------------------


@ray.remote(num_cpus=1)
def add(a: Array, b: Array) -> Array:
    return a + b


def tree_sum(refs: list[Any]) -> Any:
    """Pairwise, until one is left."""
    while len(refs) > 1:
        refs = [add.remote(a, b) for a, b in zip(refs[::2], refs[1::2], strict=True)]
    return refs[0]


# -- nothing -----------------------------------------------------------------------------------------------------


@ray.remote(num_cpus=1, num_returns=2)
def nothing(x: float) -> tuple[int, float]:
    return 0, x


def many(count: int) -> list[Any]:
    """The first results of `count` tasks, when all are done."""
    made = [nothing.remote(float(i)) for i in range(count)]
    return ray.get([first for first, _ in made])  # type: ignore[no-any-return]
