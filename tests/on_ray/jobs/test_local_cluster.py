"""cluster-configs/local-cluster.sh: several nodes on this machine, joined by a session, and ended without leftovers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import ray  # noqa: F401  (brings psutil)

SCRIPT = Path(__file__).parents[3] / "cluster-configs" / "local-cluster.sh"
pytestmark = pytest.mark.ray

JOIN = """
import sys
import numpy as np
import ray
import distgrad as dg

step = dg.data_parallel(dg.grad(lambda w, x: np.sum(x * w)), shards=2, reduction="sum")
with dg.Session("ray", address=sys.argv[1], timeout=60):
    print(sum(node["Alive"] for node in ray.nodes()), step(2.0, np.ones(4)))
"""


WRONG = """
import sys, time
import distgrad as dg

begun = time.monotonic()
try:
    dg.Session("ray", address=sys.argv[1])
except ConnectionError as e:
    print(time.monotonic() - begun < 10, e)
"""


def run(*line: str, cwd: Path | None = None, **variables: str) -> str:
    tools = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = os.environ | {"PATH": tools, "STORE": "100000000", "JOBS_PORT": "0", "RAY_AUTH_MODE": "token"} | variables
    env.pop("RAY_ADDRESS", None)
    done = subprocess.run(line, env=env, capture_output=True, text=True, timeout=120, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done.stdout


def processes(folder: str) -> set[int]:
    """The processes that name the cluster's folder, and all that they started."""
    import psutil

    roots = [p for p in psutil.process_iter(["cmdline"]) if any(folder in word for word in p.info["cmdline"] or ())]
    return {p.pid for root in roots for p in (root, *root.children(recursive=True))}


def test_two_nodes_are_joined_take_a_job_and_end_without_a_process_left(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text("import distgrad as dg\nprint('made', dg.grad(dg.exp)(0.0))\n")
    said = dict(line.split(":", 1) for line in run(str(SCRIPT), "start", "2", "1").splitlines())
    stop = said["stop"].split()
    try:
        joined = run(sys.executable, "-c", JOIN, said["address"].strip())
        refused = run(sys.executable, "-c", WRONG, said["address"].strip(), RAY_AUTH_TOKEN="wrong")
        submit = ["submit", "job.py", "--working-dir", str(tmp_path), "--address", said["jobs"].strip()]
        log = run(sys.executable, "-m", "distgrad", *submit, cwd=tmp_path)
        started = processes(stop[-1])
    finally:
        run(*stop)
    assert joined == "2 4.0\n"
    assert refused.startswith("True Session: cannot join the Ray cluster at")
    assert "It requires an authentication token" in refused
    assert "made 1.0" in log
    assert len(started) > 4
    assert [pid for pid in started if Path(f"/proc/{pid}").exists()] == []
    assert not Path(stop[-1]).exists()
