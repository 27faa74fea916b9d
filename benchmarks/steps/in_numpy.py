"""A lower bound: only the dense matrix products or ufuncs of a step, by plain NumPy into preallocated outputs.

The products of `conv` are those of the convolutions as matrices of windows (im2col). Backward products read
their operands transposed, as views, as BLAS does in every framework.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from . import inputs
from .timing import Step

Array = np.ndarray[Any, np.dtype[Any]]


class Gemm(NamedTuple):
    """`times` products [batch] x (m, k) @ (k, n); a transposed operand is stored the other way round."""

    name: str
    m: int
    k: int
    n: int
    batch: int = 1
    a_transposed: bool = False
    b_transposed: bool = False
    times: int = 1

    @property
    def flops(self) -> int:
        return 2 * self.m * self.k * self.n * self.batch * self.times


def products(workload: str) -> list[Gemm]:
    return list(LISTS[workload]()) if workload in LISTS else []


def _mlp() -> Iterator[Gemm]:
    for i, (n, m) in enumerate(itertools.pairwise(inputs.MLP_WIDTHS)):
        yield from _with_gradients(f"layer {i}", inputs.BATCH, n, m, of_input=i > 0)


def _gpt(sizes: inputs.Gpt) -> Iterator[Gemm]:
    batch, length = sizes.shape
    rows, width, layers = batch * length, sizes.width, sizes.layers
    many, head = batch * sizes.heads, inputs.GPT_HEAD
    yield from _with_gradients("qkv", rows, width, 3 * width, times=layers)
    yield Gemm("scores", length, head, length, many, b_transposed=True, times=layers)
    yield Gemm("scores: dq", length, length, head, many, times=layers)
    yield Gemm("scores: dk", length, length, head, many, a_transposed=True, times=layers)
    yield Gemm("mix", length, length, head, many, times=layers)
    yield Gemm("mix: dweights", length, head, length, many, b_transposed=True, times=layers)
    yield Gemm("mix: dv", length, length, head, many, a_transposed=True, times=layers)
    yield from _with_gradients("out", rows, width, width, times=layers)
    yield from _with_gradients("up", rows, width, 4 * width, times=layers)
    yield from _with_gradients("down", rows, 4 * width, width, times=layers)
    yield from _with_gradients("head", rows, width, sizes.words)


def _conv() -> Iterator[Gemm]:
    images, side = inputs.IMAGES[:2]
    window, width = 9 * inputs.IMAGES[-1], inputs.STAGES[0].channels
    yield from _with_gradients("stem", images * side**2, window, width, of_input=False)
    for i, stage in enumerate(inputs.STAGES):
        side //= stage.stride
        rows = images * side**2
        yield from _with_gradients(f"stage {i} first", rows, 9 * stage.channels, stage.width)
        yield from _with_gradients(f"stage {i} second", rows, 9 * stage.width, stage.width)
        if stage.projects:
            yield from _with_gradients(f"stage {i} project", rows, stage.channels, stage.width)
    yield from _with_gradients("head", images, inputs.STAGES[-1].width, inputs.CLASSES)


LISTS: dict[str, Callable[[], Iterator[Gemm]]] = {
    "mlp": _mlp,
    "gpt": partial(_gpt, inputs.GPT),
    "gpt-numpy": partial(_gpt, inputs.GPT),
    "gpt2": partial(_gpt, inputs.GPT2),
    "conv": _conv,
}


def _with_gradients(name: str, m: int, k: int, n: int, of_input: bool = True, times: int = 1) -> Iterator[Gemm]:
    yield Gemm(name, m, k, n, times=times)
    if of_input:
        yield Gemm(f"{name}: dx", m, n, k, b_transposed=True, times=times)
    yield Gemm(f"{name}: dw", k, m, n, a_transposed=True, times=times)


# -- for the server ----------------------------------------------------------------------------------------------


def load(workload: str, variant: str, threads: int) -> Step:
    if workload == "call":
        return Step(_ufuncs(*inputs.make("call").data), lambda made: [made])
    gemms = products(workload)
    if not gemms:
        raise LookupError(f"{workload} has no matrix products")
    ready = [(_operands(gemm), gemm.times) for gemm in gemms]
    return Step(lambda: _multiply(ready), lambda made: [])


def share(workload: str, rounds: int = 5) -> list[dict[str, Any]]:
    """Each matrix product of a workload with its seconds, the best of a few rounds."""
    rows = []
    for gemm in products(workload):
        ready = [(_operands(gemm), gemm.times)]
        _multiply(ready)
        rows.append({**gemm._asdict(), "flops": gemm.flops, "seconds": min(_seconds(ready) for _ in range(rounds))})
    return rows


def _operands(gemm: Gemm) -> tuple[Array, Array, Array]:
    a = _stored(gemm.batch, gemm.m, gemm.k, gemm.a_transposed)
    b = _stored(gemm.batch, gemm.k, gemm.n, gemm.b_transposed)
    return a, b, np.ones((*a.shape[:-1], gemm.n), np.float32)


def _stored(batch: int, rows: int, columns: int, transposed: bool) -> Array:
    shape = (columns, rows) if transposed else (rows, columns)
    made = np.full((batch, *shape) if batch > 1 else shape, 1 / math.sqrt(rows), np.float32)
    return made.swapaxes(-1, -2) if transposed else made


def _multiply(ready: list[tuple[tuple[Array, Array, Array], int]]) -> None:
    for (a, b, out), times in ready:
        for _ in range(times):
            np.matmul(a, b, out=out)


def _seconds(ready: list[tuple[tuple[Array, Array, Array], int]]) -> float:
    start = time.perf_counter()
    _multiply(ready)
    return time.perf_counter() - start


def _ufuncs(x: Array, y: Array) -> Any:
    out = np.empty_like(x)

    def run() -> Array:
        np.tanh(x, out=out)
        np.multiply(out, y, out=out)
        for _ in range(4):
            np.tanh(out, out=out)
            np.multiply(out, y, out=out)
        return out

    return run


def warm() -> None:
    x = np.ones((256, 256), np.float32)
    x @ x
