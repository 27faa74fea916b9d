"""Nested structures: flattened in sorted order, rebuilt in the order of the caller."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest

import distgrad as dg
from distgrad import nest


class Pair(NamedTuple):
    first: Any
    second: Any


@dataclass
class Params:
    w: Any
    b: Any


TREES = [
    1,
    None,
    [1, (2, None)],
    {"b": 1, "a": [2, 3]},
    Pair(1, {"z": 2, "y": 3}),
    Params([1], 2),
    OrderedDict([("z", 1), ("a", 2)]),
    (),
    {},
]


@pytest.mark.parametrize("tree", TREES, ids=repr)
def test_unflatten_undoes_flatten(tree: Any) -> None:
    again = nest.unflatten(tree, nest.flatten(tree))
    assert again == tree
    assert type(again) is type(tree)


def test_a_dict_is_flattened_by_sorted_key_and_rebuilt_in_its_own_order() -> None:
    tree = {"w": 1, "b": 2}
    assert nest.flatten(tree) == [2, 1]
    assert list(nest.map_structure(str, tree).items()) == [("w", "1"), ("b", "2")]


def test_gradients_come_back_in_the_order_of_the_callers_keys() -> None:
    params = {"w": np.full(2, 1.0), "b": np.full(2, 10.0)}
    grads = dg.grad(lambda p: np.sum(p["w"] ** 2) + np.sum(p["b"]))(params)
    assert list(grads) == ["w", "b"]
    assert grads["w"].tolist() == [2.0, 2.0]


def test_keys_that_do_not_sort_are_a_type_error() -> None:
    with pytest.raises(TypeError, match="the keys of a nested dict must be sortable"):
        nest.flatten({1: 0, "a": 1})


@pytest.mark.parametrize("tree", [*TREES, [], ((), [1], []), {"b": [[]], "a": ((2, 3), [4, {}])}], ids=str)
def test_a_template_makes_the_structure_again_and_again(tree: Any) -> None:
    template, count = nest.Template(tree), len(nest.flatten(tree))
    for k in range(2):
        leaves = [f"{k}.{i}" for i in range(count)]
        expected = nest.unflatten(tree, leaves)
        assert template(leaves) == expected
        assert str(template(leaves)) == str(expected)
        assert type(template(leaves)) is type(expected)


def test_what_a_template_makes_shares_no_container() -> None:
    template = nest.Template([[1], {"a": 2}])
    first = template([1, 2])
    first[0].append(3)
    first[1]["b"] = 4
    assert template([1, 2]) == [[1], {"a": 2}]


def test_a_template_may_be_deep() -> None:
    tree: Any = 0
    for _ in range(20_000):
        tree = [tree]
    made = nest.Template(tree)([7])
    assert nest.flatten(made) == [7]
