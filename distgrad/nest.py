"""Flatten and rebuild nested arguments and results: dicts, lists, (named) tuples and dataclasses."""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from distgrad.types import brief


def flatten(tree: Any) -> list[Any]:
    """The leaves of a nested structure, in order; those of a dict by sorted key. None is a leaf.

    >>> flatten({"b": 1, "a": [2, (3, None)]})
    [2, 3, None, 1]
    """
    leaves: list[Any] = []
    map_structure(leaves.append, tree)
    return leaves


def map_structure(f: Callable[[Any], Any], tree: Any) -> Any:
    """Apply f to every leaf, in the order of `flatten`. Iterative, as nesting may be deep.

    >>> map_structure(lambda x: x + 1, {"b": 1, "a": (2, 3)})
    {'b': 2, 'a': (3, 4)}
    """
    items = _items(tree)
    if items is None:
        return f(tree)
    open_: list[tuple[Any, Iterator[Any], list[Any]]] = [(tree, iter(items), [])]
    inside = {id(tree)}
    while True:
        node, rest, made = open_[-1]
        for item in rest:
            items = _items(item)
            if items is None:
                made.append(f(item))
                continue
            if id(item) in inside:
                raise ValueError(f"a {type(item).__name__} among nested values contains itself")
            inside.add(id(item))
            open_.append((item, iter(items), []))
            break
        else:
            open_.pop()
            inside.discard(id(node))
            whole = _rebuild(node, made)
            if not open_:
                return whole
            open_[-1][2].append(whole)


def _items(tree: Any) -> Iterable[Any] | None:
    """The children of a structure, in order; None for a leaf."""
    if isinstance(tree, list | tuple):
        return tree
    if isinstance(tree, dict):
        return [tree[key] for key in sorted_keys(tree)]
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        return [getattr(tree, name) for name in field_names(tree)]
    return None


def _rebuild(tree: Any, items: list[Any]) -> Any:
    if isinstance(tree, dict):
        by_key = dict(zip(sorted_keys(tree), items, strict=True))
        made = {key: by_key[key] for key in tree}  # leaves in sorted order, keys in the caller's
        return made if type(tree) is dict else _like_dict(tree, made)
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*items)
    if isinstance(tree, list | tuple):
        return type(tree)(items)
    again = copy.copy(tree)  # keeps attributes that are not fields of the constructor
    for name, item in zip(field_names(tree), items, strict=True):
        object.__setattr__(again, name, item)
    return again


def field_names(tree: Any) -> list[str]:
    """The fields that the constructor of a dataclass takes."""
    return [field.name for field in dataclasses.fields(tree) if field.init]


def unflatten(tree: Any, leaves: Iterable[Any]) -> Any:
    """The structure of `tree` with new leaves.

    >>> unflatten([0, {"a": 0}], [1, 2])
    [1, {'a': 2}]
    """
    rest: Iterator[Any] = iter(leaves)
    return map_structure(lambda _: next(rest), tree)


class Template:
    """A structure that is rebuilt many times.

    >>> Template({"b": 0, "a": (0, [0])})([1, 2, 3])
    {'b': 3, 'a': (1, [2])}
    """

    __slots__ = ("_is_leaf", "_steps")

    def __init__(self, tree: Any):
        #: For each structure, innermost first: how many leaves come before its end, what makes it, its length.
        self._steps: list[tuple[int, Callable[[list[Any]], Any], int]] = []
        self._is_leaf = _items(tree) is None
        leaves = flatten(tree)  # raises if it contains itself
        stack = [tree]
        seen = len(leaves)
        while stack:  # the last ones first
            node = stack.pop()
            items = _items(node)
            if items is None:
                seen -= 1
            else:
                items = list(items)
                self._steps.append((seen, _maker(node), len(items)))
                stack += items
        self._steps.reverse()

    def __call__(self, leaves: list[Any]) -> Any:
        """The structure with these leaves."""
        if self._is_leaf:
            return leaves[0]
        made: list[Any] = []
        done = 0
        for seen, make, count in self._steps:
            made += leaves[done:seen]
            done = seen
            at = len(made) - count
            made[at:] = [make(made[at:])]
        return made[0]


def _maker(tree: Any) -> Callable[[list[Any]], Any]:
    return type(tree) if type(tree) in (list, tuple) else functools.partial(_rebuild, tree)


def sorted_keys(d: dict[Any, Any]) -> list[Any]:
    try:
        return sorted(d)
    except TypeError:
        raise TypeError(f"the keys of a nested dict must be sortable, got {brief(list(d))}") from None


def _like_dict(tree: Any, made: dict[Any, Any]) -> Any:
    try:
        return type(tree)(made)
    except TypeError:
        return made


def paths(tree: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Each leaf with its path, as Python code.

    >>> list(paths({"w": [1, 2]}, "params"))
    [("params['w'][0]", 1), ("params['w'][1]", 2)]
    """
    flatten(tree)  # raises if it contains itself
    stack = [(prefix, tree)]
    while stack:
        name, tree = stack.pop()
        items = _items(tree)
        if items is None:
            yield name, tree
        else:
            stack += reversed([*zip(_steps(name, tree), items, strict=True)])


def _steps(prefix: str, tree: Any) -> list[str]:
    """The paths of the children of a structure."""
    if isinstance(tree, dict):
        return [f"{prefix}[{key!r}]" for key in sorted_keys(tree)]
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return [f"{prefix}.{field}" for field in tree._fields]
    if isinstance(tree, list | tuple):
        return [f"{prefix}[{i}]" for i in range(len(tree))]
    return [f"{prefix}.{name}" for name in field_names(tree)]
