"""Output files: checked before the work begins, and written atomically."""

from __future__ import annotations

import errno
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import distgrad as dg
from distgrad import files
from distgrad.cli import app
from distgrad.files import check_writable, write_text

#: A device that is always full stands for a full disk.
FULL = Path("/dev/full")
needs_full = pytest.mark.skipif(not FULL.exists(), reason="this system has no /dev/full")


def run_some() -> None:
    dg.function(lambda x: x + 1)(np.ones(3))


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("folder.json", "cannot write {}/folder.json: Is a directory; name a file in it"),
        ("nowhere/x.json", "there is no folder"),
        ("x" * 300 + ".json", "File name too long; choose a shorter path"),
        ("file/x.json", "there is no folder"),
        ("lost.json", "No such file or directory; make the folder first"),
    ],
)
def test_a_trace_that_cannot_be_written_is_refused_when_the_session_opens(
    tmp_path: Path, path: str, text: str
) -> None:
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "file").write_text("")
    (tmp_path / "lost.json").symlink_to(tmp_path / "gone" / "x.json")
    for engine in ("local", "ray"):  # before Ray is started
        with pytest.raises(ValueError, match=r"^Session: trace: ") as caught:
            dg.Session(engine, trace=tmp_path / path)
        assert text.format(tmp_path) in str(caught.value)


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that all users can access, but only its owner can write to."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)
        os.chmod(folder, 0o755)


@contextmanager
def as_nobody(folder: Path) -> Iterator[None]:
    """Within the block this process cannot write to the folder, even as root."""
    if os.geteuid() != 0:
        folder.chmod(0o555)
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_a_folder_that_may_not_be_written_is_refused_too(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISTGRAD_CACHE", str(shared))  # which anybody may read
    path, kept = shared / "trace.json", shared / "kept.json"
    kept.write_text("{}")
    kept.chmod(0o444)
    dg.Session()  # imports what it needs: a user without a name may not read this Python
    with as_nobody(shared):
        for each in (path, kept):
            with pytest.raises(ValueError, match=f"^Session: trace: cannot write {each}: Permission denied; choose a"):
                dg.Session(trace=each)
    assert list(shared.iterdir()) == [kept]


def test_looking_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "old.json").write_text("old")
    for name in ("old.json", "new.json"):
        check_writable(tmp_path / name)
    assert [(x.name, x.read_text()) for x in tmp_path.iterdir()] == [("old.json", "old")]


@needs_full
def test_a_full_disk_is_reported_with_path_and_remedy_and_the_session_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.symlink_to(FULL)
    w = dg.Variable(np.zeros(3))
    session = dg.Session(trace=path)
    with pytest.raises(OSError, match=f"^cannot write {path}: No space left on device; free some space there"):  # noqa: SIM117
        with session:
            dg.function(lambda: w.assign_add(np.ones(3)))()
    assert w.numpy().tolist() == [1, 1, 1]
    session.write_trace(tmp_path / "again.json")  # nothing was lost
    assert json.loads((tmp_path / "again.json").read_text())["distgrad"]["plans"]


def test_what_was_there_stays_when_the_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "page.html"
    path.write_text("old")
    path.chmod(0o640)

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(files.os, "fsync", full)
        with pytest.raises(OSError, match=f"cannot write {path}: No space left on device"):
            write_text(path, "new")
    assert [(x.name, x.read_text()) for x in tmp_path.iterdir()] == [("page.html", "old")]
    write_text(path, "new")
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("new", 0o640)


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "real")
    write_text(tmp_path / "link", "new")
    assert ((tmp_path / "link").is_symlink(), (tmp_path / "real").read_text()) == (True, "new")


def test_a_file_in_a_folder_that_may_not_be_written_is_written_itself(shared: Path) -> None:
    file = shared / "page.html"
    file.write_text("old")
    file.chmod(0o666)
    with as_nobody(shared):
        write_text(check_writable(file), "new")
    assert file.read_text() == "new"


@needs_full
def test_commands_tell_a_full_disk_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with dg.Session(trace="trace.json"):
        run_some()
    Path("full.html").symlink_to(FULL)
    Path("model.py").write_text("import numpy as np\ndef plan(): return (lambda x: x + 1), (np.ones(3),)\n")
    for command in ("report trace.json --output full.html", "plan model.py:plan --html full.html"):
        made = CliRunner().invoke(app, command.split())
        assert (made.exit_code, made.stdout, made.stderr.count("\n")) == (2, "", 1)
        assert "cannot write full.html: No space left on device; free some space there" in made.stderr


@needs_full
def test_a_calibration_that_finds_no_room_names_its_file_and_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from distgrad.scheduler.cluster import Machine
    from distgrad.workers.tools import calibrate

    monkeypatch.setenv("DISTGRAD_CACHE", str(tmp_path))
    monkeypatch.setattr(calibrate, "measure", lambda *_: Machine())
    calibrate.cache_file().symlink_to(FULL)
    made = CliRunner().invoke(app, ["calibrate", "--force"])
    assert (made.exit_code, made.stdout) == (1, "")
    told = f"error: the calibration cannot be saved in {calibrate.cache_file()}: No space left on device. "
    assert made.stderr.splitlines()[-1].startswith(f"{told}Set DISTGRAD_CACHE")


@needs_full
def test_a_demo_that_finds_no_room_says_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISTGRAD_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "demo"
    folder.mkdir()
    (folder / "model.py").write_text((Path(dg.__file__).parent / "cli/demo_model.py").read_text())
    (folder / "report.html").symlink_to(FULL)
    made = CliRunner().invoke(app, ["demo", "--local", "--steps", "1", "--output", str(folder)])
    assert made.exit_code == 1
    last = made.stderr.splitlines()[-1]
    assert last.startswith(f"error: cannot write {folder / 'report.html'}: No space left on device; ")
    assert "--output" in last
