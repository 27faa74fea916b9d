"""Training with everything that could change bits: sparse and dense gradients, dropout, sums over shards, momentum."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

import distgrad as dg

from ...project.examples import SMALL, run
from ..tables import ROWS as ROWS_OF
from ..tables import fed_rows

VOCABULARY, WIDTH, CLASSES, ROWS = 40, 24, 5, 12


@dg.custom_gradient
def clipped(x: Any) -> Any:
    """Identity, with gradients cut to a range."""
    return dg.identity(x), lambda g: dg.clip(g, -0.05, 0.05)


def variables() -> dict[str, dg.Variable]:
    rng = np.random.default_rng(0)
    shapes = {"table": (VOCABULARY, WIDTH), "w1": (WIDTH, 64), "b1": (64,), "w2": (64, CLASSES)}
    values = {name: rng.normal(size=shape).astype("float32") * 0.3 for name, shape in shapes.items()}
    made = {name: dg.Variable(value.astype("float32"), name=name) for name, value in values.items()}
    made["draws"] = dg.Variable(lambda: dg.random.normal(7, (64,), dtype="float32"), name="draws")
    return made


def loss_of(params: Any, words: Any, labels: Any) -> Any:
    x = dg.mean(dg.gather(params["table"], words), axis=1)
    hidden = dg.nn.layer_norm(clipped(dg.tanh(x @ params["w1"] + params["b1"])) + params["draws"])
    return dg.mean(dg.nn.sparse_softmax_cross_entropy(dg.nn.gelu(hidden) @ params["w2"], labels))


def step_of(params: dict[str, dg.Variable], momenta: dict[str, dg.Variable]) -> Any:
    """One step: the gradients of the variables, those of the table sparse, dropout keyed by the step."""

    @dg.function
    def step(words: Any, labels: Any, seed: Any) -> Any:
        keep = dg.cast(dg.random.bernoulli(dg.random.fold_in(dg.random.key(3), seed), 0.9, (WIDTH, 1)), "float32")
        values = {name: v * keep if name == "w1" else v for name, v in params.items()}
        loss = loss_of(values, words, labels)
        found = dg.gradients(loss, list(params.values()), unconnected_gradients="none")
        for (name, v), g in zip(params.items(), found, strict=True):
            if isinstance(g, dg.IndexedSlices):
                v.assign_sub(dg.identity(g.with_values(g.values * 0.1)))
            elif g is not None:
                m = momenta[name].assign(0.9 * momenta[name] + g)
                v.assign_sub(0.1 * m)
        return loss

    return step


def train(steps: int = 6) -> str:
    params = variables()
    momenta = {name: dg.Variable(np.zeros(v.shape, v.dtype), name=f"{name}_momentum") for name, v in params.items()}
    step, rng = step_of(params, momenta), np.random.default_rng(1)
    losses = []
    for i in range(steps):
        words, labels = rng.integers(0, VOCABULARY, (ROWS, 3)), rng.integers(0, CLASSES, ROWS)
        losses.append(step(words, labels, np.int64(i)))
        note_nodes()
    return digest([*losses, *[v.numpy() for v in (*params.values(), *momenta.values())]])


def shards(count: int) -> str:
    """A loss and its gradients over so many shards: their number may change bits, that of workers may not."""
    params = {name: v.numpy() for name, v in variables().items()}
    rng = np.random.default_rng(2)
    words, labels = rng.integers(0, VOCABULARY, (ROWS + 1, 3)), rng.integers(0, CLASSES, ROWS + 1)
    value, grads = dg.data_parallel(dg.value_and_grad(loss_of), shards=count)(params, words, labels)
    return digest([value, *grads.values()])


#: The nodes of Ray that steps ran on.
used: set[str] = set()


def note_nodes() -> None:
    report = getattr(dg.runtime.current(), "last_run", None)
    used.update([] if report is None else [token.node for token in report.tokens.values()])


def digest(arrays: Any) -> str:
    made = hashlib.sha256()
    for x in arrays:
        made.update(f"{x.dtype}{x.shape}".encode() + np.ascontiguousarray(x).tobytes())
    return made.hexdigest()


def rows(family: str) -> str:
    """All results and gradients of a family of the op table."""
    fed = fed_rows(family)
    return digest(dg.runtime.current().run(fed.fetches, fed.feeds))  # type: ignore[attr-defined]


def digests(tables: bool = True) -> dict[str, str]:
    """In the current session."""
    found = {"train": train(), **{f"{count} shards": shards(count) for count in (1, 2, 3, 4)}}
    found |= {name: digest([run(name)[0]]) for name in SMALL}
    return found | ({f"ops of {family}": rows(family) for family in ROWS_OF} if tables else {})
