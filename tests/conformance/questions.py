"""What is asked of every library: a random graph, and a random use of gradients() on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from tests.conformance.tables import OPS, RAISING
from tests.random_graphs import RandomGraph, random_graph, seeded


@dataclass(frozen=True)
class Question:
    """Values by number, and the options of gradients()."""

    graph: RandomGraph
    dtype: str
    ys: list[int]
    xs: list[int]
    grad_ys: list[Any] | None
    stops: list[int]
    unconnected: str
    gate: bool
    aggregation: int

    def leaves(self) -> list[Any]:
        return self.graph.leaf_values(dtype=self.dtype)

    def options(self, values: list[Any], method: Any) -> dict[str, Any]:
        return {
            "grad_ys": self.grad_ys,
            "stop_gradients": [values[v] for v in self.stops] or None,
            "unconnected_gradients": method(self.unconnected),
            "gate_gradients": self.gate,
            "aggregation_method": self.aggregation,
        }


class Sparse(NamedTuple):
    values: Any
    indices: Any
    dense_shape: tuple[int, ...]

    def dense(self) -> Any:
        made = np.zeros(self.dense_shape, self.values.dtype)
        np.add.at(made, self.indices, self.values)
        return made


class Answer(NamedTuple):
    """The values of ys; their gradients (arrays, Sparse, None); and the gradients of the gradients' sum with respect to
    the leaves, or what asking for them raised.

    To the leaves, because a second derivative with respect to the output of an op is no property of the function: it
    depends on whether that op's rule is written with its output (exp) or with its input.
    """

    values: list[Any]
    first: list[Any]
    second: list[Any] | str


def question(seed: int) -> Question:
    choose = seeded(seed)
    graph = random_graph(choose, OPS, max_nodes=10, lookups=choose((0, 0, 1, 2)))
    shapes = graph.shapes
    every = list(range(len(shapes)))
    raising = [v for v, op in enumerate(made_by(graph)) if op in RAISING]
    largest = max(graph.ends, key=lambda v: len(behind(graph, [v])))
    ys = [
        choose((largest, largest, choose(graph.ends))),
        *([choose(raising or every)] if choose((True, False)) else []),
    ]
    xs = list(dict.fromkeys([choose(every) if choose((True, False, False)) else v for v in range(len(graph.leaves))]))
    rng = np.random.default_rng(seed)
    dtype = choose(("float64", "float64", "float64", "float32"))
    given = [rng.uniform(-1, 1, shapes[y]).astype(dtype) for y in ys] if choose((True, False)) else None
    on_the_way = [v for v in stoppable(graph) if v in behind(graph, ys)] or stoppable(graph)
    stops = [choose(on_the_way) for _ in range(choose((0, 0, 0, 1, 2)))]
    unconnected, gate, aggregation = choose(("none", "zero")), choose((True, False)), choose((0, 1, 2))
    return Question(graph, dtype, ys, xs, given, stops, unconnected, gate, aggregation)


def made_by(graph: RandomGraph) -> list[str | None]:
    """The op that makes each value; None for the leaves."""
    return [*(None for _ in graph.leaves), *(node.op for node in graph.nodes for _ in node.shapes)]


def behind(graph: RandomGraph, ys: Sequence[int]) -> set[int]:
    """The values that ys depend on, and ys."""
    made = [node for node in graph.nodes for _ in node.shapes]
    found, stack = set(ys), list(ys)
    while stack:
        v = stack.pop() - len(graph.leaves)
        new = set(made[v].inputs) - found if v >= 0 else set()
        found |= new
        stack += new
    return found


def single_outputs(graph: RandomGraph) -> list[int]:
    """The values that are the only output of their op, and the leaves."""
    made = [node for node in graph.nodes for _ in node.shapes]
    return [*range(len(graph.leaves)), *(v for v, n in enumerate(made, len(graph.leaves)) if len(n.shapes) == 1)]


def stoppable(graph: RandomGraph) -> list[int]:
    """Where `stop_gradients` is one thing to all: TensorFlow cuts all outputs of an op, but those of a call not at all
    (docs/differences.md)."""
    made = made_by(graph)
    return [v for v in single_outputs(graph) if not (made[v] or "").startswith("Called")]


def attempt(call: Callable[[], Any]) -> Any:
    """What a call gives, or the name of the exception that it raises, any of those that a library documents."""
    try:
        return call()
    except (LookupError, ValueError, TypeError, RuntimeError, AttributeError, NotImplementedError) as e:
        return type(e).__name__
