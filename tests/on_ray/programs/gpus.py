"""GPU tasks on a Ray that believes to have a GPU: they run on torch arrays, on whatever device torch has, with the bits
of the torch backend in this process, and keep the weights there. Prints "ok"."""

from __future__ import annotations

from typing import Any

import numpy as np
import ray

import distgrad as dg

X = np.random.default_rng(1).normal(size=(32, 64)).astype("float32")


def kept() -> list[Any]:
    from distgrad.workers.on_ray import resident

    return list(resident._kept)


def main() -> None:
    start = np.random.default_rng(0).normal(size=(64, 64)).astype("float32")
    w = dg.Variable(start, name="w")

    def train(x: Any) -> Any:
        y = dg.tanh(x @ w)
        loss = dg.mean(y * y)
        w.assign_sub(0.1 * dg.gradients(loss, w)[0])
        return loss

    @dg.function
    def on_gpu(x: Any) -> Any:
        with dg.device("gpu"):
            return train(x)

    with dg.Session("ray", workers=2, gpus=1, timeout=120) as session:
        losses = [on_gpu(X) for _ in range(4)]
        assert "1 task on gpu" in session.plan_call(on_gpu.body(X)).explain()
        env: Any = session._planner.link.bits.env  # type: ignore[union-attr]  # that of the worker that ran the task
        there = ray.get(ray.remote(num_gpus=1, runtime_env={"env_vars": dict(env)})(kept).remote())
        assert (w._value.stored.ref.hex(), 0) in there, "the weights do not stay on the device"  # type: ignore[union-attr]
    found = w.numpy()
    w.assign(start)
    with dg.Session(backend="torch", threads=1):
        assert [float(x) for x in losses] == [float(dg.function(train)(X)) for _ in range(4)]
    np.testing.assert_array_equal(found, w.numpy())
    print("ok")


if __name__ == "__main__":
    main()
