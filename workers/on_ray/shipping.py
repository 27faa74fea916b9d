"""Bodies on their way to workers: by name in the table that Ray keeps for the cluster, from where Ray's own remote
functions come too. A reference in the arguments would do as well, but it costs each call a third more."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import ray
from ray import exceptions
from ray.experimental import internal_kv

from distgrad.workers.on_ray import objects

#: The table lies in the memory of the head; what is larger goes to the store, and calls carry its reference.
LARGE = 1 << 20
_SPACE = "distgrad"


class BodyLost(Exception):
    """Nobody has the body of this name any more."""

    def __init__(self, name: str):
        super().__init__(name)
        self.name = name

    def __str__(self) -> str:
        return f"nobody has the body {self.name!r} any more"


def ship(payload: bytes, owner: str) -> tuple[list[Any], str]:
    """The list that calls carry, and the name of the body."""
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
    """Take back what an owner shipped by name."""
    with suppress(exceptions.RaySystemError, exceptions.RpcError):  # the cluster is gone, and its table with it
        internal_kv._internal_kv_del(f"{owner}/", del_by_prefix=True, namespace=_SPACE)
