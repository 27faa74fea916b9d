"""A Ray that is started for this process alone listens on the loopback address: nobody else has to reach it.

Ray takes the loopback address that it is given for the machine's outer one, and then listens on all. It stays on
loopback only where it does not expect clusters of several machines, as on macOS and Windows: the variable
RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER says so, which Ray reads when it is imported. Here the setting that Ray made of it is
changed while a Ray starts, or one that listens there is joined, and no longer: so it also works where ray was imported
before, and a cluster that this process or one of its children joins later sees nothing of it.
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

#: Seconds for an address of this machine to answer.
KNOCK = 2.0
VARIABLE = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"


@contextmanager
def on_loopback() -> Iterator[None]:
    """Inside, a Ray that is started listens on loopback alone, unless the variable asks for a cluster. Warns where it
    does not, as of a Ray that has no such switch."""
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
            "distgrad: the Ray that was started listens on all addresses of this machine (it is at %s), so its token "
            "is all that protects it. Set %s=0 before ray is imported, and keep other machines out with a firewall.",
            address,
            VARIABLE,
        )


def names_loopback(address: str) -> bool:
    """Whether an address, as host:port, is one of loopback."""
    host = address.rpartition(":")[0]
    return host.startswith("127.") or host in ("localhost", "[::1]")


def is_on_loopback(address: str) -> bool:
    """Whether the Ray at an address listens on loopback alone: there, and not at the machine's outer address, where Ray
    itself would look for it."""
    port = address.rpartition(":")[2]
    if not port.isdigit() or not names_loopback(address):
        return False
    try:
        outer = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
        socket.create_connection((outer, int(port)), timeout=KNOCK).close()
    except OSError:
        return True
    return False
