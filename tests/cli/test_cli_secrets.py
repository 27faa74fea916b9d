"""Secrets of scripts and jobs on the command line: files of variables, names that look secret, files that stay here."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from distgrad import runtime
from distgrad.cli import app
from distgrad.cli.secrets import looks_secret, parsed
from distgrad.workers.jobs.jobs import Request
from distgrad.workers.on_ray.connect.private_files import pattern, private_files

WORD = "hunter2-not-to-be-shown"


@pytest.fixture(autouse=True)
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder of the test's own, and the environment as it was afterwards."""
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "script.py").write_text("import os; print(len(os.environ.get('WORD', '')))")
    monkeypatch.chdir(folder)
    monkeypatch.setattr(os, "environ", os.environ.copy())
    monkeypatch.setattr(runtime, "_default", runtime._default)
    return folder


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "secrets.env"
    made.write_text(f"WORD={WORD}\n")
    made.chmod(0o600)
    return made


def call(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def check_error(made: Result, text: str) -> None:
    assert (made.exit_code, made.stdout, made.stderr.count("\n")) == (2, "", 1)
    assert text in made.stderr
    assert WORD not in made.stderr


# -- the file ----------------------------------------------------------------------------------------------------


def test_a_script_gets_the_variables_of_a_file(file: Path) -> None:
    made = call("run", "script.py", "--env-file", str(file))
    assert (made.exit_code, made.stdout, made.stderr) == (0, f"{len(WORD)}\n", "")


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o660])
def test_a_file_that_others_can_read_is_refused(file: Path, mode: int) -> None:
    file.chmod(mode)
    made = call("run", "script.py", "--env-file", str(file))
    check_error(made, f"--env-file {file}: others can read {file} (its mode is {mode:04o})")
    assert f"chmod 600 {file}" in made.stderr


def test_a_file_that_is_not_there_or_no_file_is_told(tmp_path: Path) -> None:
    check_error(call("run", "script.py", "--env-file", str(tmp_path / "no")), "cannot be read: No such file")
    tmp_path.chmod(0o700)
    check_error(call("run", "script.py", "--env-file", str(tmp_path)), "is not a file")


def test_a_link_is_as_private_as_the_file_that_it_leads_to(file: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(file)
    assert call("run", "script.py", "--env-file", str(link)).exit_code == 0
    file.chmod(0o644)
    check_error(call("run", "script.py", "--env-file", str(link)), "others can read")


@pytest.mark.parametrize(
    ("text", "line"),
    [(f"A=1\n{WORD}\n", 2), (f'A="{WORD}\n', 1), (f"\n# x\n1A={WORD}", 3), (f"A='x' {WORD}", 1), (f"A={WORD}\0", 1)],
)
def test_a_line_that_is_none_is_told_by_its_number_alone(file: Path, text: str, line: int) -> None:
    file.write_text(text)
    check_error(call("run", "script.py", "--env-file", str(file)), f"line {line} ")


def test_bytes_that_are_no_text_are_told(file: Path) -> None:
    file.write_bytes(b"A=\xff\xfe")
    check_error(call("run", "script.py", "--env-file", str(file)), "is not UTF-8 text")


def test_values_are_as_they_stand_or_between_quotes() -> None:
    text = "\ufeffA = a b # c\r\nexport B='$x \\n'\nC=\"1\\n\\\"2\\\" \\q\" # told\nD=\nE==x\n"
    assert parsed(text) == {"A": "a b # c", "B": "$x \\n", "C": '1\n"2" \\q', "D": "", "E": "=x"}


# -- submit ------------------------------------------------------------------------------------------------------


def submit(*arguments: str) -> Result:
    """What is said before a cluster is asked: nobody listens there."""
    return call("submit", "script.py", *arguments, "--address", "http://127.0.0.1:9")


@pytest.mark.parametrize("path", ["secrets.env", "./x", "../secrets.env"])
def test_a_path_that_would_lie_in_the_jobs_own_folder_is_refused(path: str) -> None:
    check_error(submit("--env-file", path), "give the absolute path of a file on the cluster")


def test_a_file_that_would_be_sent_is_refused(own: Path, file: Path) -> None:
    check_error(submit("--env-file", str(own / "secrets.env")), "is in the working folder")
    check_error(submit("--env-file", str(own / "x" / ".." / "secrets.env")), "is in the working folder")
    (own / "linked").symlink_to(file)
    check_error(submit("--env-file", str(file)), "(as linked), which is sent")
    (own / "linked").unlink()
    (own / "folder").symlink_to(file.parent)  # Ray goes through links to folders
    check_error(submit("--env-file", str(file)), "(as folder/secrets.env), which is sent")


def test_only_the_path_of_a_file_of_secrets_travels(file: Path) -> None:
    request = Request("script.py", options=["--env-file", str(file)])
    assert f"run --address auto --env-file {file} -- script.py" in request.entrypoint
    assert WORD not in repr(request)


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        ("WANDB_API_KEY", True), ("HF_TOKEN", True), ("GITHUBTOKEN", True), ("aws_secret_access_key", True),
        ("dbPassword", True), ("PGPASSWORD", True), ("MYSQL_PASSWD", True), ("GOOGLE_APPLICATION_CREDENTIALS", True),
        ("PRIVATE_KEY", True), ("AUTH", True), ("BASIC_AUTH", True), ("APIKEY", True), ("SSH_PASSPHRASE", True),
        ("SECRET", True), ("KEY", True), ("DB_PWD", True),
        ("MONKEY", False), ("KEYBOARD", False), ("TOKENIZERS_PARALLELISM", False), ("AUTHOR", False), ("SEED", False),
        ("MAX_TOKENS", False), ("NUM_KEYS", False), ("PWD", False), ("GIT_AUTHOR_NAME", False), ("TURKEY", False),
        ("COMPASS", False), ("PATH", False), ("OMP_NUM_THREADS", False), ("DISTGRAD_PROGRESS", False),
    ],
)  # fmt: skip
def test_a_variable_that_looks_secret_is_warned_of(name: str, secret: bool) -> None:
    made = submit("--env", f"{name}={WORD}")
    assert (f"warning: --env {name} looks secret" in made.stderr) is secret is looks_secret(name)
    assert ("--env-file" in made.stderr) is secret
    assert WORD not in made.output


