"""Checks, in a subprocess, whether a Ray cluster can be reached, and what its nodes have.

Ray ends a driver if the cluster disappears while it joins, and a wrong token may make it wait for minutes. So a
subprocess joins the cluster, and prints its findings as a line of JSON.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from typing import Any

from distgrad.printing import bytes_text
from distgrad.scheduler.devices import counted
from distgrad.workers.on_ray.settings import folder
from distgrad.workers.tools.doctor import OK, PROBLEM, WARNING, Finding

#: Seconds for the subprocess as a whole; seconds of these for the nodes to answer.
PROBE_TIMEOUT, ANSWER_TIMEOUT = 30.0, 10.0
#: Maximum number of nodes that are asked for their versions.
MAX_NODES_ASKED = 16


def findings(address: str | None) -> Iterator[Finding]:
    """Findings about the cluster at an address; by default that of RAY_ADDRESS, or the one started on this machine."""
    given = address or os.environ.get("RAY_ADDRESS")
    known = given or _started_here()
    if known is None:
        yield Finding("ray cluster", OK, "none is running: a session on Ray starts one")
        return
    try:
        found = _asked(known)
    except ConnectionError as e:
        if given is None:  # the file of an earlier `ray start`
            yield Finding("ray cluster", OK, f"none is running at {known} any more: a session on Ray starts one")
        else:
            yield Finding("ray cluster", PROBLEM, str(e), _remedy(address))
        return
    yield from _cluster_findings(known, found)


def _remedy(address: str | None) -> str:
    return "Check the address, and run `ray status` on the head node." if address else "Correct or unset RAY_ADDRESS."


def _started_here() -> str | None:
    """The cluster that `ray start` last started or joined on this machine: that of `address="auto"`."""
    try:
        return (folder() / "ray" / "ray_current_cluster").read_text().strip() or None
    except OSError:
        return None


def _asked(address: str) -> dict[str, Any]:
    """The findings of the subprocess; ConnectionError if it has none."""
    command = [sys.executable, "-P", "-m", "distgrad.workers.on_ray.health", address]  # no module of this folder
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_TIMEOUT, check=False)
    except subprocess.TimeoutExpired:
        raise ConnectionError(f"the cluster at {address} did not answer within {PROBE_TIMEOUT:.0f} s") from None
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        said = [line for line in done.stderr.splitlines() if line.strip()]
        raise ConnectionError(f"the cluster at {address}: {said[-1] if said else 'no answer'}")
    answer: dict[str, Any] = json.loads(lines[-1])
    if "error" in answer:
        raise ConnectionError(answer["error"])
    return answer


def _cluster_findings(address: str, found: dict[str, Any]) -> Iterator[Finding]:
    nodes = found["nodes"]
    cpus, gpus = sum(n["cpus"] for n in nodes), sum(n["gpus"] for n in nodes)
    memory, store = sum(n["memory"] for n in nodes), found["store"]
    yield Finding(
        "ray cluster",
        OK,
        f"at {address}: {counted(len(nodes), 'node')}, {counted(cpus, 'cpu')}, {counted(gpus, 'GPU')}, "
        f"{bytes_text(memory)} for tasks, {bytes_text(store)} for objects",
    )
    for node in nodes:
        if "versions" in node:
            yield from _compared(node["address"], node["versions"], found["here"])
    silent = sum("versions" not in node for node in nodes[:MAX_NODES_ASKED])
    if silent:
        yield Finding("ray nodes", WARNING, f"{counted(silent, 'node')} did not answer in time, and may be busy")


def _compared(node: str, there: dict[str, str | None], here: dict[str, str | None]) -> Iterator[Finding]:
    other = [f"{name} {there[name] or 'not installed'}" for name in here if there[name] != here[name]]
    if not other:
        return
    mine = ", ".join(f"{name} {here[name]}" for name in here if there[name] != here[name])
    remedy = "Install the same version on every node, or start scripts with `distgrad submit`, which ships distgrad."
    state = PROBLEM if there["distgrad"] != here["distgrad"] else WARNING
    yield Finding("ray nodes", state, f"{node} has {', '.join(other)}; here: {mine}", remedy)


# -- the subprocess ----------------------------------------------------------------------------------------------


def versions() -> dict[str, str | None]:
    """The versions that bits depend on. Pickled by value: distgrad may not be installed on a node."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for name in ("distgrad", "numpy"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


def main(address: str) -> None:
    import ray

    from distgrad.workers.on_ray.link import Link

    try:
        link = Link(address, None, None, None)
    except (ConnectionError, ValueError) as e:
        print(json.dumps({"error": str(e).removeprefix("Session: ")}))
        return
    nodes: list[dict[str, Any]] = [
        {"id": n.id, "address": n.address, "cpus": n.cpus, "gpus": n.gpus, "memory": n.memory} for n in link.nodes
    ]
    asked = {_task(ray, node["id"]): node for node in nodes[:MAX_NODES_ASKED]}
    for ref in ray.wait(list(asked), num_returns=len(asked), timeout=ANSWER_TIMEOUT)[0]:
        asked[ref]["versions"] = ray.get(ref)
    resources = ray.cluster_resources()  # type: ignore[no-untyped-call]
    print(json.dumps({"nodes": nodes, "store": int(resources.get("object_store_memory", 0)), "here": versions()}))
    link.close()


def _task(ray: Any, node: str) -> Any:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    where = NodeAffinitySchedulingStrategy(node, soft=False)
    return ray.remote(versions).options(num_cpus=0, scheduling_strategy=where).remote()


if __name__ == "__main__":
    main(sys.argv[1])
