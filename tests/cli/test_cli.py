"""The command line, called as a user calls it: what it prints, and the exit code."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import distgrad as dg
from distgrad.cli import app
from distgrad.scheduler.cluster import Machine, load_cluster
from distgrad.workers.tools.calibrate import cache_file, document


@pytest.fixture(autouse=True)
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine that was calibrated before, in a folder of this test's own."""
    monkeypatch.setenv("DISTGRAD_CACHE", str(tmp_path))
    path = cache_file()
    path.write_text(json.dumps(document(Machine(gemm_flops=1.5e9))))
    return path


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def test_calibrate_prints_the_rates_and_where_they_are_kept(kept: Path) -> None:
    made = run("calibrate")
    assert made.exit_code == 0
    assert "       1.5 Gflop/s  matrix product, float32, one CPU\n" in made.stdout
    assert made.stdout.endswith(f"saved to {kept}\n")


def test_calibrate_json_is_what_a_cluster_file_takes(tmp_path: Path) -> None:
    (tmp_path / "rates.json").write_text(run("calibrate", "--json").stdout)
    (tmp_path / "my.toml").write_text('[[nodes]]\ncpus = 1\n[machine]\ncalibration = "rates.json"\n')
    assert load_cluster(tmp_path / "my.toml").machine.gemm_flops == 1.5e9


@pytest.mark.parametrize("threads", ["0", "-1", "10000", "two"])
def test_wrong_threads_are_a_wrong_use(threads: str) -> None:
    made = run("calibrate", "--threads", threads)
    assert made.exit_code == 2
    assert "--threads" in made.stderr
    assert "Traceback" not in made.stderr


def test_a_command_that_does_not_exist_is_a_wrong_use() -> None:
    assert run("calibrat").exit_code == 2


def test_a_folder_that_cannot_be_written_is_a_failure_told_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DISTGRAD_CACHE", str(tmp_path / "file"))
    made = run("calibrate", "--force")
    assert (made.exit_code, made.stdout, made.stderr.count("\n")) == (1, "", 1)
    assert made.stderr.startswith("error: the calibration cannot be saved in ")


def test_without_a_command_there_is_help() -> None:
    made = run()
    assert "calibrate" in made.output


def test_help_has_no_colour_when_none_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    made = CliRunner().invoke(app, ["--help"], color=True)
    assert "\x1b[3" not in made.output  # 30 to 37 are the colours


def test_version_is_printed() -> None:
    assert run("--version").stdout == f"distgrad {dg.__version__}\n"


def test_python_m_distgrad_is_the_same_command() -> None:
    made = subprocess.run([sys.executable, "-m", "distgrad", "--version"], capture_output=True, text=True, check=True)
    assert made.stdout == f"distgrad {dg.__version__}\n"


def test_importing_distgrad_does_not_import_the_command_line() -> None:
    code = "import sys, distgrad; print([m for m in ('typer', 'threadpoolctl', 'distgrad.cli') if m in sys.modules])"
    made = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert made.stdout == "[]\n"
