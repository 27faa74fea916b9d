"""Ships bodies to workers through Ray's internal key-value table, which also carries Ray's own remote functions.

A reference among the arguments would do as well, but makes each call a third slower.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import ray
from ray import exceptions
from ray.experimental import internal_kv

from distgrad.workers.on_ray import objects

#: Maximum bytes of a body in the table, which is in the head's memory. Larger ones go to the store, and calls carry
#: their reference.
LARGE = 1 << 20
_SPACE = "distgrad"


class BodyLost(Exception):
    """The body of this name no longer exists."""

    def __init__(self, name: str):
        super().__init__(name)
        self.name = name

    def __str__(self) -> str:
        return f"the body {self.name!r} was lost"


def ship(payload: bytes, owner: str) -> tuple[list[Any], str]:
    """Store a body; return the references that calls carry, and the body's name."""
    name = f"{owner}/{hashlib.sha256(payload).hexdigest()}"
    if len(payload) > LARGE:
        return [objects.put(payload, "the body of a task", len(payload))], name
    internal_kv._internal_kv_put(name, payload, namespace=_SPACE)
    return [], name


def received(holder: Sequence[Any], name: str) -> bytes:
    found: bytes | None = ray.get(holder[0]) if holder else internal_kv._internal_kv_get(name, namespace=_SPACE)
    if found is None:
        raise BodyLost(name)
    return found


def forget(owner: str) -> None:
    """Delete the bodies that an owner shipped through the table."""
    with suppress(exceptions.RaySystemError, exceptions.RpcError):  # the cluster is gone, and its table with it
        internal_kv._internal_kv_del(f"{owner}/", del_by_prefix=True, namespace=_SPACE)
