"""What listens where, of a Ray that a session started in a process that had imported Ray before; then, in the same
process, a cluster that others could join is joined, which listens on all addresses."""

from __future__ import annotations

import ipaddress
import json
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import ray
from ray.cluster_utils import Cluster

import distgrad as dg

from ..helpers import below, until

#: The state of a listening socket in Linux's tables.
LISTENS = "0A"


def listeners() -> dict[str, set[str]]:
    """The addresses that this process and all that it started listen at, by what they are called."""
    found: dict[str, set[str]] = {}
    bound = _bound()
    for pid in (os.getpid(), *below(os.getpid())):
        name = "driver" if pid == os.getpid() else _name(pid)
        for inode in _sockets(pid):
            if inode in bound:
                found.setdefault(name, set()).add(bound[inode])
    return found


def _bound() -> dict[str, str]:
    """The address of each socket of this machine that listens, by its inode."""
    found = {}
    for file in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(file).read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == LISTENS:
                raw = bytes.fromhex(words[1].partition(":")[0])
                parts = [raw[i : i + 4][::-1] for i in range(0, len(raw), 4)]  # words in the order of this machine
                found[words[9]] = str(ipaddress.ip_address(b"".join(parts)))
    return found


def _sockets(pid: int) -> list[str]:
    """The inodes of a process's sockets."""
    found = []
    with suppress(FileNotFoundError):  # it has ended
        for file in os.listdir(f"/proc/{pid}/fd"):
            with suppress(FileNotFoundError):  # it was closed just now
                found.append(os.readlink(f"/proc/{pid}/fd/{file}"))
    return [link[8:-1] for link in found if link.startswith("socket:[")]


def _name(pid: int) -> str:
    """What a process is about: its program, or the script that Python runs."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:  # it has ended
        return "?"
    words = [os.path.basename(word) for word in command.split() if not word.startswith("-")]
    return next((word.removesuffix(".py") for word in words if not word.startswith("python")), "?")


def outside(found: dict[str, set[str]]) -> dict[str, list[str]]:
    """Those of them that are no loopback addresses."""
    far = {name: sorted(x for x in at if not _is_loopback(x)) for name, at in found.items()}
    return {name: at for name, at in far.items() if at}


def _is_loopback(text: str) -> bool:
    address: Any = ipaddress.ip_address(text)
    return bool((getattr(address, "ipv4_mapped", None) or address).is_loopback)


def step() -> float:
    shards = dg.data_parallel(dg.grad(lambda w, x: dg.sum(x * w)), shards=2, reduction="sum")
    return float(shards(2.0, np.ones(4)))


def main() -> None:
    with dg.Session("ray", workers=2, object_store_memory="100 MB", timeout=60):
        made = step()
        until(lambda: "ray::RuntimeEnvAgent" in listeners())
        here = listeners()
    token = Path.home() / ".ray" / "auth_token"
    modes = [f"{stat.S_IMODE(path.stat().st_mode):o}" for path in (token, token.parent)]
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "object_store_memory": 100 << 20})
    try:
        with dg.Session("ray", address=cluster.address, timeout=60):
            again = step()
            there = listeners()
    finally:
        cluster.shutdown()
    print(json.dumps({
        "made": [made, again],
        "names": sorted(here),
        "outside": outside(here),
        "joined": sorted(outside(there)),
        "modes": modes,
        "variable": os.environ.get("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"),
        "initialized": ray.is_initialized(),
    }))  # fmt: skip


if __name__ == "__main__":
    main()
