"""Makes a Ray that is started for this process listen on the loopback address alone, as nothing else needs to reach it.

Ray replaces a loopback address by the machine's outer address, and then listens on all addresses. It stays on loopback
only if it does not expect clusters of several machines, as on macOS and Windows; the environment variable
RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER controls that, and Ray reads it on import. So the setting that Ray derived from it is
changed here, only while a Ray is started or joined on loopback. This also works if ray was imported before, and does
not affect clusters that this process or its children join later.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import ray
from ray._private import ray_constants

log = logging.getLogger("distgrad")

#: Seconds for an address of this machine to accept a connection.
KNOCK = 2.0
VARIABLE = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"


@contextmanager
def on_loopback() -> Iterator[None]:
    """Within this context, a Ray that is started listens on loopback alone, unless the variable asks for a cluster.
    Logs a warning if it listens elsewhere, as a version of Ray without this switch does."""
    if os.environ.get(VARIABLE, "0").lower() in ("1", "true"):
        yield
        return
    before = getattr(ray_constants, "ENABLE_RAY_CLUSTER", None)
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        if before is not None:
            ray_constants.ENABLE_RAY_CLUSTER = before
    address = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
    if not ipaddress.ip_address(address).is_loopback:
        log.warning(
            "distgrad: the Ray that was started listens on all addresses of this machine (it is at %s), so only its "
            "token protects it. Set %s=0 before ray is imported, and keep other machines out with a firewall.",
            address,
            VARIABLE,
        )


def names_loopback(address: str) -> bool:
    """Whether an address host:port is a loopback address."""
    host = address.rpartition(":")[0]
    return host.startswith("127.") or host in ("localhost", "[::1]")


def is_on_loopback(address: str) -> bool:
    """Whether the Ray at an address listens on loopback alone, and not at the machine's outer address, where Ray itself
    would look for it."""
    port = address.rpartition(":")[2]
    if not port.isdigit() or not names_loopback(address):
        return False
    try:
        outer = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
        socket.create_connection((outer, int(port)), timeout=KNOCK).close()
    except OSError:
        return True
    return False
