"""The training that is disturbed: a small network on shards of each batch, and what it gives when nothing happens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import distgrad as dg

Array = np.ndarray[Any, np.dtype[Any]]

#: Weights of 147 KB: larger than what Ray carries in its messages, so they lie in the store of a node.
WIDTH, ROWS, SHARDS = 192, 64, 4
#: Seconds that a task of the plan shall take: a step has about twenty of them, and one where nothing is pinned.
GRANULARITY = 3e-5


def _same(x: dg.Tensor) -> dg.Tensor:
    return x


class Training:
    """Weights and a step that moves them; `device` pins the step that writes them, all of it or weight by weight;
    `on_shard` is applied to what each shard is given."""

    def __init__(
        self, device: str | Sequence[str] | None = None, on_shard: Callable[[dg.Tensor], dg.Tensor] = _same
    ):
        rng = np.random.default_rng(0)
        shapes = [(WIDTH, WIDTH), (WIDTH, WIDTH), (WIDTH, 1)]
        starts = [(rng.normal(size=shape) / 16).astype(np.float32) for shape in shapes]
        self.weights = weights = [dg.Variable(start, name=f"w{i}") for i, start in enumerate(starts)]
        devices = [device] if isinstance(device, str) or device is None else list(device)
        of_shards = dg.data_parallel(dg.value_and_grad(lambda ws, x, y: _loss(ws, on_shard(x), y)), SHARDS)

        @dg.function
        def step(x: dg.Tensor, y: dg.Tensor) -> dg.Tensor:
            loss, slopes = of_shards([w.read() for w in weights], x, y)
            for i, (w, slope) in enumerate(zip(weights, slopes, strict=True)):
                with dg.device(devices[i % len(devices)]):
                    w.assign_sub(np.float32(0.1) * slope)
            return loss

        self._step = step

    def step(self, i: int) -> float:
        return float(self._step(*batch(i)))

    def tasks(self) -> int:
        """How many tasks the plan of a step has in the current session."""
        return len(self._step.plan(*batch(0)).tasks)

    def values(self) -> list[Array]:
        return [w.numpy() for w in self.weights]


def _loss(weights: Sequence[dg.Tensor], x: dg.Tensor, y: dg.Tensor) -> dg.Tensor:
    for w in weights[:-1]:
        x = dg.tanh(x @ w)
    return dg.mean((x @ weights[-1] - y) ** 2)


def batch(i: int) -> tuple[Array, Array]:
    rng = np.random.default_rng(1000 + i)
    return rng.normal(size=(ROWS, WIDTH)).astype(np.float32), rng.normal(size=(ROWS, 1)).astype(np.float32)


def undisturbed(steps: int, on_shard: Callable[[dg.Tensor], dg.Tensor] = _same) -> list[Array]:
    """The weights after so many steps in one process."""
    with dg.Session(cpus_per_task=1):
        training = Training(on_shard=on_shard)
        for i in range(steps):
            training.step(i)
    return training.values()


def same_bits(found: Sequence[Array], expected: Sequence[Array]) -> bool:
    return [x.tobytes() for x in found] == [x.tobytes() for x in expected]
