"""A byte-level language model with two attention blocks that learns its own source code.

`distgrad demo` writes this file next to its report, as `model.py`. Change it and see what it costs:

    distgrad plan model.py:plan                shows tasks, time and memory without running
    python model.py                            trains in this process
    distgrad run model.py --workers 2          trains on Ray
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import distgrad as dg
from distgrad.progress import track

WIDTH, HEADS, BLOCKS = 128, 4, 2
#: Context length in bytes; rows of a batch; shards of a batch, whose gradients can run in parallel.
CONTEXT, ROWS, SHARDS = 64, 32, 4
TEXT = np.frombuffer(Path(__file__).read_bytes(), np.uint8).astype(np.int64)

Array = np.ndarray[Any, np.dtype[Any]]
Arrays = dict[str, Array]


# -- the model, in NumPy's words: on tensors its functions record ops --------------------------------------------


def logits(params: Any, tokens: Any) -> Any:
    """Logits of the next byte at each position."""
    x = dg.nn.embedding(params["bytes"], tokens) + params["places"]
    for i in range(BLOCKS):
        x = x + attention(params, i, norm(params, f"{i}.norm1", x))
        hidden = norm(params, f"{i}.norm2", x) @ params[f"{i}.up"]
        x = x + dg.nn.gelu(hidden, approximate=True) @ params[f"{i}.down"]
    return norm(params, "norm", x) @ params["bytes"].T


def attention(params: Any, i: int, x: Any) -> Any:
    """Causal self-attention."""
    rows, length, width = x.shape
    parts = (x @ params[f"{i}.qkv"]).reshape(rows, length, 3, HEADS, width // HEADS)
    q, k, v = (np.transpose(parts[:, :, j], (0, 2, 1, 3)) for j in range(3))
    scores = q @ np.swapaxes(k, -1, -2) * (width // HEADS) ** -0.5
    weights = dg.nn.softmax(np.where(np.tri(length, dtype=bool), scores, -np.inf))
    return np.transpose(weights @ v, (0, 2, 1, 3)).reshape(rows, length, width) @ params[f"{i}.out"]


def norm(params: Any, name: str, x: Any) -> Any:
    return dg.nn.layer_norm(x, params[f"{name}.scale"], params[f"{name}.shift"])


def loss(params: Any, tokens: Any, targets: Any) -> Any:
    return np.mean(dg.nn.sparse_softmax_cross_entropy(logits(params, tokens), targets))


#: The loss and its gradients, on shards of the batch: parallel tasks if there are several workers.
step = dg.data_parallel(dg.value_and_grad(loss), shards=SHARDS)


# -- weights, batches, training ----------------------------------------------------------------------------------


def weights(rng: np.random.Generator) -> Arrays:
    shapes = {"bytes": (256, WIDTH), "places": (CONTEXT, WIDTH)}
    norms = ["norm"]
    for i in range(BLOCKS):
        shapes |= {f"{i}.qkv": (WIDTH, 3 * WIDTH), f"{i}.out": (WIDTH, WIDTH)}
        shapes |= {f"{i}.up": (WIDTH, 4 * WIDTH), f"{i}.down": (4 * WIDTH, WIDTH)}
        norms += [f"{i}.norm1", f"{i}.norm2"]
    made = {name: rng.normal(scale=0.05, size=shape).astype(np.float32) for name, shape in shapes.items()}
    made |= {f"{name}.scale": np.ones(WIDTH, np.float32) for name in norms}
    return made | {f"{name}.shift": np.zeros(WIDTH, np.float32) for name in norms}


def batch(rng: np.random.Generator) -> tuple[Array, Array]:
    """Random pieces of the text, and the next byte for each of their bytes."""
    starts = rng.integers(0, len(TEXT) - CONTEXT, size=ROWS)
    pieces = TEXT[starts[:, None] + np.arange(CONTEXT + 1)]
    return pieces[:, :-1], pieces[:, 1:]


def train(params: Arrays, steps: Any, rng: np.random.Generator) -> tuple[Arrays, list[float]]:
    """Train with Adam; returns the new weights and the loss of each step."""
    speed = {name: np.zeros_like(x) for name, x in params.items()}
    losses = []
    for _ in steps:
        value, grads = step(params, *batch(rng))
        speed = {name: 0.9 * speed[name] + 0.1 * grads[name] for name in params}
        params = {name: x - np.float32(0.002) * np.sign(speed[name]) for name, x in params.items()}
        losses.append(float(value))
    return params, losses


def plan() -> tuple[Any, tuple[Any, ...]]:
    """For `distgrad plan model.py:plan`: a function and example arguments."""
    rng = np.random.default_rng(0)
    return step, (weights(rng), *batch(rng))


def main() -> None:
    rng = np.random.default_rng(0)
    _, losses = train(weights(rng), track(range(50), "training"), rng)
    print(f"loss {losses[0]:.2f} at the start, {losses[-1]:.2f} after {len(losses)} steps")


if __name__ == "__main__":
    main()
