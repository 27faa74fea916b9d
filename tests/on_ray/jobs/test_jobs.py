"""Jobs, submitted from a folder outside the checkout to a cluster of `ray start` that requires a token."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from distgrad.workers.on_ray.connect.opening import show_token

from ..helpers import PROCESS_TIMEOUT, ROOT, below, processes, until

pytestmark = pytest.mark.ray

SECRET = "not to be shown"


def clean(**more: str) -> dict[str, str]:
    """This process's environment without what concerns its own Ray; `python` is this one, as where Ray is installed."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "PYTHONPATH"))}
    return {**kept, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{kept['PATH']}", **more}


@dataclass(frozen=True)
class Cluster:
    """A cluster, and a folder to call the command line in."""

    address: str
    token: str
    folder: Path
    #: The address of the head, for those who join it; and where the cluster keeps its logs and packages.
    head: str = ""
    temporary: Path = Path()

    def start(self, *command: str, **more: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "distgrad", *command, "--address", self.address],
            cwd=self.folder,
            env=clean(**{"RAY_AUTH_TOKEN": self.token, "RAY_ADDRESS": "http://127.0.0.1:1", **more}),
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def call(self, *command: str, **more: str) -> subprocess.CompletedProcess[str]:
        with self.start(*command, **more) as process:
            try:
                out, err = process.communicate(timeout=PROCESS_TIMEOUT)
            finally:
                process.kill()
        return subprocess.CompletedProcess(command, process.returncode, out, err)

    def status(self, id: str) -> Any:
        listed = json.loads(self.call("jobs", "list", "--json").stdout)
        return {job["id"]: job["status"] for job in listed}.get(id)


def free_ports(count: int) -> list[int]:
    taken = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [s.getsockname()[1] for s in taken]
    for s in taken:
        s.close()
    return ports


def ray_start(folder: str, token: str, dashboard: int) -> subprocess.Popen[bytes]:
    client, agent = free_ports(2)
    options = {
        "port": 0,
        "node-ip-address": "127.0.0.1",
        "include-dashboard": "true",
        "dashboard-host": "127.0.0.1",
        "dashboard-port": dashboard,
        "dashboard-agent-listen-port": agent,
        "ray-client-server-port": client,
        "min-worker-port": 0,
        "max-worker-port": 0,
        "num-cpus": 2,
        "object-store-memory": 150 << 20,
        "temp-dir": folder,
    }
    command = [str(Path(sys.executable).parent / "ray"), "start", "--head", "--block", "--disable-usage-stats"]
    return subprocess.Popen(
        [*command, *(f"--{name}={value}" for name, value in options.items())],
        cwd=folder,
        env=clean(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=token),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process and all that it started, and nothing else."""
    started = {pid: processes().get(pid) for pid in below(process.pid)}
    process.terminate()
    try:
        process.wait(30)
    finally:
        process.kill()
        for pid, known in started.items():
            if (found := processes().get(pid)) is not None and known is not None and found[1] == known[1]:
                os.kill(pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    token, [port] = secrets.token_hex(16), free_ports(1)
    folder = tmp_path_factory.mktemp("project")
    shutil.copy(ROOT / "examples" / "quickstart.py", folder)
    shutil.copy(ROOT / "tests" / "on_ray" / "programs" / "job.py", folder)
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as temporary:  # a short path: sockets
        process = ray_start(temporary, token, port)
        try:
            head = Path(temporary) / "ray_current_cluster"  # written last
            assert until(lambda: (answers(port) and head.exists()) or process.poll() is not None, 60)
            assert process.poll() is None
            yield Cluster(f"http://127.0.0.1:{port}", token, folder, head.read_text().strip(), Path(temporary))
        finally:
            end(process)


@pytest.fixture(scope="module")
def trained(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """The file that a job wrote, and what submitting and following it printed: its output and its errors."""
    file = tmp_path_factory.mktemp("results") / "loss"
    words = ["it's", "$HOME", "--flag"]
    made = cluster.call("submit", "job.py", "train", str(file), *words, "--env", f"TOLD={SECRET}")
    assert made.returncode == 0, made.stdout + made.stderr
    return file, made.stdout, made.stderr


@pytest.fixture
def long(cluster: Cluster) -> str:
    """The id of a job that runs until it is stopped."""
    made = cluster.call("submit", "--no-wait", "job.py", "forever")
    assert made.returncode == 0, made.stderr
    id = made.stdout.strip()
    assert until(lambda: "begun\n" in cluster.call("jobs", "logs", id).stdout, 60)
    return id


def test_a_cluster_that_wants_a_token_is_joined_with_the_one_of_the_environment(cluster: Cluster) -> None:
    made = replace(cluster, address=cluster.head).call("run", "quickstart.py", "--steps", "20")
    assert (made.returncode, "AuthToken" in made.stderr) == (0, False), made.stderr
    assert "step  19  loss " in made.stdout


@pytest.mark.parametrize(
    ("address", "named", "shown"),
    [("far:6379", "", 0), ("127.0.0.1:6379", "", 1), ("ray://localhost:10001", "", 1), ("far:6379", "secret", 1)],
)
def test_the_token_of_a_users_file_is_shown_on_this_machine_alone(
    address: str, named: str, shown: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[bool] = []
    monkeypatch.setattr(
        "ray._private.authentication.authentication_token_setup.maybe_enable_token_auth_if_token_available",
        lambda warn_if_disabled: calls.append(warn_if_disabled),
    )
    monkeypatch.delenv("RAY_AUTH_TOKEN_PATH", raising=False)
    monkeypatch.setenv("RAY_AUTH_TOKEN", named)
    show_token(address)
    assert len(calls) == shown


def test_an_example_is_submitted_and_its_log_followed(trained: tuple[Path, str, str]) -> None:
    assert "step  19  loss " in trained[1]
    assert trained[2].endswith(" succeeded\n")


def test_its_result_has_the_same_bits_as_here_and_on_a_ray_of_its_own(
    cluster: Cluster, trained: tuple[Path, str, str], tmp_path: Path
) -> None:
    for options in ([], ["--workers", "2"]):
        file = tmp_path / f"loss{len(options)}"
        command = [sys.executable, "-m", "distgrad", "run", "job.py", *options, "train", str(file)]
        made = subprocess.run(command, cwd=cluster.folder, env=clean(), text=True, capture_output=True, check=True)
        assert f"on Ray: {bool(options)}\n" in made.stdout
        assert trained[0].read_text() == file.read_text()


def test_a_job_gets_its_arguments_as_they_are(trained: tuple[Path, str, str]) -> None:
    assert "words: it's $HOME --flag\n" in trained[1]


def test_a_job_gets_this_distgrad(trained: tuple[Path, str, str]) -> None:
    [line] = [line for line in trained[1].splitlines() if line.startswith("distgrad: /")]
    assert "py_modules_files" in line


def test_a_job_runs_on_the_cluster(trained: tuple[Path, str, str]) -> None:
    assert "on Ray: True\n" in trained[1]


def test_a_job_gets_its_variables(trained: tuple[Path, str, str]) -> None:
    assert f"variables: {SECRET} log\n" in trained[1]


def test_variables_are_nowhere_shown(cluster: Cluster, trained: tuple[Path, str, str]) -> None:
    assert SECRET not in trained[2] + cluster.call("jobs", "list", "--json").stdout


def test_a_failing_script_is_seen_with_its_message_and_its_exit_code(cluster: Cluster) -> None:
    made = cluster.call("submit", "job.py", "fail")
    assert made.returncode == 7
    assert "there are no data\n" in made.stdout
    assert made.stderr.splitlines()[-1].endswith(" failed with exit code 7")


def test_a_job_outlives_an_interrupt_of_its_follower_and_is_stopped_by_name(cluster: Cluster, long: str) -> None:
    assert cluster.status(long) == "RUNNING"
    with cluster.start("jobs", "logs", "--follow", long) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        while process.stdout.readline() not in ("begun\n", ""):
            pass
        process.send_signal(signal.SIGINT)
        assert process.wait(PROCESS_TIMEOUT) == 130
        assert f"`distgrad jobs stop {long} --address {cluster.address}` stops it" in process.stderr.read()
    assert cluster.status(long) == "RUNNING"
    made = cluster.call("jobs", "stop", long)
    assert (made.returncode, made.stderr) == (0, f"job {long} has ended: STOPPED\n")
    assert cluster.status(long) == "STOPPED"


@pytest.mark.parametrize("command", [["logs", "--follow"], ["stop"]])
def test_an_unknown_job_is_told_in_one_line(cluster: Cluster, command: list[str]) -> None:
    made = cluster.call("jobs", *command, "raysubmit_none")
    assert made.returncode == 1
    assert made.stderr == (
        f"error: the cluster at {cluster.address} has no job 'raysubmit_none': see `distgrad jobs list`\n"
    )


@pytest.mark.parametrize(
    ("variables", "text"),
    [
        ({"RAY_AUTH_TOKEN": "another"}, "rejects this token: set RAY_AUTH_TOKEN"),
        ({"RAY_AUTH_MODE": "disabled"}, "requires an authentication token: set RAY_AUTH_TOKEN"),
    ],
)
def test_a_wrong_or_missing_token_is_told_in_one_line(cluster: Cluster, variables: dict[str, str], text: str) -> None:
    made = cluster.call("submit", "job.py", "fail", **variables)
    assert (made.returncode, made.stdout, made.stderr.count("\n")) == (1, "", 1)
    assert made.stderr.startswith("error: ")
    assert text in made.stderr


# -- secrets -----------------------------------------------------------------------------------------------------

#: What each file of secrets holds; in the name of a file it would be seen in lists.
HIDDEN = "s3cret-0f5c9e1d7ab24"


def holding(text: str, folder: Path) -> list[Path]:
    """The files below a folder that have a text in them, packed ones by what they pack."""
    found = []
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            data = [path.read_bytes()]
            if zipfile.is_zipfile(path):
                with zipfile.ZipFile(path) as packed:
                    data += [packed.read(name) for name in packed.namelist()]
            if any(text.encode() in x for x in data):
                found.append(path)
    return found


def listing(cluster: Cluster) -> str:
    """All jobs as the dashboard tells of them to any client."""
    request = Request(f"{cluster.address}/api/jobs/", headers={"Authorization": f"Bearer {cluster.token}"})
    with urlopen(request, timeout=30) as answer:
        return str(answer.read().decode())


@pytest.fixture(scope="module")
def secret(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[subprocess.CompletedProcess[str]]:
    """A job that reads a file of secrets on the cluster, from a folder with other secrets in it."""
    file = tmp_path_factory.mktemp("secrets") / "job.env"
    file.write_text(f"# mine\nHIDDEN='{HIDDEN}'\n")
    file.chmod(0o600)
    private = [cluster.folder / name for name in (".env", "key.pem", ".ssh/id_rsa", "plain.txt")]
    private[2].parent.mkdir()
    for path in private:
        path.write_text("nothing" if path.suffix == ".txt" else HIDDEN)
    yield cluster.call("submit", "job.py", "--env-file", str(file), "secret", "HIDDEN", "a word\nof two lines")
    shutil.rmtree(private[2].parent)
    for path in private:
        path.unlink(missing_ok=True)


def test_a_job_reads_secrets_on_the_cluster_and_they_are_nowhere_else(
    cluster: Cluster, secret: subprocess.CompletedProcess[str]
) -> None:
    assert secret.returncode == 0, secret.stderr
    assert f"length: {len(HIDDEN)}\n" in secret.stdout
    assert HIDDEN not in secret.stdout + secret.stderr
    assert HIDDEN not in listing(cluster) + cluster.call("jobs", "list", "--json").stdout
    assert holding("length: ", cluster.temporary)  # so what the job printed is found, and packages are there
    assert holding("def secret(", cluster.temporary)
    assert holding(HIDDEN, cluster.temporary) == []


def test_files_that_look_secret_are_not_sent_and_named(secret: subprocess.CompletedProcess[str]) -> None:
    [line] = [line for line in secret.stdout.splitlines() if line.startswith("files: ")]
    assert {"job.py", "quickstart.py", "plain.txt"} <= set(line.split())
    assert not {".env", "key.pem", ".ssh/id_rsa"} & set(line.split())
    assert "not sent, because it looks secret: .ssh, .env, key.pem (use --send PATH" in secret.stderr


def test_a_list_of_jobs_has_one_line_for_each(cluster: Cluster, secret: subprocess.CompletedProcess[str]) -> None:
    lines = cluster.call("jobs", "list").stdout.splitlines()
    assert len(lines) == 1 + len(json.loads(cluster.call("jobs", "list", "--json").stdout))
    assert any(line.endswith(r"job.py secret HIDDEN 'a word\nof two lines'") for line in lines)


def test_a_variable_that_looks_secret_is_warned_of_and_a_file_that_others_can_read_refused_by_the_job(
    cluster: Cluster, tmp_path: Path
) -> None:
    file = tmp_path / "job.env"
    file.write_text(f"HIDDEN={HIDDEN}\n")
    file.chmod(0o640)
    made = cluster.call("submit", "job.py", "fail", "--env", "DB_PASSWORD=shown-5d1e", "--env-file", str(file))
    assert made.returncode == 2
    assert f"error: --env-file {file}: others can read {file} (its mode is 0640)" in made.stdout + made.stderr
    assert "there are no data" not in made.stdout  # the script did not begin
    assert "warning: --env DB_PASSWORD looks secret, and Ray shows it in plain text" in made.stderr
    assert "shown-5d1e" in listing(cluster)  # as is warned
    assert "shown-5d1e" not in made.stdout + made.stderr
    assert HIDDEN not in made.stdout + made.stderr


def test_a_token_file_that_others_can_read_is_not_shown(cluster: Cluster, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(cluster.token)
    file.chmod(0o644)
    made = cluster.call("jobs", "list", RAY_AUTH_TOKEN="", RAY_AUTH_TOKEN_PATH=str(file))
    assert (made.returncode, made.stdout, made.stderr.count("\n")) == (2, "", 1)
    assert made.stderr.startswith(f"error: others can read {file} (its mode is 0644)")
    file.chmod(0o600)
    assert cluster.call("jobs", "list", RAY_AUTH_TOKEN="", RAY_AUTH_TOKEN_PATH=str(file)).returncode == 0


def test_a_cluster_without_tls_is_told_apart(cluster: Cluster, tmp_path: Path) -> None:
    from ..connect.test_tls import certificates

    made = replace(cluster, address=cluster.head).call("run", "quickstart.py", **certificates(tmp_path / "tls"))
    assert (made.returncode, made.stderr.count("\n")) == (1, 1)
    assert "RAY_USE_TLS is 1 here, but the cluster does not use TLS" in made.stderr
