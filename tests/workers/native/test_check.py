"""The checker of groups: sound ones pass, and each kind of mistake is named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import distgrad as dg
from distgrad.scheduler.passes.fuse import fuse
from distgrad.scheduler.program import lower
from distgrad.workers import native

if native.unusable():
    pytest.skip(f"native code: {native.unusable()}", allow_module_level=True)

from distgrad.workers.native.check import BadGroup, check_group
from distgrad.workers.native.compiled import CompiledGroup
from distgrad.workers.native.formulas import Node
from distgrad.workers.native.group import Group

F, D = np.dtype(np.float32), np.dtype(np.float64)


def sound() -> Group:
    """x -> softmax(x * b) and its sum over rows."""
    with dg.Graph():
        x, b = dg.placeholder((64, 100), F), dg.placeholder((100,), F)
        y = dg.nn.softmax(x * b)
        program = fuse(lower([y, dg.sum(y, axis=0)], [x, b]))
    (step,) = [step for step in program.steps if step.body]
    return Group(step, program.types)


def test_a_sound_group_passes() -> None:
    group = sound()
    assert check_group(group) is group
    assert CompiledGroup(group).address


def the_load(group: Group) -> Node:
    todo = [store.node for store in group.stores]
    while todo:
        node = todo.pop()
        if node.type == "Load" and node.full and node.attrs["operand"].array == 0:
            return node
        todo += node.args
    raise AssertionError


def load_of(**changes: Any) -> Callable[[Group], None]:
    def change(group: Group) -> None:
        node = the_load(group)
        node.attrs = {"operand": node.attrs["operand"]._replace(**changes)}

    return change


def store_of(**changes: Any) -> Callable[[Group], None]:
    def change(group: Group) -> None:
        (store,) = group.stores
        group.stores = [store._replace(to=store.to._replace(**changes))]

    return change


def fold_of(**changes: Any) -> Callable[[Group], None]:
    def change(group: Group) -> None:
        (fold,) = group.folds
        group.folds = [fold._replace(**changes)]

    return change


def node_of(**changes: Any) -> Callable[[Group], None]:
    def change(group: Group) -> None:
        for name, value in changes.items():
            setattr(group.stores[0].node, name, value)

    return change


def twice(group: Group) -> None:
    group.stores *= 2


def nothing(group: Group) -> None:
    group.stores = []


def longer(group: Group) -> None:
    group.length += 1


BROKEN: dict[str, tuple[Callable[[Group], None], str]] = {
    "reads a result": (load_of(array=2), "array 2 is read, but inputs are 0 to 1"),
    "reads nothing of the step": (load_of(array=9), "array 9 is read"),
    "reads too much": (load_of(shape=(64, 101)), r"array 0: \(6464, "),
    "reads another dtype": (load_of(dtype=D), "array 0: .*float64"),
    "reads with too few axes": (load_of(shape=(6400,)), "axes of array 0: 1, not 2"),
    "reads rows that do not repeat": (load_of(shape=(100, 64)), "does not repeat over"),
    "writes an input": (store_of(array=0), "results that are written"),
    "writes another dtype": (store_of(dtype=D), "array 2: "),
    "writes too much": (store_of(shape=(64, 200)), "array 2: "),
    "writes twice": (twice, r"results that are written: \[2, 2, 3\]"),
    "writes nothing": (nothing, r"results that are written: \[3\]"),
    "reduces an axis that is not there": (fold_of(axes=(2,)), "axes .* of 2 are reduced"),
    "reduces to another shape": (fold_of(shape=(64,)), "shape of result 3"),
    "reduces by what is no reduction": (fold_of(type="Exp"), "Exp is no reduction"),
    "has no rule": (node_of(type="Lgamma"), "no rule for Lgamma"),
    "has a result of another dtype": (node_of(dtype=np.dtype(np.complex64)), "no rule for Div|dtype of result"),
    "has one value for many": (node_of(full=False), "is as large as its arguments"),
    "has rows of another length": (longer, "elements of all rows"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_group_is_named_and_no_code_is_made_of_it(name: str) -> None:
    change, text = BROKEN[name]
    group = sound()
    change(group)
    with pytest.raises(BadGroup, match=text):
        check_group(group)
    with pytest.raises(BadGroup):
        CompiledGroup(group)
