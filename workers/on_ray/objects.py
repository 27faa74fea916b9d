"""Objects of the store: to put them there, and to tell whether they are there, without moving them.

The driver owns every object, so it knows by itself which nodes have it: to ask costs about a microsecond, and no other
process is asked.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import ray
from ray import exceptions
from ray.experimental.locations import get_local_object_locations

from distgrad.errors import StoreFull
from distgrad.printing import bytes_text

if TYPE_CHECKING:
    from distgrad.workers.on_ray.link import Link

#: What Ray raises for an object that nobody has any more.
LOST = (exceptions.ObjectLostError, exceptions.ObjectFetchTimedOutError)
#: What Ray raises where the store has no room, and the disk that it spills to has none either.
FULL = (exceptions.ObjectStoreFullError, exceptions.OutOfDiskError)
#: Objects of more bytes lie in the store of a node; smaller ones in this process, beside the news of their task's end
#: (unless that gets too long).
RAY_INLINE_BYTES = 100 << 10
#: Bytes of arrays up to which an object is surely sent with the reply of its task: Ray's limit is 100 KiB with its own
#: framing, and 10 MiB for all objects of one reply.
SMALL, SMALL_REPLY = 64 << 10, 4 << 20


def put(value: Any, what: str, nbytes: int) -> Any:
    """The reference of a new object on this node. StoreFull, with what it is, where there is no room."""
    try:
        return ray.put(value)
    except FULL as e:
        raise no_room(what, nbytes, e) from e


def no_room(what: str, nbytes: int, error: Exception) -> StoreFull:
    return StoreFull(
        f"{what} ({bytes_text(nbytes)}) cannot be put into Ray's object store on this node: the store is full, and so "
        f"is the disk that it spills to ({type(error).__name__}). Variables are as they were. {REMEDY}"
    )


#: What to do about a store that is full.
REMEDY = (
    "Give Ray a larger store (Session(object_store_memory=), `ray start --object-store-memory`), have it spill to a "
    "larger disk (`ray start --object-spilling-directory`), or let one call make less."
)


def store_text(link: Link) -> str:
    """How large the store of a node is."""
    sizes = sorted({node.store for node in link.nodes})
    least, most = bytes_text(sizes[0]), bytes_text(sizes[-1])
    return f"{least} on each node" if len(sizes) == 1 else f"{least} to {most}, depending on the node"


def missing(refs: Mapping[int, Any], made_on: Mapping[int, str], home: str) -> tuple[dict[int, Any], list[int]]:
    """Of these objects those that nobody has, with what Ray says of them, and those that must be looked at to know.
    `made_on` has the node of each.

    Where the node that made an object has it, nothing is asked; nor where the object came to this process with the news
    of its task's end. What is neither is doubtful: it is small, or it was lost, or another node has it.
    """
    places = get_local_object_locations(list(refs.values()))
    doubtful, found = [], {}
    for b, ref in refs.items():
        place = places.get(ref) or {}
        nodes, size = place.get("node_ids") or (), place.get("object_size") or 0
        inline = not nodes and 0 < size <= RAY_INLINE_BYTES
        if made_on[b] in nodes or (inline and made_on[b] == home):
            continue
        if inline or nodes or made_on[b] == home or not size:
            doubtful.append(b)
        else:
            found[b] = exceptions.ObjectLostError(ref.hex(), None, "")
    return found, doubtful


def unreadable(refs: Mapping[int, Any], timeout: float | None) -> dict[int, Any]:
    """Of these objects those that do not come here, with what Ray says of them. GetTimeoutError where that is not known
    in time."""
    ends = None if timeout is None else time.monotonic() + timeout
    if _error(list(refs.values()), ends) is None:
        return {}
    return {b: error for b, ref in refs.items() if (error := _error(ref, ends)) is not None}


def _error(refs: Any, ends: float | None) -> exceptions.RayError | None:
    try:
        ray.get(refs, timeout=None if ends is None else max(ends - time.monotonic(), 0.001))
    except exceptions.GetTimeoutError:
        raise
    except exceptions.RayError as e:
        return e
    return None
