"""Gradients of a small model in NumPy-style code: the plan and its cost, why a gradient is None, and training.

    python examples/quickstart.py
    distgrad run examples/quickstart.py --workers 2

The first command runs in this process, the second on a local Ray, with the same result. Ray is no faster here, because
the model is a single task, too small to be split. `char_gpt.py` splits its batch into shards for two workers.
"""

from __future__ import annotations

import argparse

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


def show_what_runs(step, *args) -> None:
    """Print the plan of the loss and its gradients, each step with its source line, and the predicted cost."""
    plan = step.plan(*args)
    print(plan.program, "\n")
    print("\n".join(plan.explain().splitlines()[:3]), "\n")


def show_why_none(params: dict, x, y) -> None:
    """Explain a gradient that is None: here, rounding has no gradient."""
    with dg.Graph():
        w1 = dg.constant(params["w1"], name="w1")
        rounded = loss({**params, "w1": np.round(w1, 1)}, x, y)
        print(dg.gradients(rounded, w1), "because", dg.explain_gradient(rounded, w1), "\n")


def main(steps: int = 200) -> float:
    rng = np.random.default_rng(0)
    x, y = data(rng)
    params = {"w1": rng.normal(size=(3, 16)) * 0.5, "b1": np.zeros(16), "w2": rng.normal(size=(16, 1)) * 0.3}

    step = dg.value_and_grad(loss)  # gradients have the structure of params
    show_what_runs(step, params, x, y)
    show_why_none(params, x, y)

    value = np.inf
    for i in range(steps):
        value, grads = step(params, x, y)
        params = {name: params[name] - 0.1 * grads[name] for name in params}
        if i % 50 == 0 or i == steps - 1:
            print(f"step {i:3d}  loss {float(value):.4f}")
    return float(value)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    main(**vars(parser.parse_args()))
