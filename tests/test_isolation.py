"""Sessions of tests, each a process here: they touch nothing of the user's, and nothing of it decides what they see."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace

import pytest

from distgrad.scheduler.cluster import Machine
from distgrad.workers.tools.calibrate import cache_file, document, machine

from . import isolation, order, skips

ROOT = Path(__file__).parent.parent
#: What users have in their environments.
AGAINST = {
    "RAY_ADDRESS": "10.0.0.1:6379",
    "RAY_AUTH_TOKEN": "wrong",
    "DISTGRAD_PROGRESS": "on",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_CORETYPE": "Prescott",
    "RAY_KEPT": "kept",
    "DISTGRAD_TEST_KEEP": "RAY_KEPT",
    "COLUMNS": "20",
    "NO_COLOR": "1",
    "PY_COLORS": "0",
    "PYTHONWARNINGS": "ignore",
    "LC_ALL": "C",
    "SLURM_JOB_ID": "7",
}


class User:
    """A user's home, in which a machine ten times faster was calibrated, and sessions of tests for this user."""

    def __init__(self, folder: Path):
        self.home, self.told = folder / "home", folder / "told"
        for each in (self.home, self.told):
            each.mkdir()

    def calibrated(self) -> None:
        rates = {name: 10 * v for name, v in Machine().to_json().items() if name.endswith(("flops", "bandwidth"))}
        path = self.home / ".cache" / "distgrad" / cache_file().name
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(document(replace(Machine(), **rates))))

    def test(self, name: str, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        ours = ("PYTEST_", "DISTGRAD_TEST_")
        env = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        env |= {"HOME": str(self.home), "USER_HOME": str(self.home), "TELL": str(self.told)} | more
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"tests/isolated/{name}.py", *arguments]
        return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=200, umask=0o077)

    def files(self) -> dict[str, tuple[int, int]]:
        return isolation.files([self.home])

    def folders(self) -> set[str]:
        return {path.read_text() for path in self.told.iterdir()}


@pytest.fixture
def user(tmp_path: Path) -> User:
    return User(tmp_path)


@pytest.mark.parametrize("processes", [0, 2])
def test_a_session_leaves_nothing_in_the_home_and_none_of_its_processes(user: User, processes: int) -> None:
    user.calibrated()
    before = user.files()
    done = user.test("behaved", "-n", str(processes), **AGAINST, XDG_CACHE_HOME=str(user.home / ".cache"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert user.files() == before
    assert len(user.folders()) == max(processes, 1)  # each process has a home and a folder of Ray's for itself
    for folder in map(Path, user.folders()):
        assert not folder.parent.exists()
        assert list(isolation.processes(folder.parent)) == []


def test_a_session_that_touches_the_home_fails_and_says_where(user: User) -> None:
    done = user.test("touches", DISTGRAD_CACHE=str(user.told / "cache"), RAY_TMPDIR=str(user.told))
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    told = done.stdout.partition("= files of the user =")[2]
    assert f"  {user.home}/.ray/auth_token\n" in told
    assert f"  {user.told}/cache/rates\n" in told
    assert re.search(rf"  {user.told}/ray/session_\d+\n", told)
    assert "1 passed" in done.stdout


def test_a_test_that_keeps_rates_for_others_is_an_error_and_the_next_does_not_see_them(user: User) -> None:
    done = user.test("calibrates")
    assert "2 passed, 1 error" in done.stdout
    assert "kept rates in the cache folder of all tests" in done.stdout
    assert "give it a DISTGRAD_CACHE of its own" in done.stdout


@pytest.mark.parametrize("factor", [10.0, 0.1])
def test_a_session_can_have_the_rates_of_a_faster_or_slower_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, factor: float
) -> None:
    monkeypatch.setenv("DISTGRAD_CACHE", str(tmp_path))
    isolation.keep_rates(factor)
    found, usual = machine(1), Machine()
    assert (found.gemm_flops, found.task_seconds) == (usual.gemm_flops * factor, usual.task_seconds / factor)


def test_a_seed_shuffles_files_and_the_tests_of_each() -> None:
    tests = [SimpleNamespace(path=Path(str(n // 10)), number=n) for n in range(100)]
    one, again, two = (order.shuffled(tests, seed) for seed in (1, 1, 2))
    assert one == again != two != tests
    assert sorted(test.number for test in one) == list(range(100))
    files = [[test.number for test in tests] for _, tests in groupby(one, lambda test: test.path)]
    assert len(files) == 10
    assert [numbers[0] // 10 for numbers in files] != list(range(10))
    assert all(numbers != sorted(numbers) for numbers in files)


@pytest.mark.parametrize("processes", ["0", "1"])
def test_a_session_is_shuffled_and_tells_what_is_missing(user: User, processes: str) -> None:
    said = user.test("numbers", "-v", "--shuffle=1", "-n", processes).stdout
    numbers = re.findall(r"test_number\[(\d)\] PASSED|PASSED .*test_number\[(\d)\]", said)
    assert list(range(10)) == sorted(int(a or b) for a, b in numbers) != [int(a or b) for a, b in numbers]
    told = said.partition("= skipped, for what is not installed here =")[2].splitlines()
    assert told[1:3] == ["1 test needs torch, which this installs:", f"    {skips.command('torch')}"]


def test_every_reason_for_a_skip_is_counted_under_what_is_missing() -> None:
    reasons = [
        "Skipped: torch is not installed",
        "Skipped: could not import 'torch': No module named 'torch'",
        "Skipped: no Chromium: install the packages chromium and chromium-driver",
        "Skipped: the standard has no float16",
    ]
    assert skips.grouped(reasons) == {"torch": 2, "Chromium": 1}
    assert skips.command("torch").endswith("python -m pip install torch")
    assert "chromium" in skips.command("Chromium")
