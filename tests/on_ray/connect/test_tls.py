"""Ray's TLS: a cluster that requires certificates is joined with one, and not without."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from ..helpers import driver, until
from ..jobs.test_jobs import clean, end, free_ports

pytestmark = [
    pytest.mark.ray,
    pytest.mark.skipif(shutil.which("openssl") is None, reason="there is no openssl, which makes the certificates"),
]

#: An address of this machine that Ray leaves as it is.
HOST = "127.0.0.2"
JOIN = """
import sys, time
import numpy as np
import distgrad as dg

begun = time.monotonic()
step = dg.data_parallel(dg.grad(lambda w, x: np.sum(x * w)), shards=2, reduction="sum")
try:
    with dg.Session("ray", address=sys.argv[1], timeout=60):
        print("made", step(2.0, np.ones(4)))
except ConnectionError as e:
    print(time.monotonic() - begun < 15, e)
"""


def openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)


def certificates(folder: Path) -> dict[str, str]:
    """The variables of Ray that name an authority, made here, and a certificate that it signed, with its key."""
    folder.mkdir()
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    openssl(folder, "req", "-x509", *key, "-days", "2", "-subj", "/CN=authority", "-keyout", "ca.key", "-out", "ca.crt")
    openssl(folder, "req", *key, "-subj", "/CN=node", "-keyout", "node.key", "-out", "node.csr")
    (folder / "names").write_text(f"subjectAltName=IP:{HOST},IP:127.0.0.1,DNS:localhost\n")
    signed = ["-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", "names"]
    openssl(folder, "x509", "-req", "-in", "node.csr", *signed, "-out", "node.crt")
    return {
        "RAY_USE_TLS": "1",
        "RAY_TLS_SERVER_CERT": str(folder / "node.crt"),
        "RAY_TLS_SERVER_KEY": str(folder / "node.key"),
        "RAY_TLS_CA_CERT": str(folder / "ca.crt"),
    }


@dataclass(frozen=True)
class Secured:
    address: str
    token: dict[str, str]
    #: Of the cluster, and of somebody else.
    own: dict[str, str]
    others: dict[str, str]

    def join(self, **tls: str) -> str:
        return driver("-c", JOIN, self.address, **self.token, **tls)[0].splitlines()[-1]


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("tls")
    own, others = certificates(folder / "own"), certificates(folder / "others")
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": os.urandom(32).hex()}
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as temporary:  # a short path: sockets
        client, agent = free_ports(2)
        options = [
            "--head", "--block", "--disable-usage-stats", "--port=0", f"--node-ip-address={HOST}", "--num-cpus=2",
            "--include-dashboard=false", f"--ray-client-server-port={client}", "--min-worker-port=0",
            f"--dashboard-agent-listen-port={agent}", "--max-worker-port=0", f"--object-store-memory={100 << 20}",
            f"--temp-dir={temporary}",
        ]  # fmt: skip
        process = subprocess.Popen(
            [str(Path(sys.executable).parent / "ray"), "start", *options],
            env=clean(**token, **own),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            head = Path(temporary) / "ray_current_cluster"  # written last
            assert until(lambda: head.exists() or process.poll() is not None, 90)
            assert process.poll() is None
            yield Secured(head.read_text().strip(), token, own, others)
        finally:
            end(process)


def test_a_step_runs_on_a_cluster_whose_connections_are_encrypted(secured: Secured) -> None:
    assert secured.join(**secured.own) == "made 4.0"


def test_a_driver_without_a_certificate_that_is_accepted_is_told_so_in_seconds(secured: Secured) -> None:
    begins = f"True Session: cannot join the Ray cluster at '{secured.address}': "
    assert secured.join().startswith(f"{begins}the cluster uses TLS, this process does not: set RAY_USE_TLS=1 and ")
    assert secured.join(RAY_USE_TLS="1").startswith(f"{begins}RAY_USE_TLS is 1, but RAY_TLS_SERVER_CERT is not set")
    foreign = secured.own | {name: secured.others[name] for name in ("RAY_TLS_SERVER_CERT", "RAY_TLS_SERVER_KEY")}
    assert secured.join(**foreign).startswith(f"{begins}it does not accept the certificate of RAY_TLS_SERVER_CERT (")
    deceived = secured.own | {"RAY_TLS_CA_CERT": secured.others["RAY_TLS_CA_CERT"]}
    assert secured.join(**deceived).startswith(f"{begins}its certificate is not accepted here (")
