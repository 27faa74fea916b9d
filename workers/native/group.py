"""The formula of a fused step, and how its arrays lie in memory while a loop runs over rows.

The space of the step is seen as rows: the axes before `axis` are counted by one index, the others are a row of
`length` elements. A reduction over the last axes decides where rows begin. Where nothing does, as many axes as possible
are one row, and if all are (`flat`), the loop counts elements instead of rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from distgrad.registry import Kind, kind_of
from distgrad.scheduler.cost.cutting import reduces_rows
from distgrad.scheduler.program import Step
from distgrad.types import DType, Shape, Spec
from distgrad.workers.native.formulas import REDUCTIONS, Node, apply, row_op
from distgrad.workers.native.rules import NUMBERS, Unsupported


class Operand(NamedTuple):
    """An array of the step, with its shape aligned to the axes of the space: 1 where it repeats."""

    array: int
    shape: Shape
    dtype: DType


class Store(NamedTuple):
    """A result: where it goes, and what it is."""

    to: Operand
    node: Node


class Fold(NamedTuple):
    """A reduction over leading axes. Blocks make parts of it, of this shape, which are combined later."""

    output: int
    type: str
    node: Node
    axes: tuple[int, ...]
    shape: Shape
    divisor: int | None


class Group:
    """A fused step as a formula over rows; Unsupported is raised where native code has no rule for it."""

    def __init__(self, step: Step, types: Sequence[Spec]):
        self.space: Shape = step.attrs["space"]
        self.split: int = step.attrs["split"]
        self.step, self._types = step, types
        self._array = {v: i for i, v in enumerate((*step.inputs, *step.outputs))}
        self._given = set(step.inputs)
        self._known: dict[Any, Node] = {}
        self._equal: dict[Any, Node] = {}
        self._merged_nodes: set[Node] = set()
        self.stores: list[Store] = []
        self.folds: list[Fold] = []
        #: Arrays of labels, with the number of classes that they must be below.
        self.labels: dict[int, int] = {}
        self.axis = self._first_axis()
        self.length = math.prod(self.space[self.axis :])
        self.flat = self.axis == 0
        for inner in step.body:
            self._add(inner)

    def spec(self, array: int) -> Spec:
        """The type of an array of the step."""
        return self._types[(*self.step.inputs, *self.step.outputs)[array]]

    @property
    def rows(self) -> int:
        """Rows of the space, or its elements where it is flat."""
        return self.length if self.flat else math.prod(self.space[: self.axis])

    @property
    def operands(self) -> list[Operand]:
        """What is read."""
        return [node.attrs["operand"] for node in self._equal.values() if node.type == "Load"]

    # -- rows --------------------------------------------------------------------------------------------------------

    def _first_axis(self) -> int:
        """Where rows begin. Where nothing runs along them, they are as long as every array lets them be."""
        body, rank = self.step.body, len(self.space)
        found = {start for inner in body if (start := self._row_start(inner)) is not None}
        if len(found) > 1:
            raise Unsupported("rows of different lengths")
        shapes = {self._aligned(inner, v) for inner in body for v in inner.inputs if v in self._given}
        shapes |= {self._result_shape(v) for inner in body for v in inner.outputs if not reduces_rows(inner)}
        folds = [inner.attrs["axis"] for inner in body if reduces_rows(inner)]
        if found:
            axis = found.pop()
            if not axis or not self._whole(axis, shapes, folds):
                raise Unsupported("an array, or a sum, with a part of the axes of a row")
            return axis
        axis = rank
        while axis > 0 and self._whole(axis - 1, shapes, folds):
            axis -= 1
        if axis == rank:
            raise Unsupported("no rows")
        if not folds or axis == 0 or axis >= self.split:
            return axis
        if self.split == rank:
            raise Unsupported("blocks of a part of a row")
        return self.split  # blocks consist of whole rows

    def _whole(self, axis: int, shapes: Iterable[Shape], folds: Iterable[Sequence[int]]) -> bool:
        """Whether each array has all of the axes from this one on, or none, and each sum takes all of them, or none."""
        inner = self.space[axis:]
        if any(shape[axis:] != inner and math.prod(shape[axis:]) != 1 for shape in shapes):
            return False
        return all(len({i in axes for i in range(axis, len(self.space))}) == 1 for axes in folds)

    def _row_start(self, inner: Step) -> int | None:
        """The first axis of the rows that a step runs along; None where it does not."""
        rank, kind = len(self.space), kind_of(inner.type)
        if kind is Kind.ELEMENTWISE or reduces_rows(inner):
            return None
        axis = inner.attrs.get("axis", rank - 1)
        axes = sorted(axis) if isinstance(axis, tuple) else [axis % rank]
        if axes != list(range(rank - len(axes), rank)):
            raise Unsupported(f"{inner.type} along other axes than the last")
        return int(axes[0])

    # -- steps -------------------------------------------------------------------------------------------------------

    def _add(self, inner: Step) -> None:
        (v,) = inner.outputs
        spec, kind = self._types[v], kind_of(inner.type)
        args = tuple([self._read(inner, u) for u in inner.inputs])
        if reduces_rows(inner):
            self._fold(inner, args[0])
            return
        if kind is Kind.ELEMENTWISE:
            if not args:
                raise Unsupported(inner.type)
            made = apply(inner.type, args, inner.attrs, spec.dtype)
            if spec.shape == self.space and not made.full:
                made = self._spread(made)
        else:
            made = row_op(inner.type, self.length, args, inner.attrs)
            if inner.type.startswith("SparseSoftmax"):
                self.labels[self._array[inner.inputs[-1]]] = self.space[-1]
        if made.dtype != spec.dtype:
            raise Unsupported(f"{inner.type} with a result of {spec.dtype}")
        self._known[v] = node = self._merged(made)
        if v in self._array:
            self.stores.append(Store(Operand(self._array[v], self._result_shape(v), spec.dtype), node))

    def _spread(self, node: Node) -> Node:
        """One value per row as a value for each element."""
        return Node("Identity", (node,), {}, node.dtype, True)

    def _read(self, inner: Step, v: int) -> Node:
        if v not in self._given:
            return self._known[v]
        operand = Operand(self._array[v], self._aligned(inner, v), self._types[v].dtype)
        full = operand.shape[self.axis :] == self.space[self.axis :]
        return self._merged(Node("Load", (), {"operand": operand}, operand.dtype, full))

    def _aligned(self, inner: Step, v: int) -> Shape:
        shape = self._types[v].shape
        if kind_of(inner.type) is Kind.ROWWISE and shape == self.space[:-1]:
            return (*shape, 1)
        return (1,) * (len(self.space) - len(shape)) + shape

    def _result_shape(self, v: int) -> Shape:
        """Reductions may have dropped their axes."""
        shape = self._types[v].shape
        return (*shape, *(1,) * (len(self.space) - len(shape)))

    def _fold(self, inner: Step, x: Node) -> None:
        (v,), axes = inner.outputs, tuple(sorted(inner.attrs["axis"]))
        type = "Sum" if inner.type == "Mean" else inner.type
        numbers = x.dtype == self._types[v].dtype and x.dtype.char in NUMBERS
        if type not in REDUCTIONS or not numbers or v not in self._array:
            raise Unsupported(inner.type)
        if not x.full and any(i in axes for i in range(self.axis, len(self.space))):
            x = self._merged(self._spread(x))
        shape = tuple([n for i, n in enumerate(self.space) if i not in axes])
        divisor = math.prod([self.space[i] for i in axes]) if inner.type == "Mean" else None
        self.folds.append(Fold(self._array[v], type, x, axes, shape, divisor))

    # -- equal values ------------------------------------------------------------------------------------------------

    def _merged(self, node: Node) -> Node:
        """The same formula of the same values is one node."""
        if node in self._merged_nodes:
            return node
        args = tuple([self._merged(x) for x in node.args])
        attrs = tuple(sorted([(k, _hashable(x)) for k, x in node.attrs.items()]))
        key = node.type, tuple([id(x) for x in args]), attrs, node.dtype, node.full
        if key not in self._equal:
            same = all(a is b for a, b in zip(args, node.args, strict=True))
            self._equal[key] = node if same else Node(node.type, args, node.attrs, node.dtype, node.full)
        self._merged_nodes.add(self._equal[key])
        return self._equal[key]


def _hashable(x: Any) -> Any:
    return (x.dtype.str, x.tobytes()) if hasattr(x, "tobytes") else repr(x)
