"""Objects of Ray's store: putting them, and checking that they still exist without moving them.

The driver owns every object, so it knows which nodes hold it: a check takes about a microsecond and asks no other
process.
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

#: Ray's errors for a lost object.
LOST = (exceptions.ObjectLostError, exceptions.ObjectFetchTimedOutError)
#: Ray's errors when the store and the disk that it spills to are full.
FULL = (exceptions.ObjectStoreFullError, exceptions.OutOfDiskError)
#: Ray's limit in bytes for objects that are sent with the reply of their task. Larger ones stay in the store of a node.
RAY_INLINE_BYTES = 100 << 10
#: Bytes of arrays up to which an object is certainly sent with the reply, and all objects of one reply together. Ray's
#: own limits are 100 KiB and 10 MiB, with its framing.
IN_REPLY_BYTES, WHOLE_REPLY_BYTES = 64 << 10, 4 << 20
#: Seconds within which Ray learns where a new object is, after the reply of its task. Mostly it is under 1 ms.
LOCATION_SECONDS = 0.1


def put(value: Any, what: str, nbytes: int) -> Any:
    """Put an object into the store of this node. Raises StoreFull, which names it, if there is no room."""
    try:
        return ray.put(value)
    except FULL as e:
        raise no_room(what, nbytes, e) from e


def no_room(what: str, nbytes: int, error: Exception) -> StoreFull:
    return StoreFull(
        f"{what} ({bytes_text(nbytes)}) cannot be put into Ray's object store on this node: the store is full, and so "
        f"is the disk that it spills to ({type(error).__name__}). Variables are unchanged. {REMEDY}"
    )


#: What users can do about a full store.
REMEDY = (
    "Give Ray a larger store (Session(object_store_memory=), `ray start --object-store-memory`), have it spill to a "
    "larger disk (`ray start --object-spilling-directory`), or make less data in one call."
)


def store_text(link: Link) -> str:
    """The size of the nodes' stores, for error messages."""
    sizes = sorted({node.store for node in link.nodes})
    least, most = bytes_text(sizes[0]), bytes_text(sizes[-1])
    return f"{least} on each node" if len(sizes) == 1 else f"{least} to {most}, depending on the node"


def missing(refs: Mapping[int, Any], made_on: Mapping[int, str], home: str) -> tuple[dict[int, Any], list[int]]:
    """The lost objects, with Ray's errors, and those that must be fetched to know. `made_on` is the node of each.

    An object exists if the node that made it still has it, or if that is the driver's node and the object is small. It
    is doubtful if it is small and from elsewhere, if only other nodes have it, or if its size is unknown. The location
    of a new object may arrive a moment after the reply of its task.
    """
    small: list[int] = []
    ends = time.monotonic() + LOCATION_SECONDS
    while True:
        found, doubtful = _unlocated(refs, made_on, home, small)
        if not (found or doubtful) or time.monotonic() > ends:
            return found, [*small, *doubtful]
        time.sleep(0.001)
        refs = {b: refs[b] for b in (*found, *doubtful)}


def _unlocated(
    refs: Mapping[int, Any], made_on: Mapping[int, str], home: str, small: list[int]
) -> tuple[dict[int, Any], list[int]]:
    """The objects that seem to be lost and those that are doubtful now; small doubtful ones are appended to `small`."""
    places = get_local_object_locations(list(refs.values()))
    doubtful, found = [], {}
    for b, ref in refs.items():
        place = places.get(ref) or {}
        nodes, size = place.get("node_ids") or (), place.get("object_size") or 0
        inline = not nodes and 0 < size <= RAY_INLINE_BYTES
        if made_on[b] in nodes or (inline and made_on[b] == home):
            continue
        if inline:
            small.append(b)
        elif nodes or made_on[b] == home or not size:
            doubtful.append(b)
        else:
            found[b] = exceptions.ObjectLostError(ref.hex(), None, "")
    return found, doubtful


def unreadable(refs: Mapping[int, Any], timeout: float | None) -> dict[int, Any]:
    """The objects that cannot be fetched, with Ray's errors. Raises GetTimeoutError if that is not known in time."""
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
