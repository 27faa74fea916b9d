"""Ray's token file: created private, whatever the umask; refused if others can read or replace it."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from distgrad.workers.on_ray.connect.tokens import check_token, make_token, token_file

MAKE = "from distgrad.workers.on_ray.connect.tokens import make_token; make_token()"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home folder, and nothing about tokens in the environment."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_AUTH_MODE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def file(home: Path) -> Path:
    made = home / ".ray" / "auth_token"
    made.parent.mkdir(mode=0o700)
    made.write_text("a" * 64)
    made.chmod(0o600)
    return made


@pytest.fixture(params=[0o000, 0o022, 0o277])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def test_a_token_is_private_whatever_the_umask(home: Path, umask: int) -> None:
    make_token()
    file = home / ".ray" / "auth_token"
    assert (mode(file), mode(file.parent)) == (0o600, 0o700)
    assert len(file.read_text()) == 64
    assert list(file.parent.iterdir()) == [file]


def test_a_folder_that_all_can_read_is_closed_when_a_token_is_made_in_it(home: Path) -> None:
    (home / ".ray").mkdir(mode=0o755)
    make_token()
    assert mode(home / ".ray") == 0o700


def test_one_that_cannot_be_written_names_its_path_and_what_to_do(home: Path) -> None:
    (home / ".ray").write_text("")
    with pytest.raises(OSError, match=f"token cannot be written to {home}/.ray/auth_token: .* set RAY_AUTH_TOKEN"):
        make_token()


def test_a_token_that_is_there_stays(file: Path) -> None:
    make_token()
    assert file.read_text() == "a" * 64


def test_processes_that_make_it_at_the_same_time_make_one(home: Path) -> None:
    started = [subprocess.Popen([sys.executable, "-c", MAKE], stderr=subprocess.PIPE) for _ in range(6)]
    assert [process.communicate()[1] for process in started] == [b""] * 6
    file = home / ".ray" / "auth_token"
    assert (mode(file), len(file.read_text()), list(file.parent.iterdir())) == (0o600, 64, [file])


@pytest.mark.parametrize("wrong", [0o644, 0o640, 0o604, 0o622, 0o611])
def test_one_that_others_can_read_is_refused_with_the_remedy(file: Path, wrong: int) -> None:
    file.chmod(wrong)
    for check in (check_token, make_token):
        with pytest.raises(PermissionError, match=f"{file} .*{wrong:04o}.*`chmod 600 {file}`.*`rm {file}`"):
            check()
    file.chmod(0o600)
    check_token()


def test_one_in_a_folder_that_others_can_write_to_is_refused(file: Path) -> None:
    file.parent.chmod(0o770)
    with pytest.raises(PermissionError, match=f"others can replace {file}: .*0770.*`chmod go-w {file.parent}`"):
        check_token()
    file.parent.chmod(0o1777)  # as /tmp: what is in it only its owner can replace
    check_token()


def test_it_is_the_file_that_a_link_leads_to(file: Path, tmp_path: Path) -> None:
    real = tmp_path / "elsewhere"
    real.write_text("b" * 64)
    real.chmod(0o644)
    file.unlink()
    file.symlink_to(real)
    with pytest.raises(PermissionError, match="chmod 600"):
        check_token()
    real.chmod(0o600)
    check_token()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")
def test_one_of_another_user_is_refused(file: Path) -> None:
    os.chown(file, 12345, -1)
    with pytest.raises(PermissionError, match="belongs to another user"):
        check_token()


def test_what_the_environment_names_is_what_counts(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.chmod(0o644)
    other = tmp_path / "named"
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(other))
    make_token()
    assert not other.exists()  # it is Ray's to say that a file that was named is not there
    other.write_text("c" * 64)
    other.chmod(0o640)
    with pytest.raises(PermissionError, match=f"others can read {other}"):
        check_token()
    monkeypatch.setenv("RAY_AUTH_TOKEN", "d" * 64)
    check_token()
    monkeypatch.delenv("RAY_AUTH_TOKEN")
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    check_token()
    assert token_file() is None
