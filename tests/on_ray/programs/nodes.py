"""What happens on a cluster of three nodes with four workers, all on this machine. Prints it as JSON: digests of
trainings and of the op table, how many nodes and workers there were, how many nodes had steps, and how placement went.
"""

from __future__ import annotations

import json
import traceback
from typing import Any

from ray.cluster_utils import Cluster

import distgrad as dg

from . import placement, training

#: The cpus of each node, by its label.
ZONES = {"a": 1, "b": 1, "c": 2}


def digests(address: str) -> dict[str, Any]:
    with dg.Session("ray", address=address, granularity=1e-6, timeout=120) as session:
        found, planner = training.digests(), session._planner
        assert planner.link is not None
        counts = {"nodes": len(planner.link.nodes), "workers": len(planner.cluster.workers)}
    return {"digests": found, "used": len(training.used), **counts}


def placed(address: str) -> str:
    try:
        placement.check(address)
    except Exception:
        return traceback.format_exc()
    return "ok"


def main() -> None:
    cluster = Cluster()
    try:
        for zone, cpus in ZONES.items():
            options = {"object_store_memory": 10**8, "include_dashboard": False, "labels": {"zone": zone}}
            cluster.add_node(wait=zone == "a", num_cpus=cpus, **options)
        cluster.wait_for_nodes()
        address = str(cluster.address)
        print(json.dumps({**digests(address), "placement": placed(address)}))
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main()
