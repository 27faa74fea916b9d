"""Tests that write where distgrad, Ray and their tools do, in an environment that is against them."""

from __future__ import annotations

import locale
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from distgrad.scheduler.cluster import Machine
from distgrad.workers.tools import calibrate

#: What warns when it is collected while its process runs.
LEFT: list[subprocess.Popen[bytes]] = []


@pytest.fixture(scope="session", autouse=True)
def told() -> None:
    """Each process of the session tells where its folder is."""
    Path(os.environ["TELL"], str(os.getpid())).write_text(tempfile.gettempdir())


def test_what_is_written_into_the_home_is_written_into_the_sessions() -> None:
    for name in (".ray/auth_token", ".config/matplotlib/a", "a"):
        path = Path.home() / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    subprocess.run(["sh", "-c", "touch ~/b $TMPDIR/c"], check=True)
    assert Path.home() / "b" in Path.home().iterdir()
    assert str(Path.home()) != os.environ["USER_HOME"]


def test_a_calibration_goes_to_the_tests_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISTGRAD_CACHE", str(tmp_path))
    assert calibrate.calibrate(seconds=0.01) == calibrate.machine() != Machine()


def test_the_rates_are_the_defaults() -> None:
    assert calibrate.machine() == Machine()


def test_nothing_of_the_users_environment_is_seen() -> None:
    code = "import os, sys, tempfile as t; print(*os.environ, sys.stdout.encoding, t.gettempdir(), os.umask(0))"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    unwanted = {"RAY_ADDRESS", "RAY_AUTH_TOKEN", "DISTGRAD_PROGRESS", "OMP_NUM_THREADS", "OPENBLAS_CORETYPE", "COLUMNS",
                "NO_COLOR", "PY_COLORS", "PYTHONWARNINGS", "XDG_CACHE_HOME", "SLURM_JOB_ID"}  # fmt: skip
    assert unwanted.isdisjoint(said)
    assert unwanted.isdisjoint(os.environ)
    assert said[-3:] == ["utf-8", tempfile.gettempdir(), str(0o022)]
    assert locale.getpreferredencoding(False).lower() == "utf-8"
    assert os.environ["RAY_TMPDIR"] == tempfile.gettempdir()


def test_a_variable_that_was_asked_for_is_kept() -> None:
    assert os.environ.get("RAY_KEPT") == "kept"


def test_a_process_is_left_behind() -> None:
    LEFT.append(subprocess.Popen(["sleep", "600"], start_new_session=True))
