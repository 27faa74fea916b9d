"""Random fused steps as native code: the process survives, and threads change no bit.

    python -m tests.fuzz.groups --count 10000 --seed 1

The accuracy of each op is tested elsewhere; here groups are large and odd: many dtypes, broadcasts, row ops among
reductions, sizes around those of vectors.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import distgrad as dg
from distgrad.scheduler.passes.fuse import fuse
from distgrad.scheduler.program import FUSED, Program, lower
from distgrad.workers.native.formulas import has_rule
from distgrad.workers.numpy_engine.tape import Tape
from distgrad.workers.thread_pool import thread_pool

from ..engines import Array, assert_bits, tiny_blocks

SIZES = (1, 2, 3, 5, 8, 15, 16, 17, 31, 33)
DTYPES = ("float32", "float64", "int32", "int64", "uint8", "bool")
Step = Callable[..., Any]

FLOATING: tuple[Step, ...] = (
    dg.exp, dg.tanh, dg.log1p, dg.sigmoid, dg.sqrt, dg.sin, dg.nn.gelu, dg.nn.relu, dg.floor, dg.erf, dg.reciprocal,
)  # fmt: skip
ALONG_ROWS: tuple[Step, ...] = (
    dg.nn.softmax,
    dg.nn.log_softmax,
    dg.nn.layer_norm,
    lambda x: x - dg.mean(x, axis=-1, keepdims=True),
    lambda x: x / dg.max(dg.abs(x), axis=-1, keepdims=True),
    lambda x: x * dg.sum(x, axis=-1, keepdims=True),
)
ANY: tuple[Step, ...] = (dg.negative, dg.abs, dg.square)
PAIRS: tuple[Step, ...] = (
    dg.add,
    dg.subtract,
    dg.multiply,
    dg.maximum,
    dg.minimum,
    lambda x, y: dg.where(x > y, x, y),
    lambda x, y: dg.where(x != y, y, x),
)
ENDS: tuple[Step, ...] = (
    lambda x: x,
    lambda x: dg.sum(x, axis=0),
    lambda x: dg.max(x, axis=-1),
    dg.sum,
    lambda x: dg.min(x, axis=0, keepdims=True),
    lambda x: dg.cast(x, "float32"),
)


class Random:
    """Choices of one seed."""

    def __init__(self, seed: int):
        self._rng = np.random.default_rng(seed)

    def of(self, options: Sequence[Any]) -> Any:
        return options[int(self._rng.integers(len(options)))]

    def array(self, shape: tuple[int, ...], dtype: str) -> Array:
        made: Array = (self._rng.standard_normal(shape) * self.of((1, 10, 1e4))).astype(dtype)
        if made.dtype.kind == "f" and made.size and self.of((True, False, False)):
            made.reshape(-1)[int(self._rng.integers(made.size))] = self.of((np.nan, np.inf, -np.inf, -0.0, 1e-42))
        return made


def random_values(random: Random, xs: Sequence[Any], steps: int) -> list[Any]:
    """Results of random steps on the first of these tensors and on what was made before."""
    made = [xs[0]]
    for _ in range(steps):
        x = random.of(made)
        kind = x.dtype.kind
        y = random.of([v for v in (*xs, *made) if v.dtype == x.dtype])
        if kind == "b":
            made.append(random.of((dg.logical_not, lambda v: dg.cast(v, "float32")))(x))
        elif random.of((True, False)):
            made.append(random.of(PAIRS)(x, y))
        else:
            options = (*ANY, *FLOATING, *ALONG_ROWS, lambda v: v > 0) if kind == "f" else (*ANY, lambda v: v >= 1)
            made.append(random.of(options)(x))
    ends = [random.of(ENDS[:1] if v.dtype.kind == "b" else ENDS)(v) for v in made[-random.of((1, 2, 4)) :]]
    return [dg.identity(v) if any(v is x for x in xs) else v for v in ends]


def random_program(random: Random) -> tuple[Program, list[Array]]:
    space = tuple(random.of(SIZES) for _ in range(random.of((1, 1, 2, 2, 3, 4))))
    shapes = [tuple(random.of((1, n, n)) for n in space)[random.of(range(len(space) + 1)) :] for _ in range(3)]
    dtype = random.of(DTYPES)
    arrays = [random.array(shape, dtype) for shape in (space, *shapes)]
    with dg.Graph():
        xs = [dg.placeholder(x.shape, x.dtype) for x in arrays]
        program = lower(random_values(random, xs, random.of((2, 5, 12, 30, 60))), xs)
    return fuse(program, has_rule), arrays


def check(seed: int) -> int:
    """Run one random program; returns how many groups it has."""
    random = Random(seed)
    with tiny_blocks(random.of((1, 5, 100))), np.errstate(all="ignore"):
        program, arrays = random_program(random)
        made = []
        for threads in (1, random.of((2, 3))):
            pool = thread_pool(threads)
            tape = Tape(program.steps, program.types, program.feeds, program.fetches, pool, native=True)
            made.append(tape.run(arrays))
    assert_bits(made[1], made[0])
    return sum(step.type == FUSED for step in program.steps)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=10_000, help="groups at least")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    groups, seed = 0, args.seed * 1_000_000
    while groups < args.count:
        try:
            groups += check(seed)
        except Exception as e:
            raise SystemExit(f"seed {seed}: {type(e).__name__}: {e}") from e
        seed += 1
        if seed % 100 == 0:
            print(f"\r{groups} of {args.count} groups", end="", flush=True)
    print(f"\r{groups} groups of {seed - args.seed * 1_000_000} programs: none ended the process, no bit differed")


if __name__ == "__main__":
    main()
