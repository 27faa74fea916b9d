"""The checker of groups: what the code generator relies on. Every group ends in it before code is made of it.

A mistake here would read or write memory that is not the step's, so nothing is taken for granted: types of values,
shapes of operands, and that inputs are only read and every result is written once.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from distgrad.workers.native.formulas import REDUCTIONS, Node
from distgrad.workers.native.rules import RULES

if TYPE_CHECKING:
    from distgrad.workers.native.group import Group, Operand

#: Nodes without arguments.
_SOURCES = frozenset(["Load", "Const", "Iota"])


class BadGroup(AssertionError):
    """A group that no code must be made of."""


def check_group(group: Group) -> Group:
    """The group, if it is sound; else BadGroup."""
    rows, length = group.rows, group.length
    _that(length if group.flat else rows * length, math.prod(group.space), "elements of all rows")
    for node in _nodes(group):
        _check_node(group, node)
    for store in group.stores:
        _check_operand(group, store.to)
        _that(store.to.dtype, store.node.dtype, f"dtype of result {store.to.array}")
    for fold in group.folds:
        rank = len(group.space)
        _require(all(0 <= axis < rank for axis in fold.axes), f"axes {fold.axes} of {rank} are reduced")
        kept = tuple([n for axis, n in enumerate(group.space) if axis not in fold.axes])
        _that(fold.shape, kept, f"shape of result {fold.output}")
        _require(fold.type in REDUCTIONS, f"{fold.type} is no reduction")
    count = len(group.step.inputs)
    written = sorted([*[store.to.array for store in group.stores], *[fold.output for fold in group.folds]])
    _that(written, list(range(count, count + len(group.step.outputs))), "results that are written")
    return group


def _nodes(group: Group) -> list[Node]:
    """Every node, each once."""
    found: dict[Node, None] = {}
    todo = [*[store.node for store in group.stores], *[fold.node for fold in group.folds]]
    while todo:
        node = todo.pop()
        if node not in found:
            found[node] = None
            todo += node.args
    return list(found)


def _check_node(group: Group, node: Node) -> None:
    if node.type in _SOURCES:
        _that(node.args, (), f"arguments of {node.type}")
        if node.type == "Load":
            _check_load(group, node)
    elif node.type in REDUCTIONS:
        _that([x.full for x in node.args], [True], f"argument of {node.type} along rows")
        _require(not node.full, f"{node.type} along rows has one value per row")
        _that(node.dtype, node.args[0].dtype, f"dtype of {node.type}")
        _require(node.phase > node.args[0].phase, f"{node.type} is known after its loop")
    else:
        rule = RULES.get(node.type)
        dtypes = [x.dtype for x in node.args]
        _require(rule is not None and rule.takes(dtypes, node.dtype), f"no rule for {node.type} of {dtypes}")
        spread = node.type == "Identity" and node.full
        _require(spread or node.full == any(x.full for x in node.args), f"{node.type} is as large as its arguments")


def _check_load(group: Group, node: Node) -> None:
    operand: Operand = node.attrs["operand"]
    inputs = group.step.inputs
    _require(0 <= operand.array < len(inputs), f"array {operand.array} is read, but inputs are 0 to {len(inputs) - 1}")
    _check_operand(group, operand)
    _that(node.dtype, operand.dtype, "dtype that is read")
    whole = operand.shape[group.axis :] == group.space[group.axis :]
    _require(node.full == whole, "what is read is a row, or one value of it")


def _check_operand(group: Group, operand: Operand) -> None:
    spec = group.spec(operand.array)
    _that((math.prod(operand.shape), operand.dtype), (math.prod(spec.shape), spec.dtype), f"array {operand.array}")
    _that(len(operand.shape), len(group.space), f"axes of array {operand.array}")
    fits = all(n in (1, m) for n, m in zip(operand.shape, group.space, strict=True))
    _require(fits, f"array {operand.array} of shape {operand.shape} does not repeat over {group.space}")
    inner = operand.shape[group.axis :]
    _require(inner == group.space[group.axis :] or math.prod(inner) == 1, f"array {operand.array} has a part of a row")


def _that(found: object, expected: object, what: str) -> None:
    if found != expected:
        raise BadGroup(f"native code: {what}: {found}, not {expected}")


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise BadGroup(f"native code: not so: {what}")
