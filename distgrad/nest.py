"""Nested arguments and results: dicts, lists, (named) tuples and dataclasses, taken apart and put together again."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Any


def flatten(tree: Any) -> list[Any]:
    """The leaves, in order; a dict's by sorted key. None is a leaf.

    >>> flatten({"b": 1, "a": [2, (3, None)]})
    [2, 3, None, 1]
    """
    leaves: list[Any] = []
    map_structure(leaves.append, tree)
    return leaves


def map_structure(f: Callable[[Any], Any], tree: Any) -> Any:
    """The same structure with f applied to every leaf, in the order of `flatten`.

    >>> map_structure(lambda x: x + 1, {"b": 1, "a": (2, 3)})
    {'b': 2, 'a': (3, 4)}
    """
    if isinstance(tree, dict):
        by_key = {key: map_structure(f, tree[key]) for key in sorted_keys(tree)}
        made = {key: by_key[key] for key in tree}  # leaves in sorted order, keys in the caller's
        return made if type(tree) is dict else _like_dict(tree, made)
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*[map_structure(f, item) for item in tree])
    if isinstance(tree, list | tuple):
        return type(tree)([map_structure(f, item) for item in tree])
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        again = copy.copy(tree)  # with what is not a field of its constructor
        for field in dataclasses.fields(tree):
            if field.init:
                object.__setattr__(again, field.name, map_structure(f, getattr(tree, field.name)))
        return again
    return f(tree)


def unflatten(tree: Any, leaves: Iterable[Any]) -> Any:
    """The structure of `tree` with new leaves.

    >>> unflatten([0, {"a": 0}], [1, 2])
    [1, {'a': 2}]
    """
    rest: Iterator[Any] = iter(leaves)
    return map_structure(lambda _: next(rest), tree)


def sorted_keys(d: dict[Any, Any]) -> list[Any]:
    try:
        return sorted(d)
    except TypeError:
        raise TypeError(f"the keys of a nested dict must be sortable, got {list(d)!r}") from None


def _like_dict(tree: Any, made: dict[Any, Any]) -> Any:
    try:
        return type(tree)(made)
    except TypeError:
        return made


def paths(tree: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Each leaf with how one would write it.

    >>> list(paths({"w": [1, 2]}, "params"))
    [("params['w'][0]", 1), ("params['w'][1]", 2)]
    """
    if isinstance(tree, dict):
        for key in sorted_keys(tree):
            yield from paths(tree[key], f"{prefix}[{key!r}]")
    elif isinstance(tree, tuple) and hasattr(tree, "_fields"):
        for field, item in zip(tree._fields, tree, strict=True):
            yield from paths(item, f"{prefix}.{field}")
    elif isinstance(tree, list | tuple):
        for i, item in enumerate(tree):
            yield from paths(item, f"{prefix}[{i}]")
    elif dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        for field in dataclasses.fields(tree):
            if field.init:
                yield from paths(getattr(tree, field.name), f"{prefix}.{field.name}")
    else:
        yield prefix, tree
