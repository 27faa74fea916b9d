"""The workloads' sizes and arrays, the same for every framework: float32 from a fixed seed. Imports only NumPy."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
#: A nesting of dicts and lists with arrays at its leaves.
Tree = Any

BATCH = 256
MLP_WIDTHS = (784, 1024, 1024, 10)


class Gpt(NamedTuple):
    """The sizes of a language model, and the shape of its tokens."""

    layers: int
    width: int
    words: int
    shape: tuple[int, int]

    @property
    def heads(self) -> int:
        return self.width // GPT_HEAD


#: The width of an attention head.
GPT_HEAD = 64
GPT = Gpt(4, 256, 1024, (8, 128))
GPT2 = Gpt(12, 768, 50_257, (2, 256))

ELEMENTS = 4_000_000

IMAGES = (32, 32, 32, 3)
CLASSES = 10

#: Links of the chain; each has five forward ops and five to seven backward ops, about 2,000 in all.
CHAIN = 160
CHAIN_WEIGHTS = 8
TINY = 16


class Inputs(NamedTuple):
    """What a step is called with: the gradients of `params` are wanted, those of `data` are not."""

    params: Tree
    data: tuple[Array, ...]


class Stage(NamedTuple):
    """A residual block of `conv`: two 3x3 convolutions, beside them a 1x1 projection where the shape changes."""

    channels: int
    width: int
    stride: int

    @property
    def projects(self) -> bool:
        return self.stride != 1 or self.channels != self.width


STAGES = (Stage(32, 32, 1), Stage(32, 64, 2), Stage(64, 128, 2))


def make(workload: str) -> Inputs:
    return MAKERS[workload](np.random.default_rng(0))


def mlp(rng: np.random.Generator) -> Inputs:
    layers = [_dense(rng, n, m) for n, m in itertools.pairwise(MLP_WIDTHS)]
    return Inputs({"layers": layers}, (_normal(rng, BATCH, MLP_WIDTHS[0]), _labels(rng, CLASSES, BATCH)))


def gpt(rng: np.random.Generator) -> Inputs:
    params, data = _gpt(rng, GPT)
    return Inputs(params | {"head": _normal(rng, GPT.width, GPT.words, scale=GPT.width**-0.5)}, data)


def gpt2(rng: np.random.Generator) -> Inputs:
    """Without a head: the table of words is used twice, as in GPT-2."""
    return _gpt(rng, GPT2)


def elementwise(rng: np.random.Generator) -> Inputs:
    x, y = _normal(rng, ELEMENTS), _normal(rng, ELEMENTS)
    return Inputs({"p": np.array(0.7, np.float32), "x": x, "y": y}, ())


def conv(rng: np.random.Generator) -> Inputs:
    params = {
        "stem": _conv(rng, 3, IMAGES[-1], STAGES[0].channels),
        "stages": [_stage(rng, stage) for stage in STAGES],
        "head": _dense(rng, STAGES[-1].width, CLASSES),
    }
    return Inputs(params, (_normal(rng, *IMAGES), _labels(rng, CLASSES, IMAGES[0])))


def small(rng: np.random.Generator) -> Inputs:
    params = {
        "a": [_normal(rng, TINY, scale=0.5) for _ in range(CHAIN_WEIGHTS)],
        "b": [_normal(rng, TINY, scale=0.5) for _ in range(CHAIN_WEIGHTS)],
    }
    return Inputs(params, (_normal(rng, TINY),))


def call(rng: np.random.Generator) -> Inputs:
    return Inputs({}, (_normal(rng, TINY), _normal(rng, TINY)))


MAKERS: dict[str, Callable[[np.random.Generator], Inputs]] = {
    "mlp": mlp,
    "gpt": gpt,
    "gpt-numpy": gpt,
    "gpt2": gpt2,
    "elementwise": elementwise,
    "conv": conv,
    "small": small,
    "call": call,
}
#: Whole training steps: they take minutes and gigabytes, and run only when asked for by name.
TRAINING = ("gpt2",)

#: Of Adam: the rate, the decays of both moments, and what keeps the divisor above zero.
RATE, DECAY, DECAY_OF_SQUARES, EPSILON = 1e-4, 0.9, 0.999, 1e-8


def told(moments: Tree) -> Iterator[Any]:
    """What of a training step is compared, beside the loss: the first moments of the first layer. After one step they
    are a tenth of its gradients, which come through all other layers."""
    return leaves(moments["layers"][0])


def leaves(tree: Tree) -> Iterator[Any]:
    """The arrays of a nesting, a dict's by sorted key: the order in which all frameworks list their gradients."""
    if isinstance(tree, dict):
        tree = [tree[key] for key in sorted(tree)]
    if not isinstance(tree, list | tuple):
        yield tree
        return
    for item in tree:
        yield from leaves(item)


def map_leaves(f: Callable[[Any], Any], tree: Tree) -> Tree:
    if isinstance(tree, dict):
        return {key: map_leaves(f, item) for key, item in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(map_leaves(f, item) for item in tree)
    return f(tree)


# -- pieces ------------------------------------------------------------------------------------------------------


def _normal(rng: np.random.Generator, *shape: int, scale: float = 1.0) -> Array:
    return rng.standard_normal(shape, np.float32) * np.float32(scale)


def _labels(rng: np.random.Generator, classes: int, *shape: int) -> Array:
    return rng.integers(classes, size=shape, dtype=np.int32)


def _dense(rng: np.random.Generator, n: int, m: int) -> Tree:
    return {"w": _normal(rng, n, m, scale=(2 / n) ** 0.5), "b": _normal(rng, m, scale=0.01)}


def _conv(rng: np.random.Generator, size: int, n: int, m: int) -> Tree:
    return {"w": _normal(rng, size, size, n, m, scale=(1 / (size * size * n)) ** 0.5), "b": _normal(rng, m, scale=0.01)}


def _norm(rng: np.random.Generator, width: int) -> Tree:
    return {"gamma": 1 + _normal(rng, width, scale=0.1), "beta": _normal(rng, width, scale=0.1)}


def _gpt(rng: np.random.Generator, sizes: Gpt) -> Inputs:
    params = {
        "words": _normal(rng, sizes.words, sizes.width, scale=0.1),
        "positions": _normal(rng, sizes.shape[1], sizes.width, scale=0.1),
        "layers": [_gpt_layer(rng, sizes.width) for _ in range(sizes.layers)],
        "norm": _norm(rng, sizes.width),
    }
    return Inputs(params, (_labels(rng, sizes.words, *sizes.shape), _labels(rng, sizes.words, *sizes.shape)))


def _gpt_layer(rng: np.random.Generator, width: int) -> Tree:
    return {
        "norm1": _norm(rng, width),
        "qkv": _dense(rng, width, 3 * width),
        "out": _dense(rng, width, width),
        "norm2": _norm(rng, width),
        "up": _dense(rng, width, 4 * width),
        "down": _dense(rng, 4 * width, width),
    }


def _stage(rng: np.random.Generator, stage: Stage) -> Tree:
    made = {"first": _conv(rng, 3, stage.channels, stage.width), "second": _conv(rng, 3, stage.width, stage.width)}
    return made | ({"project": _conv(rng, 1, stage.channels, stage.width)} if stage.projects else {})
