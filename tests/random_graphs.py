"""Random graphs as plain data, and the interpreter that builds them with distgrad.

A graph is a list of leaves and a list of nodes; values are numbered: the leaves first, then the outputs of the nodes in
order. Nothing here knows who asks: `random_graph` takes the function that chooses, be it hypothesis (which then
shrinks) or a seeded generator, and another library builds the same graph from the same nodes with a table of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np

import distgrad as dg

T = TypeVar("T")
Shape = tuple[int, ...]
#: What a node may be: the values it reads, its attributes, and the shapes of its outputs.
Option = tuple[tuple[int, ...], dict[str, Any], tuple[Shape, ...]]
#: Builds one node from its inputs and attributes; a list of outputs.
Build = Callable[[Sequence[Any], Mapping[str, Any]], Sequence[Any]]

SHAPES: tuple[Shape, ...] = ((), (2,), (3,), (2, 3), (3, 2), (1, 3), (2, 1))
TABLES: tuple[Shape, ...] = ((2,), (3,), (3, 2), (4, 3))
#: No value of a graph is larger than this in size, so that its derivatives stay tame.
LIMIT = 20.0


class Choose(Protocol):
    def __call__(self, options: Sequence[T], /) -> T: ...


@dataclass(frozen=True, slots=True)
class Node:
    op: str
    inputs: tuple[int, ...]
    attrs: Mapping[str, Any]
    shapes: tuple[Shape, ...]


@dataclass(frozen=True, slots=True)
class RandomGraph:
    leaves: tuple[Shape, ...]
    nodes: tuple[Node, ...]

    @property
    def shapes(self) -> list[Shape]:
        """The shape of every value."""
        return [*self.leaves, *(shape for node in self.nodes for shape in node.shapes)]

    @property
    def ends(self) -> list[int]:
        """The values that no node reads."""
        read = {v for node in self.nodes for v in node.inputs}
        return [v for v in range(len(self.shapes)) if v not in read]

    def leaf_values(self, seed: int = 0, dtype: Any = np.float64) -> list[Any]:
        rng = np.random.default_rng(seed)
        return [np.asarray(rng.uniform(-1, 1, shape), dtype) for shape in self.leaves]


# -- what nodes there are ----------------------------------------------------------------------------------------


def each(shapes: Sequence[Shape]) -> Iterator[Option]:
    for v, shape in enumerate(shapes):
        yield (v,), {}, (shape,)


def pairs(shapes: Sequence[Shape]) -> Iterator[Option]:
    for a, shape_a in enumerate(shapes):
        for b, shape_b in enumerate(shapes):
            try:
                yield (a, b), {}, (np.broadcast_shapes(shape_a, shape_b),)
            except ValueError:
                continue


def _matmul(shapes: Sequence[Shape]) -> Iterator[Option]:
    matrices = [(v, shape) for v, shape in enumerate(shapes) if len(shape) == 2]
    for a, (n, k) in matrices:
        for b, (rows, m) in matrices:
            if k == rows:
                yield (a, b), {}, ((n, m),)


def reduced(shapes: Sequence[Shape]) -> Iterator[Option]:
    for v, shape in enumerate(shapes):
        for axis in range(len(shape)):
            for keepdims in (False, True):
                kept = (1,) if keepdims else ()
                yield (v,), {"axis": axis, "keepdims": keepdims}, ((*shape[:axis], *kept, *shape[axis + 1 :]),)


def _reshaped(shapes: Sequence[Shape]) -> Iterator[Option]:
    for v, shape in enumerate(shapes):
        size = int(np.prod(shape, dtype=int))
        for target in {(size,), (1, size), shape[::-1]} - {shape}:
            yield (v,), {"shape": target}, (target,)


def _transposed(shapes: Sequence[Shape]) -> Iterator[Option]:
    for v, shape in enumerate(shapes):
        if len(shape) == 2:
            yield (v,), {}, (shape[::-1],)


def _joined(shapes: Sequence[Shape]) -> Iterator[Option]:
    for a, shape_a in enumerate(shapes):
        for b, shape_b in enumerate(shapes):
            for axis in range(len(shape_a)):
                if len(shape_a) == len(shape_b) and _without(shape_a, axis) == _without(shape_b, axis):
                    total = shape_a[axis] + shape_b[axis]
                    if total <= 6:
                        yield (a, b), {"axis": axis}, ((*shape_a[:axis], total, *shape_a[axis + 1 :]),)


def _without(shape: Shape, axis: int) -> Shape:
    return shape[:axis] + shape[axis + 1 :]


def _stacked(shapes: Sequence[Shape]) -> Iterator[Option]:
    for a, shape_a in enumerate(shapes):
        for b, shape_b in enumerate(shapes):
            if shape_a == shape_b and len(shape_a) < 2:
                yield (a, b), {}, ((2, *shape_a),)


def _halved(shapes: Sequence[Shape]) -> Iterator[Option]:
    for v, shape in enumerate(shapes):
        for axis, n in enumerate(shape):
            if n % 2 == 0:
                half = (*shape[:axis], n // 2, *shape[axis + 1 :])
                yield (v,), {"axis": axis}, (half, half)


def _sliced(shapes: Sequence[Shape]) -> Iterator[Option]:
    for v, shape in enumerate(shapes):
        if shape and shape[0] > 1:
            yield (v,), {"start": 1}, ((shape[0] - 1, *shape[1:]),)


def _gathered(shapes: Sequence[Shape]) -> Iterator[Option]:
    for v, shape in enumerate(shapes):
        if shape and shape[0] > 1:
            for indices in ((1, 0), (0, 1, 1), ((1, 0), (1, 1))):
                yield (v,), {"indices": indices}, ((*np.shape(indices), *shape[1:]),)


@dataclass(frozen=True, slots=True)
class RandomOp:
    options: Callable[[Sequence[Shape]], Iterator[Option]]
    #: How large the outputs can be, from how large the inputs can be.
    bound: Callable[..., float]
    build: Build


def one(f: Callable[..., Any]) -> Build:
    return lambda xs, attrs: [f(*xs, **attrs)]


def keep(*bounds: float) -> float:
    return max(bounds)


def unit(*bounds: float) -> float:
    return 1.0


#: Ops that are smooth everywhere: finite differences tell their gradients.
SMOOTH: dict[str, RandomOp] = {
    "Tanh": RandomOp(each, unit, one(dg.tanh)),
    "Sin": RandomOp(each, unit, one(dg.sin)),
    "Sigmoid": RandomOp(each, unit, one(dg.sigmoid)),
    "Neg": RandomOp(each, keep, one(dg.negative)),
    "Identity": RandomOp(each, keep, one(dg.identity)),
    "Square": RandomOp(each, lambda x: x * x, one(dg.square)),
    "Exp": RandomOp(each, lambda x: float(np.exp(x)), one(dg.exp)),
    "Add": RandomOp(pairs, lambda x, y: x + y, one(dg.add)),
    "Sub": RandomOp(pairs, lambda x, y: x + y, one(dg.subtract)),
    "Mul": RandomOp(pairs, lambda x, y: x * y, one(dg.multiply)),
    "SafeDiv": RandomOp(pairs, lambda x, y: x, one(lambda x, y: dg.divide(x, 1 + y * y))),
    "MatMul": RandomOp(_matmul, lambda x, y: 3 * x * y, one(dg.matmul)),
    "Sum": RandomOp(reduced, lambda x: 6 * x, one(dg.sum)),
    "Reshape": RandomOp(_reshaped, keep, one(dg.reshape)),
    "Transpose": RandomOp(_transposed, keep, one(dg.transpose)),
    "Concat": RandomOp(_joined, keep, lambda xs, attrs: [dg.concatenate(list(xs), **attrs)]),
    "Stack": RandomOp(_stacked, keep, lambda xs, attrs: [dg.stack(list(xs), **attrs)]),
    "Split": RandomOp(_halved, keep, lambda xs, attrs: dg.split(xs[0], 2, **attrs)),
    "Slice": RandomOp(_sliced, keep, lambda xs, attrs: [xs[0][attrs["start"] :]]),
    "Gather": RandomOp(_gathered, keep, lambda xs, attrs: [dg.gather(xs[0], list(attrs["indices"]))]),
}
#: Ops with kinks, and ops that cut the path: only other builds of the same graph tell their gradients.
OTHER: dict[str, RandomOp] = {
    "Maximum": RandomOp(pairs, keep, one(dg.maximum)),
    "Abs": RandomOp(each, keep, one(dg.abs)),
    "Where": RandomOp(pairs, keep, one(lambda x, y: dg.where(x > y, x, y * y))),
    "StopGradient": RandomOp(each, keep, one(dg.stop_gradient)),
    "Floor": RandomOp(each, lambda x: x + 1, one(dg.floor)),
    "Round": RandomOp(each, lambda x: x + 1, one(lambda x: dg.cast(dg.cast(x, "int32"), x.dtype))),
}
ALL = {**SMOOTH, **OTHER}


# -- choosing and building ---------------------------------------------------------------------------------------


def random_graph(
    choose: Choose, ops: Mapping[str, RandomOp] = ALL, max_nodes: int = 8, lookups: int = 0
) -> RandomGraph:
    """One to three leaves and up to `max_nodes` nodes, every choice made by `choose(options)`.

    With `lookups`, one leaf more, at the end, is a table: so many Gathers read it, and nothing else does.
    """
    leaves = tuple(choose(SHAPES) for _ in range(choose(range(1, 4))))
    table = len(leaves) if lookups else -1
    leaves += (choose(TABLES),) if lookups else ()
    shapes, bounds, nodes = list(leaves), [1.0] * len(leaves), []
    for i in range(lookups + choose(range(1, max_nodes + 1))):
        op = "Gather" if i < lookups else choose(list(ops))
        options = [o for o in ops[op].options(shapes) if (table in o[0]) == (i < lookups)]
        options = [o for o in options if ops[op].bound(*[bounds[v] for v in o[0]]) <= LIMIT]
        if not options:
            op, options = "Tanh", [o for o in each(shapes) if table not in o[0]]
        inputs, attrs, made = choose(options)
        nodes.append(Node(op, inputs, attrs, made))
        bound = ops.get(op, ALL["Tanh"]).bound(*[bounds[v] for v in inputs])
        shapes += made
        bounds += [bound] * len(made)
    return RandomGraph(leaves, tuple(nodes))


def seeded(seed: int) -> Choose:
    """Chooses as a generator with this seed says."""
    rng = np.random.default_rng(seed)
    return lambda options: options[int(rng.integers(len(options)))]


def build(
    graph: RandomGraph,
    leaves: Sequence[Any],
    table: Mapping[str, Build] | None = None,
    after: Callable[[int, Any], Any] = lambda v, x: x,
) -> list[Any]:
    """All values of the graph on these leaves, built by a table of ops; `after` sees (and may replace) each one."""
    table = {name: op.build for name, op in ALL.items()} if table is None else table
    values = [after(v, leaf) for v, leaf in enumerate(leaves)]
    for node in graph.nodes:
        for made in table[node.op]([values[v] for v in node.inputs], node.attrs):
            values.append(after(len(values), made))
    return values


def with_gradients(graph: RandomGraph) -> tuple[list[Any], list[Any]]:
    """The gradients of the graph's leaves and its last value, in a graph of their own; and the leaves, to be fed."""
    with dg.Graph():
        leaves = [dg.placeholder(shape) for shape in graph.leaves]
        values = build(graph, leaves)
        grads = dg.gradients([values[v] for v in graph.ends], leaves, unconnected_gradients="zero")
        return [dg.identity(g) if isinstance(g, dg.Tensor) else g.values for g in grads] + [values[-1]], leaves
