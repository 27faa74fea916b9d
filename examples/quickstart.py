"""The gradient of a small model, from NumPy-looking code: the graph, what runs, and a few steps of training.

Run it with `python examples/quickstart.py`. Nothing but distgrad is needed; everything runs in this process.
"""

from __future__ import annotations

import numpy as np

import distgrad as dg


def predict(params: dict, x):
    """Two layers. Plain NumPy functions work on tensors and record ops."""
    hidden = np.tanh(x @ params["w1"] + params["b1"])
    return hidden @ params["w2"]


def loss(params: dict, x, y):
    return np.mean((predict(params, x) - y) ** 2)


def data(rng: np.random.Generator, rows: int = 64) -> tuple[np.ndarray, np.ndarray]:
    x = rng.normal(size=(rows, 3))
    return x, np.sin(x[:, :1]) + x[:, 1:2] * x[:, 2:]


def main(steps: int = 200) -> float:
    rng = np.random.default_rng(0)
    x, y = data(rng)
    params = {"w1": rng.normal(size=(3, 16)) * 0.5, "b1": np.zeros(16), "w2": rng.normal(size=(16, 1)) * 0.3}

    step = dg.function(dg.value_and_grad(loss), name="step")
    body = step.body(params, x, y)
    program = dg.scheduler.lower(body.outputs, body.declared)
    print(f"The loss and its gradients: {len(body.ops)} ops are built, {len(program.steps)} steps run:\n")
    print(program, "\n")

    value = np.inf
    for i in range(steps):
        value, grads = step(params, x, y)
        params = {name: params[name] - 0.1 * grads[name] for name in params}
        if i % 50 == 0 or i == steps - 1:
            print(f"step {i:3d}  loss {float(value):.4f}")
    return float(value)


if __name__ == "__main__":
    main()