def test_an_address_with_a_password_is_warned_of() -> None:
    assert "warning: --env DATABASE looks secret" in submit("--env", f"DATABASE=postgres://me:{WORD}@db/x").stderr
    assert "warning" not in submit("--env", "DATABASE=postgres://db:5432/x").stderr


# -- the folder that is sent -------------------------------------------------------------------------------------


def test_files_that_mostly_hold_secrets_are_found(own: Path, tmp_path: Path) -> None:
    kept = ["a.py", ".env.example", "monkey.txt", "keys.py", "environment.yaml", "data/key.csv"]
    secret = [".env", ".env.prod", "certs/server.KEY", "certs/a b[1].pem", "id_rsa", ".netrc", "x/credentials.json"]
    folders = [".ssh/config", ".aws/config", "deep/.kube/config", ".ray/auth_token"]
    for name in (*kept, *secret, *folders):
        (own / name).parent.mkdir(parents=True, exist_ok=True)
        (own / name).write_text("")
    (own / "round").symlink_to(own)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "b.pem").write_text("")
    (own / "linked").symlink_to(tmp_path / "other")
    found = [path for path in private_files(own) if not path.startswith("round/")]
    assert set(found) == {*secret, "linked/b.pem", ".ssh", ".aws", "deep/.kube", ".ray"}


@pytest.mark.ray
def test_ray_leaves_out_exactly_what_is_found(own: Path) -> None:
    from ray._private.runtime_env.packaging import _get_excludes

    names = [".env", "a b[1].pem", "x*y.key", "!n.pem", "#n.pem", "sub/.env"]
    for name in (*names, "a.py", "xzy.py", "sub/.envs"):
        (own / name).parent.mkdir(exist_ok=True)
        (own / name).write_text("")
    leaves_out = _get_excludes(own, [pattern(path) for path in private_files(own)])
    left = {path.relative_to(own).as_posix() for path in own.rglob("*") if path.is_file() and leaves_out(path)}
    assert left == set(names)


def test_a_file_that_shall_be_sent_must_be_there(own: Path) -> None:
    check_error(submit("--send", "ca.pem"), "--send ca.pem: there is no such file in the working folder")
