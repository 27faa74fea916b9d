"""A small GPT that learns to write English about Python, character by character, trained data-parallel.

It reads the manual that comes with Python (or your --text) and learns to predict the next character: two layers of
causal attention, Adam, and batches split into shards, with gradients summed in a fixed order. Weights and moments are
variables: in a Ray session they stay on the cluster and are never copied to this process during training.

    python examples/char_gpt.py
    distgrad run examples/char_gpt.py --workers 2

Prints the training loss, the loss on held-out text (guessing would be log(vocabulary)), and a sample of its writing.
"""

from __future__ import annotations

import argparse
import functools
from pathlib import Path
from pydoc_data import topics

import numpy as np

import distgrad as dg

WIDTH, HEADS, LAYERS, CONTEXT = 64, 4, 2, 64


def weights(vocabulary: int) -> dict[str, dg.Variable]:
    rng = np.random.default_rng(0)

    def normal(name: str, *shape: int, scale: float = 1.0) -> dg.Variable:
        return dg.Variable((rng.normal(size=shape) * scale * shape[0] ** -0.5).astype("float32"), name=name)

    params = {"embed": normal("embed", vocabulary, WIDTH), "place": normal("place", CONTEXT, WIDTH)}
    for i in range(LAYERS):
        params[f"qkv{i}"] = normal(f"qkv{i}", WIDTH, 3 * WIDTH)
        params[f"mix{i}"] = normal(f"mix{i}", WIDTH, WIDTH, scale=0.1)  # the residual branches start small
        params[f"up{i}"] = normal(f"up{i}", WIDTH, 4 * WIDTH)
        params[f"down{i}"] = normal(f"down{i}", 4 * WIDTH, WIDTH, scale=0.1)
    return params | {"read": normal("read", WIDTH, vocabulary, scale=0.1)}


def attention(x, qkv, mix):
    """Causal self-attention."""
    rows, length, _ = x.shape
    q, k, v = np.moveaxis((x @ qkv).reshape(rows, length, 3, HEADS, WIDTH // HEADS), (2, 3), (0, 2))
    scores = q @ k.swapaxes(-1, -2) * (WIDTH // HEADS) ** -0.5
    scores = np.where(np.tri(length, dtype=bool), scores, np.float32(-1e9))
    return (dg.nn.softmax(scores) @ v).swapaxes(1, 2).reshape(rows, length, WIDTH) @ mix


def logits(params: dict, tokens):
    x = dg.nn.embedding(params["embed"], tokens) + params["place"]
    for i in range(LAYERS):
        x = x + attention(dg.nn.layer_norm(x), params[f"qkv{i}"], params[f"mix{i}"])
        x = x + dg.nn.gelu(dg.nn.layer_norm(x) @ params[f"up{i}"], approximate=True) @ params[f"down{i}"]
    return dg.nn.layer_norm(x) @ params["read"]


def loss(params: dict, rows):
    """The loss of a batch. Each row has one character more than the context: the next character is the label."""
    return np.mean(dg.nn.sparse_softmax_cross_entropy(logits(params, rows[:, :-1]), rows[:, 1:]))


def trainer(params: dict[str, dg.Variable], shards: int, rate: float = 4e-3):
    """A function that takes one step of Adam. All assigns take effect together, after the whole step has succeeded."""
    first, second = ({k: dg.Variable(np.zeros(v.shape, v.dtype)) for k, v in params.items()} for _ in range(2))

    @functools.partial(dg.data_parallel, shards=shards)
    def gradients(rows):
        value = loss(params, rows)
        return value, dict(zip(params, map(dg.identity, dg.gradients(value, list(params.values()))), strict=True))

    @dg.function
    def step(rows, t):
        value, grads = gradients(rows)
        for name, g in grads.items():
            m = first[name].assign(0.9 * first[name] + 0.1 * g)
            v = second[name].assign(0.99 * second[name] + 0.01 * g * g)
            params[name].assign_sub(rate * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.99**t)) + 1e-8))
        return value

    return step


def write(params: dict, tokens: np.ndarray, count: int) -> np.ndarray:
    """Sample a continuation of these tokens, with one random key per character."""

    @dg.function
    def following(window, i):
        return dg.random.categorical(dg.random.fold_in(dg.random.key(0), i), logits(params, window[None])[0, -1] / 0.7)

    for i in range(count):
        tokens = np.append(tokens, following(tokens[-CONTEXT:], np.int64(i)))
    return tokens[-count:]


def manual() -> str:
    """The reference manual of Python's help(): its lines of prose, with whitespace normalised."""
    lines = [" ".join(line.split()) for text in topics.topics.values() for line in text.splitlines()]
    return "\n".join(line for line in lines if line[:1].isalpha())


def batch(tokens: np.ndarray, rows: int, seed: int) -> np.ndarray:
    starts = np.random.default_rng(seed).integers(0, len(tokens) - CONTEXT - 1, rows)
    return tokens[starts[:, None] + np.arange(CONTEXT + 1)]


def main(steps: int = 500, rows: int = 16, shards: int = 2, letters: int = 200, text: str | None = None) -> np.ndarray:
    """The loss of every step, then the loss on held-out text."""
    read = manual() if text is None else Path(text).read_text()
    letter, tokens = np.unique(list(read), return_inverse=True)
    known, unknown = tokens[: len(tokens) * 9 // 10], tokens[len(tokens) * 9 // 10 :]
    params = weights(len(letter))
    step = trainer(params, shards)
    print(f"{len(read):,} characters, {len(letter)} different: guessing has a loss of {np.log(len(letter)):.2f}")
    losses = []
    for i in range(steps):
        losses.append(step(batch(known, rows, i), np.float32(i + 1)))
        if i % 100 == 0 or i == steps - 1:
            print(f"step {i:3d}  loss {losses[-1]:.3f}")
    held_out = dg.function(lambda rows: loss(params, rows))(batch(unknown, 128, 0))
    print(f"loss on held-out text: {held_out:.3f}; a sample:\n")
    print("".join(letter[write(params, known[:CONTEXT], letters)]))
    return np.array([*losses, held_out])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--rows", type=int, default=16, help="rows of a batch")
    parser.add_argument("--shards", type=int, default=2, help="shards of a batch")
    parser.add_argument("--letters", type=int, default=200, help="characters to write at the end")
    parser.add_argument("--text", metavar="FILE", help="text to learn from, instead of Python's manual")
    main(**vars(parser.parse_args()))
